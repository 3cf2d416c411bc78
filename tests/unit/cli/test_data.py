"""``provision data`` and ``provision secret`` as they are typed."""

from __future__ import annotations

import io
import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from provision.batch.data import as_entry, new_volume
from provision.cli.main import main
from provision.errors import ProvisionError
from provision.model import Cluster
from provision.model.job import CodeSource
from provision.testing import make_node
from provision.workflow.stored_secrets import registry_credential, secrets_for, sync_credential

MARKER = "m4rker-passw0rd"


@pytest.fixture
def typed(capsys, monkeypatch, tmp_path):
    """Run a command with something on standard input; return exit code, stdout and stderr."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def run(*words, typing=""):
        monkeypatch.setattr("sys.stdin", io.StringIO(typing))
        with pytest.raises(SystemExit) as stopped:
            main(list(words))
        said = capsys.readouterr()
        return stopped.value.code, said.out, said.err

    return run


@pytest.fixture
def volumes(tmp_path, monkeypatch):
    """This machine as a node, with a volume that it has and one that it has not."""
    (tmp_path / "here").mkdir()
    here = new_volume("here", "path", str(tmp_path / "here"), description="a text " * 9, owner="alice")
    gone = new_volume("gone", "nfs", "nas:/x", str(tmp_path / "gone"))
    node = replace(
        make_node("gpu1", local=True), variables={"cluster_data": {v.name: as_entry(v) for v in (here, gone)}}
    )
    cluster = Cluster("c", Path("hosts.yml"), (node,))
    monkeypatch.setattr("provision.cli.common.inventory_from", lambda *_: Path("hosts.yml"))
    monkeypatch.setattr("provision.inventory.load", lambda *_a, **_k: cluster)


@pytest.mark.row(26)
@pytest.mark.usefixtures("volumes")
def test_the_list_has_the_columns_of_arena_and_hides_unavailable_volumes(typed):
    """What no node has is hidden, and said; -a shows it."""
    code, out, err = typed("data", "list")
    _, every, _ = typed("data", "list", "-a")

    assert code == 0
    assert out.split("\n")[0].split() == ["NAME", "ACCESSMODE", "DESCRIPTION", "OWNER", "AGE"]
    assert "here" in out
    assert "gone" not in out
    assert "1 more" in err
    assert "gone  ReadWriteMany" in every
    assert max(map(len, every.splitlines())) <= 80


@pytest.mark.row(25)
@pytest.mark.usefixtures("volumes")
def test_check_reports_problems_with_remedies(typed):
    """With exit code 1; a volume that is fine has 0."""
    code, out, err = typed("data", "check", "--json")
    document = json.loads(out)

    assert (code, document["ok"]) == (1, False)
    assert [volume["usable"] for volume in document["volumes"]] == [True, False]
    assert "is not mounted" in document["volumes"][1]["findings"][0]["problem"]
    assert typed("data", "check", "here")[0] == 0
    assert typed("data", "check", "none")[0] == 2
    assert "mount -t nfs nas:/x" in typed("data", "check")[2]
    assert err == ""


@pytest.mark.usefixtures("volumes")
def test_verify_fails_on_a_node_where_a_volume_is_not_mounted(typed):
    """With the volume and the remedy; nodes are not asked where the inventory names no volume."""
    document = json.loads(typed("verify", "--json")[1])
    (node,) = document["nodes"]
    checks = {check["id"]: check for check in node["checks"]}

    assert checks["node.data"]["status"] == "fail"
    assert "gone" in checks["node.data"]["reason"]
    assert "mount -t nfs nas:/x" in checks["node.data"]["remedy"]
    assert {check["id"]: check["status"] for check in document["cluster"]}["cluster.data"] == "pass"


def test_adding_a_volume_explains_how_to_mount_it(typed, tmp_path):
    """And how to mount it."""
    folder = tmp_path / "inventories" / "c"
    folder.mkdir(parents=True)
    (folder / "hosts.yml").write_text("all:\n  hosts:\n    gpu1: {ansible_connection: local}\n")
    code, _, err = typed("data", "add", "x", "--nfs", "nas:/x", "--ro", "-i", str(folder))

    assert code == 0, err
    assert "no node was changed" in err
    assert "nas:/x /mnt/x nfs ro,_netdev 0 0" in err
    assert "provision data check x" in err


@pytest.mark.usefixtures("volumes")
def test_a_volume_has_exactly_one_source(typed):
    """Not two kinds, and not none."""
    code, _, err = typed("data", "add", "x", "--nfs", "a:/b", "--path", "/c")

    assert code == 2
    assert "one of --nfs" in err


def test_credentials_are_stored_for_one_server_and_never_shown(typed, tmp_path):
    """In a file that other users cannot read; another server gets nothing."""
    typed("secret", "set", "git", "--server", "git.example.com", "--username", "alice", typing=MARKER + "\n")
    code, out, err = typed("secret", "list", "--json")
    (file,) = (tmp_path / "state/provision/secrets").iterdir()

    assert code == 0
    assert json.loads(out)["secrets"][0] | {"changed": ""} == {
        "kind": "git",
        "server": "git.example.com",
        "username": "alice",
        "changed": "",
    }
    assert MARKER not in out + err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert secrets_for("git", "git.example.com") == {"username": "alice", "password": MARKER}
    login = sync_credential(CodeSource("git", "https://git.example.com/a/b.git"), {})
    assert login == {"GIT_SYNC_USERNAME": "alice", "GIT_SYNC_PASSWORD": MARKER}
    assert sync_credential(CodeSource("git", "https://git.example.com.evil.org/b.git"), {}) == {}
    assert sync_credential(CodeSource("git", "https://git.example.com@evil.org/b.git"), {}) == {}
    given = {"GIT_SYNC_PASSWORD": "other"}
    assert sync_credential(CodeSource("git", "https://git.example.com/b.git"), given) == given
    file.chmod(0o644)
    with pytest.raises(ProvisionError, match="can be read by others"):
        secrets_for("git", "git.example.com")


def test_registry_credentials_are_selected_by_the_image_name(typed):
    """Without a registry in it, docker means its own hub."""
    for server in ("registry.example.com:5000", "docker.io"):
        typed("secret", "set", "registry", "--server", server, "--username", "robot", typing=f"{server}-{MARKER}")

    assert registry_credential("registry.example.com:5000/a/b:1")["password"] == f"registry.example.com:5000-{MARKER}"
    assert registry_credential("library/busybox")["server"] == "docker.io"
    assert registry_credential("other.example.com/b") == {}
    assert typed("secret", "rm", "registry", "--server", "docker.io")[0] == 0
    assert registry_credential("busybox") == {}
    assert typed("secret", "rm", "registry", "--server", "docker.io")[0] == 3


@pytest.mark.parametrize(
    "words",
    [("set", "ssh", "--server", "h"), ("set", "git", "--server", "../../x"), ("set", "git", "--server", "h")],
)
def test_an_invalid_secret_is_refused(typed, words):
    """An unknown kind, a path for a server, and nothing on standard input."""
    assert typed("secret", *words)[0] == 2
