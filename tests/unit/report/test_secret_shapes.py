"""Tokens and keys are removed by their format in linear time, and other text is preserved."""

from __future__ import annotations

import base64
import resource
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provision.report.redaction import REMOVED, Redactor

PEM = (
    "-----BEGIN {0}PRIVATE KEY{1}-----\n(?:[A-Za-z0-9+/]{{64}}\n){{1,4}}[A-Za-z0-9+/]{{20,40}}=\n"
    "-----END {0}PRIVATE KEY{1}-----"
)
TOKENS = {
    "jwt": r"eyJ[A-Za-z0-9_-]{20,60}\.eyJ[A-Za-z0-9_-]{20,90}\.[A-Za-z0-9_-]{43}",
    "jwe": r"eyJ[A-Za-z0-9_-]{20,60}\.\.[A-Za-z0-9_-]{16}\.[A-Za-z0-9_-]{20,90}\.[A-Za-z0-9_-]{22}",
    "age": r"AGE-SECRET-KEY-1[QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{58}",
    "openssh": PEM.format("OPENSSH ", ""),
    "pkcs1": PEM.format("RSA ", ""),
    "pkcs8": PEM.format("", ""),
    "pkcs8-encrypted": PEM.format("ENCRYPTED ", ""),
    "pgp": PEM.format("PGP ", " BLOCK"),
    "pem-in-base64": r"LS0tLS1CRUdJTiB(?:QUklWQVRFIEtFWS0|SU0EgUFJJVkFURSBLRVkt)[A-Za-z0-9+/]{100,200}==",
    "stripe": r"(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{24,99}",
    "stripe-webhook": r"whsec_[A-Za-z0-9+/]{32}",
    "slack-bot": r"xoxb-[0-9]{12}-[0-9]{13}-[A-Za-z0-9]{24}",
    "slack-user": r"xoxp-[0-9]{12}-[0-9]{12}-[0-9]{13}-[0-9a-f]{32}",
    "slack-app": r"xapp-1-A[A-Z0-9]{10}-[0-9]{13}-[0-9a-f]{64}",
    "github": r"gh[pousr]_[A-Za-z0-9]{36}",
    "github-fine-grained": r"github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}",
    "gitlab": r"glpat-[A-Za-z0-9_-]{20}",
    "npm": r"npm_[A-Za-z0-9]{36}",
    "pypi": r"pypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{70,150}",
    "aws": r"(?:AKIA|ASIA)[A-Z2-7]{16}",
    "gcp": r"AIza[A-Za-z0-9_-]{35}",
    "gcp-oauth": r"GOCSPX-[A-Za-z0-9_-]{28}",
    "azure-client": r"[A-Za-z0-9_~.-]{3}[0-9]Q~[A-Za-z0-9_~.-]{34}",
    "huggingface": r"hf_[A-Za-z]{34}",
    "wandb": r"wandb_v1_[A-Za-z0-9]{40,77}",
    "docker": r"dckr_pat_[A-Za-z0-9_-]{27}",
    "ngc": r"nvapi-[A-Za-z0-9_-]{64}",
    "sendgrid": r"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}",
    "vault": r"hvs\.[A-Za-z0-9_-]{90,100}",
}
"""Recognised wherever they are, also inside other words."""

LINES = {
    "wireguard": r"PrivateKey = [A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=",
    "wireguard-psk": r"PresharedKey = [A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=",
    "wpa-psk": r"        psk=[0-9a-f]{64}",
    "ipsec-psk": r": PSK \"[A-Za-z0-9 ;]{12,30}\"",
    "kubeconfig-key": r"    client-key-data: [A-Za-z0-9+/]{200,300}==",
    "kubeconfig-token": r"    token: [A-Za-z0-9]{20,64}",
    "aws-secret": r"aws_secret_access_key = [A-Za-z0-9/+]{40}",
    "azure-storage": r"DefaultEndpointsProtocol=https;AccountName=a;AccountKey=[A-Za-z0-9+/]{86}==;EndpointSuffix=core",
    "azure-service-bus": r"Endpoint=sb://x/;SharedAccessKeyName=root;SharedAccessKey=[A-Za-z0-9+/]{43}=",
    "wandb": r"WANDB_API_KEY=[0-9a-f]{40}",
    "wandb-login": r"\+ wandb login [0-9a-f]{40}",
    "netrc": r"machine api\.wandb\.ai login user password [0-9a-f]{40}",
    "npmrc": r"//registry\.example/:_authToken=[0-9a-f-]{36}",
    "slack-webhook": r"POST https://hooks\.slack\.com/services/T[A-Z0-9]{8}/B[A-Z0-9]{10}/[A-Za-z0-9]{24}",
    "discord-webhook": r"POST https://discord\.com/api/webhooks/[0-9]{18}/[A-Za-z0-9_-]{68}",
    "openai": r"key sk-proj-[A-Za-z0-9_-]{40,120}",
}
"""Recognised by what is before them in their line."""

