"""Nothing that is secret leaves this machine in a support bundle."""

from __future__ import annotations

import base64
import io
import json
import tarfile

import pytest

from provision.errors import ConnectionFailed
from provision.facts import NodeFacts
from provision.facts.records import Receipt
from provision.model import CheckResult, CheckStatus, NodeChecks, Secret, Verification
from provision.report.bundle import archive, bundle_files
from provision.report.redaction import REMOVED, Redactor, secrets_of

KEY_BODY = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ"
PEM = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{KEY_BODY}\n-----END OPENSSH PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (PEM, KEY_BODY),
        (PEM[:70], KEY_BODY[:30]),
        ("proxy http://bob:hunter22@proxy:3128/ used", "hunter22"),
        ("proxy http://bob:hun@ter@proxy:3128/ used", "hun@ter"),
        ("https://ghtoken123456@host/x", "ghtoken123456"),
        ("Authorization: Basic Ym9iOmh1bnRlcjIy", "Ym9iOmh1bnRlcjIy"),
        ("Authorization: Bearer abc.def-ghi", "abc.def-ghi"),
        ("ansible_become_password=hunter22 next", "hunter22"),
        ('{"password": "two words"}', "two words"),
        ("password: 'hunter22'", "hunter22"),
        ("registry_token = abcdef", "abcdef"),
        ("docker login --password hunter22 r:5000", "hunter22"),
        ("docker login --password=hunter22 r:5000", "hunter22"),
        ('"auth": "Ym9iOmh1bnRlcjIy"', "Ym9iOmh1bnRlcjIy"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI", "wJalrXUtnFEMI"),
        ("MY_API_KEY: 12345678", "12345678"),
        ("$ANSIBLE_VAULT;1.1;AES256\n3061393333613563663331363264\n", "3061393333613563663331363264"),
        ("token ghp_0123456789abcdefghij0123 was used", "ghp_0123456789abcdefghij0123"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTYifQ.abcdefgh", "eyJzdWIiOiIxMjM0NTYifQ"),
    ],
)
def test_shapes_of_secrets_are_removed(text, secret):
    """A secret is found by its shape, even where nobody told that it is one."""
    assert secret not in Redactor().text(text)
    assert REMOVED in Redactor().text(text)


@pytest.mark.parametrize(
    "text",
    [
        "ii |libpam-runtime|1.5.2-6+deb12u1",
        "ii |libsecret-1-0|0.20.5-3",
        '"status": "pass", "reason": "no secret here is told"',
        "mode 600 ssh_host_ed25519_key",
        "docker info: https://registry.example:5000/v2/ answers",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0RUyzHdO2SJ9bHqmNTeUuTTt8SZFVPNT2Tg8Ux6X3x gpu1",
        "image r:5000/t@sha256:0011223344556677",
    ],
)
def test_what_helps_is_kept(text):
    """Versions, public keys, addresses and digests are what the bundle is for."""
    assert Redactor().text(text) == text


@pytest.mark.parametrize("spelling", ["{0}", "'{0}'", "%s", "https://u:{q}@h", "{b}", '"{j}"'])
def test_known_secrets_are_removed_in_every_spelling(spelling):
    """A password of the inventory is removed where programs quote or encode it."""
    secret = 'pa"ss wörd'
    shown = spelling.replace("%s", "{0}").format(
        secret,
        q="pa%22ss%20w%C3%B6rd",
        b=base64.b64encode(secret.encode()).decode(),
        j=json.dumps(secret)[1:-1],
    )

    assert REMOVED in Redactor([secret]).text(f"said {shown} aloud")
    assert "rd aloud" not in Redactor([secret]).text(f"said {shown} aloud")


def test_known_secrets_are_found_in_the_inventory():
    """Passwords of logins, vaulted values, credentials of proxies, whatever is called a secret; nothing else."""
    variables = {
        "ansible_become_password": Secret("become-1"),
        "docker_engine_registry_logins": [{"registry": "r", "username": "bob", "password_secret": "login-1"}],
        "cluster_http_proxy": "http://bob:proxy-1@proxy:3128",
        "cluster_name": "prod",
        "container_ssh_password_enabled": "no",
    }

    assert secrets_of(variables) == {"become-1", "login-1", "proxy-1"}


def test_values_under_telling_keys_are_removed_from_documents():
    """Also numbers, lists and objects below such a key."""
    cleaned = Redactor().data(
        {
            "a": {
                "password": 1234,
                "tokens": ["x", "y"],
                "login_secret": {"inner": "z"},
                "name": "n",
                "auth_enabled": True,
            }
        }
    )

    assert cleaned == {
        "a": {
            "password": REMOVED,
            "tokens": [REMOVED, REMOVED],
            "login_secret": {"inner": REMOVED},
            "name": "n",
            "auth_enabled": True,
        }
    }


def test_no_planted_secret_is_in_the_bundle():
    """Secrets in facts, raw output, checks, errors and logs are all gone from the archive; the rest is there."""
    planted = ["known-pw-1", KEY_BODY, "hunter22", "vaulted-77", "tok-9"]
    facts = NodeFacts(
        receipts={"docker_engine": Receipt("docker_engine", {"inputs": {"login_password": "vaulted-77"}})},
        raw=f"probe\n{PEM}\nhttp://bob:hunter22@proxy\nknown-pw-1\n",
    )
    check = CheckResult("node.os", CheckStatus.FAIL, "said known-pw-1", "use token=tok-9")
    files = bundle_files(
        {"gpu1": facts, "gpu2": ConnectionFailed("no way with known-pw-1", output="password: tok-9")},
        Verification((NodeChecks("gpu1", (check,)),)),
        {"apply.log": f"TASK known-pw-1\nhttps://u:hunter22@h\n{PEM}\n"},
        Redactor(["known-pw-1"]),
    )
    data = archive(files, "bundle")
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = {member.name: tar.extractfile(member).read().decode() for member in tar.getmembers()}
        modes = {member.mode for member in tar.getmembers()}
    everything = "\n".join(members.values())

    assert [secret for secret in planted if secret in everything] == []
    assert {"bundle/verify.json", "bundle/nodes/gpu1/facts.json", "bundle/nodes/gpu2/error.txt"} <= set(members)
    assert "bundle/logs/apply.log" in members
    assert json.loads(members["bundle/nodes/gpu1/facts.json"])["system"] == {"unknown": "not asked for"}
    assert modes == {0o600}
