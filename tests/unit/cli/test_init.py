import base64
from pathlib import Path

import pytest
import yaml

from provision.cli.init import _Person, init
from provision.errors import UsageError
from provision.inventory.hostkeys import HostKey, Target
from provision.inventory.init import key_file
from provision.inventory.trust import KeySource, PinnedKey
from provision.model import Connection


def pinned(source, name="gpu1", blob=b"a"):
    """A node with a host key."""
    target = Target(name, Connection("10.0.0.1"), "10.0.0.1", 22, "root", names=("10.0.0.1",))
    return PinnedKey(target, HostKey("ssh-ed25519", base64.b64encode(blob).decode()), source)


def test_without_a_terminal_new_keys_are_shown_and_refused(capsys):
    """Without a terminal no one can compare a fingerprint, so the key is not trusted."""
    key = pinned(KeySource.NEW)

    with pytest.raises(UsageError) as caught:
        _Person(yes=False).approve([key])

    assert caught.value.exit_code == 2
    assert key.key.fingerprint in capsys.readouterr().err


@pytest.mark.parametrize(("source", "yes"), [(KeySource.NEW, True), (KeySource.KNOWN, False), (KeySource.FILE, False)])
def test_keys_are_shown_without_a_question(capsys, source, yes):
    """--yes approves what it prints; keys that are vouched for need no question; all are shown."""
    key = pinned(source)

    _Person(yes=yes).approve([key])

    assert key.key.fingerprint in capsys.readouterr().err


def test_machines_with_the_same_host_key_get_a_warning(capsys):
    """Copies of one image can pose as each other."""
    _Person(yes=True).approve([pinned(KeySource.NEW, "a"), pinned(KeySource.NEW, "b")])

    assert "a, b show the same host key" in capsys.readouterr().err


def test_add_and_remove_exclude_each_other():
    """Both at once is refused before any node is contacted."""
    with pytest.raises(UsageError, match="exclude each other"):
        init(["gpu1"], add=True, remove=True)


def test_a_private_key_readable_by_others_is_refused_before_writing(tmp_path):
    """No SSH client would use it: every later verb would fail."""
    key = tmp_path / "key"
    key.write_text("")
    key.chmod(0o777)

    with pytest.raises(UsageError, match=r"other users may read it \(mode 0777\)") as caught:
        key_file(key)

    assert caught.value.remedy == f"Restrict it to its owner: chmod 600 {key}"


def test_replace_key_excludes_other_options():
    """Its options belong to it."""
    with pytest.raises(UsageError, match="--add and --replace-key exclude each other"):
        init(["gpu1"], add=True, replace_key=True)
    with pytest.raises(UsageError, match="--fingerprint belongs to --replace-key"):
        init(["gpu1"], fingerprint=["SHA256:x"])


BLOB = "AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"


def test_default_settings_contain_the_repository_of_the_container_toolkit(typed, tmp_path, monkeypatch):
    """NVIDIA's repository with its key; the image, which has no default, is named as what is missing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys").write_text(f"[127.0.0.1]:1 ssh-ed25519 {BLOB}\n")
    words = ("gpu1=127.0.0.1:1", "--user", "root", "--known-hosts", "keys")

    code, _, err = typed("init", *words, "--name", "bare")
    assert code == 0
    assert "--image IMAGE" in err
    code, _, err = typed("init", *words, "--name", "prod", "--image", "r.example.com/train:1")
    assert code == 0
    assert "--image IMAGE" not in err
    written = yaml.safe_load((tmp_path / "inventories/prod/group_vars/all.yml").read_text())
    assert written["nvidia_container_repository_uri"].startswith("https://nvidia.github.io/libnvidia-container/")
    assert "BEGIN PGP PUBLIC KEY BLOCK" in written["nvidia_container_repository_key"]
    assert written["training_image_reference"] == "r.example.com/train:1"


def test_the_inventory_is_used_without_i(typed, tmp_path, monkeypatch):
    """In a folder that contains only what `init` wrote."""
    (tmp_path / "keys").write_text(f"[127.0.0.1]:1 ssh-ed25519 {BLOB}\n")
    monkeypatch.delenv("PROVISION_INVENTORY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "site").mkdir()
    monkeypatch.chdir(tmp_path / "site")
    assert typed("init", "gpu1=127.0.0.1:1", "--user", "root", "--known-hosts", "../keys", "--name", "prod")[0] == 0

    assert [path.name for path in Path.cwd().iterdir()] == ["inventories"]
    code, _, err = typed("node", "label", "gpu1", "rack=a")
    assert code == 0, err
    assert any("rack: a" in file.read_text() for file in Path("inventories/prod").rglob("*.yml"))
