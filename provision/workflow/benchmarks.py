"""Sources of training benchmark results: files with a benchmark's output, and stored results."""

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
from provision.workflow.benchmark_files import find_records

_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Results:
    """The results in the sources."""

    runs: tuple[Run, ...]
    unfinished: tuple[Unfinished, ...]
    empty: tuple[str, ...]
    """The sources without any output of a benchmark."""
    records: tuple[Record, ...] = ()
    """The records of stored results."""

    @property
    def complete(self) -> bool:
        """Return whether every source has a result, and every started run too."""
        return not (self.unfinished or self.empty)


def load(words: Sequence[str]) -> Results:
    """Return the runs of all sources, in their order.

    A word is a file, whose name labels its runs, or NAME=FILE with the name of their configuration; else the ID or the
    name of stored results, which have their own labels.

    Raises:
        UsageError: a source does not exist or is a folder.
        ProvisionError: a file cannot be read, or no source has a result.
    """
    runs: list[Run] = []
    unfinished: list[Unfinished] = []
    empty: list[str] = []
    records: list[Record] = []
    stored = {word: find_records(word) for word in words if word != "-" and not os.path.lexists(word)}
    every = [record for matches in stored.values() for record in matches]
    configurations = dict(zip([record.id for record in every], of_records(every), strict=True))
    files = [(None, word) if stored.get(word) else _named_file(word) for word in words]
    for (name, word), label in zip(files, _labels([word for _, word in files]), strict=True):
        if matches := stored.get(word):
            records += matches
            for record in matches:
                runs += [replace(run, configuration=configurations[record.id]) for run in record.runs]
            continue
        finished, ended = parse(_text(word), label)
        configuration = of_file(label, {run.gpus for run in finished}) if name is None else name
        runs += [replace(run, configuration=configuration) for run in finished]
        unfinished += ended
        empty += [] if finished or ended else [label]
    if not runs:
        raise _nothing(words, unfinished)
    return Results(tuple(runs), tuple(unfinished), tuple(empty), tuple(records))


def _named_file(word: str) -> tuple[str | None, str]:
    """Return the configuration and the file in NAME=FILE; None and the word if it is a file itself."""
    name, equals, path = word.partition("=")
    return (name, path) if equals and not os.path.lexists(word) and os.path.lexists(path) else (None, word)


def _labels(words: Sequence[str]) -> list[str]:
    """Return the files' names, or the given paths of files with equal names."""
    names = [Path(word).name or word for word in words]
    return [word if names.count(name) > 1 else name for word, name in zip(words, names, strict=True)]


def _nothing(words: Sequence[str], unfinished: Sequence[Unfinished]) -> ProvisionError:
    if unfinished:
        return ProvisionError(
            "no run is complete: " + "; ".join(run.reason for run in unfinished),
            remedy="Check the output; a complete one ends with `Total img/sec on N GPU(s)`.",
        )
    return ProvisionError(
        f"{', '.join(words)}: no result of a training benchmark",
        remedy="Give the benchmark's output with its line `Total img/sec on N GPU(s)`.",
    )


def _text(word: str) -> str:
    """Return a file's text, decompressed if it is gzipped; ``-`` is standard input."""
    try:
        data = sys.stdin.buffer.read() if word == "-" else Path(word).read_bytes()
        if data.startswith(_GZIP):
            data = gzip.decompress(data)
    except FileNotFoundError:
        raise UsageError(
            f"{word}: no such file, stored result or ID",
            remedy="Give a file with a benchmark's output, or a stored result of: provision bench list",
        ) from None
    except IsADirectoryError:
        raise UsageError(f"{word} is a folder", remedy=f"Give the files in it: {word.rstrip('/')}/*") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ProvisionError(f"{word} cannot be unpacked: {error}", remedy=f"Check it: gzip -t {word}") from None
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise ProvisionError(f"{word} cannot be read: {cause}", remedy=f"Check its permissions: ls -l {word}") from None
    return data.decode(errors="replace")
