"""``top`` and ``node`` as they are typed."""

from __future__ import annotations

import json

import pytest

from provision.cli import node as node_verbs
from provision.errors import ConnectionFailed
from provision.facts.gpu_usage import GpuUsage
from provision.model.job import JobStatus
from provision.model.job_views import GpuView, NodeView
from provision.model.reason import reason
from provision.testing import make_cluster
from provision.workflow.job_nodes import Usage
from tests.support.memory_engine import MemoryEngine, job_of

JOB = job_of("a", gpus=1, nodes=("gpu1", "gpu2"))
NODES = (
    NodeView(
        "gpu1",
        "10.0.0.1",
        ready=True,
        head=True,
        mode="topology",
        gpus=(GpuView(0, JOB.assignments[0].uuids[0], "V100", "a", "a-master-0"), GpuView(1, "x", "V100")),
    ),
    NodeView("gpu2", "10.0.0.2", ready=True, labels={"rack": "r1"}, gpus=(GpuView(0, "y", "V100"),)),
    NodeView("gpu3", "10.0.0.3", ready=False, reason=reason("placement.node_unreachable", cause="no route to host")),
)


@pytest.fixture
def written(monkeypatch):
    """Jobs and nodes in memory; what would be written into the inventory."""
    engine = MemoryEngine((JOB,), nodes=NODES)
    cluster = make_cluster("gpu1", "gpu2", "gpu3", cluster_labels={"rack": "r1"})
    done: dict[str, object] = {}
    monkeypatch.setattr("provision.cli.job_options.cluster_from", lambda *_a, **_k: cluster)
    monkeypatch.setattr("provision.workflow.jobs.job_engine", lambda *_: engine)
    monkeypatch.setattr("provision.inventory.record.set_for_hosts", lambda _cluster, wanted: done.update(wanted) or ())
    usage = Usage({"gpu1": (GpuUsage(0, JOB.assignments[0].uuids[0], "V100", 87, 1, 2),)}, ("gpu1",), {"gpu2": "gone"})
    monkeypatch.setattr("provision.workflow.job_nodes.usage", lambda *_a: usage)
    return done


@pytest.mark.row(21)
@pytest.mark.usefixtures("written")
def test_top_node_shows_allocation_per_node_and_totals(typed):
    """The cluster's footer; only some nodes; by mode; as JSON."""
    assert "1/3 (33%)" in typed("top", "node")[1]
    assert "0/1 (0%)" in typed("top", "node", "gpu2")[1]
    assert "Allocated/Total GPUs In Node: 1/2" in typed("top", "node", "-d")[1]
    assert typed("top", "node", "-m", "t", "-o", "name")[1] == "gpu1\n"
    assert typed("top", "node", "-m", "n", "-o", "name")[1] == "gpu3\n"
    assert json.loads(typed("top", "node", "-o", "json")[1])["allocatedGPUs"] == 1
    assert typed("top", "node", "gpu9")[0] == 3
    assert typed("-o", "json", "top", "node", "-m", "x")[0] == 2


@pytest.mark.row(37, 60)
@pytest.mark.usefixtures("written")
def test_top_job_and_top_gpu_show_jobs_and_gpus(typed):
    """All jobs with totals; one job with its GPUs; a node without an answer is named; simulated GPUs are labelled."""
    assert typed("top", "job")[1].splitlines()[-4:] == [
        "2",
        "",
        "Total Requested GPUs of Training Job:",
        "2",
    ]
    _, out, err = typed("top", "job", "a", "-i", "master-0")
    assert "87%" in out
    assert "worker-0" not in out
    assert "SIMULATED on gpu1" in out
    assert "gpu2 did not report its GPUs: gone" in err
    document = json.loads(typed("top", "job", "a", "--json")[1])
    assert document["instances"][0]["gpuMetrics"]["0"]["gpuDutyCycle"] == 87
    assert typed("top", "job", "-r")[0] == 2
    assert "a-master-0" in typed("top", "gpu")[1]
    assert json.loads(typed("top", "gpu", "--json")[1])[0]["simulated"] is True
    assert "87%" in typed("get", "a", "-g")[1]


@pytest.mark.usefixtures("written")
def test_node_list_shows_labels_and_drain_reasons(typed):
    """With labels and why one takes no jobs."""
    out = typed("node", "list")[1]

    assert "gpu1  Ready     master  2     topology      <none>" in out
    assert "rack=r1" in out
    assert "gpu3: no route to host" in out


