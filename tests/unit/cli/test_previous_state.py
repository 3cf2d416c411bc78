"""The inventory, and the files of the state and cache folders, that the previous version wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision import cache_files
from provision.documents.locks import entries_of
from provision.inventory import load
from provision.lab import state as lab_state
from provision.launchers.placement_file import read_placement
from provision.model import Cluster
from provision.node.lock.state import entries
from provision.workflow import benchmark_files, history, job_names, plan, stored_secrets
from provision.workflow.drain_record import DrainRecord
from provision.workflow.inventory_state import identity
from tests.support.previous_version import STATE, private_copy


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The cluster of the recorded inventory; files about it have the name of its new path."""
    home = private_copy(STATE / "controller", tmp_path / "home")
    for name in ("state", "cache", "config"):
        monkeypatch.setenv(f"XDG_{name.upper()}_HOME", str(home / name))
    monkeypatch.delenv("PROVISION_INVENTORY", raising=False)
    monkeypatch.chdir(home)
    loaded = load(Path("inventories/prod"))
    names = {
        "state/provision/history": identity(loaded),
        "state/provision/drained": identity(loaded),
        "cache/provision/job-names": cache_files.inventory_key(loaded.inventory),
    }
    for folder, name in names.items():
        (old,) = (home / folder).iterdir()
        old.rename(old.with_name(name + old.suffix))
    return loaded


def test_the_inventory_of_the_previous_version_loads(cluster: Cluster) -> None:
    """With its nodes, login, image and repository."""
    variables = cluster.node("gpu1").variables

    assert {node.name: (node.connection.host, node.connection.user) for node in cluster.nodes} == {
        "gpu1": ("192.0.2.1", "root"),
        "gpu2": ("192.0.2.2", "root"),
    }
    assert variables["training_image_reference"] == "registry.example.com/team/train:1"
    assert variables["nvidia_container_repository_uri"].startswith("https://")


def test_records_of_the_previous_version_are_read(cluster: Cluster) -> None:
    """History, drained nodes, labs, benchmarks, credentials and names of jobs."""
    (benchmark,) = benchmark_files.stored_records()
    lab = lab_state.load_spec(lab_state.lab_folder("demo"))

    assert [(entry.status, entry.host) for entry in history.read(cluster)] == [("ok", "ops1"), ("running", "ops1")]
    assert DrainRecord(cluster).nodes["gpu2"]["kind"] == "slurm"
    assert (benchmark.name, benchmark.nodes[0].gpus, benchmark.environment["TOKEN"]) == ("vgg16", "4x SIMULATED", None)
    assert stored_secrets.secrets_for("git", "git.example.com")["username"] == "reader"
    assert lab is not None
    assert (lab.nodes, lab.packages) == (2, ("docker.io",))
    assert job_names.known_job_names(cluster.inventory) == ["running", "succeeded"]


def test_files_of_the_previous_version_that_commands_take_are_read(cluster: Cluster) -> None:
    """A placement for `run`, a saved plan for `apply`, and the history of a node."""
    (node,) = read_placement(Path("placement.json").read_text())
    saved, request = plan.read_saved(Path("change.plan"))
    (applied,) = entries_of(entries(str(STATE / "node/history.jsonl"))[0])

    assert (node.node, [rank.gpus for rank in node.ranks]) == ("gpu1", [("0",), ("1",), ("2",), ("3",)])
    assert (set(saved.digests), request) == ({node.name for node in cluster.nodes}, plan.Request())
    assert (applied.status, applied.command, applied.roles) == ("changed", "provision apply", ("base_system",))


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("history --local", "provision apply --yes"),
        ("bench list", "vgg16"),
        ("secret list", "git.example.com"),
        ("lab list", "demo"),
    ],
)
def test_verbs_show_records_of_the_previous_version(typed, line: str, word: str) -> None:
    code, out, err = typed(*line.split())

    assert code == 0, err
    assert word in out
