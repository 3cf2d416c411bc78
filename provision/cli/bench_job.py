"""The job of ``provision bench run``: its command line of ``provision run``, and its start in this process."""

from __future__ import annotations

import contextlib
import io
import secrets
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import typer

from provision.errors import UsageError

if TYPE_CHECKING:
    from provision.jobs import Plan
    from provision.launchers import HostEntry

_LOW_PORT, _PORTS = 20_000, 10_000


@dataclass(frozen=True)
class Setting:
    """Settings of a benchmark's job that differ from the default."""

    preset: str = ""
    fabric: str = ""
    gdr: bool = False
    lightcc: bool = False
    further: str = ""

    @property
    def title(self) -> str:
        """Return the part of the title that distinguishes its results: ``lightcc-gdr``; of further options only names.

        Values of options can be passwords, and the title is printed and stored.

        Raises:
            UsageError: The further options cannot be split into words.
        """
        words = [self.preset, self.fabric, "lightcc" if self.lightcc else "", "gdr" if self.gdr else ""]
        options = (word for word in _split(self.further) if word.startswith("-"))
        return "-".join(filter(None, [*words, *(word.lstrip("-").partition("=")[0] for word in options)]))


def run_words(setting: Setting) -> list[str]:
    """Return the options of ``provision run`` for these settings. No other code knows them.

    Raises:
        UsageError: The further options cannot be split into words.
    """
    further = _split(setting.further)
    preset = setting.preset or ("taco" if setting.gdr or setting.lightcc else "")
    return [
        *(["--preset", preset] if preset else []),
        *(["--fabric", setting.fabric] if setting.fabric else []),
        *(["--gdr"] if setting.gdr else []),
        *(["--lightcc"] if setting.lightcc else []),
        *further,
    ]


def _split(words: str) -> list[str]:
    try:
        return shlex.split(words)
    except ValueError as error:
        said = f"the options of `provision run` cannot be split into words: {error}"
        raise UsageError(said, remedy="Quote them as in a shell.") from None


@dataclass(frozen=True)
class Job:
    """Settings of all sizes."""

    name: str
    where: tuple[str, ...]
    """Words that select the nodes."""
    options: tuple[str, ...]
    command: tuple[str, ...]
    environment: tuple[str, ...]
    ours: bool
    """Whether our own program runs, which has to be copied into the containers."""

    @property
    def counts(self) -> bool:
        """Whether the options set the number of ranks."""
        return any(word.partition("=")[0] in {"--gpus", "-g", "--workers"} for word in self.options)

    @property
    def as_in_the_guide(self) -> bool:
        """Whether the command line is exactly that of TACO Train's guide."""
        return "--preset=taco" in self.options or ("--preset", "taco") in pairwise(self.options)

    def words(self, ranks: int | None, entries: Sequence[HostEntry]) -> list[str]:
        """Return the command line of ``provision run``."""
        from provision.workflow.bench_runs import program_folder

        number = ["-n", str(ranks)] if ranks and not self.counts else []
        command, own = self.command, []
        if self.ours:
            folder = str(program_folder())
            own = ["--sync", folder]
            own += _meeting(entries) if self.as_in_the_guide else ["--launcher", "python"]
            command = (*command[:1], f"{folder}/{command[1]}", *command[2:])
        environment = [word for variable in self.environment for word in ("--env", variable)]
        return ["run", *self.where, *number, *own, *self.options, *environment, "--", *command]


_OUTPUT_LIMIT = 16 * 1024 * 1024
"""Bytes at the end of a job's output in which its result is searched."""


def launched(words: Sequence[str], plans: list[Plan]) -> tuple[int, str]:
    """Run `provision` with these words in this process; return its exit code and the job's output.

    The job's output is printed on stderr immediately, because stdout is for the result. Its plan is added to `plans`.
    """
    from provision.cli.main import build_app

    command = typer.main.get_command(build_app(words[0]))
    shown = _Shown()
    stream = io.TextIOWrapper(shown, encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(stream):
        code = command.main(args=list(words), prog_name="provision", standalone_mode=False, obj=plans)
    stream.flush()
    return (code if isinstance(code, int) else 0), shown.getvalue().decode(errors="replace")


def _meeting(entries: Sequence[HostEntry]) -> list[str]:
    """Return the address of rank 0: the first node, because its slots are filled first."""
    first = next((entry for entry in entries if entry.slots), None)
    port = _LOW_PORT + secrets.randbelow(_PORTS)
    return ["--env", f"MASTER_ADDR={first.address}", "--env", f"MASTER_PORT={port}"] if first else []


class _Shown(io.BytesIO):
    """Stream that stores the end of its input and prints all of it on stderr."""

    def write(self, data: Any, /) -> int:
        """Process the next piece of output."""
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()
        if self.tell() > 2 * _OUTPUT_LIMIT:
            end = self.getvalue()[-_OUTPUT_LIMIT:]
            self.seek(0)
            self.truncate()
            super().write(end)
        return super().write(data)
