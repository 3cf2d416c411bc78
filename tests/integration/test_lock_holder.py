"""The keeper of a node's lock as real processes on this machine, with a folder of their own."""

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


class Keeper:
    """One program of the node, at work."""

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
        raise AssertionError("it has not opened the lock")


class NodeFolder:
    """What a node's /run/lock and /var/lib are here; and processes that pass for Ansible's."""

    def __init__(self, root):
        self.run, self.history = root / "run", root / "var" / "history.jsonl"
        self.run.mkdir()
        self.mark = f"a mark of Ansible in {root}"
        self.started = []

    def request(self, **changes):
        places = {"folders": [str(self.run)], "history": str(self.history), "marks": [self.mark, "no such end"]}
        return {**places, "silence": 60, "linger": 60, "quiet": 0.2, "patience": 0.5, **changes}

    def keep(self, name, **changes):
        keeper = Keeper({**self.request(), "do": "keep", "holder": holder(name), **changes})
        self.started.append(keeper.process)
        return keeper

    def ask(self, do, **changes):
        keeper = Keeper({**self.request(), "do": do, **changes})
        self.started.append(keeper.process)
        return keeper.answer()

    def look(self):
        return self.ask("look", entries=300)

    def task(self):
        """Start what passes for a task of Ansible; it ends with its input."""
        process = subprocess.Popen(["sh", "-c", f"read line # {self.mark}"], stdin=subprocess.PIPE)
        self.started.append(process)
        return process

    def foreign(self, kind):
        """Start a process that has the arguments of Ansible's tasks, and is not the operator's."""
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
    """A node of its own; nothing that was started on it stays."""
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


def test_a_second_operator_is_told_who_holds_the_node(node):
    """Who, from where, by which process, since when and for what."""
    first = node.keep("alice")
    assert first.answer() == {"locked": f"{node.run}/provision.lock", "usual": True}
    answer = node.keep("bob").answer()
    error, _ = node_lock.read_lock("gpu1", read(LockAnswer, answer), "id-bob")

    assert error.exit_code == 4
    assert "in use by alice on ops1 (process 4711), since 2026-11-22" in str(error)
    assert "for `provision apply --only base_system`" in str(error)
    assert "provision unlock gpu1" in error.remedy


