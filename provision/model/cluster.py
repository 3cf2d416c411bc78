"""The cluster as the inventory describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from provision.model.reason import reason
from provision.model.secret import Secret
from provision.model.stack import Stack

NO_JOBS = reason("check.no_jobs")
_NO = frozenset({"false", "no", "off", "0", "n", "f"})


@dataclass(frozen=True)
class Connection:
    """How to connect to a node over SSH, from the inventory and the operator's ssh_config.

    ``None`` means "not set": ssh_config and OpenSSH's defaults apply.
    """

    host: str
    port: int | None = None
    user: str | None = None
    key_file: Path | None = None
    known_hosts: Path | None = None
    """The inventory's own known_hosts file (``-o UserKnownHostsFile=`` in ansible_ssh_common_args)."""
    jump: str | None = None
    """ProxyJump, as in ssh_config."""
    ssh_args: tuple[str, ...] = ()
    """ansible_ssh_args, ansible_ssh_common_args and ansible_ssh_extra_args, split into words as in a shell."""
    own_ssh_args: bool = False
    """True where ansible_ssh_args replaces playbooks/ansible.cfg, which includes strict checking of host keys."""
    local: bool = False
    """True for ``ansible_connection: local``: commands run on the controller without SSH."""
    become: bool = True
    """Commands run as root with sudo, unless the SSH user is root."""
    become_password: Secret | None = None
    password: Secret | None = None
    python: str = "python3"
    """The interpreter of the node (``ansible_python_interpreter``): a path, or a name in the PATH of root."""
    agent: bool = False
    """The SSH user is the account of the node agent, which accepts only requests about jobs."""


@dataclass(frozen=True)
class Node:
    """One machine of the inventory."""

    name: str
    connection: Connection
    variables: Mapping[str, Any] = field(default_factory=dict)
    """All inventory variables of the host including group variables; Jinja is not rendered, passwords are `Secret`."""
    groups: tuple[str, ...] = ()
    """The inventory's groups of the host, direct or through child groups, without ``all``."""

    @property
    def takes_jobs(self) -> bool:
        """Return whether jobs may run on the node. Others can still be the head node (``cluster_head``)."""
        return str(self.variables.get("cluster_takes_jobs", True)).strip().lower() not in _NO


@dataclass(frozen=True)
class Cluster:
    """All nodes of one inventory, in the order of the inventory."""

    name: str
    inventory: Path
    nodes: tuple[Node, ...]
    warnings: tuple[str, ...] = ()
    stack_lock: Stack | None = None
    """The lock file in the folder of the inventory; None without one."""

    def node(self, name: str) -> Node:
        """Return the node called `name`; KeyError if there is none."""
        return self._by_name[name]

    @property
    def slurm_login(self) -> str:
        """The login node on which an ordinary user submits jobs to Slurm; empty where the nodes have a root login."""
        variables = self.nodes[0].variables if self.nodes else {}
        return str(variables.get("cluster_slurm_login") or "") if variables.get("cluster_engine") == "slurm" else ""

    @cached_property
    def _by_name(self) -> dict[str, Node]:
        return {node.name: node for node in reversed(self.nodes)}
