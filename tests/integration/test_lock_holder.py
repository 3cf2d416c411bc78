"""The lock holder of a node, as real processes on this machine in a temporary folder."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from provision.commands import node_lock
from provision.documents import convert
from provision.documents.locks import LockAnswer, LookAnswer, merged
from tests.support.command import eventually
from tests.support.node.archive import ARCHIVE, NODE


@pytest.fixture(autouse=True, scope="module")
def _programs(tmp_path_factory):
    """The archive in a folder whose name marks a lock holder, as on a node."""
    folder = tmp_path_factory.mktemp("node") / "provision/programs"
    folder.mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "PROGRAMS", shutil.copy(ARCHIVE, folder))
        yield


PROGRAMS = ARCHIVE


def read(kind, answer):
    """Return an answer of the node's program as the controller parses it."""
    return convert(answer, kind, node="gpu1", what="answer")


O_CLOEXEC = 0o2000000


def holder(name):
    return {
        "id": f"id-{name}",
        "node": "n1",
        "user": name,
        "host": "ops1",
        "pid": 4711,
        "command": "provision apply --only base_system",
        "since": "2026-11-22T10:03:11Z",
    }


class LockProgram:
    """A running process of the node program `lock`."""

    def __init__(self, request):
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(PROGRAMS), "lock"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self.process.stdin.write(json.dumps(request).encode() + b"\n")

    def answer(self):
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read().decode()
        return json.loads(line)

    def say(self, **order):
        self.process.stdin.write(json.dumps(order).encode() + b"\n")

    def lock_descriptor(self):
        for link in Path(f"/proc/{self.process.pid}/fd").iterdir():
            if str(link.readlink()).endswith("/provision.lock"):
                return link.name
        raise AssertionError("the process has not opened the lock file")


