"""``provision bench run`` and ``bench scale``: what is started, what is kept, and what comes of it."""

from __future__ import annotations

import base64
import dataclasses
import json
import shlex
import zlib
from pathlib import Path

import pytest

from provision import jobs, workflow
from provision.cli.bench_job import Setting, run_words
from provision.cli.main import main
from provision.errors import LaunchError
from provision.facts.managed import Managed
from provision.jobs import preflight
from provision.model import Cluster
from provision.workflow import survey
from provision.workflow.bench_runs import PROGRAM, default_sizes
from tests.support.benchmark import rendered
from tests.unit.checks.conftest import healthy, linked, make_node

LOOKED_AT = preflight.Container(4, "/usr/bin/mpirun", root=True, library_path=False)
SPEED = {1: 100.0, 8: 97.0, 16: 90.0}
"""Images per second of each GPU, by their number."""


class Nodes:
    """Two nodes of eight GPUs; a job on them prints what a benchmark there would."""

    def __init__(self, capsys):
        self._capsys = capsys
        self.plans = []
        self.synced = []
        self.code = 0
        self.cut = False
        self.fails_at = 0
        """At so many ranks there is no result, and the code is what it is set to; 0 where others succeed."""
        self.facts = {}

    def start(self, plan, write, _reserve):
        """Stand in for the transport: everything up to it is ours."""
        self.plans.append(plan)
        ranks = sum(assignment.slots for assignment in plan.assignments)
        about = 'About: {"torch": "2.4.0", "nccl": "2.20.5"}\n'
        text = rendered(gpus=ranks, iterations=[SPEED[ranks] + wobble for wobble in (-0.1, 0.0, 0.1)])
        failed = self.cut or ranks == self.fails_at
        lines = (about + (text[:60] if failed else text)).splitlines()
        for line in lines:
            write("stdout", f"[0] {line}\n".encode())
        return self.code if failed or not self.fails_at else 0

    def __call__(self, *words):
        """Run the command; return exit code, stdout and stderr."""
        with pytest.raises(SystemExit) as stopped:
            main(["bench", *words])
        said = self._capsys.readouterr()
        return stopped.value.code, said.out, said.err

    def json(self, *words):
        """Run the command with --json; return its document."""
        return json.loads(self(*words, "--json")[1])


@pytest.fixture
def nodes(monkeypatch, capsys, tmp_path):
    """Two nodes, an empty state folder, and nothing that is not ours started."""
    members = tuple(make_node(name, f"10.77.0.{i}") for i, name in enumerate(("gpu1", "gpu2"), start=1))
    gpu = healthy().gpus[0]
    facts = dataclasses.replace(
        healthy(),
        gpus=tuple(dataclasses.replace(gpu, index=i, name="NVIDIA A100", driver="535.1") for i in range(8)),
        gpu_pci=tuple(f"0000:0{i}:00.0" for i in range(8)),
    )
    there = Nodes(capsys)
    there.facts = dict.fromkeys(("gpu1", "gpu2"), facts)
    probed = lambda nodes, **_: {node.name: there.facts[node.name] for node in nodes}  # noqa: E731
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("provision.cli.common.inventory_from", lambda *_: Path("hosts.yml"))
    monkeypatch.setattr("provision.inventory.load", lambda *_a, **_k: Cluster("c", Path("hosts.yml"), members))
    monkeypatch.setattr(workflow, "probe", probed)
    monkeypatch.setattr(survey, "probe", probed)
    monkeypatch.setattr(preflight, "each", lambda nodes, _: {node.name: LOOKED_AT for node in nodes})
    monkeypatch.setattr(jobs, "sync", lambda request, _: there.synced.append(request.sync) or [])
    monkeypatch.setattr(jobs, "run", there.start)
    return there


@pytest.mark.row(50, 55)
def test_scale_measures_one_gpu_one_node_and_all_nodes(nodes):
    """On two nodes of eight GPUs 1, 8 and 16; the efficiency is against the first."""
    code, out, _ = nodes("scale", "--batch-size", "64")

    assert code == 0
    assert [plan.argv[plan.argv.index("-np") + 1] for plan in nodes.plans] == ["1", "8", "16"]
    assert [line.split()[2] for line in out.splitlines()[1:4]] == ["1", "8", "16"]
    assert "97.00%" in out
    assert "90.00%" in out


