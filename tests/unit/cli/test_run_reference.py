"""``run --preset taco``: the command lines of the guide that this preset is named after, word for word."""

from __future__ import annotations

import shlex

import pytest

from provision.cli.main import main

INVENTORY = """
all:
  vars:
    cluster_gpus: 8
    cluster_data_interface: bond0
    cluster_management_interface: eth0
    cluster_gid_index: 3
    cluster_mpirun: /usr/local/openmpi/bin/mpirun
  hosts: {gpu1: {}, gpu2: {}}
"""
VGG = ["python3", "/mnt/pytorch_synthetic_benchmark.py", "--model=vgg16", "--batch-size=128"]
RESNET = ["python3", "/mnt/pytorch_synthetic_benchmark.py", "--model", "resnet50", "--batch-size=256"]

HEAD = ["--allow-run-as-root", "-bind-to", "none", "-map-by", "slot"]
TWO_NODES = ["-H", "gpu1:8,gpu2:8"]
PASSED_ON = ["LD_LIBRARY_PATH", "PATH"]
LIGHTCC = [
    "HOROVOD_FUSION_THRESHOLD=0",
    "HOROVOD_CYCLE_TIME=0",
    "LIGHT_INTRA_SIZE=8",
    "LIGHT_2D_ALLREDUCE=1",
    "LIGHT_TOPK_ALLREDUCE=1",
    "LIGHT_TOPK_THRESHOLD=2097152",
]
OVER_TCP = ["-mca", "pml", "ob1", "-mca", "btl_tcp_if_include", "bond0", "-mca", "btl", "^openib"]


def exported(*words):
    """Each of the words behind its own -x."""
    return [part for word in words for part in ("-x", word)]


def rdma(gdr_level):
    """NCCL over the RoCE cards of the guide's machines."""
    return [
        "NCCL_DEBUG=INFO",
        "NCCL_IB_DISABLE=0",
        "NCCL_SOCKET_IFNAME=bond0",
        "NCCL_IB_GID_INDEX=3",
        f"NCCL_NET_GDR_LEVEL={gdr_level}",
    ]


