"""Answer of the program on a node that loads the peer memory module again."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from provision.documents.text import PrintableLine


class ReloadAnswer(Struct):
    """The steps of a reload; the node's facts show the outcome."""

    step: Literal["absent", "busy", "unknown", "refused", "done"]
    """absent: the role has no files on the node; unknown: whether a job runs; refused: the module was not unloaded."""
    exit_code: int
    output: PrintableLine = field(default_factory=PrintableLine)
