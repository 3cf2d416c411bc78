"""What the probe reads of Slurm. The programs of Slurm are STAND-INS with outputs in the form of the real ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provision.facts import RawOutput
from provision.facts.gpu import GpusFact
from provision.facts.slurm import SlurmFact
from provision.node.probe import slurm

SLURMD = """
[ "$1" != -V ] || { echo 'slurm-wlm 22.05.8'; exit; }
echo 'NodeName=gpu1 CPUs=16 Boards=1 SocketsPerBoard=2 CoresPerSocket=4 ThreadsPerCore=2 RealMemory=64000'
echo 'UpTime=0-00:34:55'
"""
SINFO = r"""
printf '%s\n' 'gpu1|idle|gpu:g0:1,gpu:g1:1|root|none' 'gpu2|drained*|(null)|bob|a | b' 'short line'
"""
SCONTROL = """
[ "$1" = show ] || exit 1
echo 'ConstrainDevices        = yes'
"""
INFORMATION = """Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 16
GPU UUID: \t GPU-1
Bus Location: \t 0000:19:00.0
Device Minor: \t {}
"""


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}")
    (folder / name).chmod(0o755)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with two sockets, two GPUs whose order differs from that of their files, and Slurm."""
    for name, text in (("slurmd", SLURMD), ("sinfo", SINFO), ("scontrol", SCONTROL)):
        program(tmp_path, name, text)
    for address, minor, cpus in (("0000:19:00.0", 1, "0-3,8-11"), ("0000:9b:00.0", 0, "4-7,12-15")):
        for path, name, text in (("gpus", "information", INFORMATION.format(minor)), ("pci", "local_cpulist", cpus)):
            (tmp_path / path / address).mkdir(parents=True)
            (tmp_path / path / address / name).write_text(text)
    for cpu in range(16):
        (tmp_path / f"cpu/cpu{cpu}/topology").mkdir(parents=True)
        (tmp_path / f"cpu/cpu{cpu}/topology/physical_package_id").write_text("36\n" if cpu % 8 < 4 else "0\n")
    (tmp_path / "key").write_bytes(bytes(1024))
    for name, path in (("DRIVER", "gpus"), ("PCI", "pci"), ("CPUS", "cpu"), ("KEY", "key"), ("STATE", "state.json")):
        monkeypatch.setattr(slurm, name, str(tmp_path / path))
    monkeypatch.setattr(slurm, "SIMULATED", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


@pytest.mark.usefixtures("node")
def test_the_layout_has_gpus_by_minor_number_with_their_sockets() -> None:
    """Sockets are counted by their first CPU: the kernel's numbers of packages may be any."""
    state = SlurmFact().parse(RawOutput(json.dumps(slurm.slurm_state()), 0))

    assert state.version == "22.05.8"
    assert (state.layout.sockets, state.layout.cores, state.layout.threads, state.layout.memory) == (2, 4, 2, 64000)
    assert [(gpu.minor, gpu.model, gpu.socket) for gpu in state.layout.gpus] == [
        (0, "NVIDIA H100 80GB HBM3", 1),
        (1, "NVIDIA H100 80GB HBM3", 0),
    ]
    assert len(state.key) == 64
    assert state.devices is True


def test_states_are_read_by_explicit_fields(node: Path) -> None:
    """A reason may contain the separator; a line of another form is no node."""
    (node / "state.json").write_text(json.dumps({"node": "gpu1", "nodes": {}}))
    state = SlurmFact().parse(RawOutput(json.dumps(slurm.slurm_state()), 0))

    assert state.recorded == {}
    assert {name: (one.state, one.user, one.state_cause) for name, one in state.nodes.items()} == {
        "gpu1": ("idle", "root", "none"),
        "gpu2": ("drained*", "bob", "a | b"),
    }


def test_a_slurmctld_that_does_not_answer_has_its_reason(node: Path) -> None:
    program(node, "sinfo", "echo 'sinfo: error: one' >&2; echo 'Unable to contact slurm controller' >&2; exit 1")
    state = SlurmFact().parse(RawOutput(json.dumps(slurm.slurm_state()), 0))

    assert (state.problem, dict(state.nodes), state.devices) == ("Unable to contact slurm controller", {}, None)


@pytest.mark.parametrize(
    ("sacctmgr", "problem", "is_registered"),
    [
        ("printf 'other\nlab\n'", "", True),
        ("echo other", "", False),
        ("echo 'error: one' >&2; echo 'Connection refused' >&2; exit 1", "Connection refused", False),
    ],
)
def test_a_controller_reports_whether_slurmdbd_knows_the_cluster(
    node: Path,
    sacctmgr: str,
    problem: str,
    is_registered: bool,  # noqa: FBT001
) -> None:
    """Only one that has recorded accounting asks."""
    program(node, "sacctmgr", sacctmgr)
    state = SlurmFact().parse(RawOutput(json.dumps(slurm.slurm_state()), 0))
    assert state.accounting is None

    (node / "state.json").write_text(json.dumps({"cluster": "lab", "accounting": "slurmdbd"}))
    state = SlurmFact().parse(RawOutput(json.dumps(slurm.slurm_state()), 0))
    assert (state.accounting.problem, state.accounting.is_registered) == (problem, is_registered)


def test_a_program_that_hangs_ends_in_time(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "SECONDS", 0.1)
    program(node, "sinfo", "exec sleep 60")

    assert "no end within" in slurm.slurm_state()["problem"]


def test_minor_numbers_belong_to_their_gpus() -> None:
    """The order of the device files may differ from that of nvidia-smi."""
    text = (
        "index, name, uuid, driver_version, memory.total [MiB], pci.bus_id\n"
        "0, A, GPU-1, 525.1, 1 MiB, 00000000:19:00.0\n1, A, GPU-2, 525.1, 1 MiB, 00000000:9B:00.0\n"
        "2, A, GPU-3, 525.1, 1 MiB, 00000000:AB:00.0\n"
        "== minors\npci.bus_id, minor_number\n0000:9b:00.0, 0\n0000:19:00.0, 1\n0000:ab:00.0, x\n"
    )

    assert [gpu.minor for gpu in GpusFact().parse(RawOutput(text, 0))] == [1, 0, None]


@pytest.mark.parametrize(
    ("squeue", "busy"),
    [("printf 'gpu\\ngpu,debug\\n'", ("debug", "gpu")), ("exit 1", None), ("", ())],
)
def test_a_controller_reports_what_it_recorded_and_the_partitions_with_jobs(
    node: Path, squeue: str, busy: tuple[str, ...] | None
) -> None:
    """A pending job may name several partitions."""
    program(node, "squeue", squeue)
    document = {"controllers": [{"name": "gpu1"}], "state_folder": "/state", "partitions": ["gpu", "old"]}
    (node / "state.json").write_text(json.dumps(document))
    state = SlurmFact().parse(RawOutput(json.dumps(slurm.slurm_state()), 0))

    assert (state.controllers, state.state_folder, state.partitions) == (("gpu1",), "/state", ("gpu", "old"))
    assert state.busy_partitions == busy
