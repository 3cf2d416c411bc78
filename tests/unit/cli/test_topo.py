"""``provision topo`` as it is typed: files, and a node that is answered for here."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from provision import connectors
from provision.cli.main import main
from provision.errors import ConnectionFailed, ProvisionError
from provision.testing import FakeConnector, make_cluster
from tests.support.probe import answer

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ("ansible_runner", "paramiko", "fabric", "docker", "yaml", "jinja2", "provision.connectors", "rich")
MATRIX = (
    "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV2\tPIX\t0-7\t0\t\tN/A\n"
    "GPU1\tNV2\t X \tSYS\t8-15\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \t\t\t\t\n"
    "\nLegend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
)
OUTPUTS = {
    "topology": f"{MATRIX}\n== cards\nmlx5_0=0\n",
    "gpus": "index, name, pcie.link.gen.max, pcie.link.width.current\n0, NVIDIA L4, 4, 16\n1, NVIDIA L4, 4, 16",
    "rdma": "device\tmlx5_0\tmlx5_core\nport\t1\tInfiniBand\t4: ACTIVE\t5: LinkUp\t200 Gb/sec (4X HDR)",
    "simulated": "nvidia-smi=nvidia-smi of a test\ntraining=something else",
}


@pytest.fixture
def topo(monkeypatch, capsys, tmp_path):
    """Type the command in a folder of its own; return exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PROVISION_INVENTORY", raising=False)

    def run(*words: str, stdin: str = ""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as stopped:
            main(["topo", *words])
        return stopped.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def node(monkeypatch):
    """Two nodes, gpu1 and gpu2, that answer the probe so; return the requests that they are sent."""
    monkeypatch.setattr("provision.cli.common.cluster_from", lambda *_, **__: make_cluster("gpu1", "gpu2"))

    def answering(outputs: dict[str, str] | ProvisionError) -> list[bytes]:
        said = outputs if isinstance(outputs, ProvisionError) else answer(outputs)
        connector = FakeConnector({".pyz probe": said}, "gpu1")

        def each(nodes, function, **_):
            try:
                return {one.name: function(connector) for one in nodes}
            except ProvisionError as error:
                return {nodes[0].name: error}

        monkeypatch.setattr(connectors, "each", each)
        return connector.inputs

    return answering


def test_a_file_is_shown_without_nodes(topo, tmp_path):
    """Matrix and tree on stdout, nothing on stderr."""
    (tmp_path / "topo.txt").write_text(MATRIX)
    code, out, err = topo("--file", "topo.txt")

    assert (code, err) == (0, "")
    assert "GPU0          X    NV2  PIX" in out
    assert "NUMA node 0 (CPUs 0-7)\n`-- PIX: GPU0, mlx5_0\n" in out


def test_standard_input_is_read(topo):
    """A pipe from the tool itself."""
    code, out, _ = topo("--file", "-", "--json", stdin=MATRIX)
    document = json.loads(out)

    assert code == 0
    assert document["links"] == [["X", "NV2", "PIX"], ["NV2", "X", "SYS"], ["PIX", "SYS", "X"]]
    assert [(gpu["index"], gpu["numa"], gpu["cpus"]) for gpu in document["gpus"]] == [(0, 0, ["0-7"]), (1, 1, ["8-15"])]
    assert [(nic["name"], nic["numa"]) for nic in document["nics"]] == [("mlx5_0", None)]
    assert document["warnings"] == []


def test_selected_gpus_are_marked_in_all_formats(topo, tmp_path):
    """Text, JSON and drawing."""
    _, out, err = topo("--file", "-", "--gpus", "1", "--svg", "a.svg", stdin=MATRIX)
    _, document, _ = topo("--file", "-", "--gpus", "0-1", "--json", stdin=MATRIX)
    drawing = ET.parse(tmp_path / "a.svg").getroot()  # noqa: S314 - made by us

    assert err == "drawn: a.svg\n"
    assert "`-- PIX: GPU0, mlx5_0" in out
    assert "`-- GPU1*" in out
    assert [text.text for text in drawing.iter() if (text.text or "").endswith("*")] == ["GPU1*"]
    assert json.loads(document)["chosen"] == [0, 1]


REFUSED = [
    ((), "specify either NODE or --file", MATRIX),
    (("gpu1", "--file", "-"), "specify either NODE or --file", MATRIX),
    (("--file", "-", "--lab", "demo"), "probes no node", MATRIX),
    (("--file", "nothing.txt"), "nothing.txt: file not found", ""),
    (("--file", "."), ".: it is a folder", ""),
    (("--file", "-"), "-: nvidia-smi topology matrix: no heading", "hello\n"),
    (("--file", "-"), "more devices than it has rows", MATRIX.split("\nNIC0", maxsplit=1)[0]),
    (("--file", "-", "--gpus", "0,7"), "unknown GPU 7", MATRIX),
    (("--file", "-", "--gpus", "first"), "invalid GPU index 'first'", MATRIX),
    (("--file", "-", "--gpus", "3-1"), "unknown GPU 3-1", MATRIX),
    (("--file", "-", "--gpus", ""), "invalid GPU index ''", MATRIX),
]


@pytest.mark.parametrize(("words", "said", "stdin"), REFUSED, ids=[said for _, said, _ in REFUSED])
def test_invalid_input_is_refused(topo, words, said, stdin):
    """Exit 2, what was wrong, what to do; nothing on stdout."""
    code, out, err = topo(*words, stdin=stdin)

    assert (code, out) == (2, "")
    assert said in err
    assert "hint: " in err


def test_a_drawing_that_cannot_be_written_is_reported(topo):
    """The path and the system's reason."""
    code, _, err = topo("--file", "-", "--svg", "no/such/folder.svg", stdin=MATRIX)

    assert code == 1
    assert "no/such/folder.svg: No such file or directory" in err


def test_a_node_is_probed_once_with_few_facts(topo, node):
    """One session; products, rates, NUMA nodes of cards and the label of stand-ins come with the matrix."""
    sent = node(OUTPUTS)
    code, out, _ = topo("gpu1", "--json")
    document = json.loads(out)

    assert code == 0
    assert len(sent) == 1
    request = json.loads(sent[0])
    assert request["environment"]["PROBE_TOPOLOGY"] == "yes"
    assert [name for name, *_ in request["commands"]] == ["topology", "gpus", "rdma", "simulated"]
    assert (document["node"], document["simulated"]) == ("gpu1", True)
    assert {(gpu["product"], gpu["pcie_generation"], gpu["pcie_width"]) for gpu in document["gpus"]} == {
        ("NVIDIA L4", 4, 16)
    }
    assert document["nics"] == [
        {"name": "mlx5_0", "numa": 0, "rate_gbit": 200.0, "link_layer": "InfiniBand", "active": True}
    ]


def test_a_simulated_node_is_marked(topo, node, tmp_path):
    """In the text and in the drawing, in the words of the stand-in; what does not touch GPUs is left out."""
    node(OUTPUTS)
    _, out, _ = topo("gpu1", "--svg", "a.svg")

    assert "gpu1: 2 GPUs" in out
    assert "SIMULATED nvidia-smi: nvidia-smi of a test" in out
    assert "something else" not in out
    assert "SIMULATED nvidia-smi" in (tmp_path / "a.svg").read_text()


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ({"topology": ""}, "gpu1: nvidia-smi is missing or shows no GPU"),
        ({"topology": f"{MATRIX.splitlines()[0]}\n"}, "gpu1: nvidia-smi topology matrix: no row"),
        (ConnectionFailed("no route to host", node="gpu1"), "gpu1: no route to host"),
    ],
    ids=["no GPU", "an odd answer", "unreachable"],
)
def test_a_node_that_cannot_be_shown_is_reported(topo, node, outputs, said):
    """Exit 1: something failed there."""
    node(outputs)
    code, out, err = topo("gpu1")

    assert (code, out) == (1, "")
    assert said in err


@pytest.mark.parametrize(("name", "said"), [("all", "all names 2 nodes"), ("gpu9", "no node or group is named 'gpu9'")])
def test_exactly_one_node_is_shown(topo, node, name, said):
    """Several, or one that the inventory does not have, are refused."""
    node(OUTPUTS)
    code, _, err = topo(name)

    assert code == 2
    assert said in err


def test_no_modules_for_connections_are_imported_for_a_file():
    """What talks to nodes costs time and is not needed."""
    script = "import sys; from provision.cli.main import main\ntry: main(['topo', '--file', '-'])\n"
    script += "except SystemExit as stop: print(stop.code, sorted(sys.modules), file=sys.stderr)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=MATRIX,
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=True,
    )

    assert done.stderr.startswith("0 ")
    assert [name for name in HEAVY if f"'{name}'" in done.stderr] == []
