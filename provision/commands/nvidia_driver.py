"""Which NVIDIA driver a node gets: flavour of the kernel modules, branch and packages, from tables.

The role nvidia_driver uses this file as a filter plugin through a link, so that plain Ansible makes the same choice. It
imports only the standard library.

Sources of the tables: the PCI ID database (pci.ids 2025.06.09) and gpu/devid_chips.py of NVIDIA/gpu-admin-tools for the
chips; NVIDIA's driver installation guide, chapter "Kernel Modules", for the flavours ("Open or proprietary"); release
notes of the driver for the first and last branch of an architecture; release notes of 620 for the end of the
proprietary modules; NVIDIA's fabric manager user guide for machines with NVSwitch; NVIDIA's IMEX guide ("Getting
Started", "Deployment Models") for multi-node NVLink.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

PRESENT = "present"
"""The source of a driver that the site installs; the role changes nothing."""
FLAVORS = ("open", "proprietary")
PROPRIETARY_ENDS = "620"
"""Since this branch there are no proprietary kernel modules."""
OPEN_STARTS = "515"
"""The first branch with open kernel modules."""


class Chip(NamedTuple):
    """The PCI device IDs of one chip."""

    first: int
    last: int
    name: str
    architecture: str
    mig: bool = False
    """Whether GPUs with this chip can have a MIG mode (NVIDIA's MIG user guide, "Supported GPUs")."""


CHIPS = (
    Chip(0x1340, 0x13BF, "GM107, GM108", "maxwell"),
    Chip(0x13C0, 0x143F, "GM204, GM206", "maxwell"),
    Chip(0x15C0, 0x15FF, "GP100", "pascal"),
    Chip(0x1617, 0x1667, "GM204", "maxwell"),
    Chip(0x1725, 0x172F, "GP100", "pascal"),
    Chip(0x174D, 0x17FF, "GM107, GM108, GM200", "maxwell"),
    Chip(0x1B00, 0x1D7F, "GP102, GP104, GP106, GP107, GP108", "pascal"),
    Chip(0x1D80, 0x1DFF, "GV100", "volta"),
    Chip(0x1E00, 0x1FFF, "TU102, TU104, TU106, TU117", "turing"),
    Chip(0x2080, 0x20FF, "GA100", "ampere", mig=True),
    Chip(0x2180, 0x21FF, "TU116", "turing"),
    Chip(0x2200, 0x227F, "GA102", "ampere"),
    Chip(0x2302, 0x233F, "GH100", "hopper", mig=True),
    Chip(0x2340, 0x237F, "GH100 with Grace", "grace-hopper", mig=True),
    Chip(0x2380, 0x23FF, "GH100", "hopper", mig=True),
    Chip(0x2400, 0x25FF, "GA103, GA104, GA106, GA107", "ampere"),
    Chip(0x2680, 0x28FF, "AD102, AD103, AD104, AD106, AD107", "ada"),
    Chip(0x2900, 0x29FF, "GB100, GB102", "blackwell", mig=True),
    Chip(0x2B80, 0x2FFF, "GB202, GB203, GB205, GB206, GB207, GB20B", "blackwell", mig=True),
    Chip(0x3180, 0x31FF, "GB110", "blackwell", mig=True),
    Chip(0x3340, 0x337F, "GB120", "blackwell", mig=True),
)
"""Chips that drivers since 470 support, by their device IDs."""


class Support(NamedTuple):
    """The drivers of one architecture."""

    title: str
    flavors: tuple[str, ...]
    """The flavours of kernel modules that drive it, the preferred one first."""
    oldest: str
    """The first driver."""
    newest: str = ""
    """The last branch; empty while new branches support it."""


ARCHITECTURES: Mapping[str, Support] = {
    "maxwell": Support("Maxwell", ("proprietary",), "340", "580"),
    "pascal": Support("Pascal", ("proprietary",), "367", "580"),
    "volta": Support("Volta", ("proprietary",), "384", "580"),
    "turing": Support("Turing", ("open", "proprietary"), "410"),
    "ampere": Support("Ampere", ("open", "proprietary"), "450"),
    "ada": Support("Ada", ("open", "proprietary"), "520"),
    "hopper": Support("Hopper", ("open", "proprietary"), "520"),
    "grace-hopper": Support("Grace Hopper", ("open",), "520"),
    "blackwell": Support("Blackwell", ("open",), "570.133.20"),
}


def chip_of(device: str) -> Chip | None:
    """Return the chip with a PCI device ID such as ``20b2``; None if the table has none."""
    if not re.fullmatch(r"(0x)?[0-9A-Fa-f]{4}", device):
        return None
    number = int(device, 16)
    return next((chip for chip in CHIPS if chip.first <= number <= chip.last), None)


FABRICS: Mapping[str, str] = {"nvswitch": "NVLink switches", "nvlink5": "NVLink 5 (HGX B200)"}
NVLINK5_DEVICES = ("2901",)
"""HGX B200, whose switches are managed over InfiniBand and are no NVIDIA devices on the PCI bus. The device ID of HGX
B300 is in none of the sources."""


MULTI_NODE_CHIPS = ("GH100 with Grace", "GB100, GB102", "GB110", "GB120")
"""Chips of the systems whose NVLink connects several nodes (GH200 NVL32, GB200 and GB300 NVL72), which require IMEX.
The same chips are in other machines, so the inventory names the NVLink domain (``cluster_nvlink_domain``)."""


CUDA_13 = "580"
"""The first branch for CUDA 13; older ones are for CUDA 12 (release notes of the CUDA toolkit)."""


def fabric_of(devices: Iterable[str], *, has_switches: bool) -> str:
    """Return the fabric that a machine's GPUs need: ``nvswitch``, ``nvlink5`` or none."""
    if any(device.removeprefix("0x") in NVLINK5_DEVICES for device in devices):
        return "nvlink5"
    return "nvswitch" if has_switches else ""


def needs_imex(devices: Iterable[str], *, in_domain: bool) -> bool:
    """Return whether a node needs IMEX: its NVLink domain connects it with other nodes."""
    chips = {chip_of(device) for device in devices if device.removeprefix("0x") not in NVLINK5_DEVICES}
    return in_domain and any(chip and chip.name in MULTI_NODE_CHIPS for chip in chips)


class Refusal(NamedTuple):
    """Why a node does not get the requested driver."""

    variable: str
    problem: str
    remedy: str


def system_refusal(settings: Mapping[str, Any], table: Mapping[str, Any], title: str) -> Refusal | None:
    """Return why the node's system has no such driver.

    Args:
        settings: source, flavor, branch, version and kernels.
        table: ``__platform_nvidia_driver`` of the system: source -> its packages.
        title: name of the system.
    """
    source, branch = settings["source"], settings["branch"]
    entry = entry_of(source, table)
    if not entry:
        others = ", ".join(sorted({*table, *(["file"] if "cuda" in table else [])}))
        return Refusal(
            "nvidia_driver_source",
            f"{title} has no entry for the driver source {source}",
            f"Use one of {others}, or install the driver yourself and set `present`."
            if others
            else "Install the driver yourself and set nvidia_driver_source: present.",
        )
    if branch and not re.fullmatch(r"[0-9]{3}", branch):
        return Refusal("nvidia_driver_branch", f"{branch!r} is not a branch", "Use a number such as 580.")
    if branch and branch != entry["branch"] and not _is_free(entry):
        return Refusal(
            "nvidia_driver_branch",
            f"{title} has only branch {entry['branch']} in its {source} packages, not {branch}",
            f"Remove nvidia_driver_branch, set it to {entry['branch']}, or choose another nvidia_driver_source.",
        )
    return _version_refusal(settings, entry, title) or _kernel_refusal(settings)


def _version_refusal(settings: Mapping[str, Any], entry: Mapping[str, Any], title: str) -> Refusal | None:
    """Return why the packages cannot be pinned to a version."""
    variable, version, branch = "nvidia_driver_version", settings.get("version"), settings["branch"] or entry["branch"]
    if not version:
        return None
    if not re.fullmatch(r"[0-9]{3}(\.[0-9]{1,3}){1,2}", version):
        return Refusal(variable, f"{version!r} is not a version", "Use a version such as 535.261.03.")
    if not entry.get("pin"):
        problem = f"the {settings['source']} packages of {title} cannot be pinned to a version"
        return Refusal(variable, problem, "Remove it; nvidia_driver_branch pins the branch.")
    if version.partition(".")[0] != branch:
        problem = f"{version} is not a version of branch {branch}"
        return Refusal(variable, problem, "Correct nvidia_driver_version or nvidia_driver_branch.")
    return None


def _kernel_refusal(settings: Mapping[str, Any]) -> Refusal | None:
    """Return why the driver cannot be built for the listed kernels."""
    wrong = [name for name in settings.get("kernels") or () if not is_kernel(name)]
    problem = f"{wrong[0]!r} is not the release of a kernel" if wrong else ""
    return Refusal("nvidia_driver_kernels", problem, "Use releases as `uname -r` prints them.") if wrong else None


def is_kernel(name: object) -> bool:
    """Return whether a value can be the release of a kernel, such as ``6.1.0-50-amd64``."""
    return isinstance(name, str) and bool(re.fullmatch(r"[0-9][A-Za-z0-9.+~_-]{0,63}", name))


def entry_of(source: str, table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the entry of a source in a system's table, empty if it has none.

    A repository of the site (``file``) has the packages of NVIDIA's.
    """
    entry: Mapping[str, Any] = table.get("cuda" if source == "file" else source) or {}
    return entry


def _is_free(entry: Mapping[str, Any]) -> bool:
    """Return whether the branch is a part of the names of packages or module streams."""
    names = [*(name for flavor in FLAVORS for name in entry.get(flavor, ())), *entry.get("streams", {}).values()]
    return any("{branch}" in name for name in names)


def flavor_of(settings: Mapping[str, str], devices: Iterable[str]) -> str | Refusal:
    """Return the flavour of the kernel modules for the GPUs of a node; open for a node without GPUs."""
    requested = settings["flavor"]
    architectures: dict[str, str] = {}
    for device in sorted(set(devices)):
        chip = chip_of(device)
        if chip:
            architectures.setdefault(chip.architecture, device)
        elif requested == "auto":
            return Refusal(
                "nvidia_driver_flavor",
                f"the generation of the GPU 10de:{device} is unknown",
                "Set nvidia_driver_flavor to open (Turing and newer) or proprietary (Volta and older).",
            )
    supports = [ARCHITECTURES[name] for name in architectures]
    for flavor in FLAVORS if requested == "auto" else (requested,):
        if all(flavor in one.flavors for one in supports):
            return flavor
    titles = " and ".join(f"{one.title} ({' or '.join(one.flavors)})" for one in supports)
    is_auto = requested == "auto"
    remedy = "No driver drives all of these GPUs; remove one kind of them." if is_auto else "Set it to auto."
    return Refusal("nvidia_driver_flavor", f"{requested} kernel modules do not drive the GPUs of {titles}", remedy)


def branch_refusal(branch: str, flavor: str, devices: Iterable[str]) -> Refusal | None:
    """Return why a branch does not drive the GPUs of a node."""
    if flavor == "proprietary" and int(branch) >= int(PROPRIETARY_ENDS):
        problem = f"branch {branch} has no proprietary kernel modules (removed in {PROPRIETARY_ENDS})"
        return Refusal("nvidia_driver_branch", problem, "Use 580 for GPUs of Volta and older, or the open modules.")
    if flavor == "open" and int(branch) < int(OPEN_STARTS):
        problem = f"branch {branch} has no open kernel modules (since {OPEN_STARTS})"
        return Refusal("nvidia_driver_branch", problem, "Use a newer branch, or the proprietary modules.")
    for device in sorted(set(devices)):
        problem = unsupported(branch, device)
        if problem:
            remedy = "Choose a branch that supports all GPUs of the node, or another nvidia_driver_source with one."
            return Refusal("nvidia_driver_branch", problem, remedy)
    return None


def unsupported(driver: str, device: str) -> str:
    """Return why a driver version, or any version of a branch, does not support a GPU; empty if it does."""
    chip = chip_of(device)
    major = driver.partition(".")[0]
    if chip is None or not major.isdecimal():
        return ""
    support = ARCHITECTURES[chip.architecture]
    if int(major) < int(support.oldest.partition(".")[0]):
        return f"driver {driver} does not support {support.title} (since {support.oldest})"
    if support.newest and int(major) > int(support.newest):
        return f"driver {driver} does not support {support.title} (until {support.newest})"
    return ""


class Choice(NamedTuple):
    """The driver of a node."""

    flavor: str = ""
    branch: str = ""
    build: str = ""
    """``dkms`` if the node builds the modules, ``signed`` if packages contain modules that their vendor signed."""
    packages: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    """Packages that are installed if a repository has them: headers, unless the inventory lists kernels."""
    streams: tuple[str, ...] = ()
    """Module streams of dnf that have to be enabled."""
    fabric: str = ""
    """``nvswitch`` or ``nvlink5`` if the node needs a fabric manager."""
    imex: bool = False
    """Whether the node needs IMEX."""
    refusal: Refusal | None = None


def choose(
    settings: Mapping[str, Any],
    system: Mapping[str, Any],
    devices: Sequence[str],
    kernel: str,
    installed: Iterable[str],
    *,
    has_switches: bool = False,
) -> Choice:
    """Return the driver for a node, or why it gets none.

    Args:
        settings: source, flavor, branch and version; ``dcgm`` if the node gets DCGM; ``kernels`` if the driver is for
            other kernels than the running one; ``carried`` if another node builds the modules; ``in_domain`` if the
            node is in an NVLink domain of several nodes.
        system: the variables of the node's system (``roles/platform/vars``).
        devices: PCI device IDs of the node's GPUs.
        kernel: release of the running kernel.
        installed: names of the installed packages.
        has_switches: whether NVLink switches are on the PCI bus.
    """
    table = system.get("__platform_nvidia_driver", {})
    refusal = system_refusal(settings, table, str(system.get("__platform_title", "the system")))
    if refusal:
        return Choice(refusal=refusal)
    entry, flavor = entry_of(settings["source"], table), flavor_of(settings, devices)
    if isinstance(flavor, Refusal):
        return Choice(refusal=flavor)
    branch = settings["branch"] or entry["branch"]
    refusal = branch_refusal(branch, flavor, devices) or _dcgm_refusal(settings, entry, system, devices)
    fabric = fabric_of(devices, has_switches=has_switches)
    imex = needs_imex(devices, in_domain=bool(settings.get("in_domain")))
    refusal = refusal or _package_refusal(settings, entry, system, (flavor, fabric), imex=imex)
    if refusal:
        return Choice(refusal=refusal)
    follow = {image: headers for image, headers in system["__platform_headers_follow"].items() if image in installed}
    cuda = "13" if int(branch) >= int(CUDA_13) else "12"
    more = (*entry.get(fabric, ()), *(entry["imex"] if imex else ()))
    templates = (*entry[flavor], *more, *(entry["dcgm"] if settings.get("dcgm") and devices else ()))
    names = [name.replace("{branch}", branch).replace("{cuda}", cuda) for name in templates]
    packages = [one for name in names for one in _of_images(name, list(follow))]
    if not packages or any("{image}" in name for name in packages):
        problem = "no package of a kernel is installed that the prebuilt modules follow"
        remedy = f"Install one of {', '.join(system['__platform_headers_follow'])}."
        return Choice(refusal=Refusal("nvidia_driver_source", problem, remedy))
    is_built = entry["build"] == "dkms" and not settings.get("carried")
    headers, optional = _headers(settings, system, kernel, follow.values()) if is_built else ([], [])
    return Choice(
        flavor,
        branch,
        entry["build"],
        tuple(dict.fromkeys([*packages, *headers])),
        tuple(dict.fromkeys(optional)),
        tuple(name.replace("{branch}", branch) for key, name in entry.get("streams", {}).items() if key == flavor),
        fabric,
        imex,
    )


def _package_refusal(
    settings: Mapping[str, Any],
    entry: Mapping[str, Any],
    system: Mapping[str, Any],
    needs: tuple[str, str],
    *,
    imex: bool,
) -> Refusal | None:
    """Return why the packages of a source lack what a node needs: its fabric, IMEX, or the flavour of its modules."""
    flavor, fabric = needs
    wanted = {fabric: ("fabric manager", FABRICS[fabric])} if fabric else {}
    wanted |= {"imex": ("IMEX", "multi-node NVLink (cluster_nvlink_domain)")} if imex else {}
    title, source = system.get("__platform_title"), settings["source"]
    for key, (software, machines) in wanted.items():
        if not entry.get(key):
            problem = f"{title} has no {software} in its {source} packages for machines with {machines}"
            remedy = (
                f"Choose another nvidia_driver_source, or install driver and {software} yourself and set `present`."
            )
            return Refusal("nvidia_driver_source", problem, remedy)
    if entry.get(flavor):
        return None
    problem = f"{title} has no {flavor} kernel modules in its {source} packages"
    return Refusal("nvidia_driver_source", problem, "Choose another nvidia_driver_source.")


def _headers(
    settings: Mapping[str, Any], system: Mapping[str, Any], kernel: str, follow: Iterable[str]
) -> tuple[list[str], list[str]]:
    """Return the required headers, which are those of listed kernels, and the optional ones."""
    name = system["__platform_headers_package"]
    listed = [name.replace("{kernel}", one) for one in settings.get("kernels") or ()]
    return listed, [] if listed else [name.replace("{kernel}", kernel), *follow]


def _dcgm_refusal(
    settings: Mapping[str, Any], entry: Mapping[str, Any], system: Mapping[str, Any], devices: Sequence[str]
) -> Refusal | None:
    """Return why a node with GPUs does not get DCGM."""
    if not settings.get("dcgm") or not devices or entry.get("dcgm"):
        return None
    problem = f"{system.get('__platform_title')} has no DCGM in its {settings['source']} packages"
    return Refusal("nvidia_driver_dcgm_enabled", problem, "Set it to false, or choose another nvidia_driver_source.")


def _of_images(name: str, images: Sequence[str]) -> list[str]:
    """Return a package for each installed kernel package: ``{image}`` is the end of its name."""
    if "{image}" not in name or not images:
        return [name]
    return [name.replace("{image}", image.partition("linux-image-")[2]) for image in images]


def _choice(
    facts: Mapping[str, Any], settings: Mapping[str, Any], system: Mapping[str, Any], node: Mapping[str, Any]
) -> dict[str, Any]:
    choice = choose(
        settings, system, facts["gpus"], node["kernel"], node["packages"], has_switches=facts["has_switches"]
    )
    return {**choice._asdict(), "refusal": (choice.refusal or Refusal("", "", ""))._asdict()}


class FilterModule:
    """Filters of the role nvidia_driver."""

    def filters(self) -> dict[str, object]:
        """Return the filters by name."""
        return {"nvidia_driver_choice": _choice}
