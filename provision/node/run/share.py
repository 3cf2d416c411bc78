"""Starts N copies of one command that share one GPU, and exits with their exit code.

    share.py --procs N [--logs FOLDER] [--grace SECONDS] [--mps] -- COMMAND...

Copy i gets `--process_index i --process_num N` after the command's own words, and the same as PROCESS_INDEX and
PROCESS_NUM; its output is written to FOLDER/process<i>.file, and to stdout with `[process<i>]` before each line. The
program waits for all copies. When one fails, the others are ended with their child processes: SIGTERM, then SIGKILL
after the grace time. The exit code is the first one that is not zero; 128+n for a signal, 127 and 126 for a command
that does not exist or cannot be started, 125 when nothing could be started, 2 for wrong usage. SIGTERM, SIGINT and
SIGHUP end all copies; a second signal kills them.

It needs Python 3.6 and nothing else. With --mps it starts an MPS daemon for these copies only, and stops it.
"""

import argparse
import collections
import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any, Deque, Dict, List, NoReturn, Optional

CANNOT_START = 125
NOT_EXECUTABLE, NO_COMMAND = 126, 127
LONGEST = 1 << 16
"""Maximum bytes of a line; longer ones are split."""
MPS = "nvidia-cuda-mps-control"
MPS_SECONDS = 20
OUTPUT = threading.Lock()


class Events:
    """A queue into which the handler of a signal may put while it interrupts the reader: a SimpleQueue for 3.6."""

    def __init__(self) -> None:
        self.waiting: Deque[Any] = collections.deque()
        self.reading, self.writing = os.pipe()

    def put(self, event: Any) -> None:
        """Add an event, from any thread or from the handler of a signal."""
        self.waiting.append(event)
        os.write(self.writing, b".")

    def get(self, seconds: float) -> Any:
        """Return the next event; None if there is none within some seconds."""
        if not select.select([self.reading], [], [], seconds)[0]:
            return None
        os.read(self.reading, 1)
        return self.waiting.popleft()


