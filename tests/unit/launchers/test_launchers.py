"""The contract of all launchers, with one row for each, and what a new one takes."""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import provision
from provision import launchers
from provision.batch.containers import program_words
from provision.batch.mpi import host_files as submitted_files
from provision.batch.mpi import launcher_variables, mpi_command
from provision.batch.ranks import Place, assignments_of
from provision.batch.submission import Here, read_words, submission
from provision.cli.main import main
from provision.commands.shell import is_environment_name
from provision.errors import UsageError
from provision.jobs.preflight import parse_node
from provision.jobs.request import JobRequest
from provision.launchers import (
    DEFAULT_MPI,
    DEFAULT_PER_NODE,
    LAUNCHERS,
    HostEntry,
    Launch,
    Reach,
    discover,
    fitted,
    host_files,
    launcher_names,
)
from provision.model import CommandResult, Setting
from provision.model.job import JobSpec, Kind
from provision.testing import make_node

TWO = (
    HostEntry("gpu2", "10.77.0.2", 8, "gpu", 64, 29501),
    HostEntry("gpu1", "10.77.0.1", 8, "gpu", 64),
)
UNEQUAL = (TWO[0], dataclasses.replace(TWO[1], slots=4))
SCRIPT = ("python3", "-u", "train.py", "--x")


@dataclass(frozen=True)
class Row:
    """What a launcher must do."""

    line: str = ""
    """Host file: expression of a line, with the groups `name` and `slots`; empty: it reads none."""
    repeats: bool = False
    """Host file: a line stands for one slot."""
    argv: tuple[str, ...] = ()
    """Begin of the command line that starts ranks on all nodes; empty: mpirun starts it."""
    environment: frozenset[str] = frozenset()
    """Names of the variables by which it finds nodes and logs in."""
    on_node: tuple[str, ...] = ()
    """What is started once on each node for `SCRIPT`, the begin of each word; empty: one process for each rank."""
    typed: str = ""
    """A command line of users that starts it."""


SHARED_WORDS = {"python", "launch", "slurm", "deepspeed", "horovod"}
"""Names of launchers that other modules may contain, because they also name interpreters, schedulers or libraries."""
SLOTS = r"(?P<name>\S+)\s+slots=(?P<slots>\d+)"  # DeepSpeed's own expression, too
COLON = r"(?P<name>[^\s:]+):(?P<slots>\d+)"
OMPI = frozenset({"orte_default_hostfile", "plm_rsh_agent", "plm_rsh_args", "orte_keep_fqdn_hostnames"})
PRTE = frozenset({"prte_default_hostfile", "plm_ssh_agent", "plm_ssh_args", "prte_keep_fqdn_hostnames"})
HYDRA = frozenset({"HYDRA_HOST_FILE", "HYDRA_LAUNCHER_EXTRA_ARGS", "I_MPI_HYDRA_HOST_FILE", "I_MPI_HYDRA_BOOTSTRAP"})
HYDRA_LINE = ("env", "PROVISION_LAST=", "mpirun", "-launcher", "ssh", "-f", "/h", "-n", "12", "-prepend-rank")
ROWS = {
    "openmpi": Row(
        SLOTS,
        argv=("mpirun", "--hostfile", "/h", "-np", "12", "--bind-to", "none", "--map-by", "slot", "--tag-output"),
        environment=frozenset(
            {"OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include", "OMPI_MCA_mtl_ofi_provider_exclude"}
        )
        | {f"OMPI_MCA_{name}" for name in OMPI},
        typed="mpirun",
    ),
    "openmpi5": Row(
        SLOTS,
        argv=("mpirun", "--hostfile", "/h", "-np", "12", "--bind-to", "none", "--map-by", "slot", "--output", "tag"),
        environment=frozenset({"OMPI_MCA_btl_tcp_if_include", "PRTE_MCA_prte_if_include"})
        | {f"PRTE_MCA_{name}" for name in PRTE},
        typed="prterun",
    ),
    "mpich": Row(COLON, argv=HYDRA_LINE, environment=HYDRA | {"I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"}),
    "intelmpi": Row(COLON, argv=HYDRA_LINE, environment=HYDRA | {"I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"}),
    "deepspeed": Row(SLOTS, typed="deepspeed"),
    "horovod": Row(SLOTS, typed="horovodrun"),
    "slurm": Row(r"(?P<name>\S+)", repeats=True),
    "python": Row(),
    "torchrun": Row(
        r"(?P<name>\S+) \d+ (?P<slots>\d+) 10\.77\.0\.2 29501",
        on_node=("torchrun", "train.py", "--x"),
        typed="torchrun",
    ),
    "launch": Row(on_node=("sh", "-c", "python3 -m torch.distributed.launch", "sh", "train.py", "--x")),
}


