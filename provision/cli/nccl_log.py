"""``provision nccl-log``: transport and GPUDirect RDMA in NCCL's log."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Iterator
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import Annotated, cast

import typer

from provision.cli.common import JsonOption, print_json, say, show
from provision.errors import ProvisionError, UsageError

_CHUNK = 1 << 16
_GZIP = b"\x1f\x8b"


def nccl_log(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Log, optionally compressed with gzip; - reads standard input.")
    ],
    require_gdr: Annotated[
        bool, typer.Option("--require-gdr", help="Exit 1 unless the log proves that GPUDirect RDMA was used.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the transport that NCCL used, and why.

    Shows version, transport, GPUDirect RDMA, network cards, the reason, and a remedy.

    The log is the output of a job's ranks with NCCL_DEBUG=INFO. Ranks can be mixed, tagged and colored, with
    other output between. Only the lines of the channels prove a transport: for a log without them the result
    is "unknown". The exit code is 0 when the log was read, and 1 when it has no line of NCCL.

    \b
    Examples:
      provision run --env NCCL_DEBUG=INFO -- all_reduce_perf | tee job.log
      provision nccl-log job.log
      provision nccl-log --json --require-gdr - < job.log
    """
    from provision.checks.nccl_log import judge_nccl_log
    from provision.facts.nccl_log import read
    from provision.report.nccl_report import as_document, as_text, remedy_of

    log = read(_chunks(file))
    verdict = judge_nccl_log(log)
    if not log.lines:
        raise ProvisionError(f"{_named(file)}: contains no line of NCCL", remedy=remedy_of(verdict))
    if as_json:
        print_json(as_document(verdict))
    else:
        show(as_text(verdict))
    raise typer.Exit(1 if require_gdr and verdict.gdr is not True else 0)


def _named(file: str) -> str:
    return "standard input" if file == "-" else file


def _chunks(file: str) -> Iterator[bytes]:
    """Yield the file in pieces.

    Raises:
        UsageError: The file does not exist, or is a folder.
        ProvisionError: It cannot be read.
    """
    if file == "-":
        if sys.stdin.isatty():
            say("reading the log from this terminal; Ctrl-D ends it")
        yield from _pieces(cast("BufferedReader", sys.stdin.buffer))
        return
    try:
        with Path(file).open("rb") as stream:
            yield from _pieces(stream)
    except FileNotFoundError:
        raise UsageError(f"{file}: no such file", remedy="Specify the file with the job's output.") from None
    except IsADirectoryError:
        raise UsageError(
            f"{file} is a folder", remedy="Specify one log; for several use: cat FILES | provision nccl-log -"
        ) from None
    except OSError as error:
        raise ProvisionError(
            f"{file} cannot be read: {error.strerror}", remedy="Check the permissions: ls -l"
        ) from None


def _pieces(stream: BufferedReader) -> Iterator[bytes]:
    """Yield the content of `stream`, decompressed if it is gzip.

    Raises:
        ProvisionError: The compressed log is truncated or damaged.
    """
    packed = stream.peek(len(_GZIP)).startswith(_GZIP)
    source: BufferedIOBase = gzip.GzipFile(fileobj=stream) if packed else stream
    try:
        while piece := source.read(_CHUNK):
            yield piece
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ProvisionError(f"the log cannot be decompressed: {error}", remedy="Check it: gzip -t FILE") from None
