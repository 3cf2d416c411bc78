"""Programs of the archive on this machine, through a real shell."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from provision import node_archive
from provision.connectors import connect
from provision.connectors.programs import run_program, start_program
from provision.errors import NodeError, PythonMissing
from provision.model import CommandResult, Connection, Node
from provision.node_archive import (
    DAMAGED,
    INCOMPLETE_PYTHON,
    MISSING,
    NO_MEMORY_FILES,
    NO_SPACE,
    OLD_PYTHON,
    READ_ONLY,
    archive,
    archive_path,
    build,
    run_script,
    store_archive_script,
)

REQUEST = b'{"volumes": []}\n'
ANSWER = '{"volumes": {}}'


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return the folder of archives, which does not exist yet."""
    monkeypatch.setattr(node_archive, "FOLDER", str(tmp_path / "run/provision/programs"))
    (tmp_path / "run").mkdir()
    return tmp_path / "run/provision/programs"


@pytest.fixture
def connector():
    """Return a connection to this machine, without root."""
    return connect(Node("here", Connection("here", local=True, become=False)))


def names(folder: Path) -> list[str]:
    """Return the names of all files in a folder."""
    return sorted(path.name for path in folder.iterdir())


def check_answer(result: CommandResult) -> None:
    """Require the answer of the program ``data-check``."""
    assert result.ok, result
    assert json.loads(result.stdout) == {"volumes": {}}


def test_the_archive_is_copied_once_and_only_its_owner_can_read_it(connector, folder):
    check_answer(run_program(connector, "data-check", stdin=REQUEST))
    first = Path(archive_path()).stat()
    check_answer(run_program(connector, "data-check", stdin=REQUEST))

    assert (first.st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)
    assert Path(archive_path()).stat().st_ino == first.st_ino
    assert names(folder) == [Path(archive_path()).name]


@pytest.mark.parametrize("content", [b"", archive()[:-1], archive()[:-1] + b"x"], ids=["empty", "truncated", "changed"])
def test_a_damaged_copy_is_never_run_and_is_replaced(connector, folder, content):
    folder.mkdir(parents=True)
    Path(archive_path()).write_bytes(content)

    assert connector.run(run_script("data-check"), stdin=REQUEST).exit_code == MISSING
    check_answer(run_program(connector, "data-check", stdin=REQUEST))
    assert Path(archive_path()).read_bytes() == archive()


def test_an_archive_that_arrives_incomplete_is_not_stored(connector, folder):
    assert connector.run(store_archive_script(), stdin=archive()[:1000]).exit_code == DAMAGED
    assert names(folder) == []


def test_a_copy_that_is_interrupted_leaves_no_file(folder):
    with subprocess.Popen(["sh", "-c", store_archive_script()], stdin=subprocess.PIPE) as copy:
        pause = threading.Event()
        assert any((folder.is_dir() and names(folder)) or pause.wait(0.05) for _ in range(200))
        copy.terminate()
        copy.stdin.close()

    assert copy.returncode != 0
    assert names(folder) == []


def test_a_copy_that_is_interrupted_at_its_first_moment_leaves_no_file(folder, tmp_path):
    """The shell gets the signal while it makes the file."""
    program = tmp_path / "mktemp"
    program.write_text(f'#!/bin/sh\n{shutil.which("mktemp")} "$@"\nkill -TERM "$COPY"\n')
    program.chmod(0o700)
    path = f"{tmp_path}:{os.environ['PATH']}"
    copy = subprocess.run(
        ["sh", "-c", f"export COPY=$$\n{store_archive_script()}"],
        env={"PATH": path},
        input=archive(),
        check=False,
    )

    assert copy.returncode != 0
    assert names(folder) == []


def test_two_copies_at_once_do_not_disturb_each_other(folder, connector):
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: connector.run(store_archive_script(), stdin=archive()), range(2)))

    assert [result.exit_code for result in results] == [0, 0], results
    assert names(folder) == [Path(archive_path()).name]


