"""The Ansible collection, without building its archive: its metadata names the tested systems."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from provision.inventory.role_files import systems
from provision.resources import roles_folder
from tools import collection


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the collection."""
    folder = tmp_path_factory.mktemp("collection") / "tree"
    collection.write_tree(folder, "1.0.0")
    return folder


def test_the_metadata_of_the_collection_names_all_tested_systems(tree: Path) -> None:
    """They come from the files of variables alone. Untested systems are not promised."""
    galaxy = json.loads((tree / "galaxy.yml").read_text(encoding="utf-8"))

    for file, variables in systems(roles_folder()).items():
        is_tested = variables["__platform_support"] == "tested"
        assert (variables["__platform_title"] in galaxy["description"]) is is_tested
        assert not is_tested or file.partition("_")[0] in galaxy["tags"]


def test_each_role_names_all_tested_platforms(tree: Path) -> None:
    """In the form of Ansible Galaxy; the roles of the repository do not repeat them."""
    metas = sorted(tree.glob("roles/*/meta/main.yml"))
    platforms = [yaml.safe_load(path.read_text(encoding="utf-8"))["galaxy_info"]["platforms"] for path in metas]

    assert len(metas) == len(list(roles_folder().glob("*/tasks/main.yml")))
    assert {json.dumps(one) for one in platforms} == {
        json.dumps(
            [
                {"name": "Debian", "versions": ["bookworm", "trixie"]},
                {"name": "EL", "versions": ["10", "8", "9"]},
                {"name": "Ubuntu", "versions": ["jammy", "noble"]},
            ]
        )
    }
