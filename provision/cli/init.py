"""``provision init``: write an inventory with approved host keys."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from provision.errors import ProvisionError, UsageError
from provision.report import layout

if TYPE_CHECKING:
    from provision.cli.init_questions import SiteOptions
    from provision.inventory.hostkeys import Target
    from provision.inventory.init import InitRequest, InitResult
    from provision.inventory.replace import KeyChange, Replaced
    from provision.inventory.trust import PinnedKey
    from provision.report.json_documents.inventories import Inventory, InventoryNode, ReplacedKeys

_MAX_PORT = 65535


def init(
    hosts: Annotated[
        list[str] | None, typer.Argument(metavar="[HOST...]", help="Names, ranges ('gpu[1-8]'), NAME=ADDRESS[:PORT].")
    ] = None,
    *,
    name: Annotated[str | None, typer.Option("--name", "-n", help="Name of the inventory. [cluster]")] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="SSH user; other users than root use sudo.")] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="Private key for the login.")] = None,
    port: Annotated[int | None, typer.Option("--port", "-p", min=1, max=_MAX_PORT, help="Port of sshd.")] = None,
    data_network: Annotated[
        list[str] | None,
        typer.Option("--data-network", metavar="CIDR", help="Read each node's address in this network. Repeatable."),
    ] = None,
    known_hosts: Annotated[
        Path | None, typer.Option("--known-hosts", metavar="FILE", help="Trust the host keys in this file.")
    ] = None,
    jump: Annotated[str | None, typer.Option("--jump", "-J", metavar="HOST", help="Connect through this host.")] = None,
    add: Annotated[bool, typer.Option("--add", help="Add the hosts to an existing inventory.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the hosts from an existing inventory.")] = False,
    replace_key: Annotated[
        bool, typer.Option("--replace-key", help="Replace the host keys of reinstalled nodes, after approval.")
    ] = False,
    fingerprint: Annotated[
        list[str] | None,
        typer.Option(
            "--fingerprint",
            metavar="[NODE=]SHA256:...",
            help="Expected new host key; approves it without a question. Repeatable.",
        ),
    ] = None,
    image: Annotated[
        str | None, typer.Option("--image", metavar="REFERENCE", help="Training image, as REGISTRY/PATH:TAG.")
    ] = None,
    registry_ca: Annotated[
        Path | None, typer.Option("--registry-ca", metavar="FILE", help="CA certificate (PEM) of the image's registry.")
    ] = None,
    nvidia_repository: Annotated[
        str | None,
        typer.Option(
            "--nvidia-repository",
            metavar="URL",
            help="Package repository of the NVIDIA Container Toolkit, or none. [NVIDIA's]",
        ),
    ] = None,
    nvidia_key: Annotated[
        Path | None, typer.Option("--nvidia-key", metavar="FILE", help="Key that signs it, armored. [NVIDIA's]")
    ] = None,
    nvidia_fingerprint: Annotated[
        str | None,
        typer.Option("--nvidia-fingerprint", metavar="FINGERPRINT", help="Expected fingerprint of that key, in full."),
    ] = None,
    inventory: InventoryOption = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Write an Ansible inventory with pinned host keys.

    The inventory is a folder below ./inventories.

    Each new host key is shown with its fingerprint for approval; --yes approves what it prints.
    On a terminal, init asks for the training image, for the CA certificate of a private registry and for NVIDIA's
    package repository unless options give them. Without a terminal, the image is a TODO in the inventory, and the
    repository is NVIDIA's. At the end, init tries the login to each node and reports the nodes where it fails.
    With --image, --registry-ca or an --nvidia option and an existing inventory, init changes only these settings,
    after it has shown them and asked.
    Quote ranges, because a shell may expand brackets itself.

    \b
    Examples:
      provision init 'gpu[1-8]' --user root
      provision init 'gpu[01-16]' --name train --user ubuntu --key ~/.ssh/key
      provision init 'gpu[1-4]=10.0.0.[11-14]' --data-network 10.10.0.0/24
      provision init 'gpu[1-8]' -u root --key ~/.ssh/key --known-hosts keys.txt
      provision init 'gpu[1-8]' --image example.com/train:1 --registry-ca ca.pem
      provision init --nvidia-repository https://example.com/nv --nvidia-key k.asc
      provision init --name prod --registry-ca ca.pem
      provision init 'gpu[9-12]' --add
      provision init 'gpu3' --remove
      provision init gpu3 --replace-key
      provision init gpu3 --replace-key --fingerprint SHA256:qLnv6cmX...
    """
    from provision.cli.init_change import change_inventory
    from provision.cli.init_questions import SiteOptions, site_settings
    from provision.inventory.change import add as add_hosts
    from provision.inventory.change import remove as remove_hosts
    from provision.inventory.init import InitRequest, create, new_folder
    from provision.inventory.site_settings import site_variables

    site = SiteOptions(image, registry_ca, nvidia_repository, nvidia_key, nvidia_fingerprint)
    modes = {"--add": add, "--remove": remove, "--replace-key": replace_key}
    chosen = next((option for option, given in modes.items() if given), "")
    _refuse_mixed(modes, site, hosts=hosts or (), name=name, fingerprint=bool(fingerprint))
    request = InitRequest(
        words=tuple(hosts or ()),
        name=name,
        user=user,
        key=key,
        port=port,
        data_networks=tuple(data_network or ()),
        known_hosts=known_hosts,
        jump=jump,
        inventory=inventory if chosen or not hosts else None,
        fingerprints=tuple(fingerprint or ()),
    )
    if replace_key:
        _replace(request, _Person(yes=yes), as_json=json)
        return
    if site.given() and (not hosts or (request.folder / (name or "cluster")).is_dir()):
        change_inventory(request, site, yes=yes, as_json=json)
        return
    try:
        if not chosen:
            new_folder(request)  # refused before any question
            request = replace(request, variables=site_variables(site_settings(site, yes=yes)))
        write = add_hosts if add else create
        result = remove_hosts(request) if remove else write(request, _Person(yes=yes))
    except (ProvisionError, KeyboardInterrupt):
        if site.answered:
            say("\nTo repeat this with your answers:")
            say(f"  provision init {_words(request)} {site.words()}".rstrip())
        raise
    logins = {} if remove else _try_logins(result)
    _tell(result, add=add)
    if json:
        print_json(_document(result, logins))


