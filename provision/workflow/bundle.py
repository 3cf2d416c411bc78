"""The support bundle: all that one needs to look into a cluster's trouble from afar, without its secrets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provision.errors import ProvisionError, UsageError
from provision.local_files import write_private
from provision.model import Cluster
from provision.workflow.inventory_state import log_folder
from provision.workflow.verification import verify

_LOGS = 5
"""How many logs of applies a support bundle takes along; what was overridden comes whole."""


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
    survey = verify(cluster, limit, keep=True)
    folder = log_folder(cluster)
    logs = [*sorted(folder.glob("apply-*.log"))[-_LOGS:], *sorted(folder.glob("degraded*.log"))]
    files = bundle_files(
        survey.facts,
        survey.verification,
        {log.name: log.read_text(encoding="utf-8", errors="replace") for log in logs},
        Redactor(known_secrets(cluster)),
        simulated=survey.simulated(),
    )
    _write(target, archive(files, target.name.partition(".tar")[0].removesuffix(".tgz")))
    return list(files)


def known_secrets(cluster: Cluster) -> set[str]:
    """Return every value that the inventory or the operator gave as a secret."""
    from provision.inventory.templates import rendered_where_possible
    from provision.report.redaction import secrets_of

    known: set[str] = set()
    for node in cluster.nodes:
        connection = node.connection
        known |= secrets_of(node.variables)
        known |= secrets_of((connection.become_password, connection.password, connection.ssh_args))
    wanted = {node.name: _unknown_secrets(node.variables) for node in cluster.nodes}
    shown = rendered_where_possible(cluster.inventory, wanted)
    for node in cluster.nodes:
        values = shown.get(node.name, {})
        known |= secrets_of(values)
        for key in values.keys() & node.variables.keys():
            known |= _vaulted(node.variables[key], values[key])
    return known


def _unknown_secrets(variables: Mapping[str, Any]) -> list[str]:
    """The variables with a secret that is encrypted or made by a template, so that its value is not known yet."""
    from provision.inventory.templates import has_template
    from provision.report.redaction import secrets_of

    return [
        key
        for key, value in variables.items()
        if has_template(value) and (_has_vault(value) or secrets_of({key: value}))
    ]


def _has_vault(value: Any) -> bool:
    from provision.inventory.templates import is_vault

    if isinstance(value, Mapping):
        return is_vault(value) or any(_has_vault(part) for part in value.values())
    return isinstance(value, list) and any(_has_vault(part) for part in value)


def _vaulted(before: Any, after: Any) -> set[str]:
    """The values in `after` that were encrypted in `before`, whatever they are called."""
    from provision.inventory.templates import is_vault

    if is_vault(before):
        return {str(after)}
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return {secret for key in before.keys() & after.keys() for secret in _vaulted(before[key], after[key])}
    if isinstance(before, list) and isinstance(after, list):
        return {secret for old, new in zip(before, after, strict=False) for secret in _vaulted(old, new)}
    return set()


def _write(target: Path, data: bytes) -> None:
    try:
        write_private(target, data)
    except OSError as error:
        raise ProvisionError(
            f"{target} cannot be written: {error.strerror}", remedy="Give another place with --output."
        ) from error
