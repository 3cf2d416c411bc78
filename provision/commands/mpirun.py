"""Open MPI's ``mpirun`` command line, for versions 4 (ORTE) and 5 (PRRTE); nothing is executed here."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Launch", "mpirun_argv", "parse_version"]

SUPPORTED = (4, 5)
_PRRTE = 5


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
    root: bool = False
    """The container's user is root, which mpirun wants to be told."""
    environment: tuple[str, ...] = ()
    """Names of variables that every rank gets."""
    workdir: str | None = None
    ssh_config: str = "/etc/provision/ssh/ssh_config"
    program: str = "mpirun"


def parse_version(text: str) -> int | None:
    """Return the major version from ``mpirun --version``; None when it is not Open MPI."""
    found = re.search(r"\(Open MPI\) (\d+)\.", text)
    return int(found.group(1)) if found else None


def mpirun_argv(launch: Launch) -> list[str]:
    """The whole command line."""
    words = [launch.program]
    if launch.root:
        words.append("--allow-run-as-root")
    words += ["--hostfile", launch.hostfile, "-np", str(launch.ranks), "--bind-to", "none", "--map-by", "slot"]
    words += ["--output", "tag"] if launch.version >= _PRRTE else ["--tag-output"]
    if launch.workdir is not None:
        words += ["--wdir", launch.workdir]
    words += _prrte(launch) if launch.version >= _PRRTE else _orte(launch)
    for name in ("PROVISION_JOB", *launch.environment):
        words += ["-x", name]
    return [*words, *launch.command]


def _orte(launch: Launch) -> list[str]:
    settings = {
        "plm_rsh_agent": f"ssh -F {launch.ssh_config}",
        "orte_launch_agent": f"env PROVISION_JOB={launch.job} orted",
        "orte_keep_fqdn_hostnames": "1",
        "pml": "ob1",
        "btl": "self,vader,tcp",
        "btl_vader_single_copy_mechanism": "none",  # CMA needs a capability that a container may lack
    }
    # Without either, Open MPI also tries docker's bridge, which has the same address on every node.
    # A single address as /32 will not do: the shift by 32 in its netmask makes it match anything.
    if include := ",".join(launch.networks or launch.interfaces):
        settings |= {"btl_tcp_if_include": include, "oob_tcp_if_include": include}
    return [word for key, value in settings.items() for word in ("--mca", key, value)]


def _prrte(launch: Launch) -> list[str]:
    runtime = {
        "plm_ssh_agent": f"ssh -F {launch.ssh_config}",
        "prte_launch_agent": f"env PROVISION_JOB={launch.job} prted",
        "prte_keep_fqdn_hostnames": "1",
    }
    library = {"pml": "ob1", "btl": "self,sm,tcp", "smsc": "^cma"}
    if include := ",".join(launch.networks or launch.interfaces):
        library["btl_tcp_if_include"] = include
    if launch.interfaces:  # by name: PRRTE 3.0.8 (Open MPI 5.0.7) finds no interface for a CIDR
        runtime["prte_if_include"] = ",".join(launch.interfaces)
    words = [word for key, value in runtime.items() for word in ("--prtemca", key, value)]
    return words + [word for key, value in library.items() for word in ("--mca", key, value)]
