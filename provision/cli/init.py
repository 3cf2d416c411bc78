"""``provision init``: write an inventory, every host key approved by a person or taken from a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from provision.cli.common import (
    InventoryOption,
    JsonOption,
    YesOption,
    confirm,
    interactive,
    note,
    print_json,
    say,
    table,
)
from provision.cli.init_questions import SiteOptions
from provision.cli.option_groups import with_option_groups
from provision.errors import UsageError

if TYPE_CHECKING:
    from provision.inventory.hostkeys import Target
    from provision.inventory.init import InitRequest, InitResult
    from provision.inventory.replace import KeyChange
    from provision.inventory.trust import PinnedKey

__all__ = ["init"]

_MAX_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class LoginOptions:
    """How the nodes are reached."""

    name: Annotated[str | None, typer.Option("--name", "-n", help="The inventory's name; default: cluster.")] = None
    user: Annotated[str | None, typer.Option("--user", "-u", help="Login user; not root means sudo.")] = None
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="Private key for the login.")] = None
    port: Annotated[int | None, typer.Option("--port", "-p", min=1, max=_MAX_PORT, help="Port of sshd.")] = None
    data_network: Annotated[
        list[str] | None,
        typer.Option("--data-network", metavar="CIDR", help="Find each node's address in this network. Repeatable."),
    ] = None
    known_hosts: Annotated[
        Path | None, typer.Option("--known-hosts", metavar="FILE", help="Trust the host keys in this file.")
    ] = None
    jump: Annotated[str | None, typer.Option("--jump", "-J", metavar="HOST", help="Go by way of this host.")] = None


@dataclass(frozen=True, kw_only=True)
class ChangeOptions:
    """What is changed in an existing inventory."""

    add: Annotated[bool, typer.Option("--add", help="Add the hosts to an existing inventory.")] = False
    remove: Annotated[bool, typer.Option("--remove", help="Take the hosts out of an existing inventory.")] = False
    replace_key: Annotated[
        bool, typer.Option("--replace-key", help="Replace the host keys of reinstalled nodes, after approval.")
    ] = False
    fingerprint: Annotated[
        list[str] | None,
        typer.Option(
            "--fingerprint",
            metavar="[NODE=]SHA256:...",
            help="Expected new host key; approves it without a question. Repeatable.",
        ),
    ] = None

    def chosen(self) -> str | None:
        """Return the option that was given; UsageError if several were, or one that needs another."""
        given = {"--add": self.add, "--remove": self.remove, "--replace-key": self.replace_key}
        chosen = [option for option, value in given.items() if value]
        if len(chosen) > 1:
            raise UsageError(f"{' and '.join(chosen)} exclude each other", remedy="Do one after the other.")
        if self.fingerprint and not self.replace_key:
            raise UsageError("--fingerprint belongs to --replace-key", remedy="See: provision init --help")
        return chosen[0] if chosen else None


@with_option_groups
def init(
    hosts: Annotated[list[str], typer.Argument(metavar="'HOST[1-8]'...", help="Names, ranges, NAME=ADDRESS[:PORT].")],
    *,
    login: LoginOptions,
    change: ChangeOptions,
    site: SiteOptions,
    inventory: InventoryOption = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Write an Ansible inventory with pinned host keys.

    The inventory is a folder below ./inventories.

    Each new host key is shown with its fingerprint for approval; --yes approves what it prints.
    On a terminal, init asks for the training image and for NVIDIA's package repository unless
    options give them. Without a terminal, the image is a TODO in the inventory, and the repository is NVIDIA's.
    Quote ranges, because a shell may take brackets for itself.

    \b
      provision init 'gpu[1-8]' --user root
      provision init 'gpu[01-16]' --name train --user ubuntu --key ~/.ssh/id_ed25519
      provision init 'gpu[1-4]=10.0.0.[11-14]' --user root --data-network 10.10.0.0/24
      provision init 'gpu[1-8]' --user root --known-hosts keys.txt
      provision init 'gpu[1-8]' --image registry.example.com/team/train:1 --registry-ca ca.pem
      provision init 'gpu[1-8]' --nvidia-repository https://mirror.example.com/nvidia --nvidia-key mirror.asc
      provision init 'gpu[9-12]' --add
      provision init 'gpu3' --remove
      provision init gpu3 --replace-key
      provision init gpu3 --replace-key --fingerprint SHA256:qLnv6cmX...
    """
    chosen = change.chosen()
    if chosen and site.given():
        raise UsageError(
            f"{site.given()[0]} is for a new inventory, not for {chosen}",
            remedy="Change the variables in the inventory's group_vars/all.yml.",
        )
    request = _request(hosts, login, change, inventory if chosen else None)
    person = _Person(yes=yes)
    if change.replace_key:
        _replace(request, person, as_json=json)
        return
    result = _write(request, change, site, person, yes=yes)
    _tell(result, add=change.add)
    if json:
        print_json(_document(result))


def _request(hosts: Sequence[str], login: LoginOptions, change: ChangeOptions, inventory: str | None) -> InitRequest:
    from provision.inventory.init import InitRequest

    return InitRequest(
        words=tuple(hosts),
        name=login.name,
        user=login.user,
        key=login.key,
        port=login.port,
        data_networks=tuple(login.data_network or ()),
        known_hosts=login.known_hosts,
        jump=login.jump,
        inventory=inventory,
        fingerprints=tuple(change.fingerprint or ()),
    )


def _write(request: InitRequest, change: ChangeOptions, site: SiteOptions, person: _Person, *, yes: bool) -> InitResult:
    """Write a new inventory, or add hosts to one, or remove them from it."""
    from provision.cli.init_questions import site_settings
    from provision.inventory import change as existing
    from provision.inventory.init import create, new_folder
    from provision.inventory.site_settings import site_variables

    if change.remove:
        return existing.remove(request)
    if change.add:
        return existing.add(request, person)
    new_folder(request)  # refused before any question
    return create(replace(request, variables=site_variables(site_settings(site, yes=yes))), person)


