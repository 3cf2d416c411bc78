"""Limits, names, clock and sysctls."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from provision.checks.base import check
from provision.checks.everybody import Everybody, everybody
from provision.components.check import Scene, Verdict, fail, known, passed, skip, warn
from provision.model import Same

__all__ = ["amount", "limit_problems"]

_WANTED_LIMITS: Mapping[str, int | None] = {"Max locked memory": None, "Max open files": 1048576}
_VARIABLES = {"Max locked memory": "base_system_memlock_limit", "Max open files": "base_system_nofile_limit"}
_SHOWN = 5
_LOOPBACK = "127."


@check("base_system.limits")
def _limits(scene: Scene) -> Verdict:
    limits = known(scene.facts.limits)
    wanted = {name: _wanted_limit(scene, name, value) for name, value in _WANTED_LIMITS.items()}
    problems, cut = limit_problems(wanted, limits.session, limits.init if scene.container else None)
    if problems:
        return fail(f"hard limits of a login are too low: {'; '.join(problems)}", scene.apply)
    if cut:
        return warn(
            f"hard limits are cut to those of this container: {'; '.join(cut)}",
            "Give the container that is the node higher limits; RDMA needs unlimited locked memory.",
        )
    return passed("; ".join(f"{name.removeprefix('Max ')} {amount(limits.session.get(name))}" for name in wanted))


def _wanted_limit(scene: Scene, name: str, default: int | None) -> int | None:
    """The role's variables say ``unlimited``, -1 or a number (locked memory in bytes)."""
    value: Any = scene.node.variables.get(_VARIABLES[name])
    if value in ("unlimited", "infinity", -1, "-1"):
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return default


def limit_problems(
    wanted: Mapping[str, int | None], found: Mapping[str, int | None], own: Mapping[str, int | None] | None
) -> tuple[list[str], list[str]]:
    """Compare hard limits; the second list names those that are as high as the node's own (`own`) lets them be."""
    problems: list[str] = []
    cut: list[str] = []
    for name, want in wanted.items():
        have = found.get(name, 0)
        if not _lower(have, want):
            continue
        text = f"{name.removeprefix('Max ')} {amount(have)} instead of {amount(want)}"
        ceiling = own.get(name, 0) if own is not None else None
        if own is not None and not _lower(have, ceiling):
            cut.append(text)
        else:
            problems.append(text)
    return problems, cut


def _lower(have: int | None, want: int | None) -> bool:
    return have is not None and (want is None or have < want)


def amount(limit: int | None) -> str:
    """Write a limit as a person reads it."""
    return "unlimited" if limit is None else str(limit)


@check("base_system.hosts")
def _hosts(scene: Scene) -> Verdict:
    if not scene.want("base_system_hosts_enabled", default=True):
        return skip("switched off by base_system_hosts_enabled")
    judged, wrong = _resolved(Same(known(scene.facts.names)), Same(everybody(scene)))
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        return fail(f"names resolve wrongly here: {'; '.join(wrong[:_SHOWN])}{more}", scene.apply)
    if not judged:
        return skip("no data address is known of any node")
    return passed(f"{judged} node names resolve to data addresses")


@lru_cache(maxsize=16)
def _resolved(names: Same[Mapping[str, tuple[str, ...]]], all_nodes: Same[Everybody]) -> tuple[int, tuple[str, ...]]:
    """Return how many names could be judged, and what is wrong; nodes that resolve the same share the answer."""
    wrong: list[str] = []
    judged = 0
    for name, want in all_nodes.it.addresses.items():
        found = names.it.get(name)
        if found is None:
            continue
        judged += 1
        if found == (want,) and not want.startswith(_LOOPBACK):
            continue
        if want not in found:
            wrong.append(f"{name} is {', '.join(found) or 'unknown'} instead of {want}")
        elif any(address.startswith(_LOOPBACK) for address in found):
            wrong.append(f"{name} is also a loopback address")
    return judged, tuple(wrong)


@check("base_system.time_sync")
def _time_sync(scene: Scene) -> Verdict:
    if not scene.want("base_system_time_sync_check_enabled", default=True):
        return skip("switched off by base_system_time_sync_check_enabled")
    if scene.container:
        return skip("a container has the clock of its host")
    sync = known(scene.facts.time_sync)
    if sync.synchronized:
        return passed(f"the clock is synchronized ({', '.join(sync.services) or 'by the kernel'})")
    if sync.services:
        return warn(
            f"{', '.join(sync.services)} runs, but the clock is not synchronized yet",
            "Look at its time servers: chronyc sources, or timedatectl timesync-status.",
        )
    return warn(
        "nothing keeps the clock synchronized",
        "Install and configure chrony, or set base_system_time_sync_check_enabled: false.",
    )


@check("base_system.sysctls")
def _sysctls(scene: Scene) -> Verdict:
    wanted: dict[str, Any] = scene.want("base_system_sysctls", default={})
    if not wanted:
        return skip("the inventory sets no sysctls")
    if scene.container:
        return skip("a container cannot set sysctls: they are its host's")
    found = known(scene.facts.sysctls)
    pairs = {key: " ".join(str(value).split()) for key, value in wanted.items()}
    wrong = [f"{key} is {found[key]}, not {want}" for key, want in pairs.items() if found.get(key, want) != want]
    if wrong:
        return fail(f"sysctls differ: {'; '.join(wrong)}", scene.apply)
    lacking = [key for key in pairs if key not in found]
    if lacking:
        return warn(
            f"this kernel has no sysctl called {', '.join(lacking)}",
            "Nothing need be done unless you count on it: take it out of base_system_sysctls.",
        )
    return passed(f"{len(pairs)} sysctls are as wanted")
