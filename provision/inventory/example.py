"""Create the documented example's group_vars/all.yml from the roles' argument_specs.

To update it: ``python -m provision.inventory.example > inventories/example/group_vars/all.yml``.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator

import yaml

from provision.components import ROLES
from provision.inventory.specs import Option, Specs, read_specs
from provision.resources import roles_folder

_WIDTH = 110

_HEAD = """---
# Every variable of the roles with its default. Copy a line, without the leading "# ", into the group_vars or
# host_vars of your own inventory and change it there. Variables that are not set keep their defaults.
# An unknown name with the prefix of one of these, or a value of another type, is an error before any connection.

cluster_name: example
cluster_data_networks: ["198.51.100.0/24"]

# Connections to the nodes: Ansible's own variables. Without them your ssh_config applies.
ansible_user: ubuntu
ansible_become: true  # sudo; for a password use --ask-become-pass, or ansible_become_password in a vault
# ansible_ssh_private_key_file: ~/.ssh/id_ed25519
# ansible_port: 22
# The inventory's own known_hosts file, written by `provision init`; unknown or changed host keys are always refused.
# To use a jump host, add: -o ProxyJump=HOST
ansible_ssh_common_args: >-
  -o 'UserKnownHostsFile="{{ inventory_dir }}/known_hosts.txt"' -o StrictHostKeyChecking=yes
"""


def render(specs: Specs) -> str:
    """Return the text of group_vars/all.yml with every variable of `specs`."""
    known = [role for role in ROLES if role in specs.roles]
    roles = [*known, *(role for role in specs.roles if role not in known)]
    return _HEAD + "".join(line + "\n" for role in roles for line in _section(role, specs))


def _section(role: str, specs: Specs) -> Iterator[str]:
    yield ""
    yield f"# ---- role {role} ----"
    for option in specs.options.values():
        if option.role == role:
            yield ""
            yield from _comment(f"{option.description.strip()} ({_kind(option)})")
            yield from _keys(option, "  ")
            yield from _assignment(option)


def _keys(option: Option, pad: str) -> Iterator[str]:
    for key in option.options.values():
        need = ", required" if key.required else ""
        yield from _comment(f"{pad}{key.name} ({_kind(key)}{need}): {key.description}", pad + "  ")
        yield from _keys(key, pad + "  ")


def _assignment(option: Option) -> Iterator[str]:
    line = f"# {option.name}: {json.dumps(option.default, ensure_ascii=False)}"
    if len(line) <= _WIDTH:
        yield line
        return
    block = yaml.safe_dump({option.name: option.default}, sort_keys=False, allow_unicode=True, width=_WIDTH)
    yield from (f"# {part}" for part in block.splitlines())


def _comment(text: str, indent: str = "") -> list[str]:
    return [f"## {line}" for line in textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_long_words=False)]


def _kind(option: Option) -> str:
    kind = f"list of {option.elements}" if option.type == "list" and option.elements else option.type
    return f"{kind}: {' | '.join(str(choice) or 'empty' for choice in option.choices)}" if option.choices else kind


if __name__ == "__main__":
    sys.stdout.write(render(read_specs(roles_folder())))
