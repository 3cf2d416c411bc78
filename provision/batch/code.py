"""The code of a batch job: valid sources, settings of git-sync, and causes of git's errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from provision.documents.text import last_lines, printable_line
from provision.errors import UsageError
from provision.model.job import CodeSource

_PREFIXES = ("GIT_SYNC_", "GITSYNC_")
_BARE = ("GIT_SSH_KEY_FILE", "GIT_KNOWN_HOSTS", "GIT_SSH_KNOWN_HOSTS_FILE", "GIT_SSL_CAINFO")
"""Settings of git-sync without its prefix, and git's setting for a certificate authority."""
_SECRETS = ("USERNAME", "PASSWORD", "TOKEN", "SSH_KEY")
FILES = {
    "SSH_KEY_FILE": "SSH_KEY",
    "PASSWORD_FILE": "PASSWORD",  # nosec B105 # names of options
    "SSH_KNOWN_HOSTS_FILE": "SSH_KNOWN_HOSTS",
    "SSL_CAINFO": "SSL_CA",
}
"""Setting with the name of a file on the submitter's machine -> setting with its content."""
_GIT = ("BRANCH", "REV", "REF", "DEPTH", "SUBMODULES", "TIMEOUT", "SSH", "KNOWN_HOSTS", "ONE_TIME", *FILES)
_OF_MODE = {"git": _GIT, "rsync": ("TIMEOUT", "SSH_KEY_FILE", "SSH_KNOWN_HOSTS_FILE"), "local": ()}
_CONTENTS = ("SSH_KNOWN_HOSTS", "SSL_CA")
_TRUE, _FALSE = ("1", "t", "true", "yes"), ("0", "f", "false", "no")
_FETCH_SECONDS = 600
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")
_LOGIN = r"(?:[A-Za-z0-9_][A-Za-z0-9_.+-]*@)?"
_HOST = r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\])"
_SHORT = rf"{_LOGIN}{_HOST}:(?!//|-)[^\s:]\S*"
"""``HOST:PATH``; neither part can be read as an option."""
_GIT_SOURCE = re.compile(
    rf"(?:https?|git|(?:git\+)?ssh)://{_LOGIN}{_HOST}(?::\d+)?/\S+|{_SHORT}|(?:file://)?/\S+", re.IGNORECASE
)
"""A git source; a path is a repository on the submitter's machine."""
_RSYNC_SOURCE = re.compile(rf"rsync://{_LOGIN}{_HOST}(?::\d+)?/\S+|{_LOGIN}{_HOST}::\S+|{_SHORT}", re.IGNORECASE)
_REMEDIES_OF_MODE = {
    "git": "For example: https://git.example.com/group/project.git",
    "rsync": "For example: rsync://HOST/MODULE or HOST:/PATH. Use --sync-mode local for a folder of this machine.",
    "local": "Specify the absolute path of the folder.",
}

FALLBACK_KINDS = frozenset({"no-git", "network"})
"""Failures of a node after which the controller tries to fetch the code."""


def is_sync_name(name: str) -> bool:
    """Return whether an environment variable is for fetching the code and not for the training."""
    return name.startswith(_PREFIXES) or name in _BARE or name == "RSYNC_PASSWORD"


def is_sync_secret(name: str) -> bool:
    """Return whether a variable for fetching the code is secret: a credential or a key, not the name of a file."""
    return name == "RSYNC_PASSWORD" or short_name(name) in _SECRETS


def short_name(name: str) -> str:
    """Return a setting of git-sync without its prefix."""
    for prefix in (*_PREFIXES, "GIT_"):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def _is_source(mode: str, text: str) -> bool:
    if mode == "git":
        return _GIT_SOURCE.fullmatch(text) is not None
    if mode == "rsync":
        return _RSYNC_SOURCE.fullmatch(text) is not None
    return text.startswith("/") and "\n" not in text


