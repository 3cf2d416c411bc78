"""``provision adopt`` on the command line writes pre-existing configuration to the inventory, once, and no more."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from provision.cli.main import main
from provision.errors import ConnectionFailed, ProvisionError
from provision.inventory import load
from provision.inventory.record import Addition, additions, record
from provision.model import Cluster
from provision.testing import make_cluster, make_node
from provision.workflow import plan
from tests.unit.checks.conftest import healthy
from tests.unit.planning.test_preservation import DEEPOPS, site

HOSTS = "gpu_nodes: {hosts: {gpu1: {}, gpu2: {}, gpu3: {docker_engine_log_driver: json-file}}}\n"
COMMON = "---\n# ours\ntraining_image_reference: r:5000/t:1\n"
SYSTEM = dataclasses.replace(healthy().system, python3="/usr/bin/python3")


@pytest.fixture
def inventory(tmp_path, monkeypatch):
    """Three nodes, of which the second one's docker has another data root, and the third one's logs are asked for."""
    folder = tmp_path / "prod"
    (folder / "group_vars").mkdir(parents=True)
    (folder / "hosts.yml").write_text(HOSTS)
    (folder / "group_vars/all.yml").write_text(COMMON)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def known(inventory, monkeypatch):
    """The inventory as it is read, without asking Ansible, which takes its time."""
    own = {"gpu3": {"docker_engine_log_driver": "json-file"}}
    nodes = tuple(
        make_node(f"gpu{n}", training_image_reference="r:5000/t:1", **own.get(f"gpu{n}", {})) for n in (1, 2, 3)
    )
    cluster = Cluster("prod", inventory, nodes)
    monkeypatch.setattr("provision.inventory.load", lambda *_a, **_k: cluster)
    return cluster


@pytest.fixture
def adopt(inventory, monkeypatch, capsys):
    """Run the verb on nodes that look as given; return exit code, stdout and stderr."""
    other = site({**DEEPOPS, "data-root": "/data"}, system=SYSTEM)
    usual = {"gpu1": site(system=SYSTEM), "gpu2": other, "gpu3": site(system=SYSTEM)}

    def call(*words, **seen):
        monkeypatch.setattr(plan, "probe", lambda nodes, **_: {n.name: {**usual, **seen}[n.name] for n in nodes})
        with pytest.raises(SystemExit) as stopped:
            main(["adopt", "-i", str(inventory), *words])
        out, err = capsys.readouterr()
        return stopped.value.code, out, err

    return call


def files(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_existing_settings_are_recorded_once_for_all_nodes_or_per_node(adopt, inventory):
    """What is alike for all nodes, and the rest for each; what the inventory says already stays asked for."""
    before = load(inventory)
    code, out, _ = adopt("--yes", "--json")
    done, after = json.loads(out), load(inventory)
    again = adopt("--json")

    assert (code, done["written"]) == (0, True)
    assert [Path(file["path"]).name for file in done["files"]] == ["all.yml", "gpu1.yml", "gpu2.yml", "gpu3.yml"]
    assert (
        (inventory / "group_vars/all.yml")
        .read_text()
        .startswith(COMMON + "\n# Pre-existing configuration of the nodes")
    )
    for node in after.nodes:
        added = {key: value for key, value in node.variables.items() if key not in before.node(node.name).variables}
        assert added == next(
            node_document["record"] for node_document in done["nodes"] if node_document["name"] == node.name
        )
    assert after.node("gpu2").variables["docker_engine_data_root"] == "/data"
    assert after.node("gpu1").variables["docker_engine_log_driver"] == "journald"
    assert after.node("gpu3").variables["docker_engine_log_driver"] == "json-file"
    assert (again[0], json.loads(again[1])["files"]) == (0, [])


@pytest.mark.usefixtures("known")
def test_settings_are_listed_before_they_are_recorded(adopt, inventory):
    """Without an answer nothing is written; a dry run asks nothing."""
    before = files(inventory)
    code, out, err = adopt()
    dry = adopt("--dry-run")

    assert (code, out) == (2, "")
    assert (
        "gpu1, gpu2, gpu3\n  pre-existing: MLNX_OFED_LINUX-23.07-0.5.1.2\n  pre-existing: the module nvidia_peermem"
        in err
    )
    assert "add to prod/group_vars/all.yml:\n  rdma_stack_source: present\n" in err
    assert "--yes" in err
    assert dry[0] == 0
    assert dry[1].strip() in err
    assert max(map(len, dry[1].splitlines())) <= 80
    assert files(inventory) == before


@pytest.mark.usefixtures("known")
def test_an_unreachable_node_gets_no_settings_and_the_others_per_node_settings(adopt):
    """Nothing is said of all nodes then: it may be bare."""
    lost = ConnectionFailed("no route to host", node="gpu2", remedy="Is it on?")
    code, out, _ = adopt("--dry-run", gpu2=lost)

    assert code == 1
    assert "gpu2\n  unreachable: no route to host\n  hint: Is it on?" in out
    assert "group_vars" not in out
    assert "host_vars/gpu2" not in out
    assert "add to prod/host_vars/gpu3.yml:" in out


@pytest.mark.usefixtures("known")
def test_with_limit_no_settings_are_recorded_for_other_nodes(adopt):
    _, out, _ = adopt("--dry-run", "--limit", "gpu1", "--json")

    assert [Path(file["path"]).parts[-2:] for file in json.loads(out)["files"]] == [("host_vars", "gpu1.yml")]


def test_settings_are_written_to_files_that_ansible_reads(tmp_path):
    """It takes the first that it finds: a new all.yml beside a folder all would never be read."""
    (tmp_path / "group_vars/all").mkdir(parents=True)
    (tmp_path / "host_vars").mkdir()
    (tmp_path / "host_vars/b.yaml").write_text("x: 1\n")
    cluster = Cluster("c", tmp_path / "hosts.ini", (make_node("a"), make_node("b")))

    parts = additions(cluster, {"a": {"same": 1, "own": 2}, "b": {"same": 1, "own": 3}})

    assert [(str(part.file.relative_to(tmp_path)), dict(part.variables)) for part in parts] == [
        ("group_vars/all/adopted.yml", {"same": 1}),
        ("host_vars/a.yml", {"own": 2}),
        ("host_vars/b.yaml", {"own": 3}),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("$ANSIBLE_VAULT;1.1;AES256\n6162\n", "is encrypted or in braces"),
        ("{training_image_reference: x}\n", "is encrypted or in braces"),
        ("docker_engine_source: docker\n", "do not have the intended values"),
    ],
)
def test_no_file_is_changed_if_a_setting_cannot_be_added(inventory, known, monkeypatch, text, why):
    """And the lines are shown, for who adds them by hand."""
    cluster = known
    monkeypatch.setattr("provision.inventory.record.load", lambda *_a, **_k: known)
    (inventory / "group_vars/all.yml").write_text(text)
    before = files(inventory)
    parts = (
        Addition(inventory / "host_vars/gpu1.yml", "gpu1", {"docker_engine_log_max_files": 5}),
        Addition(inventory / "group_vars/all.yml", None, {"docker_engine_source": "present"}),
    )

    with pytest.raises(ProvisionError) as error:
        record(cluster, parts)

    assert why in str(error.value)
    assert files(inventory) == before
    assert not (inventory / "host_vars").exists()
    assert "docker_engine_source: present" in error.value.remedy or "docker_engine_log" in error.value.remedy


def test_common_settings_require_that_all_nodes_are_probed():
    cluster = make_cluster("a", "b")

    assert [part.node for part in additions(cluster, {"a": {"x": 1}})] == ["a"]
    assert [part.node for part in additions(cluster, {"a": {"x": 1}, "b": {"x": 1}})] == [None]
    assert additions(cluster, {"a": {}, "b": {}}) == ()
