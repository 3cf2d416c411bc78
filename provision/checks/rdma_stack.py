"""RDMA: packages, devices, Soft-RoCE, GIDs."""

from __future__ import annotations

from provision.checks.base import check
from provision.components.check import Scene, Verdict, fail, known, passed, skip, warn
from provision.facts import data_interface
from provision.facts.rdma import RdmaDevice

_CORE = ("rdma-core", "libibverbs", "libibverbs1")


@check("rdma_stack.packages")
def _packages(scene: Scene) -> Verdict:
    packages = known(scene.facts.packages)
    stack = known(scene.facts.rdma)
    receipt = scene.receipt("rdma_stack.packages")
    managed = receipt.names("packages") if receipt else ()
    missing = [name for name in managed if name not in packages]
    if missing:
        return fail("rdma_stack.packages.removed", packages=missing)
    if stack.ofed:
        return passed("rdma_stack.packages.ofed", ofed=stack.ofed)
    core = next((name for name in _CORE if name in packages), None)
    if core is None:
        return fail("rdma_stack.packages.not_installed")
    return passed("rdma_stack.packages.ok", package=core, version=packages[core])


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
