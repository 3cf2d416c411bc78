"""GPUDirect RDMA: the way that is in use against the verdict, modules that do nothing, kernels without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from provision.checks.base import check
from provision.checks.boot import boot_verdict
from provision.components.check import Scene, Verdict, fail, known, passed, skip, warn
from provision.facts import Unknown
from provision.facts.peer_modules import InstalledKernel, PeerMemory
from provision.facts.peer_status import PROGRAM, JudgedKernel, PeerRecord
from provision.facts.system import NodeKind
from provision.gdr import Cards, GdrPath
from provision.gdr.conditions import pcie
from provision.gdr.observed import has_gpus, running_kernel, situation, verdict_of
from provision.model import CheckStatus

__all__: list[str] = []

_ROLE = "peer_memory"
_MODULES = ("nvidia-peermem", "nvidia_peermem", "nv_peer_mem", "nvidia-driver", "nvidia-module")
"""Stand-ins of the lab that the state of modules would rest on."""
_REBUILD = "dkms autoinstall -k {0} (twice: it does not keep the order RDMA stack, driver, nv_peer_mem)"
"""Where the role builds nothing: it was not applied, or wants no module."""


@dataclass(frozen=True)
class Lacking:
    """A kernel that would come up without something."""

    kernel: InstalledKernel
    lacks: tuple[str, ...]
    """What other kernels, or the role, have, and this one has not; may be empty when the node itself knows better."""
    told: JudgedKernel | None
    """What the node's own program said of it, when that was bad."""


@check("peer_memory.path", after="gpu.driver")
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


@check("peer_memory.modules")
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
    on_disk, running = known(scene.facts.nvidia_modules).sources, known(scene.facts.peer_memory).sources
    replaced = [name for name, source in running.items() if on_disk.get(name, source) != source]
    if replaced:
        return warn(
            f"the {' and '.join(replaced)} that is loaded is not the one that the next boot will load: "
            "its sources were others",
            f"With no job on the node: {PROGRAM} unload && {PROGRAM} load, or reboot it.",
            simulated=simulated,
        )
    return passed("; ".join(loaded) or "no peer-memory module is loaded", simulated=simulated)


def _loaded(peers: PeerMemory) -> list[str]:
    return [f"{name} {version}".strip() for name, version in sorted(peers.loaded.items())]


@check("peer_memory.binding")
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


@check("peer_memory.boot")
def _boot(scene: Scene) -> Verdict:
    verdict = boot_verdict(scene.node, scene.facts)
    nothing = verdict.status is CheckStatus.SKIP
    return (_excuse(scene, cards=False) or verdict) if nothing else verdict


@check("peer_memory.kernels")
def _kernels(scene: Scene) -> Verdict:
    record = scene.facts.peer_status
    status = None if isinstance(record, Unknown) else record.status
    module = status.module if status else ""
    excuse = None if module else _excuse(scene, cards=False)
    if excuse:
        return excuse
    kernels, running = known(scene.facts.kernels), running_kernel(scene.facts)
    loaded = known(scene.facts.peer_memory).loaded
    has_driver = running is not None and bool({"nvidia"} & set(running.modules) or loaded)
    if not (module or has_driver):
        return skip("the running kernel has no NVIDIA modules that others could lack")
    wanted = (set(running.modules if running else ()) - {"ib_core"}) | set(loaded) | ({module} if module else set())
    told = {} if isinstance(record, Unknown) or not module else _told(record)
    lacking = [
        Lacking(kernel, tuple(lacks), told.get(kernel.release))
        for kernel in kernels
        if (lacks := _lacks(kernel, running, wanted)) or kernel.release in told
    ]
    simulated = scene.simulated(*_MODULES) or (status is not None and status.simulated)
    if lacking:
        return warn(_tell(lacking, module), _mend(lacking, module, scene.node.name), simulated=simulated)
    releases = ", ".join(kernel.release for kernel in kernels)
    if module and not isinstance(record, Unknown) and record.newer and record.rechecked is None:
        return warn(
            f"the node's own record is older than the modules of {', '.join(record.newer)}: whether {module} still "
            "fits them is not known",
            f"Run on the node: {PROGRAM} check",
            simulated=simulated,
        )
    return passed(f"{', '.join(sorted(wanted))} for all of {releases}", simulated=simulated)


def _told(record: PeerRecord) -> dict[str, JudgedKernel]:
    """Return what is wrong with which kernel, in the node's own words: of now, where modules are newer than them."""
    recorded = record.status.kernels if record.status else ()
    said = recorded if record.rechecked is None else record.rechecked
    return {kernel.release: kernel for kernel in said if not kernel.ok}


def _lacks(kernel: InstalledKernel, running: InstalledKernel | None, wanted: set[str]) -> list[str]:
    found = sorted(wanted - set(kernel.modules))
    if running is None:
        return found
    if kernel.stub and not running.stub and "nv_peer_mem" not in wanted:
        found.append("an nvidia_peermem that is no stub")
    if _foreign_stack(running) and "ib_core" in kernel.modules and not _foreign_stack(kernel):
        found.append("OFED's RDMA stack")
    return found


def _foreign_stack(kernel: InstalledKernel) -> bool:
    """Whether the kernel loads another ib_core than its own."""
    file = kernel.modules.get("ib_core")
    return file is not None and not file.path.startswith("kernel/")


def _tell(lacking: Sequence[Lacking], module: str) -> str:
    """The node's own word says why, and what is seen from here says what."""
    parts = []
    for item in lacking:
        lacks = ", ".join(item.lacks or (module,))
        why = f" ({item.told.explanation})" if item.told and item.told.explanation else ""
        parts.append(f"kernel {item.kernel.release} would come up without {lacks}{why}")
    return "; ".join(parts)


def _mend(lacking: Sequence[Lacking], module: str, node: str) -> str:
    """Where the role builds a module, its own program keeps the order of what is built; DKMS by itself does not."""
    if module:
        kernels = ", ".join(item.kernel.release for item in lacking)
        told = {item.told.remedy: None for item in lacking if item.told and PROGRAM not in item.told.remedy}
        own = "".join(f" {remedy}" for remedy in told if remedy)
        return (
            f"Before the next boot: provision apply --limit {node} --only {_ROLE}, which installs headers and builds "
            f"for every kernel; or on the node, where the headers are there: {PROGRAM} build.{own} Or remove what is "
            f"not needed of {kernels}."
        )
    steps = []
    for item in lacking:
        first = "" if item.kernel.headers else f"install the headers of {item.kernel.release}, then "
        steps.append(first + _REBUILD.format(item.kernel.release))
    by_hand = " What insmod loaded has to be installed first." if any(item.kernel.running for item in lacking) else ""
    return f"Before the next boot: {'; '.join(steps)}. Or remove the kernel.{by_hand}"


@check("peer_memory.routing")
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
