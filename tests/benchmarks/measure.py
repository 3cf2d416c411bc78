"""What a program costs from its start to its end: time, processor time, memory, threads, open files."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Cost", "measure"]

_EVERY_SECONDS = 0.05
_MIB = 1024


@dataclass(frozen=True)
class Cost:
    """A whole process, with the programs that it started."""

    seconds: float
    cpu_seconds: float
    """Of the process and all that it waited for."""
    rss_mib: float
    """The most that the process itself held at one time."""
    threads: int
    files: int
    """The most open files of the process."""
    code: int
    out: str
    err: str


def measure(argv: Sequence[str], *, environment: Mapping[str, str] | None = None, cwd: Path | None = None) -> Cost:
    """Run `argv` to its end and watch it."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        begun = time.monotonic()
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
        )
        watch = _Watch(child.pid)
        watch.start()
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.monotonic() - begun
        child.returncode = os.waitstatus_to_exitcode(status)
        watch.over.set()
        watch.join()
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    cpu = usage.ru_utime + usage.ru_stime
    return Cost(seconds, cpu, watch.rss_kib / _MIB, watch.threads, watch.files, child.returncode, texts[0], texts[1])


class _Watch(threading.Thread):
    """Samples a process until it ends."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.rss_kib = self.threads = self.files = 0
        self._folder = Path(f"/proc/{pid}")

    def run(self) -> None:
        """Keep the highest of what is seen; VmHWM is the kernel's own high mark."""
        while not self.over.wait(_EVERY_SECONDS):
            try:
                status = (self._folder / "status").read_text()
                files = len(os.listdir(self._folder / "fd"))  # noqa: PTH208 - names alone
            except OSError:
                return
            fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
            if "VmHWM" in fields:
                self.rss_kib = max(self.rss_kib, int(fields["VmHWM"].split()[0]))
            self.threads = max(self.threads, int(fields["Threads"]))
            self.files = max(self.files, files)
