import dataclasses
import shlex
import subprocess

import pytest

from provision.errors import LaunchError
from provision.jobs.preflight import check_logins, node_script, parse_node, read_logins
from provision.jobs.request import JobRequest, together
from provision.launchers import HostEntry
from provision.model import CommandResult
from provision.testing import FakeConnector, make_node

REQUEST = JobRequest(
    command=("python3", "train.py"),
    entries=(HostEntry("n1", "10.0.0.1", 2, "cpu"), HostEntry("n2", "10.0.0.2", 2, "cpu")),
    nodes={name: make_node(name) for name in ("n1", "n2")},
    head="n1",
    workdir="/w",
)
GOOD = "uid=0\nmpirun=/usr/bin/mpirun\nversion=mpirun (Open MPI) 4.1.4\nlibrary_path=\nprogram=/usr/bin/python3\n"


def judge(stdout, stderr="", code=0):
    return parse_node("n1", "c", CommandResult(stdout, stderr, code), REQUEST)


def test_a_complete_container_passes():
    """Version, path and user come from the container."""
    result = judge(GOOD)

    assert (result.version, result.mpirun, result.root, result.library_path) == (4, "/usr/bin/mpirun", True, False)


@pytest.mark.parametrize(
    ("version", "mpi"), [("HYDRA build details:", "mpich"), ("Intel(R) MPI Library for Linux* OS, Version", "intelmpi")]
)
def test_another_mpi_is_identified_by_the_output_of_its_launcher(version, mpi):
    """It has another command line."""
    result = judge(GOOD.replace("mpirun (Open MPI) 4.1.4", version))

    assert (result.mpi, result.version) == (mpi, 0)
    assert judge(GOOD).mpi == "openmpi"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (GOOD.replace("program=/usr/bin/python3", "program="), "the program python3 was not found"),
        (GOOD + "script=missing\n", "the file train.py was not found"),
        (GOOD + "workdir=missing\n", "the directory /w does not exist"),
        (GOOD.replace("mpirun=/usr/bin/mpirun", "mpirun="), "no Open MPI"),
        (GOOD.replace("mpirun (Open MPI) 4.1.4", "HYDRA"), "no Open MPI"),
        (GOOD.replace("4.1.4", "3.1.0"), "Open MPI 3"),
    ],
)
def test_a_missing_program_is_reported_before_the_start(said, words):
    """Exit code 125 with the node and the missing program; no process has started."""
    with pytest.raises(LaunchError, match=words) as caught:
        judge(said)

    assert (caught.value.node, caught.value.exit_code) == ("n1", 125)
    assert caught.value.remedy


def test_files_that_a_dry_run_does_not_copy_are_not_required():
    """`run --sync DIR --explain` explains; the remedy of a missing file would be --sync DIR."""
    request = dataclasses.replace(REQUEST, is_synced=False)
    result = CommandResult(GOOD + "script=missing\nworkdir=missing\n", "", 0)

    assert parse_node("n1", "c", result, request).mpi == "openmpi"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("Error: No such container: c", "does not exist"),
        ("Error response from daemon: Container 12 is not running", "is not running"),
        ("sh: 1: docker: not found", "docker is not installed"),
        ("anything else", "cannot be used"),
    ],
)
def test_a_missing_container_is_reported(said, words):
    """The state of the container is distinguished from its contents."""
    with pytest.raises(LaunchError, match=words):
        judge("", said, 1)


def test_words_of_the_user_cannot_change_the_script():
    """A program name with quotes is used literally."""
    script = node_script("c", ("a'b; rm -rf /", "x"), "/w d")

    done = subprocess.run(
        ["sh", "-c", f"docker() {{ printf '%s|' \"$@\"; }}; {script}"], capture_output=True, text=True, check=True
    )

    assert done.stdout.startswith("interface=\nexec|c|sh|-c|")
    assert shlex.quote("a'b; rm -rf /") in done.stdout


def test_the_error_for_a_missing_host_key_names_the_node():
    """A key that was removed from known_hosts stops the job."""
    said = (
        "provision-login n2 255\n"
        "No ED25519 host key is known for [n2]:2222 and you have requested strict checking.\n"
        "Host key verification failed.\n"
    )
    with pytest.raises(LaunchError, match="has no host key of n2's container") as caught:
        check_logins(FakeConnector({"ssh -F": said}, name="n1"), REQUEST, ["n2"])

    assert caught.value.node == "n2"
    assert "[n2]:2222" in caught.value.output


