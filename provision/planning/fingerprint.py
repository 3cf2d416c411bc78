"""Whether a role, or an inventory variable that it uses, has changed since its last successful run.

A role sees an inventory variable that its text names, and what the value of such a variable names in Jinja, and so on.
Values are compared with their Jinja templates, not rendered. Receipts contain salted hashes, which do not reveal them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from provision.components import SHARED
from provision.model import Cluster, Node, Same, Secret
from provision.model.cause import NODES, Cause, CauseKind
from provision.model.reason import Reason, reason

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OTHER_NODES = frozenset({"hostvars", "groups", "ansible_play_hosts", "ansible_play_hosts_all", "ansible_play_batch"})
_ADDRESS = ("cluster_data_address", "cluster_data_networks")
_DIGITS = 16
_SCALARS = frozenset({str, int, bool, type(None)})
"""Types whose equal values have the same text; not so of floats (0.0 and -0.0)."""
_NO_WORDS: frozenset[str] = frozenset()

_last: dict[str, tuple[Any, tuple[str, frozenset[str]]]] = {}
"""Variable -> its last value, and the `_text_and_words` of it."""

_References = Same[dict[str, frozenset[str]]]
"""Variable -> the words in its value if it has Jinja templates: the variables that it may name."""


@dataclass(frozen=True)
class RoleSource:
    """The content of a role's folder."""

    code: str
    """The hash of all its files."""
    words: frozenset[str]
    """Every word (``[A-Za-z_][A-Za-z0-9_]*``) in its text files."""


def fingerprint(
    role: str, node: Node, cluster: Cluster, sources: Mapping[str, RoleSource], salt: str
) -> dict[str, Any]:
    """Return the fingerprint of the role's code and of the variables that it uses on the node."""
    texts, references = _values(Same(node))
    names, others = _seen(sources[role].words, references)
    variables = {name: _hash(salt, name, texts[name]) for name in names}
    if others:
        variables[NODES] = _hash(salt, NODES, _nodes(Same(cluster)))
    return {"salt": salt, "code": _code(sources[role].code, sources[SHARED.role].code), "variables": variables}


@lru_cache(maxsize=64)
def _code(*codes: str) -> str:
    return hashlib.sha256(" ".join(codes).encode()).hexdigest()


def salt_of(recorded: Any) -> str | None:
    """Return the salt of a recorded fingerprint; None if it is not a valid fingerprint."""
    if not isinstance(recorded, dict) or not isinstance(recorded.get("variables"), dict):
        return None
    salt, code = recorded.get("salt"), recorded.get("code")
    return salt if isinstance(salt, str) and salt.isascii() and isinstance(code, str) else None


def changed(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Cause, ...]:
    """Return the differences between `now` and the recorded fingerprint with the same salt.

    A changed role may use other variables, so new and missing variables count only for an unchanged role.
    """
    before, after = recorded["variables"], now["variables"]
    same_code = recorded["code"] == now["code"]
    causes = [] if same_code else [Cause(CauseKind.CODE, "", reason("plan.role_changed"))]
    for name in sorted({*before, *after}) if before != after else ():
        why = _variable(name, before, after, same_code=same_code)
        if why:
            causes.append(Cause(CauseKind.VARIABLE, name, why))
    return tuple(causes)


def _variable(name: str, before: Mapping[str, Any], after: Mapping[str, Any], *, same_code: bool) -> Reason | None:
    if name in before and name in after:
        if before[name] == after[name]:
            return None
        return reason("plan.nodes_changed") if name == NODES else reason("plan.variable_changed", name=name)
    if not same_code or name == NODES:
        return None
    if name in after:
        return reason("plan.variable_new", name=name)
    return reason("plan.variable_removed", name=_name(name))


def _name(name: str) -> str:
    return name if _WORD.fullmatch(name) else "a variable"


@lru_cache(maxsize=1024)
def _seen(words: frozenset[str], references: _References) -> tuple[tuple[str, ...], bool]:
    """Return the variables that a text of these words sees, sorted, and whether it reads other nodes."""
    values = references.it
    direct = {name for word, names in SHARED.derived_variables.items() if word in words for name in names}
    left = [name for name in values if name in words or name in direct or name in SHARED.common_variables]
    seen, others = set(left), not words.isdisjoint(_OTHER_NODES)
    while left:
        named = values[left.pop()]
        others = others or not named.isdisjoint(_OTHER_NODES)
        more = {name for name in named if name in values and name not in seen}
        seen |= more
        left.extend(more)
    return tuple(sorted(seen)), others


@lru_cache(maxsize=2)
def _values(node: Same[Node]) -> tuple[dict[str, str], _References]:
    """Return for each variable its value as text, and the words of it when it holds Jinja."""
    values = {name: _of_variable(name, value) for name, value in node.it.variables.items()}
    texts = {name: text for name, (text, _) in values.items()}
    return texts, _references(tuple((name, words) for name, (_, words) in values.items()))


@lru_cache(maxsize=64)
def _references(words: tuple[tuple[str, frozenset[str]], ...]) -> _References:
    """Return the same object for all nodes whose variables name the same others: most nodes of a cluster."""
    return Same(dict(words))


def _of_variable(name: str, value: Any) -> tuple[str, frozenset[str]]:
    """Return `_text_and_words`; most variables have the same value on all nodes."""
    last = _last.get(name)
    if last is None or last[0] is not value:
        last = _last[name] = (value, _text_and_words(value))
    return last[1]


def _text_and_words(value: Any) -> tuple[str, frozenset[str]]:
    """Return a value's text, and its words when it holds Jinja; most values are the same on all nodes."""
    return _of_scalar(value) if type(value) in _SCALARS else _of_object(Same(value))


@lru_cache(maxsize=2048, typed=True)
def _of_scalar(value: str | int | None) -> tuple[str, frozenset[str]]:
    return _with_words(json.dumps(value))


@lru_cache(maxsize=256)
def _of_object(value: Same[Any]) -> tuple[str, frozenset[str]]:
    return _with_words(_text(value.it))


def _with_words(text: str) -> tuple[str, frozenset[str]]:
    return text, frozenset(_WORD.findall(text)) if "{{" in text or "{%" in text else _NO_WORDS


@lru_cache(maxsize=2)
def _nodes(cluster: Same[Cluster]) -> str:
    addresses = {
        node.name: [*map(node.variables.get, _ADDRESS), *filter(None, [node.variables.get("cluster_nvlink_domain")])]
        for node in cluster.it.nodes
    }
    return hashlib.sha256(_text(addresses).encode()).hexdigest()


def _text(value: Any) -> str:
    """Return a value as the same text whenever it is the same; keys of several types cannot be sorted."""
    try:
        return json.dumps(value, sort_keys=True, default=_plain)
    except TypeError:
        return json.dumps(value, default=_plain, skipkeys=True)


def _plain(value: Any) -> str:
    return value.reveal() if isinstance(value, Secret) else str(value)


def _hash(salt: str, name: str, text: str) -> str:
    return hashlib.sha256(f"{salt}{name}{text}".encode()).hexdigest()[:_DIGITS]
