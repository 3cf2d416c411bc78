"""Volumes in an inventory's files are edited without changes to the rest."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from provision.errors import InventoryError, UsageError
from provision.inventory.data_volumes import add_volume, remove_volume, with_entry, without_entry
from provision.model import Cluster
from provision.testing import make_node

FILE = Path("all.yml")
ENTRY = {"kind": "nfs", "path": "/mnt/a", "source": "nas:/x", "read_only": True, "description": 'it\'s: "data"'}
TEXT = """---
# Ours.
ansible_user: root  # may sudo

cluster_data:
  # The first one.
  old:
    kind: path
    path: /old  # slow
# After it.
cluster_slots: 4
"""


def test_an_entry_is_added_below_the_others():
    """Comments and order stay, and the value is what was given."""
    text = with_entry(TEXT, "cluster_data", "new", ENTRY, FILE)

    added = [line for line in text.splitlines() if line not in TEXT.splitlines()]
    assert yaml.safe_load(text) == {
        **yaml.safe_load(TEXT),
        "cluster_data": {"old": {"kind": "path", "path": "/old"}, "new": ENTRY},
    }
    assert len(added) == 6
    assert without_entry(text, "cluster_data", "new", FILE) == TEXT


@pytest.mark.parametrize("text", ["", "---\n", "a: 1\n", "a: 1", "cluster_data: {}\nb: 2\n", "cluster_data:\nb: 2\n"])
def test_an_entry_is_added_to_a_file_without_volumes(text):
    """Whatever the file held."""
    before = yaml.safe_load(text) or {}

    assert yaml.safe_load(with_entry(text, "cluster_data", "new", ENTRY, FILE)) == {
        **before,
        "cluster_data": {"new": ENTRY},
    }


def test_the_last_entry_leaves_an_empty_mapping():
    """Not a variable without a value, which would be refused."""
    text = without_entry(TEXT, "cluster_data", "old", FILE)

    assert yaml.safe_load(text) == {"ansible_user": "root", "cluster_data": {}, "cluster_slots": 4}
    assert "# The first one." in text
    assert "# After it." in text


def test_volumes_in_flow_style_are_not_edited():
    """With the line where they are."""
    with pytest.raises(InventoryError, match=r"all\.yml:1"):
        with_entry("cluster_data: {a: {kind: path, path: /x}}\n", "cluster_data", "new", ENTRY, FILE)


def test_a_volume_is_added_to_all_nodes_and_removed_again(write):
    """Two are never of one name; what is not there cannot go."""
    folder = write(hosts_yml="all:\n  hosts:\n    gpu1:\n    gpu2:\n", group_vars__all_yml="---\n# mine\nx: 1\n")
    after = add_volume(Cluster("c", folder, (make_node("gpu1"),)), "cluster_data", "a", {"kind": "path", "path": "/a"})

    assert [node.variables["cluster_data"]["a"]["path"] for node in after.nodes] == ["/a", "/a"]
    assert (folder / "group_vars/all.yml").read_text().startswith("---\n# mine\nx: 1\n")
    with pytest.raises(UsageError, match="volume a already exists"):
        add_volume(after, "cluster_data", "a", {})
    with pytest.raises(UsageError, match="no volume b; there are: a"):
        remove_volume(after, "cluster_data", "b")
    assert remove_volume(after, "cluster_data", "a").nodes[0].variables["cluster_data"] == {}


def test_a_variable_defined_elsewhere_is_not_written_twice(write):
    """One of the two would not count."""
    folder = write(hosts_yml="all:\n  hosts: {gpu1: }\n", group_vars__gpu_yml="cluster_data: {a: {}}\n")
    node = replace(make_node("gpu1"), variables={"cluster_data": {"a": {}}})

    with pytest.raises(InventoryError, match="is set outside"):
        add_volume(Cluster("c", folder, (node,)), "cluster_data", "b", {"kind": "path", "path": "/b"})
