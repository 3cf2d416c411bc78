"""The NVIDIA driver: its kernel modules, their build and signature, nouveau, and the persistence daemon.

Without a request (``nvidia_driver_source: present``) the driver belongs to the site: nothing here fails, and what can
be better is a warning.
"""

from __future__ import annotations

from collections.abc import Callable

from provision.checks.base import check
from provision.commands.nvidia_driver import ARCHITECTURES, PRESENT, chip_of, needs_imex, unsupported
from provision.components.check import Scene, Verdict, fail, known, passed, skip, warn
from provision.facts.kernel_module_failures import compiler_line, diagnose
from provision.facts.nvidia_driver import NvidiaDriver
from provision.facts.peer_modules import NvidiaModules
from provision.stack.observed import upstream

_SIMULATED = ("nvidia-smi", "nvidia-driver", "nvidia-module")


def _requested(scene: Scene) -> bool:
    return scene.undecided("nvidia_driver_source") or scene.want("nvidia_driver_source", PRESENT) != PRESENT


def _severity(scene: Scene) -> Callable[..., Verdict]:
    return fail if _requested(scene) else warn


def _excuse(scene: Scene) -> Verdict | None:
    """Return why there is nothing to judge; None if the node has an NVIDIA device or is to have its driver."""
    if scene.container:
        return skip("nvidia_driver.container")
    if scene.simulated(*_SIMULATED):
        return skip("nvidia_driver.simulated")
    without_gpu = _requested(scene) and scene.want("nvidia_driver_without_gpu_enabled", default=False)
    return None if known(scene.facts.nvidia_driver).gpus or without_gpu else skip("gpu.none")


@check("nvidia_driver.modules")
def _modules(scene: Scene) -> Verdict:
    excuse = _excuse(scene)
    if excuse:
        return excuse
    driver, modules = known(scene.facts.nvidia_driver), known(scene.facts.nvidia_modules)
    version = modules.installed or modules.loaded
    if not version and not _requested(scene):
        return skip("nvidia_driver.modules.none")
    if not version:
        return _other_kernel(scene, warn) or fail("nvidia_driver.modules.missing")
    return (
        _mismatch(scene, driver, modules)
        or _not_loaded(scene, driver, modules)
        or passed("nvidia_driver.modules.ok", version=version, flavor=modules.flavor)
    )


def _other_kernel(scene: Scene, judge: Callable[..., Verdict]) -> Verdict | None:
    """Return that the driver is requested for other kernels than the running one."""
    kernels: list[str] = scene.want("nvidia_driver_kernels", default=[]) if _requested(scene) else []
    running = known(scene.facts.system).kernel
    if not kernels or running in kernels:
        return None
    return judge("nvidia_driver.modules.other_kernel", kernels=kernels, running=running)


def _mismatch(scene: Scene, driver: NvidiaDriver, modules: NvidiaModules) -> Verdict | None:
    """Return why the installed modules do not fit the GPUs."""
    judge = _severity(scene)
    version = modules.installed or modules.loaded
    chips = {chip.architecture for one in driver.gpus if (chip := chip_of(one.device))}
    wrong = sorted(
        ARCHITECTURES[name].title
        for name in chips
        if modules.flavor and modules.flavor not in ARCHITECTURES[name].flavors
    )
    if wrong:
        return judge("nvidia_driver.modules.wrong_flavor", flavor=modules.flavor, version=version, architectures=wrong)
    causes = dict.fromkeys(filter(None, (unsupported(version, one.device) for one in driver.gpus)))
    if causes:
        return judge("nvidia_driver.modules.unsupported", causes=causes)
    if not f"{version}.".startswith(requested := _requested_start(scene, "nvidia_driver_version")):
        return fail("nvidia_driver.modules.other_version", installed=version, requested=requested.rstrip("."))
    if not f"{version}.".startswith(requested := _requested_start(scene, "nvidia_driver_branch")):
        return fail("nvidia_driver.modules.other_branch", installed=version, requested=requested.rstrip("."))
    return None


def _requested_start(scene: Scene, variable: str) -> str:
    """Return how the requested version starts, with a dot at its end; empty if any is accepted."""
    value = None if scene.undecided(variable) or not _requested(scene) else scene.node.variables.get(variable)
    return f"{value}." if value else ""


