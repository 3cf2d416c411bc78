import pytest

from provision.commands.mpirun import Launch, mpirun_argv, parse_version

LAUNCH = Launch(
    version=4,
    ranks=4,
    hostfile="/tmp/h",
    command=("python3", "train.py", "--lr", "0.1"),
    job="abc",
    networks=("10.1.0.0/24", "10.2.0.0/24"),
)


def pairs(argv, flag):
    """The KEY VALUE pairs that follow each `flag`."""
    return {argv[i + 1]: argv[i + 2] for i, word in enumerate(argv) if word == flag}


def with_changes(**changes):
    return mpirun_argv(Launch(**{**LAUNCH.__dict__, **changes}))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("mpirun (Open MPI) 4.1.4", 4),
        ("mpirun (Open MPI) 5.0.7\n\nReport bugs", 5),
        ("HYDRA build details:", None),
        ("Intel(R) MPI Library", None),
        ("", None),
    ],
)
def test_only_open_mpi_is_taken_for_open_mpi(text, version):
    """The version comes from mpirun's own words, and another MPI is not mistaken for it."""
    assert parse_version(text) == version


def test_the_command_comes_last_and_unchanged():
    """The user's words reach the ranks as they were typed."""
    argv = mpirun_argv(LAUNCH)

    assert argv[0] == "mpirun"
    assert argv[-4:] == ["python3", "train.py", "--lr", "0.1"]


def test_version_4_is_spoken_to_in_its_own_dialect():
    """Open MPI 4 gets ORTE's names: agent, launch agent, networks by CIDR for data and control."""
    settings = pairs(mpirun_argv(LAUNCH), "--mca")

    assert settings["plm_rsh_agent"] == "ssh -F /etc/provision/ssh/ssh_config"
    assert settings["orte_launch_agent"] == "env PROVISION_JOB=abc orted"
    assert settings["btl"] == "self,vader,tcp"
    assert settings["pml"] == "ob1"
    assert settings["btl_tcp_if_include"] == settings["oob_tcp_if_include"] == "10.1.0.0/24,10.2.0.0/24"
    assert "--tag-output" in mpirun_argv(LAUNCH)


def test_version_5_is_spoken_to_in_its_own_dialect():
    """Open MPI 5 gets PRRTE's names and no option that it would warn about."""
    argv = with_changes(version=5, interfaces=("ens4",))
    runtime = pairs(argv, "--prtemca")

    assert runtime["plm_ssh_agent"] == "ssh -F /etc/provision/ssh/ssh_config"
    assert runtime["prte_launch_agent"] == "env PROVISION_JOB=abc prted"
    assert runtime["prte_if_include"] == "ens4"
    assert pairs(argv, "--mca")["btl_tcp_if_include"] == "10.1.0.0/24,10.2.0.0/24"
    assert pairs(argv, "--mca")["btl"] == "self,sm,tcp"
    assert not {"plm_rsh_agent", "orte_launch_agent", "oob_tcp_if_include"} & set(argv)
    assert argv[argv.index("--output") + 1] == "tag"


@pytest.mark.parametrize("root", [True, False])
def test_root_is_allowed_only_where_it_is_root(root):
    """--allow-run-as-root stands there exactly when the container's user is root."""
    assert ("--allow-run-as-root" in with_changes(root=root)) is root


def test_variables_go_by_name_and_never_by_value():
    """Every rank gets the asked-for variables, whose values stay off the command line."""
    argv = with_changes(environment=("TOKEN",))

    assert [argv[i + 1] for i, word in enumerate(argv) if word == "-x"] == ["PROVISION_JOB", "TOKEN"]


@pytest.mark.parametrize(("version", "control"), [(4, "oob_tcp_if_include"), (5, "prte_if_include")])
def test_without_networks_the_nodes_data_interfaces_are_used(version, control):
    """docker's bridge, which has one address everywhere, is never tried."""
    argv = with_changes(version=version, networks=(), interfaces=("ens4", "bond0"))

    assert argv[argv.index(control) + 1] == argv[argv.index("btl_tcp_if_include") + 1] == "ens4,bond0"


def test_nothing_known_is_nothing_said():
    """Without networks and interfaces Open MPI chooses by itself."""
    assert not any("if_include" in word for word in with_changes(networks=()))


def test_the_working_folder_is_said_only_when_asked_for():
    """Without a folder each rank starts in the image's own."""
    assert "--wdir" not in mpirun_argv(LAUNCH)
    argv = with_changes(workdir="/data/my job")
    assert argv[argv.index("--wdir") + 1] == "/data/my job"
