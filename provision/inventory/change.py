"""Add hosts to an inventory or remove them, without other changes to its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from provision.errors import InventoryError, UsageError
from provision.inventory.data_network import checked_networks
from provision.inventory.init import (
    Asker,
    InitRequest,
    InitResult,
    data_network,
    existing,
    host_variables,
    key_file,
    known_hosts_text,
    load_staged,
    moved,
    pin,
    staging,
    targets_of,
)
from provision.inventory.load import load
from provision.inventory.ranges import HostWord, expand
from provision.inventory.sources import inventory_files, shown
from provision.inventory.write import KNOWN_HOSTS, HostEntry, common_args, with_hosts, without_hosts, without_keys
from provision.model import Cluster, Connection

_SSH_PORT = 22


def add(request: InitRequest, asker: Asker) -> InitResult:
    """Add hosts to an existing inventory. Other hosts and manual edits are preserved."""
    path = existing(request)
    words = expand(request.words)
    before = load(path)
    _refuse_known(before, words)
    file = _hosts_file(path)
    text = file.read_text(encoding="utf-8")
    networks = checked_networks(request.data_networks) or _networks(before)
    with staging(path, copy=True) as stage:
        staged = stage / file.relative_to(path)
        own = {word.name: _own_variables(request, word) for word in words}
        staged.write_text(with_hosts(text, _entries(words, own), file), encoding="utf-8")
        after = load_staged(stage, path)
        if _needs_arguments(after, words, request):
            for variables in own.values():
                variables["ansible_ssh_common_args"] = common_args(request.jump)
            staged.write_text(with_hosts(text, _entries(words, own), file), encoding="utf-8")
            after = load_staged(stage, path)
        connections = {word.name: after.node(word.name).connection for word in words}
        keys = _keys_file(connections, stage, words)
        targets = targets_of(words, connections)
        pinned = pin(targets, request.known_hosts, asker)
        _append(keys, known_hosts_text(pinned))
        addresses = data_network(targets, networks, keys, asker)
        for name, address in addresses.items():
            own[name]["cluster_data_address"] = address
        if addresses:
            staged.write_text(with_hosts(text, _entries(words, own), file), encoding="utf-8")
            after = load_staged(stage, path)
        keys.replace(path / keys.relative_to(stage))  # the key first: a key without a host has no effect
        staged.replace(file)
    return InitResult(moved(after, stage, path), tuple(pinned))


def remove(request: InitRequest) -> InitResult:
    """Remove hosts and their keys from an existing inventory."""
    path = existing(request)
    before = load(path)
    names = [word.name for word in expand(request.words)]
    known = [node.name for node in before.nodes]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"{path} has no host {', '.join(unknown)}", remedy="Its hosts are " + ", ".join(known) + ".")
    if set(known) <= set(names):
        raise UsageError("the inventory would have no hosts", remedy=f"To remove the whole inventory, delete {path}.")
    file = _hosts_file(path)
    with staging(path, copy=True) as stage:
        staged = stage / file.relative_to(path)
        staged.write_text(without_hosts(file.read_text(encoding="utf-8"), names, file), encoding="utf-8")
        after = load_staged(stage, path)
        left = [node.name for node in after.nodes if node.name in names]
        if left:
            raise InventoryError(
                f"{shown(file)} does not have {', '.join(left)} on a line of its own (a range, or another file)",
                remedy="Remove it there manually.",
            )
        keys = stage / KNOWN_HOSTS
        staged.replace(file)
        if keys.is_file():
            keys.write_text(without_keys(keys.read_text(encoding="utf-8"), names, _unused(before, names)), "utf-8")
            keys.replace(path / KNOWN_HOSTS)
    notes = [f"{f} remains; delete it if you do not need it" for n in names for f in path.glob(f"host_vars/{n}*")]
    return InitResult(moved(after, stage, path), removed=tuple(names), notes=tuple(notes))


def _refuse_known(cluster: Cluster, words: Sequence[HostWord]) -> None:
    known = {node.name for node in cluster.nodes}
    twice = [word.name for word in words if word.name in known]
    if twice:
        raise UsageError(
            f"{', '.join(twice)}: already in the inventory", remedy="Specify only the new hosts with --add."
        )


def _hosts_file(path: Path) -> Path:
    """Return the YAML file in the inventory's folder that lists the hosts."""
    if not path.is_dir():
        raise UsageError(
            f"{shown(path)} is not an inventory folder", remedy="--add and --remove require a folder with a hosts.yml."
        )
    files = [file for file in inventory_files(path) if file.suffix in (".yml", ".yaml")]
    named = [file for file in files if file.stem == "hosts"] or files
    if len(named) != 1:
        raise InventoryError(
            f"{path} has no hosts.yml, and {len(files)} YAML files",
            remedy="--add and --remove change hosts.yml only; edit other inventories manually.",
        )
    return named[0]


def _own_variables(request: InitRequest, word: HostWord) -> dict[str, Any]:
    variables = host_variables(word, {}, None)
    if request.port is not None:
        variables.setdefault("ansible_port", request.port)
    if request.user is not None:
        variables["ansible_user"] = request.user
    if request.key is not None:
        variables["ansible_ssh_private_key_file"] = str(key_file(request.key))
    return variables


def _entries(words: Sequence[HostWord], own: Mapping[str, Mapping[str, Any]]) -> list[HostEntry]:
    return [HostEntry(word.name, own[word.name]) for word in words]


def _needs_arguments(cluster: Cluster, words: Sequence[HostWord], request: InitRequest) -> bool:
    connections = [cluster.node(word.name).connection for word in words]
    no_keys = any(connection.known_hosts is None for connection in connections)
    return no_keys or (request.jump is not None and any(c.jump != request.jump for c in connections))


def _keys_file(connections: Mapping[str, Connection], stage: Path, words: Sequence[HostWord]) -> Path:
    file = connections[words[0].name].known_hosts
    if file is None or not file.is_relative_to(stage.absolute()):
        raise InventoryError(
            f"the inventory's known_hosts file is {file}, outside its folder",
            remedy="Add the hosts and their keys manually.",
        )
    return stage / file.relative_to(stage.absolute())


def _append(file: Path, lines: str) -> None:
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    file.write_text(text + ("\n" if text and not text.endswith("\n") else "") + lines, encoding="utf-8")


def _networks(cluster: Cluster) -> tuple[str, ...]:
    """Return the networks of the existing hosts' data addresses."""
    if not all(node.variables.get("cluster_data_address") for node in cluster.nodes):
        return ()
    return checked_networks(list(map(str, cluster.nodes[0].variables.get("cluster_data_networks") or ())))


def _unused(cluster: Cluster, gone: Sequence[str]) -> set[str]:
    """Return the known_hosts names of removed hosts that no other host has."""

    def names(*, removed: bool) -> set[str]:
        return {
            text
            for node in cluster.nodes
            if (node.name in gone) is removed
            for text in _known_names(node.name, node.connection)
        }

    return names(removed=True) - names(removed=False)


def _known_names(name: str, connection: Connection) -> tuple[str, ...]:
    port = connection.port or _SSH_PORT
    return (connection.host, name) if port == _SSH_PORT else (f"[{connection.host}]:{port}", f"[{name}]:{port}")
