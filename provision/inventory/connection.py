"""Connection settings of nodes from their ``ansible_*`` variables."""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.commands.ssh import TRUSTING
from provision.inventory.problems import Problem
from provision.model import Connection, Secret

_BECOME_PASSWORDS = ("ansible_become_password", "ansible_become_pass", "ansible_sudo_pass")
_PASSWORDS = ("ansible_password", "ansible_ssh_password", "ansible_ssh_pass")
_USERS = ("ansible_user", "ansible_ssh_user")
_HOSTS = ("ansible_host", "ansible_ssh_host")
_PORTS = ("ansible_port", "ansible_ssh_port")
_KEY_FILES = ("ansible_ssh_private_key_file", "ansible_private_key_file")
_OWN_ARGUMENTS = "ansible_ssh_args"
_ARGUMENTS = (_OWN_ARGUMENTS, "ansible_ssh_common_args", "ansible_ssh_extra_args")
"""In the order in which Ansible passes them to ssh, which uses the first value of an option."""
_PYTHON = "ansible_python_interpreter"
_COPY_ARGUMENTS = ("ansible_sftp_extra_args", "ansible_scp_extra_args")

SECRET_KEYS = (*_BECOME_PASSWORDS, *_PASSWORDS, "ansible_ssh_private_key_passphrase")
"""Variables whose values are never printed."""

CONNECTION_KEYS = (
    *_HOSTS,
    *_PORTS,
    *_USERS,
    *_KEY_FILES,
    *_ARGUMENTS,
    *_COPY_ARGUMENTS,
    *_BECOME_PASSWORDS,
    *_PASSWORDS,
    "ansible_connection",
    _PYTHON,
    "ansible_become",
    "ansible_become_method",
    "ansible_become_user",
    "ansible_host_key_checking",
    "ansible_ssh_host_key_checking",
)
"""Variables that `connection_of` reads."""

_TRUE = frozenset({"true", "yes", "on", "1", "y", "t"})
_FALSE = frozenset({"false", "no", "off", "0", "n", "f"})
_SSH_CONNECTIONS = frozenset({"ssh", "smart", "paramiko", "paramiko_ssh", "ansible.builtin.ssh"})
_LOCAL_CONNECTIONS = frozenset({"local", "ansible.builtin.local"})
_MAX_PORT = 65535
_PYTHON_MODES = frozenset({"auto", "auto_legacy", "auto_silent", "auto_legacy_silent"})
"""Values with which Ansible searches for an interpreter."""
_PYTHON_PROGRAM = re.compile(r"/[\w./+-]+|\w[\w.+-]*")
"""A path, or a name in the PATH of root."""
_NO_FILE = frozenset({os.devnull, "none"})
_FLAGS_WITH_VALUE = frozenset("BbcDEeFIiJLlmOoPpQRSWw")
"""One-letter options of ssh that take a value."""
_FLAG_KEYWORDS = {"J": "proxyjump", "l": "user", "p": "port", "i": "identityfile", "F": "configfile"}


def connection_of(name: str, values: Mapping[str, Any], become_password: Secret | None = None) -> Connection:
    """Return the connection of the node `name` from its rendered connection variables.

    `become_password` applies to nodes without one in their variables, as with Ansible's ``--ask-become-pass``.
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
        own_ssh_args=bool(_first(values, (_OWN_ARGUMENTS,))),
        local=str(values.get("ansible_connection", "ssh")) in _LOCAL_CONNECTIONS,
        become=_bool(values.get("ansible_become", True)) is not False,
        become_password=_secret(_first(values, _BECOME_PASSWORDS)) or become_password,
        password=_secret(_first(values, _PASSWORDS)),
        python=_python(values),
    )


def connection_problems(name: str, values: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield problems of a node's connection variables."""
    for key in _PORTS:
        port = _int(values.get(key))
        if key in values and (port is None or not 0 < port <= _MAX_PORT):
            yield Problem(name, key, f"{values[key]!r} is not a TCP port")
    for key in (*_HOSTS, *_USERS, *_KEY_FILES, *_ARGUMENTS, *_COPY_ARGUMENTS):
        if isinstance(values.get(key), dict | list | bool):
            yield Problem(name, key, f"must be text, not {values[key]!r}")
    kind = str(values.get("ansible_connection", "ssh"))
    if kind not in _SSH_CONNECTIONS | _LOCAL_CONNECTIONS:
        yield Problem(name, "ansible_connection", f"'{kind}' is not supported; use ssh or local")
    method = str(values.get("ansible_become_method", "sudo"))
    if method not in ("sudo", "ansible.builtin.sudo"):
        yield Problem(name, "ansible_become_method", f"'{method}' is not supported; use sudo")
    if str(values.get("ansible_become_user", "root")) != "root":
        yield Problem(name, "ansible_become_user", "must be root, because the roles change the whole machine")
    if "ansible_become" in values and _bool(values["ansible_become"]) is None:
        yield Problem(name, "ansible_become", f"{values['ansible_become']!r} is not true or false")
    if not _PYTHON_PROGRAM.fullmatch(_python(values)):
        text = f"{values[_PYTHON]!r} is not the path of a program; set one without spaces, such as /usr/bin/python3"
        yield Problem(name, _PYTHON, text)
    yield from _trust_problems(name, values)


