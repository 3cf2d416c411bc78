"""Can the node be used at all: its system and its kind."""

from __future__ import annotations

from provision.checks.base import check
from provision.checks.wording import span
from provision.components import SHARED
from provision.components.check import Scene, Verdict, fail, known, passed, skip, warn
from provision.facts.system import NodeKind

__all__: list[str] = []


@check("node.reachable")
def _reachable(scene: Scene) -> Verdict:
    """Facts exist only of nodes that were reached; unreachable ones never get here."""
    return passed(f"reached, and {scene.node.connection.host} answers as root")


@check("node.os")
def _os(scene: Scene) -> Verdict:
    system = known(scene.facts.system)
    name = f"{system.id} {system.version}"
    if scene.supported and name not in scene.supported:
        return fail(
            f"{system.title} is not supported; supported are: {', '.join(scene.supported)}",
            f"Install a supported system, or add a file for this one under roles/{SHARED.role}/vars.",
        )
    return passed(f"{system.title}, kernel {system.kernel}, {system.architecture}")


@check("node.kind")
def _kind(scene: Scene) -> Verdict:
    kind = known(scene.facts.kind)
    if kind.kind is NodeKind.CONTAINER:
        return passed(f"a container ({kind.detail}): kernel modules and sysctls are its host's, limits may be cut")
    if kind.kind is NodeKind.VM:
        return passed(f"a virtual machine ({kind.detail})")
    return passed(f"a physical machine ({kind.detail})")


_CLOCK_SECONDS = 300
"""The node's clock is read when a look begins, ours when it has ended: minutes later, where something hangs."""


@check("node.clock")
def _clock(scene: Scene) -> Verdict:
    clock, ours = known(scene.facts.clock), scene.facts.read_at
    if ours is None:
        return skip("it is not known when the node told its time")
    ahead = clock - ours
    if abs(ahead) >= _CLOCK_SECONDS:
        return warn(
            f"the node's clock is {span(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} this machine's",
            "See which of the two is wrong (`date -u` on both), and what keeps time there: `timedatectl`, `chronyc "
            "tracking`. So much is often set right only when that service starts: restart it. Until then certificates "
            "may count as expired or not yet valid, and times in logs and `provision history` are wrong.",
        )
    return passed("the node's clock agrees with this machine's")


_FULL_MIB = 50
_FEW_INODES = 100


@check("node.disks")
def _disks(scene: Scene) -> Verdict:
    disks = known(scene.facts.disks)
    locked = [disk.path for disk in disks if not disk.writable]
    if locked:
        return fail(
            f"mounted read-only: {', '.join(locked)}",
            "See why in `dmesg` (a file system error, most likely); then mount -o remount,rw PATH, or reboot.",
        )
    # Paths of one file system show the same numbers, and are one finding.
    each = list({(d.total_mib, d.free_mib, d.inodes_free): d for d in reversed(disks)}.values())[::-1]
    full = [f"{disk.path} has {disk.free_mib} MiB free" for disk in each if disk.free_mib < _FULL_MIB]
    full += [f"{d.path} has {d.inodes_free} inodes free" for d in each if (d.inodes_free or _FEW_INODES) < _FEW_INODES]
    full += [f"{disk.path} has no inode free" for disk in each if disk.inodes_free == 0]
    if full:
        return fail("; ".join(full), "Make room there: du -xs PATH/*, du -xs --inodes PATH/*.")
    return passed(f"{len(disks)} file systems can be written and have room")
