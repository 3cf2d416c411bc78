"""Hosts, groups and merged variables of an inventory, from ``ansible-inventory``."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision.documents import convert, decode
from provision.documents.ansible import InventoryDocument, InventoryGroup, InventoryMeta
from provision.errors import InvalidDocument, InventoryError, ProvisionError, VaultPasswordMissing
from provision.inventory import cache
from provision.inventory.ignored_files import SETTING, ignore_patterns
from provision.inventory.sources import empty_folders, shown, syntax_problems

NODE_GROUP = "gpu_nodes"
"""If an inventory has this group, its hosts are the nodes, otherwise all hosts."""

VAULT_REMEDY = "Set the vault password: ANSIBLE_VAULT_PASSWORD_FILE=FILE, or vault_password_file in ansible.cfg."

_TIMEOUT_SECONDS = 120
_EMPTY = InventoryGroup()


@dataclass(frozen=True)
class Listing:
    """An inventory as Ansible parses it."""

    hosts: Mapping[str, Mapping[str, Any]]
    """Host name to merged variables, in the order of the inventory."""
    groups: Mapping[str, tuple[str, ...]]
    """Group name to its hosts including child groups, in Ansible's order."""
    warnings: tuple[str, ...] = ()
    empty_groups: tuple[str, ...] = ()
    groups_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes: the group `gpu_nodes` if it exists, otherwise all hosts."""
        return self.groups.get(NODE_GROUP, tuple(self.hosts))


def ansible_program(name: str) -> str:
    """Return the path of an Ansible program in the environment of this Python."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise ProvisionError(
            f"{name} is not installed in the folder of {sys.executable}", remedy="Install the project: pip install -e ."
        )
    return str(path)


def ansible_environment() -> dict[str, str]:
    """Return the operator's environment with settings for parsable output and strict errors of Ansible."""
    environment = {key: value for key, value in os.environ.items() if key != "ANSIBLE_FORCE_COLOR"}
    return environment | {
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_DEPRECATION_WARNINGS": "0",
        "ANSIBLE_LOCALHOST_WARNING": "0",
        SETTING: ignore_patterns(),
        "LC_ALL": "C.UTF-8",
    }


def list_inventory(path: Path) -> Listing:
    """Return the output of ``ansible-inventory --list`` for `path`, from the cache if nothing has changed.

    Raises:
        InventoryError: With file and line if they are known.
    """
    if not path.exists():
        raise InventoryError(
            f"inventory {shown(path)} does not exist", remedy="Create one with: provision init 'gpu[1-8]' --user USER"
        )
    key = cache.key_of(path)
    cached = cache.read(key) if key else None
    if cached is not None:
        return _listing(*cached)
    document, stderr = _ask(path)
    if key and key == cache.key_of(path):  # the files did not change in the meantime
        cache.write(key, document, stderr)
    return _listing(document, stderr)