@pytest.mark.parametrize(
    ("said", "cause", "remedy"),
    [
        (
            "ssh: connect to host n2 port 2222: Connection timed out",
            "the data network between n1 and n2 (10.0.0.2) carries no connection",
            "Check the data network between n1 and n2 (10.0.0.2)",
        ),
        (
            "Connection timed out during banner exchange",
            "the data network between n1 and n2 (10.0.0.2) carries no connection",
            "ping 10.0.0.2",
        ),
        ("ssh: connect to host n2 port 2222: No route to host", "No route to host", "firewall"),
        ("ssh: connect to host n2 port 2222: Connection refused", "no sshd listens", "--limit n2` starts it"),
        ("ssh: Could not resolve hostname n2", "cannot resolve the name n2", "--only base_system"),
        ("kex_exchange_identification: Connection closed", "Connection closed", "provision verify"),
    ],
)
def test_only_a_refused_key_has_the_remedy_to_exchange_keys(said, cause, remedy):
    """Keys are exchanged over SSH from the controller, which does not fix a blocked data network."""
    text = f"provision-login n2 255\n{said}\n"
    with pytest.raises(LaunchError) as caught:
        check_logins(FakeConnector({"ssh -F": text}, name="n1"), REQUEST, ["n2"])

    assert cause in str(caught.value)
    assert remedy in caught.value.remedy
    assert "exchanges the keys" not in caught.value.remedy


@pytest.mark.parametrize(
    "said", ["No ED25519 host key is known for n2", "HOST IDENTIFICATION HAS CHANGED", "root@n2: Permission denied"]
)
def test_a_refused_key_has_the_remedy_to_exchange_keys(said):
    with pytest.raises(LaunchError) as caught:
        check_logins(FakeConnector({"ssh -F": f"provision-login n2 255\n{said}\n"}, name="n1"), REQUEST, ["n2"])

    assert "exchanges the keys" in caught.value.remedy


def test_a_node_without_an_answer_is_unreachable():
    """Silence never counts as success."""
    assert read_logins("provision-login n2 0\n\n", ["n2", "n3"]) == {"n3": ""}


def test_a_job_on_one_node_needs_no_ssh_keys():
    """The head runs no check of other nodes."""
    connector = FakeConnector({})
    check_logins(connector, REQUEST, [])

    assert connector.scripts == []


def test_equal_errors_of_nodes_are_reported_once():
    """One sentence with all names for equal reasons, otherwise one for each."""
    same = together({name: LaunchError("the disk is full", node=name) for name in ("n1", "n2")})
    mixed = together({"n1": LaunchError("a", node="n1"), "n2": LaunchError("b", node="n2", output="why")})

    assert same.message == "the disk is full (on n1, n2)"
    assert mixed.output == "n1: a\nn2: b\n  why"


@pytest.mark.parametrize(
    ("launcher", "missing", "words"),
    [
        ("torchrun", "program=\n", "the program torchrun was not found"),
        ("torchrun", "script=missing\n", "the file train.py was not found"),
        ("launch", "program=\n", "the program python3 was not found"),
        ("launch", "script=missing\n", "the file train.py was not found"),
    ],
)
def test_the_launcher_and_script_of_torch_are_checked_on_the_nodes(launcher, missing, words):
    """Neither of them is the first word of the command."""
    request = dataclasses.replace(REQUEST, launcher=launcher, command=("train.py",))
    said = f"{GOOD.replace('program=/usr/bin/python3', '')}program=/x\n{missing}"
    with pytest.raises(LaunchError, match=words) as caught:
        parse_node("n1", "c", CommandResult(said, "", 0), request)

    assert "script=" in missing or f"image that has {request.program[0]}" in caught.value.remedy
    script = node_script("c", request.program, None)
    assert f"command -v -- {request.program[0]}" in script
    assert "[ -e train.py ]" in script


def test_mpirun_is_checked_at_the_path_of_the_inventory():
    """An image may contain two."""
    script = node_script("c", ("prog",), None, mpirun="/opt/my mpi/bin/mpirun")

    assert "/opt/my mpi/bin/mpirun" in shlex.split(script.partition(chr(10))[2])[-1]
    assert "--version" in script
