"""Run the command as a user does, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.connectors.ssh_signatures import own_signing_key
from tests.support.json_documents import require_valid

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str
    words: Sequence[str] = ()
    """The words after `provision`."""

    @property
    def document(self) -> Any:
        """The JSON document on stdout, which is valid."""
        document = json.loads(self.out)
        require_valid(document, self.words)
        return document

    def __str__(self) -> str:
        return f"exit {self.code}\n--- stdout\n{self.out[-4000:]}\n--- stderr\n{self.err[-4000:]}"


class Provision:
    """`provision` with an environment and a working folder of its own."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.environment = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": str(ROOT), **environment}
        self.environment.pop("PROVISION_INVENTORY", None)

    def operator(self, name: str) -> Provision:
        """Somebody else's command, with a state folder of its own, and the key that signs the jobs of this one."""
        mine = self.environment["XDG_STATE_HOME"]
        key = Path(mine) / "provision/signing_key"
        own_signing_key(key)
        return Provision(self.folder, LOGNAME=name, XDG_STATE_HOME=f"{mine}-{name}", PROVISION_SIGNING_KEY=str(key))

    def argv(self, *words: str) -> list[str]:
        """The command line of one call."""
        return [sys.executable, "-m", "provision", *words]

    def __call__(self, *words: str, timeout: float = 1500, stdin: str | None = None) -> Done:
        """Run it and wait."""
        done = subprocess.run(
            self.argv(*words),
            cwd=self.folder,
            env=self.environment,
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr, words)

    def ok(self, *words: str, timeout: float = 1500) -> Done:
        """Run it and insist on success."""
        done = self(*words, timeout=timeout)
        assert done.code == 0, f"provision {' '.join(words)}: {done}"
        return done

    def put_on_path(self) -> None:
        """Let shells of this environment find it as `provision`."""
        programs = self.folder / "bin"
        programs.mkdir()
        (programs / "provision").write_text(f'#!/bin/sh\nexec {sys.executable} -m provision "$@"\n')
        (programs / "provision").chmod(0o755)
        self.environment["PATH"] = f"{programs}:{self.environment['PATH']}"

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start it and leave it running."""
        return subprocess.Popen(
            self.argv(*words),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )


@contextmanager
def with_own_state() -> Iterator[Provision]:
    """Give a command whose labs, jobs and records are gone afterwards; what all labs share is kept."""
    with tempfile.TemporaryDirectory(prefix="prov-") as folder:
        yield Provision(Path(folder), XDG_STATE_HOME=f"{folder}/state")


def eventually(condition: Callable[[], Any], *, seconds: float, what: str) -> Any:
    """Wait until `condition` holds and return its value; fail with `what` when it does not in time."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.3)
