"""The last change that could cut off the operator: whether the controller confirmed it, or the node reverted it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from provision.documents import decode
from provision.documents.records import RescueRecord
from provision.errors import InvalidDocument
from provision.facts.base import RawOutput, Unknown

_SIZE_LIMIT = 65536


@dataclass(frozen=True)
class Rescue:
    """How the last change ended; empty texts if there was none."""

    state: str = ""
    """``confirmed`` or ``reverted``."""
    what: str = ""
    """A phrase for the change."""
    cause: str = ""
    """Why the node reverted it: ``limit``, ``boot``, ``late``, ``next`` or ``failed``."""
    seconds: int = 0
    files: tuple[str, ...] = ()
    """The files that the change concerned."""
    is_complete: bool = True
    """Whether the node has restored all files of a reverted change."""


class RescueFact:
    """Reads a bounded part of the node's record."""

    name: ClassVar[str] = "rescue"
    label: ClassVar[str] = "cat /var/lib/provision/rescue/last.json"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = f"""
[ ! -f /var/lib/provision/rescue/last.json ] || head -c {_SIZE_LIMIT} /var/lib/provision/rescue/last.json
exit 0
"""

    def parse(self, raw: RawOutput) -> Rescue | Unknown:
        """Return an empty record if there is no file."""
        if not raw.stdout.strip():
            return Rescue()
        try:
            record = decode(raw.stdout, RescueRecord, node="", what="the record of the last change")
        except InvalidDocument as error:
            return Unknown(error.message)
        files = tuple(record.files)
        return Rescue(record.state, record.what, record.cause, record.seconds, files, is_complete=record.is_complete)
