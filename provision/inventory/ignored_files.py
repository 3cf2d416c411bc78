"""Ignored files in inventory folders: Ansible's own rule, and backups of editors and programs.

Ansible ignores hidden files and a few suffixes. It parses all other files as inventories, including backups such as
`known_hosts.txt.old` of ``ssh-keygen -R``, in which each line is then a host. The same pattern is passed to Ansible and
used here. playbooks/ansible.cfg contains it for plain ``ansible-playbook``.
"""

from __future__ import annotations

import configparser
import os
import re
from pathlib import Path

BACKUPS = (
    r"[.](old|save|tmp|rej|part|orig|backup|bak[0-9]*|sw[a-z]|dpkg-[a-z]+|ucf-[a-z]+|rpm(save|new|orig))$|~$|^#"
    r"|^stack[.]lock[.]yml$"
)
"""A regular expression without commas, because Ansible separates patterns with commas."""
SETTING = "ANSIBLE_INVENTORY_IGNORE_REGEX"

_IGNORED = re.compile(rf"^\.|~$|\.(pyc|pyo|swp|bak|rpm|md|txt|rst|orig|cfg|retry)$|{BACKUPS}")
_VARIABLE_ENDINGS = ("", ".yml", ".yaml", ".json")
_CONFIG_FILES = ("ansible.cfg", "~/.ansible.cfg", "/etc/ansible/ansible.cfg")
_KEYS = (("defaults", "inventory_ignore_patterns"), ("inventory", "ignore_patterns"))


def is_ignored(name: str) -> bool:
    """Return whether Ansible, with our settings, ignores a file or folder of this name in an inventory folder."""
    return bool(_IGNORED.search(name))


def is_variable_file(name: str) -> bool:
    """Return whether Ansible reads a file of this name in a folder below group_vars or host_vars."""
    return not name.startswith(".") and not name.endswith("~") and Path(name).suffix in _VARIABLE_ENDINGS


def ignore_patterns() -> str:
    """Return the value of Ansible's setting: the operator's own patterns and ours."""
    own = os.environ.get(SETTING) or _configured()
    return f"{own},{BACKUPS}" if own and BACKUPS not in own else own or BACKUPS


def _configured() -> str:
    """Return the operator's patterns in the ansible.cfg that Ansible reads; empty if there are none."""
    chosen = os.environ.get("ANSIBLE_CONFIG")
    for name in [chosen] if chosen else _CONFIG_FILES:
        file = Path(name).expanduser()
        file = file / "ansible.cfg" if file.is_dir() else file
        if file.is_file():
            parser = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=(";",), strict=False)
            try:
                parser.read(file, encoding="utf-8")
            except (configparser.Error, OSError, UnicodeDecodeError):
                return ""  # Ansible reports the error
            return next((parser.get(*key) for key in _KEYS if parser.has_option(*key)), "")
    return ""
