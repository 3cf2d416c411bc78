"""Create inventories, and add or remove hosts, atomically."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from provision.commands.ssh import is_exposed
from provision.errors import InventoryError, ProvisionError, UsageError
from provision.inventory.configuration import configured_inventory
from provision.inventory.data_network import checked_networks, data_addresses
from provision.inventory.hostkeys import Target, in_parallel, line_for, target_of
from provision.inventory.load import load
from provision.inventory.ranges import HostWord, expand
from provision.inventory.resolve import FOLDER, candidates, resolve
from provision.inventory.trust import PinnedKey, keys_from_file, keys_from_network
from provision.inventory.write import (
    KNOWN_HOSTS,
    HostEntry,
    common_args,
    group_vars_text,
    hosts_text,
)
from provision.model import Cluster, Connection

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")


@dataclass(frozen=True)
class InitRequest:
    """Options of the command line."""

    words: tuple[str, ...]
    name: str | None = None
    user: str | None = None
    key: Path | None = None
    port: int | None = None
    data_networks: tuple[str, ...] = ()
    known_hosts: Path | None = None
    jump: str | None = None
    folder: Path = FOLDER
    inventory: str | None = None
    """Path of the existing inventory to change; None to select it by name, or the only one."""
    fingerprints: tuple[str, ...] = ()
    """Expected fingerprints of replaced host keys: ``[NODE=]SHA256:...``."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of all nodes in a new inventory, from `site_settings`."""


@dataclass(frozen=True)
class InitResult:
    """Result of ``init``: the written inventory."""

    cluster: Cluster
    pinned: tuple[PinnedKey, ...] = ()
    removed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Asker(Protocol):
    """Dialog with the operator during ``init``."""

    def step(self, message: str) -> None:
        """Report the start of an action."""

    def approve(self, pinned: Sequence[PinnedKey]) -> None:
        """Show every key with its fingerprint; return only if all new keys are approved."""


def create(request: InitRequest, asker: Asker) -> InitResult:
    """Write a new inventory in the request's folder; on an error nothing is written."""
    words = expand(request.words)
    networks = checked_networks(request.data_networks)
    path = new_folder(request)
    targets = targets_of(words, {word.name: _connection(request, word) for word in words})
    pinned = pin(targets, request.known_hosts, asker)
    with staging(path) as stage:
        (stage / KNOWN_HOSTS).write_text(known_hosts_text(pinned), encoding="utf-8")
        addresses = data_network(targets, networks, stage / KNOWN_HOSTS, asker)
        entries = [HostEntry(word.name, host_variables(word, addresses, request.port)) for word in words]
        (stage / "hosts.yml").write_text(hosts_text(entries), encoding="utf-8")
        (stage / "group_vars").mkdir()
        (stage / "group_vars" / "all.yml").write_text(
            group_vars_text(_group_variables(request, path.name, networks, targets)), encoding="utf-8"
        )
        cluster = load_staged(stage, path)
        stage.rename(path)
    return InitResult(moved(cluster, stage, path), tuple(pinned))


def new_folder(request: InitRequest) -> Path:
    """Return the folder of a new inventory; UsageError if it exists."""
    path = request.folder / _checked_name(request.name or "cluster")
    if path.exists():
        raise UsageError(
            f"{path} already exists",
            remedy="Add hosts to it with --add, remove hosts with --remove, change its settings with --image, "
            "--registry-ca or --nvidia-repository, or choose another name with --name.",
        )
    return path


def targets_of(words: Sequence[HostWord], connections: Mapping[str, Connection]) -> list[Target]:
    """Return each host's address after OpenSSH has applied the operator's ssh_config."""
    results = in_parallel(lambda word: target_of(word.name, connections[word.name]), words)
    for result in results:
        if isinstance(result, ProvisionError):
            raise result
    return [result for result in results if isinstance(result, Target)]


def pin(targets: Sequence[Target], known_hosts: Path | None, asker: Asker) -> list[PinnedKey]:
    """Return an approved host key for every target, from the file if there is one, otherwise from the nodes."""
    if known_hosts is not None:
        pinned = keys_from_file(targets, known_hosts.expanduser())
    else:
        asker.step(f"reading the SSH host key{'s' if len(targets) > 1 else ''} of {len(targets)} node(s)")
        pinned = keys_from_network(targets)
    asker.approve(pinned)
    return pinned


def known_hosts_text(pinned: Sequence[PinnedKey]) -> str:
    """Return the lines of a known_hosts file."""
    return "".join(line_for(item.target, item.key) + "\n" for item in pinned)


def data_network(targets: Sequence[Target], networks: Sequence[str], known_hosts: Path, asker: Asker) -> dict[str, str]:
    """Return each node's address on the data networks; without networks nothing is connected to."""
    if not networks:
        return {}
    asker.step(f"reading the addresses in {', '.join(networks)} of {len(targets)} node(s)")
    matches, failures = data_addresses(targets, networks, known_hosts)
    if failures:
        raise ProvisionError(
            "\n  ".join(["some nodes have no address on the data network:", *failures])
            if len(failures) > 1
            else failures[0],
            remedy="Nothing was written. Check --data-network and the login (--user, --key), or omit --data-network "
            "and set cluster_data_address per host.",
        )
    return matches


