"""What an operator names on the command line: roles, and single steps of roles."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from provision.errors import UsageError
from provision.model import Cluster


@dataclass(frozen=True)
class Asked:
    """What ``--only`` names."""

    roles: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    """Single steps such as ``docker_engine_service``: run as they are, without a plan."""


def chosen_roles(words: Sequence[str], option: str = "--only") -> tuple[str, ...]:
    """Return what ``--only`` names: roles, or single steps of them such as ``docker_engine_service``.

    Raises:
        UsageError: no role and no step is called so; Ansible would do nothing and be content.
    """
    if not words:
        return ()
    named = tuple(part.strip() for word in words for part in word.split(",") if part.strip())
    known = _roles_and_steps()
    for name in named:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            roles = ", ".join(role for role, steps in known.items() if steps)
            raise UsageError(
                f"{option} {name}: unknown role" + (f"; did you mean {close[0]}?" if close else ""),
                remedy=f"The roles are {roles}.",
            )
    if not named:
        raise UsageError(f"{option} names no role", remedy=f"Name one, or leave {option} out.")
    return named


def asked_for(words: Sequence[str]) -> Asked:
    """Separate the names of ``--only``: roles, which are planned, and single steps of roles, which always run.

    Raises:
        UsageError: nothing is called so, or both kinds are named at once.
    """
    if not words:
        return Asked()
    named, known = chosen_roles(words), _roles_and_steps()
    roles = tuple(name for name in named if known[name])
    steps = tuple(name for name in named if not known[name])
    if roles and steps:
        raise UsageError(
            f"--only names roles ({', '.join(roles)}) and single steps of roles ({', '.join(steps)}) at once",
            remedy="Name either: a role is run where the plan says so, a single step wherever it is asked for.",
        )
    return Asked(roles, steps)


def _roles_and_steps() -> dict[str, bool]:
    """Return every name that ``--only`` takes, and whether it is that of a role."""
    from provision import yamltext
    from provision.resources import roles_folder

    known: dict[str, bool] = {}
    for file in sorted(roles_folder().glob("*/tasks/main.yml")):
        role = file.parent.parent.name
        known[role] = True
        for task in yamltext.safe_load(file.read_text(encoding="utf-8")) or ():
            known |= {tag: False for tag in task.get("tags", ()) if tag.startswith(f"{role}_")}
    return known


def refuse_steps(asked: Asked) -> None:
    """Raise UsageError where single steps of roles are named: only whole roles are planned."""
    if asked.steps:
        raise UsageError(
            f"--only {asked.steps[0]}: that is a single step of a role, and only whole roles are planned",
            remedy="Name the role; apply --only runs single steps, without a plan.",
        )


def named_nodes(cluster: Cluster, words: Sequence[str]) -> frozenset[str]:
    """Return the names of the nodes that ``--disruptive`` chooses: patterns as of ``--limit``."""
    from provision.inventory import select

    return frozenset(node.name for word in words for node in select(cluster, word))