FRAGMENTS = (
    *("eyJ", "eyJaaaaaaaaaaaaaa", ".", "a://", "a://b:", "@", "@sha256:", "a:1/", "cookie", "'cookie:"),
    *("cookie: ", "bearer ", "sshpass ", "sshpass -a ", "-sshpass ", "docker login ", "docker login -p"),
    *("mysql ", "curl ", "curl -u", " -uuuu", ' -u "', "$1$", "-$1$", "$ANSIBLE_VAULT;", "$ANSIBLE_VAULT;1.1;A "),
    *("0123456789abcdef0123 ", "ghp_", "hf_", "AKIA", "sk-", "task-", "xoxb-", "MTk4", "MTk4.", "SG."),
    *("SG.aaaaaaaaaaaaaaaaaa", "Q~", "123456789:", "/webhooks/1", "hooks.slack.com/a", "AAAA\n"),
    *("Private-Lines: 1\n", "b3BlbnNzaC1rZXktdj", "LS0tLS1CRUdJTiB", "-----BEGIN ", "PRIVATE KEY "),
    *("-----BEGIN PRIVATE KEY", "-----BEGIN PRIVATE KEY-----", "password", "password=", "password=x "),
    *("password: |\n", "\n password: |\n", "x_key: |\n /a\n", "x_key=/", 'x_key="/', "x_key: /a\n", "x_key='/ "),
    *('x_key=\\"/', '"password":[', '"password":[1],', '"password": "', "PSK ", "--password ", "--password x "),
    *("--ask-pass ", "pass pass ", 'token="\\"', 'token=a"', "?sig=", "&key=a", 'PSK "a', "export ", "- "),
    *("wandb login ", "a", "A", "0", "-", "_", ":", "/", "=", '"', "'", "\\", " ", "\n", "\t", "$", "[", "{"),
    *("|", ";"),
)  # fmt: skip
"""Beginnings and parts of all that the redaction recognises."""

