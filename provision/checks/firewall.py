"""The node's firewall: jobs and SSH between containers reach the node from all other nodes."""

from __future__ import annotations

from functools import lru_cache

from provision.checks.base import check
from provision.checks.everybody import Everybody, everybody
from provision.components.check import Param, Scene, Verdict, known, passed, skip
from provision.facts import data_interface
from provision.facts.address_claims import admitted_sources
from provision.facts.firewall import Admission, Firewall
from provision.model import CheckStatus, Same
from provision.model.reason import reason

_JOB_PORTS = (1024, 65535)
"""MPI, NCCL and torchrun listen on ports that the kernel chooses."""
_SSH_PORT = 2222


@check("base_system.firewall")
def _firewall(scene: Scene) -> Verdict:
    firewall = known(scene.facts.firewall)
    if not firewall.program:
        return passed("base_system.firewall.none")
    addresses, own = everybody(scene).addresses, scene.node.name
    if not addresses.keys() - {own}:
        return skip("base_system.firewall.no_addresses")
    interface = data_interface(scene.node.variables, scene.facts) or ""
    blocked = {
        name: admission
        for name, admission in _admissions(Same(firewall), Same(everybody(scene)), interface).items()
        if name != own and not admission.has_ports(*_JOB_PORTS)
    }
    if not blocked:
        return passed("base_system.firewall.ok", program=firewall.program, count=len(addresses.keys() - {own}))
    first = next(iter(blocked.values()))
    port = scene.want("container_ssh_port", default=_SSH_PORT)
    params: dict[str, Param] = {
        "program": firewall.program,
        "zone": first.zone or None,
        "nodes": tuple(blocked),
        "port": None if all(admission.has_ports(port, port) for admission in blocked.values()) else port,
    }
    decided = next((admission.decided_by for admission in blocked.values() if admission.decided_by), "")
    if decided:
        return _failed("base_system.firewall.decided", **params, cause=decided)
    networks: list[str] = scene.want("cluster_data_networks", default=[])
    sources = admitted_sources(addresses, networks, own)
    if scene.want("cluster_firewall", default="manage") == "check":
        return _failed("base_system.firewall.unmanaged", **params, commands=_commands(firewall, sources))
    return _failed("base_system.firewall.blocked", **params, sources=sources)


def _failed(code: str, **params: Param) -> Verdict:
    return Verdict(CheckStatus.FAIL, reason(code, **params))


@lru_cache(maxsize=64)
def _admissions(firewall: Same[Firewall], nodes: Same[Everybody], interface: str) -> dict[str, Admission]:
    """Return what the firewall admits from each node; nodes with the same rules share the result."""
    return {name: firewall.it.admission(address, interface) for name, address in nodes.it.addresses.items()}


def _commands(firewall: Firewall, sources: tuple[str, ...]) -> str:
    """Return the commands that admit the sources, as the role does."""
    if firewall.program == "ufw":
        return "; ".join(f"ufw allow from {source}" for source in sources)
    options = " ".join(f"--add-source={source}" for source in sources)
    return f"firewall-cmd --permanent --zone=trusted {options}; firewall-cmd --zone=trusted {options}"
