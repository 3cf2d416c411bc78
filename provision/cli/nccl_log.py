"""``provision nccl-log``: what NCCL's own log proves of the network and of GPUDirect RDMA."""

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

__all__ = ["nccl_log"]

_CHUNK = 1 << 16
_GZIP = b"\x1f\x8b"


def nccl_log(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The log, also packed by gzip; - reads standard input.")],
    require_gdr: Annotated[
        bool, typer.Option("--require-gdr", help="Exit 1 unless the log proves that GPUDirect RDMA was used.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the transport that NCCL used, and why.

    Shows version, transport, GPUDirect RDMA or not, cards, the reason, and what to do.

    The log is what a job's ranks print with NCCL_DEBUG=INFO; ranks may be mixed, tagged and coloured, and
    other output may stand between. Only the lines of the channels count as proof of use: a log without them
    says "unknown". The exit code is 0 when the log was read, whatever it says, and 1 when no line of NCCL is in it.

    \b
    Examples:
      provision run --env NCCL_DEBUG=INFO -- all_reduce_perf | tee job.log
      provision nccl-log job.log
      provision nccl-log --json --require-gdr - < job.log
    """
    from provision.checks.nccl_log import judge_nccl_log
    from provision.facts.nccl_log import read
    from provision.report.nccl_report import as_document, as_text

    log = read(_chunks(file))
    verdict = judge_nccl_log(log)
    if not log.lines:
        raise ProvisionError(f"{_named(file)}: no line of NCCL is in it", remedy=verdict.remedy or "")
    if as_json:
        print_json(as_document(verdict))
    else:
        show(as_text(verdict))
    raise typer.Exit(1 if require_gdr and verdict.gdr is not True else 0)


def _named(file: str) -> str:
    return "standard input" if file == "-" else file


def _chunks(file: str) -> Iterator[bytes]:
    """Give out the file in pieces.

    Raises:
        UsageError: there is no such file, or it is a folder.
        ProvisionError: it cannot be read.
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
        raise UsageError(f"{file}: no such file", remedy="Give the file that holds the job's output.") from None
    except IsADirectoryError:
        raise UsageError(
            f"{file} is a folder", remedy="Give one log; several: cat FILES | provision nccl-log -"
        ) from None
    except OSError as error:
        raise ProvisionError(
            f"{file} cannot be read: {error.strerror}", remedy="Is it yours to read? See: ls -l"
        ) from None


def _pieces(stream: BufferedReader) -> Iterator[bytes]:
    """Give out what `stream` holds, unpacked where gzip packed it.

    Raises:
        ProvisionError: the packed log is cut short or damaged.
    """
    packed = stream.peek(len(_GZIP)).startswith(_GZIP)
    source: BufferedIOBase = gzip.GzipFile(fileobj=stream) if packed else stream
    try:
        while piece := source.read(_CHUNK):
            yield piece
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ProvisionError(f"the log cannot be unpacked: {error}", remedy="Check it: gzip -t FILE") from None