def host_variables(word: HostWord, addresses: Mapping[str, str], group_port: int | None) -> dict[str, Any]:
    """Return the variables of a single host."""
    variables: dict[str, Any] = {}
    if word.address is not None:
        variables["ansible_host"] = word.address
    if word.port is not None and word.port != group_port:
        variables["ansible_port"] = word.port
    if word.name in addresses:
        variables["cluster_data_address"] = addresses[word.name]
    return variables


def load_staged(stage: Path, path: Path) -> Cluster:
    """Load the staged inventory; errors name its final path."""
    try:
        return load(stage)
    except InventoryError as error:
        message = error.message.replace(stage.name, path.name)
        raise InventoryError(
            message, node=error.node, remedy=f"{path} was not changed.", output=error.output
        ) from error


def moved(cluster: Cluster, stage: Path, path: Path) -> Cluster:
    """Return the cluster that was loaded from `stage` with the paths of `path`."""
    before, after = str(stage.absolute()), str(path.absolute())

    def there(connection: Connection) -> Connection:
        keys = connection.known_hosts
        return replace(
            connection,
            known_hosts=keys and Path(str(keys).replace(before, after)),
            ssh_args=tuple(word.replace(before, after) for word in connection.ssh_args),
        )

    nodes = tuple(replace(node, connection=there(node.connection)) for node in cluster.nodes)
    warnings = tuple(warning.replace(stage.name, path.name) for warning in cluster.warnings)
    return replace(cluster, inventory=path.absolute(), nodes=nodes, warnings=warnings)


def existing(request: InitRequest) -> Path:
    """Return the inventory that ``--add``, ``--remove`` and ``--replace-key`` change."""
    if request.name:
        path = request.folder / _checked_name(request.name)
        if not path.is_dir():
            raise UsageError(f"inventory {path} does not exist", remedy="To create a new one, run init without --add.")
        return path
    if request.inventory or configured_inventory() is not None:
        return resolve(request.inventory, None)
    matches = [path for path in candidates(request.folder) if path.is_dir()]
    if len(matches) != 1:
        names = ", ".join(path.name for path in matches) or "none"
        raise UsageError(
            f"several inventories to choose from: {request.folder} has {names}", remedy="Choose one with --name NAME."
        )
    return matches[0]


@contextmanager
def staging(path: Path, *, copy: bool = False) -> Iterator[Path]:
    """Yield a folder next to `path`, optionally a copy of it, which is removed unless it was renamed."""
    made = not path.parent.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=f".{path.name}.new-", dir=path.parent))
    except OSError as error:
        raise ProvisionError(f"cannot write in {path.parent}: {error.strerror}") from error
    try:
        if copy:
            shutil.copytree(path, stage, dirs_exist_ok=True, symlinks=True)
        else:
            stage.chmod(0o777 & ~_umask())
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        if made and not any(path.parent.iterdir()):
            path.parent.rmdir()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _checked_name(name: str) -> str:
    if not _NAME.match(name):
        raise UsageError(f"--name '{name}': use letters, digits, '-', '_' and '.'")
    if name == "example":
        raise UsageError("--name example: reserved for the documented example", remedy="Choose another name.")
    return name


def _connection(request: InitRequest, word: HostWord) -> Connection:
    return Connection(
        host=word.address or word.name,
        port=word.port or request.port,
        user=request.user,
        key_file=key_file(request.key),
        jump=request.jump,
    )


def key_file(key: Path | None) -> Path | None:
    """Return the absolute path of the private key; UsageError if it is not one."""
    if key is None:
        return None
    path = Path(os.path.abspath(key.expanduser()))  # noqa: PTH100 - without following links
    if not path.is_file():
        raise UsageError(f"--key {key}: file not found")
    if path.suffix == ".pub":
        raise UsageError(f"--key {key} is a public key", remedy=f"Specify the private key: --key {key.with_suffix('')}")
    status = path.stat()
    if is_exposed(status.st_mode, owner=status.st_uid, user=os.getuid()):
        raise UsageError(
            f"--key {key}: SSH ignores this key because other users may read it (mode {status.st_mode & 0o7777:04o})",
            remedy=f"Restrict it to its owner: chmod 600 {shlex.quote(str(key))}",
        )
    return path


def _group_variables(
    request: InitRequest, name: str, networks: Sequence[str], targets: Sequence[Target]
) -> dict[str, Any]:
    variables: dict[str, Any] = {"cluster_name": name}
    if networks:
        variables["cluster_data_networks"] = list(networks)
    if request.user:
        variables["ansible_user"] = request.user
    if any(target.user != "root" for target in targets):
        variables["ansible_become"] = True
    if request.port is not None:
        variables["ansible_port"] = request.port
    if request.key is not None:
        variables["ansible_ssh_private_key_file"] = str(key_file(request.key))
    variables["ansible_ssh_common_args"] = common_args(request.jump)
    return {**variables, **request.variables}
