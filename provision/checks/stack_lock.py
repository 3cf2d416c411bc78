"""The stack lock: kernel, RDMA stack, driver, fabric manager, container toolkit, docker and image have its versions."""

from __future__ import annotations

from provision.checks.base import check
from provision.components.check import Scene, Verdict, fail, known, passed, skip
from provision.stack.compare import deviations


@check("node.stack_lock")
def _stack_lock(scene: Scene) -> Verdict:
    lock = scene.cluster.stack_lock
    if lock is None:
        return passed("node.stack_lock.none")
    if not scene.node.takes_jobs:
        return skip("check.no_jobs")
    known(scene.facts.system)
    known(scene.facts.packages)
    results = deviations(lock, scene.node.variables, scene.facts)
    if results:
        return fail("node.stack_lock.differs", deviations=[one.why for one in results])
    return passed("node.stack_lock.ok", components=lock.parts)
