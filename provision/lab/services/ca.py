"""The lab's certificate authority, and the certificate of its registry. Keys remain in the lab's folder."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from provision.documents import decode
from provision.errors import InvalidDocument
from provision.local_files import write_private

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

_DAYS = 3650


@dataclass(frozen=True)
class Certificates:
    """Paths of the authority's certificate and the server's key pair, all in the lab's folder."""

    authority: Path
    certificate: Path
    key: Path
    renewed: bool
    """Whether the server's key pair is new, so that its service has to be restarted."""


def ensure_certificates(folder: Path, lab: str, names: Iterable[str]) -> Certificates:
    """Create the authority once, and the server's certificate whenever it does not cover all `names`."""
    authority, certificate, key = folder / "ca.crt", folder / "server.crt", folder / "server.key"
    covered, required_names = folder / "server.json", sorted(set(names))
    if not (authority.exists() and (folder / "ca.key").exists()):
        _make_authority(folder, lab)
        covered.unlink(missing_ok=True)
    renewed = not (certificate.exists() and key.exists() and _covers(covered, required_names))
    if renewed:
        covered.unlink(missing_ok=True)
        _make_server_pair(folder, required_names)
        write_private(covered, json.dumps(required_names))
    return Certificates(authority, certificate, key, renewed)


def _covers(covered: Path, required_names: list[str]) -> bool:
    try:
        return set(required_names) <= set(decode(covered.read_bytes(), list[str], node="", what=str(covered)))
    except (OSError, InvalidDocument):
        return False


def _make_authority(folder: Path, lab: str) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"provision lab {lab}: authority")
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        _builder(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    write_private(folder / "ca.key", _pem_key(key))
    _write_certificate(folder / "ca.crt", builder, key)


def _make_server_pair(folder: Path, names: list[str]) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID

    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    authority_key = load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
    if not isinstance(authority_key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"{folder / 'ca.key'} is not an elliptic-curve key")
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(_name("provision lab registry"), authority.subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
    )
    write_private(folder / "server.key", _pem_key(key))
    _write_certificate(folder / "server.crt", builder, authority_key)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    from cryptography import x509

    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))  # a node's clock may be slow
        .not_valid_after(now + dt.timedelta(days=_DAYS))
    )


def _name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _alternative(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write_certificate(path: Path, builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> None:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding

    write_private(path, builder.sign(key, SHA256()).public_bytes(Encoding.PEM))
