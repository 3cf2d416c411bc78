"""A verification as people and as scripts read it."""

from __future__ import annotations

from provision.model import Bandwidth, CheckResult, CheckStatus, NodeChecks, PairBandwidth, Port, Verification
from provision.model.reason import reason
from provision.report.verify_report import as_document, as_text
from tests.support.reasons import plain

GOOD = CheckResult("node.os", CheckStatus.PASS, plain("Debian 12"))
WARNING = CheckResult("base_system.limits", CheckStatus.WARN, plain("limits are cut " * 12, "Give it more."))
FAILURE = CheckResult(
    "gpu.count", CheckStatus.FAIL, plain("7 of 8 GPUs", "Reboot it: " + "/long/" * 20), simulated=True
)
SKIPPED = CheckResult("gpu.driver", CheckStatus.SKIP, plain("no GPU"))
BAD = Verification(
    (NodeChecks("gpu1", (GOOD, WARNING, SKIPPED)), NodeChecks("gpu2", (GOOD, WARNING, FAILURE))),
    (CheckResult("cluster.skew_os", CheckStatus.PASS, plain("same")),),
)
FINE = Verification((NodeChecks("gpu1", (GOOD, SKIPPED)),))


def test_the_document_has_the_keys_that_scripts_rely_on():
    """Each node has its checks, each check its keys, and ok means that nothing failed."""
    document = as_document(BAD)

    assert list(document) == ["ok", "nodes", "cluster"]
    assert document["ok"] is False
    assert document["nodes"][1]["name"] == "gpu2"
    assert document["nodes"][1]["checks"][2] == {
        "id": "gpu.count",
        "status": "fail",
        "simulated": True,
        "reason": "7 of 8 GPUs",
        "remedy": "Reboot it: " + "/long/" * 20,
        **FAILURE.reason.as_document(),
    }
    assert as_document(FINE)["ok"] is True


def test_the_text_fits_eighty_columns():
    """Long reasons and long words are wrapped."""
    lines = as_text(BAD, verbose=True, simulated=[("gpu2", ["nvidia-smi: " + "x" * 90])]).splitlines()

    assert max(map(len, lines)) <= 80


def test_failures_come_first_with_reason_and_remedy():
    """What failed is above what only warns; passes and skips are not shown."""
    text = as_text(BAD)

    assert text.index("FAIL  gpu.count  SIMULATED  on gpu2") < text.index("WARN  base_system.limits")
    assert "hint: Reboot it" in text
    assert "node.os" not in text
    assert text.startswith("NOT OK: 1 check failed on 1 of 2 nodes (gpu2), 2 warnings.\n")


def test_nodes_with_the_same_finding_share_it():
    """A hundred equal warnings are one paragraph."""
    text = as_text(BAD)

    assert text.count("base_system.limits") == 1
    assert "on gpu1, gpu2" in text


def test_a_shared_remedy_lists_all_its_nodes():
    """One remedy covers all nodes; a command for another node is unchanged."""
    verification = {
        name: CheckResult("a.b", CheckStatus.FAIL, reason("base_system.hosts.wrong", names=["x"]))
        for name in ("g1", "g2")
    }
    other = CheckResult("a.b", CheckStatus.FAIL, plain("gone", "Run: provision apply --limit g1,g3"))
    nodes = (
        NodeChecks("g1", (verification["g1"],)),
        NodeChecks("g2", (verification["g2"],)),
        NodeChecks("g3", (other,)),
    )
    text = as_text(Verification(nodes))

    assert text.count("FAIL  a.b") == 2
    assert "provision apply --limit g1,g2" in text
    assert "provision apply --limit g1,g3" in text


def test_verbose_shows_every_check():
    """Passes and skips come with their reasons."""
    text = as_text(BAD, verbose=True)

    assert "PASS  node.os" in text
    assert "SKIP  gpu.driver" in text


def test_simulated_components_are_listed_even_without_failures():
    """SIMULATED nodes are never mistaken for real hardware."""
    text = as_text(FINE, simulated=[("gpu1", ["nvidia-smi: driver and GPUs"]), ("gpu2", [])])

    assert "SIMULATED on gpu1" in text
    assert "nvidia-smi: driver and GPUs" in text
    assert text.startswith("ok: no failures in 2 checks.\n")


def test_measured_pairs_are_in_the_document_and_the_slowest_in_the_text():
    """Scripts get every pair with its numbers; a person sees failed ones first. Level quick has no such key."""
    a, b = Port("gpu1", "mlx5_0"), Port("gpu2", "mlx5_3", 2)
    pairs = [PairBandwidth(a, b, "gpu", 97.12345, 100.0), PairBandwidth(b, a, "host", None, 100.0, "packets are lost")]
    pairs += [PairBandwidth(a, Port(f"gpu{n}", "mlx5_0"), "gpu", 98.0, 100.0) for n in range(3, 30)]
    done = Verification(FINE.nodes, (), Bandwidth(tuple(pairs)))
    document, lines = as_document(done), as_text(done).splitlines()
    first = next(number for number, line in enumerate(lines) if "slowest first" in line)

    assert document["pairs"][0] == {
        "a": "gpu1",
        "b": "gpu2",
        "gbit_s": 97.123,
        "device": "mlx5_0",
        "memory": "gpu",
        "port": 1,
        "device_b": "mlx5_3",
        "port_b": 2,
        "line_rate_gbit_s": 100.0,
        "reason": None,
    }
    assert (document["pairs"][1]["gbit_s"], document["pairs"][1]["reason"]) == (None, "packets are lost")
    assert len(document["pairs"]) == 29
    assert lines[first + 1] == "  gpu2 (mlx5_3 port 2) -> gpu1 (mlx5_0)  failed"
    assert lines[first + 2] == "  gpu1 (mlx5_0) -> gpu2 (mlx5_3 port 2)  97.1 of 100 (gpu memory)"
    assert any("21 more" in line for line in lines)
    assert max(map(len, lines)) <= 80
    assert "pairs" not in as_document(FINE)
