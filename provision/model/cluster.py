"""The cluster as the inventory describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from provision.model.secret import Secret

__all__ = ["NO_JOBS", "Cluster", "Connection", "Node"]

NO_JOBS = "it takes no jobs (cluster_takes_jobs: false)"
_NO = frozenset({"false", "no", "off", "0", "n", "f"})


@dataclass(frozen=True)
class Connection:
    """How a node is reached over SSH, as the inventory and the operator's ssh_config say it.

    ``None`` means "not said": ssh_config and OpenSSH's defaults decide.
    """

    host: str
    port: int | None = None
    user: str | None = None
    key_file: Path | None = None
    known_hosts: Path | None = None
    """A known_hosts file of the inventory's own (``-o UserKnownHostsFile=`` in ansible_ssh_common_args)."""
    jump: str | None = None
    """ProxyJump, as in ssh_config."""
    ssh_args: tuple[str, ...] = ()
    """All of ansible_ssh_args, ansible_ssh_common_args and ansible_ssh_extra_args, split as the shell would."""
    own_ssh_args: bool = False
    """True where ansible_ssh_args replaces what playbooks/ansible.cfg says, strict checking of host keys among it."""
    local: bool = False
    """True for ``ansible_connection: local``: commands run on this machine without SSH."""
    become: bool = True
    """Commands run as root by way of sudo, unless the login user is root already."""
    become_password: Secret | None = None
    password: Secret | None = None
    agent: bool = False
    """The login is the account of the job agent: it answers requests about jobs, and nothing else can be done."""


@dataclass(frozen=True)
class Node:
    """One machine of the inventory."""

    name: str
    connection: Connection
    variables: Mapping[str, Any] = field(default_factory=dict)
    """All inventory variables of the host, group variables merged in, Jinja not rendered, passwords as `Secret`."""
    groups: tuple[str, ...] = ()
    """The inventory's groups that the host is in, directly or through child groups, without ``all``."""

    @property
    def takes_jobs(self) -> bool:
        """Whether jobs run on the node; one that takes none can still hold the queue (``cluster_head``)."""
        return str(self.variables.get("cluster_takes_jobs", True)).strip().lower() not in _NO


@dataclass(frozen=True)
class Cluster:
    """All nodes of one inventory, in the inventory's order; the first is the head."""

    name: str
    inventory: Path
    nodes: tuple[Node, ...]
    warnings: tuple[str, ...] = ()

    def node(self, name: str) -> Node:
        """Return the node called `name`; KeyError if there is none."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Node]:
        return {node.name: node for node in reversed(self.nodes)}
