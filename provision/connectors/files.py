"""Copy files to and from nodes over any connector: streamed, and replaced atomically."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

from provision.connectors.base import Connector, RemoteProcess
from provision.connectors.limits import RUN_SECONDS, collected
from provision.errors import NodeError

FILE_LIMIT = 16 * 1024**3
"""Size of a file that is copied from a node, in bytes."""
_CHUNK = 262_144
_ERRORS = 8192


def put_through(connector: Connector, local: Path, remote: str) -> None:
    """Copy `local` to `remote` with its permissions; NodeError if the node cannot write it."""
    status = local.stat()
    target = shlex.quote(remote)
    script = (
        f"set -e; umask 077; t=$(mktemp {target}.XXXXXXXX); trap 'rm -f \"$t\"' EXIT;"
        ' trap "exit 1" HUP INT TERM; cat >"$t";'
        f' [ "$(wc -c <"$t")" -eq {status.st_size} ]; chmod {status.st_mode & 0o777:o} "$t";'
        f' mv -f "$t" {target}; trap - EXIT'
    )
    process = connector.start(script)
    process.deadline = time.monotonic() + RUN_SECONDS
    try:
        with local.open("rb") as source:
            while chunk := source.read(_CHUNK):
                process.write(chunk)
        process.close_stdin()
        _, stderr = collected(process.output())
        code = process.wait()
    finally:
        process.close()
    if code != 0:
        raise NodeError(
            f"{remote}: the file could not be written",
            node=connector.name,
            remedy="Check that its folder exists, the free space and the permissions.",
            output=stderr,
        )


def get_through(connector: Connector, remote: str, local: Path) -> None:
    """Copy `remote` to `local`; if the node cannot read it, raise NodeError and leave `local` unchanged."""
    process = connector.start(f"exec cat {shlex.quote(remote)}", limit=FILE_LIMIT)
    process.deadline = time.monotonic() + RUN_SECONDS
    with NamedTemporaryFile(dir=local.parent, prefix=f".{local.name}.", delete=False) as target:
        try:
            process.close_stdin()
            code, errors = _receive(process, target)
        except BaseException:
            Path(target.name).unlink(missing_ok=True)
            raise
        finally:
            process.close()
    if code != 0:
        Path(target.name).unlink()
        raise NodeError(
            f"the file {remote} could not be read",
            node=connector.name,
            remedy="Check that the file exists.",
            output=errors,
        )
    Path(target.name).replace(local)


def _receive(process: RemoteProcess, target: IO[bytes]) -> tuple[int, str]:
    errors = b""
    for stream, chunk in process.output():
        if stream == "stdout":
            target.write(chunk)
        else:
            errors = (errors + chunk)[-_ERRORS:]
    return process.wait(), errors.decode(errors="replace")