@pytest.mark.parametrize("since", ["1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "now"])
def test_a_lock_is_held_whatever_time_stands_in_it(node, since, monkeypatch):
    """The node's clock may have jumped since, or the operator's be wrong: a lock has no age by which it could go."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    first = node.keep("alice", holder={**holder("alice"), "since": since})
    first.answer()
    error, _ = node_lock.read_lock("gpu1", read(LockAnswer, node.keep("bob").answer()), "id-bob")
    look = node_lock.read_look("gpu1", read(LookAnswer, node.ask("look", entries=1)))
    told = look.holder.describe()
    monkeypatch.undo()
    time.tzset()

    assert error.exit_code == 4
    assert "in use by alice on ops1 (process 4711), since" in str(error)
    assert told in str(error)
    assert look.held


def test_the_lock_goes_when_it_is_given_up_and_history_has_what_was_done(node):
    """One apply: its steps, its outcome, and the way is free."""
    keeper = node.keep("alice")
    keeper.answer()
    keeper.say(note="run base_system")
    keeper.say(finish={"status": "changed", "roles": ["base_system"], "message": ""})
    keeper.say(release=False)
    assert keeper.answer()["released"] is True
    assert "locked" in node.keep("bob").answer()
    first = node.past()[0]

    assert (first["user"], first["status"], first["roles"]) == ("alice", "changed", ["base_system"])
    assert (first["notes"], first["started"][:4]) == (["run base_system"], "2026")
    assert first["ended"]


@pytest.mark.skipif(os.geteuid() != 0, reason="it starts processes of another account")
@pytest.mark.parametrize("kind", ["account", "container"])
def test_no_lock_is_held_for_a_process_that_only_looks_like_ansibles(node, kind):
    """Every account chooses the arguments of its processes, and root in a container does."""
    process = node.foreign(kind)
    seen = node.look()["working"]
    assert [words for words in seen if "(sh of" in words] == []
    keeper = node.keep("alice")
    keeper.answer()
    keeper.say(release=True)
    assert keeper.answer() == {"released": True, "working": [], "trouble": ""}
    assert process.poll() is None


def test_only_root_can_read_what_is_written(node):
    """Commands of other operators are nobody else's business."""
    node.keep("alice").answer()
    files = [*node.run.iterdir(), node.history]

    assert {file.name for file in files} == {"provision.lock", "provision.lock.holder", "history.jsonl"}
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_nothing_that_it_would_start_inherits_the_lock(node):
    """Else a daemon could hold a node for ever."""
    keeper = node.keep("alice")
    keeper.answer()
    flags = Path(f"/proc/{keeper.process.pid}/fdinfo/{keeper.lock_descriptor()}").read_text()

    assert int(flags.split("flags:")[1].split()[0], 8) & O_CLOEXEC


def test_a_killed_keeper_frees_the_node_and_the_next_one_writes_that_down(node):
    """The kernel takes the lock away; what the dead one left in the folder stops nobody."""
    keeper = node.keep("alice")
    keeper.answer()
    keeper.process.kill()
    keeper.process.wait()
    seen = node.look()
    assert "locked" in node.keep("bob").answer()

    assert (seen["held"], seen["holder"], seen["entries"][0]["status"]) == (False, None, "died")
    assert [entry["status"] for entry in node.past()] == ["died", "running"]
    assert "power cut" in node.past()[0]["message"]


def test_an_operator_whose_process_died_frees_the_node(node):
    """Its input ends; history says that the apply never did."""
    keeper = node.keep("alice")
    keeper.answer()
    keeper.say(note="run docker_engine")
    keeper.process.stdin.close()
    keeper.process.wait(20)

    assert node.look()["held"] is False
    assert (node.past()[0]["status"], node.past()[0]["notes"]) == ("died", ["run docker_engine"])
    assert "its connection ended" in node.past()[0]["message"]


def test_an_operator_who_is_not_heard_of_frees_the_node(node):
    """A cut network closes nothing; silence is enough. Whoever beats keeps the lock for longer than that."""
    keeper = node.keep("alice", silence=0.8)
    keeper.answer()
    end = time.monotonic() + 1.2
    while time.monotonic() < end:
        keeper.say()
        time.sleep(0.1)
    assert keeper.process.poll() is None
    keeper.process.wait(20)

    assert "nothing was heard of it for 0.8 s" in node.past()[0]["message"]


def test_the_lock_outlives_its_operator_while_a_task_is_at_work(node):
    """A half-done task must not meet the next operator's; who comes is told that the first one's side is gone."""
    task = node.task()
    keeper = node.keep("alice")
    keeper.answer()
    keeper.process.stdin.close()
    gone = eventually(lambda: node.look()["holder"].get("gone"), seconds=20, what="the holder is said to be gone")
    refused = node.keep("bob").answer()
    working = node.look()["working"]
    task.stdin.close()
    task.wait()
    keeper.process.wait(20)

    assert refused["holder"]["gone"] == gone
    assert "the connection to its controller is lost since" in str(
        node_lock.read_lock("n1", read(LockAnswer, refused), "")[0]
    )
    assert working == [f"process {task.pid} (sh of {os.environ.get('USER', 'root')})"]
    assert node.look()["held"] is False


def test_an_interrupted_apply_leaves_the_lock_to_its_last_task(node):
    """The operator's side is told what is waited for, and need not stay."""
    task = node.task()
    keeper = node.keep("alice")
    keeper.answer()
    keeper.say(finish={"status": "interrupted", "roles": [], "message": "Ctrl-C"})
    keeper.say(release=True)
    answer = keeper.answer()
    keeper.process.stdin.close()
    held = node.look()["held"]
    task.stdin.close()
    keeper.process.wait(20)

    assert (answer["released"], len(answer["working"]), held) == (False, 1, True)
    assert node.past()[0]["status"] == "interrupted"
    assert node.look()["held"] is False


def test_a_task_that_hangs_does_not_keep_the_node_for_ever(node):
    """After the longest wait the lock goes, and history names what was still at work."""
    task = node.task()
    keeper = node.keep("alice", linger=0.5)
    keeper.answer()
    keeper.process.stdin.close()
    keeper.process.wait(20)

    assert task.poll() is None
    assert f"still at work when the lock was given up: process {task.pid} " in node.past()[0]["message"]


def test_ansibles_own_command_lines_are_known(node):
    """With pipelining, which we ask for, the module itself is on no command line."""
    commands = ["read line; : /usr/bin/python3 && sleep 0", "read line; echo BECOME-SUCCESS-abc ; : /usr/bin/python3"]
    for command in commands:
        process = subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        node.started.append(process)
    wanted = {process.pid for process in node.started[:2]}

    def are_known() -> bool:
        working = node.ask("look", entries=0, marks=node_lock.PLACES["marks"])["working"]
        return wanted <= {int(text.split()[1]) for text in working}

    eventually(are_known, seconds=20, what="both tasks are known")


def test_a_line_that_a_power_cut_tore_is_passed_over(node):
    """And the next one stands on a line of its own."""
    node.history.parent.mkdir()
    node.history.write_text('{"id": "old", "status": "changed", "started": "x"}\n{"id": "torn", "sta')
    node.keep("alice").answer()

    assert [entry["id"] for entry in node.look()["entries"]] == ["old", "id-alice"]


def test_history_has_an_end(node):
    """The newest 200 are kept."""
    node.history.parent.mkdir()
    lines = [json.dumps({"id": f"{n}", "status": "changed", "started": "x"}) + "\n" for n in range(500)]
    node.history.write_text("".join(lines))
    node.keep("alice").answer()
    found = node.look()["entries"]

    assert (len(found), found[0]["id"], found[-1]["id"]) == (200, "301", "id-alice")
    assert len(node.history.read_text().splitlines()) == 201


def test_a_node_without_the_usual_folder_says_where_its_lock_is(node):
    """It is locked all the same."""
    answer = node.keep("alice", folders=[f"{node.run}/none", str(node.run)]).answer()

    assert answer == {"locked": f"{node.run}/provision.lock", "usual": False}
    assert "the lock is " in node_lock.read_lock("n1", read(LockAnswer, answer), "")[1]


def test_a_node_that_can_write_nothing_is_no_locked_node(node):
    """What could not be written where is said, and nothing is held."""
    (node.run / "file").write_text("")
    answer = node.keep("alice", history=f"{node.run}/file/history.jsonl").answer()
    error, _ = node_lock.read_lock("gpu1", read(LockAnswer, answer), "")

    assert error.exit_code == 1
    assert f"{node.run}/file" in str(error)
    assert error.remedy
    assert node.look()["held"] is False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_file_is_no_lock(node):
    """/run/lock is everybody's: nobody but root may keep operators out with a file or a link there."""
    (node.run / "provision.lock").write_text("")
    os.chown(node.run / "provision.lock", 65534, 65534)
    (node.run / "provision.lock.holder").symlink_to(node.run / "target")
    squatter = subprocess.Popen(["flock", str(node.run / "provision.lock"), "cat"], stdin=subprocess.PIPE)
    node.started.append(squatter)
    eventually(lambda: Path(f"/proc/{squatter.pid}/task/{squatter.pid}/children").read_text(), seconds=10, what="held")

    assert "locked" in node.keep("alice").answer()
    assert (node.run / "provision.lock").stat().st_uid == 0
    assert not (node.run / "target").exists()


def test_a_folder_in_the_place_of_the_lock_locks_nobody_out(node):
    """Everybody may make folders in /run/lock; ours are taken, and what stood there is not lost."""
    for name in ("provision.lock", "provision.lock.holder", "provision.lock.holder.new"):
        (node.run / name).mkdir()
        (node.run / name / "anything").write_text("of somebody\n")
    keeper = node.keep("alice")

    assert keeper.answer() == {"locked": f"{node.run}/provision.lock", "usual": True}
    assert node.look()["holder"]["user"] == "alice"
    assert len(list(node.run.glob("*.not-ours-*/anything"))) == 3


@pytest.mark.parametrize("name", ["provision.lock", "provision.lock.holder"])
def test_a_pipe_in_the_place_of_the_lock_holds_nobody_up(node, name):
    """To open one waits for its other end, which never comes."""
    keeper = node.keep("alice") if name.endswith(".holder") else None
    if keeper:
        keeper.answer()
        (node.run / name).unlink()
    os.mkfifo(node.run / name)
    look = Keeper({**node.request(), "do": "look", "entries": 1})
    node.started.append(look.process)

    assert select.select([look.process.stdout], [], [], 10)[0], "it waits for the pipe"
    assert look.answer()["held"] is bool(keeper)


def test_unlock_ends_the_keeper_and_says_so_in_history(node):
    """Who took it away is written down, and the node is free."""
    keeper = node.keep("alice")
    keeper.answer()
    answer = node.ask("unlock", id="id-alice", message="unlocked by bob on ops2")

    assert answer == {"unlocked": True, "working": [], "trouble": ""}
    assert keeper.process.wait(10) is not None
    assert (node.past()[0]["status"], node.past()[0]["message"]) == ("unlocked", "unlocked by bob on ops2")
    assert "locked" in node.keep("bob").answer()


def test_unlock_ends_a_keeper_that_hears_nothing(node):
    """It is killed when it does not go by itself."""
    keeper = node.keep("alice")
    keeper.answer()
    keeper.process.send_signal(signal.SIGSTOP)

    assert node.ask("unlock", id="id-alice", message="")["unlocked"] is True
    assert keeper.process.wait(10) == -signal.SIGKILL


def test_unlock_ends_nobody_else(node):
    """Neither an operator who came meanwhile, nor a program that is none of ours."""
    keeper = node.keep("alice")
    keeper.answer()
    other = node.ask("unlock", id="id-of-another", message="")["other"]
    assert keeper.process.poll() is None
    keeper.process.kill()
    keeper.process.wait()
    lock = node.run / "provision.lock"
    squatter = subprocess.Popen(["flock", str(lock), "cat"], stdin=subprocess.PIPE)
    node.started.append(squatter)
    eventually(lambda: node.look()["held"], seconds=10, what="the lock is held by flock")

    assert other["user"] == "alice"
    assert node.ask("unlock", id="id-alice", message="") == {"strange": True}
    assert squatter.poll() is None
    assert node.keep("bob").answer() == {"held": True, "holder": None}


def test_unlock_of_a_free_node_changes_nothing(node):
    """It says that there is nothing to unlock."""
    assert node.ask("unlock", id="id-alice", message="") == {"free": True}
    assert not node.history.exists()


def test_the_programs_speak_old_python():
    """A node may have Python 3.6."""
    for file in (NODE / "lock").glob("*.py"):
        assert ast.parse(file.read_text(), feature_version=(3, 6))
        assert "annotations" not in file.read_text()
