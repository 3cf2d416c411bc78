"""``init --replace-key``: the key of a reinstalled node is replaced after approval, wholly or not at all."""

from __future__ import annotations

import shutil
import subprocess

import paramiko
import pytest

from provision.cli.init import _Person
from provision.errors import ConnectionFailed, InventoryError, UsageError
from provision.inventory.init import InitRequest
from provision.inventory.replace import replace_keys
from provision.inventory.trust import KeySource
from tests.support.ssh_server import ssh_server

ARGUMENTS = """-o 'UserKnownHostsFile="{{ inventory_dir }}/known_hosts.txt"' -o StrictHostKeyChecking=yes -F none"""


class Answers:
    """A person who approves what is shown, or raises."""

    def __init__(self, refusal=None):
        self.refusal, self.seen = refusal, []

    def step(self, message):
        """Say nothing."""

    def approve_changes(self, changes):
        """Remember and answer."""
        self.seen = list(changes)
        if self.refusal:
            raise self.refusal


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    for name in ("old", "new", "other"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", folder / name], check=True)
    return folder


@pytest.fixture
def port(keys):
    """An SSH server that shows the new key."""

    def transport_of(peer):
        transport = paramiko.Transport(peer)
        transport.add_server_key(paramiko.PKey.from_path(keys / "new"))
        return transport

    with ssh_server(transport_of, paramiko.ServerInterface) as port:
        yield port


def line(keys, name, host, comment):
    """A line of known_hosts."""
    return f"{host} {' '.join((keys / f'{name}.pub').read_text().split()[:2])} {comment}\n"


def fingerprint(keys, name):
    """As ssh-keygen prints it."""
    shown = subprocess.run(["ssh-keygen", "-lf", keys / f"{name}.pub"], capture_output=True, text=True, check=True)
    return shown.stdout.split()[1]


@pytest.fixture
def folder(tmp_path, port, keys, monkeypatch):
    """An inventory of two nodes, of which gpu3 was reinstalled."""
    if not shutil.which("ssh-keyscan"):
        pytest.skip("ssh-keyscan is not installed")
    monkeypatch.chdir(tmp_path)
    made = tmp_path / "inventories" / "prod"
    (made / "group_vars").mkdir(parents=True)
    hosts = f"    gpu3: {{ansible_host: 127.0.0.1, ansible_port: {port}}}\n    gpu4: {{ansible_host: 10.0.0.4}}\n"
    (made / "hosts.yml").write_text(f"gpu_nodes:\n  hosts:\n{hosts}")
    (made / "group_vars" / "all.yml").write_text(f"ansible_ssh_common_args: {ARGUMENTS!r}\n".replace("\\'", "''"))
    (made / "known_hosts.txt").write_text(
        "# pinned by init\n"
        + line(keys, "old", f"[127.0.0.1]:{port}", "gpu3")
        + line(keys, "other", "10.0.0.4", "gpu4")
    )
    (made / "known_hosts.txt").chmod(0o640)
    return made


def request(*names, **options):
    return InitRequest(names or ("gpu3",), **options)


def test_an_approved_key_replaces_the_old_one(folder, keys, port):
    """Other lines, the order and the file's mode stay; nothing else is left in the folder."""
    person = Answers()
    before = sorted(path.name for path in folder.iterdir())

    (change,) = replace_keys(request(), person).keys

    assert ([key.fingerprint for key in change.old], change.new.fingerprint) == (
        [fingerprint(keys, "old")],
        fingerprint(keys, "new"),
    )
    assert (folder / "known_hosts.txt").read_text() == (
        "# pinned by init\n"
        + line(keys, "new", f"[127.0.0.1]:{port}", "gpu3")
        + line(keys, "other", "10.0.0.4", "gpu4")
    )
    assert (folder / "known_hosts.txt").stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in folder.iterdir()) == before
    assert [change.source for change in person.seen] == [KeySource.NEW]


def test_a_refusal_does_not_change_the_file(folder):
    before = (folder / "known_hosts.txt").read_bytes()

    with pytest.raises(UsageError, match="no"):
        replace_keys(request(), Answers(UsageError("no")))

    assert (folder / "known_hosts.txt").read_bytes() == before


