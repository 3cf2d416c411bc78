"""Select nodes with ``--limit`` in the syntax of Ansible's host patterns."""

from __future__ import annotations

import difflib
import fnmatch
import re

from provision.errors import UsageError
from provision.inventory.ranges import expand_word
from provision.model import Cluster, Node

_RANGE = re.compile(r"[A-Za-z0-9._-]*\[(?=[^\]]*(?:[0-9]{2}|,))[0-9]+(?:[-,][0-9]+)*\][A-Za-z0-9._-]*")
_SUBSCRIPT = re.compile(r"(?P<base>.+)\[(?:(?P<at>-?\d+)|(?P<first>\d+)[:-](?P<last>\d*))\]\Z")


def select(cluster: Cluster, pattern: str | None) -> tuple[Node, ...]:
    """Return the nodes that match `pattern`, in the order of the inventory.

    Supported are names, groups, ``all``, globs (``gpu*``, ``gpu[1-4]``), ``~REGEX``, ``group[0:3]``, and lists of these
    separated by ``,`` or ``:``, where ``!X`` excludes and ``&X`` intersects. A range in the format of reports
    (``gpu[1-63]``, ``gpu[01-16,18]``) selects these nodes. With one digit on each side of the dash, a glob of Ansible
    means the same. A glob that matches host names is not applied to groups: ``gpu*`` would otherwise match
    ``gpu_nodes``, which contains every node.

    Raises:
        UsageError: A word matches no node, or no node remains.
    """
    if pattern is None or not pattern.strip():
        return cluster.nodes
    words = [word.strip() for word in re.split(r"[,:](?![^\[]*\])", pattern) if word.strip()]
    plain = [word for word in words if word[0] not in "!&"]
    chosen = {name for word in plain or ["all"] for name in _named(cluster, word)}
    for word in words:
        if word[0] == "&":
            chosen &= _named(cluster, word[1:])
    for word in words:
        if word[0] == "!":
            chosen -= _named(cluster, word[1:])
    if not chosen:
        raise UsageError(f"--limit '{pattern}' matches no node", remedy=_choices(cluster))
    return tuple(node for node in cluster.nodes if node.name in chosen)


def _named(cluster: Cluster, word: str) -> set[str]:
    selected = _matches(cluster, word)
    if not selected:
        subscript = _SUBSCRIPT.match(word)
        if subscript:
            selected = _sliced(cluster, subscript)
    if not selected:
        close = difflib.get_close_matches(word, [node.name for node in cluster.nodes], 1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise UsageError(f"no node or group is named '{word}'{meant}", remedy=_choices(cluster))
    return selected


def _matches(cluster: Cluster, word: str) -> set[str]:
    if word in ("all", "*"):
        return {node.name for node in cluster.nodes}
    if word.startswith("~"):
        try:
            expression = re.compile(word[1:])
        except re.error as error:
            raise UsageError(f"'{word}' is not a regular expression: {error}") from error
        return {n.name for n in cluster.nodes if any(expression.match(text) for text in (n.name, *n.groups))}
    in_range = _in_range(cluster, word)
    if in_range:
        return in_range
    by_name = {n.name for n in cluster.nodes if fnmatch.fnmatchcase(n.name, word)}
    if by_name and word not in {group for n in cluster.nodes for group in n.groups}:
        return by_name
    return {n.name for n in cluster.nodes if any(fnmatch.fnmatchcase(text, word) for text in (n.name, *n.groups))}


def _in_range(cluster: Cluster, word: str) -> set[str]:
    """Return the nodes of a numeric range with several digits or parts, which a glob would misinterpret."""
    if not _RANGE.fullmatch(word):
        return set()
    names = {host.name for host in expand_word(word)}
    return {node.name for node in cluster.nodes if node.name in names}


def _sliced(cluster: Cluster, subscript: re.Match[str]) -> set[str]:
    members = [n.name for n in cluster.nodes if n.name in _matches(cluster, subscript["base"])]
    if subscript["at"] is not None:
        return set(members[int(subscript["at"]) :][:1])
    last = int(subscript["last"]) + 1 if subscript["last"] else None
    return set(members[int(subscript["first"]) : last])


def _choices(cluster: Cluster) -> str:
    names = [node.name for node in cluster.nodes]
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")  # noqa: PLR2004
    groups = sorted({group for node in cluster.nodes for group in node.groups if group != "ungrouped"})
    return f"The nodes are {shown}" + (f"; the groups {', '.join(groups)}." if groups else ".")
