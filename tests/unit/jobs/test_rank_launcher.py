"""The program that sets up each rank: started as mpirun, srun or torchrun start it."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import zlib

import pytest

from provision.errors import LaunchError
from provision.jobs.rank_environment import LAUNCHER_WORDS, RankPlan, rank_variables
from provision.launchers import LAUNCHERS
from provision.model import NodePlacement, RankPlacement
from provision.node.run import rank_launcher
from tests.support.interpreters import NODE_PYTHON

PLACED = (
    NodePlacement(
        "gpu1",
        "10.0.0.1",
        (RankPlacement(("GPU-a",), ("mlx5_0:1",)), RankPlacement(("GPU-b",), ("mlx5_1:1",), gid_index=4)),
        {"NCCL_IB_GID_INDEX": "3", "NCCL_SOCKET_IFNAME": "=bond0"},
    ),
    NodePlacement("gpu2", "10.0.0.2", (RankPlacement(("0",)), RankPlacement(("3",)))),
)
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}


def start(plan, *program, node="gpu1", **environment):
    """Start one rank as its launcher would; return exit code, stdout and stderr."""
    variables = {"PATH": os.environ["PATH"], "PROVISION_NODE": node, **rank_variables(plan), **environment}
    # The interpreter of these tests, not the first python3 of the PATH.
    done = subprocess.run(
        [NODE_PYTHON, *LAUNCHER_WORDS[1:], *program], env=variables, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def environment_of(plan=RankPlan(PLACED), node="gpu1", **environment):  # noqa: B008 - a value
    """Return the environment of a rank's program."""
    variables = {"PROVISION_NODE": node, **environment}
    document = json.loads(zlib.decompress(base64.b64decode(rank_variables(plan)["PROVISION_RANKS"])))
    rank_launcher.prepare(document, variables, ["prog"])
    return variables


