"""Compute nodes before a submission: the starter and the key for sealed secrets."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from provision.connectors import Connector
from provision.documents.jobs import Stored
from provision.documents.slurm_jobs import SlurmNode
from provision.errors import ProvisionError
from provision.jobs.engines.slurm.bundle import Bundle, Target, bundle_for
from provision.jobs.engines.slurm.certificates import check_certificate
from provision.jobs.node_ask import JOBS, ask, ask_jobs
from provision.jobs.node_contact import Contact
from provision.model import Node

FOLDER = "/usr/local/lib/provision/starter"
_STORE_SECONDS = 300.0
_UNKNOWN = hashlib.sha256(b"").hexdigest()


def prepare(
    contact: Contact, nodes: Sequence[Node], *, seal: bool
) -> dict[str, tuple[SlurmNode, str] | ProvisionError]:
    """Prepare nodes for jobs in parallel: store the starter where it is missing, and make the key of each node.

    Returns:
        Node -> its answer and the path of its starter, or why it cannot run jobs.
    """
    first = bundle_guess()

    def one(connector: Connector) -> tuple[SlurmNode, str]:
        answer = ask_jobs(connector, "slurm_node", SlurmNode, starter=first.sha if first else _UNKNOWN, seal=seal)
        if seal:
            check_certificate(answer.certificate, connector.name)
        bundle = bundle_for(Target(answer.python, answer.machine))
        if first is not None and bundle.sha == first.sha and answer.starter:
            return answer, start_path(bundle)
        has = answer.starter and first is not None and first.sha == bundle.sha
        if first is None or first.sha != bundle.sha:
            has = ask_jobs(connector, "slurm_node", SlurmNode, starter=bundle.sha, seal=False).starter
        if not has:
            _store(connector, bundle)
        return answer, start_path(bundle)

    return dict(contact.each(nodes, one))


def bundle_guess() -> Bundle | None:
    """Return the starter for nodes with the Python of this controller; None if this Python is too old."""
    import platform
    import sys

    try:
        return bundle_for(Target((sys.version_info[0], sys.version_info[1]), platform.machine()))
    except ProvisionError:
        return None


def start_path(bundle: Bundle) -> str:
    """Return the path of the starter on nodes."""
    return f"{FOLDER}/{bundle.sha}/start.py"


def _store(connector: Connector, bundle: Bundle) -> None:
    with tempfile.TemporaryDirectory(prefix="provision-") as folder:
        path = Path(folder, "starter.tar.gz")
        path.write_bytes(bundle.content)
        request: Mapping[str, object] = {"do": "slurm_store", "starter": bundle.sha, "size": len(bundle.content)}
        ask(connector, JOBS, request, Stored, archive=path, seconds=_STORE_SECONDS)
