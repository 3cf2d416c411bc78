"""A job's containers get what RDMA and GPUs need, and no more."""

from __future__ import annotations

from itertools import pairwise

import pytest

from provision.batch import mpi
from provision.batch.containers import NodeHardware, create_words, program_words
from provision.batch.ranks import Place, seats_of
from provision.model.job import JobSpec, Kind, Seat

PLACES = (Place("a", "10.0.0.1", (0, 1), ("GPU-0", "GPU-1")), Place("b", "10.0.0.2", (0, 1), ("GPU-2", "GPU-3")))


def words(spec: JobSpec, hardware: NodeHardware | None = None, **more: object) -> list[str]:
    """Return the words for the chief's container."""
    seats = seats_of(spec, PLACES)
    inside = [seat for seat in seats if seat.container == seats[0].container]
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
    assert "--privileged" in words(JobSpec("j", Kind.PYTORCH, ("x",), gpus=2, workers=2, privileged=True))


@pytest.mark.row(10, 17)
def test_gpus_go_by_uuid_in_the_order_of_the_ring() -> None:
    """Index 0 inside is the first of the ring."""
    assert ("--gpus", '"device=GPU-0,GPU-1"') in pairs(words(JobSpec("j", Kind.MPI, ("x",), gpus=2, workers=2)))
    without = seats_of(JobSpec("j", Kind.PYTORCH, ("x",)), [Place("a", "10.0.0.1")])
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

    assert mpi.mpi_command(JobSpec("j", Kind.MPI, (line,)), {}, 4) == ("sh", "-c", line)
    assert program_words(JobSpec("j", Kind.PYTORCH, (line,), shell="bash"))  # noqa: S604 - data == ("bash", "-c", line)


@pytest.mark.row(14)
def test_an_argument_vector_gets_mpirun_around_it() -> None:
    """With as many ranks as there are slots, and the variables by name."""
    found = mpi.mpi_command(JobSpec("j", Kind.MPI, ("python", "a b.py")), {"SECRET": "", "A": "1"}, 8)

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


def test_seats_of_other_jobs_have_other_names() -> None:
    """A container is named after its instance."""
    found = words(JobSpec("other", Kind.PYTORCH, ("x",), gpus=2, workers=2))

    assert ("--name", "other-master-0") in pairs(found)
    assert isinstance(seats_of(JobSpec("o", Kind.RUN, ("x",)), PLACES[:1])[0], Seat)