@pytest.mark.row(4, 5)
def test_a_label_is_written_into_the_inventory(typed, written):
    """By the document's word too; a value that is there stays, unless it is to be overwritten."""
    code, out, _ = typed("node", "label", "gpu2", "ack.node.gpu.schedule=topology", "leaf=l1")

    assert (code, out) == (0, "gpu2 labeled\n")
    assert written == {"gpu2": {"cluster_gpu_schedule": "topology", "cluster_labels": {"rack": "r1", "leaf": "l1"}}}
    code, _, err = typed("node", "label", "gpu2", "rack=r2")
    assert code == 2
    assert "gpu2 has rack=r1 already" in err
    assert typed("node", "label", "gpu2", "rack=r2", "--overwrite")[0] == 0
    assert written["gpu2"] == {"cluster_labels": {"rack": "r2"}}
    assert typed("node", "label", "gpu2", "rack-")[0] == 0
    assert written["gpu2"] == {"cluster_labels": {}}


@pytest.mark.row(5)
def test_the_mode_cannot_be_changed_while_jobs_hold_gpus(typed, written):
    """Unless it is forced; who does not answer is not known to be free. Taking the label away changes nothing."""
    code, _, err = typed("node", "label", "gpu1", "gpu.schedule=topology")
    assert code == 2
    assert "a holds GPUs of gpu1" in err
    assert typed("node", "label", "gpu3", "gpu.schedule=topology")[0] == 7
    assert written == {}
    assert typed("node", "label", "gpu1", "gpu.schedule=topology", "--force")[0] == 0
    assert written == {"gpu1": {"cluster_gpu_schedule": "topology"}}
    written.clear()
    code, _, err = typed("node", "label", "gpu2", "gpu.schedule-")
    assert code == 0
    assert "gpu2 stays default" in err
    assert written == {"gpu2": {}}


@pytest.mark.parametrize(
    "words", [["gpu1"], ["a=b"], ["gpu1", "gpu.schedule=often"], ["gpu1", "=x"], ["gpu1", "a=1", "a=2"]]
)
def test_an_invalid_label_is_refused(typed, written, words):
    """Refused before anything is written."""
    assert typed("node", "label", *words)[0] == 2
    assert written == {}


@pytest.mark.usefixtures("written")
def test_drain_and_resume_change_the_state_of_nodes(typed, monkeypatch):
    """With a reason and who; a node that cannot be reached is an error, the others are drained."""
    seen = []

    def drain(_engine, names, reason):
        seen.append((list(names), reason))
        return {name: ConnectionFailed("no route", node=name) if name == "gpu3" else None for name in names}

    monkeypatch.setattr(MemoryEngine, "drain", drain)
    monkeypatch.setattr(node_verbs.getpass, "getuser", lambda: "eve")

    assert typed("node", "drain", "gpu1", "--reason", "fan")[:2] == (0, "gpu1 drained\n")
    code, out, err = typed("node", "resume", "gpu1", "gpu3")
    assert (code, out) == (7, "gpu1 resumed\n")
    assert "error: gpu3: no route" in err
    assert seen == [(["gpu1"], "fan (eve)"), (["gpu1", "gpu3"], "")]
    assert typed("node", "drain", "gpu9")[0] == 3


@pytest.mark.row(42)
def test_states_have_the_names_of_arena():
    """And two more, for what was ended by hand; three are ends."""
    assert {str(status) for status in JobStatus} == {
        "QUEUING",
        "PENDING",
        "RUNNING",
        "STOPPING",
        "SUCCEEDED",
        "FAILED",
        "STOPPED",
    }
    assert [str(status) for status in JobStatus if status.over] == ["SUCCEEDED", "FAILED", "STOPPED"]


@pytest.mark.row(60)
@pytest.mark.usefixtures("written")
@pytest.mark.parametrize("words", [("gpu",), ("node",), ("job", "a")])
def test_watch_redraws_in_place_and_ctrl_c_ends_it(typed, monkeypatch, words):
    """No clearing first: old lines stand until the new ones are there; what is taller than the terminal is cut."""
    waits = iter([None, KeyboardInterrupt()])

    def wait(_seconds):
        error = next(waits)
        if error:
            raise error

    monkeypatch.setattr("provision.cli.top.time.sleep", wait)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("LINES", "5")

    code, out, err = typed("top", *words, "-r")
    _, *frames = out.split("\033[H")

    assert code == 0
    assert "interrupted" not in err
    assert len(frames) == 2
    assert frames[0] == frames[1]
    assert frames[0].endswith("\033[K\n\033[J")
    assert 2 <= frames[0].count("\n") <= 4
    assert "\033[2J" not in out
