"""The health of RDMA ports: their rate, their errors, and the PCIe links of their cards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from provision.checks.base import check
from provision.checks.health_limits import PORT_COUNTERS, PORT_MENTIONED, SHORT_LINK_LANES
from provision.checks.wording import few, span
from provision.components.check import Scene, Verdict, fail, known, passed, skip, warn
from provision.facts import Unknown
from provision.facts.pci_links import PciLink
from provision.facts.rdma import RdmaDevice, RdmaPort
from provision.facts.system import Boot, NodeKind

__all__: list[str] = []

_HOUR = 3600
_CABLE = "Reseat or replace the cable and its modules, and look at the switch port at the other end."


def _kind(device: RdmaDevice, port: RdmaPort) -> tuple[str, str]:
    """Ports are compared with ports of the same card; without its name, of the same driver."""
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
        return skip("no active port of a card tells its rate")
    short = [
        f"{device.name} {port.rate}"
        for device, port in ports
        if port.link_layer == "InfiniBand" and port.lanes == SHORT_LINK_LANES
    ]
    if short:
        return fail(f"InfiniBand links have lost lanes: {few(short)}", _CABLE)
    told = [(device.name, port.gbit or 0, _kind(device, port)) for device, port in ports]
    best: dict[tuple[str, str], float] = defaultdict(float)
    for _, gbit, kind in told:
        best[kind] = max(best[kind], gbit)
    slow = [f"{name} {gbit:g} of {best[kind]:g} Gbit/s" for name, gbit, kind in told if gbit < best[kind]]
    if slow:
        return warn(
            f"ports are slower than others of the same kind of card: {few(slow)}",
            f"{_CABLE} If they are meant for a slower network, nothing is wrong.",
        )
    rates = sorted({f"{port.gbit:g}" for _, port in ports}, key=float)
    return passed(f"{len(ports)} active ports at {' and '.join(rates)} Gbit/s")


@check("rdma_stack.port_errors")
def _port_errors(scene: Scene) -> Verdict:
    if not any(not device.soft for device in known(scene.facts.rdma).devices):
        return skip("no RDMA card")
    counters = known(scene.facts.rdma_counters)
    hours = max(scene.facts.boot.uptime_seconds / _HOUR, 1) if isinstance(scene.facts.boot, Boot) else 1
    for fails, verdict in ((True, fail), (False, warn)):
        found = [
            f"{place}: {values[name]} {limit.text} ({values[name] / hours:.2g} an hour)"
            for place, values in counters.items()
            for name, limit in PORT_COUNTERS.items()
            if limit.fails is fails and values.get(name, 0) > limit.per_hour * hours
        ]
        if found:
            return verdict(f"errors since boot, {span(hours * _HOUR)} ago: {few(found)}", _CABLE)
    mentioned = _mentioned(counters)
    return passed(f"no more errors than a good link has since boot, {span(hours * _HOUR)} ago{mentioned}")


def _mentioned(counters: Mapping[str, Mapping[str, int]]) -> str:
    sums = {name: sum(values.get(name, 0) for values in counters.values()) for name in PORT_MENTIONED}
    told = ", ".join(f"{name} {count}" for name, count in sums.items() if count)
    return f"; of congestion and ended jobs: {told}" if told else ""


@check("rdma_stack.pcie_width")
def _pcie(scene: Scene) -> Verdict:
    kind = scene.facts.kind
    if not isinstance(kind, Unknown) and kind.kind is not NodeKind.METAL:
        return skip("what a virtual machine or container sees of PCIe links is not the cards' own")
    links = [link for link in known(scene.facts.pci_links) if not link.gpu and link.width and link.expected_width]
    if not links:
        return skip("no network card that tells of its PCIe link")
    remedy = (
        "Reseat the card or its riser, look at dmesg for PCIe errors (AER), and at the slot's settings in the BIOS."
    )
    narrow = [f"{link.address} has {link.width} of {link.expected_width} lanes" for link in links if _narrow(link)]
    if narrow:
        return fail(f"cards have fewer PCIe lanes than they and their slots can: {few(narrow)}", remedy)
    slow = [
        f"{link.address} has {link.speed:g} of {link.expected_speed:g} GT/s"
        for link in links
        if link.speed and link.expected_speed and link.speed < link.expected_speed
    ]
    if slow:
        return warn(f"cards' PCIe links are slower than they and their slots can: {few(slow)}", remedy)
    return passed(f"{len(links)} cards have all PCIe lanes that they and their slots can")


def _narrow(link: PciLink) -> bool:
    return (link.width or 0) < (link.expected_width or 0)