class NodeFolder:
    """A temporary folder in place of /run/lock and /var/lib of a node, and processes that imitate Ansible tasks."""

    def __init__(self, root):
        self.run, self.history = root / "run", root / "var" / "history.jsonl"
        self.run.mkdir()
        self.mark = f"a mark of Ansible in {root}"
        self.started = []

    def request(self, **changes):
        places = {"folders": [str(self.run)], "history": str(self.history), "marks": [self.mark, "no such end"]}
        return {**places, "silence": 60, "linger": 60, "quiet": 0.2, "patience": 0.5, **changes}

    def keep(self, name, **changes):
        program = LockProgram({**self.request(), "do": "keep", "holder": holder(name), **changes})
        self.started.append(program.process)
        return program

    def ask(self, do, **changes):
        program = LockProgram({**self.request(), "do": do, **changes})
        self.started.append(program.process)
        return program.answer()

    def look(self):
        return self.ask("look", entries=300)

    def task(self):
        """Start a process that imitates an Ansible task; it ends with its input."""
        process = subprocess.Popen(["sh", "-c", f"read line # {self.mark}"], stdin=subprocess.PIPE)
        self.started.append(process)
        return process

    def foreign(self, kind):
        """Start a process of another user with the arguments of an Ansible task."""
        words = ["unshare", "--pid", "--fork"] if kind == "container" else []
        account = {"user": 65534, "group": 65534} if kind == "account" else {}
        process = subprocess.Popen([*words, "sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", **account)
        process.stdin.write(f"exec sh -c 'echo; read line; exit # {self.mark}'\n".encode())
        process.stdin.flush()
        self.started.append(process)
        assert process.stdout.readline() == b"\n"
        return process

    def past(self):
        return merged(self.history.read_text().splitlines())


@pytest.fixture
def node(tmp_path):
    """A node whose processes are killed after the test."""
    made = NodeFolder(tmp_path)
    yield made
    for process in made.started:
        with contextlib.suppress(OSError):
            process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def test_a_second_operator_gets_the_lock_holder_of_the_node(node):
    """User, host, process, start time and command."""
    first = node.keep("alice")
    assert first.answer() == {"locked": f"{node.run}/provision.lock", "usual": True}
    answer = node.keep("bob").answer()
    error, _ = node_lock.read_lock("gpu1", read(LockAnswer, answer), "id-bob")

    assert error.exit_code == 4
    assert "in use by alice on ops1 (process 4711), since 2026-11-22" in str(error)
    assert "for `provision apply --only base_system`" in str(error)
    assert "provision unlock gpu1" in error.remedy


@pytest.mark.parametrize("since", ["1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "now"])
def test_a_lock_does_not_expire_by_its_recorded_time(node, since, monkeypatch):
    """The clocks of the node and of the operator may be wrong, so the age of a lock has no effect."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    first = node.keep("alice", holder={**holder("alice"), "since": since})
    first.answer()
    error, _ = node_lock.read_lock("gpu1", read(LockAnswer, node.keep("bob").answer()), "id-bob")
    look = node_lock.read_lock_state("gpu1", read(LookAnswer, node.ask("look", entries=1)))
    description = look.holder.describe()
    monkeypatch.undo()
    time.tzset()

    assert error.exit_code == 4
    assert "in use by alice on ops1 (process 4711), since" in str(error)
    assert description in str(error)
    assert look.held


def test_a_released_lock_frees_the_node_and_history_records_the_apply(node):
    """Its steps and its result are recorded, and the next operator gets the lock."""
    program = node.keep("alice")
    program.answer()
    program.say(note="run base_system")
    program.say(finish={"status": "changed", "roles": ["base_system"], "message": ""})
    program.say(release=False)
    assert program.answer()["released"] is True
    assert "locked" in node.keep("bob").answer()
    first = node.past()[0]

    assert (first["user"], first["status"], first["roles"]) == ("alice", "changed", ["base_system"])
    assert (first["notes"], first["started"][:4]) == (["run base_system"], "2026")
    assert first["ended"]


@pytest.mark.skipif(os.geteuid() != 0, reason="it starts processes of another account")
@pytest.mark.parametrize("kind", ["account", "container"])
def test_a_process_that_imitates_ansible_does_not_prolong_the_lock(node, kind):
    """Any account, and root in a container, can choose the arguments of its processes."""
    process = node.foreign(kind)
    seen = node.look()["working"]
    assert [words for words in seen if "(sh of" in words] == []
    program = node.keep("alice")
    program.answer()
    program.say(release=True)
    assert program.answer() == {"released": True, "working": [], "trouble": ""}
    assert process.poll() is None


def test_lock_and_history_files_are_readable_by_root_only(node):
    """They contain the commands of other operators."""
    node.keep("alice").answer()
    files = [*node.run.iterdir(), node.history]

    assert {file.name for file in files} == {"provision.lock", "provision.lock.holder", "history.jsonl"}
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_child_processes_do_not_inherit_the_lock(node):
    """Otherwise a daemon could hold the lock permanently."""
    program = node.keep("alice")
    program.answer()
    flags = Path(f"/proc/{program.process.pid}/fdinfo/{program.lock_descriptor()}").read_text()

    assert int(flags.split("flags:")[1].split()[0], 8) & O_CLOEXEC


def test_a_killed_lock_holder_frees_the_node_and_the_next_one_records_it(node):
    """The kernel releases the lock; remaining files do not prevent the next lock."""
    program = node.keep("alice")
    program.answer()
    program.process.kill()
    program.process.wait()
    seen = node.look()
    assert "locked" in node.keep("bob").answer()

    assert (seen["held"], seen["holder"], seen["entries"][0]["status"]) == (False, None, "died")
    assert [entry["status"] for entry in node.past()] == ["died", "running"]
    assert "power cut" in node.past()[0]["message"]


def test_a_dead_operator_process_frees_the_node(node):
    """Its input is closed; history records that the apply did not finish."""
    program = node.keep("alice")
    program.answer()
    program.say(note="run docker_engine")
    program.process.stdin.close()
    program.process.wait(20)

    assert node.look()["held"] is False
    assert (node.past()[0]["status"], node.past()[0]["notes"]) == ("died", ["run docker_engine"])
    assert "its connection ended" in node.past()[0]["message"]


def test_a_silent_operator_connection_frees_the_node(node):
    """A network failure does not close the connection. Heartbeats extend the lock."""
    program = node.keep("alice", silence=0.8)
    program.answer()
    end = time.monotonic() + 1.2
    while time.monotonic() < end:
        program.say()
        time.sleep(0.1)
    assert program.process.poll() is None
    program.process.wait(20)

    assert "nothing was heard of it for 0.8 s" in node.past()[0]["message"]


def test_the_lock_outlives_its_operator_while_a_task_runs(node):
    """Another operator is refused, with the time at which the connection was lost."""
    task = node.task()
    program = node.keep("alice")
    program.answer()
    program.process.stdin.close()
    gone = eventually(lambda: node.look()["holder"].get("gone"), seconds=20, what="the holder is reported as gone")
    refused = node.keep("bob").answer()
    working = node.look()["working"]
    task.stdin.close()
    task.wait()
    program.process.wait(20)

    assert refused["holder"]["gone"] == gone
    assert "the connection to its controller is lost since" in str(
        node_lock.read_lock("n1", read(LockAnswer, refused), "")[0]
    )
    assert working == [f"process {task.pid} (sh of {os.environ.get('USER', 'root')})"]
    assert node.look()["held"] is False


def test_the_lock_of_an_interrupted_apply_lasts_until_its_last_task_ends(node):
    """The answer lists the running tasks; the operator's process can end."""
    task = node.task()
    program = node.keep("alice")
    program.answer()
    program.say(finish={"status": "interrupted", "roles": [], "message": "Ctrl-C"})
    program.say(release=True)
    answer = program.answer()
    program.process.stdin.close()
    held = node.look()["held"]
    task.stdin.close()
    program.process.wait(20)

    assert (answer["released"], len(answer["working"]), held) == (False, 1, True)
    assert node.past()[0]["status"] == "interrupted"
    assert node.look()["held"] is False


def test_a_hanging_task_releases_the_lock_after_the_maximum_wait(node):
    """History records the processes that were still running."""
    task = node.task()
    program = node.keep("alice", linger=0.5)
    program.answer()
    program.process.stdin.close()
    program.process.wait(20)

    assert task.poll() is None
    assert f"still running when the lock was released: process {task.pid} " in node.past()[0]["message"]


def test_command_lines_of_running_tasks_are_recognised(node):
    """With pipelining, the module itself is on no command line. A reload keeps the lock, too."""
    commands = ["read line; : /usr/bin/python3 && sleep 0", "read line; echo BECOME-SUCCESS-abc ; : /usr/bin/python3"]
    for command in commands:
        process = subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        node.started.append(process)
    reload = ["sh", "-c", "read line; :", "/run/provision/programs/0.pyz", "reload"]
    node.started.append(subprocess.Popen(reload, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL))
    wanted = {process.pid for process in node.started[:3]}

    def are_known() -> bool:
        working = node.ask("look", entries=0, marks=node_lock.PLACES["marks"])["working"]
        return wanted <= {int(text.split()[1]) for text in working}

    eventually(are_known, seconds=20, what="all tasks are known")


def test_an_incomplete_history_line_is_ignored(node):
    """A power failure can truncate a line; the next entry starts on its own line."""
    node.history.parent.mkdir()
    node.history.write_text('{"id": "old", "status": "changed", "started": "x"}\n{"id": "torn", "sta')
    node.keep("alice").answer()

    assert [entry["id"] for entry in node.look()["entries"]] == ["old", "id-alice"]


def test_history_is_limited_to_200_entries(node):
    """The newest 200 are kept."""
    node.history.parent.mkdir()
    lines = [json.dumps({"id": f"{n}", "status": "changed", "started": "x"}) + "\n" for n in range(500)]
    node.history.write_text("".join(lines))
    node.keep("alice").answer()
    entries = node.look()["entries"]

    assert (len(entries), entries[0]["id"], entries[-1]["id"]) == (200, "301", "id-alice")
    assert len(node.history.read_text().splitlines()) == 201


def test_a_node_without_a_lock_folder_reports_the_path_of_its_lock(node):
    """The node is locked in the next folder."""
    answer = node.keep("alice", folders=[f"{node.run}/none", str(node.run)]).answer()

    assert answer == {"locked": f"{node.run}/provision.lock", "usual": False}
    assert "the lock is " in node_lock.read_lock("n1", read(LockAnswer, answer), "")[1]


def test_a_node_without_a_writable_folder_is_not_locked(node):
    """The error contains the file that could not be written."""
    (node.run / "file").write_text("")
    answer = node.keep("alice", history=f"{node.run}/file/history.jsonl").answer()
    error, _ = node_lock.read_lock("gpu1", read(LockAnswer, answer), "")

    assert error.exit_code == 1
    assert f"{node.run}/file" in str(error)
    assert error.remedy
    assert node.look()["held"] is False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_lock_file_of_another_user_is_replaced(node):
    """/run/lock is writable by all users; files and links of other users there are replaced."""
    (node.run / "provision.lock").write_text("")
    os.chown(node.run / "provision.lock", 65534, 65534)
    (node.run / "provision.lock.holder").symlink_to(node.run / "target")
    other_process = subprocess.Popen(["flock", str(node.run / "provision.lock"), "cat"], stdin=subprocess.PIPE)
    node.started.append(other_process)
    eventually(
        lambda: Path(f"/proc/{other_process.pid}/task/{other_process.pid}/children").read_text(),
        seconds=10,
        what="held",
    )

    assert "locked" in node.keep("alice").answer()
    assert (node.run / "provision.lock").stat().st_uid == 0
    assert not (node.run / "target").exists()


def test_a_folder_in_place_of_the_lock_file_does_not_prevent_locking(node):
    """/run/lock is writable by all users; such folders are renamed, with their content."""
    for name in ("provision.lock", "provision.lock.holder", "provision.lock.holder.new"):
        (node.run / name).mkdir()
        (node.run / name / "anything").write_text("of somebody\n")
    program = node.keep("alice")

    assert program.answer() == {"locked": f"{node.run}/provision.lock", "usual": True}
    assert node.look()["holder"]["user"] == "alice"
    assert len(list(node.run.glob("*.not-ours-*/anything"))) == 3


@pytest.mark.parametrize("name", ["provision.lock", "provision.lock.holder"])
def test_a_pipe_in_place_of_the_lock_file_does_not_block(node, name):
    """Opening a pipe blocks until its other end is opened."""
    program = node.keep("alice") if name.endswith(".holder") else None
    if program:
        program.answer()
        (node.run / name).unlink()
    os.mkfifo(node.run / name)
    look = LockProgram({**node.request(), "do": "look", "entries": 1})
    node.started.append(look.process)

    assert select.select([look.process.stdout], [], [], 10)[0], "it waits for the pipe"
    assert look.answer()["held"] is bool(program)


def test_unlock_ends_the_lock_holder_and_is_recorded_in_history(node):
    """The entry contains the operator who unlocked the node."""
    program = node.keep("alice")
    program.answer()
    answer = node.ask("unlock", id="id-alice", message="unlocked by bob on ops2")

    assert answer == {"unlocked": True, "working": [], "trouble": ""}
    assert program.process.wait(10) is not None
    assert (node.past()[0]["status"], node.past()[0]["message"]) == ("unlocked", "unlocked by bob on ops2")
    assert "locked" in node.keep("bob").answer()


def test_unlock_kills_a_lock_holder_that_does_not_respond(node):
    """It gets SIGKILL if it does not end after SIGTERM."""
    program = node.keep("alice")
    program.answer()
    program.process.send_signal(signal.SIGSTOP)

    assert node.ask("unlock", id="id-alice", message="")["unlocked"] is True
    assert program.process.wait(10) == -signal.SIGKILL


def test_unlock_ends_no_other_process(node):
    """Neither a later lock holder of another apply, nor another program that locked the file."""
    program = node.keep("alice")
    program.answer()
    other = node.ask("unlock", id="id-of-another", message="")["other"]
    assert program.process.poll() is None
    program.process.kill()
    program.process.wait()
    lock = node.run / "provision.lock"
    other_process = subprocess.Popen(["flock", str(lock), "cat"], stdin=subprocess.PIPE)
    node.started.append(other_process)
    eventually(lambda: node.look()["held"], seconds=10, what="the lock is held by flock")

    assert other["user"] == "alice"
    assert node.ask("unlock", id="id-alice", message="") == {"strange": True}
    assert other_process.poll() is None
    assert node.keep("bob").answer() == {"held": True, "holder": None}


def test_unlock_of_a_free_node_changes_nothing(node):
    """The answer says that the node is free."""
    assert node.ask("unlock", id="id-alice", message="") == {"free": True}
    assert not node.history.exists()


def test_the_programs_are_valid_python_3_6():
    """A node may have Python 3.6."""
    for file in (NODE / "lock").glob("*.py"):
        assert ast.parse(file.read_text(), feature_version=(3, 6))
        assert "annotations" not in file.read_text()
