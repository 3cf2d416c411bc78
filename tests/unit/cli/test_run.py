"""``run`` and ``hostfile``: who takes part, and what is said and exited with when that is not everybody."""

from __future__ import annotations

import dataclasses
import importlib
import json
import shlex
from pathlib import Path

import pytest

from provision import workflow
from provision.cli import main as entry
from provision.cli import run_nodes as verb
from provision.cli.main import main
from provision.connectors import failures
from provision.errors import ConnectionFailed, HostNotTrusted
from provision.facts.managed import Managed
from provision.facts.network import Listening
from provision.facts.rdma import RdmaStack
from provision.jobs import preflight
from provision.jobs.engines.base import Capability
from provision.model import Cluster
from provision.workflow import survey
from tests.support.memory_engine import MemoryEngine
from tests.unit.checks.conftest import gpu, healthy, linked, make_node, peer_record

LOOKED_AT = preflight.Container(4, "/usr/bin/mpirun", root=True, library_path=False)
NO_HEADERS = {
    "state": "failed",
    "cause": "headers_missing",
    "explanation": "the headers of kernel 6.1.0 are not installed",
    "remedy": "Install linux-headers-6.1.0.",
}
DEGRADED = dataclasses.replace(healthy(), peer_status=peer_record(**NO_HEADERS))
"""A node on which nv_peer_mem did not come up at boot."""
OLD_HOST_KEY = HostNotTrusted("the host key of b has CHANGED", node="b", remedy="find out why")


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run the command on three nodes of which b is as said; return exit code, stdout and stderr."""

    def call(b, *words):
        network = {"cluster_data_networks": ["10.77.0.0/24"]}
        nodes = tuple(make_node(name, f"10.77.0.{i}", **network) for i, name in enumerate("abc", start=1))
        cluster = Cluster("c", Path("hosts.yml"), nodes)
        probe_results = {node.name: healthy(i) for i, node in enumerate(nodes, start=1)} | {"b": b}
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        monkeypatch.setattr("provision.cli.common.inventory_from", lambda *_: Path("hosts.yml"))
        monkeypatch.setattr("provision.inventory.load", lambda *_a, **_k: cluster)
        probed = lambda nodes, **_: {node.name: probe_results[node.name] for node in nodes}  # noqa: E731
        monkeypatch.setattr(workflow, "probe", probed)
        monkeypatch.setattr(survey, "probe", probed)
        monkeypatch.setattr(preflight, "each", lambda nodes, _: {node.name: LOOKED_AT for node in nodes})
        with pytest.raises(SystemExit) as stopped:
            main(list(words))
        said = capsys.readouterr()
        return stopped.value.code, said.out, said.err

    return call


@pytest.mark.parametrize(
    ("b", "said"),
    [
        (OLD_HOST_KEY, "host key of b has CHANGED"),
        (failures.unknown_key("b", "b", ["known_hosts"]), "host key of b is not known"),
        (ConnectionFailed("b port 22 did not answer", node="b", remedy="is it on?"), "hint: is it on?"),
        (dataclasses.replace(healthy(), container=None), "b: it has no training container"),
        (DEGRADED, "b: nv_peer_mem did not come up (headers_missing): the headers of kernel 6.1.0"),
    ],
)
def test_a_node_that_cannot_run_ranks_stops_the_job(run, b, said):
    """The job is not quietly smaller: the node is named with reason and remedy, and nothing starts."""
    code, out, err = run(b, "run", "--dry-run", "--", "true")

    assert (code, out) == (125, "")
    assert said in err
    assert "error: b: " in err


def test_all_missing_nodes_are_reported():
    """Each with its own reason."""
    gone = ConnectionFailed("no answer", node="b")
    error = verb._missing([("b", "no answer"), ("c", "no container")], {"b": gone, "c": healthy()})

    assert "2 of 2 nodes" in str(error)
    assert "b: no answer" in str(error)
    assert "c: no container" in str(error)


def test_allow_missing_continues_without_an_unreachable_node(run):
    """--allow-missing names it and goes on; --limit never contacts it."""
    gone = ConnectionFailed("b port 22 did not answer", node="b")
    code, out, err = run(gone, "run", "--allow-missing", "--dry-run", "--", "true")

    assert code == 0
    assert "a slots" in out
    assert "b slots" not in out
    assert "excluded: b: " in err
    assert run(gone, "run", "--limit", "a,c", "--dry-run", "--", "true")[::2] == (0, "")


def test_a_degraded_node_is_refused_with_its_remedies(run):
    """The node's own remedy, the command that loads it by hand, and both ways to start all the same."""
    _, _, err = run(DEGRADED, "run", "--dry-run", "--", "true")
    hint = next(line for line in err.splitlines() if line.startswith("hint: "))

    assert "Install linux-headers-6.1.0. Afterwards: provision reload --limit b" in hint
    assert "--allow-missing" in hint
    assert "--allow-degraded" in hint