def check_source(source: CodeSource) -> None:
    """Refuse an invalid source, or one that contains a password.

    Raises:
        UsageError: with the valid form.
    """
    text = source.source
    if source.mode not in _OF_MODE:
        raise UsageError(f"--sync-mode: unknown mode '{source.mode}'; choose git, rsync or local")
    if not text or text.startswith("-") or re.search(r"[\s\x00-\x1f]", text):
        raise UsageError(f"--sync-source: invalid URL {printable_line(text)!r}", remedy=_REMEDIES_OF_MODE["git"])
    if source.mode != "local" and re.match(r"https?://[^/]*@|[a-z+]+://[^/@]*:[^/]*@", text, re.IGNORECASE):
        raise UsageError(
            "--sync-source: the URL contains a credential, which is visible in lists of processes and jobs",
            remedy="Remove it, and run `provision secret add git --server HOST --username NAME` (or use --env"
            " GIT_SYNC_USERNAME=NAME --env GIT_SYNC_PASSWORD: without a value, it comes from your environment).",
        )
    if source.mode == "local" and not text.startswith("/"):
        raise UsageError(f"--sync-source {text}: a local folder needs an absolute path")
    if "::" in text and source.mode == "git":
        raise UsageError(f"--sync-source {text}: the protocol of git must be https, http, ssh, git or file")
    if not _is_source(source.mode, text):
        raise UsageError(
            f"--sync-source {text}: invalid for --sync-mode {source.mode}",
            remedy=_REMEDIES_OF_MODE[source.mode],
        )
    if not _NAME.fullmatch(source.name):
        raise UsageError(f"--sync-source {text}: the last part, {source.name!r}, is not a valid folder name")


def is_here(source: CodeSource) -> bool:
    """Return whether the code is on the submitter's machine, which packs it at submission."""
    return source.mode == "local" or (source.mode == "git" and source.source.lower().startswith(("/", "file://")))


def plain_warning(source: CodeSource) -> str:
    """Return a warning if the code and its password are sent unencrypted; otherwise an empty string."""
    scheme = source.source.partition("://")[0].lower()
    plain = scheme in {"http", "git", "rsync"} and "://" in source.source
    if not plain and not (source.mode == "rsync" and "::" in source.source):
        return ""
    protocol = scheme if "://" in source.source else "rsync"
    return (
        f"--sync-source {source.source}: {protocol} is unencrypted: others on the network can read and "
        "replace the code; use https or ssh"
    )


def fetch_request(source: CodeSource, secrets: Mapping[str, str]) -> dict[str, Any]:
    """Return the part of requests to ``code_sync.py`` that describes the source.

    The settings must contain the contents of files, under the names in `FILES`.

    Raises:
        UsageError: an unknown setting of git-sync, or an invalid value.
    """
    check_source(source)
    options = _options(source)
    known = {short_name(name): value for name, value in secrets.items()}
    password = known.get("PASSWORD") or known.get("TOKEN") or ""
    if source.mode == "rsync":
        password = known.get("RSYNC_PASSWORD", "")
    if any("\n" in text or "\0" in text for text in (password, known.get("USERNAME", ""))):
        raise UsageError("the user name or password for the code contains a line break")
    revision, branch = _reference(source, options)
    return {
        "url": source.source,
        "server": _server(source.source),
        "over_ssh": re.match(r"ssh://|git\+ssh://|[^/]+:(?!//)", source.source) is not None,
        "ref": revision,
        "branch": branch,
        "depth": _number("DEPTH", options.get("DEPTH", "1")),
        "submodules": _submodules(options.get("SUBMODULES", "recursive")),
        "timeout": _number("TIMEOUT", options.get("TIMEOUT", "").removesuffix("s")) or _FETCH_SECONDS,
        "username": known.get("USERNAME", ""),
        "password": password,
        "ssh_key": known.get("SSH_KEY", ""),
        "known_hosts": options.get("SSH_KNOWN_HOSTS", ""),
        "ca": options.get("SSL_CA", ""),
    }


def _options(source: CodeSource) -> dict[str, str]:
    options = {short_name(name): value for name, value in source.options.items()}
    allowed = (*_OF_MODE[source.mode], *_CONTENTS)
    for name in source.options:
        if short_name(name) not in allowed:
            known = ", ".join(f"GIT_SYNC_{item}" for item in _OF_MODE[source.mode]) or "none"
            raise UsageError(
                f"{name} is not supported with --sync-mode {source.mode}",
                remedy=f"Supported settings: {known}; and for credentials GIT_SYNC_USERNAME, GIT_SYNC_PASSWORD.",
            )
    for name in ("SSH", "KNOWN_HOSTS", "ONE_TIME"):
        value = options.get(name, "true").lower()
        if value not in (*_TRUE, *_FALSE):
            raise UsageError(f"GIT_SYNC_{name}={value}: must be true or false")
    if options.get("KNOWN_HOSTS", "true").lower() in _FALSE:
        raise UsageError(
            "GIT_SYNC_KNOWN_HOSTS=false would accept code from any server with this address",
            remedy="Specify the server's key: --env GIT_SYNC_SSH_KNOWN_HOSTS_FILE=FILE",
        )
    return options


