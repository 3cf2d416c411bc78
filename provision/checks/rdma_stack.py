"""RDMA: packages, devices, Soft-RoCE, GIDs."""

from __future__ import annotations

from provision.checks.base import check
from provision.components.check import Scene, Verdict, fail, known, passed, skip, warn
from provision.facts import data_interface
from provision.facts.rdma import RdmaDevice

__all__: list[str] = []

_CORE = ("rdma-core", "libibverbs", "libibverbs1")
_NO_DEVICES = "no RDMA device and no RDMA card on the PCI bus"


@check("rdma_stack.packages")
def _packages(scene: Scene) -> Verdict:
    packages = known(scene.facts.packages)
    stack = known(scene.facts.rdma)
    receipts = scene.facts.receipts
    managed = () if not isinstance(receipts, dict) or "rdma_stack" not in receipts else (
        receipts["rdma_stack"].names("packages")
    )  # fmt: skip
    missing = [name for name in managed if name not in packages]
    if missing:
        return fail(f"packages are gone since the last apply: {', '.join(missing)}", scene.apply)
    if stack.ofed:
        return passed(f"{stack.ofed} is installed")
    core = next((name for name in _CORE if name in packages), None)
    if core is None:
        return fail("rdma-core is not installed", scene.apply)
    return passed(f"{core} {packages[core]}")


@check("rdma_stack.devices")
def _devices(scene: Scene) -> Verdict:
    stack = known(scene.facts.rdma)
    hard = [device for device in stack.devices if not device.soft]
    if not hard:
        if stack.pci_cards:
            return fail(
                f"{stack.pci_cards} RDMA cards are on the PCI bus, but the kernel shows no RDMA device",
                f"Look for the driver's messages: dmesg | grep -i mlx. {scene.apply}",
            )
        return skip(_NO_DEVICES)
    down = [_describe(device) for device in hard if not device.active]
    if len(down) == len(hard):
        return fail(
            f"no port is active: {', '.join(down)}", "Check cables, switch ports and (InfiniBand) the subnet manager."
        )
    if down:
        return warn(
            f"{len(hard) - len(down)} of {len(hard)} devices are active; not: {', '.join(down)}",
            "Check their cables and switch ports, if they are meant to be used.",
        )
    return passed(f"{len(hard)} devices active: {', '.join(_describe(device) for device in hard)}")


def _describe(device: RdmaDevice) -> str:
    states = "/".join(f"{port.state} {port.rate}".strip() for port in device.ports) or "no port"
    return f"{device.name} ({states})"


@check("rdma_stack.soft_roce")
def _soft_roce(scene: Scene) -> Verdict:
    if not scene.want("rdma_stack_soft_roce_enabled", default=False):
        return skip("the inventory asks for no Soft-RoCE")
    if scene.container:
        return skip("a container cannot load kernel modules")
    stack = known(scene.facts.rdma)
    if "rdma_rxe" not in known(scene.facts.modules):
        return fail("the kernel module rdma_rxe is not loaded", scene.apply)
    interface = scene.want("rdma_stack_soft_roce_interface", default="") or data_interface(
        scene.node.variables, scene.facts
    )
    found = [d for d in stack.devices if d.soft and (not interface or interface in d.netdevs)]
    if not found:
        return fail(f"no Soft-RoCE device on {interface or 'any interface'}", scene.apply)
    if not found[0].active:
        link = " ".join(["ip link show", interface or next(iter(sorted(found[0].netdevs)), "")]).strip()
        return fail(f"the Soft-RoCE device {found[0].name} is not active", f"Is the link up? {link}")
    return passed(f"{found[0].name} on {', '.join(found[0].netdevs)} is active")


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
        return skip("no active RoCE port")
    bare = [device.name for device, port in ports if not any(gid.routable_ipv4 for gid in port.gids)]
    if len(bare) == len(ports):
        return fail(
            f"no port has a RoCE v2 GID of an IPv4 address: {', '.join(bare)}",
            "Give the cards' network interfaces their IPv4 addresses.",
        )
    if bare:
        return warn(
            f"without a RoCE v2 GID of an IPv4 address: {', '.join(bare)}",
            "Give their network interfaces IPv4 addresses, if they are meant to be used.",
        )
    first = [next(g for g in port.gids if g.routable_ipv4) for _, port in ports]
    shown = ", ".join(f"{device.name} index {gid.index}" for (device, _), gid in zip(ports, first, strict=True))
    return passed(f"RoCE v2 over IPv4: {shown}")