class _Person:
    """Shows the keys on the terminal and asks there."""

    def __init__(self, *, yes: bool) -> None:
        self._yes = yes

    def step(self, message: str) -> None:
        """Say what begins now."""
        note(message + " ...")

    def approve(self, pinned: Sequence[PinnedKey]) -> None:
        """Show every key; ask about those that nothing vouches for yet."""
        from provision.inventory.trust import KeySource, shared_keys

        rows = [[p.target.name, _where(p.target), p.key.type, _ORIGINS[p.source], p.key.fingerprint] for p in pinned]
        say(table(["node", "address", "key", "trusted", "fingerprint"], rows, width=140))
        for names in shared_keys(pinned):
            say(
                f"warning: {', '.join(names)} show the same host key, as copies of one image do; each can pose as the "
                "others. New keys: rm /etc/ssh/ssh_host_*; ssh-keygen -A"
            )
        new = [p for p in pinned if p.source is KeySource.NEW]
        if not new:
            return
        say("To compare, on a node's console: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub")
        count = "this new key" if len(new) == 1 else f"these {len(new)} new keys"
        confirm(f"Trust {count}?", yes=self._yes)
        if self._yes:
            say(f"--yes: {count} approved as printed")

    def approve_changes(self, changes: Sequence[KeyChange]) -> None:
        """Show the recorded and the new keys; ask about those that nothing vouches for.

        A changed key is what an attack looks like, so that --yes does not approve it.
        """
        from provision.inventory.trust import KeySource

        for change in changes:
            say(f"{change.target.name} ({_where(change.target)})")
            for key in change.old:
                say(f"  old: {key.fingerprint} ({key.type})")
            say(f"  new: {change.new.fingerprint} ({change.new.type}), {_ORIGINS[change.source]}")
            if change.others:
                say(f"  warning: {', '.join(change.others)} has this key on record; were addresses swapped?")
        new = [change.target.name for change in changes if change.source is KeySource.NEW]
        if not new:
            return
        say("Compare on the node's console: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub")
        if self._yes or not interactive():
            words = [f"--fingerprint {name}=SHA256:..." for name in new]
            raise UsageError(
                f"a changed host key is not approved {'by --yes' if self._yes else 'without a terminal'}",
                remedy=f"Nothing was written. Give the fingerprint that the node's console shows: {' '.join(words)}",
            )
        confirm(f"Were {', '.join(new)} reinstalled, and are these the keys on the console?", yes=False)


_ORIGINS: dict[str, str] = {
    "file": "from the file",
    "known": "in your known_hosts",
    "fingerprint": "with the expected fingerprint",
    "new": "new",
}
"""By the key's source."""


def _replace(request: InitRequest, person: _Person, *, as_json: bool) -> None:
    from provision.inventory.replace import replace_keys

    result = replace_keys(request, person)
    for change in result.keys:
        if change.changed:
            note(f"{_shown(change.file)}: replaced the host key of {change.target.name}")
        else:
            note(f"{change.target.name}: its host key has not changed ({change.new.fingerprint})")
    names = [change.target.name for change in result.keys if change.changed]
    if names:
        note(f"Next: provision apply --limit {','.join(names)}")
    if as_json:
        print_json(
            {
                "name": result.cluster.name,
                "inventory": str(result.cluster.inventory),
                "nodes": [
                    {
                        "name": change.target.name,
                        "changed": change.changed,
                        "old": [{"type": key.type, "fingerprint": key.fingerprint} for key in change.old],
                        "key": {
                            "type": change.new.type,
                            "fingerprint": change.new.fingerprint,
                            "source": change.source.value,
                        },
                    }
                    for change in result.keys
                ],
            }
        )


def _where(target: Target) -> str:
    return target.host if target.port == 22 else f"{target.host}:{target.port}"  # noqa: PLR2004 - SSH's port


def _tell(result: InitResult, *, add: bool) -> None:
    cluster = result.cluster
    for warning in (*cluster.warnings, *result.notes):
        say(f"warning: {warning}")
    path = _shown(cluster.inventory)
    if result.removed:
        note(f"{path}: took out {', '.join(result.removed)}; {len(cluster.nodes)} left")
        note("Their keys are withdrawn from the other nodes by the next: provision apply")
        return
    count = len(result.pinned)
    note(f"{path}: {'added' if add else 'wrote'} {count} node{'s' if count != 1 else ''}, host keys pinned")
    if not add and not any(node.variables.get("training_image_reference") for node in cluster.nodes):
        note(f"TODO: set training_image_reference in {path}/group_vars/all.yml; apply requires it")
    note(f"Next: provision plan -i {path}, then: provision apply -i {path}")


def _shown(path: Path) -> str:
    from provision.inventory.sources import shown

    return shown(path)


def _document(result: InitResult) -> dict[str, Any]:
    cluster = result.cluster
    keys = {p.target.name: p for p in result.pinned}
    nodes = []
    for node in cluster.nodes:
        entry: dict[str, Any] = {
            "name": node.name,
            "address": node.connection.host,
            "port": node.connection.port,
            "data_address": node.variables.get("cluster_data_address"),
        }
        if node.name in keys:
            pinned = keys[node.name]
            fingerprint = pinned.key.fingerprint
            entry["key"] = {"type": pinned.key.type, "fingerprint": fingerprint, "source": pinned.source.value}
        nodes.append(entry)
    document = {"name": cluster.name, "inventory": str(cluster.inventory), "nodes": nodes}
    return document | {"removed": list(result.removed)} if result.removed else document
