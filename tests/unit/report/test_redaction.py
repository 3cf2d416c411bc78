"""Nothing that is secret leaves this machine in a support bundle."""

from __future__ import annotations

import base64
import io
import json
import tarfile

import pytest

from provision.errors import ConnectionFailed
from provision.facts import NodeFacts
from provision.facts.managed import Managed
from provision.facts.records import Receipt
from provision.model import CheckResult, CheckStatus, NodeChecks, Secret, Verification
from provision.report.bundle import archive, bundle_files
from provision.report.redaction import REMOVED, Redactor, secrets_of
from tests.support.reasons import plain

KEY_BODY = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ"
PEM = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{KEY_BODY}\n-----END OPENSSH PRIVATE KEY-----"

WHOLE = [
    ('"password": "correct horse battery"', "horse battery"),
    ("'password': 'correct horse'", "horse"),
    ('"password": "ab,cd;ef"', "cd;ef"),
    ('"password": "ab\\"cd"', "cd"),
    ('{\\"password\\": \\"two words\\"}', "words"),
    ("password: 'it''s mine'", "s mine"),
    ('PASSWORD="two words" next', "words"),
    ('PASSWORD=ab"c d" next', "c d"),
    ("db_password=ab&cdef;gh next", "cdef;gh"),
    ("db_password=ab,cdef next", "cdef"),
    ("password=ab\\ cdef next", "cdef"),
    ("password: correct horse", "horse"),
    ("  - password: correct horse", "horse"),
    ("registry_token = abc def", "def"),
    ("password: |\n  first\n  second\nnext: 1", "second"),
    ('"password": "open end', "open end"),
    ('"tokens": 1, "token": ["ab", "cd"]}', "cd"),
    ('["A_PASSWORD=ab cd", "x"]', "cd"),
    ('Authorization: Digest username="bob", realm="r", response="6629fae49393a05397450978507c4ef1"', "6629fae"),
    ('curl -H \'Authorization: Digest username="bob", response="6629fae4"\' u', "6629fae"),
    ("Proxy-Authorization: Negotiate YIIabcdefg", "YIIabcdefg"),
    ("Cookie: a=b; session=12ab34", "12ab34"),
    ("MYSQL_PWD=hunter22", "hunter22"),
    ("WANDB_KEY=0123456789abcdef", "0123456789abcdef"),
    ("PGPASS: hunter22", "hunter22"),
    ("train.py --api-key hunter22 --epochs 3", "hunter22"),
    ("train.py --wandb_key hunter22", "hunter22"),
    ("train.py --wandb_key='a b c22' --epochs 3", "b c22"),
    ('["--password", "hunter22", "x"]', "hunter22"),
    ("curl -u bob:hunter22 https://h", "hunter22"),
    ("curl -sSu 'bob:hunter 22' https://h", "hunter 22"),
    ("curl --proxy-user bob:hunter22 -u a:letmein h", "letmein"),
    ("sshpass -p hunter22 ssh h", "hunter22"),
    ("sshpass -v -phunter22 ssh h", "hunter22"),
    ("docker login -u bob -p hunter22 r", "hunter22"),
    ("mysqldump -u root -phunter22 db", "hunter22"),
    ("auth: Ym9iOmh1bnRlcjIy", "Ym9iOmh1bnRlcjIy"),
    ("https://b.example/c?sv=1&sig=abc%2Bdef", "abc%2Bdef"),
    ("https://s3/x?X-Amz-Signature=0123abcd&x=1", "0123abcd"),
    ("DefaultEndpointsProtocol=https;AccountKey=ab+cd/ef==;x=1", "ab+cd"),
    ("key sk-proj-0123456789abcdefghij used", "0123456789abcdefghij"),
    ("root:$y$j9T$abcdefghijklmnop$0123456789abcdefghijkl:19000:0", "abcdefghijklmnop"),
    ("root:$6$saltsalt$0123456789abcdefghijkl:19000:0", "0123456789abcdefghijkl"),
    ("proxy http://u:p/ss@proxy:3128", "p/ss"),
    ("proxy http://u:p/ss@w@proxy:3128", "ss@w"),
]
"""Each with a part of the secret that must not be left behind."""


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
        *WHOLE,
        ("token ghp_0123456789abcdefghij0123 was used", "ghp_0123456789abcdefghij0123"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTYifQ.abcdefgh", "eyJzdWIiOiIxMjM0NTYifQ"),
    ],
)
def test_shapes_of_secrets_are_removed(text, secret):
    """A secret is recognised by its format, even if its value is not registered as secret."""
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
        "pulled https://r:5000/v2/t@sha256:0011223344556677",
        "monkey=banana keyboard=us turkey: good",
        "AuthorizedKeysFile=/root/.ssh/authorized_keys",
        "authorized_keys: 3 lines",
        "host_key: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0RUyzHdO2SJ9bHqmNTeUuTTt8SZFVPNT2Tg8Ux6X3x",
        "sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5",
        "  key      value    unit",
        "key: value",
        "signing_key=/etc/apt/keyrings/docker.asc",
        "/run/secrets/token: No such file or directory",
        "PWD=/root/work OLDPWD=/root",
        "pass=12 fail=0 skip=3",
        "bypass: the cache",
        '"token": null, "auth": true, "secret": ""',
        "docker run -u 1000:1000 -p 8080:80 image",
        "ansible-playbook --ask-become-pass site.yml",
        "max_tokens=4096 tokens: 12",
        "task-0123456789abcdefghij done",
        "echo $1 $2 done",
    ],
)
def test_harmless_text_is_preserved(text):
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