def test_json_output_is_one_document(nodes):
    """Figures, and under which name and ids they are kept; the job's own output does not mix with it."""
    document = nodes.json("scale", "--name", "nightly", "--sizes", "1,16")

    assert document["name"] == "nightly"
    assert len(set(document["kept"])) == 2
    assert [(run["gpus"], run["efficiency"]) for run in document["runs"]] == [(1, 1.0), (16, pytest.approx(0.9))]


def test_output_is_streamed_to_stderr_and_the_result_printed_on_stdout(nodes):
    """A person sees the iterations; a script the table."""
    _, out, err = nodes("run")

    assert "[0] Iter #0: 89.9 img/sec per GPU" in err
    assert "Iter" not in out


@pytest.mark.row(56)
def test_the_benchmark_program_is_copied_and_gets_the_address_of_rank_0(nodes):
    """One file in a folder of its own, the same in every container; the ranks meet at the first one's node."""
    nodes("run", "--model", "vgg16", "--batch-size", "32", "--device", "cpu", "--env", "OMP_NUM_THREADS=2")
    (plan,) = nodes.plans
    (folder,) = nodes.synced
    environment = {name: value.reveal() for name, value in plan.request.environment.items()}

    assert [file.name for file in folder.iterdir()] == [PROGRAM]
    assert plan.request.command[:2] == ("python3", str(folder / PROGRAM))
    assert "--model vgg16 --batch-size 32" in shlex.join(plan.request.command)
    assert met_at(plan) == "10.77.0.1"
    assert environment["OMP_NUM_THREADS"] == "2"
    assert plan.hostfile.startswith("gpu1 slots=8")


def met_at(plan):
    """The address that every rank gets."""
    packed = base64.b64decode(plan.environment["PROVISION_RANKS"])
    return json.loads(zlib.decompress(packed))["master"]["address"]


def test_rank_0_is_on_the_first_selected_node(nodes):
    """The first node of the inventory is busy; the benchmark goes to the second, and so says its record."""
    free = dataclasses.replace(nodes.facts["gpu2"], topology=linked(*["PIX"] * 8), managed=Managed())
    busy = dataclasses.replace(free, managed=Managed(jobs=("process 4711 holds /dev/nvidia0",)))
    nodes.facts.update(gpu1=busy, gpu2=free)
    code, _, err = nodes("run", "-n", "8", "--with", "--gputopology", "--name", "chosen")
    (plan,) = nodes.plans
    (record,) = nodes.json("list")["results"]

    assert code == 0, err
    assert (plan.used, met_at(plan)) == (("gpu2",), "10.77.0.2")
    assert [(node["name"], node["ranks"]) for node in record["nodes"]] == [("gpu2", 8)]


@pytest.mark.parametrize("words", [["--preset", "taco"], ["--with", "--preset=taco"], ["--gdr"]], ids=str)
def test_the_command_line_of_the_guide_gets_the_rendezvous_address(nodes, words):
    """Nothing may stand before its program, so that a variable says it."""
    _, out, _ = nodes("run", "--dry-run", "-n", "16", *words)

    assert "--env MASTER_ADDR=10.77.0.1 --env MASTER_PORT=" in out
    assert "--launcher" not in out


def test_an_explicit_number_of_ranks_is_not_overridden(nodes):
    """-n and --workers would contradict each other."""
    words = ["run", "--dry-run", "--with", "--gputopology --gpus 2 --workers 3", "--", "train"]

    assert nodes(*words)[1] == "provision run --gputopology --gpus 2 --workers 3 -- train\n"


def test_a_custom_program_is_started_unchanged(nodes):
    """Nothing is copied, nothing added to its words."""
    words = ("python3", "/mnt/pytorch_synthetic_benchmark.py", "--model=vgg16", "--json")
    code, _, _ = nodes("run", "--", *words)

    assert code == 0
    assert nodes.plans[0].request.command == words
    assert nodes.synced == []


