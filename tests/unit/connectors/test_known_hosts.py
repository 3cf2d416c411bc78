import base64
import hashlib
import hmac

import pytest

from provision.connectors.known_hosts import fingerprint, host_names, keys_for, read

KEY = base64.b64encode(b"\0\0\0\x0bssh-ed25519key").decode()


def entries(tmp_path, text):
    (tmp_path / "known_hosts").write_text(text)
    return read([tmp_path / "known_hosts", tmp_path / "missing"])


def hashed(name):
    salt = b"0123456789abcdefghij"
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@pytest.mark.parametrize(
    ("pattern", "name", "found"),
    [
        ("gpu1", "gpu1", True),
        ("gpu1,10.0.0.1", "10.0.0.1", True),
        ("[gpu1]:2222", "[gpu1]:2222", True),
        ("[gpu1]:2222", "gpu1", False),
        ("gpu1", "gpu2", False),
        ("gpu?", "gpu7", True),
        ("*.example.org", "gpu1.example.org", True),
        ("gpu*,!gpu7", "gpu7", False),
        ("GPU1", "gpu1", True),
        (hashed("[gpu1]:2222"), "[gpu1]:2222", True),
        (hashed("gpu1"), "gpu2", False),
        ("|1|broken", "gpu1", False),
    ],
)
def test_names_match_as_openssh_matches_them(tmp_path, pattern, name, found):
    """Plain, listed, wildcard, negated, hashed and [host]:port entries mean what they mean to ssh."""
    assert bool(keys_for(entries(tmp_path, f"{pattern} ssh-ed25519 {KEY}\n"), [name])) is found


def test_a_port_of_its_own_is_looked_up_first_and_the_bare_name_after(tmp_path):
    """A host on another port is trusted by its own entry, else by the entry of the bare name."""
    known = entries(tmp_path, f"gpu1 ssh-rsa {KEY}\n[gpu1]:2222 ssh-ed25519 {KEY}\n")

    assert [key.type for key in keys_for(known, host_names("gpu1", 2222))] == ["ssh-ed25519"]
    assert [key.type for key in keys_for(known, host_names("gpu1", 2223))] == ["ssh-rsa"]
    assert host_names("gpu1", 2222, "alias") == ("alias",)


def test_lines_that_are_no_entries_are_passed_over(tmp_path):
    """Comments, empty and broken lines trust nobody and break nothing."""
    known = entries(tmp_path, f"# c\n\ngpu1 ssh-ed25519\ngpu1 ssh-ed25519 ***\n@revoked gpu1 ssh-ed25519 {KEY} c\n")

    assert [(key.marker, key.where.rpartition(":")[2]) for key in known] == [("@revoked", "5")]


def test_fingerprints_are_those_of_ssh_keygen():
    """A fingerprint can be compared with what ssh-keygen -l prints."""
    assert fingerprint(b"abc") == "SHA256:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0"
