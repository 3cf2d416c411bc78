"""The role fabric_host: MTU and ARP of the data interfaces, hugepages, CPU governor and irqbalance."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from provision.commands.fabric_interfaces import data_interfaces
from provision.components.base import Component, NodeState, Setting, Variables
from provision.components.check import Check, Scene, Verdict, fail, known, passed, skip, warn
from provision.facts import NodeFacts, Unknown, data_interface, is_container, plain
from provision.facts.fabric import Interface
from provision.model import PreflightCode
from provision.model.cause import Cause, CauseKind
from provision.model.reason import Wording

_MTU, _INTERFACES, _GOVERNOR = "fabric_host_mtu", "fabric_host_interfaces", "fabric_host_cpu_governor"
_LEAST_MTU, _MOST_MTU = 1280, 65520
_MOST_PAGES, _MOST_PERCENT = 2**24, 90
_ARP = {"rp_filter": 2, "arp_ignore": 1, "arp_announce": 2}
_HUGEPAGES = {"fabric_host_hugepages_2mib": 2048, "fabric_host_hugepages_1gib": 1048576}
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


# Planning


def _is_disruptive(causes: Sequence[Cause], state: NodeState) -> bool:
    """Return whether the step changes an MTU, which ends the connections of a job, or hugepages, which are memory."""
    changed = {cause.name for cause in causes if cause.kind is CauseKind.VARIABLE}
    if changed & {_MTU, _INTERFACES, *_HUGEPAGES}:
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
        variables.get(_GOVERNOR) or any(isinstance(count, int) and count >= 0 for count in pages)
    )


def _files(variables: Variables, facts: NodeFacts) -> Iterator[str]:
    if variables.get(_MTU):
        yield "/etc/udev/rules.d/90-provision-fabric.rules"
    if variables.get("fabric_host_arp_enabled"):
        yield "/etc/sysctl.d/91-provision-fabric.conf"
    if _has_values(variables, facts):
        yield from ("/usr/local/lib/provision/fabric-setup", "/etc/systemd/system/provision-fabric.service")


def _packages(variables: Variables, _system: Variables, _facts: NodeFacts) -> Iterator[str]:
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
}

COMPONENT = Component(
    role="fabric_host",
    after=("rdma_stack",),
    for_jobs=True,
    read_variables=(
        _MTU,
        _INTERFACES,
        _GOVERNOR,
        "fabric_host_arp_enabled",
        *_HUGEPAGES,
    ),
    is_disruptive=_is_disruptive,
    checks=(
        Check("fabric_host.mtu", _mtu),
        Check("fabric_host.arp", _arp),
        Check("fabric_host.hugepages", _hugepages),
        Check("fabric_host.governor", _governor),
    ),
    reasons=_WORDINGS,
    settings=_settings,
    files=_files,
    packages=_packages,
)