def test_allow_missing_continues_without_a_degraded_node(run):
    """As without one that is down."""
    code, out, err = run(DEGRADED, "run", "--allow-missing", "--dry-run", "--", "true")

    assert (code, "b slots" in out) == (0, False)
    assert "excluded: b: nv_peer_mem did not come up" in err


@pytest.mark.parametrize(
    ("words", "purpose"),
    [
        (["run", "--allow-degraded", "--dry-run", "--", "true"], "run --dry-run"),
        (["hostfile", "--allow-degraded"], "hostfile"),
    ],
)
def test_allow_degraded_uses_a_degraded_node_and_records_it(run, tmp_path, words, purpose):
    """The record says who used the node, when, for what and against which warning."""
    code, out, err = run(DEGRADED, *words)
    (log,) = tmp_path.glob("provision/logs/*/degraded.log")
    (entry,) = [json.loads(line) for line in log.read_text().splitlines()]

    assert (code, "b slots" in out) == (0, True)
    assert "degraded, but used: b: nv_peer_mem did not come up (headers_missing)" in err
    assert entry["purpose"] == purpose
    assert entry["user"]
    assert entry["time"].endswith("Z")
    assert list(entry["nodes"]) == ["b"]
    assert "headers_missing" in entry["nodes"]["b"]
    assert log.stat().st_mode & 0o777 == 0o600


def test_allow_degraded_records_nothing_without_degraded_nodes(run, tmp_path):
    """The option alone is no event."""
    code, _, err = run(healthy(), "hostfile", "--allow-degraded")

    assert (code, "degraded" in err) == (0, False)
    assert not list(tmp_path.glob("provision/logs/*/degraded.log"))


def test_allow_degraded_accepts_no_other_problem(run):
    """A node that has no container has none; then --allow-degraded is not offered as a way out of it."""
    both = dataclasses.replace(DEGRADED, container=None)
    code, out, err = run(both, "run", "--allow-degraded", "--dry-run", "--", "true")

    assert (code, out) == (125, "")
    assert "b: it has no training container" in err
    assert "--allow-degraded" not in err


def test_an_unwritable_log_does_not_stop_the_job(run, tmp_path):
    """It is a warning with the place, as with the log of an apply."""
    (tmp_path / "provision").write_text("in the way")
    code, out, err = run(DEGRADED, "hostfile", "--allow-degraded")

    assert (code, "b slots" in out) == (0, True)
    assert "warning: " in err
    assert "degraded.log" in err


def test_a_host_file_excludes_a_degraded_node_with_the_reason(run):
    """It was reached, so that the exit code is 0; a script reads the reason from the document."""
    code, out, err = run(DEGRADED, "hostfile", "--json")
    document = json.loads(out)

    assert (code, document["ok"], document["degraded"]) == (0, True, [])
    assert [entry["node"] for entry in document["left_out"]] == ["b"]
    assert "headers_missing" in document["left_out"][0]["reason"]
    assert "b slots" not in document["hostfile"]
    assert "excluded: b: nv_peer_mem did not come up" in err


def test_a_changed_host_key_is_never_ignored(run):
    """A wrong host key may be an attacker; --allow-missing does not cover it."""
    code, out, err = run(OLD_HOST_KEY, "run", "--allow-missing", "--dry-run", "--", "true")

    assert (code, out) == (125, "")
    assert "CHANGED" in err
    assert "--allow-missing" not in err


