"""A CPython of the controller for nodes of the lab."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

from provision.errors import LabError
from provision.lab import python_bundle

VERSION = ".".join(map(str, sys.version_info[:2]))


def test_an_interpreter_is_in_the_path_or_in_the_folder_of_pyenv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyenv's commands in the path are not interpreters; of several the newest one is taken."""
    monkeypatch.setenv("PATH", f"{tmp_path}/.pyenv/shims")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert python_bundle.python_program("3.6") == ""

    for path in (
        ".pyenv/shims/python3.6",
        ".pyenv/versions/3.6.8/bin/python3.6",
        ".pyenv/versions/3.6.15/bin/python3.6",
    ):
        program = tmp_path / path
        program.parent.mkdir(parents=True, exist_ok=True)
        program.touch(mode=0o755)
    assert python_bundle.python_program("3.6") == f"{tmp_path}/.pyenv/versions/3.6.15/bin/python3.6"

    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3.6").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    assert python_bundle.python_program("3.6") == f"{tmp_path}/bin/python3.6"


def test_the_packed_interpreter_runs_with_its_own_libraries(tmp_path: Path) -> None:
    """On a node with older ones; without tests and packages of others."""
    archive = tmp_path / "python.tar"
    program = Path(sysconfig.get_config_var("BINDIR"), f"python{VERSION}")
    python_bundle.pack(str(program), VERSION, archive)
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path)  # noqa: S202 - our own archive; `filter` came with Python 3.11.4
        owners = {(member.uid, member.uname) for member in tar}
    folder = tmp_path / python_bundle.folder_on_nodes(VERSION).lstrip("/")
    [loader] = (folder / "libraries").glob("ld-linux*")
    code = "import ctypes, sqlite3, ssl, sys; print(sys.version_info[:2], sys.prefix)"
    words = [loader, "--library-path", folder / "libraries", folder / f"bin/python{VERSION}", "-ISc", code]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={"PATH": ""})

    assert done.returncode == 0, done.stderr
    assert done.stdout.split(") ") == [str(sys.version_info[:2])[:-1], f"{folder}\n"]
    assert owners == {(0, "root")}
    assert not (folder / f"lib/python{VERSION}/site-packages").exists()


def test_an_interpreter_that_does_not_run_is_an_error(tmp_path: Path) -> None:
    """With its name and its last output."""
    with pytest.raises(LabError, match="/missing: does not run"):
        python_bundle.pack("/missing", "3.6", tmp_path / "python.tar")
