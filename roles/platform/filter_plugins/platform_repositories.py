"""Filters of the role platform: files for the nodes, of package repositories and of what a run left behind."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit


def platform_repository_files(repositories, node, folder, login_folder):
    """Return the files of the repositories: sources, and logins apart from them, which only root may read."""
    files = []
    for item in repositories:
        files.append({"path": f"{folder}/provision-{item['name']}.sources", "content": _source(item)})
        logins, path = platform_logins(item["uris"]), f"{login_folder}/provision-{item['name']}.conf"
        if logins:
            files.append({"path": path, "content": "\n".join(logins) + "\n", "mode": "0600"})
        elif path in node.get("repository_files", []):
            files.append({"path": path, "state": "absent"})
    return files


def _source(item):
    """Return a repository as apt reads it, with its key."""
    lines = [
        "# Managed by provision (role platform).",
        "Types: deb",
        f"URIs: {' '.join(platform_without_logins(item['uris']))}",
        f"Suites: {' '.join(_listed(item['suites']))}",
    ]
    if item.get("components"):
        lines.append(f"Components: {' '.join(_listed(item['components']))}")
    lines += ["Signed-By:", *(f" {line.strip() or '.'}" for line in item["key"].strip().splitlines())]
    return "\n".join(lines) + "\n"


def platform_absent_files(paths):
    """Return the files as ones to remove, with no note about their origin."""
    return [{"path": path, "state": "absent", "origin": False} for path in paths]


def platform_without_logins(uris):
    """Return addresses of repositories without user and password."""
    return [re.sub(r"(?<=://)[^/?#]*@", "", uri) for uri in _listed(uris)]


def platform_logins(uris):
    """Return the lines of apt's auth.conf for the users and passwords in addresses of repositories."""
    lines = []
    for uri in _listed(uris):
        userinfo, at, _ = urlsplit(uri).netloc.rpartition("@")
        if at:
            user, _, password = userinfo.partition(":")
            machine = platform_without_logins(uri)[0].rstrip("/")
            lines.append(f"machine {machine} login {_word(user)} password {_word(password)}")
    return lines


def _listed(uris):
    return [str(uri) for uri in ([uris] if isinstance(uris, str) else uris)]


def _word(text):
    """Return a word of auth.conf; a space or the end of a line would begin the next one."""
    word = unquote(text)
    if re.search(r"\s", word):
        raise ValueError("user or password of a package repository holds a space, which apt cannot take")
    return word


class FilterModule:
    """What Ansible loads."""

    def filters(self):
        """Return the filters by name."""
        return {
            "platform_absent_files": platform_absent_files,
            "platform_repository_files": platform_repository_files,
            "platform_without_logins": platform_without_logins,
        }