def test_the_secrets_of_the_inventory_are_collected():
    """Passwords of logins, vaulted values, credentials of proxies, whatever is called a secret; nothing else."""
    variables = {
        "ansible_become_password": Secret("become-1"),
        "docker_engine_registry_logins": [{"registry": "r", "username": "bob", "password_secret": "login-1"}],
        "cluster_http_proxy": "http://bob:proxy-1@proxy:3128",
        "cluster_name": "prod",
        "container_ssh_password_enabled": "no",
    }

    assert secrets_of(variables) == {"become-1", "login-1", "bob:login-1", "proxy-1"}


def test_credentials_are_removed_in_the_format_of_docker():
    """The ``auth`` of a registry login is the base64 of user and password together."""
    known = secrets_of({"logins": [{"registry": "r", "username": "bob", "password_secret": "login-1"}]})
    written = base64.b64encode(b"bob:login-1").decode()

    assert written not in Redactor(known).text(f"sent {written} to the registry")


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ('{"password": "a b", "name": "n"}', '{"password": "[removed]", "name": "n"}'),
        ("{'password': 'a b', 'name': 'n'}", "{'password': '[removed]', 'name': 'n'}"),
        ("A_PASSWORD=ab,c B=2", "A_PASSWORD=[removed] B=2"),
        ("password: a b\nname: n", "password: [removed]\nname: n"),
        ('["A_TOKEN=ab", "B=2"]', '["A_TOKEN=[removed]", "B=2"]'),
        ("run --token ab --epochs 3", "run --token [removed] --epochs 3"),
        ('{"token": 12, "n": 1}', '{"token": [removed], "n": 1}'),
        ("curl -H 'Authorization: Basic Ym9i' https://h", "curl -H 'Authorization: [removed]' https://h"),
    ],
)
def test_only_the_secret_is_removed(text, cleaned):
    """Text around a secret is preserved, and a second pass changes nothing."""
    assert Redactor().text(text) == cleaned
    assert Redactor().text(cleaned) == cleaned


def test_values_of_secret_keys_are_removed_from_documents():
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


def test_the_bundle_contains_no_hashes_of_secrets():
    """Neither hashes of private files nor the salt of hashed variables, in facts and in what the probe printed."""
    digest, key, salt = "ab" * 32, "cd" * 32, "5a17" * 8
    content = {
        "files": {"/etc/x": {"mode": "0600", "sum": digest}},
        "fingerprint": {"salt": salt, "code": "c0de", "variables": {"some_size": "0123456789abcdef"}},
        "images": {"training:1": f"sha256:{digest}"},
    }
    managed = Managed(observed={"some": content})
    raw = f"some.json:{json.dumps(content)}\nsha256={digest}\nkey {key}\n"
    facts = NodeFacts(receipts={"some": Receipt("some", content)}, managed=managed, raw=raw)

    files = bundle_files({"gpu1": facts}, Verification(()), {}, Redactor())

    for name in ("facts.json", "probe.txt"):
        text = files[f"nodes/gpu1/{name}"]
        assert f"sha256:{digest}" in text
        assert "/etc/x" in text
        assert [word for word in (digest, key, salt) if word in text.replace(f"sha256:{digest}", "")] == []


def test_no_planted_secret_is_in_the_bundle():
    """Secrets in facts, raw output, checks, errors and logs are all gone from the archive; the rest is there."""
    planted = ["known-pw-1", KEY_BODY, "hunter22", "vaulted-77", "tok-9"]
    facts = NodeFacts(
        receipts={"docker_engine": Receipt("docker_engine", {"inputs": {"login_password": "vaulted-77"}})},
        raw=f"probe\n{PEM}\nhttp://bob:hunter22@proxy\nknown-pw-1\n",
    )
    check = CheckResult("node.os", CheckStatus.FAIL, plain("said known-pw-1", "use token=tok-9"))
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