def test_a_host_file_without_an_unreachable_node_exits_with_1(run):
    """The rest can be requested, and a script can see that the output is incomplete."""
    code, out, err = run(ConnectionFailed("no answer", node="b"), "hostfile", "--json")

    assert code == 1
    assert json.loads(out)["ok"] is False
    assert "c slots" in json.loads(out)["hostfile"]
    assert "excluded: b: " in err


def test_an_unresolved_template_is_not_used_as_a_name(run, monkeypatch):
    """The job does not look for something called `{{ ... }}`."""
    monkeypatch.setattr(survey, "role_defaults", lambda: {"cluster_head": "{{ ansible_hostname }}"})
    code, out, err = run(healthy(), "run", "--dry-run", "--", "true")

    assert (code, out) == (125, "")
    assert "cluster_head cannot be resolved" in err


@pytest.mark.parametrize(
    "words",
    [
        ["--lab", "no-such-lab", "--", "true"],
        ["-i", "/no/such/inventory", "--", "true"],
        ["--env", "9=x", "--", "true"],
        ["--no-such-option", "--", "true"],
        [],
    ],
)
def test_failures_before_the_start_exit_with_125(capsys, monkeypatch, tmp_path, words):
    """Scripts can distinguish our own failures from those of the program."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["run", *words])

    assert stopped.value.code == 125
    assert "error: " in capsys.readouterr().err


def test_an_engine_without_gpu_reservation_is_refused_before_the_start(run, monkeypatch):
    engine = MemoryEngine(lacks=[Capability.GPU_RESERVATION])
    monkeypatch.setattr("provision.workflow.jobs.job_engine", lambda *_: engine)
    code, _, err = run(healthy(), "run", "--", "true")

    assert code == 125
    assert "provision run: the job engine memory does not support GPU reservation" in err


def test_a_node_lost_before_the_start_exits_with_125(run, monkeypatch):
    """Also when it was still there a moment ago."""

    def lost(_node):
        raise ConnectionFailed("a port 22 did not answer", node="a")

    for module in ("provision.jobs.running", "provision.jobs.engines.common.gpu_reservation"):
        monkeypatch.setattr(importlib.import_module(module), "connect", lost)
    code, _, err = run(healthy(), "run", "--", "true")

    assert code == 125
    assert "a port 22 did not answer" in err


@pytest.mark.parametrize(
    ("words", "json"),
    [
        (["run", "python3", "train.py", "-o", "out.txt"], False),
        (["run", "-n", "2", "-e", "A=1", "python3", "-o", "json"], False),
        (["run", "prog", "--json"], False),
        (["lab", "ssh", "demo", "n1", "curl", "-o", "json"], False),
        (["verify", "--limit", "a", "--json"], True),
    ],
)
def test_options_after_the_program_belong_to_the_program(words, json):
    """From the program's name on nothing is read as an option of ours."""
    assert entry.normalise(words) == words
    assert entry._wants_json(words) is json


def test_ranks_get_variables_for_the_network_of_the_nodes(run):
    """On nodes with GPUs NCCL gets cards and interface; nodes without GPUs use no NCCL."""
    _, out, _ = run(healthy(2), "run", "--dry-run", "--", "true")
    line = out.partition("\n")[0]

    assert "-x NCCL_IB_DISABLE=0 -x NCCL_IB_HCA==mlx5_0:1 -x NCCL_SOCKET_IFNAME==ens4" in line
    without = dataclasses.replace(healthy(), gpus=(), gpu_pci=())
    assert "NCCL" not in run(without, "run", "--limit", "b", "--dry-run", "--", "true")[1]


def test_one_node_without_rdma_switches_all_nodes_to_tcp(run):
    """They have to meet; which node it is stands in the explanation."""
    slow = dataclasses.replace(healthy(), rdma=RdmaStack((), 0, (), ""))
    _, out, _ = run(slow, "run", "--explain", "--json", "--", "true")
    settings = {setting["name"]: setting for setting in json.loads(out)["settings"]}

    assert settings["NCCL_IB_DISABLE"]["value"] == "1"
    assert settings["NCCL_IB_DISABLE"]["from"] == "profile tcp"
    assert "b: it has no RDMA device" in settings["NCCL_IB_DISABLE"]["reason"]
    assert "NCCL_IB_HCA" not in settings


