"""Containers of jobs have only the rights that RDMA and GPUs require."""

from __future__ import annotations

import os
import re
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from provision.batch import mpi
from provision.batch.containers import SHARE, NodeHardware, create_words, program_words
from provision.batch.ranks import Place, assignments_of
from provision.model.job import Assignment, JobSpec, Kind
from tests.support.node.archive import NODE

PLACES = (Place("a", "10.0.0.1", (0, 1), ("GPU-0", "GPU-1")), Place("b", "10.0.0.2", (0, 1), ("GPU-2", "GPU-3")))


def words(spec: JobSpec, hardware: NodeHardware | None = None, **more: object) -> list[str]:
    """Return the arguments for the leader's container."""
    assignments = assignments_of(spec, PLACES)
    inside = [assignment for assignment in assignments if assignment.container == assignments[0].container]
    hardware = hardware or NodeHardware()
    return create_words(spec, inside, "sha256:1", labels={"provision.job": "j"}, hardware=hardware, folder="/f", **more)  # type: ignore[arg-type]


def pairs(arguments: list[str]) -> list[tuple[str, str]]:
    """Return each argument with the next one."""
    return list(pairwise(arguments))


@pytest.mark.row(48, 49)
def test_no_container_is_privileged_by_default() -> None:
    """Only --privileged makes it so."""
    job = JobSpec("j", Kind.PYTORCH, ("x",), gpus=2, workers=2)

    assert "--privileged" not in words(job)
    asked = words(JobSpec("j", Kind.RUN, ("x",), gpus=2, workers=2, privileged=True, ulimits={"nofile": "9"}))
    assert {("--ulimit", "memlock=-1"), ("--ulimit", "nofile=9")} <= set(pairs(asked))
    assert "--privileged" in words(JobSpec("j", Kind.PYTORCH, ("x",), gpus=2, workers=2, privileged=True))


def test_a_container_of_an_account_gains_no_privileges() -> None:
    """Not by a setuid program of its image, and not if it is privileged; containers of root are unchanged."""
    job = {"command": ("x",), "gpus": 2, "workers": 2}
    of_account = pairs(words(JobSpec("j", Kind.PYTORCH, user="2042:2042,44", **job)))
    privileged = pairs(words(JobSpec("j", Kind.PYTORCH, user="2042:2042", privileged=True, **job)))
    of_root = [pairs(words(JobSpec("j", Kind.PYTORCH, user=user, **job))) for user in ("", "0:0")]

    assert ("--security-opt", "no-new-privileges") in of_account
    assert ("--security-opt", "no-new-privileges") in privileged
    assert [name for word, name in of_account if word == "--cap-drop"] == ["ALL"]
    assert {name for word, name in of_account if word == "--cap-add"} == {"IPC_LOCK", "SYS_NICE", "SYS_PTRACE"}
    for arguments in of_root:
        assert "--security-opt" not in dict(arguments)
        assert [name for word, name in arguments if word == "--cap-drop"] == ["MKNOD", "NET_RAW"]


@pytest.mark.row(10, 17)
def test_gpus_are_selected_by_uuid_in_the_order_of_the_ring() -> None:
    """Index 0 in the container is the first one of the ring."""
    assert ("--gpus", '"device=GPU-0,GPU-1"') in pairs(words(JobSpec("j", Kind.MPI, ("x",), gpus=2, workers=2)))
    without = assignments_of(JobSpec("j", Kind.PYTORCH, ("x",)), [Place("a", "10.0.0.1")])
    arguments = create_words(
        JobSpec("j", Kind.RUN, ("x",)), without, "i", labels={}, hardware=NodeHardware(), folder="/f"
    )
    assert "--gpus" not in arguments


@pytest.mark.row(48)
def test_containers_get_the_devices_and_limits_of_the_node() -> None:
    """docker refuses limits above those of the node."""
    hardware = NodeHardware(("/dev/infiniband/uverbs0",), {"memlock": 65536})
    arguments = pairs(words(JobSpec("j", Kind.PYTORCH, ("x",), ulimits={"nofile": "4096"}), hardware))

    assert ("--device", "/dev/infiniband/uverbs0") in arguments
    assert ("--ulimit", "memlock=65536") in arguments
    assert ("--ulimit", "nofile=4096") in arguments
    assert ("--cap-add", "IPC_LOCK") in arguments