def _ask(path: Path) -> tuple[InventoryDocument, str]:
    argv = [ansible_program("ansible-inventory"), "-i", str(path), "--list"]
    try:
        done = subprocess.run(
            argv,
            env=ansible_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InventoryError(
            f"{shown(path)}: ansible-inventory did not answer within {_TIMEOUT_SECONDS} s",
            remedy="An inventory script or plugin may hang. Run: ansible-inventory -i INVENTORY --list",
        ) from error
    if done.returncode != 0:
        raise _parse_error(path, done.stderr)
    try:
        return decode(done.stdout, InventoryDocument, node="", what="answer of ansible-inventory"), done.stderr
    except InvalidDocument as error:
        raise InventoryError(
            f"{shown(path)}: {error.message}",
            remedy="Run this to see the output: ansible-inventory -i INVENTORY --list",
        ) from error


def _listing(document: InventoryDocument, stderr: str) -> Listing:
    what = "answer of ansible-inventory"
    rest = {name: value for name, value in document.items() if name != "_meta"}
    tree = convert(rest, dict[str, InventoryGroup], node="", what=what)
    named = {child for value in tree.values() for child in value.children} | set(tree)
    groups = {group: _members(tree, group) for group in sorted(named)}
    hostvars = convert(document.get("_meta", {}), InventoryMeta, node="", what=what).hostvars
    hosts = {host: hostvars.get(host, {}) for host in groups.get("all", ())}
    groups_of: dict[str, list[str]] = {host: [] for host in hosts}
    for group, members in groups.items():
        if group != "all":
            for host in members:
                groups_of[host].append(group)
    return Listing(
        hosts,
        groups,
        warnings=_warnings(stderr),
        empty_groups=tuple(g for g, members in groups.items() if not members and g not in ("all", "ungrouped")),
        groups_of={host: tuple(names) for host, names in groups_of.items()},
    )


def _members(tree: Mapping[str, InventoryGroup], group: str) -> tuple[str, ...]:
    """Return direct hosts first, then child groups level by level, in the order of Ansible's ``groups[...]``."""
    hosts: dict[str, None] = {}
    level = [group]
    seen: set[str] = set()
    while level:
        seen.update(level)
        for name in level:
            hosts.update(dict.fromkeys(tree.get(name, _EMPTY).hosts))
        children = [child for name in level for child in tree.get(name, _EMPTY).children]
        level = [child for child in dict.fromkeys(children) if child not in seen]
    return tuple(hosts)


def _warnings(stderr: str) -> tuple[str, ...]:
    """Return Ansible's warnings, one line each, with their location if it is printed."""
    warnings = []
    for block in re.split(r"^(?=\[(?:WARNING|ERROR|DEPRECATION WARNING)\]:)", stderr, flags=re.MULTILINE):
        if block.startswith("[WARNING]:"):
            origin = re.search(r"^Origin: (\S.*?)(?::\d+)?$", block, flags=re.MULTILINE)
            text = block.removeprefix("[WARNING]:").strip().splitlines()[0]
            warnings.append(f"{shown(origin.group(1))}: {text}" if origin else text)
    return tuple(dict.fromkeys(warnings))


def _parse_error(path: Path, stderr: str) -> InventoryError:
    if "vault" in stderr.lower() and ("decrypt" in stderr.lower() or "secret" in stderr.lower()):
        return VaultPasswordMissing(
            f"{shown(path)}: {_first_error(stderr)}",
            remedy=VAULT_REMEDY,
        )
    problems = syntax_problems(path)
    if problems:
        return InventoryError("\n".join(problems), remedy="Correct the syntax. No node was connected to.")
    for folder in empty_folders(path):
        bare = not any(folder.iterdir())
        return InventoryError(
            f"{shown(folder)}: {'empty folder' if bare else 'folder without an inventory file'} "
            "(Ansible reads every folder of an inventory and rejects this one)",
            remedy=f"Remove it: rmdir {shlex.quote(shown(folder))}"
            if bare
            else f"Remove it, or rename it to an ignored name, for example {folder.name}.bak",
        )
    return InventoryError(
        f"{shown(path)}: {_first_error(stderr)}",
        remedy="No node was connected to. To see Ansible's output, run: ansible-inventory -i INVENTORY --list",
        output="\n".join(stderr.strip().splitlines()[-10:]),
    )


def _first_error(stderr: str) -> str:
    """Return the most specific message: the error of the last plugin, otherwise Ansible's final error."""
    failed = re.findall(r"^\[WARNING\]: Failed to parse inventory with '\w+' plugin[:.] ?(.*)$", stderr, re.MULTILINE)
    final = re.findall(r"^\[ERROR\]: (.*)$", stderr, re.MULTILINE)
    origins = re.findall(r"^Origin: (/\S+:\d+)", stderr, re.MULTILINE)
    text = next((line for line in reversed(failed) if line), None) or (final[-1] if final else "Ansible cannot read it")
    return f"{text} ({shown(origins[0])})" if origins else text
