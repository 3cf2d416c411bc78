"""Packed code of jobs: stored with the job on the head, and brought back from there when it starts."""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provision.connectors import Connector
from provision.documents.jobs import PackedCode, SignedJob, Stored
from provision.errors import NodeError
from provision.jobs.code import Archive
from provision.jobs.node_ask import JOBS, ask, begin, refusal

_BYTES_PER_SECOND = 1 << 20
_LEAST_SECONDS = 60.0
_REFUSAL_BYTES = 4096


def store_archive(connector: Connector, token: str, archive: Archive) -> None:
    """Send an archive to the head, where ``reserve`` adds it to the job with this id."""
    request = {"do": "upload", "id": token, "size": archive.about.size}
    ask(connector, JOBS, request, Stored, archive=archive.path, seconds=_seconds(archive.about))


@contextmanager
def fetch_archive(connector: Connector, job: SignedJob) -> Iterator[Archive | None]:
    """Yield the signed packed code of a job, None for a job without code; it is not unpacked here.

    Raises:
        NodeError: the head has none, or another than was signed.
    """
    if job.code is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="provision-code-") as folder:
        path = Path(folder, "code.tar.gz")
        if not _download(connector, job.name, job.code, path):
            raise NodeError(
                f"the packed code of {job.name} is not the code that was signed",
                node=connector.name,
                remedy=f"delete the job and submit it again: provision delete {job.name}",
            )
        yield Archive(path, job.code)


def _download(connector: Connector, name: str, about: PackedCode, path: Path) -> bool:
    """Write what the head sends to a file, at most so much as was signed; return whether it is what was signed.

    Raises:
        NodeError: the head refused.
    """
    process = begin(connector, "code", name=name)
    late = threading.Timer(_seconds(about), process.close)
    late.daemon = True
    late.start()
    digest, size, first = hashlib.sha256(), 0, b""
    try:
        with path.open("wb") as stream:
            for source, chunk in process.output():
                if source != "stdout":
                    continue
                size += len(chunk)
                first = (first + chunk)[:_REFUSAL_BYTES] if len(first) < _REFUSAL_BYTES else first
                if size > about.size:
                    break
                digest.update(chunk)
                stream.write(chunk)
    finally:
        late.cancel()
        process.close()
    if size == about.size and digest.hexdigest() == about.archive:
        return True
    problem = refusal(first, connector.name)
    if problem is not None:
        raise NodeError(problem.message, node=connector.name, remedy=problem.remedy)
    return False


def _seconds(about: PackedCode) -> float:
    return _LEAST_SECONDS + about.size / _BYTES_PER_SECOND