def test_explain_shows_the_source_of_every_setting_and_starts_nothing(run):
    """The command line first, then a table that fits 80 columns; values of the user are not in it."""
    code, out, _ = run(healthy(2), "run", "--explain", "-x", "NCCL_DEBUG=TRACE", "-e", "TOKEN=s3cret", "--", "true")
    rows = [line.split() for line in out.splitlines()[2:]]
    sources = {row[0]: " ".join(row[1:3]) for row in rows if len(row) > 2}

    assert code == 0
    assert out.startswith("mpirun --allow-run-as-root --hostfile ")
    assert sources["NCCL_IB_HCA"] == "node facts"
    assert sources["NCCL_DEBUG"].startswith("--env")
    assert sources["--hostfile"].startswith("provision")
    assert max(map(len, out.splitlines()[2:])) <= 80
    assert "s3cret" not in out


QUAD = dataclasses.replace(
    healthy(2),
    gpus=tuple(gpu(index) for index in range(4)),
    gpu_pci=tuple(f"0000:{index + 6:02x}:00.0" for index in range(4)),
    topology=linked("PIX", "PIX", "NODE", "NODE"),
    managed=Managed(),
)
"""A free node of four GPUs."""


def test_a_job_runs_on_its_selected_gpus(run):
    """One rank for each GPU, on the node that has room for all; as place --gputopology would have it."""
    words = ["run", "--gputopology", "--gpus", "2", "--workers", "2"]
    code, out, err = run(QUAD, *words, "--dry-run", "--", "true")
    document = json.loads(run(QUAD, *words, "--explain", "--json", "--", "true")[1])
    settings = {setting["name"]: setting for setting in document["settings"]}

    assert code == 0
    assert "-np 4 " in out
    assert out.endswith("# hostfile\nb slots=4\n")
    assert "placed on b GPUs 0,1,2,3; expected bus bandwidth: " in err
    assert settings["CUDA_VISIBLE_DEVICES"]["nodes"] == {"b": "GPU-0,GPU-1,GPU-2,GPU-3"}
    assert [worker["gpus"] for worker in document["placement"]["workers"]] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("b", "said"),
    [
        (QUAD, "insufficient GPUs for 1 of 5 workers"),
        (dataclasses.replace(QUAD, managed=Managed(jobs=("process 7 holds /dev/nvidia0",))), "process 7 holds"),
        (OLD_HOST_KEY, "host key of b has CHANGED"),
    ],
    ids=["too few", "busy", "not trusted"],
)
def test_a_job_with_insufficient_gpus_does_not_start(run, b, said):
    """All or nothing: exit 125 with what is missing."""
    code, out, err = run(b, "run", "--gputopology", "-n", "5", "--", "true")

    assert (code, out) == (125, "")
    assert said in err


def test_a_node_that_cannot_run_ranks_is_not_selected(run):
    """The user did not name this node, so the job runs elsewhere, and stderr says why."""
    probe_results = ConnectionFailed("no answer", node="b")
    _, _, err = run(probe_results, "run", "--gputopology", "-n", "9", "--", "true")

    assert "excluded: b: " in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gputopology"], "requires a number of GPUs"),
        (["--gpus", "2"], "require --gputopology"),
        (["--gputopology", "-n", "2", "--workers", "2"], "Use -n, or --gpus and --workers"),
        (["--gputopology", "-n", "0"], "0 ranks"),
        (["-np", "4"], "mpirun's -np 4 is -n 4 here"),
        (["-n", "four"], "-n four: not a number of ranks"),
        (["--gputopology", "-n", "2", "--offline", "--dry-run"], "Omit --offline"),
        (["--gputopology", "-n", "2", "--preset", "taco"], "--gputopology"),
    ],
)
def test_contradictory_gpu_options_are_refused(run, words, said):
    code, _, err = run(QUAD, "run", *words, "--", "true")

    assert code == 125
    assert said in err


def test_a_fabric_can_be_required(run):
    """By option, else by the inventory."""
    _, out, _ = run(healthy(), "run", "--fabric", "tcp", "--dry-run", "--", "true")

    assert "-x NCCL_IB_DISABLE=1" in out


