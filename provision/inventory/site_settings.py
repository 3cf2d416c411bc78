"""What a new inventory says of the site: the training image, its registry's CA, and NVIDIA's package repository."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.commands.signing_keys import (
    NVIDIA_FINGERPRINT,
    NVIDIA_REPOSITORY,
    SigningKey,
    nvidia_key,
    parse_fingerprint,
    read_key,
)
from provision.errors import UsageError
from provision.model.image_reference import is_image_reference, registry_of

__all__ = [
    "NO_REPOSITORY",
    "SiteSettings",
    "check_image",
    "check_repository",
    "choose_key",
    "read_certificate",
    "site_variables",
]

NO_REPOSITORY = "none"
"""In place of a repository's URL: the nodes' own package sources have the NVIDIA Container Toolkit."""

_URL = re.compile(r"https?://[^\s/@\"'{}%]+(/[^\s\"'{}]*)?")
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_CERTIFICATE_LIMIT = 1024 * 1024


@dataclass(frozen=True)
class SiteSettings:
    """The settings of a new inventory, checked."""

    image: str = ""
    """Empty: the operator sets it later."""
    registry_ca: str = ""
    """PEM text; empty where the nodes trust the registry already."""
    repository: str = NVIDIA_REPOSITORY
    """Empty: the nodes' own package sources have the packages."""
    key: SigningKey | None = None


def check_image(reference: str) -> str:
    """Return the reference of an image; UsageError where docker would not take it."""
    if not is_image_reference(reference):
        raise UsageError(
            f"--image {reference}: not the name of an image",
            remedy="Write it as REGISTRY[:PORT]/PATH:TAG, the path in lower case and without https://.",
        )
    return reference


def check_repository(url: str) -> str:
    """Return the URL of a repository, empty for `NO_REPOSITORY`.

    Raises:
        UsageError: it is not a URL, or holds a password, which belongs into a vault.
    """
    if url == NO_REPOSITORY:
        return ""
    if "@" in url.partition("//")[2].partition("/")[0]:
        raise UsageError(
            "--nvidia-repository: the URL holds a login",
            remedy="Leave it out here, and set nvidia_container_repository_uri in an ansible-vault file.",
        )
    if not _URL.fullmatch(url):
        raise UsageError(
            f"--nvidia-repository {url}: not the URL of a package repository",
            remedy=f"Example: {NVIDIA_REPOSITORY}; {NO_REPOSITORY} where the nodes have one already.",
        )
    return url.rstrip("/")


def choose_key(file: Path | None, fingerprint: str | None) -> SigningKey:
    """Return the key that signs the repository: the one in `file`, else NVIDIA's.

    Raises:
        UsageError: it is another key than `fingerprint` says.
    """
    key = read_key(file) if file is not None else nvidia_key()
    expected = parse_fingerprint(fingerprint) if fingerprint is not None else None
    if expected is not None and key.fingerprint != expected:
        raise UsageError(
            f"{file or 'the key of NVIDIA'}: the fingerprint is {key.fingerprint}, not {expected}",
            remedy="Nothing was written. Get the right key from the repository's owner, and compare the fingerprint "
            f"with what the owner publishes (NVIDIA's: {NVIDIA_FINGERPRINT}).",
        )
    return key


def read_certificate(path: Path) -> str:
    """Return the certificates in a PEM file; UsageError where there is none."""
    try:
        with path.expanduser().open("rb") as stream:
            text = stream.read(_CERTIFICATE_LIMIT).decode(errors="replace")
    except OSError as error:
        raise UsageError(f"--registry-ca {path}: cannot be read ({error.strerror})") from error
    found = _CERTIFICATE.findall(text)
    if not found:
        raise UsageError(
            f"--registry-ca {path}: no certificate in it",
            remedy="Give the CA's certificate as PEM text (-----BEGIN CERTIFICATE-----).",
        )
    return "\n".join(found) + "\n"


def site_variables(settings: SiteSettings) -> dict[str, Any]:
    """Return the settings as variables of the inventory."""
    variables: dict[str, Any] = {}
    if settings.image:
        variables["training_image_reference"] = settings.image
        if settings.registry_ca:
            registry = registry_of(settings.image)
            variables["docker_engine_registry_ca"] = [{"registry": registry, "certificate": settings.registry_ca}]
    if settings.repository and settings.key:
        variables["nvidia_container_repository_uri"] = settings.repository
        variables["nvidia_container_repository_key"] = settings.key.text + "\n"
    return variables