def test_archives_of_other_versions_are_removed_after_a_day_unless_a_process_uses_them(connector, folder):
    folder.mkdir(parents=True)
    for name in ("old.pyz", "used.pyz", "part.old", "recent.pyz", "part.recent"):
        (folder / name).touch()
        if "recent" not in name:
            os.utime(folder / name, (time.time() - 2 * 86400,) * 2)
    used = [sys.executable, "-c", "input()", str(folder / "used.pyz")]
    with subprocess.Popen(used, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert connector.run(store_archive_script(), stdin=archive()).ok
        process.stdin.close()

    assert names(folder) == sorted([Path(archive_path()).name, "used.pyz", "recent.pyz", "part.recent"])


def test_a_program_runs_from_memory_where_the_archive_cannot_be_stored(connector, folder):
    folder.parent.write_text("no folder can be created here")

    assert connector.run(store_archive_script(), stdin=archive()).exit_code == NO_SPACE
    check_answer(run_program(connector, "data-check", stdin=REQUEST))


def test_an_archive_that_disappears_after_the_copy_is_an_error(connector):
    class Removing:
        """Removes the archive after each command."""

        name, python = "here", "python3"

        def run(self, script: str, **options: object) -> CommandResult:
            """Run a script."""
            result = connector.run(script, **options)
            Path(archive_path()).unlink(missing_ok=True)
            return result

    with pytest.raises(NodeError, match="missing or damaged"):
        run_program(Removing(), "data-check", stdin=REQUEST)


@pytest.mark.parametrize("stored", [True, False])
def test_a_started_program_finds_its_archive(connector, stored):
    """Also if the archive was removed since the last start through the same connection."""
    if stored:
        connector.run(store_archive_script(), stdin=archive())
    for _ in range(2):
        process = start_program(connector, "data-check")
        process.write(REQUEST)
        process.close_stdin()
        output = b"".join(chunk for _, chunk in process.output()).decode()
        assert (process.wait(), json.loads(output)) == (0, json.loads(ANSWER))
        Path(archive_path()).unlink()


def test_a_program_is_not_started_where_the_archive_cannot_be_checked():
    class Failing:
        """Every command fails."""

        name, python = "here", "python3"

        def run(self, _script: str, **_: object) -> CommandResult:
            """Fail."""
            return CommandResult("", "sh: cannot fork\n", 2)

    with pytest.raises(NodeError, match="cannot be started"):
        start_program(Failing(), "data-check")


def changed_python(path: Path, change: str) -> str:
    """Write an interpreter in which `change` ran before all else, and return its path."""
    code = (
        "import runpy, sys\n"
        f"{change}\n"
        "words = sys.argv[1:]\n"
        "if words[0] == '-c':\n"
        "    sys.argv = words[:1] + words[2:]\n"
        "    exec(words[1])\n"
        "else:\n"
        "    sys.argv = words\n"
        "    runpy.run_path(words[0], run_name='__main__')\n"
    )
    (path / "code.py").write_text(code)
    (path / "python3").write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {path}/code.py "$@"\n')
    (path / "python3").chmod(0o755)
    return str(path / "python3")


@pytest.mark.parametrize(
    ("change", "stored", "status", "kind", "message"),
    [
        ("sys.modules['json'] = None", True, INCOMPLETE_PYTHON, PythonMissing, r"is incomplete \(.*json"),
        ("sys.modules['json'] = None", False, INCOMPLETE_PYTHON, PythonMissing, r"is incomplete \(.*json"),
        ("sys.version_info = (3, 5, 3)", True, OLD_PYTHON, NodeError, r"too old \(Python 3\.5; Python 3\.6"),
        (
            "import os; del os.memfd_create; sys.modules['ctypes'] = None",
            False,
            NO_MEMORY_FILES,
            NodeError,
            "from memory",
        ),
    ],
)
def test_an_interpreter_that_cannot_run_our_programs_is_named(
    connector, tmp_path, change, stored, status, kind, message
):
    """Each cause has its own exit status and remedy; a traceback would have neither."""
    python = changed_python(tmp_path, change)
    connector.run(store_archive_script(), stdin=archive())
    connector.python = python
    script = run_script("data-check", python=python)
    if stored:
        assert connector.run(script, stdin=REQUEST).exit_code == status
    with pytest.raises(NodeError, match=message) as caught:
        run_program(connector, "data-check", stdin=REQUEST, stored=stored)

    assert type(caught.value) is kind
    assert caught.value.remedy


def test_a_missing_interpreter_is_named(connector):
    connector.python = "/opt/python"
    with pytest.raises(PythonMissing, match="there is no /opt/python on this node") as caught:
        run_program(connector, "data-check")

    assert "ansible_python_interpreter" in caught.value.remedy
    with pytest.raises(PythonMissing):
        start_program(connector, "data-check")


def test_each_failure_of_the_copy_has_its_own_remedy():
    class Node1:
        """Has no archive, and cannot store or run it."""

        name, python = "node1", "python3"

        def __init__(self, status: int) -> None:
            self.status = status

        def run(self, script: str, **_: object) -> CommandResult:
            """Answer one script."""
            if script == store_archive_script():
                return CommandResult("", "cat: write error\n", self.status)
            return CommandResult("", "", NO_MEMORY_FILES if "memfd_create" in script else MISSING)

    remedies = set()
    for status in (READ_ONLY, NO_SPACE, DAMAGED):
        with pytest.raises(NodeError) as caught:
            run_program(Node1(status), "probe")
        remedies.add(caught.value.remedy)

    assert len(remedies) == 3


def test_the_archive_is_the_same_for_the_same_sources():
    """Else a node would store a copy for each command."""
    assert build() == build() == archive()
