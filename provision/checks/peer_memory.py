"""GPUDirect RDMA: the path in use against the verdict, stub modules, and kernels without the modules."""

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
from provision.model.reason import Reason, reason

_MODULES = ("nvidia-peermem", "nvidia_peermem", "nv_peer_mem", "nvidia-driver", "nvidia-module")
"""Simulated components that determine the state of modules."""


_BUILT = frozenset({"not_built", "other_kernel", "stub", "symbol_mismatch"})
"""The causes of the node's program that its ``build`` fixes."""


@dataclass(frozen=True)
class Lacking:
    """A kernel that would come up without something."""

    kernel: InstalledKernel
    lacks: tuple[str | Reason, ...]
    """What other kernels, or the role, have and this one lacks; may be empty if only the node's program rejects it."""
    judged: JudgedKernel | None
    """The verdict of the node's own program, if it rejects the kernel."""


@check("peer_memory.path", after="gpu.driver")
def _path(scene: Scene) -> Verdict:
    excuse = _excuse(scene, cards=True)
    if excuse:
        return excuse
    for fact in (scene.facts.gpus, scene.facts.system, scene.facts.nvidia_modules):
        known(fact)
    peers, now = known(scene.facts.peer_memory), situation(scene.facts)
    verdict, simulated = verdict_of(scene.facts), scene.simulated("nvidia-smi", *_MODULES)
    main = verdict.reasons[0]
    if verdict.path is GdrPath.NONE:
        return warn("peer_memory.path.blocked", cause=main, simulated=simulated)
    aside = set(pcie(now))
    open_ = [item.precondition for item in verdict.to_do if item.precondition not in aside]
    if verdict.path is GdrPath.DMA_BUF or not open_:
        return passed("peer_memory.path.ok", summary=main, simulated=simulated)
    return fail(
        "peer_memory.path.not_used",
        simulated=simulated,
        path=verdict.path.spelling,
        needs=open_,
        used=sorted(peers.bound) if peers.bound - {verdict.path.value} else (),
    )


@check("peer_memory.modules")
def _modules(scene: Scene) -> Verdict:
    excuse = _excuse(scene, cards=False)
    if excuse:
        return excuse
    loaded, simulated = _loaded(known(scene.facts.peer_memory)), scene.simulated(*_MODULES)
    if len(loaded) > 1:
        return fail("peer_memory.modules.conflict", modules=loaded, simulated=simulated)
    on_disk, running = known(scene.facts.nvidia_modules).sources, known(scene.facts.peer_memory).sources
    replaced = [name for name, source in running.items() if on_disk.get(name, source) != source]
    if replaced:
        return warn("peer_memory.modules.replaced", modules=replaced, program=PROGRAM, simulated=simulated)
    if not loaded:
        return passed("peer_memory.no_module", simulated=simulated)
    return passed("peer_memory.modules.ok", modules=loaded, simulated=simulated)


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
        if not peers.bound:
            return passed("peer_memory.no_module", simulated=simulated)
        return passed("peer_memory.binding.ok", modules=sorted(peers.bound), simulated=simulated)
    judge = warn if verdict_of(scene.facts).path is GdrPath.DMA_BUF else fail
    return judge("peer_memory.binding.stub", modules=idle, simulated=simulated)


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
        return skip("peer_memory.kernels.no_modules")
    wanted = (set(running.modules if running else ()) - {"ib_core"}) | set(loaded) | ({module} if module else set())
    judged = {} if isinstance(record, Unknown) or not module else _judged_bad(record)
    lacking = [
        Lacking(kernel, tuple(lacks), judged.get(kernel.release))
        for kernel in kernels
        if (lacks := _lacks(kernel, running, wanted)) or kernel.release in judged
    ]
    simulated = scene.simulated(*_MODULES) or (status is not None and status.simulated)
    if lacking:
        return _lacking(lacking, module, simulated=simulated)
    if module and not isinstance(record, Unknown) and record.newer and record.rechecked is None:
        return warn(
            "peer_memory.kernels.not_judged", kernels=record.newer, module=module, program=PROGRAM, simulated=simulated
        )
    return passed(
        "peer_memory.kernels.ok",
        modules=sorted(wanted),
        kernels=[kernel.release for kernel in kernels],
        simulated=simulated,
    )


