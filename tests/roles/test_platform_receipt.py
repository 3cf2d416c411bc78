"""The module that writes receipts, in a folder of the test, and the reading of receipts by the probe."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from provision.facts.records import Receipt
from tests.support.modules import load, run
from tests.support.node.probe import managed_command

FINGERPRINT = {"salt": "5a17", "code": "c0de", "variables": {"some_secret": "0123456789abcdef"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where receipts are written."""
    return tmp_path / "provision" / "receipts"


@pytest.fixture
def receipt(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, with its folder."""
    module = load("platform", "platform_receipt")
    monkeypatch.setattr(module, "FOLDER", str(folder))
    return module


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """A file that everybody may read, and one that only its owner may."""
    for name, permissions in (("open", 0o644), ("closed", 0o600)):
        (tmp_path / name).write_text("password\n")
        (tmp_path / name).chmod(permissions)
    return [str(tmp_path / name) for name in ("open", "closed")]


def mode(path: Path) -> int:
    """The permissions of a file."""
    return stat.S_IMODE(path.stat().st_mode)


def probed(folder: Path) -> dict[str, Any]:
    """Return the probe's output for the receipts in a folder."""
    command = managed_command(folder.parent / "program", folder)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_a_receipt_equals_the_following_probe(receipt: ModuleType, folder: Path, files: list[str]) -> None:
    """Role and probe use the same program, so an unchanged node equals its sealed receipts."""
    wanted = [{"role": "some", "files": [*files, "/nowhere"], "packages": ["no-such-package"], "modules": ["no_such"]}]

    done = [run(receipt, receipts=wanted)["changed"] for _ in range(2)]
    done.append(run(receipt, check=True, receipts=wanted)["changed"])

    probe, content = probed(folder), json.loads((folder / "some.json").read_text())
    assert done == [True, False, False]
    assert probe["sealed"] == {"some": True}
    assert probe["observed"]["some"] == {section: content[section] for section in receipt.SECTIONS}
    assert content["files"][files[0]]["sum"] == hashlib.sha256(b"password\n").hexdigest()
    assert content["packages"] == {"no-such-package": None}
    assert Receipt("some", content).names("modules") == ("no_such",)


def test_receipts_are_readable_by_root_only(receipt: ModuleType, folder: Path, files: list[str]) -> None:
    """A receipt of an older version, which everybody could read, is closed, and so are folder, key and seal."""
    folder.mkdir(parents=True, mode=0o755)
    (folder / "some.json").write_text(json.dumps({"role": "some", "files": {files[0]: "hash"}}))

    done = [run(receipt, receipts=[{"role": "some", "files": files}])["changed"] for _ in range(2)]

    assert done == [True, False]
    assert mode(folder) == 0o700
    assert {path.name: mode(path) for path in folder.iterdir()} == dict.fromkeys(
        ("key", "some.json", "some.seal"), 0o600
    )


def test_hashes_of_private_files_are_keyed(receipt: ModuleType, folder: Path, files: list[str]) -> None:
    """Only the node has the key; neither key nor hash is in the result of the run."""
    result = run(receipt, receipts=[{"role": "some", "files": files}])

    key, text = (folder / "key").read_bytes(), (folder / "some.json").read_text()
    hashed = hashlib.sha256(key + b"password\n").hexdigest()
    assert json.loads(text)["files"][files[1]]["sum"] == hashed
    assert hashed not in json.dumps(result)
    assert key.decode() not in text + json.dumps(result)


def test_the_fingerprint_is_unchanged_without_a_new_one(receipt: ModuleType, folder: Path, files: list[str]) -> None:
    """A run without fingerprints preserves the last one and so changes nothing; its values are not shown."""
    wanted = [{"role": "some", "files": files}]
    none = run(receipt, receipts=wanted)
    first = json.loads((folder / "some.json").read_text())["fingerprint"]

    result = run(receipt, receipts=wanted, fingerprints={"some": FINGERPRINT, "other": {}})
    again = run(receipt, receipts=wanted)

    assert (none["changed"], first, result["changed"], again["changed"]) == (True, None, True, False)
    assert json.loads((folder / "some.json").read_text())["fingerprint"] == FINGERPRINT
    assert FINGERPRINT["variables"]["some_secret"] not in json.dumps(result["diff"])  # type: ignore[index]
    assert "some_secret" in result["diff"][0]["after"]


@pytest.mark.parametrize("damage", ["content", "seal", "key", "mode"])
def test_a_manually_changed_receipt_is_rewritten(
    receipt: ModuleType, folder: Path, files: list[str], damage: str
) -> None:
    """A receipt with an invalid seal, or readable by other users, is written again, and its fingerprint is ignored."""
    wanted = [{"role": "some", "files": files}]
    run(receipt, receipts=wanted, fingerprints={"some": FINGERPRINT})
    path = folder / "some.json"
    if damage == "content":
        path.write_text(path.read_text().replace("c0de", "beef"))
    elif damage == "mode":
        path.chmod(0o644)
    else:
        (folder / ("key" if damage == "key" else "some.seal")).write_text("0" * 63)

    done = [run(receipt, receipts=wanted)["changed"] for _ in range(2)]

    assert done == [True, False]
    assert json.loads(path.read_text())["fingerprint"] is None
    assert probed(folder)["sealed"] == {"some": True}
    assert mode(path) == 0o600


def test_only_managed_parts_of_shared_files_are_recorded(receipt: ModuleType, folder: Path, tmp_path: Path) -> None:
    """Only the managed block or keys are recorded, so that other changes of the file do not change the receipt."""
    hosts, daemon = tmp_path / "hosts", tmp_path / "daemon.json"
    hosts.write_text("# BEGIN provision\n10.0.0.1 one\n# END provision\n")
    daemon.write_text('{"ours": 1, "theirs": 1}')
    parts = {str(hosts): {"block": "provision"}, str(daemon): {"keys": ["ours"]}}
    wanted = [{"role": "some", "files": list(parts), "parts": parts}]
    run(receipt, receipts=wanted)

    hosts.write_text(hosts.read_text() + "10.0.0.2 other\n")
    daemon.write_text('{"theirs": 2, "ours": 1}')
    others = run(receipt, receipts=wanted)["changed"]
    daemon.write_text('{"ours": 2}')

    assert others is False
    assert run(receipt, receipts=wanted)["changed"] is True
    assert list(json.loads((folder / "some.json").read_text())["files"][str(daemon)]["keys"]) == ["ours"]


def test_check_mode_writes_nothing(receipt: ModuleType, folder: Path, files: list[str]) -> None:
    """On a bare node the result lists the receipts to write."""
    wanted = [{"role": "some", "files": files, "containers": ["some"], "images": ["some:1"]}]

    result = run(receipt, check=True, receipts=wanted)

    assert (result["changed"], result["written"]) == (True, ["some"])
    assert not folder.parent.exists()


def test_facts_that_cannot_be_probed_are_not_recorded(
    receipt: ModuleType, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If systemd does not answer, the role fails and writes no receipt with missing units."""
    (tmp_path / "systemctl").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setitem(receipt.observe_all.__globals__, "SYSTEMD", str(tmp_path / "no-socket"))

    result = run(receipt, receipts=[{"role": "some", "units": ["some.service"]}])

    assert "systemd: no answer about the units of the role some (some.service)" in result["msg"]
    assert not (folder / "some.json").exists()


def test_receipts_are_written_atomically(
    receipt: ModuleType, folder: Path, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run interrupted between receipt and seal leaves a receipt that counts as changed; the next run fixes it."""
    wanted = [{"role": "some", "files": files}]
    run(receipt, receipts=wanted)
    replace, names = receipt.replace, []

    def cut(path: str, content: bytes | str, mode: int) -> None:
        names.append(Path(path).name)
        if path.endswith(".seal"):
            raise OSError(28, "No space left on device", path)
        replace(path, content, mode)

    monkeypatch.setattr(receipt, "replace", cut)
    Path(files[0]).write_text("other\n")
    result = run(receipt, receipts=wanted)
    after_cut = probed(folder)["sealed"]
    monkeypatch.setattr(receipt, "replace", replace)

    assert "No space left on device" in result["msg"]
    assert (names, after_cut) == (["some.json", "some.seal"], {"some": False})
    assert run(receipt, receipts=wanted)["changed"] is True
    assert probed(folder)["sealed"] == {"some": True}
