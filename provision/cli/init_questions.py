"""The settings of the site that ``provision init`` writes: from options, from answers on the terminal, or defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import confirm, interactive, prompt, say
from provision.errors import UsageError

if TYPE_CHECKING:
    from provision.commands.signing_keys import SigningKey
    from provision.inventory.site_settings import SiteSettings

__all__ = ["SiteOptions", "site_settings"]


@dataclass(frozen=True, kw_only=True)
class SiteOptions:
    """The options of ``provision init`` for the site; None: not given."""

    image: Annotated[
        str | None, typer.Option("--image", metavar="REFERENCE", help="Training image, as REGISTRY/PATH:TAG.")
    ] = None
    registry_ca: Annotated[
        Path | None, typer.Option("--registry-ca", metavar="FILE", help="CA certificate (PEM) of the image's registry.")
    ] = None
    nvidia_repository: Annotated[
        str | None,
        typer.Option(
            "--nvidia-repository",
            metavar="URL",
            help="Package repository of the NVIDIA Container Toolkit, or none. [NVIDIA's]",
        ),
    ] = None
    nvidia_key: Annotated[
        Path | None, typer.Option("--nvidia-key", metavar="FILE", help="Key that signs it, armored. [NVIDIA's]")
    ] = None
    nvidia_fingerprint: Annotated[
        str | None,
        typer.Option("--nvidia-fingerprint", metavar="FINGERPRINT", help="Expected fingerprint of that key, in full."),
    ] = None

    def given(self) -> list[str]:
        """Return the names of the options that were given."""
        values = {
            "--image": self.image,
            "--registry-ca": self.registry_ca,
            "--nvidia-repository": self.nvidia_repository,
            "--nvidia-key": self.nvidia_key,
            "--nvidia-fingerprint": self.nvidia_fingerprint,
        }
        return [name for name, value in values.items() if value is not None]


def site_settings(options: SiteOptions, *, yes: bool) -> SiteSettings:
    """Return the settings; what was not given is asked for on a terminal, unless `yes`.

    Raises:
        UsageError: an option is not valid, or the key of a repository is not approved.
    """
    from provision.commands.signing_keys import NVIDIA_REPOSITORY
    from provision.inventory import site_settings as site

    asking = interactive() and not yes
    image = options.image
    if image is None and asking:
        image = _answer("Training image, as REGISTRY/PATH:TAG (Enter: set it later):", "", site.check_image)
    image = site.check_image(image) if image else ""
    certificate = site.read_certificate(options.registry_ca) if options.registry_ca is not None else ""
    if certificate and not image:
        raise UsageError("--registry-ca belongs to --image", remedy="Give the image too: --image REGISTRY/PATH:TAG")
    url, file = options.nvidia_repository, options.nvidia_key
    if url is None and asking:
        say(f"Package repository of the NVIDIA Container Toolkit; NVIDIA's is {NVIDIA_REPOSITORY}")
        question = f"URL (Enter: NVIDIA's; {site.NO_REPOSITORY}: the nodes have it already):"
        url = _answer(question, NVIDIA_REPOSITORY, site.check_repository)
        if url not in ("", NVIDIA_REPOSITORY) and file is None:
            named = _answer("File with its signing key (Enter: NVIDIA's key, for an unchanged mirror):", "", _key_file)
            file = Path(named) if named else None
    url = site.check_repository(url) if url else NVIDIA_REPOSITORY if url is None else ""
    if not url and (file is not None or options.nvidia_fingerprint is not None):
        raise UsageError("--nvidia-key and --nvidia-fingerprint belong to a repository")
    key = site.choose_key(file, options.nvidia_fingerprint) if url else None
    if key is not None and options.nvidia_fingerprint is None:
        _approve(key, yes=yes)
    return site.SiteSettings(image, certificate, url, key)


def _approve(key: SigningKey, *, yes: bool) -> None:
    """Show the fingerprint of a key that is not NVIDIA's, and ask."""
    from provision.commands.signing_keys import NVIDIA_FINGERPRINT

    if key.fingerprint == NVIDIA_FINGERPRINT:
        return
    say(f"Signing key of the repository: {key.spaced}")
    say(f"  which calls itself {key.owner or 'nothing'}; it is not NVIDIA's key")
    if not yes and not interactive():
        raise UsageError(
            "the signing key of the repository is not approved",
            remedy="Compare the fingerprint with what its owner publishes, then add "
            f"--nvidia-fingerprint {key.fingerprint}",
        )
    confirm("Does the repository's owner publish this fingerprint?", yes=yes)
    if yes:
        say("--yes: the signing key is approved as printed")


def _key_file(name: str) -> str:
    """Return the name of a file that holds a key; UsageError where it does not."""
    from provision.inventory.site_settings import choose_key

    choose_key(Path(name), None)
    return name


def _answer(question: str, default: str, check: Callable[[str], str]) -> str:
    """Ask until the answer is valid; no answer is the default."""
    while True:
        answer = prompt(question)
        if not answer:
            return default
        try:
            return check(answer)
        except UsageError as error:
            problem = error.message.partition(": ")[2] or error.message
            say(f"{answer}: {problem}. {error.remedy or ''}".strip())
