"""GPUs, and the software with which containers use them."""

from __future__ import annotations

from provision.checks.base import check
from provision.components.check import Scene, Verdict, fail, known, passed, skip
from provision.facts import Unknown

_TOOLKIT = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
_SMI = ("nvidia-smi",)
_STAND_INS = ("nvidia-container", "nvidia-docker2", "libnvidia-container")


@check("gpu.driver", unavailable="gpu.driver.no_answer")
def _driver(scene: Scene) -> Verdict:
    on_bus = () if isinstance(scene.facts.gpu_pci, Unknown) else scene.facts.gpu_pci
    gpus = known(scene.facts.gpus)
    if not gpus and on_bus:
        return fail("gpu.driver.missing", count=len(on_bus))
    if not gpus:
        return skip("gpu.none")
    versions = sorted({gpu.driver for gpu in gpus})
    return passed("gpu.driver.ok", versions=versions, simulated=scene.simulated(*_SMI))


@check("gpu.count", after="gpu.driver")
def _count(scene: Scene) -> Verdict:
    gpus = known(scene.facts.gpus)
    if not gpus:
        return skip("gpu.none")
    simulated = scene.simulated(*_SMI)
    on_bus = known(scene.facts.gpu_pci)
    if not simulated and len(gpus) != len(on_bus):
        shown = {gpu.bus_id.lower()[-12:] for gpu in gpus}
        missing = [address for address in on_bus if address.lower()[-12:] not in shown]
        missing = missing if len(missing) + len(gpus) == len(on_bus) else []
        return fail("gpu.count.missing", count=len(gpus), on_bus=len(on_bus), missing=missing)
    kinds = sorted({gpu.name for gpu in gpus})
    return passed("gpu.count.ok", count=len(gpus), products=kinds, simulated=simulated)


@check("nvidia_container.toolkit")
def _toolkit(scene: Scene) -> Verdict:
    if not _has_gpus(scene):
        return skip("gpu.none")
    packages = known(scene.facts.packages)
    simulated = scene.simulated(*_STAND_INS)
    legacy = scene.want("nvidia_container_flavor", default="toolkit") == "nvidia-docker2"
    wanted = "nvidia-docker2" if legacy else "nvidia-container-toolkit"
    if wanted not in packages:
        return fail("nvidia_container.toolkit.not_installed", package=wanted, simulated=simulated)
    versions = {name: packages[name] for name in _TOOLKIT if name in packages}
    if len({version.split("-")[0] for version in versions.values()}) > 1:
        shown = [f"{name} {version}" for name, version in versions.items()]
        return fail("nvidia_container.toolkit.versions_differ", packages=shown, simulated=simulated)
    if not known(scene.facts.nvidia_container).hook:
        return fail("nvidia_container.toolkit.no_hook", simulated=simulated)
    return passed("nvidia_container.toolkit.ok", package=wanted, version=packages[wanted], simulated=simulated)


@check("nvidia_container.runtime", after="docker_engine.service")
def _runtime(scene: Scene) -> Verdict:
    if not _has_gpus(scene):
        return skip("gpu.none")
    info = known(scene.facts.docker_info)
    simulated = scene.simulated(*_STAND_INS)
    if "nvidia" in info.runtimes:
        return passed("nvidia_container.runtime.ok", simulated=simulated)
    tools = known(scene.facts.nvidia_container)
    if tools.cdi_files:
        return passed("nvidia_container.runtime.cdi", files=tools.cdi_files, simulated=simulated)
    return fail("nvidia_container.runtime.missing", simulated=simulated)


def _has_gpus(scene: Scene) -> bool:
    """A node whose nvidia-smi hangs has GPUs too."""
    facts = scene.facts
    return (
        isinstance(facts.gpus, Unknown)
        or bool(facts.gpus)
        or bool(not isinstance(facts.gpu_pci, Unknown) and facts.gpu_pci)
    )
