"""The interpreter with which our programs are started on a node, and what is reported if it is missing."""

from __future__ import annotations

from contextlib import suppress

import pytest

from provision.documents.preflight import PreflightAnswer
from provision.errors import ProvisionError
from provision.jobs.forward import attach_unit_argv
from provision.jobs.node_ask import ask, ask_jobs, begin
from provision.jobs.sampling import sample_node
from provision.jobs.session import Session
from provision.model import CommandResult, Connection
from provision.node_archive import NO_PYTHON
from provision.testing import FakeConnector, make_node
from provision.workflow import remote_lock

USES = {
    "a request about jobs": lambda connector: ask_jobs(connector, "look", dict),
    "a stream of a job": lambda connector: begin(connector, "logs"),
    "another program": lambda connector: ask(connector, "package-preflight", {}, PreflightAnswer),
    "the sampler": lambda connector: sample_node(connector, [], seconds=0),
    "the supervisor of a run": lambda connector: Session(connector, {}).close(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_every_program_runs_with_the_interpreter_of_the_inventory(use):
    """A node may have another python3 in its PATH, or none."""
    connector = FakeConnector({"": CommandResult("", "", 1)})
    connector.python = "/opt/python"
    with suppress(ProvisionError):
        use(connector)

    assert connector.scripts
    assert all("/opt/python" in script and "python3" not in script for script in connector.scripts)


def test_a_shell_in_a_unit_uses_it_too():
    argv = attach_unit_argv(Connection("gpu1", python="/opt/python"), "/f", "u", ["sh"])

    assert "/opt/python -I" in argv[-1]


def lock(connector, monkeypatch):
    """Ask a node for its lock."""
    monkeypatch.setattr("provision.connectors.each", lambda nodes, function, **_: {nodes[0].name: function(connector)})
    remote_lock.probe_locks([make_node()])


@pytest.mark.parametrize(("code", "advice"), [(NO_PYTHON, True), (1, False)])
@pytest.mark.parametrize(
    "use", [lock, lambda connector, _: ask(connector, "package-preflight", {}, PreflightAnswer)], ids=["lock", "ask"]
)
def test_only_a_missing_interpreter_is_reported_as_one(monkeypatch, use, code, advice):
    """By the exit status: other errors can contain the same words."""
    words = "OSError: there is no lock folder: disk full"
    with pytest.raises(ProvisionError) as failed:
        use(FakeConnector({"": CommandResult("", words, code)}), monkeypatch)

    assert ("ansible_python_interpreter" in (failed.value.remedy or "")) is advice
