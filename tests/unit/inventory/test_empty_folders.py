"""A folder without an inventory file, which Ansible cannot read, is named with the remedy."""

from __future__ import annotations

import pytest

from provision.errors import InventoryError
from provision.inventory import load
from provision.inventory.resolve import candidates


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Write an inventory as a folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "inventories" / "site"
    (folder / "host_vars").mkdir(parents=True)
    (folder / "hosts.yml").write_text("gpu_nodes:\n  hosts:\n    gpu1:\n")
    return folder


@pytest.mark.parametrize("name", ["stray", "a/b"])
def test_an_empty_folder_in_an_inventory_is_reported(site, name):
    (site / name).mkdir(parents=True)

    with pytest.raises(InventoryError) as caught:
        load(site)

    assert caught.value.message.startswith(f"inventories/site/{name}: empty folder (")
    assert caught.value.remedy == f"Remove it: rmdir inventories/site/{name}"
    (site / name).rmdir()


def test_a_folder_with_only_ignored_files_is_reported(site):
    (site / "notes").mkdir()
    (site / "notes" / "todo.txt").write_text("x")

    with pytest.raises(InventoryError, match="inventories/site/notes: folder without an inventory file") as caught:
        load(site)

    assert "notes.bak" in str(caught.value.remedy)
    (site / "notes").rename(site / "notes.bak")
    assert [node.name for node in load(site).nodes] == ["gpu1"]


def test_empty_folders_beside_inventories_are_not_inventories(site):
    (site.parent / "old").mkdir()

    assert candidates() == [site.relative_to(site.parents[1])]
