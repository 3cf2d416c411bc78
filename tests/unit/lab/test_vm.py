"""The vm driver without running machines: its reports about nodes, and the removal of nodes."""

import pytest

from provision.errors import LabError
from provision.lab.base import DriverName, LabSpec, NodeState
from provision.lab.services.packages import build_packages
from provision.lab.vm import VmDriver, _stand_in
from provision.lab.vm_plan import Plan, save_plan

SPEC = LabSpec("demo", DriverName.VM, 2)


class Steps(list):
    def step(self, message):
        self.append(message)


@pytest.fixture
def folder(tmp_path):
    """A lab whose first node was made and does not run; the second was never made."""
    (tmp_path / "vm/demo-1").mkdir(parents=True)
    save_plan(tmp_path / "vm", Plan(9, 23000, {"demo-1": 22001, "demo-2": 22002}))
    (tmp_path / "vm/demo-1/disk.qcow2").write_text("")
    (tmp_path / "hostkeys/demo-1").mkdir(parents=True)
    return tmp_path


def test_the_current_state_of_nodes_is_reported(folder):
    """A node with a disk and no process is stopped, one without a disk is missing; both keep their ports."""
    states = [(node.name, node.port, node.data_address, node.state) for node in VmDriver().nodes(SPEC, folder)]
    assert states == [
        ("demo-1", 22001, "10.77.9.1", NodeState.STOPPED),
        ("demo-2", 22002, "10.77.9.2", NodeState.MISSING),
    ]


def test_a_lab_that_was_never_started_has_only_missing_nodes(tmp_path):
    """Looking at a lab changes nothing and needs nothing to be there."""
    assert {node.state for node in VmDriver().nodes(SPEC, tmp_path)} == {NodeState.MISSING}
    assert list(tmp_path.iterdir()) == []


def test_down_removes_all_traces_of_the_nodes(folder):
    """Disks, host keys and plan are gone, also of nodes that the lab no longer has; a second time is fine."""
    (folder / "vm/demo-7").mkdir()
    for _ in range(2):
        VmDriver().down(SPEC, folder, Steps())
    assert [path for path in folder.rglob("*") if path.name != "hostkeys"] == []


@pytest.mark.parametrize(
    "act",
    [
        lambda driver, folder: driver.link(SPEC, folder, "demo-1", up=False),
        lambda driver, folder: driver.reboot(SPEC, folder, "demo-1"),
        lambda driver, folder: driver.power(SPEC, folder, "demo-2", on=True),
        lambda driver, folder: driver.power(SPEC, folder, "demo-9", on=False),
    ],
    ids=["link", "reboot", "power of a missing node", "unknown node"],
)
def test_impossible_requests_have_a_remedy(folder, act):
    """Acting on a node that does not run or exist is a sentence with a remedy."""
    with pytest.raises(LabError) as caught:
        act(VmDriver(), folder)
    assert "provision lab" in caught.value.remedy


def test_the_newest_version_of_a_simulated_package_is_the_default(tmp_path):
    """Anything that the lab does not build is a package of Debian."""
    built = build_packages(tmp_path)
    nodes = [_stand_in(package, built) for package in ("mlnx-ofed-kernel-dkms", "mlnx-ofed-kernel-dkms=4.9~simulated")]

    assert [path.name for path in nodes] == [
        "mlnx-ofed-kernel-dkms_5.8~simulated_all.deb",
        "mlnx-ofed-kernel-dkms_4.9~simulated_all.deb",
    ]
    assert _stand_in("docker.io", built) is None
    assert _stand_in("mlnx-ofed-kernel-dkms=3~simulated", built) is None
