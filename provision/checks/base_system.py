"""Limits, names, clock and sysctls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from provision.checks.base import check
from provision.checks.everybody import Everybody, everybody
from provision.components.check import Scene, Verdict, fail, known, passed, skip, warn
from provision.model import Same
from provision.model.reason import Reason, reason

_WANTED_LIMITS: Mapping[str, int | None] = {"Max locked memory": None, "Max open files": 1048576}
_VARIABLES = {"Max locked memory": "base_system_memlock_limit", "Max open files": "base_system_nofile_limit"}

_LOOPBACK = "127."


@check("base_system.limits")
def _limits(scene: Scene) -> Verdict:
    limits = known(scene.facts.limits)
    wanted = {name: _wanted_limit(scene, name, value) for name, value in _WANTED_LIMITS.items()}
    problems, cut = limit_problems(wanted, limits.session, limits.init if scene.container else None)
    if problems:
        return fail("base_system.limits.too_low", limits=problems)
    if cut:
        return warn("base_system.limits.cut", limits=cut)
    return passed("base_system.limits.ok", limits=limit_amounts(wanted, limits.session))


def _wanted_limit(scene: Scene, name: str, default: int | None) -> int | None:
    """The role's variables say ``unlimited``, -1 or a number (locked memory in bytes)."""
    value: Any = scene.node.variables.get(_VARIABLES[name])
    if value in ("unlimited", "infinity", -1, "-1"):
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return default


def limit_problems(
    wanted: Mapping[str, int | None], current: Mapping[str, int | None], own: Mapping[str, int | None] | None
) -> tuple[list[Reason], list[Reason]]:
    """Compare hard limits. The second list has those that are as high as the node's own limits (`own`) allow."""
    problems: list[Reason] = []
    cut: list[Reason] = []
    for name, want in wanted.items():
        have = current.get(name, 0)
        if not _lower(have, want):
            continue
        part = reason(
            "base_system.limits.limit", limit=name.removeprefix("Max "), current=_amount(have), desired=_amount(want)
        )
        ceiling = own.get(name, 0) if own is not None else None
        if own is not None and not _lower(have, ceiling):
            cut.append(part)
        else:
            problems.append(part)
    return problems, cut


def _lower(have: int | None, want: int | None) -> bool:
    return have is not None and (want is None or have < want)


def limit_amounts(names: Iterable[str], limits: Mapping[str, int | None]) -> list[Reason]:
    """Return the amounts of some limits."""
    return [
        reason("base_system.limits.amount", limit=name.removeprefix("Max "), current=_amount(limits.get(name)))
        for name in names
    ]


def _amount(limit: int | None) -> str:
    return "unlimited" if limit is None else str(limit)


@check("base_system.hosts")
def _hosts(scene: Scene) -> Verdict:
    if not scene.want("base_system_hosts_enabled", default=True):
        return skip("base_system.hosts.disabled")
    judged, wrong = _resolved(Same(known(scene.facts.names)), Same(everybody(scene)))
    if wrong:
        return fail("base_system.hosts.wrong", names=wrong)
    if not judged:
        return skip("base_system.hosts.no_addresses")
    return passed("base_system.hosts.ok", count=judged)


@lru_cache(maxsize=16)
def _resolved(names: Same[Mapping[str, tuple[str, ...]]], all_nodes: Same[Everybody]) -> tuple[int, tuple[Reason, ...]]:
    """Return the number of judged names and the wrong ones; nodes that resolve all names equally share the result."""
    wrong: list[Reason] = []
    judged = 0
    for name, want in all_nodes.it.addresses.items():
        addresses = names.it.get(name)
        if addresses is None:
            continue
        judged += 1
        if addresses == (want,) and not want.startswith(_LOOPBACK):
            continue
        if want not in addresses:
            wrong.append(
                reason("base_system.hosts.address", name=name, current=addresses or ("unknown",), desired=want)
            )
        elif any(address.startswith(_LOOPBACK) for address in addresses):
            wrong.append(reason("base_system.hosts.loopback", name=name))
    return judged, tuple(wrong)


@check("base_system.time_sync")
def _time_sync(scene: Scene) -> Verdict:
    if not scene.want("base_system_time_sync_check_enabled", default=True):
        return skip("base_system.time_sync.disabled")
    if scene.container:
        return skip("base_system.time_sync.container")
    sync = known(scene.facts.time_sync)
    if sync.synchronized:
        return passed("base_system.time_sync.ok", services=sync.services)
    if sync.services:
        return warn("base_system.time_sync.not_yet", services=sync.services)
    return warn("base_system.time_sync.no_service")


@check("base_system.kernel")
def _kernel(scene: Scene) -> Verdict:
    if scene.container:
        return skip("base_system.kernel.container")
    running, receipt = known(scene.facts.system).kernel, scene.receipt("base_system.kernel")
    inputs = receipt.content.get("inputs") if receipt else None
    before = inputs.get("kernel") if isinstance(inputs, Mapping) else None
    if isinstance(before, str) and before != running:
        return warn("base_system.kernel.changed", before=before, kernel=running)
    others = [kernel.release for kernel in known(scene.facts.kernels) if kernel.release != running]
    return passed("base_system.kernel.ok", kernel=running, others=others)


@check("base_system.sysctls")
def _sysctls(scene: Scene) -> Verdict:
    wanted: dict[str, Any] = scene.want("base_system_sysctls", default={})
    if not wanted:
        return skip("base_system.sysctls.none")
    if scene.container:
        return skip("base_system.sysctls.container")
    current = known(scene.facts.sysctls)
    pairs = {key: " ".join(str(value).split()) for key, value in wanted.items()}
    wrong = [
        reason("base_system.sysctls.value", name=key, current=current[key], desired=want)
        for key, want in pairs.items()
        if current.get(key, want) != want
    ]
    if wrong:
        return fail("base_system.sysctls.differ", sysctls=wrong)
    lacking = [key for key in pairs if key not in current]
    if lacking:
        return warn("base_system.sysctls.missing", names=lacking)
    return passed("base_system.sysctls.ok", count=len(pairs))