def test_a_rank_gets_the_variables_of_its_node_and_its_gpus():
    """GPUs in the order of local ranks, by which programs choose; cards match exactly and are the same on a node."""
    result = environment_of(**OPEN_MPI)

    assert result["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert result["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"
    assert (result["NCCL_SOCKET_IFNAME"], result["NCCL_IB_GID_INDEX"]) == ("=bond0", "4")
    assert "CUDA_DEVICE_ORDER" not in result
    assert not {"RANK", "MASTER_ADDR"} & set(result)


def test_a_rank_gets_its_words_unchanged_and_not_the_plan():
    """The words are neither split nor quoted, and the plan of the whole job is not in the environment."""
    code, out, _ = start(RankPlan(PLACED), "sh", "-c", 'echo "$1"; env', "sh", "a  b", **OPEN_MPI)
    first, *environment = out.splitlines()

    assert (code, first) == (0, "a  b")
    assert "CUDA_VISIBLE_DEVICES=GPU-a,GPU-b" in environment
    assert not [line for line in environment if line.startswith(("PROVISION_RANKS", "PROVISION_LAUNCHER"))]


def test_a_rank_can_be_limited_to_its_own_gpus():
    """For programs that use all visible GPUs."""
    assert environment_of(RankPlan(PLACED, visible="rank"), **OPEN_MPI)["CUDA_VISIBLE_DEVICES"] == "GPU-b"


def test_gpu_indices_are_those_of_nvidia_smi():
    """CUDA's default order is by speed."""
    result = environment_of(node="gpu2", **OPEN_MPI)

    assert (result["CUDA_VISIBLE_DEVICES"], result["CUDA_DEVICE_ORDER"]) == ("0,3", "PCI_BUS_ID")


def test_variables_of_the_user_are_not_changed():
    """The plan lists their names."""
    plan = RankPlan(PLACED, keep=("CUDA_VISIBLE_DEVICES", "NCCL_IB_GID_INDEX", "RANK"), master=("10.0.0.1", 20001))
    result = environment_of(plan, CUDA_VISIBLE_DEVICES="7", **OPEN_MPI)

    assert result["CUDA_VISIBLE_DEVICES"] == "7"
    assert "NCCL_IB_GID_INDEX" not in result
    assert "RANK" not in result
    assert result["LOCAL_RANK"] == "1"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, ["1", "4", "1", "2"]),
        ({"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}, ["2", "4", "0", "2"]),
        ({"PMI_RANK": "3", "PMI_SIZE": "4"}, ["3", "4", "1", "2"]),
        ({"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, ["2", "4", "0", "2"]),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"}, ["3", "4", "1", "2"]),
        (
            {**OPEN_MPI, "TORCHELASTIC_RUN_ID": "x", "RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0"},
            ["2", "4", "0", "2"],
        ),
    ],
    ids=["Open MPI", "Hydra", "PMI alone", "torchrun", "srun", "torchrun under mpirun"],
)
def test_every_launchers_variables_determine_the_rank(environment, expected):
    """torch reads the same four variables under every launcher, and where its ranks meet."""
    result = environment_of(RankPlan(PLACED, master=("10.0.0.1", 20001)), node="gpu2", **environment)

    assert [result[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")] == expected
    assert (result["MASTER_ADDR"], result["MASTER_PORT"]) == ("10.0.0.1", "20001")


def test_one_process_on_each_node_gets_the_variables_of_torchrun():
    """Nodes are counted in the order of the plan; mpirun's variables are removed, because its ranks are others."""
    result = environment_of(RankPlan(PLACED, master=("10.0.0.1", 20001), mode="node"), node="gpu2", **OPEN_MPI)
    of_torchrun = {name: value for name, value in result.items() if name.startswith("PET_")}

    assert of_torchrun == {
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_ADDR": "10.0.0.1",
        "PET_MASTER_PORT": "20001",
    }
    assert (result["RANK"], result["WORLD_SIZE"], result["CUDA_VISIBLE_DEVICES"]) == ("1", "2", "0,3")
    assert not [name for name in result if name.startswith("OMPI_")]


def test_the_old_launcher_of_torch_gets_flags(tmp_path):
    """Its older versions read no variables."""
    (tmp_path / "python3").write_text('#!/bin/sh\necho "$@" >&2; exit 3\n')
    (tmp_path / "python3").chmod(0o755)
    plan = RankPlan(PLACED, master=("10.0.0.1", 20001), mode="node", prefix=LAUNCHERS["launch"].prefix())
    code, _, err = start(plan, "train.py", "--x", PATH=f"{tmp_path}:{os.environ['PATH']}")

    assert code == 3
    assert err.split() == [
        "-m",
        "torch.distributed.launch",
        "--nproc_per_node=2",
        "--nnodes=2",
        "--node_rank=0",
        "--master_addr=10.0.0.1",
        "--master_port=20001",
        "train.py",
        "--x",
    ]


def test_a_rank_runs_on_its_cpus_only():
    """CPUs that the container may not use are ignored; without any, the rank is not bound, and reports that."""
    mine = min(os.sched_getaffinity(0))
    plan = RankPlan((NodePlacement("n", ranks=(RankPlacement(cpus=(mine, 65000)), RankPlacement(cpus=(65000,)))),))
    show = ("grep", "Cpus_allowed_list", "/proc/self/status")
    before = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    first, second = (start(plan, *show, node="n", RANK=str(rank), LOCAL_RANK=str(rank)) for rank in (0, 1))

    assert first[1].split() == ["Cpus_allowed_list:", str(mine)]
    assert (second[0], second[1]) == (0, before)
    assert "none of the CPUs 65000 may be used" in second[2]


@pytest.mark.parametrize(("works", "bound"), [(True, "--preferred=1"), (False, "")])
def test_memory_comes_from_the_numa_node_of_a_rank_if_permitted(tmp_path, works, bound):
    """numactl may be missing, or the container may not permit the system call."""
    (tmp_path / "numactl").write_text(
        f'#!/bin/sh\n{"" if works else "exit 1"}\nSEEN=$1; export SEEN; shift; exec "$@"\n'
    )
    (tmp_path / "numactl").chmod(0o755)
    plan = RankPlan((NodePlacement("n", ranks=(RankPlacement(numa=1),)),))
    path = f"{tmp_path}:{os.environ['PATH']}"

    assert start(plan, "sh", "-c", "echo $SEEN", node="n", PATH=path, RANK="0", LOCAL_RANK="0")[:2] == (0, f"{bound}\n")


@pytest.mark.parametrize(
    ("node", "environment", "reason"),
    [
        ("gpu9", OPEN_MPI, "none of the job's nodes (gpu1, gpu2)"),
        ("gpu1", {}, "neither mpirun nor srun nor torchrun started it"),
        ("gpu1", {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, "for which 2 are planned"),
        ("gpu2", {"PMI_RANK": "0"}, "rank 0 is number -2 on gpu2"),
    ],
)
def test_a_rank_that_the_plan_does_not_contain_is_not_started(node, environment, reason):
    """The reason has the terms of the launcher."""
    with pytest.raises(rank_launcher.Wrong) as caught:
        environment_of(node=node, **environment)

    assert reason in str(caught.value)


def test_a_rank_that_is_not_started_reports_its_node():
    """125 and no traceback, also without a valid plan."""
    for environment in ({}, {**OPEN_MPI, "PROVISION_RANKS": "x"}):
        code, out, err = start(RankPlan(PLACED), "true", **environment)

        assert (code, out) == (125, "")
        assert err.startswith(f"provision: on {socket.gethostname()}: the rank has no place: ")
        assert "Traceback" not in err


@pytest.mark.parametrize(("program", "code"), [("/no/such", 127), ("/etc/passwd", 126)])
def test_a_program_that_cannot_be_started_has_the_exit_code_of_a_shell(program, code):
    """With the node, which mpirun's own message does not contain."""
    done = start(RankPlan(PLACED), program, **OPEN_MPI)

    assert done[0] == code
    assert program in done[2]


def test_a_node_is_identified_by_its_variable_its_addresses_or_its_name():
    """In this order; the variable is missing on nodes to which mpirun connects by itself."""
    routes = "     |-- 10.0.0.2\n        /32 host LOCAL\n     |-- 10.0.0.255\n        /32 link BROADCAST\n"
    routes += "     |-- 127.0.0.1\n        /32 host LOCAL\n"
    interfaces = (
        "fd000000000000000000000000000002 02 40 00 80     eth0\n00000000000000000000000000000001 01 80 10 80 lo\n"
    )

    assert rank_launcher.addresses_in(routes, interfaces) == {"10.0.0.2", "fd00::2"}
    assert rank_launcher.addresses_in("odd", "odd") == set()

    nodes = [{"name": "x", "address": "10.0.0.1"}, {"name": socket.gethostname(), "address": ""}]
    assert rank_launcher.find_node(nodes, {})[0] == 1
    assert rank_launcher.find_node(nodes, {"PROVISION_NODE": "x"})[0] == 0


def test_a_plan_for_a_thousand_nodes_fits_and_a_longer_one_is_refused():
    """One variable holds 128 KiB."""
    ranks = tuple(
        RankPlacement((f"GPU-{i}",), (f"mlx5_{i}:1",), tuple(range(i * 8, i * 8 + 8)), i // 4) for i in range(8)
    )
    nodes = tuple(NodePlacement(f"gpu{i}", f"10.0.{i // 250}.{i % 250}", ranks) for i in range(1000))

    assert len(rank_variables(RankPlan(nodes))["PROVISION_RANKS"]) < 128 * 1024
    noise = tuple(NodePlacement(f"n{i}", environment={"A": os.urandom(64).hex()}) for i in range(4000))
    with pytest.raises(LaunchError, match="too long for one variable"):
        rank_variables(RankPlan(noise))
