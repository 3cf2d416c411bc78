"""A job's containers get what RDMA and GPUs need, and no more."""

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
    """Return the words for the chief's container."""
    assignments = assignments_of(spec, PLACES)
    inside = [assignment for assignment in assignments if assignment.container == assignments[0].container]
    hardware = hardware or NodeHardware()
    return create_words(spec, inside, "sha256:1", labels={"provision.job": "j"}, hardware=hardware, folder="/f", **more)  # type: ignore[arg-type]


def pairs(found: list[str]) -> list[tuple[str, str]]:
    """Return each word with its next."""
    return list(pairwise(found))


@pytest.mark.row(48, 49)
def test_no_container_is_privileged_unless_it_was_asked_for() -> None:
    """The guide's --privileged is the exception here."""
    job = JobSpec("j", Kind.PYTORCH, ("x",), gpus=2, workers=2)

    assert "--privileged" not in words(job)
    asked = words(JobSpec("j", Kind.RUN, ("x",), gpus=2, workers=2, privileged=True, ulimits={"nofile": "9"}))
    assert {("--ulimit", "memlock=-1"), ("--ulimit", "nofile=9")} <= set(pairs(asked))
    assert "--privileged" in words(JobSpec("j", Kind.PYTORCH, ("x",), gpus=2, workers=2, privileged=True))


def test_a_container_of_an_account_gains_no_privileges() -> None:
    """Not by a setuid program of its image, and not where it is privileged; root's containers are as they were."""
    job = {"command": ("x",), "gpus": 2, "workers": 2}
    of_account = pairs(words(JobSpec("j", Kind.PYTORCH, user="2042:2042,44", **job)))
    privileged = pairs(words(JobSpec("j", Kind.PYTORCH, user="2042:2042", privileged=True, **job)))
    of_root = [pairs(words(JobSpec("j", Kind.PYTORCH, user=user, **job))) for user in ("", "0:0")]

    assert ("--security-opt", "no-new-privileges") in of_account
    assert ("--security-opt", "no-new-privileges") in privileged
    assert [name for word, name in of_account if word == "--cap-drop"] == ["ALL"]
    assert {name for word, name in of_account if word == "--cap-add"} == {"IPC_LOCK", "SYS_NICE", "SYS_PTRACE"}
    for found in of_root:
        assert "--security-opt" not in dict(found)
        assert [name for word, name in found if word == "--cap-drop"] == ["MKNOD", "NET_RAW"]


@pytest.mark.row(10, 17)
def test_gpus_go_by_uuid_in_the_order_of_the_ring() -> None:
    """Index 0 inside is the first of the ring."""
    assert ("--gpus", '"device=GPU-0,GPU-1"') in pairs(words(JobSpec("j", Kind.MPI, ("x",), gpus=2, workers=2)))
    without = assignments_of(JobSpec("j", Kind.PYTORCH, ("x",)), [Place("a", "10.0.0.1")])
    found = create_words(JobSpec("j", Kind.RUN, ("x",)), without, "i", labels={}, hardware=NodeHardware(), folder="/f")
    assert "--gpus" not in found


@pytest.mark.row(48)
def test_devices_and_limits_are_those_of_the_node() -> None:
    """docker refuses a limit above the node's own."""
    hardware = NodeHardware(("/dev/infiniband/uverbs0",), {"memlock": 65536})
    found = pairs(words(JobSpec("j", Kind.PYTORCH, ("x",), ulimits={"nofile": "4096"}), hardware))

    assert ("--device", "/dev/infiniband/uverbs0") in found
    assert ("--ulimit", "memlock=65536") in found
    assert ("--ulimit", "nofile=4096") in found
    assert ("--cap-add", "IPC_LOCK") in found


@pytest.mark.row(13, 14)
def test_a_typed_line_is_never_split() -> None:
    """Quotes and pipes are the shell's."""
    line = 'mpirun -np "4" python x.py | tee log'

    assert mpi.mpi_command(JobSpec("j", Kind.MPI, (line,)), [], 4) == ("sh", "-c", line)
    assert program_words(JobSpec("j", Kind.PYTORCH, (line,), shell="bash"))  # noqa: S604 - data == ("bash", "-c", line)