@pytest.fixture(params=ROWS)
def launcher(request):
    """Each launcher of a row."""
    return LAUNCHERS[request.param]


def test_every_launcher_has_a_test_case():
    """A launcher without one is not covered by the contract."""
    missing, unknown = set(LAUNCHERS) - set(ROWS), set(ROWS) - set(LAUNCHERS)
    assert not missing, f"no row in ROWS for {missing}"
    assert not unknown, f"no launcher in provision/launchers for the rows {unknown}"


def test_the_default_launchers_are_those_of_the_lowest_order():
    """Adding a launcher does not change what starts if none is named."""
    assert (DEFAULT_MPI, DEFAULT_PER_NODE) == ("openmpi", "torchrun")


def test_the_host_file_has_each_node_with_its_slots_in_order(launcher):
    """Each line is one that the launcher reads; names are the inventory's."""
    row = ROWS[launcher.name]
    if not row.line:
        assert launcher.host_file is None
        return
    entries = TWO if launcher.equal_slots else UNEQUAL
    matches = [re.fullmatch(row.line, line) for line in launcher.host_file(entries).splitlines()]
    assert all(matches)
    if row.repeats:
        slots = [match["name"] for match in matches]
        assert slots == [entry.name for entry in entries for _ in range(entry.slots)]
    else:
        assert [(m["name"], int(m["slots"])) for m in matches] == [(entry.name, entry.slots) for entry in entries]
    assert launcher.host_file(()) == "", "a file without hosts has no heading"


def test_the_command_line_starts_ranks_on_all_nodes(launcher):
    """Flags, then the command unchanged; every flag has a reason, and values given by name are not on the line."""
    more = (Setting("-x", "TOKEN", None, "--env", "given by you"), Setting("-x", "NCCL_DEBUG", "WARN", "p", "r"))
    launch = Launch(launcher.version, 12, SCRIPT, "/h", "abc", interfaces=("eth1",), variables=more)
    made = launcher.command_line(launch)
    argv = tuple(launcher.argv(launch.program, made.settings, launch.command))

    if not ROWS[launcher.name].argv:
        assert made.settings == ()
        return
    assert argv[: len(ROWS[launcher.name].argv)] == ROWS[launcher.name].argv
    assert argv[-len(SCRIPT) :] == SCRIPT
    assert {"PROVISION_JOB", "TOKEN", "NCCL_DEBUG"} <= {setting.name for setting in made.settings}
    assert all(setting.source and setting.reason for setting in made.settings)


def test_the_environment_reaches_the_nodes(launcher):
    """Names that a shell takes, the way of ssh and the host file; nothing for a launcher that mpirun starts."""
    result = launcher.environment(Reach("/m/ssh_config", folder="/m", interfaces=("eth1",)))

    assert set(result) == ROWS[launcher.name].environment
    assert all(is_environment_name(name) for name in result)
    if result:
        assert "-F /m/ssh_config" in result.values()
        assert f"/m/{launcher.file_name}" in result.values()


def test_a_node_launcher_gets_the_script_without_its_interpreter(launcher):
    """Once on each node; as words and as a line of the shell."""
    expected = ROWS[launcher.name].on_node
    if not expected:
        assert not launcher.program, f"{launcher.name} starts {launcher.program}: its row needs on_node"
        return
    words = launcher.node_words("sh", SCRIPT)
    line = launcher.node_words("sh", ("A=1 python3 -u train.py --x | tee log",))

    assert len(words) == len(expected)
    assert all(word.startswith(begin) for word, begin in zip(words, expected, strict=True))
    assert line[:2] == ("sh", "-c")
    assert line[2].startswith(f"A=1 {launcher.shell_line or launcher.program} ")
    assert line[2].endswith(" train.py --x | tee log")


