"""The role container_ssh: sshd in the containers, and the exchange of keys between the nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache

from provision.components.base import Component, Exchange, NodeState, Variables
from provision.facts import NodeFacts, data_address, running_container
from provision.facts.container import Container
from provision.facts.container_ssh import ContainerSsh, ContainerTrust
from provision.model import CheckResult, Cluster, Node, Same
from provision.model.cause import Cause, CauseKind
from provision.model.reason import Reason, Wording, reason

_FOLDER = "/etc/provision/ssh/"
"""In the container."""
_KEY_FILES = ("/known_hosts", "/authorized_keys")
_KEY_CHECKS = frozenset({"container_ssh.known_hosts", "container_ssh.trusted_nodes"})
_OWN_CHANGE = frozenset({CauseKind.RECEIPT, CauseKind.CODE, CauseKind.VARIABLE})
"""The role runs as a whole, or with another port: whether the keys stay the same is unknown before."""


def _waits(waiting: AbstractSet[str], causes: Sequence[Cause], state: NodeState) -> bool:
    """The step waits with the container's, unless it has causes of its own and the running container can take them."""
    if "training_container" not in waiting:
        return False
    own = any(cause.kind is not CauseKind.NEED for cause in causes)
    return not (own and running_container(state.facts)) or _folder_is_deleted(state)


def _folder_is_deleted(state: NodeState) -> bool:
    """Return whether the folder of the container's SSH was deleted: files written on the node do not reach it."""
    container = state.facts.container
    if not isinstance(container, Container):
        return False
    return any(f"{mount.target}/".startswith(_FOLDER) for mount in container.deleted)


def _request(causes: Sequence[Cause], state: NodeState) -> str | None:
    if _keys_change(causes, state):
        return "new keys"
    return "all keys" if any(map(_is_of_other_nodes, causes)) else None


def _keys_change(causes: Sequence[Cause], state: NodeState) -> bool:
    """Return whether the step may change the keys or the address by which other nodes know this one."""
    ssh, trust = state.facts.container_ssh, state.facts.container_trust
    if not isinstance(ssh, ContainerSsh) or not ssh.host_key or not ssh.client_key:
        return True
    if not isinstance(trust, ContainerTrust):
        return True
    if any(cause.kind in _OWN_CHANGE or cause.name == "container_ssh.host_key" for cause in causes):
        return True
    address = data_address(state.node.variables, state.facts)
    return address is not None and address not in _known_addresses(Same(trust))


@lru_cache(maxsize=8)
def _known_addresses(trust: Same[ContainerTrust]) -> frozenset[str]:
    """Return the names and addresses of known_hosts, without ports."""
    return frozenset(name.partition("]:")[0].removeprefix("[") for name in trust.it.known_hosts)


def _is_of_other_nodes(cause: Cause) -> bool:
    return cause.name in _KEY_CHECKS or (cause.kind is CauseKind.FILE and cause.name.endswith(_KEY_FILES))


def _reason(requested: Mapping[str, Sequence[str]], _: NodeState) -> Reason | None:
    if names := requested.get("new keys"):
        return reason("container_ssh.new_keys", nodes=names)
    if names := requested.get("all keys"):
        return reason("container_ssh.keys_needed", nodes=names)
    return None


def _keys_can_come(state: NodeState, result: CheckResult) -> bool:
    """Return whether the check would fail even without the nodes whose keys are unavailable in this run.

    A node that is unreachable or not selected brings its keys when it takes part again.
    """
    ssh, trust = state.facts.container_ssh, state.facts.container_trust
    if not isinstance(ssh, ContainerSsh) or not isinstance(trust, ContainerTrust):
        return True
    return state.fails_in(result.id, _with_keys(Same(state.cluster), Same(state.all_facts), Same(trust), result.id))


@lru_cache(maxsize=8)
def _with_keys(
    cluster: Same[Cluster], all_facts: Same[Mapping[str, NodeFacts]], trust: Same[ContainerTrust], check: str
) -> Cluster:
    """Return the cluster without the nodes whose keys are unavailable; nodes with the same keys share the answer."""
    nodes = (node for node in cluster.it.nodes if _takes_part(node, all_facts.it) or _is_known(node, trust.it, check))
    return dataclasses.replace(cluster.it, nodes=tuple(nodes))


def _takes_part(node: Node, reached: Collection[str]) -> bool:
    return node.name in reached and node.variables.get("container_ssh_enabled") is not False


def _is_known(node: Node, trust: ContainerTrust, check: str) -> bool:
    """Return whether its keys are recorded where the check reads them."""
    if check == "container_ssh.trusted_nodes":
        return node.name in trust.authorized_nodes or node.name in trust.known_nodes
    return any(name == node.name or name.startswith(f"[{node.name}]:") for name in trust.known_hosts)


def _files(_: Variables, __: NodeFacts) -> Iterator[str]:
    names = ("authorized_keys", "known_hosts", "ssh_config", "sshd_config")
    for name in (*names, "keys/ssh_host_ed25519_key", "keys/id_ed25519"):
        yield f"/var/lib/provision/container_ssh/{name}"


COMPONENT = Component(
    role="container_ssh",
    reasons={
        "container_ssh.new_keys": Wording("the keys of {nodes:few} may change, and all nodes know them"),
        "container_ssh.keys_needed": Wording("the keys of all nodes are missing on {nodes:few}"),
    },
    after=("training_container",),
    waits_also=_waits,
    for_jobs=True,
    needs_image=True,
    after_all_waves=True,  # the nodes exchange their keys
    read_variables=("container_ssh_port",),
    exchange=Exchange(
        request=_request,
        reason=_reason,
        # Without a container there are no keys to make and nowhere to put those of others.
        possible=lambda state, roles: running_container(state.facts) or "training_container" in roles,
    ),
    fixes_if=dict.fromkeys(sorted(_KEY_CHECKS), _keys_can_come),
    files=_files,
)
