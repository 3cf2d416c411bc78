"""What the manager decides before it makes anything."""

from __future__ import annotations

import pytest

from provision.errors import LabError
from provision.lab import manager, state
from provision.lab.base import DriverName, LabNode, LabSpec, NodeState
from provision.lab.manager import LabOptions, LabReport


class Quiet:
    """Progress that is ignored."""

    def step(self, message):
        """Say nothing."""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A state folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def test_changed_options_of_a_lab_are_refused_with_both_values():
    """A lab is never changed silently; the message has its options and the requested ones."""
    state.save_spec(state.lab_folder("demo"), LabSpec("demo", DriverName.CONTAINER, 2))
    with pytest.raises(LabError, match=r"--driver container --nodes 2 .* requested: --driver container --nodes 3"):
        manager.up("demo", LabOptions(nodes=3), Quiet())


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (LabOptions(nodes=0), "1 to 64 nodes"),
        (LabOptions(distro="centos7"), "unknown lab distribution centos7"),
        (LabOptions(machine="nonsense"), "nonsense"),
        (LabOptions(driver=DriverName.CONTAINER, packages=("docker.io",)), "--with requires virtual machines"),
        (LabOptions(packages=("docker.io; id",)), "invalid package name"),
        (LabOptions(distro="debian12,ubuntu24"), "several systems require containers"),
        (LabOptions(distro="el9"), "el9 requires containers: the lab has no kernel"),
        (
            LabOptions(driver=DriverName.CONTAINER, distro="el9", mirror="http://m.example"),
            "el9: nodes cannot be built",
        ),
        (LabOptions(driver=DriverName.CONTAINER, distro="debian12,"), "unknown lab distribution"),
        (
            LabOptions(driver=DriverName.CONTAINER, distro="debian12,ubuntu24", mirror="http://m.example"),
            "--mirror requires a single system",
        ),
    ],
)
def test_invalid_options_are_refused_before_anything_is_created(options, complaint):
    """A wrong option leaves no incomplete lab."""
    with pytest.raises(LabError, match=complaint):
        manager.up("demo", options, Quiet())

    assert state.known_labs() == []


def test_the_systems_of_a_lab_alternate():
    """The first node has the first system."""
    spec = LabSpec("demo", DriverName.CONTAINER, 3, distro="debian12,ubuntu24")

    assert [spec.system_of(index).name for index in range(3)] == ["debian12", "ubuntu24", "debian12"]


def test_the_mirror_of_a_lab_is_recorded_and_shown_without_its_password():
    """Nodes that are created later come from the same mirror."""
    spec = LabSpec("demo", DriverName.CONTAINER, 1, distro="ubuntu24", mirror="http://me:secret@m.example/ubuntu")
    state.save_spec(state.lab_folder("demo"), spec)

    assert state.load_spec(state.lab_folder("demo")) == spec
    assert spec.system_of(0).label == "ubuntu24"
    with pytest.raises(LabError, match=r"--mirror http://m\.example/ubuntu; requested: .*http://other") as caught:
        manager.up("demo", LabOptions(mirror="http://other"), Quiet())
    assert "secret" not in str(caught.value)


def test_an_unknown_lab_is_refused_with_the_existing_ones():
    """The message lists the labs there are and how to make one."""
    state.save_spec(state.lab_folder("other"), LabSpec("other", DriverName.VM, 1))
    with pytest.raises(LabError, match=r"unknown lab demo \(labs: other\)") as caught:
        manager.status("demo")

    assert caught.value.remedy == "Run: provision lab up demo"


def test_an_incomplete_lab_has_no_inventory_yet():
    """Verbs that need the nodes say that the lab must be finished first."""
    state.save_spec(state.lab_folder("demo"), LabSpec("demo", DriverName.VM, 1))
    with pytest.raises(LabError, match="incomplete"):
        manager.inventory_path("demo")


def test_the_document_has_the_keys_that_scripts_rely_on(tmp_path):
    """lab up and lab status print name, driver, simulated, nodes and inventory."""
    node = LabNode("demo-1", "127.0.0.1", 2201, "10.77.1.1", NodeState.STOPPED)
    spec = LabSpec("demo", DriverName.VM, 1)
    report = LabReport(spec, (node,), tmp_path / "hosts.yml", ("the GPUs",))

    document = report.document()
    assert (document["name"], document["driver"], document["simulated"]) == ("demo", "vm", ["the GPUs"])
    assert document["nodes"] == [{"name": "demo-1", "address": "127.0.0.1", "port": 2201, "state": "stopped"}]
    assert document["inventory"] == str(tmp_path / "hosts.yml")
    assert not report.healthy
