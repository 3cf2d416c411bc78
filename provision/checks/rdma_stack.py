"""RDMA: packages, devices, Soft-RoCE, GIDs."""

from __future__ import annotations

from collections.abc import Mapping

from provision.checks.base import check
from provision.commands.rdma_stack import is_vendor
from provision.components.check import Scene, Verdict, fail, known, passed, skip, warn
from provision.facts import data_interface
from provision.facts.kernel_module_failures import compiler_line, diagnose
from provision.facts.nvidia_driver import DkmsTree
from provision.facts.rdma import RdmaDevice, VendorStack

_CORE = ("rdma-core", "libibverbs", "libibverbs1")
_PROFILES = {"doca": "doca-ofed", "mlnx_ofed": "mlnx-ofed-all"}


def _requests_vendor_stack(scene: Scene) -> bool:
    """Return whether the role installs a vendor's stack on the node."""
    kernels: list[str] = scene.want("rdma_stack_kernels", default=[])
    return is_vendor(scene.want("rdma_stack_source", "")) and (bool(kernels) or not scene.container)


@check("rdma_stack.packages")
def _packages(scene: Scene) -> Verdict:
    packages = known(scene.facts.packages)
    stack = known(scene.facts.rdma)
    receipt = scene.receipt("rdma_stack.packages")
    managed = receipt.names("packages") if receipt else ()
    missing = [name for name in managed if name not in packages]
    if missing:
        return fail("rdma_stack.packages.removed", packages=missing)
    if _requests_vendor_stack(scene):
        return _vendor_packages(scene, packages, stack.ofed)
    if is_vendor(scene.want("rdma_stack_source", "")):
        return skip("rdma_stack.packages.container")
    if stack.ofed:
        return passed("rdma_stack.packages.ofed", ofed=stack.ofed)
    core = next((name for name in _CORE if name in packages), None)
    if core is None:
        return fail("rdma_stack.packages.not_installed")
    return passed("rdma_stack.packages.ok", package=core, version=packages[core])


def _vendor_packages(scene: Scene, packages: Mapping[str, str], ofed: str) -> Verdict:
    """Judge the requested stack of a vendor by the package of its profile."""
    source = scene.want("rdma_stack_source", "")
    profile, version = scene.want("rdma_stack_profile", "") or _PROFILES[source], scene.want("rdma_stack_version", "")
    if profile not in packages:
        return fail("rdma_stack.packages.no_profile", profile=profile)
    installed = packages[profile].rpartition(":")[2]
    if not installed.startswith(version) or (version and installed[len(version) :][:1] in tuple("0123456789.")):
        return fail("rdma_stack.packages.other_version", profile=profile, installed=installed, requested=version)
    return passed("rdma_stack.packages.vendor", profile=profile, version=installed, ofed=ofed or "unknown")


@check("rdma_stack.modules")
def _modules(scene: Scene) -> Verdict:
    if not _requests_vendor_stack(scene):
        return skip("rdma_stack.modules.none")
    if scene.container:
        return skip("rdma_stack.modules.container")
    kernels: list[str] = scene.want("rdma_stack_kernels", default=[])
    running = known(scene.facts.system).kernel
    if kernels and running not in kernels:
        return warn("rdma_stack.modules.other_kernel", kernels=kernels, running=running)
    vendor = known(scene.facts.rdma).vendor
    failed = [tree for tree in vendor.trees if not tree.built]
    if not vendor.trees or failed:
        return _not_built(failed[0] if failed else None)
    return _not_loaded(vendor) or passed(
        "rdma_stack.modules.ok", trees=[f"{tree.name} {tree.version}" for tree in vendor.trees]
    )


def _not_loaded(vendor: VendorStack) -> Verdict | None:
    """Return why the installed modules are not the loaded ones."""
    if vendor.replaced:
        return fail("rdma_stack.modules.replaced", modules=vendor.replaced)
    if vendor.openibd == "active" and vendor.openibd_enabled:
        return None
    enabled = "" if vendor.openibd_enabled else "not "
    return fail("rdma_stack.modules.openibd", state=vendor.openibd or "not installed", enabled=enabled)


