"""How a node is reached, from its ``ansible_*`` variables."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.inventory.problems import Problem
from provision.model import Connection, Secret

__all__ = ["CONNECTION_KEYS", "SECRET_KEYS", "connection_of", "connection_problems"]

_BECOME_PASSWORDS = ("ansible_become_password", "ansible_become_pass", "ansible_sudo_pass")
_PASSWORDS = ("ansible_password", "ansible_ssh_password", "ansible_ssh_pass")
_USERS = ("ansible_user", "ansible_ssh_user")
_HOSTS = ("ansible_host", "ansible_ssh_host")
_PORTS = ("ansible_port", "ansible_ssh_port")
_KEY_FILES = ("ansible_ssh_private_key_file", "ansible_private_key_file")
_ARGUMENTS = ("ansible_ssh_common_args", "ansible_ssh_extra_args")

SECRET_KEYS = (*_BECOME_PASSWORDS, *_PASSWORDS, "ansible_ssh_private_key_passphrase")
"""Variables whose values are shown nowhere."""

CONNECTION_KEYS = (
    *_HOSTS,
    *_PORTS,
    *_USERS,
    *_KEY_FILES,
    *_ARGUMENTS,
    *_BECOME_PASSWORDS,
    *_PASSWORDS,
    "ansible_connection",
    "ansible_become",
    "ansible_become_method",
    "ansible_become_user",
    "ansible_host_key_checking",
    "ansible_ssh_host_key_checking",
)
"""What `connection_of` reads."""

_TRUE = frozenset({"true", "yes", "on", "1", "y", "t"})
_FALSE = frozenset({"false", "no", "off", "0", "n", "f"})
_SSH_CONNECTIONS = frozenset({"ssh", "smart", "paramiko", "paramiko_ssh", "ansible.builtin.ssh"})
_LOCAL_CONNECTIONS = frozenset({"local", "ansible.builtin.local"})
_MAX_PORT = 65535
_TRUSTING = frozenset({"no", "off", "accept-new"})
"""Values of StrictHostKeyChecking with which ssh takes a key that nobody looked at."""


def connection_of(name: str, values: Mapping[str, Any], become_password: Secret | None = None) -> Connection:
    """Build the connection of the node `name` from its rendered connection variables.

    `become_password` is for nodes whose variables hold none, as with Ansible's ``--ask-become-pass``.
    """
    words = _words(values)
    options = _SshOptions.read(words)
    user = _first(values, _USERS) or options.user
    return Connection(
        host=str(_first(values, _HOSTS) or name),
        port=_int(_first(values, _PORTS)) or options.port,
        user=str(user) if user else None,
        key_file=_path(_first(values, _KEY_FILES) or options.key_file),
        known_hosts=_path(options.known_hosts),
        jump=options.jump,
        ssh_args=tuple(words),
        local=str(values.get("ansible_connection", "ssh")) in _LOCAL_CONNECTIONS,
        become=_bool(values.get("ansible_become", True)) is not False,
        become_password=_secret(_first(values, _BECOME_PASSWORDS)) or become_password,
        password=_secret(_first(values, _PASSWORDS)),
    )


def connection_problems(name: str, values: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong with a node's connection variables."""
    for key in _PORTS:
        port = _int(values.get(key))
        if key in values and (port is None or not 0 < port <= _MAX_PORT):
            yield Problem(name, key, f"{values[key]!r} is not a TCP port")
    for key in (*_HOSTS, *_USERS, *_KEY_FILES, *_ARGUMENTS):
        if isinstance(values.get(key), dict | list | bool):
            yield Problem(name, key, f"must be text, not {values[key]!r}")
    kind = str(values.get("ansible_connection", "ssh"))
    if kind not in _SSH_CONNECTIONS | _LOCAL_CONNECTIONS:
        yield Problem(name, "ansible_connection", f"'{kind}' is not supported; nodes are reached by ssh, or are local")
    method = str(values.get("ansible_become_method", "sudo"))
    if method not in ("sudo", "ansible.builtin.sudo"):
        yield Problem(name, "ansible_become_method", f"'{method}' is not supported; root is reached by sudo")
    if str(values.get("ansible_become_user", "root")) != "root":
        yield Problem(name, "ansible_become_user", "must be root; the roles change the whole machine")
    if "ansible_become" in values and _bool(values["ansible_become"]) is None:
        yield Problem(name, "ansible_become", f"{values['ansible_become']!r} is not true or false")
    yield from _trust_problems(name, values)


def _trust_problems(name: str, values: Mapping[str, Any]) -> Iterator[Problem]:
    remedy = "turns host-key checking off; put the node's key into a known_hosts file instead (provision init does it)"
    for key in ("ansible_host_key_checking", "ansible_ssh_host_key_checking"):
        if key in values and _bool(values[key]) is False:
            yield Problem(name, key, remedy)
    for key in _ARGUMENTS:
        if not isinstance(values.get(key, ""), str):
            continue
        try:
            options = _SshOptions.read(shlex.split(values.get(key, "")))
        except ValueError as error:
            yield Problem(name, key, f"cannot be split into words: {error}")
            continue
        if options.strict in _TRUSTING or options.known_hosts == os.devnull:
            yield Problem(name, key, remedy)


@dataclass
class _SshOptions:
    """What ssh arguments say that `Connection` has a field for; as with ssh, the first value counts."""

    known_hosts: str | None = None
    jump: str | None = None
    user: str | None = None
    port: int | None = None
    key_file: str | None = None
    strict: str | None = None

    @classmethod
    def read(cls, words: Sequence[str]) -> _SshOptions:
        """Read split ssh arguments."""
        options = cls()
        rest = list(words)
        while rest:
            word = rest.pop(0)
            if len(word) < 2 or word[0] != "-" or word[1] not in "oJlpi":  # noqa: PLR2004 - a dash and a letter
                continue
            value = word[2:] or (rest.pop(0) if rest else "")
            if word[1] == "o":
                key, _, value = value.strip().replace("=", " ", 1).partition(" ")
                options.take(key.lower(), value.strip())
            else:
                options.take({"J": "proxyjump", "l": "user", "p": "port", "i": "identityfile"}[word[1]], value)
        return options

    def take(self, key: str, value: str) -> None:
        """Keep one keyword's value unless there is one already."""
        if key == "userknownhostsfile":
            self.known_hosts = self.known_hosts or next(iter(shlex.split(value)), None)
        elif key == "proxyjump":
            self.jump = self.jump or value
        elif key == "user":
            self.user = self.user or value
        elif key == "port":
            self.port = self.port or _int(value)
        elif key == "identityfile":
            self.key_file = self.key_file or next(iter(shlex.split(value)), None)
        elif key == "stricthostkeychecking":
            self.strict = self.strict or value.lower()


def _words(values: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for key in _ARGUMENTS:
        try:
            words.extend(shlex.split(str(values.get(key) or "")))
        except ValueError:  # reported by connection_problems
            continue
    return words


def _first(values: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((values[key] for key in keys if values.get(key) not in (None, "")), None)


def _path(value: Any) -> Path | None:
    return Path(str(value)).expanduser().absolute() if value else None


def _secret(value: Any) -> Secret | None:
    return Secret(str(value)) if value is not None else None


def _int(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else int(str(value))
    except ValueError:
        return None


def _bool(value: Any) -> bool | None:
    text = str(value).strip().lower()
    return True if text in _TRUE else False if text in _FALSE else None
