"""Filters of the role platform: names that nodes claim, and addresses of repositories."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\Z")


def platform_host_name(name):
    """Return whether a name can stand in /etc/hosts without meaning anything else."""
    return bool(NAME.match(str(name)))


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


def platform_has_source(node, uri):
    """Return whether a source of others on the node has this address: apt refuses one address with two keys."""
    known = str(uri).replace("$(ARCH)", node.get("architecture", "")).rstrip("/")
    return known in node.get("other_sources", [])


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
            "platform_has_source": platform_has_source,
            "platform_host_name": platform_host_name,
            "platform_logins": platform_logins,
            "platform_without_logins": platform_without_logins,
        }
