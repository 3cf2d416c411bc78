"""Open MPI's ``mpirun``, versions 4 (ORTE) and 5 (PRRTE)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

from provision.commands.mca import PRRTE, spelled
from provision.commands.mpirun_words import LAUNCHERS as COMMANDS
from provision.launchers.base import CommandLine, HostEntry, Hosts, Launch, Launcher, Reach
from provision.model import Setting

_OURS = "provision"
_FILE_NAME = "hostfile"


def host_file(entries: Sequence[HostEntry]) -> str:
    """Return a line ``NAME slots=N`` for each entry."""
    return "".join(f"{entry.name} slots={entry.slots}\n" for entry in entries)


def _identify(text: str) -> int | None:
    match = re.search(r"\(Open MPI\) (\d+)\.", text)
    return int(match.group(1)) if match else None


def _settings(launch: Launch) -> tuple[Setting, ...]:
    """Return every flag, parameter and variable of the command line in its order, each with its reason."""
    settings = [_flag("--allow-run-as-root", None, "the container's user is root")] if launch.root else []
    if launch.hostfile:
        settings.append(_flag("--hostfile", launch.hostfile, "the nodes that can take ranks, with their slots"))
    settings += [
        _flag("-np", str(launch.ranks), "ranks that were asked for, else one for each slot"),
        _flag("--bind-to", "none", "ranks start threads, which may not share one core"),
        _mapping(launch),
    ]
    if launch.job:
        flag, value = ("--output", "tag") if launch.version >= PRRTE else ("--tag-output", None)
        settings.append(_flag(flag, value, "each line begins with its rank"))
    if launch.workdir is not None:
        settings.append(_flag("--wdir", launch.workdir, "--workdir, or the folder of --sync"))
    if launch.job:
        settings += [*_parameters(launch), _by_name("PROVISION_JOB")]
    settings += [_by_name(name) for name in launch.environment]
    return (*settings, *launch.variables)


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
    return Setting("-x", name, None, "--env", "its value is passed on standard input, not on the command line")


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


_LIBFABRIC_OVER_IP = "shm,sockets,tcp,net,udp,rstream,usnic"
"""Open MPI 4's default and `net`, a copy of `tcp` in libfabric 1.16 to 1.18.

libfabric chooses an interface on each node and ignores ``*_tcp_if_include``, so that ranks may not reach each other.
"""


def _parameters(launch: Launch) -> list[Setting]:
    settings = {
        "plm_rsh_agent": f"ssh -F {launch.ssh_config}",
        "orte_launch_agent": _agent(launch.job, launch.version),
        "orte_keep_fqdn_hostnames": "1",
    }
    settings |= {"pml": "ob1", "btl": "self,vader,tcp"}
    settings["btl_vader_single_copy_mechanism"] = "none"  # CMA needs a capability that a container may lack
    # Without either, Open MPI also tries docker's bridge, which has the same address on every node.
    # A single address as /32 will not do: the shift by 32 in its netmask makes it match anything.
    include = ",".join(launch.networks) or _tcp_include(launch.interfaces, launch.subnets)
    settings |= _included(launch.version, include, launch.interfaces)
    source = "inventory" if launch.networks else "node facts"
    return [
        _parameter(key, value, launch.version, source if key.endswith("_if_include") else _OURS)
        for key, value in settings.items()
    ]


def _parameter(name: str, value: str, version: int, source: str, dash: str = "--") -> Setting:
    as_given = spelled(name, value, version)
    return Setting(dash + as_given.flag.lstrip("-"), as_given.name, as_given.value, source, _WHY.get(name, ""))


def _tcp_include(interfaces: Sequence[str], subnets: Sequence[str]) -> str:
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


def _environment(version: int, reach: Reach) -> dict[str, str]:
    """Return the variables of mpirun itself, in the names of a major version; without interfaces Open MPI chooses."""
    if reach.folder:
        settings = {
            "orte_default_hostfile": f"{reach.folder}/{_FILE_NAME}",
            "plm_rsh_agent": "ssh",
            "plm_rsh_args": f"-F {reach.ssh_config}",
            "orte_keep_fqdn_hostnames": "t",
        }
    else:
        settings = {
            "plm_rsh_agent": f"ssh -F {reach.ssh_config}",
            "orte_launch_agent": _agent(reach.job, version),
            "orte_keep_fqdn_hostnames": "1",
        }
        if version < PRRTE:  # version 5 has no parameter for it: there such lines come without their rank
            settings["orte_tag_output"] = "1"
    included = _included(version, _tcp_include(reach.interfaces, reach.subnets), reach.interfaces)
    settings |= included
    if included and version < PRRTE:
        settings["mtl_ofi_provider_exclude"] = _LIBFABRIC_OVER_IP
    given = (spelled(name, value, version) for name, value in settings.items())
    return {("PRTE_MCA_" if p.flag == "--prtemca" else "OMPI_MCA_") + p.name: p.value for p in given}


def _agent(job: str, version: int) -> str:
    return f"env PROVISION_JOB={job} {'prted' if version >= PRRTE else 'orted'}"


def _typed_settings(launch: Launch, hosts: Hosts, parameters: Mapping[str, str], source: str) -> tuple[Setting, ...]:
    """Return a line as people type it: everything that a rank gets, and nothing about how to log in."""
    dash = "-" if launch.version < PRRTE else "--"
    settings = [_flag("-np", str(launch.ranks), "ranks that were asked for, else one for each slot")]
    if hosts:
        named = ",".join(f"{name}:{slots}" for name, slots in hosts)
        settings.append(_flag("-H", named, "the nodes that get ranks, with their slots"))
    if launch.root:
        settings.append(_flag("--allow-run-as-root", None, "the container's user is root"))
    settings += [
        _flag(f"{dash}bind-to", "none", "ranks start threads, which may not share one core"),
        _flag(f"{dash}map-by", "slot", "a node is filled before the next one is used"),
        *launch.variables,
    ]
    given = (_parameter(key, value, launch.version, source, dash) for key, value in parameters.items())
    return (*settings, *given)


def _command_line(launch: Launch) -> CommandLine:
    """Return the command line; every flag, parameter and variable has its reason."""
    return CommandLine(_settings(launch))


LAUNCHERS = tuple(
    Launcher(
        name,
        order=order,
        label="Open MPI",
        version=version,
        host_file=host_file,
        file_name=_FILE_NAME,
        binds_ranks=True,
        identify=identify,
        command_line=_command_line,
        environment=partial(_environment, version),
        reads_lines=True,
        typed_settings=_typed_settings,
        commands=COMMANDS,
    )
    for order, (name, version, identify) in enumerate([("openmpi", 4, _identify), ("openmpi5", 5, None)])
)
