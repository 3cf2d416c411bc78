"""GPUDirect RDMA: the way that is in use against the verdict, modules that do nothing, kernels without them."""

from __future__ import annotations

from collections.abc import Sequence

from provision.checks.base import Scene, Verdict, check, fail, known, passed, skip, warn
from provision.facts import Unknown
from provision.facts.peer_modules import InstalledKernel, PeerMemory
from provision.facts.system import NodeKind
from provision.gdr import Cards, GdrPath
from provision.gdr.conditions import pcie
from provision.gdr.observed import has_gpus, running_kernel, situation, verdict_of

__all__: list[str] = []

Lacking = Sequence[tuple[InstalledKernel, Sequence[str]]]

_ROLE = "peer_memory"
_MODULES = ("nvidia-peermem", "nvidia_peermem", "nv_peer_mem", "nvidia-driver", "nvidia-module")
"""Stand-ins of the lab that the state of modules would rest on."""
_REBUILD = "dkms autoinstall -k {0} (twice: it does not keep the order RDMA stack, driver, nv_peer_mem)"


@check("peer_memory.path", role=_ROLE, after="gpu.driver")
def _path(scene: Scene) -> Verdict:
    excuse = _excuse(scene, cards=True)
    if excuse:
        return excuse
    for fact in (scene.facts.gpus, scene.facts.system, scene.facts.nvidia_modules):
        known(fact)
    peers, now = known(scene.facts.peer_memory), situation(scene.facts)
    verdict, simulated = verdict_of(scene.facts), scene.simulated("nvidia-smi", *_MODULES)
    reason = verdict.reasons[0]
    if verdict.path is GdrPath.NONE:
        remedies = [item.remedy for item in verdict.unmet if reason.endswith(item.precondition)]
        help_ = remedies[0] if remedies else "See what each path lacks: provision gdr."
        return warn(f"GPU memory goes through the host: {reason}", help_, simulated=simulated)
    aside = {precondition for precondition, _ in pcie(now)}
    open_ = [item for item in verdict.to_do if item.precondition not in aside]
    if verdict.path is GdrPath.DMA_BUF or not open_:
        return passed(reason, simulated=simulated)
    used = f"; {', '.join(sorted(peers.bound))} is in use instead" if peers.bound - {verdict.path.value} else ""
    wanted = "; ".join(item.precondition for item in open_)
    return fail(
        f"{verdict.path.spelling} could be used, and needs: {wanted}{used}",
        " ".join(item.remedy for item in open_),
        simulated=simulated,
    )


@check("peer_memory.modules", role=_ROLE)
def _modules(scene: Scene) -> Verdict:
    excuse = _excuse(scene, cards=False)
    if excuse:
        return excuse
    loaded, simulated = _loaded(known(scene.facts.peer_memory)), scene.simulated(*_MODULES)
    if len(loaded) > 1:
        return fail(
            f"{' and '.join(loaded)} are loaded; they take the same place, and only one can have it",
            "Keep nvidia_peermem: /etc/init.d/nv_peer_mem stop; rmmod nv_peer_mem; remove the package of nv_peer_mem.",
            simulated=simulated,
        )
    return passed("; ".join(loaded) or "no peer-memory module is loaded", simulated=simulated)


def _loaded(peers: PeerMemory) -> list[str]:
    return [f"{name} {version}".strip() for name, version in sorted(peers.loaded.items())]


@check("peer_memory.binding", role=_ROLE)
def _binding(scene: Scene) -> Verdict:
    excuse = _excuse(scene, cards=False)
    if excuse:
        return excuse
    peers, simulated = known(scene.facts.peer_memory), scene.simulated(*_MODULES)
    idle = sorted(set(peers.loaded) - peers.bound)
    if not idle:
        bound = ", ".join(sorted(peers.bound))
        reason = f"{bound} uses the RDMA stack" if bound else "no peer-memory module is loaded"
        return passed(reason, simulated=simulated)
    judge = warn if verdict_of(scene.facts).path is GdrPath.DMA_BUF else fail
    return judge(
        f"{', '.join(idle)} is loaded and uses neither ib_core nor ib_uverbs: a stub, built without the RDMA stack",
        "Install the RDMA stack first, then build the driver's modules anew (dkms install --force nvidia/VERSION "
        "-k KERNEL, or reinstall the driver), unload the module and load it again.",
        simulated=simulated,
    )


