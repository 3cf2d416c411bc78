"""Giving hosts variables of their own, in files that somebody writes in as well."""

from __future__ import annotations

import pytest

from provision.errors import InventoryError
from provision.inventory import load
from provision.inventory.record import set_for_hosts
from provision.model import Cluster
from provision.testing import make_node

HOSTS = "gpu_nodes: {hosts: {gpu1: {cluster_gpu_schedule: default}, gpu2: {}}}\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two nodes; the second one has a file of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = tmp_path / "prod"
    (made / "host_vars").mkdir(parents=True)
    (made / "hosts.yml").write_text(HOSTS)
    (made / "host_vars/gpu2.yml").write_text("# ours\ncluster_labels:\n  rack: r1\n\n# the rest\ncluster_leaf: l1\n")
    return made


def test_a_variable_replaces_its_previous_value(folder):
    """What else is in the file stays as it is written; a host without a file gets one, which beats hosts.yml."""
    cluster = load(folder)
    wanted = {"gpu1": {"cluster_gpu_schedule": "topology"}, "gpu2": {"cluster_labels": {"rack": "r2"}}}
    files = set_for_hosts(cluster, wanted)
    after = load(folder)

    assert [file.name for file in files] == ["gpu1.yml", "gpu2.yml"]
    assert after.node("gpu1").variables["cluster_gpu_schedule"] == "topology"
    assert (folder / "host_vars/gpu2.yml").read_text() == (
        "# ours\ncluster_labels: {rack: r2}\n\n# the rest\ncluster_leaf: l1\n"
    )
    assert (folder / "hosts.yml").read_text() == HOSTS


@pytest.mark.parametrize("text", ["{cluster_leaf: l1}\n", "- a\n"])
def test_a_file_in_another_form_is_not_edited(folder, text):
    """With the lines to write by hand."""
    cluster = Cluster("prod", folder, (make_node("gpu1"), make_node("gpu2")))
    file = folder / "host_vars/gpu1.yml"
    file.write_text(text)
    with pytest.raises(InventoryError) as refused:
        set_for_hosts(cluster, {"gpu1": {"cluster_gpu_schedule": "topology"}})

    assert "cluster_gpu_schedule: topology" in refused.value.remedy
    assert file.read_text() == text