MPIRUN = "/usr/local/openmpi/bin/mpirun"
ONE = exported("NCCL_DEBUG=INFO", "NCCL_SOCKET_IFNAME=eth0", *PASSED_ON)
CASES = {
    "one rank": (["-n", "1"], VGG, ["-np", "1", *HEAD, *ONE, "-mca", "btl_tcp_if_include", "eth0"]),
    "one node": (["-n", "8"], RESNET, ["-np", "8", *HEAD, *exported(*rdma(0), *PASSED_ON), *OVER_TCP]),
    "LightCC": (
        ["-n", "16", "--lightcc"],
        RESNET,
        ["-np", "16", *TWO_NODES, *HEAD, *exported(*rdma(0), *LIGHTCC, *PASSED_ON), *OVER_TCP],
    ),
    "plain Horovod": (
        ["-n", "16"],
        RESNET,
        ["-np", "16", *TWO_NODES, *HEAD, *exported(*rdma(0), *PASSED_ON), *OVER_TCP],
    ),
    "LightCC, GDR": (
        ["-n", "16", "--lightcc", "--gdr"],
        RESNET,
        ["-np", "16", *TWO_NODES, *HEAD, *exported(*rdma(2), *LIGHTCC, *PASSED_ON), *OVER_TCP],
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The inventory, listed once and then known."""
    return tmp_path_factory.mktemp("taco")


@pytest.fixture(scope="module")
def known():
    """What a command line printed, so that no test waits for the same one again."""
    return {}


@pytest.fixture
def dry_run(folder, known, monkeypatch, capsys):
    """Give the words of the command that `run --dry-run --offline` prints, and what it says."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))

    def call(*words, more=""):
        key = (INVENTORY, words, more)
        if key not in known:
            known[key] = look(words, more)
        return known[key]

    def look(words, more):
        (folder / "hosts.yml").write_text(INVENTORY.replace("  vars:\n", f"  vars:\n{more}"))
        with pytest.raises(SystemExit) as stopped:
            main(["-i", str(folder / "hosts.yml"), "run", "--preset", "taco", "--dry-run", "--offline", *words])
        said = capsys.readouterr()
        return stopped.value.code, shlex.split(said.out.partition("\n")[0]), said

    return call


@pytest.mark.row(50, 52, 53, 54)
@pytest.mark.parametrize("name", CASES)
def test_the_preset_is_the_command_line_of_the_guide(dry_run, name):
    """Every flag, in the guide's order, from what the inventory states."""
    options, program, expected = CASES[name]
    code, words, _ = dry_run(*options, "--", *program)

    assert code == 0
    assert words == [MPIRUN, *expected, *program]


def test_open_mpi_5_gets_the_preset_with_its_own_option_names(dry_run):
    """No single dash, no openib, and what is said of transports is said in components that version 5 has."""
    _, words, _ = dry_run("-n", "16", "--", "true", more="    cluster_mpi: openmpi5\n")
    expected = ["-np", "16", *TWO_NODES, "--allow-run-as-root", "--bind-to", "none", "--map-by", "slot"]
    expected += exported(*rdma(0), *PASSED_ON)
    expected += ["--mca", "pml", "ob1", "--mca", "btl_tcp_if_include", "bond0", "--mca", "btl", "self,sm,tcp"]

    assert words == [MPIRUN, *expected, "true"]


@pytest.mark.parametrize(("mpi", "more"), [("mpich", []), ("intelmpi", ["-genv", "I_MPI_PIN", "0"])])
def test_mpich_and_intel_mpi_get_their_own_command_line(dry_run, mpi, more):
    """In Hydra's flags and host file, with the same variables; a guide's line for Open MPI is refused."""
    code, words, said = dry_run("--preset", "", "-n", "9", "-e", "LR=1", "--", "prog", more=f"    cluster_mpi: {mpi}\n")
    given = words[words.index("-genvlist") :]

    assert (code, words[:5]) == (0, ["env", "PROVISION_LAST=", MPIRUN, "-launcher", "ssh"])
    assert words[words.index("-n") :][:3] == ["-n", "9", "-prepend-rank"]
    assert given[:2] == ["-genvlist", "PROVISION_JOB,PATH,LD_LIBRARY_PATH,LR"]
    assert given[2 : 2 + len(more)] == more
    assert given[-4:] == ["-genv", "NCCL_IB_GID_INDEX", "3", "prog"]
    assert said.out.endswith("# hostfile\ngpu1:8\ngpu2:8\n")
    for refused in (["-n", "9", "--", "prog"], ["--preset", "", "--", "mpirun", "-np", "9", "prog"]):
        code, _, said = dry_run(*refused, more=f"    cluster_mpi: {mpi}\n")
        assert code == 125
        assert "taken for one of Open MPI" in said.err


def test_the_host_file_follows_the_command(dry_run):
    """As without a preset."""
    said = dry_run(*CASES["one node"][0], "--", *RESNET)[2]

    assert said.out.split("\n", 1)[1] == "# hostfile\ngpu1 slots=8\ngpu2 slots=8\n"


def test_a_lossy_preset_prints_a_warning(dry_run):
    """Compressed gradients are never used without a warning."""
    assert "LIGHT_TOPK_ALLREDUCE=1 compresses gradients" in dry_run(*CASES["LightCC"][0], "--", *RESNET)[2].err
    assert "LIGHT_TOPK" not in dry_run(*CASES["plain Horovod"][0], "--", *RESNET)[2].err


def test_variables_of_the_user_override_the_preset(dry_run):
    """It is passed on by name, so that its value stays off the command line; the others stay as they are."""
    _, words, _ = dry_run("-n", "16", "-x", "NCCL_DEBUG=WARN", "--env", "MINE=1", "--", "true")
    names = [words[at + 1] for at, word in enumerate(words) if word == "-x"]

    assert names[0] == "NCCL_DEBUG"
    assert names[1:] == [*rdma(0)[1:], *PASSED_ON, "MINE"]


def test_missing_inventory_variables_are_reported(dry_run, monkeypatch):
    """Without the facts there is no line, and the message names the inventory variables that would provide it."""
    monkeypatch.setitem(globals(), "INVENTORY", "all:\n  vars:\n    cluster_gpus: 8\n  hosts: {gpu1: {}, gpu2: {}}\n")
    code, words, said = dry_run("-n", "16", "--", "true")

    assert (code, words) == (125, [])
    assert "gpu1, gpu2: cluster_data_interface and cluster_gid_index" in said.err

    monkeypatch.setitem(globals(), "INVENTORY", "all:\n  vars: {}\n  hosts: {gpu1: {}, gpu2: {}}\n")
    code, _, said = dry_run("-n", "16", "--", "true")
    assert code == 125
    assert "how many GPUs gpu1, gpu2 have" in said.err


def test_more_ranks_than_configured_gpus_are_refused(dry_run):
    """The same refusal as with nodes that are asked."""
    code, _, said = dry_run("-n", "17", "--", "true")

    assert code == 125
    assert "17 ranks were asked for, but the nodes have 16 slots" in said.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--preset", "tacos"], "Choose taco, horovod-lightcc"),
        (["--fabric", "wifi"], "Choose tcp, roce, roce-gdr, ib"),
        (["--lightcc"], "requires --preset taco"),
        (["--gdr"], "--fabric roce-gdr requires it"),
        (["--offline"], "Add --dry-run or --explain"),
        (["--dry-run", "--json"], "--json requires run --explain"),
        (["--env", "LIGHT_TOPK=1"], "LIGHT_TOPK: unknown LightCC variable"),
        (["--env", "LIGHT_TOPK_RATIO=2"], "LIGHT_TOPK_RATIO: invalid value 2"),
    ],
)
def test_contradictory_options_are_refused_before_the_inventory_is_read(capsys, words, said):
    """Exit 125, as everything that fails before the program starts."""
    with pytest.raises(SystemExit) as stopped:
        main(["run", *words, "--", "true"])

    assert stopped.value.code == 125
    assert said in " ".join(capsys.readouterr().err.split())