@pytest.mark.row(13, 14)
def test_a_command_line_is_not_split() -> None:
    """The shell parses quotes and pipes."""
    line = 'mpirun -np "4" python x.py | tee log'

    assert mpi.mpi_command(JobSpec("j", Kind.MPI, (line,)), [], 4) == ("sh", "-c", line)
    assert program_words(JobSpec("j", Kind.PYTORCH, (line,), shell="bash"))  # noqa: S604 - data == ("bash", "-c", line)


@pytest.mark.row(14)
def test_an_argument_vector_is_started_by_mpirun() -> None:
    """With one rank for each slot, and the names of the variables."""
    arguments = mpi.mpi_command(JobSpec("j", Kind.MPI, ("python", "a b.py")), ["SECRET", "A"], 8)

    assert arguments[:2] == ("mpirun", "--allow-run-as-root")
    assert ("-np", "8") in pairs(list(arguments))
    assert [arguments[i + 1] for i, word in enumerate(arguments) if word == "-x"] == ["A", "SECRET"]
    assert arguments[-2:] == ("python", "a b.py")


@pytest.mark.row(51)
def test_containers_authenticate_each_other() -> None:
    """Host keys are verified, and only keys of the job are accepted."""
    logins = [mpi.Login("a", "10.0.0.1", 40001, "ssh-ed25519 CA", "ssh-ed25519 HA")]
    files = mpi.login_files(logins)

    assert "StrictHostKeyChecking yes" in files["ssh_config"]
    assert "Port 40001" in files["ssh_config"]
    assert files["known_hosts"] == "[10.0.0.1]:40001 ssh-ed25519 HA\n"
    assert files["authorized_keys"] == "restrict,pty ssh-ed25519 CA\n"
    assert "HostKey=/provision-ssh/host" in " ".join(mpi.sshd_command(logins[0]))


@pytest.mark.parametrize("new", [True, False])
def test_sshd_refuses_outdated_algorithms(tmp_path: Path, new: bool) -> None:  # noqa: FBT001
    """They are removed from the image's list; an older sshd gets a complete list."""
    program = tmp_path / "sshd"
    refused = "false" if new else 'case "$*" in *=-*) true;; *) false;; esac'
    program.write_text(f'#!/bin/sh\nif {refused}; then exit 1; fi\ncase "$1" in -D) printf "%s\\n" "$@";; esac\n')
    program.chmod(0o755)
    line = mpi.sshd_command(mpi.Login("a", "10.0.0.1", 40001, "", ""))[2].replace(mpi.RUN_FOLDER, str(tmp_path))
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True, env=environment)
    given = dict(word.split("=", 1) for word in done.stdout.splitlines() if "=" in word)
    options = [f"-o{name}={given[name]}" for name in ("KexAlgorithms", "Ciphers", "MACs", "PubkeyAcceptedKeyTypes")]
    read = subprocess.run(["ssh", "-G", "-F", "none", *options, "x"], capture_output=True, text=True, check=True).stdout
    arguments = [
        line for line in read.splitlines() if line.startswith(("kexalgorithms", "ciphers", "macs", "pubkeyacc"))
    ]

    assert given["MACs"].startswith("-") is new
    assert len(arguments) == 4
    assert [line for line in arguments if re.search(r"sha1|md5|cbc|arcfour|rsa|group1-", line)] == []


@pytest.mark.row(58)
def test_torchrun_starts_the_command() -> None:
    """The user's command follows its options."""
    assert program_words(JobSpec("j", Kind.PYTORCH, ("train.py", "-x"), launcher="torchrun")) == (
        "torchrun",
        "train.py",
        "-x",
    )


@pytest.mark.row(14)
def test_an_mpirun_command_line_uses_the_environment() -> None:
    """It contains host file, SSH command and data interfaces, so that the command line needs no options."""
    arguments = mpi.launcher_variables(["ens4"])

    assert arguments["OMPI_MCA_orte_default_hostfile"] == "/provision/hostfile"
    assert arguments["OMPI_MCA_plm_rsh_args"] == "-F /provision/ssh_config"
    assert arguments["OMPI_MCA_orte_keep_fqdn_hostnames"] == "t"
    assert arguments["OMPI_MCA_btl_tcp_if_include"] == arguments["PRTE_MCA_prte_if_include"] == "ens4"
    assert not any(name.endswith("_if_include") for name in mpi.launcher_variables([]))