def test_a_result_is_stored_with_its_hardware(nodes):
    """Nodes, GPUs, driver, fabric, image, command, environment and time; secrets not."""
    nodes("run", "-n", "8", "--name", "base", "--env", "NCCL_ALGO=Ring", "--env", "WANDB_API_KEY=hunter2")
    (record,) = nodes.json("list")["results"]
    (file,) = Path(workflow.log_folder.__globals__["state_folder"]()).glob("benchmarks/*.json")

    assert (record["name"], record["exit_code"], record["started"][-1]) == ("base", 0, "Z")
    (node,) = record["nodes"]
    assert (node["name"], node["ranks"], node["gpus"], node["driver"]) == ("gpu1", 8, "8x NVIDIA A100", "535.1")
    assert node["image"] == healthy().container.image
    assert node["kernel"] == healthy().system.kernel
    assert node["fabric"]
    assert record["environment"] == {"NCCL_ALGO": "Ring", "WANDB_API_KEY": None}
    assert record["about"] == {"torch": "2.4.0", "nccl": "2.20.5"}
    assert record["runs"][0]["iterations"] == [96.9, 97.0, 97.1]
    assert "hunter2" not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_stored_results_are_compared_and_tabulated_by_name_and_id(nodes):
    """As files are; a name stands for all of its results."""
    nodes("scale", "--name", "base")
    SPEED[16], before = 80.0, SPEED[16]
    try:
        (key,) = nodes.json("run", "--name", "slow")["kept"]
    finally:
        SPEED[16] = before
    compared = nodes.json("compare", "base", key)

    assert [run["gpus"] for run in nodes.json("table", "base")["runs"]] == [1, 8, 16]
    assert [run["gpus"] for run in nodes.json("table")["runs"]] == [1, 8, 16, 16]
    assert [(item["gpus"], item["faster"], item["verdict"]) for item in compared["comparisons"]] == [(16, "a", "real")]
    assert [run["gpus"] for run in compared["only_a"]] == [1, 8]


def test_simulated_components_are_marked_in_every_result(nodes, monkeypatch):
    """A figure of simulated GPUs is never taken for one of real ones."""
    facts = dataclasses.replace(healthy(), simulated={"nvidia-smi": "a described machine"})
    monkeypatch.setattr(workflow, "probe", lambda members, **_: {node.name: facts for node in members})
    monkeypatch.setattr(survey, "probe", workflow.probe)
    SPEED[2 * len(healthy().gpus)] = 50.0
    _, out, _ = nodes("run")

    assert "SIMULATED" in out
    assert nodes.json("list")["results"][0]["simulated"] == ["nvidia-smi: a described machine"]
    assert "SIMULATED" in nodes("list")[1]


@pytest.mark.parametrize(("ended", "expected"), [(3, 3), (0, 1), (137, 137)])
def test_a_job_without_a_result_is_an_error_and_not_stored(nodes, ended, expected):
    """It says what there was of it; the exit code is the job's, unless the job takes itself for a success."""
    nodes.cut, nodes.code = True, ended
    code, out, err = nodes("run")

    assert (code, out) == (expected, "")
    assert f"exited with code {ended} without a result" in err
    assert nodes("list")[1] == ""


def test_results_before_a_failed_size_are_stored(nodes):
    """It is kept, and the failing job's code is the command's."""
    nodes.fails_at, nodes.code = 16, 7
    code, _, err = nodes("scale", "--name", "base")

    assert code == 7
    assert "stored: " in err
    assert [run["gpus"] for run in nodes.json("table", "base")["runs"]] == [1, 8]


def test_a_size_that_does_not_fit_is_refused_before_the_first_run(nodes):
    """Not after the small ones were measured."""
    code, _, err = nodes("scale", "--sizes", "1,64")

    assert (code, nodes.plans) == (LaunchError.exit_code, [])
    assert "64 ranks were asked for, but the nodes have 16 slots" in err


@pytest.mark.parametrize("sizes", ["", "8,x", "0", "1,,8", "-1"])
def test_invalid_sizes_are_refused(nodes, sizes):
    """With how to write them."""
    code, _, err = nodes("scale", f"--sizes={sizes}")

    assert (code, nodes.plans) == (2, [])
    assert "--sizes 1,8,16" in err


