"""The stack of a node, from its facts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from provision.facts import NodeFacts, Unknown, simulated
from provision.facts.docker import Image
from provision.model.stack import INBOX, Stack, StackPart

DOCKER_PACKAGES = (
    *("docker.io", "docker-ce", "moby-engine", "docker-engine", "docker", "docker-cli", "docker-ce-cli"),
    *("containerd", "containerd.io", "runc", "docker-buildx-plugin"),
)
"""The engine and the programs that it starts; the first five are engines."""
ENGINES = DOCKER_PACKAGES[:5]
TOOLKIT_PACKAGES = (
    *("nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1"),
    *("nvidia-docker2", "nvidia-container-runtime"),
)
RDMA_PACKAGES = (
    *("rdma-core", "ibverbs-providers", "ibverbs-utils", "libibverbs1", "librdmacm1", "libibumad3"),
    *("libibverbs", "libibverbs-utils", "librdmacm", "libibumad"),
)
_DRIVER = re.compile(r"(lib)?nvidia-|libcuda1\Z|kmod-nvidia|xserver-xorg-video-nvidia")
_FABRIC_MANAGER = re.compile(r"nvidia-fabric-?manager|cuda-drivers-fabricmanager|libnvidia-nscq|nvidia-imex|nvlink5")
_HEADERS = ("linux-headers-{kernel}", "kernel-devel")
_STAND_INS = ("nvidia-smi", "nvidia-driver", "nvidia-module")
"""Parts of a driver that the lab simulates."""
_OFED = re.compile(r"(?:MLNX_OFED_LINUX-|OFED-internal-|DOCA-OFED-)?([0-9][0-9A-Za-z._-]*)\Z")


def stack_of(facts: NodeFacts, node: str = "") -> Stack | Unknown:
    """Return the stack of a node; Unknown without its system or packages.

    A component whose facts are unknown is missing.
    """
    if isinstance(facts.system, Unknown):
        return facts.system
    if isinstance(facts.packages, Unknown):
        return facts.packages
    results = {name: read(facts, facts.packages) for name, read in _READERS.items()}
    parts = {name: part for name, part in results.items() if part is not None}
    return Stack(facts.system.variables, facts.system.architecture, parts, node)


def vendor_version(ofed: str) -> str:
    """Return the version of a vendor's RDMA stack without its product name; ``inbox`` without one."""
    match = _OFED.match(ofed)
    return match[1] if match else ofed or INBOX


def _named(packages: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: packages[name] for name in names if name in packages}


def _kernel(facts: NodeFacts, _: Mapping[str, str]) -> StackPart | None:
    return None if isinstance(facts.system, Unknown) or not facts.system.kernel else StackPart(facts.system.kernel)


def _headers(facts: NodeFacts, packages: Mapping[str, str]) -> StackPart | None:
    kernel = "" if isinstance(facts.system, Unknown) else facts.system.kernel
    for form in _HEADERS:
        name = form.format(kernel=kernel)
        version = packages.get(name, "")
        # kernel-devel is installed in several versions, one for each kernel; its name does not say which.
        if version and ("{kernel}" in form or kernel.startswith(f"{version.rpartition(':')[2]}.")):
            return StackPart(version, {name: version})
    return None


def _rdma(facts: NodeFacts, packages: Mapping[str, str]) -> StackPart | None:
    if isinstance(facts.rdma, Unknown):
        return None
    version, own = vendor_version(facts.rdma.ofed), _named(packages, RDMA_PACKAGES)
    if not own and not facts.rdma.ofed and not facts.rdma.devices:
        return None
    return StackPart(version, own if version == INBOX else {})


def driver_version(facts: NodeFacts) -> str:
    """Return the version of the NVIDIA driver that the running kernel uses or would load; empty without one."""
    modules = facts.nvidia_modules
    if not isinstance(modules, Unknown) and (modules.loaded or modules.installed):
        return modules.loaded or modules.installed
    return "" if isinstance(facts.gpus, Unknown) or not facts.gpus else facts.gpus[0].driver


def _driver(facts: NodeFacts, packages: Mapping[str, str]) -> StackPart | None:
    """A driver that the lab simulates has no kernel modules, so its version says nothing about builds."""
    version = driver_version(facts)
    if not version or simulated(facts, *_STAND_INS):
        return None
    own = {name: one for name, one in packages.items() if _DRIVER.match(name) and not _FABRIC_MANAGER.match(name)}
    return StackPart(version, {name: one for name, one in own.items() if upstream(one) == version})


def _fabric_manager(_: NodeFacts, packages: Mapping[str, str]) -> StackPart | None:
    own = {name: version for name, version in packages.items() if _FABRIC_MANAGER.match(name)}
    manager = next((version for name, version in own.items() if re.search("fabric-?manager", name)), "")
    return StackPart(upstream(manager), own) if manager else None


def upstream(version: str) -> str:
    """Return the version of a package without epoch and revision."""
    return version.rpartition(":")[2].partition("-")[0]


def _toolkit(_: NodeFacts, packages: Mapping[str, str]) -> StackPart | None:
    own = _named(packages, TOOLKIT_PACKAGES)
    return StackPart(next(iter(own.values())), own) if own else None


def _docker(facts: NodeFacts, packages: Mapping[str, str]) -> StackPart | None:
    own = _named(packages, DOCKER_PACKAGES)
    if not any(name in own for name in ENGINES):
        own = {}
    package = next((upstream(own[name]) for name in ENGINES if name in own), "")
    running = "" if isinstance(facts.docker_info, Unknown) else facts.docker_info.version
    return StackPart(package or running, own) if package or running else None


def _image(facts: NodeFacts, _: Mapping[str, str]) -> StackPart | None:
    """Return the digest by which a registry has the image; an image from an archive has none."""
    if not isinstance(facts.image, Image):
        return None
    digests = {digest.partition("@")[2] for digest in facts.image.digests} - {""}
    return StackPart(digests.pop()) if len(digests) == 1 else None


def image_digests(facts: NodeFacts) -> frozenset[str]:
    """Return all digests of the training image, those of its configuration included."""
    if not isinstance(facts.image, Image):
        return frozenset()
    names = (digest.partition("@")[2] for digest in facts.image.digests)
    return frozenset({*names, facts.image.id, facts.image.config_digest} - {""})


def unknown_components(facts: NodeFacts) -> frozenset[str]:
    """Return the components whose version could not be read. Packages are known for all of the others."""
    unknown = {
        "rdma": isinstance(facts.rdma, Unknown),
        "driver": isinstance(facts.nvidia_modules, Unknown) and isinstance(facts.gpus, Unknown),
        "image": isinstance(facts.image, Unknown),
    }
    return frozenset(name for name, is_unknown in unknown.items() if is_unknown)


_READERS: Mapping[str, Callable[[NodeFacts, Mapping[str, str]], StackPart | None]] = {
    "kernel": _kernel,
    "headers": _headers,
    "rdma": _rdma,
    "driver": _driver,
    "fabric_manager": _fabric_manager,
    "toolkit": _toolkit,
    "docker": _docker,
    "image": _image,
}