def _trust_problems(name: str, values: Mapping[str, Any]) -> Iterator[Problem]:
    remedy = "disables host key checking; add the node's key to a known_hosts file instead (provision init does it)"
    for key in ("ansible_host_key_checking", "ansible_ssh_host_key_checking"):
        if key in values and _bool(values[key]) is False:
            yield Problem(name, key, remedy)
    for key in (*_ARGUMENTS, *_COPY_ARGUMENTS):
        if not isinstance(values.get(key, ""), str):
            continue
        try:
            options = _SshOptions.read(_split(values.get(key, "")))
        except ValueError as error:
            yield Problem(name, key, f"cannot be split into words: {error}")
            continue
        if options.strict in TRUSTING or options.known_hosts in _NO_FILE:
            yield Problem(name, key, remedy)
        elif key in _COPY_ARGUMENTS and options.config_file:
            yield Problem(name, key, "-F sets an ssh_config for file transfers only; use ansible_ssh_common_args")


@dataclass
class _SshOptions:
    """Settings of ssh arguments for which `Connection` has a field. As in ssh, the first value is used."""

    known_hosts: str | None = None
    jump: str | None = None
    user: str | None = None
    port: int | None = None
    key_file: str | None = None
    strict: str | None = None

    config_file: str | None = None

    @classmethod
    def read(cls, words: Sequence[str]) -> _SshOptions:
        """Parse split ssh arguments; letters can be combined, as in ``-qo StrictHostKeyChecking=yes``."""
        options = cls()
        rest = list(words)
        while rest:
            word = rest.pop(0)
            letters = word[1:] if word.startswith("-") and not word.startswith("--") else ""
            position = next((at for at, letter in enumerate(letters) if letter in _FLAGS_WITH_VALUE), None)
            if position is None:
                continue
            letter, value = letters[position], letters[position + 1 :] or (rest.pop(0) if rest else "")
            if letter == "o":
                key, value = (*re.split(r"\s*=\s*|\s+", value.strip(), maxsplit=1), "")[:2]
                options.take(key.lower(), value.strip())
            elif letter in _FLAG_KEYWORDS:
                options.take(_FLAG_KEYWORDS[letter], value)
        return options

    def take(self, key: str, value: str) -> None:
        """Set the value of a keyword unless it is set already."""
        if key == "userknownhostsfile":
            self.known_hosts = self.known_hosts or _unquoted(value)
        elif key == "proxyjump":
            self.jump = self.jump or value
        elif key == "user":
            self.user = self.user or value
        elif key == "port":
            self.port = self.port or _int(value)
        elif key == "identityfile":
            self.key_file = self.key_file or _unquoted(value)
        elif key == "stricthostkeychecking":
            self.strict = self.strict or (_unquoted(value) or "").lower()
        elif key == "configfile":
            self.config_file = self.config_file or value


def _unquoted(value: str) -> str | None:
    """Return the first word of a value without quotes, as ssh reads it."""
    try:
        return next(iter(_split(value)), None)
    except ValueError:  # unbalanced quotes: ssh reports the error
        return value.strip("\"'")


def _words(values: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for key in _ARGUMENTS:
        try:
            words.extend(_split(str(values.get(key) or "")))
        except ValueError:  # reported by connection_problems
            continue
    return words


@functools.lru_cache(maxsize=1024)
def _split(text: str) -> tuple[str, ...]:
    """Split into words as in a shell. Cached, because the nodes of a cluster mostly have the same arguments."""
    return tuple(shlex.split(text))


def _first(values: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((values[key] for key in keys if values.get(key) not in (None, "")), None)


def _python(values: Mapping[str, Any]) -> str:
    """Return the interpreter of a node; python3 unless the inventory names one."""
    value = str(_first(values, (_PYTHON,)) or "auto")
    return "python3" if value in _PYTHON_MODES else value


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
