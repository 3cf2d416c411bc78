"""The support bundle: all that one needs to look into a cluster's trouble from afar, without its secrets."""

from __future__ import annotations

import os
from pathlib import Path

from provision.errors import ProvisionError, UsageError
from provision.model import Cluster
from provision.workflow.converge import log_folder
from provision.workflow.survey import verify

__all__ = ["known_secrets", "support_bundle"]

_LOGS = 5
"""How many logs of applies a support bundle takes along."""


def support_bundle(cluster: Cluster, target: Path, limit: str | None = None) -> list[str]:
    """Write facts, checks, raw probe outputs, logs and versions, secrets removed, to a file that only we can read.

    Returns the names of the files inside. The file must not exist: nothing is overwritten.
    """
    from provision.report.bundle import archive, bundle_files
    from provision.report.redaction import Redactor

    if target.exists():
        raise UsageError(f"{target} exists already", remedy="Give another name with --output.")
    if not target.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {target.absolute().parent}", remedy="Give another place with --output.")
    survey = verify(cluster, limit)
    logs = sorted(log_folder(cluster).glob("*.log"))[-_LOGS:]
    files = bundle_files(
        survey.facts,
        survey.verification,
        {log.name: log.read_text(encoding="utf-8", errors="replace") for log in logs},
        Redactor(known_secrets(cluster)),
        simulated=survey.simulated(),
    )
    _write_private(target, archive(files, target.name.partition(".tar")[0].removesuffix(".tgz")))
    return list(files)


def known_secrets(cluster: Cluster) -> set[str]:
    """Return every value that the inventory or the operator gave as a secret."""
    from provision.report.redaction import secrets_of

    known: set[str] = set()
    for node in cluster.nodes:
        connection = node.connection
        known |= secrets_of(node.variables)
        known |= secrets_of((connection.become_password, connection.password, connection.ssh_args))
    return known


def _write_private(target: Path, data: bytes) -> None:
    """Write beside the target first, so that an interruption leaves no half file under its name."""
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(data)
        draft.replace(target)
    except OSError as error:
        raise ProvisionError(
            f"{target} cannot be written: {error.strerror}", remedy="Give another place with --output."
        ) from error
    finally:
        draft.unlink(missing_ok=True)