def test_every_launcher_gets_a_host_file_in_its_format() -> None:
    """Hydra (MPICH, Intel MPI) does not support ``slots=``."""
    spec = JobSpec("j", Kind.MPI, ("x",), gpus=2, workers=2)
    files = mpi.files(spec, assignments_of(spec, PLACES), [])
    arguments = mpi.launcher_variables([])

    def variable(name: str) -> str:
        return files[arguments[name].removeprefix("/provision/")]

    assert (
        variable("OMPI_MCA_orte_default_hostfile")
        == variable("PRTE_MCA_prte_default_hostfile")
        == "a slots=2\nb slots=2\n"
    )
    assert variable("HYDRA_HOST_FILE") == variable("I_MPI_HYDRA_HOST_FILE") == "a:2\nb:2\n"
    assert arguments["I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"] == "-F /provision/ssh_config"


def test_containers_have_the_names_of_their_instances() -> None:
    """They differ between jobs."""
    arguments = words(JobSpec("other", Kind.PYTORCH, ("x",), gpus=2, workers=2))

    assert ("--name", "other-master-0") in pairs(arguments)
    assert isinstance(assignments_of(JobSpec("o", Kind.RUN, ("x",)), PLACES[:1])[0], Assignment)


MPI = {"kind": Kind.MPI, "gpus": 2, "workers": 2}


@pytest.mark.parametrize(
    ("command", "more", "expected"),
    [
        (("mpirun -np 4 x",), {}, ("sh", "-c", "mpirun -np 4 x")),
        (("mpirun", "-np", "4", "x"), {}, ("mpirun", "-np", "4", "x")),
        (("horovodrun", "-np", "4", "x"), {"launcher": "mpirun"}, ("horovodrun", "-np", "4", "x")),
        (("hostname",), {}, ("sh", "-c", "hostname")),
        (("python3", "x.py"), {"launcher": "python"}, ("python3", "x.py")),
    ],
)
def test_a_command_that_starts_its_ranks_is_unchanged(command, more, expected) -> None:
    """mpirun does not start mpirun, and a shell command line runs once."""
    assert mpi.mpi_command(JobSpec("j", command=command, **MPI, **more), [], 4) == expected


@pytest.mark.row(14)
@pytest.mark.parametrize(
    ("command", "more", "ranks", "program"),
    [
        (("python3", "x.py"), {}, "4", ("python3", "x.py")),
        (("python3", "x.py"), {"launcher": "mpirun"}, "4", ("python3", "x.py")),
        (("python3 x.py | tee l",), {"launcher": "mpirun"}, "4", ("sh", "-c", "python3 x.py | tee l")),
        (("python3 x.py",), {"launcher": "mpirun", "ranks": 2}, "2", ("sh", "-c", "python3 x.py")),
    ],
)
def test_np_starts_the_command_on_every_slot(command, more, ranks, program) -> None:
    """--np auto and --np N, for shell command lines and argument vectors."""
    arguments = mpi.mpi_command(JobSpec("j", command=command, **MPI, **more), ["LR"], 4)

    assert ("-np", ranks) in pairs(list(arguments))
    assert arguments[: arguments.index("-np")] == ("mpirun", "--allow-run-as-root")
    assert arguments[-len(program) - 2 :] == ("-x", "LR", *program)


@pytest.mark.row(58)
@pytest.mark.parametrize(
    ("command", "more", "expected"),
    [
        (("python3", "-u", "x.py", "-u"), {"launcher": "torchrun"}, ("torchrun", "x.py", "-u")),
        (("python3", "x.py"), {"nproc_per_node": "auto"}, ("torchrun", "x.py")),
        (("x.py",), {"launcher": "torchrun"}, ("sh", "-c", "torchrun x.py")),
        (("/usr/bin/python3.10 x.py && ls",), {"launcher": "torchrun"}, ("sh", "-c", "torchrun x.py && ls")),
        (("torchrun", "x.py"), {"nproc_per_node": "2"}, ("torchrun", "x.py")),
        (("torchrun x.py",), {"launcher": "torchrun"}, ("sh", "-c", "torchrun x.py")),
        (("python x.py",), {"nproc_per_node": "2"}, ("sh", "-c", "python x.py")),
        (("python", "-m", "a.b"), {"launcher": "torchrun"}, ("torchrun", "-m", "a.b")),
        (("python", "x.py"), {"launcher": "python"}, ("python", "x.py")),
        (("python3", "t.py"), {"nproc_per_node": "4"}, ("torchrun", "t.py")),
        (("accelerate", "launch", "x.py"), {"nproc_per_node": "2"}, ("accelerate", "launch", "x.py")),
        (("deepspeed", "x.py"), {"launcher": "torchrun"}, ("deepspeed", "x.py")),
        (
            ("python3", "-u", "-m", "torch.distributed.run", "x.py"),
            {"nproc_per_node": "2"},
            ("python3", "-u", "-m", "torch.distributed.run", "x.py"),
        ),
        (("A=1 B='2 3' python3 x.py",), {"launcher": "torchrun"}, ("sh", "-c", "A=1 B='2 3' torchrun x.py")),
        (("python_tool.py -u",), {"launcher": "torchrun"}, ("sh", "-c", "torchrun python_tool.py -u")),
    ],
)
def test_launchers_of_torch_get_the_script(command, more, expected) -> None:
    """torchrun does not start torchrun; --nproc-per-node does not change a shell command line."""
    assert program_words(JobSpec("j", Kind.PYTORCH, command, **more)) == expected


