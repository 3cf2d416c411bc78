"""The basics of a node: operating system, kind, clock and disks."""

from __future__ import annotations

from provision.checks.base import check
from provision.checks.systems import BEST_EFFORT, UNTESTED, unsupported
from provision.components.check import Scene, Verdict, fail, known, passed, skip, warn
from provision.facts.derived import SYSTEM
from provision.facts.system import NodeKind
from provision.model import CheckStatus
from provision.model.reason import reason


@check("node.reachable")
def _reachable(scene: Scene) -> Verdict:
    """Facts exist only for reachable nodes."""
    return passed("node.reachable.ok", host=scene.node.connection.host)


@check("node.os")
def _os(scene: Scene) -> Verdict:
    system, stand_in = known(scene.facts.system), scene.simulated(SYSTEM)
    if scene.supported and system.name not in scene.supported:
        return Verdict(CheckStatus.FAIL, unsupported(system, scene.supported), stand_in)
    level = scene.supported.get(system.name)
    if level == BEST_EFFORT:
        return warn("node.os.best_effort", simulated=stand_in, system=system.title, kernel=system.kernel)
    if level == UNTESTED:
        return warn("node.os.untested", simulated=stand_in, system=system.title, kernel=system.kernel)
    return passed(
        "node.os.ok", simulated=stand_in, system=system.title, kernel=system.kernel, architecture=system.architecture
    )


@check("node.kind")
def _kind(scene: Scene) -> Verdict:
    kind = known(scene.facts.kind)
    if kind.kind is NodeKind.CONTAINER:
        return passed("node.kind.container", detail=kind.detail)
    if kind.kind is NodeKind.VM:
        return passed("node.kind.virtual_machine", detail=kind.detail)
    return passed("node.kind.physical", detail=kind.detail)


_CLOCK_SECONDS = 300
"""The probe reads the node's clock at its start, and the controller's at its end: minutes later if a fact hangs."""


@check("node.clock")
def _clock(scene: Scene) -> Verdict:
    clock, ours = known(scene.facts.clock), scene.facts.read_at
    if ours is None:
        return skip("node.clock.unknown")
    ahead = clock - ours
    if abs(ahead) >= _CLOCK_SECONDS:
        return warn("node.clock.ahead" if ahead > 0 else "node.clock.behind", seconds=abs(ahead))
    return passed("node.clock.ok")


_FULL_MIB = 50
_FEW_INODES = 100


@check("node.disks")
def _disks(scene: Scene) -> Verdict:
    disks = known(scene.facts.disks)
    locked = [disk.path for disk in disks if not disk.writable]
    if locked:
        return fail("node.disks.read_only", paths=locked)
    # Paths of one file system have the same numbers and are reported once.
    each = list({(d.total_mib, d.free_mib, d.inodes_free): d for d in reversed(disks)}.values())[::-1]
    full = [reason("node.disks.space", path=d.path, free_mib=d.free_mib) for d in each if d.free_mib < _FULL_MIB]
    full += [
        reason("node.disks.inodes", path=d.path, free=d.inodes_free)
        for d in each
        if d.inodes_free is not None and d.inodes_free < _FEW_INODES
    ]
    if full:
        return fail("node.disks.full", disks=full)
    return passed("node.disks.ok", count=len(disks))
