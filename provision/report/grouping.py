"""Groups of nodes with the same result: a report of many nodes has one block per result."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from provision.report.node_names import in_short

T = TypeVar("T")

MAX_SIMILAR = 3
"""The number of results that differ only in details; with more, the first one represents all."""


@dataclass
class Group(Generic[T]):
    """Nodes with the same result."""

    value: T
    """The result of the first node."""
    names: list[str] = field(default_factory=list)
    varied: bool = False
    """Whether the results of the others differ in details."""

    @property
    def note(self) -> str:
        """Return which node the details belong to; empty if all are equal."""
        return f"(details of {self.names[0]}; those of the other nodes differ)" if self.varied else ""


def grouped(
    items: Iterable[tuple[str, T]],
    whole: Callable[[str, T], Hashable],
    rough: Callable[[str, T], Hashable] | None = None,
) -> list[Group[T]]:
    """Return the groups in the order of their first nodes.

    Args:
        items: node names and results.
        whole: everything that a report shows of a result; nodes with equal values form a group.
        rough: a result without its details (`outline`). More than three groups with equal values are merged.
    """
    same: dict[Hashable, Group[T]] = {}
    for name, value in items:
        same.setdefault(whole(name, value), Group(value)).names.append(name)
    if rough is None:
        return list(same.values())
    outlines = {key: rough(group.names[0], group.value) for key, group in same.items()}
    counts = Counter(outlines.values())
    merged: dict[Hashable, Group[T]] = {}
    for key, group in same.items():
        many = counts[outlines[key]] > MAX_SIMILAR
        place = (many, outlines[key] if many else key)
        if place in merged:
            merged[place].names += group.names
            merged[place].varied = True
        else:
            merged[place] = group
    return list(merged.values())


def outline(text: str, name: str = "") -> str:
    """Return a message without node-specific parts: the node's own name, numbers, and text after a colon."""
    own = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "*", text) if name else text
    return re.sub("[0-9]+", "#", own.partition(": ")[0])


def heads(texts: Sequence[str], name: str = "") -> tuple[str, ...]:
    """Return the distinct outlines of several messages."""
    return tuple(dict.fromkeys(outline(text, name) for text in texts))


def reason_lines(reasons: Mapping[str, str] | Iterable[tuple[str, str]], *, between: str = ": ") -> list[str]:
    """Return a line for each reason, with its nodes."""
    items = reasons.items() if isinstance(reasons, Mapping) else reasons
    groups = grouped(items, lambda _, why: why, lambda name, why: outline(why, name))
    lines = (f"{in_short(group.names)}{between}{group.value} {group.note}" for group in groups)
    return [line.rstrip() for line in lines]
