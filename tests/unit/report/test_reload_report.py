"""What a reload came to, for a person and for a script."""

from __future__ import annotations

from provision.model import NodeReload, ReloadResult
from provision.report.reload_report import as_document, as_text
from tests.support.reasons import plain

GOOD = NodeReload("gpu1", ReloadResult.READY, plain("nv_peer_mem is ready"), "nv_peer_mem", "nv_peer_mem")


def bad(name):
    """A node whose load hangs."""
    words = "modprobe nv_peer_mem did not return within its limit, " * 3
    return NodeReload(
        name, ReloadResult.FAILED, plain(words, "Look at dmesg. " * 8), "nv_peer_mem", "nv_peer_mem", "load_hangs"
    )


def test_the_table_fits_eighty_columns():
    """Whatever the names and reasons."""
    text = as_text([GOOD, bad("a-node-with-a-name-that-is-longer-than-any-screen"), bad("gpu2")])

    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.splitlines()[0].split() == ["NODE", "RESULT", "MODULE", "REASON"]
    assert text.splitlines()[1].split()[:3] == ["gpu1", "ready", "nv_peer_mem"]


def test_nodes_with_the_same_problem_share_a_remedy():
    """Nodes with one cause share a block that names the cause."""
    text = as_text([bad("gpu1"), bad("gpu2")])

    assert "FAILED  gpu1, gpu2: load_hangs" in text
    assert text.count("hint:") == 1


def test_a_provider_without_a_module_has_a_dash():
    """DMA-BUF loads nothing."""
    text = as_text([NodeReload("gpu1", ReloadResult.READY, plain("dma_buf is ready"), provider="dma_buf")])

    assert text.splitlines()[1].split() == ["gpu1", "ready", "-", "dma_buf", "is", "ready"]


def test_simulated_components_are_marked():
    """In the node's line and below the table."""
    text = as_text([NodeReload("lab-1", ReloadResult.READY, plain("ready"), simulated=True)])

    assert "SIMULATED: ready" in text
    assert "SIMULATED on lab-1: components of the lab" in text


def test_document_and_table_have_the_same_content():
    """The field ok summarises the results; a node without modules to load does not affect it."""
    absent = NodeReload("cpu1", ReloadResult.SKIPPED, plain("never applied"))
    document = as_document([bad("gpu1")])

    assert as_document([GOOD, absent])["ok"] is True
    assert document["ok"] is False
    assert document["nodes"][0]["result"] == "failed"
    assert document["nodes"][0]["cause"] == "load_hangs"
    assert set(document["nodes"][0]) - {"code", "params"} == {
        "name", "result", "provider", "module", "cause", "reason", "remedy", "simulated",
    }  # fmt: skip
