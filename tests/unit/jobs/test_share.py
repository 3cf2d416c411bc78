"""Several copies of one command that share a GPU: the real program with real child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from tests.support.interpreters import NODE_PYTHON
from tests.support.processes import marked

PROGRAM = Path(__file__).parents[3] / "provision/node/run/share.py"
FAKE_MPS = """#!/bin/sh
if [ "$1" = -d ]; then
  env | grep CUDA_MPS >"$MPS_SEEN"; touch "$CUDA_MPS_PIPE_DIRECTORY/control"; exit "${MPS_FAILS:-0}"
fi
read -r word; echo "$word in $CUDA_MPS_PIPE_DIRECTORY" >>"$MPS_SEEN"
"""


class Shared:
    """Starts the program; processes that it leaves have a mark and are killed after the test."""

    def __init__(self, folder: Path) -> None:
        self.logs = folder / "logs"
        self.mark = f"SHARE_TEST={uuid.uuid4().hex}"
        self.environment = {**os.environ, **dict([self.mark.split("=")]), "FOLDER": str(folder)}

    def start(self, *words: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [NODE_PYTHON, "-IS", str(PROGRAM), "--logs", str(self.logs), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**self.environment, **more},
        )

    def run(self, *words: str, **more: str) -> tuple[int, str, str]:
        child = self.start(*words, **more)
        out, err = child.communicate(timeout=30)
        return child.returncode, out, err

    def left(self) -> list[int]:
        return marked(self.mark)


@pytest.fixture
def share(tmp_path):
    """The program with its own folder; it must leave no process."""
    shared = Shared(tmp_path)
    yield shared
    left = shared.left()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def script(text: str) -> list[str]:
    """Return a command whose first words are the option for the index, and the index."""
    return ["--", "sh", "-c", text, "sh"]


def until(condition, seconds=10.0):
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.row(62)
def test_each_copy_gets_its_number_in_its_arguments_and_environment(share):
    """The command's own words are unchanged, including those with blanks and those like options of share.py."""
    words = ["-n", "2", *script('printf "%s|" "$@" "$PROCESS_INDEX/$PROCESS_NUM"; echo'), "--lr", "a  b", "--", "-n"]

    code, out, _ = share.run(*words)

    own = "--lr|a  b|--|-n|--process_index|{}|--process_num|2|{}/2|"
    assert code == 0
    assert sorted(out.splitlines()) == [f"[process{i}] {own.format(i, i)}" for i in (0, 1)]
    assert (share.logs / "process1.file").read_text() == own.format(1, 1) + "\n"


def test_output_of_copies_is_in_their_logs_and_line_by_line_on_stdout(share):
    """Both streams, without mixed lines; the last line may have no newline."""
    share_of_one = "for i in 1 2 3; do printf 'a'; sleep 0.01; echo \" $i\"; done; printf 'last' >&2"

    code, out, _ = share.run("-n", "3", *script(share_of_one))

    assert code == 0
    for index in range(3):
        assert (share.logs / f"process{index}.file").read_text() == "a 1\na 2\na 3\nlast"
        mine = [line for line in out.splitlines() if line.startswith(f"[process{index}] ")]
        assert [line.partition(" ")[2] for line in mine] == ["a 1", "a 2", "a 3", "last"]


def test_the_first_failure_in_time_ends_the_others_and_is_the_exit_code(share):
    """Not that of the lowest index, nor of copies that were ended; a shell's `wait` would return 0."""
    share.environment["FIRST"] = str(share.logs / "ready")
    text = """
      trap 'exit 9' TERM
      if [ "$PROCESS_INDEX" = 2 ]; then until [ -e "$FIRST" ]; do sleep 0.01; done; exit 7; fi
      [ "$PROCESS_INDEX" = 0 ] && touch "$FIRST"
      while :; do sleep 0.02; done"""

    code, _, err = share.run("-n", "3", *script(text))

    assert code == 7
    assert [line.rpartition(" ")[2] for line in err.splitlines() if "exit code" in line] == ["9", "9", "7"]


def test_the_program_waits_for_all_copies(share):
    """A successful copy does not end the others."""
    code, out, _ = share.run("-n", "2", *script('[ "$PROCESS_INDEX" = 0 ] || { sleep 0.4; echo late; exit 3; }'))

    assert (code, out) == (3, "[process1] late\n")


def test_the_signal_of_a_copy_is_reported_as_by_a_shell(share):
    """128 and the signal's number."""
    assert share.run("-n", "1", *script("kill -SEGV $$"))[0] == 128 + signal.SIGSEGV


