"""Site settings of a new inventory: training image, CA of its registry, and NVIDIA's package repository."""

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

NO_REPOSITORY = "none"
"""Replaces a repository URL: the nodes' own package sources provide the NVIDIA Container Toolkit."""

_URL = re.compile(r"https?://[^\s/@\"'{}%]+(/[^\s\"'{}]*)?")
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_CERTIFICATE_LIMIT = 1024 * 1024


@dataclass(frozen=True)
class SiteSettings:
    """Validated settings of a new inventory."""

    image: str = ""
    """Empty: the operator sets it later."""
    registry_ca: str = ""
    """PEM text; empty if the nodes already trust the registry."""
    repository: str = NVIDIA_REPOSITORY
    """Empty: the packages come from the nodes' own package sources."""
    key: SigningKey | None = None


def check_image(reference: str) -> str:
    """Return an image reference; UsageError if Docker would reject it."""
    if not is_image_reference(reference):
        raise UsageError(
            f"--image {reference}: not an image reference",
            remedy="Write it as REGISTRY[:PORT]/PATH:TAG, the path in lower case and without https://.",
        )
    return reference


def check_repository(url: str) -> str:
    """Return the URL of a repository, empty for `NO_REPOSITORY`.

    Raises:
        UsageError: It is not a URL, or contains a password, which belongs in a vault.
    """
    if url == NO_REPOSITORY:
        return ""
    if "@" in url.partition("//")[2].partition("/")[0]:
        raise UsageError(
            "--nvidia-repository: the URL contains credentials",
            remedy="Omit them, and set nvidia_container_repository_uri in an ansible-vault file.",
        )
    if not _URL.fullmatch(url):
        raise UsageError(
            f"--nvidia-repository {url}: not the URL of a package repository",
            remedy=f"Example: {NVIDIA_REPOSITORY}; or {NO_REPOSITORY} if the nodes have one already.",
        )
    return url.rstrip("/")


def choose_key(file: Path | None, fingerprint: str | None) -> SigningKey:
    """Return the signing key of the repository: the one in `file`, otherwise NVIDIA's.

    Raises:
        UsageError: Its fingerprint is not `fingerprint`.
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
    """Return the certificates in a PEM file; UsageError if there are none."""
    try:
        with path.expanduser().open("rb") as stream:
            text = stream.read(_CERTIFICATE_LIMIT).decode(errors="replace")
    except OSError as error:
        raise UsageError(f"--registry-ca {path}: cannot be read ({error.strerror})") from error
    matches = _CERTIFICATE.findall(text)
    if not matches:
        raise UsageError(
            f"--registry-ca {path}: contains no certificate",
            remedy="Specify the CA's certificate as PEM text (-----BEGIN CERTIFICATE-----).",
        )
    return "\n".join(matches) + "\n"


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