@pytest.mark.row(14)
def test_an_argument_vector_gets_mpirun_around_it() -> None:
    """With as many ranks as there are slots, and the variables by name."""
    found = mpi.mpi_command(JobSpec("j", Kind.MPI, ("python", "a b.py")), ["SECRET", "A"], 8)

    assert found[:2] == ("mpirun", "--allow-run-as-root")
    assert ("-np", "8") in pairs(list(found))
    assert [found[i + 1] for i, word in enumerate(found) if word == "-x"] == ["A", "SECRET"]
    assert found[-2:] == ("python", "a b.py")


@pytest.mark.row(51)
def test_containers_know_each_other_by_key_and_port() -> None:
    """No key is taken unseen, and nobody else is let in."""
    logins = [mpi.Login("a", "10.0.0.1", 40001, "ssh-ed25519 CA", "ssh-ed25519 HA")]
    files = mpi.login_files(logins)

    assert "StrictHostKeyChecking yes" in files["ssh_config"]
    assert "Port 40001" in files["ssh_config"]
    assert files["known_hosts"] == "[10.0.0.1]:40001 ssh-ed25519 HA\n"
    assert files["authorized_keys"] == "restrict,pty ssh-ed25519 CA\n"
    assert "HostKey=/provision-ssh/host" in " ".join(mpi.sshd_command(logins[0]))


@pytest.mark.parametrize("new", [True, False])
def test_a_workers_sshd_accepts_nothing_outdated(tmp_path: Path, new: bool) -> None:  # noqa: FBT001
    """Outdated algorithms are removed from the image's own; an sshd that cannot do that gets a list of its time."""
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
    found = [line for line in read.splitlines() if line.startswith(("kexalgorithms", "ciphers", "macs", "pubkeyacc"))]

    assert given["MACs"].startswith("-") is new
    assert len(found) == 4
    assert [line for line in found if re.search(r"sha1|md5|cbc|arcfour|rsa|group1-", line)] == []


@pytest.mark.row(58)
def test_torchrun_goes_around_the_command_when_asked_for() -> None:
    """What follows it is the user's."""
    assert program_words(JobSpec("j", Kind.PYTORCH, ("train.py", "-x"), launcher="torchrun")) == (
        "torchrun",
        "train.py",
        "-x",
    )


@pytest.mark.row(14)
def test_a_typed_mpirun_finds_the_nodes_by_its_environment() -> None:
    """Host file, the job's own way of ssh and the data interfaces, so that the line itself needs none of them."""
    found = mpi.launcher_variables(["ens4"])

    assert found["OMPI_MCA_orte_default_hostfile"] == "/provision/hostfile"
    assert found["OMPI_MCA_plm_rsh_args"] == "-F /provision/ssh_config"
    assert found["OMPI_MCA_orte_keep_fqdn_hostnames"] == "t"
    assert found["OMPI_MCA_btl_tcp_if_include"] == found["PRTE_MCA_prte_if_include"] == "ens4"
    assert not any(name.endswith("_if_include") for name in mpi.launcher_variables([]))


def test_every_launcher_is_told_a_host_file_in_its_own_dialect() -> None:
    """Hydra (MPICH, Intel MPI) ends at ``slots=``, which it does not know."""
    spec = JobSpec("j", Kind.MPI, ("x",), gpus=2, workers=2)
    files = mpi.files(spec, assignments_of(spec, PLACES), [])
    found = mpi.launcher_variables([])

    def told(name: str) -> str:
        return files[found[name].removeprefix("/provision/")]

    assert told("OMPI_MCA_orte_default_hostfile") == told("PRTE_MCA_prte_default_hostfile") == "a slots=2\nb slots=2\n"
    assert told("HYDRA_HOST_FILE") == told("I_MPI_HYDRA_HOST_FILE") == "a:2\nb:2\n"
    assert found["I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"] == "-F /provision/ssh_config"


def test_seats_of_other_jobs_have_other_names() -> None:
    """A container is named after its instance."""
    found = words(JobSpec("other", Kind.PYTORCH, ("x",), gpus=2, workers=2))

    assert ("--name", "other-master-0") in pairs(found)
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
def test_a_command_that_starts_its_ranks_is_left_as_it_is(command, more, expected) -> None:
    """mpirun is never started by mpirun, and a line of the shell runs once."""
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
    """--np auto and --np N, for a line of the shell as well as for single words."""
    found = mpi.mpi_command(JobSpec("j", command=command, **MPI, **more), ["LR"], 4)

    assert ("-np", ranks) in pairs(list(found))
    assert found[: found.index("-np")] == ("mpirun", "--allow-run-as-root")
    assert found[-len(program) - 2 :] == ("-x", "LR", *program)


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
def test_torchs_launchers_get_the_script_and_not_the_interpreter(command, more, expected) -> None:
    """torchrun takes a script, and is never started by itself; --nproc-per-node alone leaves a typed line."""
    assert program_words(JobSpec("j", Kind.PYTORCH, command, **more)) == expected