def test_a_custom_mpirun_command_is_started_with_additions_only(run):
    """Before its flags comes what it does not say and needs; the program is looked for on the nodes, not mpirun."""
    typed = ["mpirun", "-np", "2", "-x", "NCCL_DEBUG=INFO", "--mca", "pml", "ob1", "prog", "-n", "9"]
    code, out, err = run(healthy(2), "run", "--dry-run", "-e", "MINE=1", "--", *typed)
    words = shlex.split(out.partition("\n")[0])

    assert (code, err) == (0, "")
    assert words[:3] == ["mpirun", "--allow-run-as-root", "--hostfile"]
    assert words[4:] == [*typed[1:-3], "-x", "MINE", "prog", "-n", "9"]


@pytest.mark.parametrize(
    ("options", "typed", "said"),
    [
        (["-n", "2"], ["mpirun", "-np", "2", "prog"], "Give it once"),
        (["--preset", "taco"], ["mpirun", "prog"], "no --preset, --fabric"),
        ([], ["mpirun", "-np", "2"], "no program to start"),
        ([], ["mpirun", "-x", "LIGHT_TOPK=1", "prog"], "LIGHT_TOPK: unknown LightCC variable"),
        ([], ["mpirun", "-x", "LIGHT_TOPK", "prog"], "LIGHT_TOPK: unknown LightCC variable"),
        ([], ["mpirun", "-np", "4", "prog"], "-np 4 is more than the 3 slots"),
        ([], ["mpirun", "-H", "x:1", "prog"], "-H names x"),
        (["-x", "NCCL_SOCKET_IFNAME=eth0"], ["prog"], "a has ens4"),
    ],
)
def test_a_command_line_that_is_certain_to_fail_is_not_started(run, options, typed, said):
    """Exit 125 with the reason; nothing is printed that one could take for a command that works."""
    code, out, err = run(healthy(2), "run", "--dry-run", *options, "--", *typed)

    assert (code, out) == (125, "")
    assert said in err
    assert "hint: " in err


def test_lint_can_be_overridden(run):
    """Then it is a warning; the user can override the lint."""
    words = ["-x", "NCCL_SOCKET_IFNAME=eth0", "--", "prog"]
    code, out, err = run(healthy(2), "run", "--dry-run", "--no-lint", *words)

    assert (code, "prog" in out) == (0, True)
    assert "warning: NCCL_SOCKET_IFNAME=eth0: a has ens4" in err
    assert "--no-lint" in run(healthy(2), "run", "--dry-run", *words)[2]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--launcher", "mpich"], "a:1\nb:1\nc:1\n"),
        (["--launcher", "torchrun"], "".join(f"{n} {i} 1 10.77.0.1 29500\n" for i, n in enumerate("abc"))),
        (["--launcher", "torchrun", "--master-port", "1234", "-n", "1"], "a 0 1 10.77.0.1 1234\n"),
        (["--launcher", "slurm", "-n", "2"], "a\nb\n"),
        (["--rankfile", "-n", "2"], "rank 0=a slot=0-15\nrank 1=b slot=0-15\n"),
    ],
)
def test_a_host_file_is_written_for_every_launcher(run, words, text):
    """On stdout stands the file and nothing else."""
    assert run(healthy(2), "hostfile", *words) == (0, text, "")


def test_ranks_use_a_free_rendezvous_port(run):
    """Two jobs of torchrun on one node do not take each other's."""
    taken = dataclasses.replace(healthy(2), listening=(Listening("", 29500), Listening("127.0.0.1", 29501)))

    assert run(taken, "hostfile", "--limit", "b", "--launcher", "torchrun")[1] == "b 0 1 10.77.0.2 29502\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-n", "4"], "4 ranks were asked for, but the nodes have 3 slots"),
        (["--launcher", "mpich", "--rankfile"], "mpich reads no rank file"),
        (["--placement", "x"], "Add --rankfile"),
        (["--rankfile", "--placement", "/no/such/file"], "cannot be read"),
        (["--master-port", "1"], "--master-port is for torchrun"),
        (["--launcher", "torchrun", "--master-port", "0"], "not a port number"),
        (["--launcher", "lsf"], "Choose openmpi, openmpi5, mpich"),
    ],
)
def test_an_invalid_host_file_request_is_refused(run, words, said):
    """Exit 2, and no file."""
    code, out, err = run(healthy(2), "hostfile", *words)

    assert (code, out) == (2, "")
    assert said in err


