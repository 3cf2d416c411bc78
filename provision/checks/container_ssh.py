"""SSH between the containers: the server, its host key, and the nodes that it trusts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from provision.checks.base import check
from provision.checks.everybody import Everybody, everybody
from provision.components.check import Scene, Verdict, fail, known, passed, skip
from provision.facts import data_address
from provision.facts.container_ssh import ContainerSsh, ContainerTrust, fingerprint
from provision.model import Same
from provision.model.reason import Reason, reason

_SHOWN = 5
_PRIVATE = ("ssh_host_ed25519_key", "id_ed25519")


@check("container_ssh.sshd", after="training_container.running")
def _sshd(scene: Scene) -> Verdict:
    container = known(scene.facts.container)
    port = scene.want("container_ssh_port", default=2222)
    if container is not None and not any(process.command == "sshd" for process in container.processes):
        return fail("container_ssh.sshd.not_running", container=_name(scene))
    sockets = [socket for socket in known(scene.facts.listening) if socket.port == port]
    if not sockets:
        return fail("container_ssh.sshd.no_port", port=port, container=_name(scene))
    address = data_address(scene.node.variables, scene.facts)
    if address and not any(socket.address in {"", address} for socket in sockets):
        return fail("container_ssh.sshd.other_address", port=port, address=address)
    return passed("container_ssh.sshd.ok", address=sockets[0].address or "all addresses", port=port)


def _name(scene: Scene) -> str:
    return scene.want("training_container_name", default="provision-training")


def _ssh(scene: Scene) -> ContainerSsh | None:
    return known(scene.facts.container_ssh)


@check("container_ssh.host_key", after="training_container.running")
def _host_key(scene: Scene) -> Verdict:
    ssh = _ssh(scene)
    if ssh is None or not ssh.host_key:
        return fail("container_ssh.host_key.missing")
    open_files = [f"{name} ({ssh.files[name]})" for name in _PRIVATE if ssh.files.get(name, "600")[-2:] != "00"]
    if open_files:
        return fail("container_ssh.host_key.readable", files=open_files)
    return passed("container_ssh.host_key.ok", fingerprint=fingerprint(ssh.host_key))


@check("container_ssh.known_hosts", after="container_ssh.host_key")
def _known_hosts(scene: Scene) -> Verdict:
    if _ssh(scene) is None:
        return skip("container_ssh.no_files")
    port = scene.want("container_ssh_port", default=2222)
    missing, other = _unpinned(Same(known(scene.facts.container_trust)), Same(everybody(scene)), port)
    if other:
        return fail("container_ssh.known_hosts.differ", nodes=other, others=_others(other, scene))
    if missing:
        return fail("container_ssh.known_hosts.missing", nodes=missing, others=_others(missing, scene))
    return passed("container_ssh.known_hosts.ok", count=len(everybody(scene).names))


@lru_cache(maxsize=16)
def _unpinned(
    trust: Same[ContainerTrust], all_nodes: Same[Everybody], port: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the nodes without a pinned host key, and those with another one than theirs.

    Nodes that trust the same share the result.
    """
    missing: list[str] = []
    other: list[str] = []
    for name in all_nodes.it.names:
        pinned = trust.it.known_hosts.get(f"[{name}]:{port}" if port != 22 else name)  # noqa: PLR2004 - ssh's own
        if not pinned:
            missing.append(name)
        elif all_nodes.it.host_keys.get(name, pinned[0]) not in pinned:
            other.append(name)
    return tuple(missing), tuple(other)


@check("container_ssh.trusted_nodes", after="container_ssh.host_key")
def _trusted_nodes(scene: Scene) -> Verdict:
    """Unlike container_ssh.known_hosts, this check reports entries of nodes that were removed from the inventory."""
    if _ssh(scene) is None:
        return skip("container_ssh.no_files")
    problems = _distrusted(Same(known(scene.facts.container_trust)), Same(everybody(scene)))
    if problems:
        return fail("container_ssh.trusted_nodes.differ", problems=problems)
    return passed("container_ssh.trusted_nodes.ok", count=len(everybody(scene).names))


@lru_cache(maxsize=16)
def _distrusted(trust: Same[ContainerTrust], all_nodes: Same[Everybody]) -> tuple[Reason, ...]:
    """Return how the trusted nodes differ from the inventory; nodes that trust the same share the result."""
    names, keys = all_nodes.it.names, all_nodes.it.client_keys
    admitted, known_nodes = trust.it.authorized_nodes, frozenset(trust.it.known_nodes)
    problems = {
        "container_ssh.trusted_nodes.admits": sorted(set(admitted) - set(names)),
        "container_ssh.trusted_nodes.knows": sorted(known_nodes - set(names)),
        "container_ssh.trusted_nodes.other_key": [
            name for name in names if not _only(admitted.get(name, ()), keys.get(name, ""))
        ],
        "container_ssh.trusted_nodes.not_admitted": [name for name in names if name not in admitted],
        "container_ssh.trusted_nodes.not_known": [name for name in names if name not in known_nodes],
    }
    return tuple(reason(code, nodes=nodes) for code, nodes in problems.items() if nodes)


def _only(keys: tuple[str, ...], key: str) -> bool:
    return len(keys) <= 1 and (not key or not keys or keys == (key,))


def _others(names: Sequence[str], scene: Scene) -> list[str]:
    """Return the nodes, without this one, that an apply has to include."""
    return [name for name in names[:_SHOWN] if name != scene.node.name]
