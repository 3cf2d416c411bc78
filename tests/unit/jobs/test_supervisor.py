"""The supervisor and the reaper of `run` as real processes on this machine, with a shell script as the launcher."""

import contextlib
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from provision.documents.run import Frames
from provision.jobs.request import new_job_id
from provision.jobs.session import reap_script
from tests.support.interpreters import NODE_PYTHON
from tests.support.node.archive import ARCHIVE, NODE

STUBBORN = "trap '' TERM INT HUP; echo ready; while :; do sleep 0.1; done"


def spec(job, launcher, **changes):
    return {
        "id": job,
        "head": "n1",
        "others": [],
        "argv": ["env", f"PROVISION_JOB={job}", "sh", "-c", f"cat >/dev/null; {launcher}"],
        "input": "n1 slots=2\n",
        "reap": reap_script(),
        "sweep": ":",
        "reach": [],
        "tidy": ["true"],
        "grace_seconds": 0,
        "silence_seconds": 30,
        **changes,
    }


@pytest.fixture
def start():
    """Start supervisors; after the test, their remaining processes are killed."""
    running = []

    def begin(launcher, **changes):
        job = new_job_id()
        child = subprocess.Popen(
            [NODE_PYTHON, str(ARCHIVE), "run"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        running.append((child, job))
        child.stdin.write(json.dumps(spec(job, launcher, **changes)).encode() + b"\n")
        return child, job

    yield begin
    for child, job in running:
        child.kill()
        child.wait()
        for pid in marked(job):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def marked(job):
    """The processes with the mark of a job."""
    mark = f"PROVISION_JOB={job}".encode()
    result = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                result.append(int(folder.name))
        except OSError:
            continue
    return result


def alive(pid):
    """Return whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def frames(child):
    """All frames until the end, as (kind, data)."""
    return list(Frames("n1").feed(child.stdout.read()))


def ending(result):
    return json.loads(next(data for kind, data in result if kind == "x"))


def read_until(child, *texts):
    """Read output until it contains all `texts`."""
    data = b""
    while any(text not in data for text in texts):
        piece = os.read(child.stdout.fileno(), 65536)
        assert piece, data
        data += piece
    return data


def test_the_output_and_exit_status_of_the_job_are_returned(start):
    """Stdout and stderr are separate, and the exit status is that of the launcher."""
    child, _ = start("echo out; echo err >&2; exit 7")
    result = frames(child)

    assert b"".join(data for kind, data in result if kind == "o") == b"out\n"
    assert b"".join(data for kind, data in result if kind == "e") == b"err\n"
    assert ending(result) == {"code": 7, "reason": None, "left": {}}


def test_a_closed_connection_ends_a_job_that_ignores_signals(start):
    """After the grace time, no process with the job's mark is left."""
    child, job = start(STUBBORN, grace_seconds=1)
    read_until(child, b"ready")
    assert marked(job)
    child.stdin.close()
    child.wait(10)

    assert marked(job) == []


def test_a_client_without_heartbeats_ends_the_job(start):
    """An interrupted network closes no connection."""
    child, job = start(STUBBORN, silence_seconds=0.3)
    result = frames(child)

    assert ending(result)["reason"] == "silence"
    assert marked(job) == []


def test_heartbeats_are_answered_and_the_job_continues(start):
    """Until the client requests the end.

    A heartbeat that arrives while output is written gets no answer (the output is one), so the test repeats it.
    """
    child, job = start(STUBBORN)
    read_until(child, b"ready")
    heard, deadline = b"", time.monotonic() + 20
    while b"a 0\n" not in heard and time.monotonic() < deadline:
        child.stdin.write(b"beat\n")
        if select.select([child.stdout], [], [], 0.5)[0]:
            heard += os.read(child.stdout.fileno(), 65536)
    alive_then = marked(job)
    child.stdin.write(b"stop\n")

    assert b"a 0\n" in heard
    assert alive_then
    assert ending(frames(child))["reason"] == "stop"


def test_stop_ends_the_job_and_reports_the_end(start):
    """An orderly end (Ctrl-C) is reported when it has ended."""
    child, job = start(STUBBORN)
    read_until(child, b"ready")
    child.stdin.write(b"stop\n")
    result = frames(child)

    assert ending(result)["reason"] == "stop"
    assert marked(job) == []


def test_child_processes_without_the_mark_are_ended_too(start):
    """A rank that cleared its environment ends, because its parent has the mark."""
    child, job = start(f'env -i /bin/sh -c "{STUBBORN}" & echo child $!; wait', grace_seconds=1)
    data = read_until(child, b"child ", b"ready")
    pid = int(data.split(b"child ")[1].split()[0])
    child.stdin.write(b"stop\n")
    result = frames(child)

    assert ending(result)["left"] == {}
    assert not alive(pid)
    assert marked(job) == []


def test_other_jobs_are_not_ended(start):
    """The end of one job ends no process of another."""
    one, first = start(STUBBORN)
    two, second = start(STUBBORN)
    read_until(one, b"ready")
    read_until(two, b"ready")
    one.stdin.close()
    one.wait(10)

    assert marked(first) == []
    assert marked(second)


FORGERY = r"""
import ctypes, os, sys, time
def rename(name):
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)
rename(sys.argv[1])
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    "name", ["x\n{pid} (a) R 99", "\n{pid} (x) S", ") S {parent} (", "a) R 1 1 1 1\n", ")\n{pid} (x"]
)
def test_the_name_of_a_process_cannot_end_another_process(start, name):
    """A name may contain newlines, parentheses and whole lines in the format of the kernel."""
    victim = subprocess.Popen(["sleep", "600"])
    try:
        forged = name.format(pid=victim.pid, parent=os.getpid())[:15]
        program = f"{sys.executable} -c {shlex.quote(FORGERY)} {shlex.quote(forged)}"
        child, job = start(f"{program} & wait", grace_seconds=1)
        read_until(child, b"ready")
        child.stdin.write(b"stop\n")
        assert ending(frames(child))["left"] == {}
        assert marked(job) == []
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


def test_processes_with_the_mark_are_ended_in_a_container_without_python(start, tmp_path):
    """With a shell, grep, cut and sleep only: such images run programs in C."""
    for program in ("sh", "grep", "cut", "sleep"):
        (tmp_path / program).symlink_to(shutil.which(program))
    child, job = start(STUBBORN, reap=f"PATH={tmp_path}\n{reap_script()}", grace_seconds=1)
    read_until(child, b"ready")
    child.stdin.write(b"stop\n")

    assert ending(frames(child))["left"] == {}
    assert marked(job) == []


def test_no_program_disables_the_check_of_host_keys():
    texts = [path.read_text() for path in NODE.rglob("*") if path.suffix in (".py", ".sh")]

    weaker = re.compile(r"StrictHostKeyChecking(?![= ]yes)|/dev/null known")
    assert not [weaker.search(text) for text in texts if weaker.search(text)]
