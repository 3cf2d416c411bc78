import dataclasses

import pytest

from provision.commands.mca import spelled
from provision.launchers import Launch, Reach, argv_of, identified, of_version
from provision.launchers.openmpi import command_line

LAUNCH = Launch(
    version=4,
    ranks=4,
    hostfile="/tmp/h",
    command=("python3", "train.py", "--lr", "0.1"),
    job="abc",
    networks=("10.1.0.0/24", "10.2.0.0/24"),
)


def mpirun_argv(launch):
    """The words of a command line."""
    return argv_of(launch.program, command_line(launch).settings, launch.command)


def reach_variables(version, job):
    """The environment of mpirun for a line that names nodes and no way to reach them."""
    return of_version("openmpi", version).environment(Reach(job=job))


def pairs(argv, flag):
    """The KEY VALUE pairs that follow each `flag`."""
    return {argv[i + 1]: argv[i + 2] for i, word in enumerate(argv) if word == flag}


def with_changes(**changes):
    return mpirun_argv(Launch(**{**LAUNCH.__dict__, **changes}))


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("mpirun (Open MPI) 4.1.4", "openmpi", 4),
        ("mpirun (Open MPI) 5.0.7\n\nReport bugs", "openmpi", 5),
        ("mpirun (Open MPI) 3.1.0", "openmpi", 3),
        ("HYDRA build details:", "mpich", 0),
        ("Intel(R) MPI Library", "intelmpi", 0),
        ("", "", None),
    ],
)
def test_an_mpi_library_is_identified_by_its_version_output(text, name, version):
    """One MPI library is not mistaken for another."""
    result = identified(text)

    assert (result[0].name, result[1]) == (name, version) if result else not name


def test_the_command_comes_last_and_unchanged():
    """The user's words reach the ranks unchanged."""
    argv = mpirun_argv(LAUNCH)

    assert argv[0] == "mpirun"
    assert argv[-4:] == ["python3", "train.py", "--lr", "0.1"]


def test_version_4_gets_its_own_option_names():
    """Open MPI 4 gets ORTE's names: agent, launch agent, networks by CIDR for data and control."""
    settings = pairs(mpirun_argv(LAUNCH), "--mca")

    assert settings["plm_rsh_agent"] == "ssh -F /etc/provision/ssh/ssh_config"
    assert settings["orte_launch_agent"] == "env PROVISION_JOB=abc orted"
    assert settings["btl"] == "self,vader,tcp"
    assert settings["pml"] == "ob1"
    assert settings["btl_tcp_if_include"] == settings["oob_tcp_if_include"] == "10.1.0.0/24,10.2.0.0/24"
    assert "--tag-output" in mpirun_argv(LAUNCH)


def test_version_5_gets_its_own_option_names():
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
def test_allow_run_as_root_is_added_only_for_root(root):
    """--allow-run-as-root stands there exactly when the container's user is root."""
    assert ("--allow-run-as-root" in with_changes(root=root)) is root


def test_variables_are_passed_by_name_and_never_by_value():
    """Every rank gets the asked-for variables, whose values stay off the command line."""
    argv = with_changes(environment=("TOKEN",))

    assert [argv[i + 1] for i, word in enumerate(argv) if word == "-x"] == ["PROVISION_JOB", "TOKEN"]


@pytest.mark.parametrize(("version", "control"), [(4, "oob_tcp_if_include"), (5, "prte_if_include")])
def test_without_networks_the_data_interface_of_the_nodes_is_used(version, control):
    """docker's bridge, which has one address everywhere, is never tried."""
    argv = with_changes(version=version, networks=(), interfaces=("ens4",), subnets=("10.1.0.0/24",))

    assert argv[argv.index(control) + 1] == argv[argv.index("btl_tcp_if_include") + 1] == "ens4"