REPEATABLE = settings(
    max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
"""The same examples in every run, however slow the machine is."""

AROUND = st.lists(st.one_of(st.text(max_size=20), st.sampled_from(FRAGMENTS)), max_size=6).map("".join)


def leaks(secret: str, redacted: str, public: str) -> list[str]:
    """Return the parts of the secret, 12 characters at a time, that are still there and are not in `public` anyway."""
    parts = {secret[at : at + 12] for at in range(len(secret) - 11)}
    return [part for part in parts if part in redacted and part not in public]


@pytest.mark.parametrize("name", TOKENS)
@REPEATABLE
@given(data=st.data(), before=AROUND, after=AROUND)
def test_a_token_never_survives_in_any_text(name, data, before, after):
    """A token of a known shape is removed completely, whatever is written around it, even without a space."""
    secret = data.draw(st.from_regex(TOKENS[name], fullmatch=True))

    redacted = Redactor().text(f"{before}{secret}{after}")

    assert REMOVED in redacted
    assert leaks(secret, redacted, f"{before}{after}{TOKENS[name]}") == []


@pytest.mark.parametrize("name", LINES)
@REPEATABLE
@given(data=st.data(), before=AROUND, after=AROUND)
def test_a_secret_never_survives_in_its_line(name, data, before, after):
    """A value that its line announces as a secret is removed, whatever the other lines are."""
    line = data.draw(st.from_regex(LINES[name], fullmatch=True))
    secret = line.removesuffix(";EndpointSuffix=core").rstrip('"')[-20:]

    redacted = Redactor().text(f"{before}\n{line}\n{after}")

    assert REMOVED in redacted
    assert leaks(secret, redacted, before + after) == []


NOT_SECRET = (
    "gpu1:1234:1240 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
    "gpu1:1234:1240 [3] NCCL INFO comm 0x55d0c8a7b2c0 rank 3 nranks 8 cudaDev 3 busId 9b000 - Init COMPLETE",
    "gpu1:1234:1240 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA",
    "NCCL_IB_HCA=mlx5_0,mlx5_1 NCCL_SOCKET_IFNAME=eth0 NCCL_ASYNC_ERROR_HANDLING=1",
    "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-3f2c1d4e-8b7a-4c5d-9e6f-0a1b2c3d4e5f)",
    "MIG 1g.10gb Device 0: (UUID: MIG-41b3f2a0-1c2d-5e6f-8a9b-0c1d2e3f4a5b)",
    "Digest: sha256:9b2f0c9b5d6b3f0e8f3e1c7d2a4b6c8d0e1f2a3b4c5d6e7f8091a2b3c4d5e6f7",
    "image registry.example:5000/team/train@sha256:9b2f0c9b5d6b3f0e8f3e1c7d2a4b6c8d0e1f2a3b4c5d6e7f8091a2b3c4d5e6f7",
    "HEAD is now at 3f9d2c1b0a4e5d6c7b8a99887766554433221100 Train on eight nodes",
    "0123456789abcdef0123456789abcdef01234567 refs/heads/main",
    "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQC7vbqajDhA1l9PZ6m4s0k3nWm0c9Xq2Yb1 root@gpu1",
    "gpu1 ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBEmKSENjQEezOmxkZMy7opKgwFB9nkt5",
    "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE\n-----END PUBLIC KEY-----",
    "-----BEGIN CERTIFICATE-----\nMIIBszCCAVmgAwIBAgIUAbCdEf\n-----END CERTIFICATE-----",
    "-----BEGIN PGP PUBLIC KEY BLOCK-----\nmQINBFit2ioBEADhWpZ8wvZ6hUTiXOwQ\n-----END PGP PUBLIC KEY BLOCK-----",
    "certificate-authority-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUJzekNDQVZtZ0F3SUJBZ0lV",
    "client-certificate-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUJzekNDQVZtZ0F3SUJBZ0lV",
    "PublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=",
    "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kdzmrj2ksqqqqqq",
    "downloading hf-internal-testing/tiny-random-bert and npm-run-all-something-long",
    "epoch 3: loss=0.123 lr=1e-4 tokens/s=48213 max_tokens=4096 pad_token_id=0",
    "2026-11-23T14:12:01.123456Z level=info msg=pulled size=123456789",
    "0000:9b:00.0 fe80::0200:5eff:fe00:5213 uverbs0 sysfs=/sys/class/infiniband/mlx5_0",
)  # fmt: skip


@pytest.mark.parametrize("text", NOT_SECRET)
def test_ordinary_output_is_unchanged(text):
    """NCCL's log, identifiers of GPUs and images, commits, public keys and certificates are not secret."""
    assert Redactor().text(text) == text


@REPEATABLE
@given(uuid=st.uuids(), digest=st.binary(min_size=32, max_size=32), commit=st.binary(min_size=20, max_size=20))
def test_identifiers_and_public_keys_are_unchanged(uuid, digest, commit):
    """No UUID, digest, commit or public key is mistaken for a secret."""
    key = base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0 " + digest).decode()
    text = f"GPU-{uuid} {uuid}\nr.example:5000/t@sha256:{digest.hex()}\n{commit.hex()} main\ngpu1 ssh-ed25519 {key}\n"
    text += f"SHA256:{base64.b64encode(digest).decode().rstrip('=')} root@gpu1 (ED25519)\n"

    assert Redactor().text(text) == text


LONG = """
from provision.report.redaction import Redactor
for fragment in {fragments!r}:
    Redactor().text(fragment * ({size} // len(fragment)))
"""


def test_the_time_is_linear():
    """A long text that almost looks like a secret in every place takes no longer than other text.

    All of these texts take a few seconds of CPU time; with quadratic time, each takes a minute.
    """
    code = LONG.format(fragments=FRAGMENTS, size=60_000)

    def limit():
        resource.setrlimit(resource.RLIMIT_CPU, (10, 10))

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, preexec_fn=limit, check=False)

    assert (done.returncode, done.stderr) == (0, "")
