"""The owner of a job's code is the account of the job."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import pytest

from provision.node.code.tree import own

EXCHANGE = 2


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives files away")
def test_a_folder_that_is_replaced_by_a_link_does_not_change_the_owner_of_roots_files(tmp_path: Path) -> None:
    """A process of an earlier attempt may have the code open while root changes its owner."""
    victim, code = tmp_path / "victim", tmp_path / "code"
    (code / "folder").mkdir(parents=True)
    victim.mkdir()
    for folder in (victim, code / "folder"):
        for number in range(50):
            (folder / str(number)).touch()
    (code / "link").symlink_to(victim)
    library, over = ctypes.CDLL(None), threading.Event()
    names = [os.fsencode(code / name) for name in ("folder", "link")]

    def exchange() -> None:
        while not over.is_set():
            library.renameat2(-100, names[0], -100, names[1], EXCHANGE)

    attacker = threading.Thread(target=exchange)
    attacker.start()
    try:
        for _ in range(300):
            own(str(code), {"user": "65534:65534"})
    finally:
        over.set()
        attacker.join()

    assert {path.stat().st_uid for path in (victim, *victim.iterdir())} == {0}
