"""What the machine remembers of its labs."""

from __future__ import annotations

import stat

import pytest

from provision.errors import LabError, LockedError, UsageError
from provision.lab import state
from provision.lab.base import DriverName, LabSpec


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A state folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", ["", "Demo", "1a", "a_b", "../x", "a" * 31, "a-", "a b"])
def test_names_that_cannot_be_host_names_are_refused(name):
    """An invalid name is refused with the rule before anything is created."""
    with pytest.raises(UsageError, match="invalid lab name"):
        state.lab_folder(name)


def test_a_spec_is_stored_in_a_private_folder(home):
    """What a lab was made with survives, readable by its owner only."""
    folder = state.lab_folder("demo")
    spec = LabSpec("demo", DriverName.CONTAINER, 3, machine="pair", packages=("docker.io",))
    state.save_spec(folder, spec)

    assert state.load_spec(folder) == spec
    assert folder == home / "provision/labs/demo"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "lab.json").stat().st_mode) == 0o600
    assert state.known_labs() == ["demo"]


def test_a_damaged_record_has_a_remedy():
    """A damaged lab.json is an error with a remedy, without a traceback."""
    folder = state.lab_folder("demo")
    state.save_spec(folder, LabSpec("demo", DriverName.VM, 1))
    (folder / "lab.json").write_text('{"name": "demo"}')
    with pytest.raises(LabError, match=r"lab\.json is damaged") as caught:
        state.load_spec(folder)

    assert caught.value.remedy == "Run: provision lab down demo"


def test_a_second_process_gets_the_lock_holder():
    """The lock names the process, the time and the purpose, and leaves no file."""
    with state.locked("demo", "lab up demo"):
        held = pytest.raises(LockedError, match=r"process \d+ of .*, since .*, for `lab up demo`")
        with held, state.locked("demo", "lab down demo"):
            pass
        with state.locked("other", "lab up other"):
            pass

    assert [path.name for path in state.labs_folder().iterdir()] == []
    with state.locked("demo", "again"):
        assert (state.labs_folder() / ".demo.lock").exists()
