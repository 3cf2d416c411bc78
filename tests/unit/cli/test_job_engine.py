"""The choice of the job engine by ``--engine`` and `cluster_engine`, and commands that need a missing capability."""

from __future__ import annotations

import json

import pytest

from provision.jobs.engines import ENGINES
from provision.jobs.engines.base import Capability, EngineUnavailable
from provision.testing import make_cluster
from tests.support import memory_engine
from tests.support.memory_engine import MemoryEngine, job_of


@pytest.fixture
def registered(monkeypatch, tmp_path):
    """Register an engine by one line, and record what is created; return the created engines and a setter."""
    created = []
    variables = {}

    def create(context):
        created.append(MemoryEngine((job_of("job", gpus=1),), gpus=None))
        assert [node.name for node in context.cluster.nodes] == ["gpu1", "gpu2"]
        return created[-1]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(ENGINES, "memory", "tests.support.memory_engine")
    monkeypatch.setattr(memory_engine, "create", create)
    monkeypatch.setattr(
        "provision.cli.job_options.cluster_from", lambda *_a, **_k: make_cluster("gpu1", "gpu2", **variables)
    )
    return created, variables.update


@pytest.mark.parametrize(
    "words",
    [
        ("--engine", "memory", "list", "-o", "name"),
        ("--engine=memory", "list", "-o", "name"),
        ("list", "--engine", "memory", "-o", "name"),
        ("list", "-o", "name", "--engine=memory"),
    ],
)
def test_an_engine_is_chosen_by_the_option_before_or_after_the_verb(registered, typed, words):
    created, _ = registered

    assert typed(*words)[:2] == (0, "job\n")
    assert len(created) == 1


def test_an_engine_is_chosen_by_the_inventory_and_the_option_overrides_it(registered, typed):
    created, set_variables = registered
    set_variables(cluster_engine="memory")

    assert typed("get", "job", "-o", "name")[0] == 0
    assert typed("--engine", "auto", "get", "job", "-o", "name")[0] == 0
    assert len(created) == 2
    code, _, err = typed("--engine", "none", "get", "job")
    assert (code, len(created)) == (2, 2)
    assert "unknown job engine 'none'" in err


def test_the_option_of_one_command_is_not_used_by_the_next_one(registered, typed):
    created, set_variables = registered
    typed("--engine", "none", "list")
    set_variables(cluster_engine="memory")

    assert typed("list", "-o", "name")[0] == 0
    assert len(created) == 1


@pytest.mark.parametrize("words", [("list",), ("submit", "run", "--name=a", "--image=i", "true"), ("top", "node")])
def test_an_unknown_engine_is_an_error_with_the_list_of_engines(registered, typed, words):
    _, set_variables = registered
    set_variables(cluster_engine="nomad")

    code, _, err = typed(*words)
    assert code == 2
    assert "error: unknown job engine 'nomad'" in err
    assert "Choose one of direct, memory, slurm: --engine NAME, or cluster_engine in the inventory." in err


@pytest.mark.usefixtures("registered")
def test_an_unknown_engine_has_a_code_in_json(typed):
    code, out, err = typed("--engine", "nomad", "list", "--json")

    assert code == 2
    assert json.loads(out or err)["error"]["code"] == "engine.unavailable"


def test_an_engine_that_cannot_be_used_on_the_cluster_is_an_error(registered, typed, monkeypatch):
    """The engine says why; the exit code is 2."""

    def create(_context):
        raise EngineUnavailable("sbatch is not installed on gpu1", remedy="Run: provision apply")

    monkeypatch.setattr(memory_engine, "create", create)

    code, _, err = typed("--engine", "memory", "list")
    assert (code, registered[0]) == (2, [])
    assert "error: sbatch is not installed on gpu1" in err


@pytest.mark.usefixtures("registered")
def test_the_engine_gets_all_labels_of_changed_nodes(typed, monkeypatch):
    engine = MemoryEngine()
    monkeypatch.setattr(memory_engine, "create", lambda _context: engine)
    monkeypatch.setattr("provision.inventory.record.set_for_hosts", lambda *_: ())

    assert typed("--engine", "memory", "node", "label", "gpu1", "rack=r1", "gpu.schedule=topology", "--force")[0] == 0
    assert engine.labels == {"gpu1": {"rack": "r1", "gpu.schedule": "topology"}}


def test_the_option_needs_a_name(typed):
    code, _, err = typed("list", "--engine")

    assert code == 2
    assert "--engine" in err


SUBMIT = ("submit", "run", "--name=new", "--image=i")


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("capability", "words", "what"),
    [
        (Capability.ATTACH, ("attach", "job", "--", "true"), "provision attach"),
        (Capability.PORT_FORWARD, ("port-forward", "job", "8080"), "provision port-forward"),
        (Capability.FOLLOW, ("logs", "-f", "job"), "provision logs --follow"),
        (Capability.FOLLOW, (*SUBMIT, "--follow", "true"), "provision submit --follow"),
        (Capability.RETRY, (*SUBMIT, "--retry=2", "true"), "--retry"),
        (Capability.TOPOLOGY, (*SUBMIT, "--gputopology", "--gpus=1", "true"), "--gputopology"),
        (Capability.GANG, (*SUBMIT, "--workers=2", "true"), "--gang"),
        (Capability.LABELS, (*SUBMIT, "--selector=rack=r1", "true"), "--selector"),
        (Capability.LABELS, ("node", "label", "gpu1", "rack=r1"), "provision node label"),
        (Capability.DRAIN, ("node", "drain", "gpu1"), "provision node drain"),
        (Capability.DRAIN, ("node", "resume", "gpu1"), "provision node resume"),
        (Capability.SAMPLING, ("advise", "job", "--for", "15s"), "provision advise"),
    ],
)
def test_a_missing_capability_of_the_engine_is_reported(typed, monkeypatch, capability, words, what):
    """Exit code 2, and nothing was changed."""
    engine = MemoryEngine((job_of("job", gpus=1),), lacks=[capability])
    monkeypatch.setattr(memory_engine, "create", lambda _context: engine)
    before = dict(engine.known)

    code, _, err = typed("--engine", "memory", *words)

    assert code == 2
    assert f"error: {what}: the job engine memory does not support {capability}" in err
    assert engine.known == before


@pytest.mark.usefixtures("registered")
def test_a_command_waits_without_scheduling_passes_if_the_engine_has_its_own_queue(typed, monkeypatch):
    from provision.model.job import JobStatus

    waiting = job_of("job", status=JobStatus.PENDING, assignments=False)
    engine = MemoryEngine((waiting,), lacks=())
    engine.coming = [waiting, waiting, job_of("job", status=JobStatus.SUCCEEDED)]
    monkeypatch.setattr(memory_engine, "create", lambda _context: engine)

    assert typed("--engine", "memory", "wait", "job")[0] == 0
    assert ("maintenance",) not in engine.calls
