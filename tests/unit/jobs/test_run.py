"""`run` from the controller to the launcher, on this machine with a STAND-IN for docker, and how it reports the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from provision.documents.run import EndingRecord
from provision.errors import ConnectionFailed, Interrupted, ProvisionError
from provision.jobs import JobRequest, Plan, new_job_id, run
from provision.launchers import HostEntry
from provision.model import CommandResult, Secret
from provision.node_archive import archive, run_script, store_archive_script
from provision.testing import make_node

module = sys.modules["provision.jobs.running"]

DOCKER = """#!/bin/sh
env >{folder}/docker.env
printf '%s\\n' "$@" >{folder}/docker.args
shift
while [ "$1" != c1 ]; do [ "$1" = -e ] && export "$2"; shift; done
shift
exec "$@"
"""


def plan(script, **environment):
    """A job of one node, which is this machine; a shell script replaces mpirun."""
    request = JobRequest(
        command=("true",),
        entries=(HostEntry("n1", "127.0.0.1", 1, "cpu"),),
        nodes={"n1": make_node("n1", local=True)},
        head="n1",
        containers={"n1": "c1"},
        environment={name: Secret(value) for name, value in environment.items()},
        job=new_job_id(),
    )
    return Plan(request, ("sh", "-c", script), "n1 slots=1\n", ("n1",), 4)


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """Put a docker program first on the PATH that runs all commands locally, and records its calls."""
    (tmp_path / "docker").write_text(DOCKER.format(folder=tmp_path))
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def test_variables_reach_the_ranks_and_not_the_docker_client(docker):
    """Root runs the client: it would load a library path of the job."""
    odd = 'it\'s "two"\n$lines `here` \udcff'
    written: list[bytes] = []
    script = 'printf "%s|" "$LD_LIBRARY_PATH" "$ODD" "$PATH"; exit 7'
    job = plan(script, LD_LIBRARY_PATH="/data/lib", ODD=odd, PATH="/mine:/usr/bin:/bin")
    code = run(job, lambda _stream, line: written.append(line), lambda *_: contextlib.nullcontext())

    assert code == 7
    assert b"".join(written) == b"/data/lib|" + os.fsencode(odd) + b"|/mine:/usr/bin:/bin|\n"
    assert "/data/lib" not in (docker / "docker.env").read_text()
    assert "/data/lib" not in (docker / "docker.args").read_text()
    assert not list(Path("/tmp").glob(f"provision-{job.request.job}*"))


def test_programs_do_not_import_modules_from_the_working_directory(tmp_path):
    """Programs run as root; a json.py in the working directory is never imported."""
    (tmp_path / "json.py").write_text("raise SystemExit('imported')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for script, text in ((store_archive_script(), archive()), (run_script("data-check"), b'{"volumes": []}\n')):
        done = subprocess.run(
            ["sh", "-c", script], input=text, cwd=tmp_path, capture_output=True, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr

    assert (json.loads(done.stdout), done.returncode) == ({"volumes": {}}, 0)


class Session:
    """A supervised job that ends as the test sets, or whose connection is lost."""

    def __init__(self, ending, interrupt):
        self.ending, self.interrupt = ending, interrupt
        self.stopped = False

    def __call__(self, *_):
        return self

    def frames(self):
        """Interrupt the running job."""
        if self.interrupt:
            os.kill(os.getpid(), signal.SIGINT)
        if self.ending is None:
            raise ConnectionFailed("the connection to the job was lost", node="n1", remedy="start it again")
        yield "stdout", b""

    def stop(self):
        """Record the call."""
        self.stopped = True

    def close(self):
        """Nothing is open."""


@pytest.fixture
def ended(monkeypatch):
    """Run a job with a given end, and return the error."""

    def call(ending, *, interrupt=False, ends=None):
        monkeypatch.setattr(module, "connect", lambda _: SimpleNamespace(close=lambda: None))
        monkeypatch.setattr(module, "Session", Session(ending, interrupt))
        monkeypatch.setattr(module, "each", lambda *_: ends or {})
        with pytest.raises(ProvisionError) as caught:
            run(plan("true"), lambda *_: None, lambda *_: contextlib.nullcontext())
        return caught.value

    return call


def test_processes_that_an_interrupted_job_left_are_reported(ended):
    """The exit code is that of an interruption."""
    error = ended(EndingRecord(None, "stop", {"n2": "4711 python3"}), interrupt=True)

    assert error.exit_code == 130
    assert "processes of it are left on n2" in error.message
    assert "4711 python3" in error.output
    assert "all its nodes" in ended(EndingRecord(None, "stop"), interrupt=True).message
    assert isinstance(ended(EndingRecord(None, "stop"), interrupt=True), Interrupted)


def test_nodes_that_could_not_be_cleared_after_a_lost_supervisor_are_named(ended):
    """Nodes that do not answer, and nodes whose processes do not end."""
    ends = {
        "n1": CommandResult("", "", 0),
        "n2": ConnectionFailed("n2 port 22 did not answer", node="n2"),
        "n3": CommandResult("4711 python3\n", "", 1),
    }
    error = ended(None, ends=ends)

    assert error.exit_code == 1
    assert "left on n2, n3" in error.remedy
    assert "did not answer" in error.output
    assert "4711 python3" in error.output
