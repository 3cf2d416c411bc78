"""SSH among the containers: the server, its key, and whom it knows."""

from __future__ import annotations

from provision.checks.base import Scene, Verdict, check, fail, known, passed, skip
from provision.facts import data_address
from provision.facts.container import ContainerSsh, fingerprint

__all__: list[str] = []

_SHOWN = 5
_PRIVATE = ("ssh_host_ed25519_key", "id_ed25519")


@check("container_ssh.sshd", role="container_ssh", after="training_container.running")
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


@check("container_ssh.host_key", role="container_ssh", after="training_container.running")
def _host_key(scene: Scene) -> Verdict:
    ssh = _ssh(scene)
    if ssh is None or not ssh.host_key:
        return fail("the container has no host key of its own yet", scene.apply)
    open_files = [f"{name} ({ssh.files[name]})" for name in _PRIVATE if ssh.files.get(name, "600")[-2:] != "00"]
    if open_files:
        return fail(f"private keys can be read by others: {', '.join(open_files)}", scene.apply)
    return passed(fingerprint(ssh.host_key))


@check("container_ssh.known_hosts", role="container_ssh", after="container_ssh.host_key")
def _known_hosts(scene: Scene) -> Verdict:
    ssh = _ssh(scene)
    if ssh is None:
        return skip("there are no SSH files")
    port = scene.want("container_ssh_port", default=2222)
    missing: list[str] = []
    other: list[str] = []
    for node in scene.cluster.nodes:
        pinned = ssh.known_hosts.get(f"[{node.name}]:{port}" if port != 22 else node.name)  # noqa: PLR2004 - ssh's own
        facts = scene.all_facts.get(node.name)
        theirs = facts.container_ssh if facts else None
        if not pinned:
            missing.append(node.name)
        elif isinstance(theirs, ContainerSsh) and theirs.host_key and theirs.host_key not in pinned:
            other.append(node.name)
    if other:
        return fail(f"another host key is pinned than the one in use: {_list(other)}", _remedy(other, scene))
    if missing:
        return fail(f"no host key is pinned for: {_list(missing)}", _remedy(missing, scene))
    return passed(f"the host keys of {len(scene.cluster.nodes)} nodes are pinned")


@check("container_ssh.trusted_nodes", role="container_ssh", after="container_ssh.host_key")
def _trusted_nodes(scene: Scene) -> Verdict:
    """Other than container_ssh.known_hosts this finds what is too much: keys that were never withdrawn."""
    ssh = _ssh(scene)
    if ssh is None:
        return skip("there are no SSH files")
    names, known_nodes = [node.name for node in scene.cluster.nodes], frozenset(ssh.known_nodes)
    problems = {
        "authorized_keys still admits": sorted(set(ssh.authorized_nodes) - set(names)),
        "known_hosts still knows": sorted(known_nodes - set(names)),
        "authorized_keys admits another key than the one in use of": [
            name for name in names if not _only(ssh.authorized_nodes.get(name, ()), _client_key(scene, name))
        ],
        "authorized_keys lacks": [name for name in names if name not in ssh.authorized_nodes],
        "known_hosts lacks": [name for name in names if name not in known_nodes],
    }
    said = [f"{what} {_list(found)}" for what, found in problems.items() if found]
    if said:
        return fail("; ".join(said), "Run: provision apply")
    return passed(f"exactly the {len(names)} nodes of the inventory can log in and are known")


def _only(keys: tuple[str, ...], key: str) -> bool:
    return len(keys) <= 1 and (not key or not keys or keys == (key,))


def _client_key(scene: Scene, name: str) -> str:
    facts = scene.facts if name == scene.node.name else scene.all_facts.get(name)
    theirs = facts.container_ssh if facts else None
    return theirs.client_key if isinstance(theirs, ContainerSsh) else ""


def _remedy(names: list[str], scene: Scene) -> str:
    others = [name for name in names[:_SHOWN] if name != scene.node.name]
    return f"Run: provision apply --limit {','.join([scene.node.name, *others])}"


def _list(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
