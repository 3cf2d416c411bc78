"""The role base_system: limits, sysctls, the nodes' names, and the accounts of job submitters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from provision.components.base import Component, Exchange, NodeState, Variables
from provision.components.common import is_on
from provision.facts import NodeFacts, Unknown, plain
from provision.model.cause import Cause
from provision.model.reason import Reason, Wording, reason


def _has_submitters(variables: Variables) -> bool:
    return bool(variables.get("cluster_operators") or variables.get("cluster_submitters"))


def _files(variables: Variables, facts: NodeFacts) -> Iterator[str]:
    yield "/etc/security/limits.d/90-provision.conf"
    yield "/etc/systemd/system.conf.d/90-provision.conf"
    yield "/etc/systemd/logind.conf.d/90-provision.conf"
    if is_on(variables, "base_system_hosts_enabled"):
        yield "/etc/hosts"
    if isinstance(facts.kind, Unknown) or facts.kind.sysctls_writable:
        yield "/etc/sysctl.d/90-provision.conf"
    if _has_submitters(variables):
        yield from ("/usr/local/lib/provision/job-agent", "/etc/provision/job-agent.json")
        yield from ("/etc/sudoers.d/provision-jobs", "/var/lib/provision-jobs/.ssh/authorized_keys")


def _packages(variables: Variables, _system: Variables, _facts: NodeFacts) -> Iterator[str]:
    if _has_submitters(variables):
        yield "sudo"


def _request(causes: Sequence[Cause], _: NodeState) -> str | None:
    return "addresses" if any(cause.name == "base_system.hosts" for cause in causes) else None


def _reason(requested: Mapping[str, Sequence[str]], state: NodeState) -> Reason | None:
    """A node whose address is in the inventory need not take part."""
    address = state.node.variables.get("cluster_data_address")
    names = requested.get("addresses")
    if not names or (address and plain(address)):
        return None
    return reason("base_system.address_needed", nodes=names)


COMPONENT = Component(
    role="base_system",
    reasons={
        "base_system.address_needed": Wording(
            "this node's address, which the inventory does not contain, is missing on {nodes:few}"
        )
    },
    after=("platform",),
    exchange=Exchange(request=_request, reason=_reason),
    never_fixes=frozenset({"base_system.time_sync"}),  # the role checks the clock, and installs no time service
    fixes_warnings=frozenset({"base_system.kernel"}),
    fixes_if={"base_system.firewall": lambda _, result: result.reason.code == "base_system.firewall.blocked"},
    files=_files,
    packages=_packages,
)