def test_a_launcher_in_the_command_line_is_recognised(launcher):
    """It is never started by another launcher."""
    typed = ROWS[launcher.name].typed
    assert not typed or typed in launcher.commands, f"{typed} of the row is not in commands of {launcher.name}"
    for kind in (Kind.PYTORCH, Kind.RUN) if typed and launcher.per_node else ():
        line = f"{typed} train.py"
        assert program_words(JobSpec("j", kind, (line,), launcher="torchrun")) == ("sh", "-c", line)


NAME = re.compile(rf"(?<![\w/-])({'|'.join(sorted(set(LAUNCHERS) - SHARED_WORDS))})(?![\w-])")


def names(source):
    """Return the texts and imported names of a module that contain the name of a launcher, without documentation."""
    tree = ast.parse(source)
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    words = [alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    words += [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation
    ]
    return [word for word in words if NAME.search(word)]


def test_no_other_module_names_a_launcher():
    """A new launcher needs no change there. Programs of nodes are apart: they import no such module."""
    package = Path(provision.__file__).parent
    sources = {path.relative_to(package): path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    named = {
        str(path): names(source)
        for path, source in sources.items()
        if NAME.search(source) and path.parts[0] not in {"launchers", "node"} and "files" not in path.parts
    }

    others = {path: words for path, words in named.items() if words}
    assert others == {}, "ask for a capability of the launcher; a name with another meaning belongs into SHARED_WORDS"


def test_horovod_requires_equal_slots_on_all_hosts():
    """It starts as many ranks on each; the table shows which differ."""
    with pytest.raises(UsageError) as caught:
        LAUNCHERS["horovod"].host_file(UNEQUAL)

    assert "different numbers of slots" in caught.value.message
    assert "gpu1      4  gpu" in caught.value.output


@pytest.mark.parametrize(("ranks", "slots"), [(None, [8, 8]), (16, [8, 8]), (12, [8, 4]), (8, [8]), (1, [1])])
def test_the_host_file_has_as_many_slots_as_ranks(ranks, slots):
    """The first nodes are filled; one that gets no rank is not in the file."""
    assert [entry.slots for entry in fitted(TWO, ranks)] == slots


@pytest.mark.parametrize("ranks", [17, 0, -1])
def test_more_ranks_than_slots_are_refused_with_the_table(ranks):
    """Exit 2, how many there are, and where."""
    with pytest.raises(UsageError, match=f"{ranks} ranks were asked for, but the nodes have 16 slots") as caught:
        fitted(TWO, ranks)

    assert caught.value.output.splitlines()[-1].split() == ["total", "16"]


# A new launcher is one module of the package and one row above; `test_extension_points.py` adds both to a copy

MODULE = """
from provision.launchers.base import CommandLine, Launcher
from provision.model import Setting

def host_file(entries):
    return "".join(f"host {entry.name} {entry.slots}\\n" for entry in entries)

def command_line(launch):
    tasks = Setting("--tasks", "", str(launch.ranks), "provision", "one for each slot")
    job = Setting("-x", "PROVISION_JOB", None, "provision", "marks the processes of the job")
    return CommandLine((tasks, job, *launch.variables))

LAUNCHERS = (
    Launcher(
        "acme",
        label="Acme MPI",
        host_file=host_file,
        file_name="acmehosts",
        identify=lambda text: 0 if text.startswith("Acme") else None,
        command_line=command_line,
        environment=lambda reach: {"ACME_HOSTS": f"{reach.folder}/acmehosts", "ACME_SSH": f"-F {reach.ssh_config}"},
        commands=("acmerun",),
    ),
    Launcher("acmenode", host_file=host_file, per_node=True, rendezvous=True, program="acmenode"),
    Launcher("acmeonce", rendezvous=True),
)
"""
INVENTORY = "all: {vars: {cluster_gpus: 2, cluster_mpi: MPI}, hosts: {gpu1: {}, gpu2: {}}}\n"


@pytest.fixture
def acme(tmp_path, monkeypatch):
    """Add a module to the package as if it stood in its folder, and discover it."""
    (tmp_path / "acme.py").write_text(MODULE)
    monkeypatch.setattr(launchers, "__path__", [*launchers.__path__, str(tmp_path)])
    try:
        for name, one in discover().items():
            monkeypatch.setitem(LAUNCHERS, name, one)
        yield
    finally:
        sys.modules.pop("provision.launchers.acme", None)


@pytest.fixture
def dry_run(tmp_path, capsys):
    """Return exit code and lines (or errors) of ``run --dry-run`` on nodes whose inventory names an MPI library."""

    def call(mpi, *words):
        inventory = tmp_path / "hosts.yml"
        inventory.write_text(INVENTORY.replace("MPI", mpi))
        with pytest.raises(SystemExit) as done:
            main(["run", "-i", str(inventory), "--offline", "--dry-run", *words])
        printed = capsys.readouterr()
        return done.value.code, printed.err or printed.out.splitlines()

    return call


@pytest.mark.usefixtures("acme")
def test_run_uses_a_launcher_of_a_new_module(dry_run):
    """The inventory names the MPI library; its line, host file and a launcher of a node are used."""
    code, lines = dry_run("acme", "--", "train")
    assert code == 0
    assert lines[0].startswith("mpirun --tasks 4 -x PROVISION_JOB ")
    assert lines[1:] == ["# hostfile", "host gpu1 2", "host gpu2 2"]
    code, lines = dry_run("openmpi", "--launcher", "acmenode", "--", "train.py")
    assert code == 0
    assert "--map-by ppr:1:node" in lines[0]
    assert lines[0].endswith(" acmenode train.py")


def test_an_unknown_mpi_library_is_refused_with_the_known_ones(dry_run):
    """With the names of those that there are."""
    code, error = dry_run("acme", "--", "train")

    assert code == 125
    assert "cluster_mpi: unknown MPI library 'acme'" in error
    assert "openmpi, openmpi5, mpich, intelmpi" in error


@pytest.mark.usefixtures("acme")
def test_a_container_with_the_mpi_of_a_new_module_is_recognised():
    """By the first line of its mpirun."""
    request = JobRequest(("x",), (TWO[0],), {"gpu2": make_node("gpu2")}, "gpu2")
    said = "uid=0\nmpirun=/bin/mpirun\nversion=Acme 1.0\nprogram=/bin/x\n"
    result = parse_node("gpu2", "c", CommandResult(said, "", 0), request)

    assert (result.mpi, result.label) == ("acme", "Acme MPI")


@pytest.mark.usefixtures("acme")
def test_submit_and_hostfile_know_the_launchers_of_a_new_module():
    """Its host file and variables are there for a typed line, and --launcher takes it."""
    spec = JobSpec("j", Kind.MPI, ("acmerun x",), gpus=2, workers=1)
    instances = assignments_of(spec, [Place("a", "10.0.0.1")])
    made = submission(read_words(["pytorch", "--name=j", "--image=i", "--launcher=acmenode", "python3 t.py"]), Here())

    assert submitted_files(spec, instances)["acmehosts"] == "host a 2\n"
    assert launcher_variables(["eth1"])["ACME_HOSTS"] == "/provision/acmehosts"
    assert program_words(made.spec) == ("sh", "-c", "acmenode t.py")
    assert {"acme", "acmenode"} <= set(host_files())
    assert launcher_names()[-2:] == ["acmenode", "acmeonce"]


@pytest.mark.usefixtures("acme")
def test_a_launcher_of_a_new_module_starts_the_command_of_an_mpi_job_once():
    """It starts the ranks itself; mpirun would start it on each slot."""
    spec = JobSpec("j", Kind.MPI, ("train", "--x"), gpus=2, workers=1, launcher="acmeonce")

    assert mpi_command(spec, (), 2) == ("train", "--x")
    assert mpi_command(dataclasses.replace(spec, launcher="mpirun"), (), 2)[0] == "mpirun"
