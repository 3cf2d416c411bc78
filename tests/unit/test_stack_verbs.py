"""The verbs of stacks: which node is locked, what is compared, and how results and predictions are reported."""

from __future__ import annotations

import dataclasses
import json

import pytest

from provision import connectors
from provision.cli.main import main
from provision.errors import NodeError, NotFound, UsageError
from provision.model import CheckResult, CheckStatus
from provision.model.reason import reason
from provision.report.stack_report import (
    differences_document,
    differences_text,
    fails,
    forecast_document,
    forecast_text,
    lock_document,
    lock_text,
)
from provision.stack.compare import differences
from provision.stack.prediction import BuildFacts, DkmsRange, predict
from provision.testing import FakeConnector
from provision.workflow import survey, verification
from provision.workflow.stack import forecasts, lock_stack, refusal, stack_named
from tests.support.reasons import shown
from tests.unit.checks.conftest import healthy, make_cluster
from tests.unit.stack.conftest import DIGEST, facts_with, lock_of

NEW = "6.1.0-50-amd64"
PASSED = CheckResult("node.os", CheckStatus.PASS, reason("node.clock.ok"))
WARNED = CheckResult("node.clock", CheckStatus.WARN, reason("node.clock.ahead", seconds=400))
FAILED = CheckResult("docker_engine.service", CheckStatus.FAIL, reason("docker_engine.service.not_installed"))
SKIPPED = CheckResult("rdma_stack.bandwidth", CheckStatus.SKIP, reason("rdma_stack.bandwidth.no_partner"))
WITHOUT_RDMA = dataclasses.replace(healthy().rdma, devices=())


@pytest.mark.parametrize(
    ("checks", "facts", "expected"),
    [
        ((PASSED, WARNED), {}, None),
        ((PASSED, FAILED), {}, "stack.lock.failed: stack.lock.check docker_engine.service"),
        ((PASSED, SKIPPED), {}, "stack.lock.not_measured: rdma_stack.bandwidth.no_partner"),
        ((PASSED, SKIPPED), {"rdma": WITHOUT_RDMA}, None),
    ],
)
def test_only_a_node_that_passes_is_locked(checks, facts, expected):
    """Warnings are allowed; bandwidth is required of nodes with RDMA devices."""
    why = refusal(checks, facts_with(**facts))

    assert (None if why is None else shown(why).startswith(expected)) == (None if expected is None else True)


@pytest.fixture
def probed(monkeypatch):
    """Replace the probe of nodes by facts; two healthy nodes, of which gpu1 can be changed."""
    facts = {"gpu1": healthy(1), "gpu2": healthy(2)}

    def probe(nodes, **_):
        return {node.name: facts[node.name] for node in nodes}

    for module in (survey, verification):
        monkeypatch.setattr(module, "probe", probe)
    return facts


def test_two_nodes_are_compared_by_their_facts(probed):
    """A node that the inventory does not have is a file, or an error."""
    probed["gpu2"] = dataclasses.replace(probed["gpu2"], packages={"rdma-core": "43"})
    cluster = make_cluster()
    results = differences(stack_named(cluster, "gpu1"), stack_named(cluster, "gpu2"))

    assert ("rdma", "rdma-core", "44", "43") in {dataclasses.astuple(one) for one in results}
    with pytest.raises(NotFound):
        stack_named(cluster, "gpu9")


def test_a_node_that_fails_level_full_is_not_locked(probed, monkeypatch):
    """The code of the refusal, with the failing checks."""
    from provision.workflow import bandwidth

    monkeypatch.setattr(bandwidth, "measure", lambda *_: None)
    monkeypatch.setattr(verification, "try_pairs", lambda *_: None)
    probed["gpu1"] = dataclasses.replace(
        probed["gpu1"], docker_service=dataclasses.replace(healthy().docker_service, active="failed")
    )

    with pytest.raises(NodeError) as caught:
        lock_stack(make_cluster(), "gpu1", print)
    assert (caught.value.code, caught.value.node) == ("stack.lock.failed", "gpu1")
    assert "docker_engine.service" in caught.value.message


