"""SSHSIG signatures: made and verified as ``ssh-keygen -Y`` does."""

import base64
import subprocess

import pytest

from provision.connectors import ssh_signatures
from provision.connectors.ssh_signatures import InvalidSignature, SigningKey, armour, sign, signer
from provision.errors import ProvisionError, UsageError

NAMESPACE = "provision-job"
DATA = b'{"version":1,"name":"train"}'
KINDS = {"ed25519": ["-t", "ed25519"], "ecdsa": ["-t", "ecdsa", "-b", "384"], "rsa": ["-t", "rsa", "-b", "2048"]}


@pytest.fixture(autouse=True)
def empty_home(tmp_path, monkeypatch):
    """Run as a user without SSH agent and keys."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.delenv(ssh_signatures.KEY_VARIABLE, raising=False)


def keygen(*words, data=b""):
    return subprocess.run(["ssh-keygen", "-q", *map(str, words)], input=data, check=True, capture_output=True).stdout


def make_key(path, kind="ed25519", passphrase=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    keygen(*KINDS[kind], "-N", passphrase, "-C", "a comment", "-f", path)
    return " ".join(path.with_name(path.name + ".pub").read_text().split()[:2])


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """A real SSH agent; returns a function that adds a key."""
    socket = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.PIPE)
    process.stdout.readline()
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    yield lambda path: subprocess.run(["ssh-add", "-q", str(path)], check=True)
    process.terminate()
    process.wait()


def verified_by_openssh(tmp_path, public, signature, data=DATA, namespace=NAMESPACE):
    (tmp_path / "signers").write_text(f"alice {public}\n")
    (tmp_path / "signature").write_text(armour(signature))
    words = ["ssh-keygen", "-Y", "verify", "-f", tmp_path / "signers", "-I", "alice", "-n", namespace]
    done = subprocess.run([*words, "-s", tmp_path / "signature"], input=data, capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.parametrize("kind", KINDS)
def test_openssh_verifies_our_signatures(tmp_path, monkeypatch, kind):
    """A signature made here is valid for ``ssh-keygen -Y verify``, and for this data and namespace only."""
    public = make_key(tmp_path / "key", kind)
    monkeypatch.setenv(ssh_signatures.KEY_VARIABLE, str(tmp_path / "key"))
    key = ssh_signatures.choose_signing_key([], tmp_path / "own")

    signature = sign(DATA, key, NAMESPACE)

    assert key.public == public
    assert verified_by_openssh(tmp_path, public, signature)
    assert not verified_by_openssh(tmp_path, public, signature, DATA + b" ")
    assert not verified_by_openssh(tmp_path, public, signature, namespace="file")
    assert signer(DATA, signature, NAMESPACE) == public


@pytest.mark.parametrize("kind", KINDS)
def test_signatures_of_openssh_are_verified(tmp_path, kind):
    """A signature of ``ssh-keygen -Y sign`` is accepted; other data, another namespace and a changed byte are not."""
    public = make_key(tmp_path / "key", kind)
    armoured = keygen("-Y", "sign", "-f", tmp_path / "key", "-n", NAMESPACE, data=DATA).decode()
    signature = "".join(armoured.splitlines()[1:-1])
    blob = bytearray(base64.b64decode(signature))
    blob[-1] ^= 1

    assert signer(DATA, signature, NAMESPACE) == public
    for data, text, namespace in (
        (DATA + b" ", signature, NAMESPACE),
        (DATA, signature, "file"),
        (DATA, base64.b64encode(blob).decode(), NAMESPACE),
    ):
        with pytest.raises(InvalidSignature):
            signer(data, text, namespace)


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_of_the_ssh_agent_can_sign(tmp_path, monkeypatch, agent, kind):
    """PROVISION_SIGNING_KEY may name a .pub file whose key the SSH agent holds; the private file is not needed."""
    public = make_key(tmp_path / "key", kind)
    agent(tmp_path / "key")
    (tmp_path / "key").unlink()
    monkeypatch.setenv(ssh_signatures.KEY_VARIABLE, str(tmp_path / "key.pub"))

    signature = sign(DATA, ssh_signatures.choose_signing_key([], tmp_path / "own"), NAMESPACE)

    assert verified_by_openssh(tmp_path, public, signature)
    assert signer(DATA, signature, NAMESPACE) == public


def test_a_key_of_the_inventory_takes_precedence_over_the_generated_key(tmp_path, agent):
    """A listed key of the agent or of ~/.ssh signs, so that its owner needs no further entry in the inventory."""
    in_file = make_key(tmp_path / ".ssh/id_ecdsa", "ecdsa")
    in_agent = make_key(tmp_path / "elsewhere")
    agent(tmp_path / "elsewhere")

    def chosen(*listed):
        return ssh_signatures.choose_signing_key(listed, tmp_path / "own").public

    assert chosen(in_file) == in_file
    assert chosen(in_agent) == in_agent
    assert chosen("ssh-ed25519 AAAA") not in {in_file, in_agent}


def test_the_generated_key_is_created_once_and_readable_by_its_owner_only(tmp_path):
    """Without listed keys an Ed25519 key is made (0600) and used from then on; one that others can read is refused."""
    path = tmp_path / "state/provision/signing_key"

    first = ssh_signatures.choose_signing_key([], path)
    again = ssh_signatures.choose_signing_key([], path)

    assert first.public == again.public
    assert first.public.startswith("ssh-ed25519 ")
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]
    assert keygen("-y", "-f", path).decode().split()[:2] == first.public.split()
    path.chmod(0o640)
    with pytest.raises(ProvisionError) as refused:
        ssh_signatures.choose_signing_key([], path)
    assert "chmod 600" in refused.value.remedy


@pytest.mark.usefixtures("agent")
def test_an_unusable_signing_key_is_an_error_with_a_remedy(tmp_path, monkeypatch):
    """A key that needs a passphrase, is no key, does not exist, or is not in the agent is named; nothing else signs."""
    make_key(tmp_path / "locked", passphrase="secret")
    (tmp_path / "text").write_text("no key")
    for name in ("locked", "locked.pub", "text", "missing", "missing.pub"):
        monkeypatch.setenv(ssh_signatures.KEY_VARIABLE, str(tmp_path / name))
        with pytest.raises(UsageError) as refused:
            ssh_signatures.choose_signing_key([], tmp_path / "own")
        assert str(tmp_path / name) in refused.value.message


def test_malformed_signatures_raise_only_invalid_signature(tmp_path):
    """Text that is no signature, one that is cut off, one with a foreign key type or a weak key: InvalidSignature."""
    make_key(tmp_path / "key")
    good = sign(DATA, ssh_signatures.own_signing_key(tmp_path / "key"), NAMESPACE)
    blob = base64.b64decode(good)
    broken = [
        "", "?", "A", "AAAA", good + "AAAA", good * 100, "\N{SNOWMAN}",
        *(base64.b64encode(blob[:size]).decode() for size in range(len(blob))),
        *(base64.b64encode(blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :]).decode() for at in range(len(blob))),
        base64.b64encode(blob.replace(b"ssh-ed25519", b"ssh-ed25520")).decode(),
    ]  # fmt: skip
    for text in broken:
        with pytest.raises(InvalidSignature):
            signer(DATA, text, NAMESPACE)


def test_short_rsa_keys_are_refused():
    """An RSA key of less than 2048 bits does not count, as for current OpenSSH."""
    import paramiko

    key = SigningKey(paramiko.RSAKey.generate(1024), "a short key")
    with pytest.raises(InvalidSignature, match="2048 bits"):
        signer(DATA, sign(DATA, key, NAMESPACE), NAMESPACE)
