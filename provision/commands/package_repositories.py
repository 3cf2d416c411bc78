"""Package repositories in apt's formats, and the credentials in their URIs, which only root may read.

The role platform uses this file as a filter plugin through a link, so that plain Ansible writes the same files. It
imports only the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit


def source_text(item: Mapping[str, Any]) -> str:
    """Return the deb822 source of a repository (uris, suites, components, key), without credentials."""
    lines = [
        "# Managed by provision (role platform).",
        "Types: deb",
        f"URIs: {' '.join(without_logins(item['uris']))}",
        f"Suites: {' '.join(_listed(item['suites']))}",
    ]
    if item.get("components"):
        lines.append(f"Components: {' '.join(_listed(item['components']))}")
    lines += ["Signed-By:", *(f" {line.strip() or '.'}" for line in item["key"].strip().splitlines())]
    return "\n".join(lines) + "\n"


def without_logins(uris: str | Iterable[str]) -> list[str]:
    """Return the URIs of repositories without user and password."""
    return [re.sub(r"(?<=://)[^/?#]*@", "", uri) for uri in _listed(uris)]


def login_lines(uris: str | Iterable[str]) -> list[str]:
    """Return the lines of apt's auth.conf for the users and passwords in URIs of repositories.

    Raises:
        ValueError: A user or password contains a space, which auth.conf does not support.
    """
    lines = []
    for uri in _listed(uris):
        userinfo, at, _ = urlsplit(uri).netloc.rpartition("@")
        if at:
            user, _, password = userinfo.partition(":")
            machine = without_logins(uri)[0].rstrip("/")
            lines.append(f"machine {machine} login {_word(user)} password {_word(password)}")
    return lines


def _listed(value: str | Iterable[str]) -> list[str]:
    return [value] if isinstance(value, str) else [str(item) for item in value]


def _word(text: str) -> str:
    """Return a word for auth.conf; a space or line break would start the next word."""
    word = unquote(text)
    if re.search(r"\s", word):
        raise ValueError("user or password of a package repository contains a space, which apt does not support")
    return word


def _files(
    repositories: Sequence[Mapping[str, Any]], node: Mapping[str, Any], folder: str, login_folder: str
) -> list[dict[str, Any]]:
    """Return the repositories' files as input of the module platform_files."""
    files: list[dict[str, Any]] = []
    for item in repositories:
        files.append({"path": f"{folder}/provision-{item['name']}.sources", "content": source_text(item)})
        logins, path = login_lines(item["uris"]), f"{login_folder}/provision-{item['name']}.conf"
        if logins:
            files.append({"path": path, "content": "\n".join(logins) + "\n", "mode": "0600"})
        elif path in node.get("repository_files", ()):
            files.append({"path": path, "state": "absent"})
    return files


class FilterModule:
    """Ansible filters of the role platform."""

    def filters(self) -> dict[str, object]:
        """Return the filters by name."""
        return {"platform_repository_files": _files, "platform_without_logins": without_logins}