def _not_loaded(scene: Scene, driver: NvidiaDriver, modules: NvidiaModules) -> Verdict | None:
    """Return why the installed modules are not the loaded ones."""
    judge = _severity(scene)
    if modules.loaded and modules.installed and modules.loaded != modules.installed:
        return judge("nvidia_driver.modules.reboot", loaded=modules.loaded, installed=modules.installed)
    if modules.loaded:
        return None
    if not driver.gpus:
        return warn("nvidia_driver.modules.no_device", version=modules.installed, flavor=modules.flavor)
    cause = diagnose(dmesg="\n".join(driver.messages))
    return judge(
        "nvidia_driver.modules.not_loaded",
        version=modules.installed,
        explanation=cause.explanation.rstrip(".") if driver.messages else None,
        line=cause.evidence.splitlines()[-1] if cause.evidence else None,
        advice=cause.remedy if driver.messages else None,
    )


@check("nvidia_driver.build")
def _build(scene: Scene) -> Verdict:
    excuse = _excuse(scene) or _other_kernel(scene, skip)
    if excuse:
        return excuse
    trees, modules = known(scene.facts.nvidia_driver).trees, known(scene.facts.nvidia_modules)
    failed = [tree for tree in trees if not tree.built]
    if not trees or (failed and modules.installed and len(failed) < len(trees)):
        return skip("nvidia_driver.build.none")
    if not failed:
        return passed("nvidia_driver.build.ok", trees=[f"{tree.name} {tree.version}" for tree in trees])
    judge, tree = _severity(scene), failed[0]
    if not tree.errors:
        return judge("nvidia_driver.build.not_built", name=tree.name, version=tree.version)
    cause = diagnose(make="\n".join(tree.errors))
    return judge(
        "nvidia_driver.build.failed",
        name=tree.name,
        version=tree.version,
        line=compiler_line(tree.errors) or tree.errors[0],
        explanation=cause.explanation.rstrip("."),
        advice=cause.remedy,
    )


@check("nvidia_driver.signature")
def _signature(scene: Scene) -> Verdict:
    excuse = _excuse(scene)
    if excuse:
        return excuse
    signing, modules = known(scene.facts.signing), known(scene.facts.nvidia_modules)
    if not signing.required:
        return passed("nvidia_driver.signature.not_required")
    if "nvidia" not in modules.signers:
        return skip("nvidia_driver.modules.none")
    signer = modules.signers["nvidia"]
    if not signer:
        return _severity(scene)("nvidia_driver.signature.unsigned")
    return passed("nvidia_driver.signature.ok", signer=signer)


@check("nvidia_driver.nouveau")
def _nouveau(scene: Scene) -> Verdict:
    excuse = _excuse(scene)
    if excuse:
        return excuse
    judge = _severity(scene)
    if _requested(scene) and not known(scene.facts.nvidia_driver).nouveau_blocked:
        return judge("nvidia_driver.nouveau.not_blocked")
    if "nouveau" in known(scene.facts.modules):
        return judge("nvidia_driver.nouveau.loaded")
    return passed("nvidia_driver.nouveau.ok")


@check("nvidia_driver.persistence", after="nvidia_driver.modules")
def _persistence(scene: Scene) -> Verdict:
    excuse = _excuse(scene) or _other_kernel(scene, skip)
    if excuse:
        return excuse
    driver = known(scene.facts.nvidia_driver)
    if driver.persistence == "active" and driver.persistence_enabled:
        return passed("nvidia_driver.persistence.ok")
    enabled = scene.want("nvidia_driver_persistence_enabled", default=True)
    if not _requested(scene) or not enabled or not driver.gpus:
        return skip("nvidia_driver.persistence.none", state=driver.persistence or "not installed")
    state = driver.persistence or "not installed"
    return fail(
        "nvidia_driver.persistence.not_active", state=state, enabled="" if driver.persistence_enabled else "not "
    )


@check("nvidia_driver.firmware", after="nvidia_driver.modules")
def _firmware(scene: Scene) -> Verdict:
    """Report what no role changes: the GSP firmware, and confidential computing."""
    excuse = _excuse(scene)
    if excuse:
        return excuse
    states = {gpu.confidential for gpu in known(scene.facts.gpus)} - {None}
    versions = known(scene.facts.nvidia_driver).gsp
    if not versions and not states:
        return skip("nvidia_driver.firmware.none")
    confidential = ("on" if True in states else "off") if states else None
    return passed("nvidia_driver.firmware.ok", versions=versions or ("N/A",), confidential=confidential)


