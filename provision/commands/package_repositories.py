"""Package repositories in the formats of apt and dnf, and the credentials in their URIs, which only root may read.

The role platform uses this file as a filter plugin through a link, so that plain Ansible writes the same files. It
imports only the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

SOURCES, LOGINS = "/etc/apt/sources.list.d/provision-{}.sources", "/etc/apt/auth.conf.d/provision-{}.conf"
REPOSITORIES, KEYS = "/etc/yum.repos.d/provision-{}.repo", "/etc/pki/rpm-gpg/RPM-GPG-KEY-provision-{}"
RPM = frozenset({"dnf", "yum"})
"""Package managers with the same files of repositories."""
PROXIES = "/etc/apt/apt.conf.d/90-provision-package-cache"
"""apt's settings of the package cache. dnf supports no proxy for single hosts, so the roles' transactions set one."""
_HEAD = "# Managed by provision (role platform)."
_HOST = re.compile(r"(?P<name>[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)(:(?P<port>[0-9]{1,5}))?")
_MOST_PORT = 65535


def repository_files(item: Mapping[str, Any], manager: str) -> list[dict[str, str]]:
    """Return the files of a repository, each with ``path``, ``content`` and, if only root may read it, ``mode``.

    Args:
        item: name, uris, suites, components and key; for dnf also gpgcheck, repo_gpgcheck and the packages to exclude.
        manager: ``apt``, ``dnf`` or ``yum``.

    Raises:
        ValueError: the package manager does not support the repository.
    """
    name, logins = item["name"], login_lines(item["uris"])
    private = {"mode": "0600"} if logins else {}
    if manager in RPM:
        return [
            {"path": KEYS.format(name), "content": f"{str(item['key']).strip()}\n"},
            {"path": REPOSITORIES.format(name), "content": repo_text(item), **private},
        ]
    files = [{"path": SOURCES.format(name), "content": source_text(item)}]
    return files + [{"path": LOGINS.format(name), "content": "\n".join(logins) + "\n", **private}] * bool(logins)


def repository_paths(name: str, manager: str, *, has_login: bool = False) -> tuple[str, ...]:
    """Return the paths of the files of a repository."""
    if manager in RPM:
        return REPOSITORIES.format(name), KEYS.format(name)
    return (SOURCES.format(name), *([LOGINS.format(name)] if has_login else []))


def source_text(item: Mapping[str, Any]) -> str:
    """Return apt's deb822 source of a repository, without credentials."""
    lines = [
        _HEAD,
        "Types: deb",
        f"URIs: {' '.join(without_logins(item['uris']))}",
        f"Suites: {' '.join(_listed(item.get('suites') or '/'))}",
    ]
    if item.get("components"):
        lines.append(f"Components: {' '.join(_listed(item['components']))}")
    lines += ["Signed-By:", *(f" {line.strip() or '.'}" for line in item["key"].strip().splitlines())]
    return "\n".join(lines) + "\n"


def repo_text(item: Mapping[str, Any]) -> str:
    """Return dnf's file of a repository, with the credentials.

    Raises:
        ValueError: no signature would be checked, or dnf does not support the credentials.
    """
    packages, index = checks(item)
    if not (packages or index):
        raise ValueError(f"repository {item['name']}: gpgcheck and repo_gpgcheck are both off, so nothing is verified")
    pairs = {
        "name": f"{item['name']} (provision)",
        "baseurl": " ".join(base_urls(item)),
        "enabled": "1",
        "gpgcheck": str(int(packages)),
        "repo_gpgcheck": str(int(index)),
        "gpgkey": f"file://{KEYS.format(item['name'])}",
        **({"excludepkgs": " ".join(_listed(item["exclude"]))} if item.get("exclude") else {}),
        **_credentials(item["uris"]),
    }
    lines = [_HEAD, f"[provision-{item['name']}]", *(f"{key}={value}" for key, value in pairs.items())]
    return "\n".join(lines) + "\n"