def _reference(source: CodeSource, options: Mapping[str, str]) -> tuple[str, bool]:
    """Return the revision to check out, and whether it must be a branch."""
    exact = source.revision or options.get("REV") or options.get("REF")
    revision = exact or options.get("BRANCH") or "HEAD"
    if revision.startswith("-") or not re.fullmatch(r"[^\s~^:?*\[\\\x00-\x1f]+", revision):
        raise UsageError(f"invalid branch, tag or commit {revision!r}")
    return revision, exact is None or exact == ""


def _number(name: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{0,9}", text):
        raise UsageError(f"GIT_SYNC_{name}={text:.20}: must be a whole number of at most 9 digits")
    return int(text or 0)


def _submodules(text: str) -> str:
    if text not in ("recursive", "shallow", "off"):
        raise UsageError(f"GIT_SYNC_SUBMODULES={text}: must be recursive, shallow or off")
    return text


def _server(url: str) -> str:
    """Return ``https://host:port`` of an HTTP URL, the scope of the password; empty for other URLs."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.scheme in ("http", "https") else ""


@dataclass(frozen=True)
class FetchFailure:
    """Why code could not be fetched."""

    kind: str
    why: str
    remedy: str | None


_KNOWN_HOSTS_REMEDY = (
    "compare `ssh-keyscan HOST` with the key that the server's owner publishes, and write it into a file:"
    " --env GIT_SYNC_SSH_KNOWN_HOSTS_FILE=FILE"
)
_LOGIN_REMEDY = (
    "--env GIT_SYNC_USERNAME=NAME with `provision secret add git --server HOST` (or --env GIT_SYNC_PASSWORD), or a key:"
    " --env GIT_SYNC_SSH_KEY_FILE=FILE"
)
_UNREACHABLE = (
    "Could not resolve host|Failed to connect|Couldn.t connect|Connection (refused|timed out|reset)|No route to host"
    "|[Nn]etwork is unreachable|Operation (timed out|too slow)|Temporary failure in name"
)
_NO_LOGIN = (
    "Authentication failed|could not read (Username|Password)|prompts disabled|Access denied|Permission denied"
    "|@ERROR: auth failed|invalid credentials|returned error: 40[13]"
)
_NO_REPOSITORY = (
    "[Rr]epository .{0,300}not found|does not appear to be a git repo|returned error: 404|not exist|Unknown module"
    "|No such file or directory"
)
_CAUSES = (
    (
        "host-key",
        "HOST IDENTIFICATION HAS CHANGED|REVOKED HOST KEY",
        "the SSH key of the server differs from the known one",
        "ask its owner whether the key was changed intentionally; then " + _KNOWN_HOSTS_REMEDY,
    ),
    (
        "host-key",
        "Host key verification failed|host key is known for",
        "the SSH key of the server is unknown",
        _KNOWN_HOSTS_REMEDY,
    ),
    (
        "tls",
        "SSL certificate|certificate verif|unable to get local issuer|self.signed certificate",
        "the certificate of the server is not trusted",
        "install your certificate authority on the nodes, or specify its file: --env GIT_SSL_CAINFO=FILE",
    ),
    (
        "network",
        _UNREACHABLE,
        "the server is unreachable",
        "allow connections to it, or use --sync-mode local",
    ),
    ("login", _NO_LOGIN, "the server requires credentials, or rejects these", _LOGIN_REMEDY),
    (
        "no-repository",
        _NO_REPOSITORY,
        "the repository does not exist, or these credentials cannot read it",
        "check --sync-source and the permissions of the repository",
    ),
    ("full", "No space left|[Qq]uota exceeded", "the disk is full", "free space under /var/lib/provision/jobs"),
)
_REMEDIES = {
    "no-git": "install git on the node with apt-get or dnf, or use --sync-mode local",
    "no-rsync": "install rsync on the node with apt-get or dnf, or use --sync-mode local",
    "no-ref": "choose an existing branch or tag, or the full hash of a commit",
    "timeout": "allow more time: --env GIT_SYNC_TIMEOUT=SECONDS",
    "damaged": "try again; if it fails again, check disk and memory of the node",
}


def explain(kind: str, what: str, output: str) -> FetchFailure:
    """Return the cause of an error of ``code_sync.py``."""
    lines = last_lines(output, what)
    for cause, pattern, why, remedy in _CAUSES:
        if kind in ("failed", "io") and any(re.search(pattern, line) for line in lines):
            return FetchFailure(cause, why, remedy)
    return FetchFailure(kind, what or "its answer is invalid", _REMEDIES.get(kind))
