"""Signing keys are identified by their full fingerprint, and a file with anything else is refused."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from provision.commands.signing_keys import NVIDIA_FINGERPRINT, nvidia_key, parse_fingerprint, parse_key, read_key
from provision.errors import UsageError


@pytest.fixture(scope="module")
def gpg(tmp_path_factory):
    """Make keys with gpg, which computes fingerprints by itself."""
    if shutil.which("gpg") is None:
        pytest.skip("gpg is not installed")
    home = tmp_path_factory.mktemp("gpg")
    home.chmod(0o700)

    def run(*words):
        argv = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--passphrase", "", *words]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    yield run
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False, capture_output=True)


def test_the_key_of_nvidia_has_the_published_fingerprint():
    """It is shipped with the program, so that a controller without internet access has it."""
    key = nvidia_key()

    assert key.fingerprint == NVIDIA_FINGERPRINT == "C95B321B61E88C1809C4F759DDCAE044F796ECB0"
    assert key.spaced == "C95B 321B 61E8 8C18 09C4  F759 DDCA E044 F796 ECB0"
    assert "NVIDIA CORPORATION" in key.owner


@pytest.mark.parametrize("kind", ["ed25519", "rsa2048", "nistp256"])
def test_the_fingerprint_is_the_one_that_gpg_computes(gpg, kind, tmp_path):
    """Of every algorithm: the fingerprint is made of the packet, whatever it holds."""
    name = f"{kind}@example.org"
    gpg("--quick-generate-key", name, kind, "sign", "never")
    listed = gpg("--with-colons", "--list-keys", name)
    expected = next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr"))
    (tmp_path / "key.asc").write_text(gpg("--armor", "--export", name))

    key = read_key(tmp_path / "key.asc")

    assert key.fingerprint == expected
    assert name in key.owner


def test_a_file_with_two_keys_is_refused(gpg):
    """apt would trust both."""
    for name in ("one@example.org", "two@example.org"):
        gpg("--quick-generate-key", name, "ed25519", "sign", "never")

    with pytest.raises(UsageError, match="2 public keys"):
        parse_key(gpg("--armor", "--export", "one@example.org", "two@example.org"), "f")
    both = gpg("--armor", "--export", "one@example.org") + gpg("--armor", "--export", "two@example.org")
    with pytest.raises(UsageError, match="2 public keys"):
        parse_key(both, "f")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ssh-ed25519 AAAA",
        "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nAAAA\n-----END PGP PUBLIC KEY BLOCK-----",
        "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n!!!!\n-----END PGP PUBLIC KEY BLOCK-----",
        "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQ==\n-----END PGP PUBLIC KEY BLOCK-----",
        nvidia_key().text.replace("\n", "\n", 1)[:900] + "\n-----END PGP PUBLIC KEY BLOCK-----",
    ],
)
def test_an_invalid_key_is_refused(text):
    """With a message, whatever the file holds."""
    with pytest.raises(UsageError):
        parse_key(text, "key.asc")


def test_only_full_fingerprints_count():
    """A short key ID can be forged."""
    assert parse_fingerprint("c95b 321b 61e8 8c18 09c4  f759 ddca e044 f796 ecb0") == NVIDIA_FINGERPRINT
    for short in ("F796ECB0", "DDCAE044F796ECB0", "SHA256:abc", "", "Z" * 40):
        with pytest.raises(UsageError, match="full key fingerprint"):
            parse_fingerprint(short)
