"""Open MPI's ``mpirun`` command line, for versions 4 (ORTE) and 5 (PRRTE); nothing is executed here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from provision.commands.mca import PRRTE, spelled
from provision.model import Setting

__all__ = [
    "Launch",
    "PlainLaunch",
    "argv_of",
    "mpirun_argv",
    "mpirun_settings",
    "parse_version",
    "plain_settings",
    "reach_variables",
    "tcp_include",
]

SUPPORTED = (4, 5)
_OURS = "provision"


@dataclass(frozen=True)
class Launch:
    """Everything that the command line depends on."""

    version: int
    """Open MPI's major version."""
    ranks: int
    hostfile: str
    """Path in the head node's container."""
    command: tuple[str, ...]
    job: str
    """Id that marks every process of the job (environment variable PROVISION_JOB)."""
    networks: tuple[str, ...] = ()
    """Data networks as CIDRs; interface names differ between nodes, CIDRs do not."""
    interfaces: tuple[str, ...] = ()
    """Names of the interfaces that carry the nodes' data addresses, of all nodes together."""
    subnets: tuple[str, ...] = ()
    """Networks of the nodes' data addresses as CIDRs, for nodes whose interfaces have different names."""
    root: bool = False
    """The container's user is root, which mpirun wants to be told."""
    environment: tuple[str, ...] = ()
    """Names of variables that every rank gets."""
    variables: tuple[Setting, ...] = ()
    """Variables with their values, or with where their values come from."""
    workdir: str | None = None
    per_node: bool = False
    """One process on each node, which starts the others itself."""
    ssh_config: str = "/etc/provision/ssh/ssh_config"
    program: str = "mpirun"


def parse_version(text: str) -> int | None:
    """Return the major version from ``mpirun --version``; None when it is not Open MPI."""
    found = re.search(r"\(Open MPI\) (\d+)\.", text)
    return int(found.group(1)) if found else None


def argv_of(program: str, settings: Iterable[Setting], command: Iterable[str]) -> list[str]:
    """The whole command line of settings."""
    return [program, *(word for setting in settings for word in setting.words()), *command]


def mpirun_argv(launch: Launch) -> list[str]:
    """The whole command line."""
    return argv_of(launch.program, mpirun_settings(launch), launch.command)


def mpirun_settings(launch: Launch) -> tuple[Setting, ...]:
    """Return every flag, parameter and variable of the command line in its order, each with its reason."""
    modern = launch.version >= PRRTE
    found = [_flag("--allow-run-as-root", None, "the container's user is root")] if launch.root else []
    found += [
        _flag("--hostfile", launch.hostfile, "the nodes that can take ranks, with their slots"),
        _flag("-np", str(launch.ranks), "ranks that were asked for, else one for each slot"),
        _flag("--bind-to", "none", "ranks start threads, which may not share one core"),
        _mapping(launch),
        _flag("--output" if modern else "--tag-output", "tag" if modern else None, "each line is told with its rank"),
    ]
    if launch.workdir is not None:
        found.append(_flag("--wdir", launch.workdir, "--workdir, or the folder of --sync"))
    found += _parameters(launch)
    found += [_by_name(name) for name in ("PROVISION_JOB", *launch.environment)]
    return (*found, *launch.variables)


def _flag(flag: str, value: str | None, reason: str) -> Setting:
    return Setting(flag, "", value, _OURS, reason)


def _mapping(launch: Launch) -> Setting:
    if launch.per_node:
        return _flag("--map-by", "ppr:1:node", "one process on each node, which starts the others itself")
    return _flag("--map-by", "slot", "a node is filled before the next one is used")


def _by_name(name: str) -> Setting:
    if name == "PROVISION_JOB":
        return Setting("-x", name, None, _OURS, "marks the processes of the job, so that all of them can be ended")
    if name in {"PATH", "LD_LIBRARY_PATH"}:
        return Setting("-x", name, None, _OURS, "as it is in the head node's container")
    return Setting("-x", name, None, "--env", "its value goes by standard input, not by the command line")


_WHY = {
    "plm_rsh_agent": "logins between containers, with their own keys",
    "orte_launch_agent": "marks the daemons as the job's",
    "orte_keep_fqdn_hostnames": "names with dots stay whole",
    "pml": "MPI over TCP and shared memory; NCCL has the RDMA cards",
    "btl": "TCP between nodes, shared memory within one",
    "btl_vader_single_copy_mechanism": "reading another process's memory needs a capability",
    "btl_tcp_if_include": "without it docker's bridge is tried, which has one address everywhere",
    "oob_tcp_if_include": "the daemons' own connections, as those of the ranks",
}