def test_process_groups_are_killed_after_the_grace_time(share):
    """Data loaders are children of a copy; after the grace time they are killed."""
    text = """
      [ "$PROCESS_INDEX" = 1 ] && { until [ -e "$FOLDER/deaf" ]; do sleep 0.01; done; exit 5; }
      (trap '' TERM; touch "$FOLDER/deaf"; while :; do sleep 0.05; done) &
      wait"""
    code, _, _ = share.run("-n", "2", "--grace", "0.3", *script(text))

    assert code == 5
    assert share.left() == []


def test_background_processes_of_copies_are_ended_with_them(share):
    """A completed job uses no GPU, and does not wait for processes that would never end."""
    code, _, _ = share.run("-n", "2", *script("sleep 60 & echo $!"))

    assert code == 0
    assert share.left() == []


def test_sigterm_ends_all_copies_and_determines_the_exit_code_if_they_succeed(share):
    """Copies may write a last checkpoint; the exit code still reports the signal."""
    child = share.start("-n", "2", *script("trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.02; done"))
    seen = [child.stdout.readline(), child.stdout.readline()]
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=20)

    assert sorted(seen) == ["[process0] up\n", "[process1] up\n"]
    assert {"[process0] saved", "[process1] saved"} <= set(out.splitlines())
    assert child.returncode == 128 + signal.SIGTERM
    assert "SIGTERM: ending 2 processes" in err


def test_a_second_signal_skips_the_grace_time(share):
    child = share.start("-n", "1", "--grace", "60", *script("trap '' TERM INT; echo up; while :; do sleep 0.02; done"))
    child.stdout.readline()
    child.send_signal(signal.SIGTERM)
    child.stderr.readline()
    child.send_signal(signal.SIGINT)

    child.communicate(timeout=20)
    assert child.returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize(("command", "expected"), [("/no/such/program", 127), (__file__, 126)])
def test_a_command_that_cannot_be_started_is_reported(share, command, expected):
    """With the codes of a shell."""
    code, _, err = share.run("-n", "2", "--", command)

    assert code == expected
    assert "process 0 cannot be started" in err
    assert command in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "words", [["-n", "2"], ["-n", "0", "--", "true"], ["--", "true"], ["-n", "2", "--mps-memory", "0=1G", "--", "true"]]
)
def test_a_usage_error_exits_with_2_and_starts_nothing(share, words):
    """The message names the missing argument."""
    code, _, err = share.run(*words)

    assert code == 2
    assert "share.py: error:" in err
    assert not share.logs.exists()


def test_a_closed_stdout_does_not_end_the_copies(share):
    """The logs are complete."""
    child = share.start("-n", "1", *script("echo one; sleep 0.1; echo two"))
    child.stdout.close()
    child.stderr.read()

    assert child.wait(20) == 0
    assert (share.logs / "process0.file").read_text() == "one\ntwo\n"


@pytest.fixture
def mps(share, tmp_path):
    """A stand-in for NVIDIA's daemon, which records its requests."""
    (tmp_path / "bin").mkdir()
    stand_in = tmp_path / "bin/nvidia-cuda-mps-control"
    stand_in.write_text(FAKE_MPS)
    stand_in.chmod(0o755)
    share.environment["PATH"] = f"{tmp_path}/bin:{os.environ['PATH']}"
    share.environment["MPS_SEEN"] = str(tmp_path / "seen")
    return tmp_path / "seen"


def test_each_job_has_its_own_mps_daemon_which_ends_with_it(share, mps):
    """Its pipes are in its own folder, each copy gets its share of the GPU, and nothing remains."""
    text = (
        'echo "$CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"; exit 4'
    )
    code, out, _ = share.run("-n", "3", "--mps", "--mps-memory", "0=2G", *script(text))
    folder, percent, memory = out.splitlines()[0].split()[1:]

    assert (code, percent, memory) == (4, "33", "0=2G")
    assert not Path(folder).exists()
    assert mps.read_text().splitlines() == [
        *sorted([f"CUDA_MPS_PIPE_DIRECTORY={folder}", f"CUDA_MPS_LOG_DIRECTORY={share.logs}/mps"], reverse=True),
        f"quit in {folder}",
    ]


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.usefixtures("mps")
def test_without_the_mps_daemon_nothing_is_started(share, there):
    """A job with --mps must not run with time-slicing instead."""
    if not there:
        share.environment["PATH"] = "/usr/bin:/bin"

    code, out, err = share.run("-n", "2", "--mps", *script("echo up"), MPS_FAILS="1")

    assert (code, out) == (125, "")
    assert "nothing was started" in err
    assert "nvidia-cuda-mps-control" in err
