"""Problems of an inventory and their messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from provision.inventory.listing import Listing
from provision.inventory.sources import SourceIndex


@dataclass(frozen=True)
class Problem:
    """One problem, of one host or (host None) of the whole inventory."""

    host: str | None
    key: str | None
    text: str


def worded(problems: Iterable[Problem], listing: Listing, sources: SourceIndex) -> list[str]:
    """Return a sentence for each problem: ``file:line: key: text``, otherwise ``host: key: text``.

    A problem of a group variable is reported once for all hosts.
    """
    lines: dict[str, None] = {}
    hosts: dict[tuple[str | None, str], list[str]] = {}
    for problem in problems:
        place = None
        if problem.key is not None:
            groups = listing.groups_of.get(problem.host or "", ())
            place = sources.find(problem.key, problem.host, groups)
        text = f"{problem.key}: {problem.text}" if problem.key else problem.text
        if place:
            lines[f"{place}: {text}"] = None
        elif problem.host is None:
            lines[text] = None
        else:
            hosts.setdefault((problem.key, text), []).append(problem.host)
    for (_, text), names in hosts.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines[f"{names[0]}{more}: {text}"] = None
    return list(lines)
