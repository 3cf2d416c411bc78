"""Nodes with the same outcome, in one group: a report of many nodes has as many blocks as there are outcomes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from provision.report.node_names import in_short

__all__ = ["Group", "grouped", "heads", "outline", "reason_lines"]

T = TypeVar("T")

MOST_ALIKE = 3
"""Outcomes that differ in details alone; where there are more, the first one stands for all."""


@dataclass
class Group(Generic[T]):
    """Nodes with the same outcome."""

    value: T
    """Of the first node."""
    names: list[str] = field(default_factory=list)
    varied: bool = False
    """Whether the outcomes of the others differ in details."""

    @property
    def note(self) -> str:
        """Return which node the details are of; empty where all have the same."""
        return f"(details of {self.names[0]}; those of the other nodes differ)" if self.varied else ""


def grouped(
    items: Iterable[tuple[str, T]],
    whole: Callable[[str, T], Hashable],
    rough: Callable[[str, T], Hashable] | None = None,
) -> list[Group[T]]:
    """Return the groups in the order of their first nodes.

    Args:
        items: node name and outcome.
        whole: all of an outcome that a report shows; nodes with the same are one group.
        rough: an outcome without its details (`outline`). Where more than three groups have the same, they become one.
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
        many = counts[outlines[key]] > MOST_ALIKE
        place = (many, outlines[key] if many else key)
        if place in merged:
            merged[place].names += group.names
            merged[place].varied = True
        else:
            merged[place] = group
    return list(merged.values())


def outline(text: str, name: str = "") -> str:
    """Return a message without what differs between nodes: the node's own name, numbers, and what follows a colon."""
    own = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "*", text) if name else text
    return re.sub("[0-9]+", "#", own.partition(": ")[0])


def heads(texts: Sequence[str], name: str = "") -> tuple[str, ...]:
    """Return the outlines of several messages, each once."""
    return tuple(dict.fromkeys(outline(text, name) for text in texts))


def reason_lines(reasons: Mapping[str, str] | Iterable[tuple[str, str]], *, between: str = ": ") -> list[str]:
    """Return a line for each reason, with the nodes that it holds for."""
    items = reasons.items() if isinstance(reasons, Mapping) else reasons
    groups = grouped(items, lambda _, why: why, lambda name, why: outline(why, name))
    lines = (f"{in_short(group.names)}{between}{group.value} {group.note}" for group in groups)
    return [line.rstrip() for line in lines]
