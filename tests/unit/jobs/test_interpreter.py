"""The interpreter with which our programs are started on a node."""

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
from provision.testing import FakeConnector

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
    connector = FakeConnector({"": CommandResult("", "", 0)})
    connector.python = "/opt/python"
    with suppress(ProvisionError):
        use(connector)

    assert connector.scripts
    assert all("/opt/python" in script and "python3" not in script for script in connector.scripts)


def test_a_shell_in_a_unit_uses_it_too():
    argv = attach_unit_argv(Connection("gpu1", python="/opt/python"), "/f", "u", ["sh"])

    assert "/opt/python -I" in argv[-1]
