"""GPUs, and what lets containers use them."""

from __future__ import annotations

from provision.checks.base import check
from provision.components.check import Scene, Verdict, fail, known, passed, skip
from provision.facts import Unknown

__all__: list[str] = []

_TOOLKIT = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
_SMI = ("nvidia-smi",)
_STAND_INS = ("nvidia-container", "nvidia-docker2", "libnvidia-container")


@check(
    "gpu.driver", remedy="Read dmesg for NVRM and Xid lines; a GPU that fell off the bus needs a reboot of the node."
)
def _driver(scene: Scene) -> Verdict:
    on_bus = () if isinstance(scene.facts.gpu_pci, Unknown) else scene.facts.gpu_pci
    gpus = known(scene.facts.gpus)
    if not gpus and on_bus:
        return fail(
            f"{len(on_bus)} NVIDIA GPUs are on the PCI bus, but no driver serves them", "Install the NVIDIA driver."
        )
    if not gpus:
        return skip("the node has no GPU")
    versions = sorted({gpu.driver for gpu in gpus})
    return passed(f"driver {', '.join(versions)}", simulated=scene.simulated(*_SMI))


@check("gpu.count", after="gpu.driver")
def _count(scene: Scene) -> Verdict:
    gpus = known(scene.facts.gpus)
    if not gpus:
        return skip("the node has no GPU")
    simulated = scene.simulated(*_SMI)
    on_bus = known(scene.facts.gpu_pci)
    if not simulated and len(gpus) != len(on_bus):
        shown = {gpu.bus_id.lower()[-12:] for gpu in gpus}
        missing = [address for address in on_bus if address.lower()[-12:] not in shown]
        named = f"; it does not show {', '.join(missing)}" if len(missing) + len(gpus) == len(on_bus) else ""
        return fail(
            f"nvidia-smi shows {len(gpus)} GPUs, the PCI bus has {len(on_bus)}{named}",
            "Read dmesg for NVRM and Xid lines; a GPU that fell off the bus needs a reboot of the node.",
        )
    kinds = sorted({gpu.name for gpu in gpus})
    return passed(f"{len(gpus)} x {', '.join(kinds)}", simulated=simulated)


@check("nvidia_container.toolkit")
def _toolkit(scene: Scene) -> Verdict:
    if not _has_gpus(scene):
        return skip("the node has no GPU")
    packages = known(scene.facts.packages)
    simulated = scene.simulated(*_STAND_INS)
    legacy = scene.want("nvidia_container_flavor", default="toolkit") == "nvidia-docker2"
    wanted = "nvidia-docker2" if legacy else "nvidia-container-toolkit"
    if wanted not in packages:
        return fail(f"{wanted} is not installed", scene.apply, simulated=simulated)
    versions = {name: packages[name] for name in _TOOLKIT if name in packages}
    if len({version.split("-")[0] for version in versions.values()}) > 1:
        shown = ", ".join(f"{name} {version}" for name, version in versions.items())
        return fail(f"the toolkit's packages are of different versions: {shown}", scene.apply, simulated=simulated)
    if not known(scene.facts.nvidia_container).hook:
        return fail("nvidia-container-runtime-hook is not on the PATH", scene.apply, simulated=simulated)
    return passed(f"{wanted} {packages[wanted]}", simulated=simulated)


@check("nvidia_container.runtime", after="docker_engine.service")
def _runtime(scene: Scene) -> Verdict:
    if not _has_gpus(scene):
        return skip("the node has no GPU")
    info = known(scene.facts.docker_info)
    simulated = scene.simulated(*_STAND_INS)
    if "nvidia" in info.runtimes:
        return passed("docker knows the runtime nvidia", simulated=simulated)
    tools = known(scene.facts.nvidia_container)
    if tools.cdi_files:
        return passed(f"CDI describes the GPUs: {', '.join(tools.cdi_files)}", simulated=simulated)
    return fail(
        "docker knows no runtime called nvidia, and no CDI file describes the GPUs", scene.apply, simulated=simulated
    )


def _has_gpus(scene: Scene) -> bool:
    """GPUs whose nvidia-smi hangs are still GPUs."""
    facts = scene.facts
    return (
        isinstance(facts.gpus, Unknown)
        or bool(facts.gpus)
        or bool(not isinstance(facts.gpu_pci, Unknown) and facts.gpu_pci)
    )