def _not_built(tree: DkmsTree | None) -> Verdict:
    if tree is None or not tree.errors:
        return fail("rdma_stack.modules.not_built")
    cause = diagnose(make="\n".join(tree.errors))
    return fail(
        "rdma_stack.modules.build_failed",
        name=tree.name,
        version=tree.version,
        line=compiler_line(tree.errors) or tree.errors[0],
        explanation=cause.explanation.rstrip("."),
        advice=cause.remedy,
    )


@check("rdma_stack.firmware")
def _firmware(scene: Scene) -> Verdict:
    """Report the firmware; nothing here updates it, and cluster.skew compares it between nodes."""
    devices = [device for device in known(scene.facts.rdma).devices if not device.soft]
    reported = [device for device in devices if device.firmware]
    if not devices:
        return skip("rdma_stack.devices.none")
    if not reported:
        return skip("rdma_stack.firmware.not_reported")
    texts = [f"{one.name} {one.firmware}" + (f" ({one.board})" if one.board else "") for one in reported]
    return passed("rdma_stack.firmware.ok", firmware=texts)


@check("rdma_stack.devices")
def _devices(scene: Scene) -> Verdict:
    stack = known(scene.facts.rdma)
    hard = [device for device in stack.devices if not device.soft]
    if not hard:
        if stack.pci_cards:
            return fail("rdma_stack.devices.no_device", cards=stack.pci_cards)
        return skip("rdma_stack.devices.none")
    down = [_describe(device) for device in hard if not device.active]
    if len(down) == len(hard):
        return fail("rdma_stack.devices.all_down", devices=down)
    if down:
        return warn("rdma_stack.devices.some_down", active=len(hard) - len(down), count=len(hard), devices=down)
    return passed("rdma_stack.devices.ok", count=len(hard), devices=(_describe(device) for device in hard))


def _describe(device: RdmaDevice) -> str:
    states = "/".join(f"{port.state} {port.rate}".strip() for port in device.ports) or "no port"
    return f"{device.name} ({states})"


@check("rdma_stack.soft_roce")
def _soft_roce(scene: Scene) -> Verdict:
    if not scene.want("rdma_stack_soft_roce_enabled", default=False):
        return skip("rdma_stack.soft_roce.disabled")
    if scene.container:
        return skip("rdma_stack.soft_roce.container")
    stack = known(scene.facts.rdma)
    if "rdma_rxe" not in known(scene.facts.modules):
        return fail("rdma_stack.soft_roce.module_missing")
    interface = scene.want("rdma_stack_soft_roce_interface", default="") or data_interface(
        scene.node.variables, scene.facts
    )
    soft = [d for d in stack.devices if d.soft and (not interface or interface in d.netdevs)]
    if not soft:
        return fail("rdma_stack.soft_roce.no_device", interface=interface or "any interface")
    if not soft[0].active:
        link = " ".join(["ip link show", interface or next(iter(sorted(soft[0].netdevs)), "")]).strip()
        return fail("rdma_stack.soft_roce.inactive", device=soft[0].name, command=link)
    return passed("rdma_stack.soft_roce.ok", device=soft[0].name, interfaces=soft[0].netdevs)


@check("rdma_stack.gids")
def _gids(scene: Scene) -> Verdict:
    stack = known(scene.facts.rdma)
    ports = [
        (device, port)
        for device in stack.devices
        for port in device.ports
        if port.active and port.link_layer == "Ethernet"
    ]
    if not ports:
        return skip("rdma_stack.gids.no_port")
    bare = [device.name for device, port in ports if not any(gid.routable_ipv4 for gid in port.gids)]
    if len(bare) == len(ports):
        return fail("rdma_stack.gids.none", devices=bare)
    if bare:
        return warn("rdma_stack.gids.missing", devices=bare)
    first = [next(g for g in port.gids if g.routable_ipv4) for _, port in ports]
    devices = [f"{device.name} index {gid.index}" for (device, _), gid in zip(ports, first, strict=True)]
    return passed("rdma_stack.gids.ok", devices=devices)