@pytest.mark.parametrize(
    ("version", "control", "value"),
    [(4, "oob_tcp_if_include", "10.1.0.0/24"), (5, "prte_if_include", "ens4,bond0")],
)
def test_interfaces_with_different_names_are_selected_by_network(version, control, value):
    """No node gets a name of another one, except PRRTE, which ignores names that a node does not have."""
    argv = with_changes(version=version, networks=(), interfaces=("ens4", "bond0"), subnets=("10.1.0.0/24",))

    assert argv[argv.index("btl_tcp_if_include") + 1] == "10.1.0.0/24"
    assert argv[argv.index(control) + 1] == value


def test_without_networks_and_interfaces_no_network_option_is_added():
    """Without networks and interfaces Open MPI chooses by itself."""
    assert not any("if_include" in word for word in with_changes(networks=()))


def test_the_working_directory_is_set_only_on_request():
    """Without a folder each rank starts in the image's own."""
    assert "--wdir" not in mpirun_argv(LAUNCH)
    argv = with_changes(workdir="/data/my job")
    assert argv[argv.index("--wdir") + 1] == "/data/my job"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("plm_rsh_args", "-p 12345", ("--prtemca", "plm_ssh_args", "-p 12345")),
        ("plm_rsh_no_tree_spawn", "1", ("--prtemca", "plm_ssh_no_tree_spawn", "1")),
        ("oob_tcp_if_include", "bond0", ("--prtemca", "prte_if_include", "bond0")),
        ("orte_keep_fqdn_hostnames", "1", ("--prtemca", "prte_keep_fqdn_hostnames", "1")),
        ("orte_default_hostfile", "/h", ("--prtemca", "prte_default_hostfile", "/h")),
        ("btl_tcp_if_include", "bond0", ("--mca", "btl_tcp_if_include", "bond0")),
        ("btl", "^openib", ("--mca", "btl", "self,sm,tcp")),
        ("btl", "^openib,uct", ("--mca", "btl", "^uct")),
        ("btl", "self,vader,tcp", ("--mca", "btl", "self,sm,tcp")),
        ("btl_vader_single_copy_mechanism", "none", ("--mca", "smsc", "^cma")),
        ("pml", "ob1", ("--mca", "pml", "ob1")),
    ],
)
def test_parameters_of_version_4_are_translated_for_version_5(name, value, expected):
    """What version 4 calls by another name, or version 5 has no more, is said in version 5's words."""
    new, old = spelled(name, value, 5), spelled(name, value, 4)

    assert (new.flag, new.name, new.value) == expected
    assert (old.flag, old.name, old.value) == ("--mca", name, value)


def test_a_plain_mpirun_command_gets_its_settings_from_the_environment():
    """It says nothing of logins; the launcher's own environment has them, in each version's names."""
    assert reach_variables(4, "abc") == {
        "OMPI_MCA_plm_rsh_agent": "ssh -F /etc/provision/ssh/ssh_config",
        "OMPI_MCA_orte_launch_agent": "env PROVISION_JOB=abc orted",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "1",
        "OMPI_MCA_orte_tag_output": "1",
    }
    assert reach_variables(5, "abc")["PRTE_MCA_prte_launch_agent"] == "env PROVISION_JOB=abc prted"
    assert set(reach_variables(5, "abc")) == {
        "PRTE_MCA_plm_ssh_agent",
        "PRTE_MCA_prte_launch_agent",
        "PRTE_MCA_prte_keep_fqdn_hostnames",
    }


@pytest.mark.parametrize("version", [4, 5])
def test_every_option_of_the_command_line_has_a_reason(version):
    """Who reads `run --explain` finds each flag with who decided it and why."""
    settings = command_line(
        dataclasses.replace(LAUNCH, version=version, interfaces=("ens4",), environment=("A",))
    ).settings

    assert all(setting.source and setting.reason for setting in settings)
    assert [*settings[0].words(), *settings[1].words()] == ["--hostfile", "/tmp/h", "-np", "4"]