@check("nvidia_driver.imex", after="nvidia_driver.modules")
def _imex(scene: Scene) -> Verdict:
    excuse = _excuse(scene) or _other_kernel(scene, skip)
    if excuse:
        return excuse
    driver, modules = known(scene.facts.nvidia_driver), known(scene.facts.nvidia_modules)
    domain = scene.want("cluster_nvlink_domain", default="")
    if not needs_imex((one.device for one in driver.gpus), in_domain=bool(domain)):
        return _unneeded_imex(scene, driver)
    judge, version = _severity(scene), modules.loaded or modules.installed
    packages = {name: own for name, own in known(scene.facts.packages).items() if name.startswith("nvidia-imex")}
    if not packages:
        return judge("nvidia_driver.imex.missing", domain=domain)
    wrong = [f"{name} {own}" for name, own in packages.items() if upstream(own) != version]
    if version and wrong:
        return judge("nvidia_driver.imex.other_version", packages=wrong, version=version)
    if driver.imex != "active":
        return judge("nvidia_driver.imex.not_active", state=driver.imex or "not installed")
    return passed("nvidia_driver.imex.ok", domain=domain)


def _unneeded_imex(scene: Scene, driver: NvidiaDriver) -> Verdict:
    """Judge a node that needs no IMEX: one that the role started stops."""
    if driver.imex_recorded and driver.imex not in {"", "inactive"}:
        return _severity(scene)("nvidia_driver.imex.left", state=driver.imex)
    return skip("nvidia_driver.imex.not_needed")


def _modes_excuse(scene: Scene, variable: str) -> Verdict | None:
    """Return why modes of GPUs are not judged; None if one is requested. The driver may be that of the site."""
    if scene.facts.gpus == ():
        return skip("gpu.none")
    if not scene.want(variable, default=""):
        return skip("nvidia_driver.modes.unset")
    return skip("nvidia_driver.container") if scene.container and not scene.simulated("nvidia-smi") else None


@check("nvidia_driver.mig", after="gpu.driver")
def _mig(scene: Scene) -> Verdict:
    excuse = _modes_excuse(scene, "nvidia_driver_mig_mode")
    if excuse:
        return excuse
    mode, gpus = scene.want("nvidia_driver_mig_mode", default=""), known(scene.facts.gpus)
    enabled, simulated = mode == "enabled", scene.simulated("nvidia-smi")
    without = [gpu for gpu in gpus if not gpu.health.has_mig]
    if enabled and without:
        names = sorted({gpu.name for gpu in without})
        return fail(
            "nvidia_driver.mig.unsupported", gpus=[gpu.index for gpu in without], names=names, simulated=simulated
        )
    differs = [gpu.index for gpu in gpus if gpu.health.has_mig and gpu.health.mig_pending not in {None, enabled}]
    waits = [gpu.index for gpu in gpus if gpu.health.has_mig and gpu.health.mig != enabled]
    if differs or (waits and any(gpu.health.mig_pending is None for gpu in gpus if gpu.index in waits)):
        return fail("nvidia_driver.mig.differs", gpus=differs or waits, mode=mode, simulated=simulated)
    if waits:
        return fail("nvidia_driver.mig.reset", gpus=waits, mode=mode, simulated=simulated)
    return passed("nvidia_driver.mig.ok", mode=mode, simulated=simulated)


@check("nvidia_driver.persistence_mode", after="gpu.driver")
def _persistence_mode(scene: Scene) -> Verdict:
    excuse = _modes_excuse(scene, "nvidia_driver_persistence_mode")
    if excuse:
        return excuse
    mode, simulated = scene.want("nvidia_driver_persistence_mode", default=""), scene.simulated("nvidia-smi")
    wrong = [gpu.index for gpu in known(scene.facts.gpus) if gpu.health.persistence != (mode == "enabled")]
    if wrong:
        return fail("nvidia_driver.persistence_mode.differs", gpus=wrong, mode=mode, simulated=simulated)
    return passed("nvidia_driver.persistence_mode.ok", mode=mode, simulated=simulated)