def _refuse_mixed(
    modes: Mapping[str, bool], site: SiteOptions, *, hosts: Sequence[str], name: str | None, fingerprint: bool
) -> None:
    """Raise UsageError for options that exclude each other, and where no host is named."""
    chosen = [option for option, given in modes.items() if given]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} exclude each other", remedy="Do one after the other.")
    if fingerprint and not modes["--replace-key"]:
        raise UsageError("--fingerprint belongs to --replace-key", remedy="Add --replace-key, or omit --fingerprint.")
    if chosen and site.given():
        raise UsageError(
            f"{chosen[0]} and {site.given()[0]} exclude each other",
            remedy=f"Change the setting alone: provision init {f'--name {name} ' if name else ''}{site.words()}",
        )
    if not hosts and (chosen or not site.given()):
        example = f"gpu9 {chosen[0]}" if chosen else "'gpu[1-8]' --user root"
        raise UsageError(
            f"HOST: no node is named{f' for {chosen[0]}' if chosen else ''}",
            remedy=f"Name the nodes, for example: provision init {example}",
        )


def _words(request: InitRequest) -> str:
    """Return what was typed for a new inventory, apart from its settings."""
    words = shlex.join(request.words)
    values: list[tuple[str, object]] = [
        ("--name", request.name),
        ("--user", request.user),
        ("--key", request.key),
        ("--port", request.port),
        *(("--data-network", network) for network in request.data_networks),
        ("--known-hosts", request.known_hosts),
        ("--jump", request.jump),
    ]
    return " ".join([words, *(f"{option} {shlex.quote(str(value))}" for option, value in values if value is not None)])


def _try_logins(result: InitResult) -> Mapping[str, ProvisionError]:
    """Log in to the new nodes and report failures; the inventory is written either way."""
    from provision.report.grouping import grouped, outline
    from provision.report.node_names import in_short
    from provision.workflow.logins import failed_logins

    names = [pinned.target.name for pinned in result.pinned]
    note(f"trying the login to {len(names)} node{'s' * (len(names) != 1)} ...")
    failed = failed_logins([result.cluster.node(name) for name in names])
    if not failed:
        note("the login works on every node")
    for group in grouped(failed.items(), lambda name, error: (outline(error.message, name), error.remedy)):
        same = len({failed[name].message for name in group.names}) == 1
        note_of = "" if same else f" (the message of {group.names[0]})"
        say(f"warning: {in_short(group.names)}: no login: {group.value.message}{note_of}")
        if group.value.remedy:
            say(f"  hint: {group.value.remedy}")
    return failed


