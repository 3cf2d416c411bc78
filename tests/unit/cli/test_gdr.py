"""``provision gdr`` as it is typed."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from provision.cli.main import main
from provision.errors import ConnectionFailed
from provision.facts import Unknown
from provision.model import Cluster
from provision.workflow import gpudirect
from tests.unit.checks.conftest import healthy, make_node

HOPPER = "driver=570.133.20,modules=open,kernel=6.8.0,stack=inbox,gpu=hopper,nccl=2.27.5"
HEAVY = (
    "ansible",
    "ansible_runner",
    "paramiko",
    "fabric",
    "docker",
    "yaml",
    "jinja2",
    "provision.connectors",
)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}


def type_(*words):
    """Run the command in a process of its own."""
    command = [sys.executable, "-m", "provision", "gdr", *words]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False)


def test_an_assumed_machine_gets_a_verdict():
    """No node is asked and no inventory is needed."""
    done = type_("--assume", HOPPER, "--json")

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["path"] == "dma_buf"


def test_no_modules_for_connections_are_imported():
    """What talks to nodes costs time and is not needed."""
    script = f"import sys; from provision.cli.main import main\ntry: main(['gdr', '--assume', {HOPPER!r}])\n"
    script += "except SystemExit: print(sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=True
    )

    assert [name for name in HEAVY if f"'{name}'" in done.stderr] == []
    assert "provision.gdr.verdict" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--assume", "gpu=kepler"], "Use for gpu: maxwell, pascal, volta"),
        (["--assume", "stack=doca,driver=570"], "Use for stack: inbox, inbox-peer, ofed, ofed-4.9"),
        (["--assume", "cuda=12"], "driver=V,modules=open|proprietary"),
        (["--assume", HOPPER, "--limit", "gpu1"], "probes no node"),
        (["--assume", HOPPER, "--lab", "demo"], "probes no node"),
    ],
)
def test_invalid_assumptions_are_refused(capsys, words, said):
    """Exit 2, a sentence, and what is possible."""
    with pytest.raises(SystemExit) as stopped:
        main(["gdr", *words])
    error = capsys.readouterr().err

    assert stopped.value.code == 2
    assert said in error
    assert "Traceback" not in error


@pytest.fixture
def gdr(monkeypatch, capsys):
    """Run the verb on an inventory whose nodes are as said; return exit code, stdout and stderr."""

    def call(facts, *words):
        nodes = tuple(make_node(name, f"10.77.0.{i}") for i, name in enumerate(facts, start=1))
        monkeypatch.setattr("provision.cli.common.inventory_from", lambda *_: Path("hosts.yml"))
        monkeypatch.setattr("provision.inventory.load", lambda *_a, **_k: Cluster("c", Path("hosts.yml"), nodes))
        monkeypatch.setattr(gpudirect, "probe", lambda chosen, **_: {node.name: facts[node.name] for node in chosen})
        with pytest.raises(SystemExit) as stopped:
            main(["gdr", *words])
        said = capsys.readouterr()
        return stopped.value.code, said.out, said.err

    return call


def test_the_nodes_of_an_inventory_get_verdicts(gdr):
    """Every node has its verdict, in the inventory's order, and a way that is closed is no failure of the command."""
    code, out, _ = gdr({"gpu1": healthy(), "cpu1": node_without_gpu()}, "--json")
    nodes = json.loads(out)["nodes"]

    assert code == 0
    assert [(node["name"], node["path"]) for node in nodes] == [("gpu1", "dma_buf"), ("cpu1", "none")]
    assert nodes[1]["reason_codes"] == [{"code": "gdr.no_gpu", "params": {}}]


def node_without_gpu():
    return dataclasses.replace(healthy(), gpus=(), gpu_pci=())


@pytest.mark.parametrize(
    "trouble",
    [ConnectionFailed("no route to host", node="gpu2", remedy="is it on?"), "hung"],
    ids=["unreachable", "nvidia-smi hangs"],
)
def test_a_node_without_a_verdict_exits_with_1(gdr, trouble):
    """The others are judged all the same."""
    bad = dataclasses.replace(healthy(), gpus=Unknown("hung: nvidia-smi")) if trouble == "hung" else trouble
    code, out, _ = gdr({"gpu1": healthy(), "gpu2": bad}, "--json")
    good, lost = json.loads(out)["nodes"]

    assert code == 1
    assert (good["path"], good["error"]) == ("dma_buf", None)
    assert (lost["path"], lost["unmet"], lost["environment"]) == ("none", [], {})
    assert lost["error"]["remedy"]
    assert lost["error"]["code"] == ("gdr.fact_unavailable" if trouble == "hung" else "gdr.probe_failed")


def test_limit_selects_nodes(gdr):
    """As with verify."""
    _, out, _ = gdr({"gpu1": healthy(), "gpu2": healthy(2)}, "--limit", "gpu2", "--json")

    assert [node["name"] for node in json.loads(out)["nodes"]] == ["gpu2"]