def _judged_bad(record: PeerRecord) -> dict[str, JudgedKernel]:
    """Return the kernels that the node's program rejects: its current verdict if modules are newer than its record."""
    recorded = record.status.kernels if record.status else ()
    judged = recorded if record.rechecked is None else record.rechecked
    return {kernel.release: kernel for kernel in judged if not kernel.ok}


def _lacks(kernel: InstalledKernel, running: InstalledKernel | None, wanted: set[str]) -> list[str | Reason]:
    missing: list[str | Reason] = [*sorted(wanted - set(kernel.modules))]
    if running is None:
        return missing
    if kernel.stub and not running.stub and "nv_peer_mem" not in wanted:
        missing.append(reason("peer_memory.kernels.peermem"))
    if _foreign_stack(running) and "ib_core" in kernel.modules and not _foreign_stack(kernel):
        missing.append(reason("peer_memory.kernels.ofed"))
    return missing


def _foreign_stack(kernel: InstalledKernel) -> bool:
    """Return whether the kernel loads another ib_core than its own."""
    file = kernel.modules.get("ib_core")
    return file is not None and not file.path.startswith("kernel/")


def _lacking(lacking: Sequence[Lacking], module: str, *, simulated: bool) -> Verdict:
    """Warn about kernels that lack something. If the role builds the module, its program can build it for them too."""
    kernels = [
        reason(
            "peer_memory.kernels.kernel",
            kernel=item.kernel.release,
            lacks=item.lacks or (module,),
            explanation=item.judged.explanation if item.judged else "",
        )
        for item in lacking
    ]
    if module:
        own = {item.judged.remedy: None for item in lacking if item.judged and item.judged.cause not in _BUILT}
        return warn(
            "peer_memory.kernels.not_built",
            simulated=simulated,
            kernels=kernels,
            releases=[item.kernel.release for item in lacking],
            program=PROGRAM,
            advice=[remedy for remedy in own if remedy],
        )
    rebuild = {True: "peer_memory.kernels.rebuild", False: "peer_memory.kernels.rebuild_with_headers"}
    return warn(
        "peer_memory.kernels.incomplete_running"
        if any(item.kernel.running for item in lacking)
        else "peer_memory.kernels.incomplete",
        simulated=simulated,
        kernels=kernels,
        steps=[reason(rebuild[item.kernel.headers], kernel=item.kernel.release) for item in lacking],
    )


@check("peer_memory.routing")
def _routing(scene: Scene) -> Verdict:
    excuse = _excuse(scene, cards=True)
    if excuse:
        return excuse
    if known(scene.facts.kind).kind is not NodeKind.METAL:
        return skip("peer_memory.routing.virtual_machine")
    seen = known(scene.facts.pci_routing)
    problems = tuple(pcie(situation(scene.facts)))
    if problems:
        return warn("peer_memory.routing.needs", needs=problems)
    if seen.redirecting is None:
        return passed("peer_memory.routing.acs_unknown")
    return passed("peer_memory.routing.ok")


def _excuse(scene: Scene, *, cards: bool) -> Verdict | None:
    """Return why nothing can be judged here."""
    facts = scene.facts
    if not has_gpus(facts):
        return skip("gpu.none")
    if scene.container:
        return skip("peer_memory.container")
    if cards:
        known(facts.rdma)
        what = situation(facts).cards
        if what is not Cards.HARD:
            return skip("peer_memory.no_card" if what is Cards.NONE else "peer_memory.soft_devices")
    if (
        scene.simulated("nvidia-smi")
        and not isinstance(facts.nvidia_modules, Unknown)
        and not facts.nvidia_modules.flavor
    ):
        return skip("peer_memory.simulated", simulated=True)
    return None