def _parameters(launch: Launch) -> list[Setting]:
    settings = {
        "plm_rsh_agent": f"ssh -F {launch.ssh_config}",
        "orte_launch_agent": f"env PROVISION_JOB={launch.job} {'prted' if launch.version >= PRRTE else 'orted'}",
        "orte_keep_fqdn_hostnames": "1",
    }
    settings |= {"pml": "ob1", "btl": "self,vader,tcp"}
    settings["btl_vader_single_copy_mechanism"] = "none"  # CMA needs a capability that a container may lack
    # Without either, Open MPI also tries docker's bridge, which has the same address on every node.
    # A single address as /32 will not do: the shift by 32 in its netmask makes it match anything.
    include = ",".join(launch.networks) or tcp_include(launch.interfaces, launch.subnets)
    settings |= _included(launch.version, include, launch.interfaces)
    source = "inventory" if launch.networks else "node facts"
    return [
        _parameter(key, value, launch.version, source if key.endswith("_if_include") else _OURS)
        for key, value in settings.items()
    ]


def _parameter(name: str, value: str, version: int, source: str, dash: str = "--") -> Setting:
    as_given = spelled(name, value, version)
    return Setting(dash + as_given.flag.lstrip("-"), as_given.name, as_given.value, source, _WHY.get(name, ""))


def tcp_include(interfaces: Sequence[str], subnets: Sequence[str]) -> str:
    """Return the value of ``*_tcp_if_include`` that fits every node; empty when none is known.

    Open MPI 4 ignores TCP on a node that lacks one of the named interfaces, so a name is used only if all nodes agree.
    """
    return ",".join(interfaces if len(interfaces) == 1 else subnets)


def _included(version: int, include: str, interfaces: Sequence[str]) -> dict[str, str]:
    """Return the parameters for the connections of ranks and of daemons.

    PRRTE 3.0.8 (Open MPI 5.0.7) finds no interface for a CIDR, and ignores names that a node does not have.
    """
    control = ",".join(interfaces) if version >= PRRTE else include
    values = {"btl_tcp_if_include": include, "oob_tcp_if_include": control}
    return {name: value for name, value in values.items() if value}


def reach_variables(
    version: int,
    job: str,
    *,
    interfaces: Sequence[str] = (),
    subnets: Sequence[str] = (),
    ssh_config: str = "/etc/provision/ssh/ssh_config",
) -> dict[str, str]:
    """Return what mpirun's own environment must have where its command line says nothing of how to reach the nodes.

    `interfaces` and `subnets` are those of the nodes' data addresses; without any Open MPI chooses.
    """
    modern = version >= PRRTE
    settings = {
        "plm_rsh_agent": f"ssh -F {ssh_config}",
        "orte_launch_agent": f"env PROVISION_JOB={job} {'prted' if modern else 'orted'}",
        "orte_keep_fqdn_hostnames": "1",
    }
    if not modern:  # version 5 has no parameter for it: there such lines come without their rank
        settings["orte_tag_output"] = "1"
    settings |= _included(version, tcp_include(interfaces, subnets), interfaces)
    given = (spelled(name, value, version) for name, value in settings.items())
    return {("PRTE_MCA_" if p.flag == "--prtemca" else "OMPI_MCA_") + p.name: p.value for p in given}


@dataclass(frozen=True)
class PlainLaunch:
    """A line as people type it: everything that a rank gets stands in it, and nothing about how to log in."""

    version: int
    ranks: int
    command: tuple[str, ...]
    hosts: tuple[tuple[str, int], ...] = ()
    """Nodes with their slots; none for a job of the head node alone."""
    root: bool = True
    variables: tuple[Setting, ...] = ()
    parameters: Mapping[str, str] | None = None
    """MCA parameters in version 4's names."""
    source: str = _OURS
    """Who decided the parameters."""
    program: str = "mpirun"


def plain_settings(launch: PlainLaunch) -> tuple[Setting, ...]:
    """Return the line's settings in the order that people write them, spelled as its version likes them."""
    dash = "-" if launch.version < PRRTE else "--"
    found = [_flag("-np", str(launch.ranks), "ranks that were asked for, else one for each slot")]
    if launch.hosts:
        hosts = ",".join(f"{name}:{slots}" for name, slots in launch.hosts)
        found.append(_flag("-H", hosts, "the nodes that get ranks, with their slots"))
    if launch.root:
        found.append(_flag("--allow-run-as-root", None, "the container's user is root"))
    found += [
        _flag(f"{dash}bind-to", "none", "ranks start threads, which may not share one core"),
        _flag(f"{dash}map-by", "slot", "a node is filled before the next one is used"),
        *launch.variables,
    ]
    given = (launch.parameters or {}).items()
    return (*found, *(_parameter(key, value, launch.version, launch.source, dash) for key, value in given))
