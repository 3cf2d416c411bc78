"""Code is given to the account that a job runs as, and nothing else is."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import pytest

from provision.node.code.tree import own

EXCHANGE = 2


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives files away")
def test_a_folder_that_is_exchanged_for_a_link_gives_an_account_nothing_of_roots(tmp_path: Path) -> None:
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
