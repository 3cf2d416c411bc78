"""The role rdma_stack: the RDMA packages and modules, and Soft-RoCE where the inventory asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from provision.components.base import Component, NodeState, PreservedSettings, RoleNeed, Variables
from provision.components.common import is_whole_run, matches
from provision.facts import NodeFacts, Unknown, data_interface, is_container, plain
from provision.gdr.observed import has_gpus
from provision.model import CheckResult, Node
from provision.model.cause import Cause, CauseKind
from provision.model.reason import Wording, reason

_USERLAND = ("rdma-core", "libibverbs1", "libibverbs")


def _is_disruptive(causes: Sequence[Cause], state: NodeState) -> bool:
    """Modules are reloaded and links set up. A container node uses its host's, and the role changes none of them.

    A whole run loads missing modules. It removes nothing but a Soft-RoCE device on another interface.
    """
    if is_container(state.facts):
        return False
    return _moves_soft_roce(state) if is_whole_run(causes) else True


def _moves_soft_roce(state: NodeState) -> bool:
    if not state.node.variables.get("rdma_stack_soft_roce_enabled"):
        return False
    if isinstance(state.facts.rdma, Unknown):
        return True
    chosen = state.node.variables.get("rdma_stack_soft_roce_interface")
    interface = chosen or data_interface(state.node.variables, state.facts)
    return any(device.soft and interface not in device.netdevs for device in state.facts.rdma.devices)


def _needs(causes: Sequence[Cause], state: NodeState) -> Iterator[RoleNeed]:
    if is_container(state.facts):
        return
    packages = any(cause.kind is CauseKind.PACKAGE or cause.name == "rdma_stack.packages" for cause in causes)
    if packages and has_gpus(state.facts):
        yield RoleNeed("peer_memory", reason("rdma_stack.packages_change"))
    if any(cause.kind is not CauseKind.FILE for cause in causes) and state.facts.container is not None:
        yield RoleNeed("training_container", reason("rdma_stack.devices_change"))


def _soft_roce_is_missing(state: NodeState, _: CheckResult) -> bool:
    """The role makes a missing Soft-RoCE device; an existing, inactive one waits for its interface's link."""
    if isinstance(state.facts.rdma, Unknown):
        return False
    chosen = state.node.variables.get("rdma_stack_soft_roce_interface")
    interface = chosen if chosen and plain(chosen) else data_interface(state.node.variables, state.facts)
    devices = (device for device in state.facts.rdma.devices if device.soft)
    return not any(not interface or interface in device.netdevs for device in devices)


def _preserved(_: Node, facts: NodeFacts) -> dict[str, Any]:
    """A vendor's stack has packages of the same names, newer and built for each other."""
    if isinstance(facts.rdma, Unknown) or isinstance(facts.packages, Unknown) or not facts.rdma.ofed:
        return {}
    return {"rdma_stack_source": "present"} if facts.packages.keys() & set(_USERLAND) else {}


def _files(_: Variables, facts: NodeFacts) -> Iterator[str]:
    if not is_container(facts):
        yield "/etc/modules-load.d/provision-rdma.conf"
        yield "/usr/local/lib/provision/rdma-setup"
        yield "/etc/systemd/system/provision-rdma.service"


COMPONENT = Component(
    role="rdma_stack",
    reasons={
        "rdma_stack.packages_change": Wording(
            "packages of the RDMA stack change, and the peer memory module is built against it"
        ),
        "rdma_stack.devices_change": Wording("the RDMA devices of the container may change"),
    },
    after=("base_system",),
    for_jobs=True,
    is_disruptive=_is_disruptive,
    needs=_needs,
    never_fixes=frozenset(
        {
            "rdma_stack.bandwidth",  # measured, not configured
            "rdma_stack.devices",  # cards without driver, ports without link: drivers, cables, switches, subnet manager
            "rdma_stack.gids",  # the operator sets the addresses of the cards' interfaces
            "rdma_stack.pcie_width",  # slots and risers
            "rdma_stack.port_errors",  # cables
            "rdma_stack.port_rate",  # cables
        }
    ),
    fixes_if={"rdma_stack.soft_roce": _soft_roce_is_missing},
    preserves=PreservedSettings(
        facts=("rdma", "packages"),
        variables=_preserved,
        describe=lambda facts: "an RDMA stack" if isinstance(facts.rdma, Unknown) else facts.rdma.ofed,
        forms={"rdma_stack_source": matches("present")},
    ),
    files=_files,
)