def test_dry_run_prints_the_commands_and_starts_nothing(nodes):
    """Each can be run by hand."""
    code, out, _ = nodes("scale", "--dry-run", "--lab", "small", "--", "python3", "my bench.py")

    assert (code, nodes.plans) == (0, [])
    assert out.splitlines() == [f"provision run --lab small -n {size} -- python3 'my bench.py'" for size in (1, 8, 16)]


@pytest.mark.row(20, 55)
def test_options_of_a_setting_are_those_of_run():
    """The guide's preset where its options are wanted; whatever else run has can be passed on."""
    assert run_words(Setting()) == []
    assert run_words(Setting(gdr=True, lightcc=True)) == ["--preset", "taco", "--gdr", "--lightcc"]
    assert run_words(Setting(preset="horovod-lightcc")) == ["--preset", "horovod-lightcc"]
    assert run_words(Setting(fabric="tcp", further="--workdir '/my data'")) == [
        "--fabric",
        "tcp",
        "--workdir",
        "/my data",
    ]
    assert Setting(gdr=True, lightcc=True, fabric="tcp").title == "tcp-lightcc-gdr"
    assert Setting(further="--gputopology --env KEY=hunter2 -e K2=hunter2 --workdir=hunter2").title == (
        "gputopology-env-e-workdir"
    )


@pytest.mark.row(20, 55, 56)
def test_each_model_is_measured_alternately_with_both_settings(nodes):
    """A's options are A's alone; the pairs are judged, and every run is kept."""
    document = nodes.json("ab", "--a", "--env NCCL_ALGO=Tree", "--models", "vgg16,resnet50", "-n", "8", "--rounds", "2")

    both = [(plan.request.command[3], "NCCL_ALGO" in plan.request.environment) for plan in nodes.plans]
    assert both == [("vgg16", True), ("vgg16", False), ("resnet50", True), ("resnet50", False)] * 2
    assert document["comparisons"][0]["verdict"] == "noise"
    assert (len(document["kept_a"]), len(set(document["kept_a"] + document["kept_b"]))) == (4, 8)


@pytest.mark.row(20)
def test_equal_settings_are_refused(nodes):
    """Before any node is asked."""
    code, _, err = nodes("ab", "--a", "--gputopology", "--b", " --gputopology ")

    assert (code, nodes.plans) == (2, [])
    assert "A and B are the same" in err


@pytest.mark.row(20)
@pytest.mark.parametrize("side", ["--a", "--b"])
def test_a_setting_with_an_unclosed_quote_is_refused(nodes, side):
    """With exit code 2 and one sentence, which does not repeat what may be a password."""
    code, out, err = nodes("ab", side, "--env KEY='hunter2")

    assert (code, out, nodes.plans) == (2, "", [])
    assert err.startswith("error: ")
    assert "hunter2" not in err


@pytest.mark.row(20)
def test_a_failed_run_determines_the_exit_code(nodes):
    """It printed a result, and there is none to compare it with."""
    nodes.code = 7
    code, _, err = nodes("ab", "--a", "--env NCCL_ALGO=Tree", "--models", "vgg16", "-n", "8")

    assert code == 7
    assert "no model was measured on both sides" in err
    assert "stored: " in err


@pytest.mark.parametrize("words", [["--with", "'open"], ["--name", "a/b"], ["--name", "-x"], ["--batch-size", "0"]])
def test_invalid_options_are_refused_before_the_first_run(nodes, words):
    """With exit code 2 and one sentence."""
    code, _, err = nodes("run", *words)

    assert (code, nodes.plans) == (2, [])
    assert err.startswith("error: ")


def test_default_sizes_double_the_nodes():
    """Up to all of them, whatever their number."""
    from provision.launchers import HostEntry

    rack = [HostEntry(f"n{i}", "", 8, "gpu") for i in range(6)]

    assert default_sizes(rack) == [1, 8, 16, 32, 48]
    assert default_sizes(rack[:1]) == [1, 8]
    assert default_sizes([HostEntry("a", "", 1, "cpu"), HostEntry("b", "", 0, "gpu")]) == [1]
    assert default_sizes([]) == []
