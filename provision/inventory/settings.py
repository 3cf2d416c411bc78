"""The operator's Ansible settings that affect how an inventory is read.

The playbooks have their own ansible.cfg, and Ansible reads only one. An inventory that was validated with the
operator's ansible.cfg (vault password, plugins) must be read in the same way when the playbooks run.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provision.documents import decode
from provision.documents.ansible import Setting
from provision.errors import InvalidDocument, InventoryError
from provision.inventory.listing import ansible_environment, ansible_program

_PASSED_ON = {
    "BECOME_PLUGIN_PATH": "ANSIBLE_BECOME_PLUGINS",
    "COLLECTIONS_PATHS": "ANSIBLE_COLLECTIONS_PATH",
    "DEFAULT_CONNECTION_PLUGIN_PATH": "ANSIBLE_CONNECTION_PLUGINS",
    "DEFAULT_FILTER_PLUGIN_PATH": "ANSIBLE_FILTER_PLUGINS",
    "DEFAULT_HASH_BEHAVIOUR": "ANSIBLE_HASH_BEHAVIOUR",
    "DEFAULT_INVENTORY_PLUGIN_PATH": "ANSIBLE_INVENTORY_PLUGINS",
    "DEFAULT_LOOKUP_PLUGIN_PATH": "ANSIBLE_LOOKUP_PLUGINS",
    "DEFAULT_TEST_PLUGIN_PATH": "ANSIBLE_TEST_PLUGINS",
    "DEFAULT_VARS_PLUGIN_PATH": "ANSIBLE_VARS_PLUGINS",
    "DEFAULT_VAULT_IDENTITY": "ANSIBLE_VAULT_IDENTITY",
    "DEFAULT_VAULT_IDENTITY_LIST": "ANSIBLE_VAULT_IDENTITY_LIST",
    "DEFAULT_VAULT_ID_MATCH": "ANSIBLE_VAULT_ID_MATCH",
    "DEFAULT_VAULT_PASSWORD_FILE": "ANSIBLE_VAULT_PASSWORD_FILE",  # nosec B105 # names of variables
    "INVENTORY_ENABLED": "ANSIBLE_INVENTORY_ENABLED",
    "INVENTORY_IGNORE_EXTS": "ANSIBLE_INVENTORY_IGNORE",
    "INVENTORY_IGNORE_PATTERNS": "ANSIBLE_INVENTORY_IGNORE_REGEX",
    "PLAYBOOK_VARS_ROOT": "ANSIBLE_PLAYBOOK_VARS_ROOT",
    "RUN_VARS_PLUGINS": "ANSIBLE_RUN_VARS_PLUGINS",
    "TRANSFORM_INVALID_GROUP_CHARS": "ANSIBLE_TRANSFORM_INVALID_GROUP_CHARS",
    "VARIABLE_PLUGINS_ENABLED": "ANSIBLE_VARS_ENABLED",
    "VARIABLE_PRECEDENCE": "ANSIBLE_PRECEDENCE",
}
"""Ansible's name of a setting -> its environment variable. None of them affects host keys or tasks."""

_PATHS = {name for name in _PASSED_ON if name.endswith(("_PATH", "_PATHS"))}


def reading_environment() -> dict[str, str]:
    """Return the settings as environment variables with absolute paths; empty without settings."""
    if not _configured():
        return {}
    argv = [ansible_program("ansible-config"), "dump", "--only-changed", "--format", "json"]
    done = subprocess.run(
        argv, env=ansible_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    try:
        settings = decode(done.stdout, list[Setting], node="", what="answer of ansible-config")
    except InvalidDocument:
        raise InventoryError(
            "ansible-config cannot read your ansible.cfg",
            output=done.stderr,
            remedy="Run this to see the file and the error: ansible-config dump --only-changed",
        ) from None
    return {
        _PASSED_ON[entry.name]: _as_text(entry.name, entry.value)
        for entry in settings
        if entry.name in _PASSED_ON and entry.value is not None
    }


def _configured() -> bool:
    """Return whether there is an ansible.cfg or an ``ANSIBLE_...`` variable; ansible-config takes a second."""
    files = (Path("ansible.cfg"), Path.home() / ".ansible.cfg", Path("/etc/ansible/ansible.cfg"))
    return any(name.startswith("ANSIBLE_") for name in os.environ) or any(file.is_file() for file in files)


def _as_text(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, list):
        return (os.pathsep if name in _PATHS else ",").join(map(str, value))
    return str(value)
