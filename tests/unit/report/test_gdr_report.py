"""Verdicts on GPUDirect RDMA, as people and scripts read them."""

from __future__ import annotations

from provision.gdr import GdrPath, GdrVerdict, NodeGdr, assumed, verdict
from provision.model.reason import reason
from provision.report.gdr_report import as_document, as_text, nodes_document, nodes_text

GOOD = verdict(assumed("driver=570.133.20,modules=open,kernel=6.8.0,stack=inbox,gpu=hopper,nccl=2.27.5"))
BAD = verdict(assumed("driver=535,modules=proprietary,kernel=6.8.0-60-generic,stack=ofed,gpu=ampere,nccl=2.20.5"))
LOST = NodeGdr(
    "gpu3",
    GdrVerdict(GdrPath.NONE, (reason("gdr.unreachable", cause="no route to host"),)),
    error=reason("gdr.probe_failed", cause="no route to host", advice="is it on?", error="connection.failed"),
)


def test_the_document_has_the_promised_keys():
    """Scripts rely on these names."""
    document = as_document(BAD)

    assert list(document) == ["path", "reasons", "reason_codes", "unmet", "environment"]
    assert {tuple(item) for item in document["unmet"]} == {("path", "precondition", "remedy", "code", "params")}
    assert document["environment"] == {"NCCL_NET_GDR_LEVEL": "LOC"}


def test_every_node_is_in_the_document():
    """An unreachable node has the same keys; its path is none, and the error has the reason."""
    nodes = nodes_document([NodeGdr("gpu1", GOOD), LOST])["nodes"]

    assert [node["name"] for node in nodes] == ["gpu1", "gpu3"]
    assert nodes[0] == {"name": "gpu1", **as_document(GOOD), "simulated": False, "error": None}
    assert nodes[1]["path"] == "none"
    assert nodes[1]["reasons"] == ["unreachable: no route to host"]
    assert nodes[1]["error"] == {
        "message": "no route to host",
        "remedy": "is it on?",
        "code": "gdr.probe_failed",
        "params": {"cause": "no route to host", "advice": "is it on?", "error": "connection.failed"},
    }


def test_messages_have_their_codes_beside_them():
    """Scripts decide by codes, which do not change with the wording."""
    document = as_document(BAD)
    cause = {
        "code": "gdr.nccl_misses_peermem",
        "params": {"nccl": "2.20.5", "oldest": "2.23", "kernel": "6.8.0-60-generic"},
    }

    assert len(document["reasons"]) == len(document["reason_codes"])
    assert document["reason_codes"][1] == {
        "code": "gdr.path_needs",
        "params": {"path": "nvidia-peermem", "precondition": cause},
    }
    (item,) = [item for item in document["unmet"] if item["path"] == "nvidia_peermem"]
    assert {"code": item["code"], "params": item["params"]} == cause
    assert item["remedy"] == "Use an image with NCCL 2.23 or newer."


def test_text_fits_eighty_columns():
    """Long names, reasons and remedies are wrapped or cut, and nothing is lost of what to do."""
    long = "gpu-with-a-very-long-name.rack17.example.com"
    text = nodes_text([NodeGdr(long, BAD), NodeGdr("gpu2", GOOD, simulated=True), LOST])

    assert max(len(line) for line in [*text.splitlines(), *as_text(BAD).splitlines()]) <= 80
    assert "Use an image with NCCL 2.23 or newer." in " ".join(text.split())


def test_the_table_has_path_and_main_reason():
    """Each node has its line; what could not be judged has a question mark and its error."""
    lines = nodes_text([NodeGdr("gpu1", GOOD), LOST]).splitlines()

    assert lines[0].split() == ["NODE", "PATH", "WHY"]
    assert lines[1].startswith("gpu1  dma_buf  DMA-BUF: driver 570.133.20")
    assert any(line.startswith("gpu3  ?        no route to host") for line in lines)


def test_simulated_components_are_marked():
    """Each line that depends on SIMULATED hardware is marked."""
    text = nodes_text([NodeGdr("lab-1", GOOD, simulated=True), NodeGdr("gpu1", GOOD)])

    assert "lab-1  dma_buf  SIMULATED: " in text
    assert "gpu1   dma_buf  DMA-BUF" in text
    assert "SIMULATED on lab-1: components of the lab" in text


def test_nodes_with_the_same_problem_share_a_remedy():
    """A fleet of equal nodes is one block, not one for each."""
    text = nodes_text([NodeGdr("a", BAD), NodeGdr("b", BAD)])

    assert text.count("hint: Use an image with NCCL") == 1
    assert "CLOSED   nvidia_peermem on a, b" in text
