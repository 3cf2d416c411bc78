"""The modules of the role platform, run for real on files of the test."""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path

import pytest

from tests.support.modules import load, run


def test_a_receipt_has_no_hash_of_what_others_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody can read a receipt: with a hash in it, guesses of a password could be tested."""
    receipt = load("platform", "platform_receipt")
    monkeypatch.setattr(receipt, "FOLDER", str(tmp_path / "provision"))
    for name, permissions in (("open", 0o644), ("closed", 0o600), ("group", 0o640)):
        (tmp_path / name).write_text("password\n")
        (tmp_path / name).chmod(permissions)
    names = [str(tmp_path / name) for name in ("open", "closed", "group", "absent")]

    done = [run(receipt, receipts=[{"role": "some", "files": names}])["changed"] for _ in range(2)]

    path = tmp_path / "provision" / "receipts" / "some.json"
    assert list(json.loads(path.read_text())["files"].values()) == [
        None,
        "present",
        "present",
        hashlib.sha256(b"password\n").hexdigest(),
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert done == [True, False]