class _Person:
    """Shows the keys on the terminal and asks for approval."""

    def __init__(self, *, yes: bool) -> None:
        self._yes = yes

    def step(self, message: str) -> None:
        """Report the start of an action."""
        note(message + " ...")

    def approve(self, pinned: Sequence[PinnedKey]) -> None:
        """Show every key; ask about those that are not verified."""
        from provision.inventory.trust import KeySource, shared_keys

        rows = [[p.target.name, _where(p.target), p.key.type, _ORIGINS[p.source], p.key.fingerprint] for p in pinned]
        keys = table(["node", "address", "key", "trusted", "fingerprint"], rows, width=layout.WIDEST)
        if max(map(len, keys.splitlines())) <= layout.width():
            say(keys)
        else:
            for name, address, kind, trusted, fingerprint in rows:
                say(f"{name}  {address}  {kind}  {trusted}\n  {fingerprint}")
        for names in shared_keys(pinned):
            say(
                f"warning: {', '.join(names)} show the same host key, as copies of one image do; each can pose as the "
                "others. New keys: rm /etc/ssh/ssh_host_*; ssh-keygen -A"
            )
        new = [p for p in pinned if p.source is KeySource.NEW]
        if not new:
            return
        say("To compare, run on the console of each node:")
        say("  ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub")
        count = "this new key" if len(new) == 1 else f"these {len(new)} new keys"
        confirm(f"Trust {count}?", yes=self._yes)
        if self._yes:
            say(f"--yes: {count} approved as printed")

    def approve_changes(self, changes: Sequence[KeyChange]) -> None:
        """Show the recorded and the new keys; ask about those that are not verified.

        A changed key can be an attack, so --yes does not approve it.
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
"""Texts by the source of a key."""


def _replace(request: InitRequest, person: _Person, *, as_json: bool) -> None:
    from provision.inventory.replace import replace_keys

    result = replace_keys(request, person)
    for change in result.keys:
        if change.changed:
            note(f"{_shown(change.file)}: replaced the host key of {change.target.name}")
        else:
            note(f"{change.target.name}: its host key has not changed ({change.new.fingerprint})")
    if any(change.changed for change in result.keys):
        note("Next: provision apply (all nodes: containers of the others trust the new one)")
    if as_json:
        print_json(_replaced(result))


def _replaced(result: Replaced) -> ReplacedKeys:
    return {
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


def _where(target: Target) -> str:
    return target.host if target.port == 22 else f"{target.host}:{target.port}"  # noqa: PLR2004 - SSH's port


def _tell(result: InitResult, *, add: bool) -> None:
    cluster = result.cluster
    for warning in (*cluster.warnings, *result.notes):
        say(f"warning: {warning}")
    path = _shown(cluster.inventory)
    if result.removed:
        note(f"{path}: removed {', '.join(result.removed)}; {len(cluster.nodes)} left")
        note("The next `provision apply` removes their keys from the other nodes.")
        return
    count = len(result.pinned)
    note(f"{path}: {'added' if add else 'wrote'} {count} node{'s' if count != 1 else ''}, host keys pinned")
    if not add and not any(node.variables.get("training_image_reference") for node in cluster.nodes):
        note(f"TODO: name the training image; apply requires it: provision init --name {cluster.name} --image IMAGE")
    note(f"Next: provision plan -i {path}")


def _shown(path: Path) -> str:
    from provision.inventory.sources import shown

    return shown(path)


def _document(result: InitResult, logins: Mapping[str, ProvisionError]) -> Inventory:
    cluster = result.cluster
    keys = {p.target.name: p for p in result.pinned}
    nodes: list[InventoryNode] = []
    for node in cluster.nodes:
        entry: InventoryNode = {
            "name": node.name,
            "address": node.connection.host,
            "port": node.connection.port,
            "data_address": node.variables.get("cluster_data_address"),
        }
        if node.name in keys:
            pinned = keys[node.name]
            fingerprint = pinned.key.fingerprint
            entry["key"] = {"type": pinned.key.type, "fingerprint": fingerprint, "source": pinned.source.value}
            error = logins.get(node.name)
            entry["login"] = {
                "ok": error is None,
                "error": None
                if error is None
                else {"message": error.message, "remedy": error.remedy, "code": error.code},
            }
        nodes.append(entry)
    document: Inventory = {"name": cluster.name, "inventory": str(cluster.inventory), "nodes": nodes}
    if result.removed:
        document["removed"] = list(result.removed)
    return document