class Copy:
    """One of the processes, the leader of its own session."""

    def __init__(self, index: int, options: argparse.Namespace, shared: Dict[str, str]) -> None:
        """Open its log and start it.

        Raises:
            OSError: the log cannot be written, or the command cannot be started.
        """
        self.index = index
        self.code: Optional[int] = None
        mine = {"PROCESS_INDEX": str(index), "PROCESS_NUM": str(options.procs)}
        words = ["--process_index", str(index), "--process_num", str(options.procs)]
        self.log = (Path(options.logs) / f"process{index}.file").open("wb", buffering=0)
        try:
            self.child = subprocess.Popen(
                [*options.command, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **shared, **mine},
                start_new_session=True,
            )
        except OSError:
            self.log.close()
            raise

    def watch(self, ended: "Events") -> List[threading.Thread]:
        """Forward its output, and put its end into `ended`; return the threads that forward output."""
        threads = [
            threading.Thread(target=self.pump, args=(self.child.stdout,), daemon=True),
            threading.Thread(target=self.wait, args=(ended,), daemon=True),
        ]
        for thread in threads:
            thread.start()
        return threads[:1]

    def wait(self, ended: "Events") -> None:
        """Wait for the end; the process remains a zombie, so that no other process group gets its number."""
        status = os.waitid(os.P_PID, self.child.pid, os.WEXITED | os.WNOWAIT)
        number = status.si_status if status else 0
        ended.put((self, number if status is None or status.si_code == os.CLD_EXITED else 128 + number))

    def pump(self, stream: IO[bytes]) -> None:
        """Write output to the log as it comes, and to stdout by whole lines."""
        mark, rest = b"[process%d] " % self.index, b""
        while True:
            data = os.read(stream.fileno(), LONGEST)
            with contextlib.suppress(OSError):  # a full disk must not block the process
                self.log.write(data)
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            if rest and (not data or len(rest) >= LONGEST):
                lines, rest = [*lines, rest], b""
            show(b"".join(mark + line + b"\n" for line in lines))
            if not data:
                return

    def signal(self, number: int) -> None:
        """Send a signal to all processes of its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.child.pid, number)

    def is_group_empty(self) -> bool:
        """Return whether its group has no processes but zombies."""
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, IndexError):
                state, _, group = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:3]
                if group == str(self.child.pid) and state not in "ZX":
                    return False
        return True


def main() -> NoReturn:
    """Run the command line."""
    options = read_options(sys.argv[1:])
    events = Events()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: events.put(number))
    folder = None
    try:
        shared: Dict[str, str] = {}
        if options.mps:
            folder = tempfile.mkdtemp(prefix="mps-")  # short: the path of a socket has at most 107 bytes
            shared = start_mps(options, folder)
        code = run(options, events, shared)
    except OSError as error:
        say(f"nothing was started: {error}")
        code = CANNOT_START
    finally:
        if folder is not None:
            stop_mps(folder)
    sys.stdout.flush()
    os._exit(code)  # threads whose pipe a process outside the groups holds open must not delay the exit


def read_options(words: List[str]) -> argparse.Namespace:
    """Return the options before the first `--`, and the command after it."""
    text = __doc__ or ""
    parser = argparse.ArgumentParser(
        prog="share.py",
        usage=text.split("\n\n")[1].strip(),
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-n", "--procs", type=int, required=True, metavar="N", help="how many copies")
    parser.add_argument(
        "--logs", default=".", metavar="FOLDER", help="where process<i>.file is written (default: here)"
    )
    parser.add_argument("--grace", type=float, default=15, metavar="SECONDS", help="between SIGTERM and SIGKILL (15)")
    parser.add_argument("--mps", action="store_true", help="share by NVIDIA's Multi-Process Service")
    parser.add_argument(
        "--mps-memory", metavar="LIMIT", help="CUDA_MPS_PINNED_DEVICE_MEM_LIMIT of each copy, such as 0=8G"
    )
    cut = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:cut])
    options.command = words[cut + 1 :]
    if not options.command:
        parser.error("no command; write it behind --")
    if options.procs < 1 or options.grace < 0:
        parser.error("--procs starts at 1, and --grace at 0")
    if options.mps_memory and not options.mps:
        parser.error("--mps-memory needs --mps")
    return options


def run(options: argparse.Namespace, events: "Events", shared: Dict[str, str]) -> int:
    """Start all copies, wait for all of them, and return the exit code."""
    Path(options.logs).mkdir(parents=True, exist_ok=True)
    copies: List[Copy] = []
    code = 0
    for index in range(options.procs):
        try:
            copies.append(Copy(index, options, shared))
        except OSError as error:
            code = NO_COMMAND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            say(f"process {index} cannot be started: {error.strerror}: {error.filename}")
            break
    pumps = [thread for copy in copies for thread in copy.watch(events)]
    code = supervise(copies, events, options.grace, code)
    for thread in pumps:
        thread.join(5)
    for copy in copies:
        copy.child.wait()
        say(f"process {copy.index} (pid {copy.child.pid}): exit code {copy.code}")
    return code


def supervise(copies: List[Copy], events: "Events", grace: float, code: int) -> int:
    """Wait until every copy has ended; end the others after the first failure or signal.

    Returns the first code that is not zero; 128+n after a signal if every copy has exited with 0.
    """
    received, deadline, is_killed = 0, float("inf"), False
    while any(copy.code is None for copy in copies) or not all(copy.is_group_empty() for copy in copies):
        if (code or received or all(copy.code is not None for copy in copies)) and deadline == float("inf"):
            deadline = time.monotonic() + grace
            send(copies, signal.SIGTERM)
        if not is_killed and time.monotonic() >= deadline:
            is_killed = True
            send(copies, signal.SIGKILL)
        event = next_event(events, deadline)
        if isinstance(event, tuple):
            copy, ended_with = event
            copy.code = ended_with
            code = code or ended_with
            copy.signal(signal.SIGTERM)  # to the remaining processes of its group
        elif event is not None:
            say(f"{signal.Signals(event).name}: ending {len(copies)} processes")
            deadline = time.monotonic() if received else deadline
            received = received or event
    return code or (128 + received if received else 0)


def send(copies: List[Copy], number: int) -> None:
    """Send a signal to the groups of all copies."""
    for copy in copies:
        copy.signal(number)


def next_event(events: "Events", deadline: float) -> Any:
    """Return the next end of a copy or signal; None after a moment, to check the deadline and remaining processes.

    The kernel may deliver a signal to a thread that waits for a copy; then it is handled when this thread wakes.
    """
    moment = 0.5 if deadline == float("inf") else max(0.01, min(0.1, deadline - time.monotonic()))
    return events.get(moment)


def start_mps(options: argparse.Namespace, folder: str) -> Dict[str, str]:
    """Start an MPS daemon; return the variables of its clients.

    Raises:
        OSError: the daemon is not installed, or does not start.
    """
    logs = Path(options.logs).resolve() / "mps"
    logs.mkdir(parents=True, exist_ok=True)
    shared = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": str(logs)}
    try:
        subprocess.run(
            [MPS, "-d"],
            env={**os.environ, **shared},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # the daemon would hold a pipe open
            check=True,
            timeout=MPS_SECONDS,
        )
    except FileNotFoundError:
        raise OSError(f"--mps needs {MPS}, which is not installed here; mount the driver's utilities") from None
    except subprocess.SubprocessError as error:
        raise OSError(f"{MPS} -d: {error}; its logs are in {logs}") from None
    shared["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(max(1, 100 // options.procs))
    if options.mps_memory:
        shared["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = options.mps_memory
    return shared


def stop_mps(folder: str) -> None:
    """Stop the MPS daemon, and remove its pipes; the job does not fail without a daemon."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            [MPS],
            input=b"quit\n",
            env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": folder},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=MPS_SECONDS,
        )
    shutil.rmtree(folder, ignore_errors=True)


def show(data: bytes) -> None:
    """Write to stdout in one piece; errors are ignored, because the logs have the complete output."""
    with OUTPUT, contextlib.suppress(OSError):
        while data:
            data = data[os.write(1, data) :]


def say(text: str) -> None:
    """Print a message on stderr."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"share: {text}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    main()
