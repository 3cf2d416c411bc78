"""The default inventory comes from provision.toml of the folder or a parent, else from the user's own file."""

from __future__ import annotations

import os

import pytest

from provision.errors import UsageError
from provision.inventory import resolve
from provision.inventory.init import InitRequest, existing


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A checkout with two inventories, a folder below it, and a home without configuration."""
    monkeypatch.delenv("PROVISION_INVENTORY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    made = tmp_path / "checkout"
    for name in ("inventories/prod", "inventories/test", "jobs/mnist"):
        (made / name).mkdir(parents=True)
        (made / name / "hosts.yml").touch()
    monkeypatch.chdir(made)
    return made


def user_file(tmp_path, text):
    (tmp_path / "config" / "provision").mkdir(parents=True)
    (tmp_path / "config" / "provision" / "config.toml").write_text(text)


def test_the_configuration_file_of_the_folder_selects_the_inventory(project, monkeypatch):
    """From any folder below; the path counts from the file."""
    (project / "provision.toml").write_text('inventory = "inventories/prod"\n')

    assert resolve(None, None) == project / "inventories/prod"
    monkeypatch.chdir(project / "jobs/mnist")
    assert resolve(None, None) == project / "inventories/prod"
    assert existing(InitRequest(("gpu1",))) == project / "inventories/prod"


def test_option_and_variable_override_the_configuration_file(project, monkeypatch):
    """-i and PROVISION_INVENTORY come first."""
    (project / "provision.toml").write_text('inventory = "inventories/prod"\n')

    assert resolve("inventories/test", None).name == "test"
    monkeypatch.setenv("PROVISION_INVENTORY", "inventories/test")
    assert resolve(None, None).name == "test"


def test_the_configuration_file_of_the_user_applies_without_one_in_the_folder(project, tmp_path):
    """And where the folder's file has no such key."""
    user_file(tmp_path, f'inventory = "{project}/inventories/test"\n')

    assert resolve(None, None) == project / "inventories/test"
    (project / "provision.toml").write_text('inventory = "inventories/prod"\n')
    assert resolve(None, None) == project / "inventories/prod"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('inventroy = "inventories/prod"\n', "unknown key inventroy"),
        ("inventory = 3\n", "must be a path, not 3"),
        ('inventory = ""\n', "must be a path"),
        ('inventory = "inventories/gone"\n', "there is no inventory .*inventories/gone"),
        ("inventory = \n", r"cannot be read: .*line 1"),
        ('[default]\ninventory = "x"\n', "unknown key default"),
    ],
)
def test_an_invalid_configuration_file_is_refused(project, text, says):
    """It would choose another cluster than the operator means."""
    (project / "provision.toml").write_text(text)

    with pytest.raises(UsageError, match=says) as caught:
        resolve(None, None)

    assert str(project / "provision.toml") in caught.value.message


def test_a_configuration_file_writable_by_others_is_refused(project):
    """An inventory runs programs as the operator; in a folder like /tmp anybody could put the file."""
    file = project / "provision.toml"
    file.write_text('inventory = "inventories/prod"\n')
    file.chmod(0o666)
    with pytest.raises(UsageError, match=rf"all users may write {file}"):
        resolve(None, None)
    file.chmod(0o644)
    project.chmod(0o1777)
    with pytest.raises(UsageError, match=rf"all users may write {project}"):
        resolve(None, None)
    project.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(file, 54321, 54321)
        with pytest.raises(UsageError, match="belongs to another user"):
            resolve(None, None)


def test_several_inventories_without_a_configuration_file_have_a_remedy(project):
    """The remedy is a line to copy."""
    with pytest.raises(UsageError, match="several: prod, test") as caught:
        resolve(None, None)

    assert project.is_dir()
    assert 'in provision.toml: inventory = "inventories/prod"' in caught.value.remedy
