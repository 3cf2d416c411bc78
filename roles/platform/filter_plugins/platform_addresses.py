"""Filters of the role platform: addresses that nodes claim, and addresses of repositories."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import unquote, urlsplit

NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\Z")


def platform_address_problem(address, wanted="", networks=()):
    """Return why a node cannot have this data address, empty when it can.

    The address comes from the node and gets into all nodes' files: it must be the inventory's, or be inside its networks.
    """
    try:
        parsed = ipaddress.ip_address(str(address))
    except ValueError:
        return "it is not an IP address"
    if "%" in str(address):
        return "it has a zone, which only the node itself knows"
    if parsed.is_unspecified or parsed.is_multicast:
        return "no host can have it"
    if wanted:
        return "" if str(address) == str(wanted) else f"cluster_data_address is {wanted}"
    inside = [network for network in networks if parsed in ipaddress.ip_network(network, strict=False)]
    return "" if inside or not networks else "it is in none of cluster_data_networks ({})".format(", ".join(networks))


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
            "platform_address_problem": platform_address_problem,
            "platform_host_name": platform_host_name,
            "platform_logins": platform_logins,
            "platform_without_logins": platform_without_logins,
        }