def test_a_placement_sets_cpus_and_requires_nodes_that_can_run_ranks(run, tmp_path):
    """A node that fails now was good when the placement was made."""
    ranks = [{"node": "c", "ranks": [{"cpus": "2-3"}]}, {"node": "a", "ranks": [{"cpus": [0]}]}]
    file = tmp_path / "placement.json"
    file.write_text(json.dumps({"workers": ranks}))
    words = ["hostfile", "--rankfile", "--placement", str(file)]

    assert run(healthy(2), *words)[1] == "rank 0=c slot=2-3\nrank 1=a slot=0\n"

    file.write_text(json.dumps({"workers": [*ranks, {"node": "b", "ranks": [{"cpus": "1"}]}]}))
    code, out, err = run(dataclasses.replace(healthy(2), container=None), *words)
    assert (code, out) == (2, "")
    assert "puts 1 ranks on b, which cannot run ranks" in err


def test_a_job_runs_at_its_placement(run, tmp_path):
    """Only on its nodes, in its order; what it gives each node stands in the explanation."""
    file = tmp_path / "placement.json"
    workers = [{"node": "c", "gpus": [0], "nics": ["mlx5_0"]}, {"node": "a", "gpus": [0], "nics": ["mlx5_0"]}]
    file.write_text(json.dumps({"workers": workers}))
    words = ["--placement", str(file), "--", "python3", "train.py"]
    _, out, _ = run(healthy(2), "run", "--dry-run", *words)
    settings = json.loads(run(healthy(2), "run", "--explain", "--json", *words)[1])["settings"]
    (gpus,) = [setting for setting in settings if setting["name"] == "CUDA_VISIBLE_DEVICES"]

    assert out.partition("# hostfile\n")[2] == "c slots=1\na slots=1\n"
    assert gpus["nodes"] == {"c": "GPU-0", "a": "GPU-0"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--launcher", "srun", "--", "x"], "Choose mpirun, python, torchrun, launch"),
        (["--own-gpus", "--", "x"], "Add --placement FILE"),
        (["--placement", "/no/such", "--", "x"], "cannot be read"),
        (["--launcher", "torchrun", "--preset", "taco", "--", "x"], "Leave --launcher and --placement out"),
        (["--launcher", "torchrun", "--", "mpirun", "x"], "taken as it is"),
        (["--launcher", "launch", "--", "python3", "x.py"], "Omit python3"),
        (["--launcher", "torchrun", "--", "python3", "x.py"], "starts torchrun on each node"),
        (["--launcher", "torchrun", "--", "/usr/bin/torchrun", "x.py"], "Omit /usr/bin/torchrun"),
        (["--launcher", "torchrun", "--", "accelerate", "launch", "x.py"], "Omit accelerate"),
    ],
)
def test_contradictory_launcher_options_are_refused(run, words, said):
    """Exit 125, and nothing is started."""
    code, out, err = run(healthy(2), "run", "--dry-run", *words)

    assert (code, out) == (125, "")
    assert said in err


@pytest.mark.parametrize(("launcher", "shown"), [("launch", True), ("torchrun", False), ("python", False)])
def test_the_program_of_each_node_is_shown_if_the_command_line_hides_it(run, launcher, shown):
    """By dry run and explanation, for people and programs."""
    words = ["--launcher", launcher, "--", "train.py", "--x"]
    _, dry, _ = run(healthy(2), "run", "--dry-run", *words)
    _, explained, _ = run(healthy(2), "run", "--explain", *words)
    document = json.loads(run(healthy(2), "run", "--explain", "--json", *words)[1])

    assert ("\n# starts on each node: sh -c 'python3 -m torch.distributed.launch " in dry) == shown
    assert ("\nstarts on each node: sh -c 'python3 -m torch.distributed.launch " in explained) == shown
    assert (document["node_command"] or [])[-2:] == (["train.py", "--x"] if shown else [])


def test_options_after_the_torch_script_belong_to_the_script(run):
    """Options behind the script's name are the script's."""
    _, out, _ = run(healthy(2), "run", "--dry-run", "--launcher", "torchrun", "train.py", "-o", "json", "--json")

    assert shlex.split(out.partition("\n")[0])[-5:] == ["torchrun", "train.py", "-o", "json", "--json"]
