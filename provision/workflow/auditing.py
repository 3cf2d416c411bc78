"""Reading the audit records of nodes from their journals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from provision.errors import NodeError, ProvisionError
from provision.model import Node

if TYPE_CHECKING:
    from provision.connectors import Connector
    from provision.documents.audit import AuditTrail

__all__ = ["read_audit"]

_SECONDS = 60.0
_SCRIPT = """
command -v journalctl >/dev/null 2>&1 || {{ echo "journalctl is not installed" >&2; exit 127; }}
journalctl --quiet --no-pager --output=json --output-fields=MESSAGE --lines={lines} \
  SYSLOG_IDENTIFIER=provision-audit _UID=0
"""
"""journald itself says who has sent an entry: other accounts than root cannot write one that is read here."""


def read_audit(nodes: Sequence[Node], *, newest: int) -> Mapping[str, AuditTrail | ProvisionError]:
    """Return the newest records of each node, oldest first; one SSH session per node."""
    from provision.connectors import each
    from provision.documents.audit import audit_trail

    def read(way: Connector) -> AuditTrail:
        result = way.run(_SCRIPT.format(lines=newest), timeout=_SECONDS)
        if not result.ok:
            raise NodeError(
                f"the audit record cannot be read: {result.last_lines(1) or 'journalctl failed'}",
                node=way.name,
                remedy="The record is in the journal: look there with journalctl -t provision-audit.",
            )
        return audit_trail(result.stdout, way.name)

    return each(nodes, read)
