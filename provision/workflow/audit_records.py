"""Reading the audit records of nodes from their journals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from provision.errors import NodeError, ProvisionError
from provision.model import Node

if TYPE_CHECKING:
    from provision.connectors import Connector
    from provision.documents.audit import AuditTrail

_SECONDS = 60.0
_MOST_LINES = 100_000
"""Of a journal, where the records of one person are looked for."""
_SCRIPT = """
command -v journalctl >/dev/null 2>&1 || {{ echo "journalctl is not installed" >&2; exit 127; }}
journalctl --quiet --no-pager --output=json --output-fields=MESSAGE --lines={lines} \
  SYSLOG_IDENTIFIER=provision-audit _UID=0
"""
"""journald itself says who has sent an entry: other accounts than root cannot write one that is read here."""


def read_audit(nodes: Sequence[Node], *, newest: int, user: str = "") -> Mapping[str, AuditTrail | ProvisionError]:
    """Return the newest records of each node, oldest first; one SSH session per node."""
    from provision.connectors import each
    from provision.documents.audit import AuditTrail, audit_trail
    from provision.model.people import is_one_of

    def read(way: Connector) -> AuditTrail:
        lines = _MOST_LINES if user else newest
        result = way.run(_SCRIPT.format(lines=lines), timeout=_SECONDS)
        if not result.ok:
            raise NodeError(
                f"the audit record cannot be read: {result.last_lines(1) or 'journalctl failed'}",
                node=way.name,
                remedy="The record is in the journal: look there with journalctl -t provision-audit.",
            )
        trail = audit_trail(result.stdout, way.name)
        mine = [record for record in trail.records if is_one_of(record.caller, user)]
        return AuditTrail(tuple(mine[-newest:]), trail.invalid)

    return each(nodes, read)
