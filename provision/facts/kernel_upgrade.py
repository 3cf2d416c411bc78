"""The upgrade of a node's kernel: the record of the role kernel, and whether an upgrade drained the node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from provision.documents import decode
from provision.documents.records import KernelUpgradeFile
from provision.errors import InvalidDocument
from provision.facts.base import RawOutput, Unknown

PROGRAM = "/usr/local/lib/provision/kernel-upgrade"
RECORD = "/var/lib/provision/kernel/upgrade.json"
OWNER = "kernel"
"""The owner of a drain for an upgrade."""
_SIZE_LIMIT = 65536


@dataclass(frozen=True)
class KernelUpgrade:
    """The newest upgrade of a node; everything is empty without one."""

    phase: str = ""
    """``rebooting``, ``trial``, ``expired``, ``fell_back``, ``rejected`` or ``confirmed``."""
    source: str = ""
    """The kernel before the upgrade."""
    target: str = ""
    boot_id: str = ""
    cause: str = ""
    """The code of the reason why the new kernel was left."""
    checks: tuple[str, ...] = ()
    """The checks that failed before the upgrade."""
    drained: bool = False
    """Whether an upgrade drained the node, and has not resumed it."""

    def is_on_trial(self, running: str) -> bool:
        """Return whether the running kernel waits for its confirmation."""
        return self.target == running and self.phase in {"rebooting", "trial", "expired"}


class KernelUpgradeFact:
    """Reads a bounded part of the record, and the owner of the drain."""

    name: ClassVar[str] = "kernel_upgrade"
    label: ClassVar[str] = f"cat {RECORD}"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = rf"""
[ ! -f /var/lib/provision/jobs/.drained ] || while IFS= read -r line; do
  [ "$line" != 'owner: {OWNER}' ] || echo drained
done </var/lib/provision/jobs/.drained
[ ! -f {RECORD} ] || {{ echo record; head -c {_SIZE_LIMIT + 1} {RECORD}; }}
exit 0
"""

    def parse(self, raw: RawOutput) -> KernelUpgrade | Unknown:
        """Return an Unknown for an invalid record: an upgrade could be under way."""
        head, mark, text = f"\n{raw.stdout}".partition("\nrecord\n")
        drained = "drained" in head.split()
        if not mark:
            return KernelUpgrade(drained=drained)
        try:
            record = decode(text, KernelUpgradeFile, node="", what=RECORD, limit=_SIZE_LIMIT)
        except InvalidDocument as error:
            return Unknown(f"{RECORD} is not valid: {error.message}")
        return KernelUpgrade(
            record.phase, record.source, record.target, record.boot_id, record.cause, tuple(record.checks), drained
        )