def checks(item: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return whether dnf verifies the signatures of a repository's packages and of its index."""
    packages, index = (_is_on(item.get(name, default)) for name, default in _CHECKS)
    return packages, index


_CHECKS = (("gpgcheck", True), ("repo_gpgcheck", False))
"""dnf's own options and their defaults: most repositories sign packages, and those of NVIDIA their index."""


def base_urls(item: Mapping[str, Any]) -> list[str]:
    """Return the addresses of a repository for dnf, without credentials.

    With suites, the address of the index is URI/SUITE/ARCHITECTURE/COMPONENT, as in Docker's repositories. In an
    address for apt, ``/deb/$(ARCH)`` becomes ``/rpm/$basearch``, as in NVIDIA's.
    """
    urls = [re.sub(r"/deb/\$\(ARCH\)", "/rpm/$basearch", url) for url in without_logins(item["uris"])]
    urls = [url.replace("$(ARCH)", "$basearch").rstrip("/") for url in urls]
    suites = [suite for suite in _listed(item.get("suites") or []) if suite != "/"]
    components = _listed(item.get("components") or []) if suites else []
    folders = [f"/{suite}/$basearch/{component}" for suite in suites for component in components or [""]]
    return [f"{url}{folder}".rstrip("/") for url in urls for folder in folders or [""]]


def package_cache(name: str, address: str, port: int, hosts: Sequence[str]) -> dict[str, Any]:
    """Return how nodes reach the package cache: ``url`` and ``hosts``; empty without a cache."""
    if not name or not address:
        return {}
    return {"url": f"http://{f'[{address}]' if ':' in address else address}:{port}", "hosts": _listed(hosts)}


def package_cache_problem(name: str, address: str, port: Any, hosts: Any) -> tuple[str, str]:
    """Return the wrong variable of a package cache and what is wrong with it, or two empty texts."""
    if not name:
        return "", ""
    if not address:
        return "cluster_package_cache", f"{name} has no cluster_data_address in the inventory, where the cache listens"
    if not str(port).isdecimal() or not 1024 <= int(port) <= _MOST_PORT:  # noqa: PLR2004 - squid has no privileges
        return "cluster_package_cache_port", f"'{port}' is not a port from 1024 to {_MOST_PORT}"
    if not isinstance(hosts, list) or not hosts:
        return "cluster_package_cache_hosts", "names no host of a repository"
    wrong = [str(host) for host in hosts if repository_host(host) is None]
    if wrong:
        return "cluster_package_cache_hosts", f"'{wrong[0]}' is not HOST or HOST:PORT in lower case, without http://"
    return "", ""


def repository_host(entry: object) -> tuple[str, int] | None:
    """Return name and port of an entry of ``cluster_package_cache_hosts``; None if it is invalid."""
    match = _HOST.fullmatch(str(entry))
    port = int(match["port"] or 80) if match else 0
    return (match["name"], port) if match and 0 < port <= _MOST_PORT else None


def package_cache_clients(addresses: Sequence[Any], networks: Sequence[str]) -> list[str]:
    """Return the addresses that the package cache serves: those of the nodes.

    The networks are among them if the inventory does not have the address of every node.
    """
    known = [str(address) for address in addresses if address]
    return [*dict.fromkeys(known), *(networks if len(known) < len(addresses) else [])]


def proxy_files(cache: Mapping[str, Any], node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the file with which a node's package manager uses the cache, as input of the module platform_files."""
    if node.get("package_manager") == "apt" and cache:
        names = dict.fromkeys(name for name, _ in filter(None, map(repository_host, cache["hosts"])))
        lines = [f'Acquire::http::Proxy::{name} "{cache["url"]}";' for name in names]
        return [{"path": PROXIES, "content": "\n".join([_HEAD.replace("#", "//"), *lines]) + "\n"}]
    return [{"path": path, "state": "absent"} for path in node.get("proxy_files", ())]


def addresses(item: Mapping[str, Any], manager: str, architecture: str) -> list[str]:
    """Return the addresses of a repository as `platform_node` reports those of other repositories."""
    if manager in RPM:
        return [url.replace("$basearch", architecture) for url in base_urls(item)]
    return [uri.replace("$(ARCH)", architecture).rstrip("/") for uri in without_logins(item["uris"])]


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
        login = _login(uri)
        if login:
            machine = without_logins(uri)[0].rstrip("/")
            lines.append(f"machine {machine} login {login[0]} password {login[1]}")
    return lines


def _credentials(uris: str | Iterable[str]) -> dict[str, str]:
    """Return the user and password of a repository as options of dnf."""
    logins = {_login(uri) for uri in _listed(uris)}
    if len(logins) > 1:
        raise ValueError("the URIs of a package repository have different logins; dnf supports one for each repository")
    [login] = logins
    if login and any(re.search(r"\$[A-Za-z{]", word) for word in login):
        raise ValueError("user or password of a package repository contains $NAME, which dnf would replace")
    return {"username": login[0], "password": login[1]} if login else {}


def _login(uri: str) -> tuple[str, str] | None:
    """Return the user and password in a URI."""
    userinfo, at, _ = urlsplit(uri).netloc.rpartition("@")
    user, _, password = userinfo.partition(":")
    return (_word(user), _word(password)) if at else None


def _listed(value: str | Iterable[str]) -> list[str]:
    return [value] if isinstance(value, str) else [str(item) for item in value]


def _is_on(value: Any) -> bool:
    return str(value).strip().lower() in {"true", "yes", "on", "1"}


def _word(text: str) -> str:
    """Return a word of a login; a space or line break would start the next word."""
    word = unquote(text)
    if re.search(r"\s", word):
        raise ValueError("user or password of a package repository contains a space, which is not supported")
    return word


def _new(repositories: Sequence[Mapping[str, Any]], node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the repositories that the node does not have yet: apt would refuse one address with two keys."""
    known = set(node.get("other_sources", ()))
    manager, architecture = node.get("package_manager", "apt"), str(node.get("architecture", ""))
    names = {"amd64": "x86_64", "arm64": "aarch64"} if manager in RPM else {}
    architecture = names.get(architecture, architecture)
    return [item for item in repositories if not known.intersection(addresses(item, manager, architecture))]


def _files(repositories: Sequence[Mapping[str, Any]], node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the repositories' files as input of the module platform_files.

    A file with credentials is removed if the repository does not need it any more.
    """
    manager, existing = node.get("package_manager", "apt"), node.get("repository_files", ())
    files: list[dict[str, Any]] = []
    for item in repositories:
        present = repository_files(item, manager)
        paths = {file["path"] for file in present}
        unused = set(repository_paths(item["name"], manager, has_login=True)) - paths
        files += [*present, *({"path": path, "state": "absent"} for path in sorted(unused) if path in existing)]
    return files


def _unsigned(repositories: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of repositories without key or address, or of which no signature would be checked."""
    return [
        str(item["name"])
        for item in repositories
        if not item["uris"] or "BEGIN PGP PUBLIC KEY BLOCK" not in str(item["key"]) or not any(checks(item))
    ]


class FilterModule:
    """Ansible filters of the role platform."""

    def filters(self) -> dict[str, object]:
        """Return the filters by name."""
        return {
            "platform_new_repositories": _new,
            "platform_repository_files": _files,
            "platform_unsigned_repositories": _unsigned,
            "platform_without_logins": without_logins,
            "platform_package_cache": package_cache,
            "platform_package_cache_clients": package_cache_clients,
            "platform_package_cache_problem": package_cache_problem,
            "platform_proxy_files": proxy_files,
            "platform_repository_host": repository_host,
        }
