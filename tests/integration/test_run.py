"""What a job's user sees and what a job leaves behind, on real containers of two nodes."""

from __future__ import annotations

import signal

import pytest

from tests.integration.conftest import LAB
from tests.support.command import eventually

STUBBORN = """
import signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(98765)
"""

CHATTY = """
import os, sys, time
for part in ("one ", "line\\n"):
    sys.stdout.write(part)
    sys.stdout.flush()
    time.sleep(0.2)
sys.stderr.write("trouble\\n")
sys.stdout.buffer.write(b"junk \\xff no newline")
"""


@pytest.fixture
def left(cluster, on_node):
    """Look for what a job consists of, on every node."""

    def look() -> dict[str, int]:
        pattern = "^(mpirun|orted|prterun|prted|python3)( |$)"
        names = [node["name"] for node in cluster["nodes"]]
        count = f"pgrep -af '{pattern}' | grep -Ec 'mpirun|orted|prted|prterun|98765' || true"
        return {name: int(on_node(name, count)) for name in names}

    return look


def test_every_output_line_has_its_rank_and_stream(provision, cluster):
    """Half lines of four ranks come out whole, errors on stderr, bytes that are no text unharmed."""
    done = provision("run", "--lab", LAB, "--", "python3", "-c", CHATTY)

    assert done.code == 0, str(done)
    assert cluster["nodes"]
    for rank in range(4):
        assert f"[{rank}] one line" in done.out.splitlines()
        assert f"[{rank}] trouble" in done.err.splitlines()
        assert f"[{rank}] junk \ufffd no newline" in done.out.splitlines()


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_signal_gives_the_exit_code_of_shells(provision, cluster, number):
    """A rank that dies of a signal makes run exit with 128 + its number."""
    assert cluster["nodes"]
    assert provision("run", "--lab", LAB, "-n", "1", "--", "sh", "-c", f"kill -{number} $$").code == 128 + number


def test_a_secret_is_on_no_command_line(provision, cluster, on_node):
    """A value given by --env reaches the ranks and is in no process list of any node."""
    script = 'test -n "$TOKEN" && echo ready && sleep 98765'
    provision.environment["TOKEN"] = "hidden-value"
    process = provision.start("run", "--lab", LAB, "--env", "TOKEN", "--", "sh", "-c", script)
    try:
        line = process.stdout.readline()
        seen = [
            on_node(node["name"], "ps -eo args | grep -v grep | grep -c 'hidden-[v]alue' || true")
            for node in cluster["nodes"]
        ]
    finally:
        del provision.environment["TOKEN"]
        process.send_signal(signal.SIGINT)
        process.wait(60)

    assert "ready" in line
    assert [text.strip() for text in seen] == ["0", "0"]


@pytest.mark.parametrize(("how", "limit"), [(signal.SIGKILL, 10), (signal.SIGTERM, 10), (signal.SIGSTOP, 45)])
def test_ranks_that_ignore_signals_are_killed_with_their_client(provision, cluster, left, how, limit):
    """Killed, asked to end or silent (as behind a cut network): the whole job is gone in time, on every node."""
    assert cluster["nodes"]
    process = provision.start("run", "--lab", LAB, "--", "python3", "-c", STUBBORN)
    try:
        lines = []
        while sum("ready" in line for line in lines) < 4:
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        assert all(left().values())
        process.send_signal(how)
        eventually(lambda: not any(left().values()), seconds=limit, what="no process of the job on any node")
    finally:
        process.kill()
        process.wait()


def test_a_second_sync_copies_nothing_and_preserves_files_of_the_job(provision, cluster, tmp_path):
    """Unchanged files are not sent again, deleted ones go, and a checkpoint stays."""
    assert cluster["nodes"]
    code = tmp_path / "my code"
    code.mkdir()
    (code / "old.py").write_text("")
    (code / "go.sh").write_text("test -e old.py && echo old; test -e ckpt && echo ckpt; touch ckpt; exit 0\n")
    words = ["run", "--lab", LAB, "--sync", str(code), "-n", "4", "--", "sh", "go.sh"]
    first = provision(*words)
    second = provision(*words)
    (code / "old.py").unlink()
    third = provision(*words)

    assert first.code == second.code == third.code == 0, f"{first}{second}{third}"
    assert "2 copied" in first.err
    assert second.err.count("unchanged") == 2
    assert "1 removed" in third.err
    assert "] old" not in third.out
    assert third.out.count("ckpt") == 4
