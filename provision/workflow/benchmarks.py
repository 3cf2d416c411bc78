"""Where results of training benchmarks come from: files with a benchmark's output, and kept results."""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from provision.benchmarks import Record, Run, Unfinished, parse
from provision.benchmarks.configurations import of_file, of_records
from provision.errors import ProvisionError, UsageError
from provision.workflow.kept_benchmarks import on_file

__all__ = ["Results", "load"]

_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Results:
    """What was found in the sources."""

    runs: tuple[Run, ...]
    unfinished: tuple[Unfinished, ...]
    empty: tuple[str, ...]
    """The sources that hold no line of a benchmark."""
    records: tuple[Record, ...] = ()
    """Of the kept results among them."""

    @property
    def complete(self) -> bool:
        """True when every source has a result, and every run that began."""
        return not (self.unfinished or self.empty)


def load(words: Sequence[str]) -> Results:
    """Return the runs of all sources, in their order.

    A word is a file, whose name labels its runs, or NAME=FILE with the name of their configuration; else the id or the
    name of kept results, and a name labels its own.

    Raises:
        UsageError: a source does not exist or is a folder.
        ProvisionError: a file cannot be read, or no source has a result.
    """
    runs: list[Run] = []
    unfinished: list[Unfinished] = []
    empty: list[str] = []
    records: list[Record] = []
    kept = {word: on_file(word) for word in words if word != "-" and not os.path.lexists(word)}
    every = [record for found_here in kept.values() for record in found_here]
    configurations = dict(zip([record.id for record in every], of_records(every), strict=True))
    files = [(None, word) if kept.get(word) else _named_file(word) for word in words]
    for (name, word), label in zip(files, _labels([word for _, word in files]), strict=True):
        if found_here := kept.get(word):
            records += found_here
            for record in found_here:
                runs += [replace(run, configuration=configurations[record.id]) for run in record.runs]
            continue
        found, ended = parse(_text(word), label)
        configuration = of_file(label, {run.gpus for run in found}) if name is None else name
        runs += [replace(run, configuration=configuration) for run in found]
        unfinished += ended
        empty += [] if found or ended else [label]
    if not runs:
        raise _nothing(words, unfinished)
    return Results(tuple(runs), tuple(unfinished), tuple(empty), tuple(records))


def _named_file(word: str) -> tuple[str | None, str]:
    """Return the configuration and the file that NAME=FILE names; None and the word where it is a file by itself."""
    name, equals, path = word.partition("=")
    return (name, path) if equals and not os.path.lexists(word) and os.path.lexists(path) else (None, word)


def _labels(words: Sequence[str]) -> list[str]:
    """Return the files' names; what is given, where two files of different folders have the same."""
    names = [Path(word).name or word for word in words]
    return [word if names.count(name) > 1 else name for word, name in zip(words, names, strict=True)]


def _nothing(words: Sequence[str], unfinished: Sequence[Unfinished]) -> ProvisionError:
    if unfinished:
        return ProvisionError(
            "no run came to its end: " + "; ".join(run.description for run in unfinished),
            remedy="See why in the output; a whole one ends with `Total img/sec on N GPU(s)`.",
        )
    return ProvisionError(
        f"no result of a training benchmark is in {', '.join(words)}",
        remedy="Give what the benchmark printed, with its line `Total img/sec on N GPU(s)`.",
    )


def _text(word: str) -> str:
    """Return a file's text, unpacked where gzip packed it; ``-`` is standard input."""
    try:
        data = sys.stdin.buffer.read() if word == "-" else Path(word).read_bytes()
        if data.startswith(_GZIP):
            data = gzip.decompress(data)
    except FileNotFoundError:
        raise UsageError(
            f"{word}: no such file, and no result is kept under this name or id",
            remedy="Give a file that holds a benchmark's output; `provision bench list` shows what is kept.",
        ) from None
    except IsADirectoryError:
        raise UsageError(f"{word} is a folder", remedy=f"Give the files in it: {word.rstrip('/')}/*") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ProvisionError(f"{word} cannot be unpacked: {error}", remedy=f"Check it: gzip -t {word}") from None
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise ProvisionError(f"{word} cannot be read: {said}", remedy="Is it yours to read? See: ls -l") from None
    return data.decode(errors="replace")
