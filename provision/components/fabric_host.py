"""The role fabric_host: interfaces, hugepages, CPU governor, irqbalance, PCIe, RoCE and arguments of the kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from provision.commands.fabric_arguments import argument_problem
from provision.commands.fabric_interfaces import data_interfaces
from provision.components.base import Component, NodeState, Setting, Variables
from provision.components.check import Check, Scene, Verdict, fail, known, passed, skip, warn
from provision.facts import NodeFacts, Unknown, data_interface, is_container, plain
from provision.facts.fabric import Card, Interface
from provision.model import PreflightCode
from provision.model.cause import Cause, CauseKind
from provision.model.reason import Wording

_MTU, _INTERFACES, _GOVERNOR = "fabric_host_mtu", "fabric_host_interfaces", "fabric_host_cpu_governor"
_ARGUMENTS = "fabric_host_kernel_arguments"
_READ_REQUEST, _ACS = "fabric_host_pcie_max_read_request", "fabric_host_pcie_acs"
_NAMES = "fabric_host_interface_names"
_ROCE_MODE, _ROCE_TOS = "fabric_host_roce_mode", "fabric_host_roce_tos"
_IRQ, _IRQBALANCE = "fabric_host_irq_affinity", "fabric_host_irqbalance"
_TRUST, _PFC, _ECN = "fabric_host_roce_trust", "fabric_host_roce_pfc", "fabric_host_roce_ecn"
_QOS = {_TRUST: ("trust",), _PFC: ("pfc",), _ECN: ("roce_np", "roce_rp")}
_FLAGS = re.compile(r"[01](,[01]){7}")
_MOST_TOS = 255
_READ_REQUESTS = (128, 256, 512, 1024, 2048, 4096)
_LEAST_MTU, _MOST_MTU = 1280, 65520
_MOST_PAGES, _MOST_PERCENT = 2**24, 90
_ARP = {"rp_filter": 2, "arp_ignore": 1, "arp_announce": 2}
_HUGEPAGES = {"fabric_host_hugepages_2mib": 2048, "fabric_host_hugepages_1gib": 1048576}
_NEW_NAME = re.compile(r"(?!((eth|ib|wlan|wwan|usb)[0-9]*|lo|all|default|bonding_masters)$)[a-z][a-z0-9_-]{0,14}")
_PCI = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,15}|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def _interfaces(variables: Variables, facts: NodeFacts) -> dict[str, Interface]:
    """Return the data interfaces of the node that exist, as the role chooses them."""
    fabric = known(facts.fabric)
    chosen = variables.get(_INTERFACES)
    if not (isinstance(chosen, list) and chosen and plain(chosen)):
        own = (one for one in known(facts.addresses) if one.version == 4)  # noqa: PLR2004 - those that the role sees
        addresses = [{"interface": one.interface, "address": one.address} for one in own]
        networks = variables.get("cluster_data_networks")
        networks = networks if isinstance(networks, list) and plain(networks) else []
        chosen = data_interfaces(addresses, networks, data_interface(variables, facts) or "")
    wanted = {str(name) for name in chosen}
    return {name: one for name, one in fabric.interfaces.items() if not wanted.isdisjoint({name, one.pci})}


def _cards(variables: Variables, facts: NodeFacts) -> dict[str, Card]:
    """Return the cards of the data interfaces by PCI address."""
    return known(facts.fabric).cards_of(_interfaces(variables, facts))


def _redirecting(variables: Variables, facts: NodeFacts) -> tuple[str, ...] | None:
    """Return the bridges above data cards, GPUs and RDMA devices that redirect their traffic; None if unknown."""
    peers = [card for card in known(facts.fabric).cards.values() if card.peer]
    bridges = {bridge for card in [*peers, *_cards(variables, facts).values()] for bridge in card.bridges}
    redirecting = known(facts.pci_routing).redirecting
    return None if redirecting is None else tuple(one for one in redirecting if one in bridges)


def _roce_ports(variables: Variables, facts: NodeFacts) -> list[tuple[str, int]]:
    """Return device and port of the RoCE ports with a GID of a data interface."""
    names = set(known(facts.fabric).below(_interfaces(variables, facts)))
    ports = ((device.name, port) for device in known(facts.rdma).devices for port in device.ports)
    return [(name, port.number) for name, port in ports if not names.isdisjoint(gid.netdev for gid in port.gids)]


def _wrong_roce_ports(facts: NodeFacts, ports: list[tuple[str, int]], mode: object, tos: object) -> list[str]:
    """Return the devices whose defaults differ or are unknown; an empty mode and a type of service of -1 are unset."""
    wrong = []
    for port in ports:
        now_mode, now_tos = known(facts.fabric).roce.get(port, ("", None))
        if (mode and now_mode != mode) or tos not in {-1, now_tos}:
            wrong.append(port[0])
    return list(dict.fromkeys(wrong))


def _qos_of(variables: Variables) -> dict[str, str]:
    """Return the desired value of each setting of a card; those with Jinja are left out."""
    values = {name: variables.get(name) for name in _QOS}
    texts = {name: value.replace(" ", "") for name, value in values.items() if isinstance(value, str) and plain(value)}
    return {setting: text for name, text in texts.items() if text for setting in _QOS[name]}


def _different_qos(variables: Variables, facts: NodeFacts) -> tuple[list[str], list[str]]:
    """Return the interfaces with other values or none that the role has set, and those whose values are unknown.

    The values are unknown to a node without mlnx_qos, or with another driver.
    """
    fabric, wanted = known(facts.fabric), _qos_of(variables)
    names = [name for name in fabric.below(_interfaces(variables, facts)) if name not in fabric.lower]
    different, unknown = [], []
    for name in names:
        now = fabric.qos.get(name)
        if now is None or any(now.get(setting, value) != value for setting, value in wanted.items()):
            different.append(name)
        elif set(wanted) - set(now):
            unknown.append(name)
    return different, unknown


# Checks


def _mtu(scene: Scene) -> Verdict:
    mtu = scene.want(_MTU, default=0)
    if not mtu:
        return skip("fabric_host.mtu.unset")
    interfaces = _interfaces(scene.node.variables, scene.facts)
    if not interfaces:
        return fail("fabric_host.mtu.no_interface")
    wrong = {name: one.mtu for name, one in interfaces.items() if one.mtu != mtu}
    if wrong:
        return fail(
            "fabric_host.mtu.differs", interfaces=tuple(wrong), current=tuple(sorted(set(wrong.values()))), mtu=mtu
        )
    return passed("fabric_host.mtu.ok", mtu=mtu, interfaces=tuple(interfaces))


def _arp(scene: Scene) -> Verdict:
    if not scene.want("fabric_host_arp_enabled", default=False):
        return skip("fabric_host.arp.unset")
    if scene.container:
        return skip("fabric_host.arp.container")
    interfaces = _interfaces(scene.node.variables, scene.facts)
    if not interfaces:
        return fail("fabric_host.arp.no_interface")
    wrong = [name for name, one in interfaces.items() if any(getattr(one, key) != value for key, value in _ARP.items())]
    if wrong:
        return fail("fabric_host.arp.differs", interfaces=wrong)
    return passed("fabric_host.arp.ok", interfaces=tuple(interfaces))


def _hugepages(scene: Scene) -> Verdict:
    desired = {size: count for name, size in _HUGEPAGES.items() if (count := scene.want(name, default=-1)) >= 0}
    if not desired:
        return skip("fabric_host.hugepages.unset")
    if scene.container:
        return skip("fabric_host.hugepages.container")
    pages = known(scene.facts.fabric).hugepages
    for size, count in desired.items():
        now = pages.get(size)
        if now is None:
            return warn("fabric_host.hugepages.unsupported", size=size)
        if 0 < now < count:
            return warn("fabric_host.hugepages.fewer", size=size, current=now, count=count)
        if now != count:
            return fail("fabric_host.hugepages.differs", size=size, current=now, count=count)
    return passed("fabric_host.hugepages.ok", count=sum(desired.values()))


def _interface_names(scene: Scene) -> Verdict:
    names: dict[str, str] = scene.want(_NAMES, default={})
    if not names:
        return skip("fabric_host.interface_names.unset")
    if scene.container:
        return skip("fabric_host.interface_names.container")
    fabric = known(scene.facts.fabric)
    different = [name for name, address in names.items() if fabric.names.get(name) != address]
    if different:
        return fail("fabric_host.interface_names.differs", names=different)
    missing = [name for name, address in names.items() if not fabric.at(address)]
    if missing:
        return warn("fabric_host.interface_names.missing", names=missing)
    current = [now for name, address in names.items() if (now := fabric.at(address)) != name]
    if current:
        return warn("fabric_host.interface_names.reboot", interfaces=current)
    return passed("fabric_host.interface_names.ok", names=tuple(names))


def _governor(scene: Scene) -> Verdict:
    governor = scene.want(_GOVERNOR, default="")
    if not governor:
        return skip("fabric_host.governor.unset")
    if scene.container:
        return skip("fabric_host.governor.container")
    now = known(scene.facts.fabric).governors
    if not now:
        return skip("fabric_host.governor.unsupported")
    if now != {governor}:
        return fail("fabric_host.governor.differs", current=tuple(sorted(now)), governor=governor)
    return passed("fabric_host.governor.ok", governor=governor)


def _kernel_arguments(scene: Scene) -> Verdict:
    wanted: list[str] = scene.want(_ARGUMENTS, default=[])
    if not wanted:
        return skip("fabric_host.kernel_arguments.unset")
    if scene.container:
        return skip("fabric_host.kernel_arguments.container")
    fabric = known(scene.facts.fabric)
    menu = fabric.boot_arguments
    missing = [] if menu is None else [name for name in wanted if name not in menu]
    if missing:
        return fail("fabric_host.kernel_arguments.differs", arguments=missing)
    inactive = [name for name in wanted if name not in fabric.kernel_arguments]
    if inactive:
        return warn("fabric_host.kernel_arguments.reboot", arguments=inactive)
    return passed("fabric_host.kernel_arguments.ok", arguments=wanted)


def _read_request(scene: Scene) -> Verdict:
    size = scene.want(_READ_REQUEST, default=0)
    if not size:
        return skip("fabric_host.pcie_read_request.unset")
    if scene.container:
        return skip("fabric_host.pcie_read_request.container")
    cards = _cards(scene.node.variables, scene.facts)
    sizes = {address: card.max_read_request for address, card in cards.items() if card.max_read_request is not None}
    if not sizes:
        return skip("fabric_host.pcie_read_request.unknown")
    wrong = {address: now for address, now in sizes.items() if now != size}
    if wrong:
        return fail(
            "fabric_host.pcie_read_request.differs",
            cards=tuple(wrong),
            current=tuple(sorted(set(wrong.values()))),
            size=size,
        )
    return passed("fabric_host.pcie_read_request.ok", size=size, cards=tuple(sizes))


def _acs(scene: Scene) -> Verdict:
    if not scene.want(_ACS, default=""):
        return skip("fabric_host.pcie_acs.unset")
    if scene.container:
        return skip("fabric_host.pcie_acs.container")
    redirecting = _redirecting(scene.node.variables, scene.facts)
    if redirecting is None:
        return skip("fabric_host.pcie_acs.unknown")
    if redirecting:
        return fail("fabric_host.pcie_acs.differs", bridges=redirecting)
    return passed("fabric_host.pcie_acs.ok")


def _roce(scene: Scene) -> Verdict:
    mode, tos = scene.want(_ROCE_MODE, default=""), scene.want(_ROCE_TOS, default=-1)
    if not mode and tos == -1:
        return skip("fabric_host.roce.unset")
    if scene.container:
        return skip("fabric_host.roce.container")
    ports = _roce_ports(scene.node.variables, scene.facts)
    if not ports:
        return skip("fabric_host.roce.no_device")
    wrong = _wrong_roce_ports(scene.facts, ports, mode, tos)
    if wrong:
        return fail("fabric_host.roce.differs", devices=wrong)
    return passed("fabric_host.roce.ok", devices=tuple(dict.fromkeys(name for name, _ in ports)))


def _interrupts(scene: Scene) -> Verdict:
    if not scene.want(_IRQ, default=""):
        return skip("fabric_host.irq_affinity.unset")
    if scene.container:
        return skip("fabric_host.irq_affinity.container")
    cards = tuple(_cards(scene.node.variables, scene.facts))
    interrupts = known(scene.facts.fabric).interrupts
    if not cards:
        return skip("fabric_host.irq_affinity.no_card")
    wrong = [card for card in cards if card not in interrupts or interrupts[card]]
    if wrong:
        return fail("fabric_host.irq_affinity.differs", cards=wrong)
    if all(interrupts[card] is None for card in cards):
        return skip("fabric_host.irq_affinity.unknown")
    return passed("fabric_host.irq_affinity.ok", cards=cards)


def _qos(scene: Scene) -> Verdict:
    if not any(scene.want(name, default="") for name in _QOS):
        return skip("fabric_host.roce_qos.unset")
    if scene.container:
        return skip("fabric_host.roce_qos.container")
    different, unknown = _different_qos(scene.node.variables, scene.facts)
    if different:
        return fail("fabric_host.roce_qos.differs", interfaces=different)
    if unknown:
        return warn("fabric_host.roce_qos.unknown", interfaces=unknown)
    return passed("fabric_host.roce_qos.ok")


# Planning


def _is_disruptive(causes: Sequence[Cause], state: NodeState) -> bool:
    """Return whether the step ends the connections of a job, takes memory from it, or changes the path of its data."""
    changed = {cause.name for cause in causes if cause.kind is CauseKind.VARIABLE}
    if changed & {_MTU, _INTERFACES, *_HUGEPAGES, _READ_REQUEST, _ACS, _ROCE_MODE, _ROCE_TOS, *_QOS}:
        return True
    if _changes_qos(state.node.variables, state.facts):
        return True
    if _changes_pci(state.node.variables, state.facts) or _changes_roce(state.node.variables, state.facts):
        return True
    return _changes_mtu(state.node.variables, state.facts) or _changes_hugepages(state.node.variables, state.facts)


def _changes_mtu(variables: Variables, facts: NodeFacts) -> bool:
    mtu = variables.get(_MTU, 0)
    if not mtu:
        return False
    if not plain(mtu) or isinstance(facts.fabric, Unknown) or isinstance(facts.addresses, Unknown):
        return True
    return any(one.mtu != mtu for one in _interfaces(variables, facts).values())


def _changes_hugepages(variables: Variables, facts: NodeFacts) -> bool:
    desired = {size: variables.get(name, -1) for name, size in _HUGEPAGES.items()}
    desired = {size: count for size, count in desired.items() if not isinstance(count, int) or count >= 0}
    if not desired or is_container(facts):
        return False
    if isinstance(facts.fabric, Unknown):
        return True
    return any(facts.fabric.hugepages.get(size, count) != count for size, count in desired.items())


def _changes_pci(variables: Variables, facts: NodeFacts) -> bool:
    size, acs = variables.get(_READ_REQUEST, 0), variables.get(_ACS, "")
    if not (size or acs) or is_container(facts):
        return False
    if any(isinstance(fact, Unknown) for fact in (facts.fabric, facts.addresses, facts.pci_routing)) or not plain(size):
        return True
    sizes = [card.max_read_request for card in _cards(variables, facts).values()]
    differs = bool(size) and any(now not in (None, size) for now in sizes)
    return differs or bool(acs and _redirecting(variables, facts) != ())


def _changes_roce(variables: Variables, facts: NodeFacts) -> bool:
    mode, tos = variables.get(_ROCE_MODE, ""), variables.get(_ROCE_TOS, -1)
    if (not mode and tos == -1) or is_container(facts):
        return False
    if any(isinstance(fact, Unknown) for fact in (facts.fabric, facts.addresses, facts.rdma)) or not plain([mode, tos]):
        return True
    return bool(_wrong_roce_ports(facts, _roce_ports(variables, facts), mode, tos))


def _changes_qos(variables: Variables, facts: NodeFacts) -> bool:
    if not any(variables.get(name) for name in _QOS) or is_container(facts):
        return False
    if isinstance(facts.fabric, Unknown) or isinstance(facts.addresses, Unknown):
        return True
    return not plain([variables.get(name) for name in _QOS]) or bool(_different_qos(variables, facts)[0])


def _settings(variables: Variables, facts: NodeFacts) -> Iterator[Setting]:
    mtu, interfaces, governor = (variables.get(name) for name in (_MTU, _INTERFACES, _GOVERNOR))
    if isinstance(mtu, int) and mtu and not _LEAST_MTU <= mtu <= _MOST_MTU:
        problem = f"{mtu} is not between {_LEAST_MTU} and {_MOST_MTU}"
        yield PreflightCode.VARIABLE_INVALID, _MTU, problem, "Set an MTU that cards and switches support, or 0."
    for name in interfaces if isinstance(interfaces, list) and plain(interfaces) else ():
        if not _NAME.fullmatch(str(name)):
            problem = f"'{name}' is neither the name of an interface nor a PCI address"
            yield PreflightCode.VARIABLE_INVALID, _INTERFACES, problem, "Write eth1 or 0000:3b:00.0."
    if isinstance(governor, str) and plain(governor) and not re.fullmatch(r"[a-z_]{0,16}", governor):
        problem = f"'{governor}' is not the name of a governor"
        yield PreflightCode.VARIABLE_INVALID, _GOVERNOR, problem, "Set for example performance."
    yield from _name_problems(variables, facts)
    yield from _argument_problems(variables, facts)
    yield from _pci_problems(variables, facts)
    yield from _roce_problems(variables)
    irqbalance = variables.get(_IRQBALANCE, "")
    if variables.get(_IRQ) and plain([variables[_IRQ], irqbalance]) and irqbalance != "stopped":
        problem, remedy = (
            "irqbalance moves interrupts, and is not stopped by the role",
            "Set fabric_host_irqbalance: stopped.",
        )
        yield PreflightCode.VARIABLE_INVALID, _IRQ, problem, remedy
    for name in _HUGEPAGES:
        count = variables.get(name)
        if isinstance(count, int) and not -1 <= count <= _MOST_PAGES:
            problem = f"{count} is not between -1 and {_MOST_PAGES}"
            yield (
                PreflightCode.VARIABLE_INVALID,
                name,
                problem,
                "Set the number of pages, or -1 to leave them unchanged.",
            )
    yield from _memory_problems(variables, facts)


def _name_problems(variables: Variables, facts: NodeFacts) -> Iterator[Setting]:
    names = variables.get(_NAMES)
    if not (isinstance(names, Mapping) and names and plain(names)):
        return
    texts = {str(name): str(address) for name, address in names.items()}
    for name, address in texts.items():
        if not _NEW_NAME.fullmatch(name):
            problem = f"'{name}' is not a name for an interface (up to 15 of a-z, 0-9, _ and -; not eth0)"
            yield PreflightCode.VARIABLE_INVALID, _NAMES, problem, "Write for example rail0."
        if not _PCI.fullmatch(address):
            problem = f"'{address}' is not the PCI address of a card"
            yield PreflightCode.VARIABLE_INVALID, _NAMES, problem, "Write for example '0000:3b:00.0'."
    repeated = sorted({address for address in texts.values() if list(texts.values()).count(address) > 1})
    if repeated:
        problem = f"{', '.join(repeated)} has several names"
        yield PreflightCode.VARIABLE_INVALID, _NAMES, problem, "Write one name for each card."
    yield from _used_names(texts, variables, facts)


def _used_names(names: Mapping[str, str], variables: Variables, facts: NodeFacts) -> Iterator[Setting]:
    """Yield names of interfaces that connect the node, and references to interfaces by a name that changes."""
    if isinstance(facts.fabric, Unknown) or isinstance(facts.routes, Unknown) or is_container(facts):
        return
    used = facts.fabric.below(route.interface for route in facts.routes if route.destination == "default")
    changing = {now: name for name, address in names.items() if (now := facts.fabric.at(address)) not in {"", name}}
    for now in used:
        if now in changing:
            problem = f"{now} is an interface of the default route, and is not renamed"
            remedy = f"Remove {changing[now]}, or name it by the network manager of the node."
            yield PreflightCode.VARIABLE_INVALID, _NAMES, problem, remedy
    chosen = variables.get(_INTERFACES)
    for entry in map(str, chosen if isinstance(chosen, list) and plain(chosen) else ()):
        if entry in changing or entry in changing.values():
            address = names[changing.get(entry, entry)]
            problem = f"'{entry}': the name of this interface changes at the next boot"
            yield PreflightCode.VARIABLE_INVALID, _INTERFACES, problem, f"Write its PCI address: {address}."


def _argument_problems(variables: Variables, facts: NodeFacts) -> Iterator[Setting]:
    arguments = variables.get(_ARGUMENTS)
    if not (isinstance(arguments, list) and arguments and plain(arguments)):
        return
    for one in arguments:
        if problem := argument_problem(one):
            remedy = "Remove it; set it in the configuration of the boot loader if the node requires it."
            yield PreflightCode.VARIABLE_INVALID, _ARGUMENTS, f"'{one}' is refused: {problem}", remedy
    if not is_container(facts) and not isinstance(facts.fabric, Unknown) and not facts.fabric.boot_tool:
        problem = "the boot loader of the node is not GRUB 2 (neither grubby nor /boot/grub/grub.cfg exists)"
        remedy = "Set the arguments in the configuration of its boot loader, and remove them here."
        yield PreflightCode.VARIABLE_INVALID, _ARGUMENTS, problem, remedy


def _pci_problems(variables: Variables, facts: NodeFacts) -> Iterator[Setting]:
    size, acs = variables.get(_READ_REQUEST), variables.get(_ACS)
    if isinstance(size, int) and size and size not in _READ_REQUESTS:
        problem = f"{size} is not one of {', '.join(map(str, _READ_REQUESTS))}"
        yield PreflightCode.VARIABLE_INVALID, _READ_REQUEST, problem, "Set 4096, or 0."
    assigned = () if isinstance(facts.fabric, Unknown) or is_container(facts) else facts.fabric.assigned
    if acs and plain(acs) and assigned:
        problem = f"{', '.join(assigned[:5])} may be assigned to virtual machines (vfio), which ACS separates"
        yield PreflightCode.VARIABLE_INVALID, _ACS, problem, "Set it to an empty text on a virtualization host."


def _roce_problems(variables: Variables) -> Iterator[Setting]:
    tos = variables.get(_ROCE_TOS)
    if isinstance(tos, int) and not -1 <= tos <= _MOST_TOS:
        problem, remedy = (
            f"{tos} is not between -1 and {_MOST_TOS}",
            "Set for example 106, or -1 to leave it unchanged.",
        )
        yield PreflightCode.VARIABLE_INVALID, _ROCE_TOS, problem, remedy
    for name in (_PFC, _ECN):
        flags = variables.get(name)
        if isinstance(flags, str) and flags and plain(flags) and not _FLAGS.fullmatch(flags.replace(" ", "")):
            problem, remedy = (
                f"'{flags}' is not eight times 0 or 1, separated by commas",
                "Set for example 0,0,0,1,0,0,0,0.",
            )
            yield PreflightCode.VARIABLE_INVALID, name, problem, remedy
    trust = variables.get(_TRUST)
    if isinstance(trust, str) and plain(trust) and trust not in {"", "pcp", "dscp"}:
        yield (
            PreflightCode.VARIABLE_INVALID,
            _TRUST,
            f"'{trust}' is neither pcp nor dscp",
            "Set dscp, or an empty text.",
        )


def _memory_problems(variables: Variables, facts: NodeFacts) -> Iterator[Setting]:
    """Yield that hugepages leave too little memory for programs: the node would not boot any more."""
    memory = 0 if isinstance(facts.fabric, Unknown) or is_container(facts) else facts.fabric.memory_kib
    counts = {name: variables.get(name) for name in _HUGEPAGES}
    sizes = {name: count * _HUGEPAGES[name] for name, count in counts.items() if isinstance(count, int) and count > 0}
    total = sum(sizes.values())
    if memory and total * 100 > memory * _MOST_PERCENT:
        problem = f"{total // 1024} MiB of hugepages: over {_MOST_PERCENT} % of the memory ({memory // 1024} MiB)"
        remedy = "Reserve fewer pages, of both sizes together."
        yield PreflightCode.VARIABLE_INVALID, max(sizes, key=lambda name: sizes[name]), problem, remedy


def _has_values(variables: Variables, facts: NodeFacts) -> bool:
    pages = (variables.get(name) for name in _HUGEPAGES)
    return not is_container(facts) and bool(
        variables.get(_GOVERNOR)
        or variables.get(_READ_REQUEST)
        or variables.get(_ACS)
        or variables.get(_ROCE_MODE)
        or variables.get(_ROCE_TOS, -1) != -1
        or variables.get(_IRQ)
        or any(variables.get(name) for name in _QOS)
        or any(isinstance(count, int) and count >= 0 for count in pages)
    )


def _files(variables: Variables, facts: NodeFacts) -> Iterator[str]:
    if variables.get(_MTU):
        yield "/etc/udev/rules.d/90-provision-fabric.rules"
    names = variables.get(_NAMES)
    for name in names if isinstance(names, Mapping) else ():
        yield f"/etc/systemd/network/05-provision-{name}.link"
    if variables.get("fabric_host_arp_enabled"):
        yield "/etc/sysctl.d/91-provision-fabric.conf"
    uses_grubby = not isinstance(facts.fabric, Unknown) and facts.fabric.boot_tool == "grubby"
    if variables.get(_ARGUMENTS) and not is_container(facts) and not uses_grubby:
        yield "/etc/default/grub.d/zz-provision-fabric.cfg"
    if _has_values(variables, facts):
        yield from ("/usr/local/lib/provision/fabric-setup", "/etc/systemd/system/provision-fabric.service")


def _packages(variables: Variables, _system: Variables, facts: NodeFacts) -> Iterator[str]:
    if (variables.get(_READ_REQUEST) or variables.get(_ACS)) and not is_container(facts):
        yield "pciutils"
    if variables.get("fabric_host_irqbalance") == "running":
        yield "irqbalance"


_APPLY = "Run: provision apply"
_NO_INTERFACE = Wording(
    "no data interface is known", "Set fabric_host_interfaces, or correct cluster_data_networks in the inventory."
)
_WORDINGS: Mapping[str, Wording] = {
    "fabric_host.mtu.ok": Wording("{mtu} ({interfaces})"),
    "fabric_host.mtu.unset": Wording("fabric_host_mtu is 0"),
    "fabric_host.mtu.no_interface": _NO_INTERFACE,
    "fabric_host.mtu.differs": Wording(
        "{interfaces}: the MTU is {current}, not {mtu}",
        "Run `provision apply`. If it comes back, set the MTU in the node's network manager too.",
    ),
    "fabric_host.arp.ok": Wording("for several interfaces in one subnet ({interfaces})"),
    "fabric_host.arp.unset": Wording("fabric_host_arp_enabled is false"),
    "fabric_host.arp.container": Wording("a container node may not have settings of its own"),
    "fabric_host.arp.no_interface": _NO_INTERFACE,
    "fabric_host.arp.differs": Wording("{interfaces}: rp_filter, arp_ignore or arp_announce differs", _APPLY),
    "fabric_host.interface_names.ok": Wording("{names}"),
    "fabric_host.interface_names.unset": Wording("fabric_host_interface_names is empty"),
    "fabric_host.interface_names.container": Wording("the interfaces of a container node belong to its host"),
    "fabric_host.interface_names.differs": Wording("no file of systemd gives the names {names}", _APPLY),
    "fabric_host.interface_names.missing": Wording(
        "no network interface, or several, at the PCI addresses of {names}",
        "Correct the addresses in fabric_host_interface_names (lspci -D), or load the driver of the card.",
    ),
    "fabric_host.interface_names.reboot": Wording(
        "{interfaces}: renamed at the next boot",
        "Reboot the node: provision node drain {node}; ssh {node} reboot; provision node resume {node}. If the warning "
        "remains, update the initramfs, or remove other rules of udev that name the interface.",
    ),
    "fabric_host.hugepages.ok": Wording("{count} reserved pages"),
    "fabric_host.hugepages.unset": Wording("no hugepages are set"),
    "fabric_host.hugepages.container": Wording("hugepages of a container node belong to its host"),
    "fabric_host.hugepages.unsupported": Wording(
        "the node does not support hugepages of {size} KiB", "Set the number of these pages to -1 for this node."
    ),
    "fabric_host.hugepages.fewer": Wording(
        "{current} of {count} pages of {size} KiB are reserved, because the memory is fragmented",
        "Reboot the node, which reserves them early.",
    ),
    "fabric_host.hugepages.differs": Wording("{current} pages of {size} KiB are reserved, not {count}", _APPLY),
    "fabric_host.governor.ok": Wording("{governor}"),
    "fabric_host.governor.unset": Wording("fabric_host_cpu_governor is empty"),
    "fabric_host.governor.container": Wording("the CPU governor of a container node belongs to its host"),
    "fabric_host.governor.unsupported": Wording("the kernel of the node does not scale frequencies"),
    "fabric_host.governor.differs": Wording("{current}, not {governor}", _APPLY),
    "fabric_host.pcie_read_request.ok": Wording("{size} bytes ({cards})"),
    "fabric_host.pcie_read_request.unset": Wording("fabric_host_pcie_max_read_request is 0"),
    "fabric_host.pcie_read_request.container": Wording("the cards of a container node belong to its host"),
    "fabric_host.pcie_read_request.unknown": Wording("no data interface has a PCIe card, or setpci is missing"),
    "fabric_host.pcie_read_request.differs": Wording(
        "{cards}: the maximum read request is {current} bytes, not {size}", _APPLY
    ),
    "fabric_host.roce.ok": Wording("mode and type of service of {devices}"),
    "fabric_host.roce.unset": Wording("neither fabric_host_roce_mode nor fabric_host_roce_tos is set"),
    "fabric_host.roce.container": Wording("the RDMA devices of a container node belong to its host"),
    "fabric_host.roce.no_device": Wording("no RDMA device has a GID of a data interface"),
    "fabric_host.roce.differs": Wording(
        "{devices}: the default RoCE mode or type of service differs, or is unknown", _APPLY
    ),
    "fabric_host.irq_affinity.ok": Wording("interrupts run on the NUMA node of their card ({cards})"),
    "fabric_host.irq_affinity.unset": Wording("fabric_host_irq_affinity is empty"),
    "fabric_host.irq_affinity.container": Wording("the cards of a container node belong to its host"),
    "fabric_host.irq_affinity.no_card": Wording("no data interface has a PCI card"),
    "fabric_host.irq_affinity.unknown": Wording("the NUMA nodes of the cards are unknown"),
    "fabric_host.irq_affinity.differs": Wording(
        "{cards}: interrupts may run on CPUs of other NUMA nodes, or are not set", _APPLY
    ),
    "fabric_host.roce_qos.ok": Wording("trust, PFC and ECN of the data interfaces"),
    "fabric_host.roce_qos.unset": Wording(
        "none of fabric_host_roce_trust, fabric_host_roce_pfc and fabric_host_roce_ecn is set"
    ),
    "fabric_host.roce_qos.container": Wording("the cards of a container node belong to its host"),
    "fabric_host.roce_qos.differs": Wording("{interfaces}: trust, PFC or ECN differs, or is not set", _APPLY),
    "fabric_host.roce_qos.unknown": Wording(
        "{interfaces}: trust, PFC or ECN is unknown (mlnx_qos is missing, or the driver has no such setting)",
        "Install DOCA or MLNX_OFED (rdma_stack_source), or set them by the tools of the card's vendor.",
    ),
    "fabric_host.pcie_acs.ok": Wording("no bridge above cards and GPUs redirects their traffic"),
    "fabric_host.pcie_acs.unset": Wording("fabric_host_pcie_acs is empty"),
    "fabric_host.pcie_acs.container": Wording("the bridges of a container node belong to its host"),
    "fabric_host.pcie_acs.unknown": Wording("unknown, because lspci is missing or no bridge is visible"),
    "fabric_host.pcie_acs.differs": Wording("{bridges}: ACS redirects traffic between devices", _APPLY),
    "fabric_host.kernel_arguments.ok": Wording("{arguments}"),
    "fabric_host.kernel_arguments.unset": Wording("fabric_host_kernel_arguments is empty"),
    "fabric_host.kernel_arguments.container": Wording("a container node runs the kernel of its host"),
    "fabric_host.kernel_arguments.differs": Wording("the boot menu lacks {arguments}", _APPLY),
    "fabric_host.kernel_arguments.reboot": Wording(
        "the boot menu has {arguments}, but the running kernel was started without",
        "Reboot the node: provision node drain {node}; ssh {node} reboot; provision node resume {node}. If the warning "
        "remains, another boot loader than GRUB starts the node.",
    ),
}

COMPONENT = Component(
    role="fabric_host",
    after=("rdma_stack",),
    for_jobs=True,
    read_variables=(
        _MTU,
        _INTERFACES,
        _NAMES,
        _GOVERNOR,
        "fabric_host_arp_enabled",
        *_HUGEPAGES,
        _ARGUMENTS,
        _READ_REQUEST,
        _ACS,
        _ROCE_MODE,
        _ROCE_TOS,
        *_QOS,
        _IRQ,
        _IRQBALANCE,
    ),
    is_disruptive=_is_disruptive,
    checks=(
        Check("fabric_host.mtu", _mtu),
        Check("fabric_host.arp", _arp),
        Check("fabric_host.interface_names", _interface_names),
        Check("fabric_host.hugepages", _hugepages),
        Check("fabric_host.governor", _governor),
        Check("fabric_host.kernel_arguments", _kernel_arguments),
        Check("fabric_host.pcie_read_request", _read_request),
        Check("fabric_host.pcie_acs", _acs),
        Check("fabric_host.roce", _roce),
        Check("fabric_host.roce_qos", _qos),
        Check("fabric_host.irq_affinity", _interrupts),
    ),
    reasons=_WORDINGS,
    settings=_settings,
    files=_files,
    packages=_packages,
)
