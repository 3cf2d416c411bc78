"""SSH among the containers: the server, its key, and whom it knows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from provision.checks.base import check
from provision.checks.everybody import Everybody, everybody
from provision.checks.wording import few_names
from provision.components.check import Scene, Verdict, fail, known, passed, skip
from provision.facts import data_address
from provision.facts.container_ssh import ContainerSsh, ContainerTrust, fingerprint
from provision.model import Same

__all__: list[str] = []

_SHOWN = 5
_PRIVATE = ("ssh_host_ed25519_key", "id_ed25519")


@check("container_ssh.sshd", after="training_container.running")
def _sshd(scene: Scene) -> Verdict:
    container = known(scene.facts.container)
    port = scene.want("container_ssh_port", default=2222)
    if container is not None and not any(process.command == "sshd" for process in container.processes):
        return fail("no sshd runs in the container", f"See why: docker logs --tail 50 {_name(scene)}. {scene.apply}")
    sockets = [socket for socket in known(scene.facts.listening) if socket.port == port]
    if not sockets:
        return fail(f"nothing listens on port {port}", f"See why: docker logs --tail 50 {_name(scene)}. {scene.apply}")
    address = data_address(scene.node.variables, scene.facts)
    if address and not any(socket.address in {"", address} for socket in sockets):
        return fail(f"port {port} does not listen on the data address {address}", scene.apply)
    return passed(f"sshd listens on {sockets[0].address or 'all addresses'} port {port}")


def _name(scene: Scene) -> str:
    return scene.want("training_container_name", default="provision-training")


def _ssh(scene: Scene) -> ContainerSsh | None:
    return known(scene.facts.container_ssh)


@check("container_ssh.host_key", after="training_container.running")
def _host_key(scene: Scene) -> Verdict:
    ssh = _ssh(scene)
    if ssh is None or not ssh.host_key:
        return fail("the container has no host key of its own yet", scene.apply)
    open_files = [f"{name} ({ssh.files[name]})" for name in _PRIVATE if ssh.files.get(name, "600")[-2:] != "00"]
    if open_files:
        return fail(f"private keys can be read by others: {', '.join(open_files)}", scene.apply)
    return passed(fingerprint(ssh.host_key))


@check("container_ssh.known_hosts", after="container_ssh.host_key")
def _known_hosts(scene: Scene) -> Verdict:
    if _ssh(scene) is None:
        return skip("there are no SSH files")
    port = scene.want("container_ssh_port", default=2222)
    missing, other = _unpinned(Same(known(scene.facts.container_trust)), Same(everybody(scene)), port)
    if other:
        return fail(
            f"another host key is pinned than the one in use: {few_names(other, _SHOWN)}", _remedy(other, scene)
        )
    if missing:
        return fail(f"no host key is pinned for: {few_names(missing, _SHOWN)}", _remedy(missing, scene))
    return passed(f"the host keys of {len(everybody(scene).names)} nodes are pinned")


@lru_cache(maxsize=16)
def _unpinned(
    trust: Same[ContainerTrust], all_nodes: Same[Everybody], port: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the nodes that have no host key pinned, and those that have another than theirs.

    Nodes that trust the same share the answer.
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
    """Other than container_ssh.known_hosts this finds what is too much: keys that were never withdrawn."""
    if _ssh(scene) is None:
        return skip("there are no SSH files")
    said = _distrusted(Same(known(scene.facts.container_trust)), Same(everybody(scene)))
    if said:
        return fail(said, "Run: provision apply")
    return passed(f"exactly the {len(everybody(scene).names)} nodes of the inventory can log in and are known")


@lru_cache(maxsize=16)
def _distrusted(trust: Same[ContainerTrust], all_nodes: Same[Everybody]) -> str:
    """Return what is wrong with whom a node lets in and knows; nodes that trust the same share the answer."""
    names, keys = all_nodes.it.names, all_nodes.it.client_keys
    admitted, known_nodes = trust.it.authorized_nodes, frozenset(trust.it.known_nodes)
    problems = {
        "authorized_keys still admits": sorted(set(admitted) - set(names)),
        "known_hosts still knows": sorted(known_nodes - set(names)),
        "authorized_keys admits another key than the one in use of": [
            name for name in names if not _only(admitted.get(name, ()), keys.get(name, ""))
        ],
        "authorized_keys lacks": [name for name in names if name not in admitted],
        "known_hosts lacks": [name for name in names if name not in known_nodes],
    }
    return "; ".join(f"{what} {few_names(found, _SHOWN)}" for what, found in problems.items() if found)


def _only(keys: tuple[str, ...], key: str) -> bool:
    return len(keys) <= 1 and (not key or not keys or keys == (key,))


def _remedy(names: Sequence[str], scene: Scene) -> str:
    others = [name for name in names[:_SHOWN] if name != scene.node.name]
    return f"Run: provision apply --limit {','.join([scene.node.name, *others])}"
