"""Logins for git servers and image registries, kept on the operator's machine: one file each that only he can read."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from provision.documents import decode
from provision.documents.state import StoredCredential
from provision.errors import InvalidDocument, ProvisionError, UsageError
from provision.local_files import state_folder, write_private
from provision.model import Secret
from provision.model.job import CodeSource

KINDS = ("git", "registry")
_SERVER = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?")
_DOCKER_HUB = "docker.io"


@dataclass(frozen=True)
class Credential:
    """A user name and what proves it, for one server."""

    kind: str
    """``git`` or ``registry``."""
    server: str
    """``host`` or ``host:port``; it goes to no other."""
    username: str
    secret: Secret
    changed: float = 0.0
    """Seconds since the epoch."""


def store(credential: Credential) -> Path:
    """Write a login, whole or not at all; one of the same kind and server is replaced.

    Raises:
        UsageError: the name of the server or a value cannot be.
        ProvisionError: the folder cannot be written, or others could read it.
    """
    _check(credential.kind, credential.server)
    if not credential.secret.reveal() or re.search(r"[\x00\r\n]", credential.secret.reveal() + credential.username):
        raise UsageError("the secret is empty, or holds a line break")
    folder = _folder(make=True)
    text = json.dumps({"username": credential.username, "secret": credential.secret.reveal()})
    file = _file(folder, credential.kind, credential.server)
    try:
        write_private(file, text)
    except OSError as error:
        raise ProvisionError(f"{folder} cannot be written: {error.strerror}") from error
    return file


def stored_credentials() -> list[Credential]:
    """Return all logins that are kept, by kind and server."""
    folder = _folder(make=False)
    credentials = []
    for file in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        kind, _, server = file.stem.partition("@")
        if kind in KINDS and (credential := _read(file, kind, server)):
            credentials.append(credential)
    return credentials


def forget(kind: str, server: str) -> bool:
    """Remove a login; False where there is none."""
    _check(kind, server)
    try:
        _file(_folder(make=False), kind, server).unlink()
    except FileNotFoundError:
        return False
    return True


def secrets_for(kind: str, server: str) -> dict[str, str]:
    """Return ``username`` and ``password`` of a login; empty where there is none for this server."""
    if not server or not _SERVER.fullmatch(server):
        return {}
    credential = _read(_file(_folder(make=False), kind, server), kind, server)
    return {"username": credential.username, "password": credential.secret.reveal()} if credential else {}


def sync_credential(source: CodeSource, secrets: Mapping[str, str]) -> dict[str, str]:
    """Return `Secrets.sync` for a source: what was given with the job, else what is kept for its server."""
    if source.mode != "git" or any("PASSWORD" in name or "TOKEN" in name for name in secrets):
        return dict(secrets)
    try:
        parts = urlsplit(source.source)
        server = parts.netloc.rpartition("@")[2] if parts.scheme in ("http", "https") else ""
    except ValueError:
        server = ""
    credential = secrets_for("git", server)
    wanted = secrets.get("GIT_SYNC_USERNAME")
    if not credential or wanted not in (None, credential["username"]):
        return dict(secrets)
    return {**secrets, "GIT_SYNC_USERNAME": credential["username"], "GIT_SYNC_PASSWORD": credential["password"]}


def registry_credential(image: str) -> dict[str, str]:
    """Return `Secrets.registry` for an image: ``username``, ``password`` and ``server``, or nothing."""
    server = server_of_image(image)
    credential = secrets_for("registry", server)
    return {**credential, "server": server} if credential else {}


def server_of_image(image: str) -> str:
    """Return the registry that docker would pull an image from."""
    first, slash, _ = image.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else _DOCKER_HUB


def _check(kind: str, server: str) -> None:
    if kind not in KINDS:
        raise UsageError(f"there is no kind of secret {kind}; there are: {', '.join(KINDS)}")
    if not _SERVER.fullmatch(server):
        raise UsageError(f"--server {server}: a name or an address, with :PORT where it is not the usual one")


def _folder(*, make: bool) -> Path:
    folder = state_folder() / "secrets"
    try:
        if make:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.lstat()
    except FileNotFoundError:
        return folder
    except OSError as error:
        raise ProvisionError(f"{folder} cannot be used: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ProvisionError(
            f"{folder} can be read or changed by others", remedy=f"chown to yourself; chmod 700 {folder}"
        )
    return folder


def _file(folder: Path, kind: str, server: str) -> Path:
    return folder / f"{kind}@{server.lower()}.json"


def _read(file: Path, kind: str, server: str) -> Credential | None:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ProvisionError(f"{file} cannot be read: {error.strerror}") from error
    with os.fdopen(descriptor, encoding="utf-8") as stream:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ProvisionError(
                f"{file} can be read by others", remedy="set the secret anew, and change it at its server"
            )
        try:
            document = decode(stream.read(), StoredCredential, node="", what=str(file))
            return Credential(kind, server, document.username, Secret(document.secret), status.st_mtime)
        except (ValueError, InvalidDocument):
            raise ProvisionError(f"{file} is damaged", remedy="set the secret anew") from None