@pytest.mark.parametrize("yes", [False, True])
def test_without_a_terminal_a_key_is_not_approved(folder, keys, capsys, yes):
    """A changed key is what an attack looks like: both fingerprints are shown, and the expected one has to be given."""
    before = (folder / "known_hosts.txt").read_bytes()

    with pytest.raises(UsageError) as caught:
        replace_keys(request(), _Person(yes=yes))

    shown = capsys.readouterr().err
    assert fingerprint(keys, "old") in shown
    assert fingerprint(keys, "new") in shown
    assert "--fingerprint gpu3=SHA256:" in caught.value.remedy
    assert (folder / "known_hosts.txt").read_bytes() == before


def test_the_expected_fingerprint_approves_the_key(folder, keys):
    """No question is asked, and none is needed."""
    replace_keys(request(fingerprints=(fingerprint(keys, "new"),)), _Person(yes=False))

    assert (keys / "new.pub").read_text().split()[1] in (folder / "known_hosts.txt").read_text()


def test_an_unexpected_key_is_refused(folder, keys):
    """The message has both fingerprints; nothing is written."""
    before = (folder / "known_hosts.txt").read_bytes()

    with pytest.raises(ConnectionFailed) as caught:
        replace_keys(request(fingerprints=(f"gpu3={fingerprint(keys, 'other')}",)), _Person(yes=True))

    assert fingerprint(keys, "other") in caught.value.message
    assert fingerprint(keys, "new") in caught.value.message
    assert (folder / "known_hosts.txt").read_bytes() == before


def test_an_unchanged_key_is_reported_and_nothing_is_written(folder):
    replace_keys(request(), Answers())
    before = (folder / "known_hosts.txt").stat()
    person = Answers()

    (change,) = replace_keys(request(), person).keys

    assert (change.changed, person.seen) == (False, [])
    assert (folder / "known_hosts.txt").stat().st_ino == before.st_ino


def test_the_key_of_another_node_is_reported(folder, keys, port):
    """After a swap of addresses a node shows its neighbour's key."""
    file = folder / "known_hosts.txt"
    file.write_text(line(keys, "old", f"[127.0.0.1]:{port}", "gpu3") + line(keys, "new", "10.0.0.4", "gpu4"))
    person = Answers()

    replace_keys(request(), person)

    assert person.seen[0].others == ("gpu4",)


def test_lines_written_by_ssh_are_replaced(folder, keys, port):
    """Hashed names, several key types, and a line that has further hosts, which keep their key."""
    file = folder / "known_hosts.txt"
    file.write_text(line(keys, "old", f"[127.0.0.1]:{port}", ""))
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", file], check=True, capture_output=True)
    file.write_text(file.read_text() + line(keys, "other", f"[127.0.0.1]:{port},10.0.0.9", ""))

    replace_keys(request(), Answers())

    assert file.read_text() == (
        line(keys, "new", f"[127.0.0.1]:{port}", "gpu3") + line(keys, "other", "10.0.0.9", "").rstrip() + "\n"
    )


def test_a_pattern_with_the_old_key_of_several_hosts_is_refused(folder, keys):
    """Its line is named, and nothing is written."""
    file = folder / "known_hosts.txt"
    file.write_text(line(keys, "old", "[127.0.0.*]:*", ""))

    with pytest.raises(InventoryError, match=r"known_hosts\.txt:1: the pattern"):
        replace_keys(request(), Answers())

    assert file.read_text() == line(keys, "old", "[127.0.0.*]:*", "")


@pytest.mark.parametrize(
    ("names", "fingerprints", "says"),
    [
        (("gpu9",), (), "has no host gpu9"),
        (("gpu3=10.0.0.3",), (), "has an address"),
        (("gpu3",), ("MD5:aa:bb",), "not a SHA256 fingerprint"),
        (("gpu3",), ("gpu4=SHA256:x",), "must name one of the nodes gpu3"),
        (("gpu3", "gpu4"), ("SHA256:x",), "must name one of the nodes gpu3, gpu4"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_invalid_arguments_are_refused_before_connecting(names, fingerprints, says):
    with pytest.raises(UsageError, match=says):
        replace_keys(request(*names, fingerprints=fingerprints), Answers())


def test_an_inventory_without_a_known_hosts_file_is_refused(folder):
    """Our command changes no known_hosts file outside of the inventory's settings."""
    (folder / "group_vars" / "all.yml").write_text("cluster_name: prod\n")

    with pytest.raises(InventoryError, match="sets no known_hosts file for gpu3"):
        replace_keys(request(), Answers())
