"""Site settings for ``provision init``: from options, answers on the terminal, or defaults."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from provision.cli.common import confirm, interactive, prompt, say
from provision.errors import UsageError

if TYPE_CHECKING:
    from provision.commands.signing_keys import SigningKey
    from provision.inventory.site_change import NewValues
    from provision.inventory.site_settings import SiteSettings


@dataclass
class SiteOptions:
    """Options as given, later including answers; None for neither."""

    image: str | None = None
    registry_ca: Path | None = None
    repository: str | None = None
    key: Path | None = None
    fingerprint: str | None = None

    answered: bool = False
    """Whether any of them was answered on the terminal."""

    def given(self) -> list[str]:
        """Return the names of the given options."""
        return [_OPTIONS[field.name] for field in fields(self) if field.name in _OPTIONS and self._value(field.name)]

    def words(self) -> str:
        """Return the options as in a shell."""
        values = {option: self._value(name) for name, option in _OPTIONS.items()}
        return " ".join(f"{option} {shlex.quote(value)}" for option, value in values.items() if value)

    def _value(self, name: str) -> str:
        value = getattr(self, name)
        return "" if value is None else str(value)


_OPTIONS = {
    "image": "--image",
    "registry_ca": "--registry-ca",
    "repository": "--nvidia-repository",
    "key": "--nvidia-key",
    "fingerprint": "--nvidia-fingerprint",
}
"""Field -> option."""
_PUBLIC = ("docker.io", "ghcr.io", "quay.io", "nvcr.io", "gcr.io", "mcr.microsoft.com", "registry.gitlab.com")
_PUBLIC_ENDINGS = (
    ".pkg.dev",
    ".gcr.io",
    ".amazonaws.com",
    ".ecr.aws",
    ".azurecr.io",
    ".k8s.io",
    ".redhat.com",
    ".redhat.io",
)
"""Registries whose certificates every system trusts."""


def site_settings(options: SiteOptions, *, yes: bool) -> SiteSettings:
    """Return the settings. Missing ones are asked for on a terminal, unless `yes`, and added to `options`.

    Raises:
        UsageError: An option is invalid, or the key of a repository is not approved.
    """
    from provision.commands.signing_keys import NVIDIA_FINGERPRINT, NVIDIA_REPOSITORY
    from provision.inventory import site_settings as site
    from provision.model.image_reference import registry_of

    asking = interactive() and not yes
    image = options.image
    if image is None and asking:
        image = _answer("Training image, as REGISTRY/PATH:TAG (Enter: set it later):", "", site.check_image)
        options.image, options.answered = image or None, True
    image = site.check_image(image) if image else ""
    if options.registry_ca is None and asking and image and _is_private(image):
        question = f"File with the CA certificate of {registry_of(image)} (Enter: the nodes trust it):"
        named = _answer(question, "", _certificate_file)
        options.registry_ca, options.answered = Path(named) if named else None, True
    certificate = site.read_certificate(options.registry_ca) if options.registry_ca is not None else ""
    if certificate and not image:
        raise UsageError("--registry-ca requires --image", remedy="Also specify the image: --image REGISTRY/PATH:TAG")
    url, file = options.repository, options.key
    if url is None and asking:
        say(f"Package repository of the NVIDIA Container Toolkit; NVIDIA's is {NVIDIA_REPOSITORY}")
        question = f"URL (Enter: NVIDIA's; {site.NO_REPOSITORY}: the nodes have it already):"
        url = _answer(question, NVIDIA_REPOSITORY, site.check_repository)
        options.repository, options.answered = url or site.NO_REPOSITORY, True
        if url not in ("", NVIDIA_REPOSITORY) and file is None:
            named = _answer("File with its signing key (Enter: NVIDIA's key, for an unchanged mirror):", "", _key_file)
            file = options.key = Path(named) if named else None
    url = site.check_repository(url) if url else NVIDIA_REPOSITORY if url is None else ""
    if not url and (file is not None or options.fingerprint is not None):
        raise UsageError("--nvidia-key and --nvidia-fingerprint belong to a repository")
    key = site.choose_key(file, options.fingerprint) if url else None
    if key is not None and options.fingerprint is None:
        _approve(key, yes=yes)
        options.fingerprint = key.fingerprint if options.answered and key.fingerprint != NVIDIA_FINGERPRINT else None
    return site.SiteSettings(image, certificate, url, key)


def new_values(options: SiteOptions, *, yes: bool) -> NewValues:
    """Return the values of the options for an existing inventory. Missing ones are not asked for.

    Raises:
        UsageError: An option is invalid, or the key of a repository is not approved.
    """
    from provision.commands.signing_keys import nvidia_key
    from provision.inventory import site_settings as site
    from provision.inventory.site_change import NewValues

    image = site.check_image(options.image) if options.image is not None else None
    certificate = site.read_certificate(options.registry_ca) if options.registry_ca is not None else None
    url = site.check_repository(options.repository) if options.repository is not None else None
    key = None
    if options.key is not None or options.fingerprint is not None:
        key = site.choose_key(options.key, options.fingerprint)
        if options.fingerprint is None:
            _approve(key, yes=yes)
    return NewValues(image, certificate, url, key.text + "\n" if key else None, nvidia_key().text + "\n")


def _approve(key: SigningKey, *, yes: bool) -> None:
    """Show the fingerprint of a key that is not NVIDIA's, and ask."""
    from provision.commands.signing_keys import NVIDIA_FINGERPRINT

    if key.fingerprint == NVIDIA_FINGERPRINT:
        return
    say(f"Signing key of the repository: {key.spaced}")
    say(f"Its owner is {key.owner or 'unknown'}, not NVIDIA.")
    if not yes and not interactive():
        raise UsageError(
            "the signing key of the repository is not approved",
            remedy="Compare the fingerprint with what its owner publishes, then add "
            f"--nvidia-fingerprint {key.fingerprint}",
        )
    confirm("Does the repository's owner publish this fingerprint?", yes=yes)
    if yes:
        say("--yes: the signing key is approved as printed")


def _is_private(image: str) -> bool:
    from provision.model.image_reference import registry_of

    registry = registry_of(image)
    return registry not in _PUBLIC and not registry.endswith(_PUBLIC_ENDINGS)


def _certificate_file(name: str) -> str:
    """Return the name of a file that contains a certificate; UsageError if it does not."""
    from provision.inventory.site_settings import read_certificate

    read_certificate(Path(name))
    return name


def _key_file(name: str) -> str:
    """Return the name of a file that contains a key; UsageError if it does not."""
    from provision.inventory.site_settings import choose_key

    choose_key(Path(name), None)
    return name


def _answer(question: str, default: str, check: Callable[[str], str]) -> str:
    """Ask until the answer is valid; an empty answer is the default."""
    while True:
        answer = prompt(question)
        if not answer:
            return default
        try:
            return check(answer)
        except UsageError as error:
            say(f"{error.message}. {error.remedy or ''}".strip())