@pytest.mark.parametrize(("user", "owner"), [("", "1777"), ("1000:100,44", "0700,uid=1000,gid=100")])
def test_an_mpi_job_has_memory_of_its_account_alone(user, owner) -> None:
    """Where sshd's sessions find their variables; other jobs have no sshd."""
    found = pairs(words(JobSpec("j", command=("x",), user=user, **MPI)))

    assert ("--tmpfs", f"/provision-run:rw,mode={owner}") in found
    assert "--tmpfs" not in words(JobSpec("j", Kind.PYTORCH, ("x",), gpus=2, workers=2, user=user))


@pytest.mark.row(58)
def test_launch_gets_what_it_does_not_read_from_variables() -> None:
    """As the document types it."""
    line = program_words(JobSpec("j", Kind.PYTORCH, ("python", "x.py"), launcher="launch"))

    assert line[2].startswith("python3 -m torch.distributed.launch --nproc_per_node=")
    assert line[2:] == (line[2], "sh", "x.py")
    assert '--node_rank="$PET_NODE_RANK" --master_addr="$MASTER_ADDR"' in line[2]


def test_files_of_the_submitter_s_machine_are_mounted_read_only() -> None:
    found = pairs(words(JobSpec("j", Kind.RUN, ("x",), config_files=("/home/me/c:/etc/c", "/d:/d"))))

    assert ("--volume", "/f/config/0:/etc/c:ro") in found
    assert ("--volume", "/f/config/1:/d:ro") in found


def shared(tmp_path: Path, *command: str, path: str = "", **more: Any) -> tuple[int, str, str, dict[str, str]]:
    """Run the command of an instance as its container would; return code, output and the logs of the processes."""
    logs = tmp_path / "logs"
    spec = JobSpec("j", Kind.PYTORCH, command, gpus=1, logdir=f"{logs}", mounts=(f"/x:{logs}",), **more)
    line = [word.replace(f"{mpi.MOUNT}/{SHARE}", str(NODE / "run" / SHARE)) for word in program_words(spec)]
    environment = {"PATH": path or os.environ["PATH"], "PROVISION_INSTANCE": "j-master-0"}
    done = subprocess.run(["/bin/sh", *line[1:]], capture_output=True, text=True, check=False, env=environment)
    found = {file.name: file.read_text() for file in (logs / "j-master-0").glob("*.file")}
    return done.returncode, done.stdout, done.stderr, found


@pytest.mark.row(62)
def test_processes_share_a_gpu_as_the_document_has_it(tmp_path: Path) -> None:
    """Each has its number and a log of its own in --logdir; a line of the shell passes the number on."""
    code, out, _, logs = shared(tmp_path, "echo go; echo", procs_per_gpu=2)

    assert code == 0
    assert sorted(out.splitlines()) == sorted(
        f"[process{n}] {text}" for n in (0, 1) for text in ("go", f"--process_index {n} --process_num 2")
    )
    assert logs == {f"process{n}.file": f"go\n--process_index {n} --process_num 2\n" for n in (0, 1)}


@pytest.mark.row(62)
def test_the_first_process_that_fails_is_the_job_s_code(tmp_path: Path) -> None:
    """A line that uses PROCESS_INDEX gets no words behind it."""
    code, _, said, _ = shared(tmp_path, 'if [ "$PROCESS_INDEX" = 1 ]; then exit 7; fi; exec sleep 30', procs_per_gpu=2)

    assert code == 7
    assert "process 1" in said


def test_an_image_without_python_is_told(tmp_path: Path) -> None:
    """And not by `not found` alone."""
    code, _, said, _ = shared(tmp_path, "x", path=str(tmp_path), procs_per_gpu=2)

    assert (code, said) == (127, "provision: --procs-per-gpu needs python3 in the image\n")
