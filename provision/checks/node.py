"""Can the node be used at all: its system and its kind."""

from __future__ import annotations

from provision.checks.base import Scene, Verdict, check, fail, known, passed
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
            "Install a supported system, or add a file for this one under roles/platform/vars.",
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
