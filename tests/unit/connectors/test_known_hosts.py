import base64
import hashlib
import hmac

import pytest

from provision.connectors.known_hosts import fingerprint, host_names, hosts_with, trusted

KEY = base64.b64encode(b"\0\0\0\x0bssh-ed25519key").decode()


def entries(tmp_path, text):
    """Write known_hosts; the answer looks names up in it."""
    (tmp_path / "known_hosts").write_text(text)
    return lambda names: trusted([tmp_path / "known_hosts", tmp_path / "missing"], names)


def hashed(name):
    salt = b"0123456789abcdefghij"
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@pytest.mark.parametrize(
    ("pattern", "name", "matched"),
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
def test_names_match_as_openssh_matches_them(tmp_path, pattern, name, matched):
    """Plain, listed, wildcard, negated, hashed and [host]:port entries mean what they mean to ssh."""
    assert bool(entries(tmp_path, f"{pattern} ssh-ed25519 {KEY}\n")([name])) is matched


def test_an_entry_with_a_port_takes_precedence_over_the_bare_name(tmp_path):
    """A host on another port is trusted by its own entry, else by the entry of the bare name."""
    known = entries(tmp_path, f"gpu1 ssh-rsa {KEY}\n[gpu1]:2222 ssh-ed25519 {KEY}\n")

    assert [key.type for key in known(host_names("gpu1", 2222))] == ["ssh-ed25519"]
    assert [key.type for key in known(host_names("gpu1", 2223))] == ["ssh-rsa"]
    assert host_names("gpu1", 2222, "alias") == ("alias",)


def test_invalid_lines_are_ignored(tmp_path):
    """Comments, empty and broken lines add no trust and break nothing."""
    known = entries(tmp_path, f"# c\n\ngpu1 ssh-ed25519\ngpu1 ssh-ed25519 ***\n@revoked gpu1 ssh-ed25519 {KEY} c\n")

    assert [(key.marker, key.where.rpartition(":")[2]) for key in known(["gpu1"])] == [("@revoked", "5")]
    assert known(["#"]) == []


def test_a_changed_file_is_read_again(tmp_path):
    """A key that was added, or withdrawn, counts from then on, though the file was read before."""
    book = tmp_path / "known_hosts"
    book.write_text(f"gpu1 ssh-rsa {KEY}\n")
    before = trusted([book], ["gpu1"])
    book.write_text(f"gpu2 ssh-rsa {KEY}\n")

    assert len(before) == 1
    assert trusted([book], ["gpu1"]) == []
    assert len(trusted([book], ["gpu2"])) == 1


def test_entries_keep_the_order_of_the_file(tmp_path):
    """Plain, hashed and wildcard lines of one host keep their order: messages name the first."""
    known = entries(
        tmp_path, "".join(f"{name} ssh-ed25519 {KEY}\n" for name in ("gpu*", "gpu1", hashed("gpu1"), "GPU1"))
    )

    assert [key.where.rpartition(":")[2] for key in known(["gpu1"])] == ["1", "2", "3", "4"]


def test_fingerprints_are_those_of_ssh_keygen():
    """A fingerprint can be compared with what ssh-keygen -l prints."""
    assert fingerprint(b"abc") == "SHA256:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0"


def test_the_other_host_of_a_key_is_reported(tmp_path):
    """Two nodes whose addresses were swapped show each other's keys."""
    file, other = tmp_path / "known_hosts", base64.b64encode(b"another key").decode()
    file.write_text(f"gpu1 ssh-ed25519 {KEY}\n[gpu2]:2222 ssh-ed25519 {other}\n@revoked gpu3 ssh-ed25519 {other}\n")

    assert hosts_with([file], b"another key") == ["[gpu2]:2222"]
    assert hosts_with([file], b"other") == []