@check("peer_memory.kernels", role=_ROLE)
def _kernels(scene: Scene) -> Verdict:
    excuse = _excuse(scene, cards=False)
    if excuse:
        return excuse
    kernels, running = known(scene.facts.kernels), running_kernel(scene.facts)
    loaded = known(scene.facts.peer_memory).loaded
    if running is None or not ({"nvidia"} & set(running.modules) or loaded):
        return skip("the running kernel has no NVIDIA modules that others could lack")
    wanted = (set(running.modules) - {"ib_core"}) | set(loaded)
    lacking = [(kernel, lacks) for kernel in kernels if (lacks := _lacks(kernel, running, wanted))]
    simulated = scene.simulated(*_MODULES)
    if lacking:
        return warn(_tell(lacking), _mend(lacking), simulated=simulated)
    releases = ", ".join(kernel.release for kernel in kernels)
    return passed(f"{', '.join(sorted(wanted))} for all of {releases}", simulated=simulated)


def _lacks(kernel: InstalledKernel, running: InstalledKernel, wanted: set[str]) -> list[str]:
    found = sorted(wanted - set(kernel.modules))
    if kernel.stub and not running.stub:
        found.append("an nvidia_peermem that is no stub")
    if _foreign_stack(running) and "ib_core" in kernel.modules and not _foreign_stack(kernel):
        found.append("OFED's RDMA stack")
    return found


def _foreign_stack(kernel: InstalledKernel) -> bool:
    """Whether the kernel loads another ib_core than its own."""
    file = kernel.modules.get("ib_core")
    return file is not None and not file.path.startswith("kernel/")


def _tell(lacking: Lacking) -> str:
    return "; ".join(f"kernel {kernel.release} would come up without {', '.join(lacks)}" for kernel, lacks in lacking)


def _mend(lacking: Lacking) -> str:
    steps = []
    for kernel, _ in lacking:
        first = "" if kernel.headers else f"install the headers of {kernel.release}, then "
        steps.append(first + _REBUILD.format(kernel.release))
    by_hand = " What insmod loaded has to be installed first." if any(kernel.running for kernel, _ in lacking) else ""
    return f"Before the next boot: {'; '.join(steps)}. Or remove the kernel.{by_hand}"


@check("peer_memory.routing", role=_ROLE)
def _routing(scene: Scene) -> Verdict:
    excuse = _excuse(scene, cards=True)
    if excuse:
        return excuse
    if known(scene.facts.kind).kind is not NodeKind.METAL:
        return skip("a virtual machine cannot do without ACS and the IOMMU")
    seen = known(scene.facts.pci_routing)
    found = tuple(pcie(situation(scene.facts)))
    if found:
        wanted = "; ".join(precondition for precondition, _ in found)
        return warn(f"GPUDirect RDMA wants {wanted}", " ".join(remedy for _, remedy in found))
    if seen.redirecting is None:
        return passed("no IOMMU translates between GPUs and cards; ACS is not known, for there is no lspci")
    return passed("neither ACS nor an IOMMU stands between GPUs and cards")


def _excuse(scene: Scene, *, cards: bool) -> Verdict | None:
    """Return why nothing can be judged here."""
    facts = scene.facts
    if not has_gpus(facts):
        return skip("the node has no GPU")
    if scene.container:
        return skip("a container has its host's kernel modules")
    if cards:
        known(facts.rdma)
        what = situation(facts).cards
        if what is not Cards.HARD:
            made = "no RDMA card" if what is Cards.NONE else "only RDMA devices made in software"
            return skip(f"the node has {made}")
    if (
        scene.simulated("nvidia-smi")
        and not isinstance(facts.nvidia_modules, Unknown)
        and not facts.nvidia_modules.flavor
    ):
        return skip("the GPUs are SIMULATED and have no kernel modules", simulated=True)
    return None
