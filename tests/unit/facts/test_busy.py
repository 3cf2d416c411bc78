"""Jobs on a node, detected from its processes: the program that the probe sends, on a /proc of the test."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.node.archive import NODE

SOURCE = NODE / "probe/busy.py"
POD = "0a1b2c3d-1111-2222-3333-444455556666"
SLICE = f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice/cri-x.scope"
CGROUPFS = f"12:devices:/kubepods/besteffort/pod{POD}/0123"


class Machine:
    """A folder in the form of /proc, with kubelet folders beside it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        spec = importlib.util.spec_from_file_location("busy_of_the_test", SOURCE)
        assert spec
        assert spec.loader
        self.busy = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.busy)
        self.busy.PROC, self.busy.POD_LOGS = str(root / "proc"), str(root / "logs")
        self.busy.KUBELET_FOLDER = str(root / "kubelet")
        self.busy.LEASES = str(root / "leases")

    def process(self, pid: int, command: str, *, name: str = "python3", cgroup: str = "0::/user.slice") -> None:
        folder = self.root / "proc" / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} ({name}) S 1 {pid} {pid} 0 -1 4194304 100")
        (folder / "comm").write_text(name)
        (folder / "cmdline").write_text(command.replace(" ", "\0"))
        (folder / "cgroup").write_text(cgroup + "\n")

    def account(self, pid: int, uid: int, *, state: str = "S", numbers: str = "") -> None:
        """Set a process's account, and its pids in the node's and in its own namespace."""
        text = f"Name:\tx\nState:\t{state} (y)\nUid:\t{uid}\t0\t0\t0\nNSpid:\t{numbers or pid}\n"
        (self.root / "proc" / str(pid) / "status").write_text(text)

    def gave(self, text: str, *, folder: str = "kubelet") -> None:
        """Write the kubelet's record of devices."""
        path = self.root / folder / "device-plugins"
        path.mkdir(parents=True)
        (path / "kubelet_internal_checkpoint").write_text(text)

    def jobs(self) -> list[str]:
        jobs: list[str] = self.busy.running_jobs()
        return [job.replace(self.root.owner(), "OWNER") for job in jobs]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a node that runs systemd and no job."""
    made = Machine(tmp_path)
    made.process(1, "/sbin/init", name="systemd")
    made.process(300, "/usr/sbin/slurmd -D", name="slurmd")
    made.process(301, "/usr/sbin/slurmstepd infinity", name="slurmstepd")
    made.process(302, "/usr/bin/kubelet --config x", name="kubelet")
    return made


def test_scheduler_services_are_not_jobs(machine: Machine) -> None:
    assert machine.jobs() == []


def test_a_slurm_job_is_reported_once(machine: Machine) -> None:
    """A job may hold no device while it copies data, and may have no process of its own."""
    for pid, step in ((900, "123.extern"), (1000, "123.batch"), (1001, "123.0"), (1100, "77+1.0")):
        machine.process(pid, f"slurmstepd: [{step}]", name="slurmstepd")
    machine.process(1200, "/usr/sbin/slurmstepd", name="slurmstepd")

    assert machine.jobs() == [
        "Slurm job 123 (slurmstepd pid 900) runs here",
        "Slurm job 77+1 (slurmstepd pid 1100) runs here",
        "a Slurm job (slurmstepd pid 1200) begins here",
    ]


@pytest.mark.parametrize("about", [{"uid": 1000}, {"uid": 0, "numbers": "900 1"}, {"uid": 0, "state": "Z"}])
@pytest.mark.parametrize("command", ["slurmstepd: [123.0]", "slurmstepd", ""])
def test_processes_with_a_forged_slurm_name_do_not_make_a_node_busy(
    machine: Machine, command: str, about: dict
) -> None:
    """Accounts, and root in a container, choose names and arguments of their processes."""
    machine.process(900, command, name="slurmstepd")
    machine.account(900, **about)

    assert machine.jobs() == []


def test_slurmstepd_is_identified_by_account_and_program(machine: Machine) -> None:
    machine.process(900, "slurmstepd: [123.0]", name="slurmstepd")
    machine.account(900, 0)
    for pid in ("900", "self"):
        (machine.root / "proc" / pid / "ns").mkdir(parents=True)
        (machine.root / "proc" / pid / "ns/pid").symlink_to("pid:[4026531836]")
    program = machine.root / "slurmstepd"
    program.touch()
    (machine.root / "proc/900/exe").symlink_to(program)
    assert machine.jobs() == ["Slurm job 123 (slurmstepd pid 900) runs here"]

    program.chmod(0o4755)
    assert machine.jobs() == []


def test_a_forged_kubelet_hides_no_pod(machine: Machine) -> None:
    machine.process(2000, "/server", name="server", cgroup=SLICE)
    machine.process(2001, "kubelet --root-dir=/home/alice", name="kubelet")
    machine.account(2001, 1000)
    machine.gave(POD)

    assert machine.jobs() == [
        f"Kubernetes pod {POD}, which has devices of this node, runs here: process 2000 (server of OWNER)"
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts of one's own are root's to make")
def test_files_that_imitate_devices_do_not_make_a_node_busy(machine: Machine) -> None:
    """An account can mount files over /dev in its own namespace."""
    line = "mount -t tmpfs none /dev && exec 7>/dev/nvidia0 && echo ready && exec sleep 60"
    forger = subprocess.Popen(["unshare", "-m", "sh", "-c", line], stdout=subprocess.PIPE)
    try:
        assert forger.stdout
        assert forger.stdout.readline() == b"ready\n"
        machine.busy.PROC = "/proc"
        assert (Path(f"/proc/{forger.pid}/fd/7")).readlink() == Path("/dev/nvidia0")
        assert machine.busy._devices(forger.pid) == []
    finally:
        forger.kill()
        forger.wait()


@pytest.mark.parametrize("cgroup", [SLICE, CGROUPFS])
def test_a_pod_with_kubelet_devices_is_a_job(machine: Machine, cgroup: str) -> None:
    """The pod has its kubectl name; whether it has a device open at the moment does not matter."""
    machine.process(1999, "/pause", name="pause", cgroup=cgroup)
    machine.process(2000, "python3 train.py --password=hunter2", cgroup=cgroup)
    machine.gave(f'{{"Data":{{"PodDeviceEntries":[{{"PodUID":"{POD}","ResourceName":"nvidia.com/gpu"}}]}}}}')
    (machine.root / "logs" / f"research_train-0_{POD}").mkdir(parents=True)

    assert machine.jobs() == [
        "Kubernetes pod research/train-0, which has devices of this node, runs here: process 2000 (python3 of OWNER)"
    ]


@pytest.mark.parametrize(("pid", "name"), [(2000, "kube-proxy"), (2001, "pause")])
def test_pods_without_devices_are_not_jobs(machine: Machine, pid: int, name: str) -> None:
    """System pods have no devices; a sandbox may outlive its job."""
    machine.process(pid, f"/{name}", name=name, cgroup=SLICE)
    machine.gave(POD if name == "pause" else "{}")

    assert machine.jobs() == []


def test_all_pods_count_if_device_records_are_unreadable(machine: Machine) -> None:
    machine.process(2000, "/server", name="server", cgroup=SLICE)

    assert machine.jobs() == [
        "Kubernetes pods run here, and their devices are unknown: no kubelet's folder can be read"
    ]


def test_device_records_are_read_from_a_custom_kubelet_folder(machine: Machine) -> None:
    machine.process(303, f"/usr/bin/kubelet --root-dir={machine.root}/own --v=2", name="kubelet")
    machine.process(2000, "/server", name="server", cgroup=SLICE)
    machine.gave(POD, folder="own")

    assert machine.jobs() == [
        f"Kubernetes pod {POD}, which has devices of this node, runs here: process 2000 (server of OWNER)"
    ]


def test_a_process_with_an_open_device_in_a_pod_is_a_job(machine: Machine) -> None:
    machine.gave("{}")
    machine.process(2000, "/server", name="server", cgroup=SLICE)
    (machine.root / "proc/2000/fd/7").symlink_to("/dev/nvidia3")

    assert machine.jobs() == ["process 2000 (server of OWNER) holds /dev/nvidia3"]


def test_a_lease_of_a_batch_job_makes_the_node_busy(machine: Machine) -> None:
    """Each job is reported once; an unreadable lease counts as busy, TensorBoard does not."""
    leases = machine.root / "leases"
    leases.mkdir()
    (leases / "GPU-1").write_text('{"job": "train-7", "id": "x"}')
    (leases / "GPU-2").write_text('{"job": "train-7", "id": "x"}')
    (leases / "port-20001").write_text("half a li")
    (leases / "GPU-3.12.new").write_text("")
    (leases / "port-6006").write_text('{"job": "over", "instance": "tensorboard"}')

    assert machine.jobs() == [
        "job of unknown name holds port-20001 of this node",
        "job train-7 holds GPU-1 of this node",
    ]


def test_leases_that_cannot_be_read_mean_busy(machine: Machine) -> None:
    """A disk error must not let an apply disturb a job. A node without the folder never had a batch job."""
    leases = machine.root / "leases"
    assert machine.jobs() == []
    leases.write_text("")
    (job,) = machine.jobs()
    assert job.endswith("/leases cannot be read: Not a directory")
    leases.unlink()
    (leases / "GPU-1").mkdir(parents=True)
    assert machine.jobs() == ["job of unknown name holds GPU-1 of this node"]
