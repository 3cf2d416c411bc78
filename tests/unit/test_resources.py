"""Where the files of this program are that are beside its package."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision import resources
from provision.errors import ProvisionError
from tests.support.command import ROOT


def test_a_checkout_uses_its_own_files() -> None:
    """The folders beside the package are the resources, and no commit was recorded by a build."""
    assert resources.roles_folder() == ROOT / "roles"
    assert resources.playbooks_folder() == ROOT / "playbooks"
    assert resources.example_inventory() == ROOT / "inventories/example"
    assert resources.lock_file() == ROOT / "requirements.lock"
    assert resources.checkout() == ROOT
    assert resources.built_commit() == ""


def test_an_installation_uses_the_files_in_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder ``data`` in the package has them, and the commit of the build."""
    roles = tmp_path / "data/roles"
    (roles / "platform/tasks").mkdir(parents=True)
    (roles / "platform/tasks/main.yml").touch()
    (tmp_path / "data/commit").write_text("0" * 40)
    monkeypatch.setattr(resources, "package_path", tmp_path.joinpath)

    assert resources.roles_folder() == roles
    assert resources.checkout() is None
    assert resources.built_commit() == "0" * 40


def test_an_incomplete_installation_is_reported_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is missing, or lacks its main file, is named."""
    (tmp_path / "data/roles").mkdir(parents=True)
    monkeypatch.setattr(resources, "package_path", tmp_path.joinpath)

    for function in (resources.roles_folder, resources.playbooks_folder, resources.lock_file):
        with pytest.raises(ProvisionError, match=str(tmp_path)) as error:
            function()
        assert "pip install" in error.value.remedy


def test_the_playbooks_of_the_environment_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PROVISION_PLAYBOOKS names a folder with site.yml."""
    monkeypatch.setenv("PROVISION_PLAYBOOKS", str(tmp_path))
    with pytest.raises(ProvisionError, match=r"site\.yml"):
        resources.playbooks_folder()
    (tmp_path / "site.yml").touch()

    assert resources.playbooks_folder() == tmp_path
