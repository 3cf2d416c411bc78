"""How checks are registered and judged; `provision.components.check` says what a check is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from provision.components import COMPONENTS
from provision.components.check import Check, ClusterScene, NotKnownError, Scene, Verdict, fail, skip
from provision.model import CheckResult, CheckStatus
from provision.model.reason import reason

CHECKS: dict[str, Check[Scene]] = {}
CLUSTER_CHECKS: dict[str, Check[ClusterScene]] = {}

_FIRST_AREA = "node"
UNJUDGED = frozenset({"check.fact_unavailable", "check.failed", "gpu.driver.no_answer"})
"""The codes of checks that could not be made: a fact was unavailable or not understood."""
_WAITS = "check.waits"


def check(
    id: str,  # noqa: A002 - it is an id, and reads best so where checks are declared
    *,
    after: str | None = None,
    unavailable: str = "check.fact_unavailable",
    full: bool = False,
    data: bool = False,
) -> Callable[[Callable[[Scene], Verdict]], Callable[[Scene], Verdict]]:
    """Register a check of one node: skipped when its role is disabled there or the check `after` failed.

    A `full` check requires measured bandwidth, a `data` check probed volumes.
    """

    def decorate(function: Callable[[Scene], Verdict]) -> Callable[[Scene], Verdict]:
        register(Check(id, function, after, unavailable, full, data=data))
        return function

    return decorate


def register(item: Check[Scene]) -> None:
    """Register a check of one node.

    Raises:
        ValueError: there is one with this id.
    """
    if item.id in CHECKS:
        raise ValueError(f"two checks are called {item.id}")
    CHECKS[item.id] = item


def cluster_check(
    id: str,  # noqa: A002 - as above
    *,
    full: bool = False,
    collective: bool = False,
    data: bool = False,
) -> Callable[[Callable[[ClusterScene], Verdict]], Callable[[ClusterScene], Verdict]]:
    """Register a check that only all nodes together can answer."""

    def register(function: Callable[[ClusterScene], Verdict]) -> Callable[[ClusterScene], Verdict]:
        if id in CLUSTER_CHECKS:
            raise ValueError(f"two checks are called {id}")
        CLUSTER_CHECKS[id] = Check(id, function, full=full, collective=collective, data=data)
        return function

    return register


def run(scene: Scene) -> tuple[CheckResult, ...]:
    """Judge one node by every check, area by area."""
    done: dict[str, CheckResult] = {}
    for item in map(CHECKS.__getitem__, _in_order(tuple(CHECKS))):
        if (item.full and scene.bandwidth is None) or (item.data and scene.data is None):
            continue
        component = COMPONENTS.get(_area(item.id))
        if component and not component.serves(scene.node.variables):
            continue
        verdict = _verdict(item, scene, done)
        done[item.id] = CheckResult(item.id, verdict.status, verdict.reason, verdict.simulated)
    return tuple(done.values())


@lru_cache(maxsize=4)
def _in_order(ids: tuple[str, ...]) -> tuple[str, ...]:
    """Return the checks by area, in the order of the roles; an area comes after those that its checks depend on."""
    before: dict[str, dict[str, None]] = {area: {} for area in (_FIRST_AREA, *COMPONENTS)}
    for name in ids:
        own = before.setdefault(_area(name), {})
        needed = CHECKS[name].after
        if needed and _area(needed) != _area(name):
            own[_area(needed)] = None
    order: dict[str, None] = {}

    def add(area: str) -> None:
        for needed in before.get(area, ()):
            if needed not in order:
                add(needed)
        order[area] = None

    for area in before:
        add(area)
    places = {area: number for number, area in enumerate(order)}
    return tuple(sorted(ids, key=lambda name: places[_area(name)]))


def _area(name: str) -> str:
    return name.partition(".")[0]


def _verdict(item: Check[Scene], scene: Scene, done: Mapping[str, CheckResult]) -> Verdict:  # noqa: PLR0911 - one for each result
    component = COMPONENTS.get(_area(item.id))
    if component and scene.node.variables.get(f"{component.role}_enabled") is False:
        if component.for_jobs and not scene.node.takes_jobs:
            return skip("check.no_jobs")
        return skip("check.role_disabled", role=component.role)
    before = done.get(item.after) if item.after else None
    if before is not None and before.reason.code == _WAITS:
        return Verdict(CheckStatus.SKIP, before.reason)
    if before is not None and before.status is CheckStatus.FAIL:
        return skip(_WAITS, check=before.id)
    try:
        return item.judge(scene)
    except NotKnownError as problem:
        return Verdict(CheckStatus.FAIL, reason(item.unavailable, cause=str(problem)))
    except Exception as problem:  # noqa: BLE001 - an unexpected fact of one node must not hide other results
        return fail("check.failed", error=type(problem).__name__, cause=str(problem))