@pytest.mark.parametrize(("user", "owner"), [("", "1777"), ("1000:100,44", "0700,uid=1000,gid=100")])
def test_an_mpi_job_has_a_private_tmpfs(user, owner) -> None:
    """Sessions of sshd read their variables from it; other jobs have no sshd."""
    arguments = pairs(words(JobSpec("j", command=("x",), user=user, **MPI)))

    assert ("--tmpfs", f"/provision-run:rw,mode={owner}") in arguments
    assert "--tmpfs" not in words(JobSpec("j", Kind.PYTORCH, ("x",), gpus=2, workers=2, user=user))


@pytest.mark.row(58)
def test_torch_distributed_launch_gets_arguments() -> None:
    """As in the guide."""
    line = program_words(JobSpec("j", Kind.PYTORCH, ("python", "x.py"), launcher="launch"))

    assert line[2].startswith("python3 -m torch.distributed.launch --nproc_per_node=")
    assert line[2:] == (line[2], "sh", "x.py")
    assert '--node_rank="$PET_NODE_RANK" --master_addr="$MASTER_ADDR"' in line[2]


def test_files_of_the_submitter_are_mounted_read_only() -> None:
    arguments = pairs(words(JobSpec("j", Kind.RUN, ("x",), config_files=("/home/me/c:/etc/c", "/d:/d"))))

    assert ("--volume", "/f/config/0:/etc/c:ro") in arguments
    assert ("--volume", "/f/config/1:/d:ro") in arguments


def shared(tmp_path: Path, *command: str, path: str = "", **more: Any) -> tuple[int, str, str, dict[str, str]]:
    """Run the command of an instance; return exit code, output, errors and the logs of the processes."""
    logs = tmp_path / "logs"
    spec = JobSpec("j", Kind.PYTORCH, command, gpus=1, logdir=f"{logs}", mounts=(f"/x:{logs}",), **more)
    line = [word.replace(f"{mpi.MOUNT}/{SHARE}", str(NODE / "run" / SHARE)) for word in program_words(spec)]
    environment = {"PATH": path or os.environ["PATH"], "PROVISION_INSTANCE": "j-master-0"}
    done = subprocess.run(["/bin/sh", *line[1:]], capture_output=True, text=True, check=False, env=environment)
    arguments = {file.name: file.read_text() for file in (logs / "j-master-0").glob("*.file")}
    return done.returncode, done.stdout, done.stderr, arguments


@pytest.mark.row(62)
def test_processes_share_a_gpu(tmp_path: Path) -> None:
    """Each has an index and a log in --logdir; a shell command line gets the index as an argument."""
    code, out, _, logs = shared(tmp_path, "echo go; echo", procs_per_gpu=2)

    assert code == 0
    assert sorted(out.splitlines()) == sorted(
        f"[process{n}] {text}" for n in (0, 1) for text in ("go", f"--process_index {n} --process_num 2")
    )
    assert logs == {f"process{n}.file": f"go\n--process_index {n} --process_num 2\n" for n in (0, 1)}


@pytest.mark.row(62)
def test_the_first_failed_process_determines_the_exit_code(tmp_path: Path) -> None:
    """A command line that contains PROCESS_INDEX gets no arguments."""
    code, _, said, _ = shared(tmp_path, 'if [ "$PROCESS_INDEX" = 1 ]; then exit 7; fi; exec sleep 30', procs_per_gpu=2)

    assert code == 7
    assert "process 1" in said


def test_an_image_without_python_is_reported(tmp_path: Path) -> None:
    """And not by `not arguments` alone."""
    code, _, said, _ = shared(tmp_path, "x", path=str(tmp_path), procs_per_gpu=2)

    assert (code, said) == (127, "provision: --procs-per-gpu needs python3 in the image\n")
