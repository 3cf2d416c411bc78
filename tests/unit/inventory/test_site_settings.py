"""The image and NVIDIA's repository, as `init` writes them into a new inventory."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from provision.commands.signing_keys import NVIDIA_FINGERPRINT, NVIDIA_REPOSITORY
from provision.errors import UsageError
from provision.inventory.site_settings import (
    SiteSettings,
    check_image,
    check_repository,
    choose_key,
    read_certificate,
    site_variables,
)
from provision.inventory.write import group_vars_text

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


def test_a_wrong_fingerprint_refuses_the_key():
    """Also of NVIDIA's own key: nothing is written with another one than was expected."""
    assert choose_key(None, NVIDIA_FINGERPRINT).fingerprint == NVIDIA_FINGERPRINT
    with pytest.raises(UsageError, match=f"fingerprint is {NVIDIA_FINGERPRINT}, not {'0' * 40}"):
        choose_key(None, "0" * 40)


def test_a_key_file_that_is_missing_or_empty_is_refused(tmp_path):
    """Before anything is written."""
    (tmp_path / "empty.asc").write_text("")
    for name in ("none.asc", "empty.asc"):
        with pytest.raises(UsageError):
            choose_key(tmp_path / name, None)


def test_written_settings_are_read_back_unchanged():
    """Keys and certificates stand there as readable blocks."""
    key = choose_key(None, None)
    settings = SiteSettings("r.example.com:5000/team/train:1", CERTIFICATE, NVIDIA_REPOSITORY, key)
    text = group_vars_text({"cluster_name": "prod", **site_variables(settings)})

    assert yaml.safe_load(text) == {
        "cluster_name": "prod",
        "training_image_reference": "r.example.com:5000/team/train:1",
        "docker_engine_registry_ca": [{"registry": "r.example.com:5000", "certificate": CERTIFICATE}],
        "nvidia_container_repository_uri": NVIDIA_REPOSITORY,
        "nvidia_container_repository_key": key.text + "\n",
    }
    assert "\n  -----BEGIN PGP PUBLIC KEY BLOCK-----\n" in text
    assert "TODO" not in text


def test_a_missing_image_is_a_todo():
    """The inventory says what is missing."""
    assert "# TODO: set the image" in group_vars_text({"cluster_name": "prod"})


@pytest.mark.parametrize("word", ["https://r/x:1", "r/X", "x y", "registry.example.com/Team/x:1", ""])
def test_an_invalid_image_name_is_refused(word):
    """As the role does, and earlier."""
    with pytest.raises(UsageError, match="not an image reference"):
        check_image(word)


def test_repositories_are_validated():
    """A URL, or none; logins belong into a vault."""
    assert check_repository("none") == ""
    assert check_repository("https://mirror.example.com/nvidia/") == "https://mirror.example.com/nvidia"
    assert check_repository(NVIDIA_REPOSITORY) == NVIDIA_REPOSITORY
    for odd in ("mirror.example.com", "ftp://x/y", "https://user:secret@mirror/x", "http://x/{{ y }}", "https://x/a b"):
        with pytest.raises(UsageError) as caught:
            check_repository(odd)
        assert "secret" not in str(caught.value)


def test_a_file_without_a_certificate_is_refused(tmp_path):
    """A private key beside the certificate is not taken along."""
    file = Path(tmp_path / "ca.pem")
    file.write_text("-----BEGIN PRIVATE KEY-----\nAA\n-----END PRIVATE KEY-----\n")
    with pytest.raises(UsageError, match="no certificate"):
        read_certificate(file)
    file.write_text(file.read_text() + CERTIFICATE)
    assert read_certificate(file) == CERTIFICATE
