"""User certificates next to key files: their validity and principals, for the error after a refused login."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

_SUFFIX = "-cert.pub"


def certificate_of(key_file: Path) -> Path:
    """Return the path at which OpenSSH expects the certificate of a key file."""
    return key_file.with_name(key_file.name + _SUFFIX)


def notes(key_files: Iterable[Path]) -> str:
    """Return the problems or principals of the certificates of key files; the server does not report them."""
    return "".join(_note(path) for path in map(certificate_of, key_files) if path.exists())


def _note(path: Path) -> str:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import SSHCertificate, load_ssh_public_identity

    try:
        certificate = load_ssh_public_identity(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm):
        return f"; {path} is not a readable certificate"
    if not isinstance(certificate, SSHCertificate):
        return f"; {path} is not a certificate"
    now = datetime.now(UTC).timestamp()
    if now >= certificate.valid_before:
        return f"; the certificate {path} expired on {_time(certificate.valid_before)}: sign the key again"
    if now < certificate.valid_after:
        return f"; the certificate {path} is not valid before {_time(certificate.valid_after)}"
    principals = ", ".join(name.decode(errors="replace") for name in certificate.valid_principals)
    return f"; the certificate {path} is for {f'the principals {principals}' if principals else 'any principal'}"


def _time(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