@pytest.mark.usefixtures("probed")
def test_a_node_beyond_the_limit_cannot_be_locked():
    """It is not verified."""
    with pytest.raises(UsageError) as caught:
        lock_stack(make_cluster(), "gpu1", print, "gpu2")
    assert "--limit gpu2" in caught.value.message


def test_an_unknown_conflict_cannot_be_accepted():
    """It is refused before a node is contacted, with the names that there are."""
    with pytest.raises(UsageError) as caught:
        lock_stack(make_cluster(), "gpu1", print, None, ["driver-535"])
    assert "driver-535-kernel-6.12" in str(caught.value.remedy)


@pytest.mark.usefixtures("probed")
def test_the_available_kernels_of_a_node_are_predicted(monkeypatch):
    """The node is asked twice: which kernels there are, and for their headers and ranges."""
    scripts = []

    def each(nodes, function, **_):
        first = f"depends=linux-image-{NEW} (= 1)\ntree=nvidia 550.90\n"
        way = FakeConnector({f"for kernel in {NEW}": f"{first}headers={NEW} (none)\n", "for kernel in": first}, "gpu1")
        result = {node.name: function(way) for node in nodes if node.name == "gpu1"}
        scripts.extend(way.scripts)
        return result

    monkeypatch.setattr(connectors, "each", each)
    results = forecasts(make_cluster(), "gpu1", ())

    assert list(results["gpu1"]) == [NEW]
    assert {one.component: one.forecast.value for one in results["gpu1"][NEW]}["driver"] == "fails"
    assert "linux-image-amd64" in scripts[0]


LOCK = lock_of()


def test_a_written_lock_is_reported():
    """Component by component."""
    lines = {tuple(line.split()) for line in lock_text("x/stack.lock.yml", LOCK).splitlines()}
    assert {("docker", "20.10.24+dfsg1", "3"), ("image", DIGEST, "-"), ("rdma", "inbox", "2")} <= lines
    document = lock_document("x/stack.lock.yml", LOCK)
    assert document["components"]["toolkit"]["packages"]["nvidia-container-toolkit"] == "1.17.8-1"


def test_differences_are_reported():
    """Both versions in one line; equal stacks in a sentence."""
    results = differences(LOCK, lock_of(facts_with({"runc": "1"})))
    text = differences_text("a.yml", "gpu2", results)

    assert text.splitlines()[-1].split() == ["docker", "runc", "1.1.5+ds1-1", "1"]
    assert differences_document("a.yml", "gpu2", results)["differences"] == [
        {"component": "docker", "package": "runc", "a": "1.1.5+ds1-1", "b": "1"}
    ]
    assert differences_document("a", "b", ())["same"]
    assert "same stack" in differences_text("a", "b", ())


def test_predictions_are_reported_with_their_limits():
    """Reasons, remedies, and that nothing is compiled."""
    build = BuildFacts(headers={NEW: ""}, trees=(DkmsRange("nvidia", "550.90"),))
    results = {
        "gpu1": {NEW: predict(NEW, facts_with(), build)},
        "gpu2": {},
        "gpu3": NodeError("it is off", node="gpu3"),
    }
    text = " ".join(forecast_text(results).split())

    assert f"gpu1: kernel {NEW}" in text
    assert "driver 550.90: fails" in text
    assert "rdma inbox: no obstacle" in text
    assert "gpu2: no newer kernel" in text
    assert "gpu3: it is off" in text
    assert "Nothing is compiled" in text
    nodes = {node["name"]: node for node in forecast_document(results)["nodes"]}
    assert nodes["gpu3"]["error"] == "it is off"
    assert nodes["gpu1"]["kernels"][0]["components"][0]["reasons"][0]["code"] == "stack.check.no_headers"
    assert fails(results)
    assert not fails({"gpu1": {NEW: predict(NEW, facts_with(), BuildFacts())}})


@pytest.mark.parametrize("kernel", ["-o", "6.1; reboot", "x" * 80])
def test_a_kernel_that_cannot_exist_is_refused(kernel, capsys, tmp_path, monkeypatch):
    """Before any node is contacted."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(["stack", "check", f"--kernel={kernel}", "--json"])

    assert caught.value.code == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "usage"
