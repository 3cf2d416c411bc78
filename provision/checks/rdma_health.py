"""The health of RDMA ports: their rate, their errors, and the PCIe links of their cards."""

from __future__ import annotations

from collections import defaultdict

from provision.checks.base import check
from provision.checks.health_limits import PORT_COUNTERS, PORT_MENTIONED, SHORT_LINK_LANES
from provision.components.check import Scene, Verdict, fail, known, passed, skip, warn
from provision.facts import Unknown
from provision.facts.pci_links import PciLink
from provision.facts.rdma import RdmaDevice, RdmaPort
from provision.facts.system import Boot, NodeKind
from provision.model.reason import reason

_HOUR = 3600


def _kind(device: RdmaDevice, port: RdmaPort) -> tuple[str, str]:
    """Return what ports are compared by: the kind of card, or its driver if the kind is unknown."""
    return device.board or device.driver, port.link_layer


@check("rdma_stack.port_rate")
def _port_rate(scene: Scene) -> Verdict:
    stack = known(scene.facts.rdma)
    ports = [
        (device, port)
        for device in stack.devices
        for port in device.ports
        if not device.soft and port.active and port.gbit is not None
    ]
    if not ports:
        return skip("rdma_stack.port_rate.not_reported")
    short = [
        f"{device.name} {port.rate}"
        for device, port in ports
        if port.link_layer == "InfiniBand" and port.lanes == SHORT_LINK_LANES
    ]
    if short:
        return fail("rdma_stack.port_rate.lanes_lost", ports=short)
    rated = [(device.name, port.gbit or 0, _kind(device, port)) for device, port in ports]
    best: dict[tuple[str, str], float] = defaultdict(float)
    for _, gbit, kind in rated:
        best[kind] = max(best[kind], gbit)
    slow = [f"{name} {gbit:g} of {best[kind]:g} Gbit/s" for name, gbit, kind in rated if gbit < best[kind]]
    if slow:
        return warn("rdma_stack.port_rate.slower", ports=slow)
    rates = sorted({f"{port.gbit:g}" for _, port in ports}, key=float)
    return passed("rdma_stack.port_rate.ok", count=len(ports), rates=rates)


@check("rdma_stack.port_errors")
def _port_errors(scene: Scene) -> Verdict:
    if not any(not device.soft for device in known(scene.facts.rdma).devices):
        return skip("rdma_stack.no_card")
    counters = known(scene.facts.rdma_counters)
    hours = max(scene.facts.boot.uptime_seconds / _HOUR, 1) if isinstance(scene.facts.boot, Boot) else 1
    for fails, verdict in ((True, fail), (False, warn)):
        errors = [
            reason(
                "rdma_stack.port_errors.counter",
                port=port,
                count=values[name],
                what=limit.text,
                per_hour=values[name] / hours,
            )
            for port, values in counters.items()
            for name, limit in PORT_COUNTERS.items()
            if limit.fails is fails and values.get(name, 0) > limit.per_hour * hours
        ]
        if errors:
            return verdict("rdma_stack.port_errors.errors", seconds=hours * _HOUR, errors=errors)
    sums = {name: sum(values.get(name, 0) for values in counters.values()) for name in PORT_MENTIONED}
    others = [f"{name} {count}" for name, count in sums.items() if count]
    return passed("rdma_stack.port_errors.ok", seconds=hours * _HOUR, others=others)


@check("rdma_stack.pcie_width")
def _pcie(scene: Scene) -> Verdict:
    kind = scene.facts.kind
    if not isinstance(kind, Unknown) and kind.kind is not NodeKind.METAL:
        return skip("rdma_stack.pcie_width.virtual")
    links = [link for link in known(scene.facts.pci_links) if not link.gpu and link.width and link.expected_width]
    if not links:
        return skip("rdma_stack.pcie_width.not_reported")
    narrow = [f"{link.address} has {link.width} of {link.expected_width} lanes" for link in links if _narrow(link)]
    if narrow:
        return fail("rdma_stack.pcie_width.narrow", cards=narrow)
    slow = [
        f"{link.address} has {link.speed:g} of {link.expected_speed:g} GT/s"
        for link in links
        if link.speed and link.expected_speed and link.speed < link.expected_speed
    ]
    if slow:
        return warn("rdma_stack.pcie_width.slow", cards=slow)
    return passed("rdma_stack.pcie_width.ok", count=len(links))


def _narrow(link: PciLink) -> bool:
    return (link.width or 0) < (link.expected_width or 0)
