"""What ``provision submit`` warns about before it hands a job to its engine."""

from __future__ import annotations

import pytest

from provision.jobs.engines import ENGINES
from provision.testing import make_cluster
from tests.support import memory_engine
from tests.support.memory_engine import MemoryEngine

pytestmark = pytest.mark.usefixtures("own_level")
WARNING = "--no-container without --user: its processes run as root"


@pytest.fixture
def submit(monkeypatch, typed):
    """Submit a job of plain processes to an engine without nodes, and return what is printed on stderr."""
    monkeypatch.setitem(ENGINES, "memory", "tests.support.memory_engine")
    monkeypatch.setattr(memory_engine, "create", lambda _context: MemoryEngine((), gpus=None))

    def call(*words, **variables):
        cluster = make_cluster("gpu1", "gpu2", **variables)
        monkeypatch.setattr("provision.cli.job_options.cluster_from", lambda *_a, **_k: cluster)
        options = ("--name=plain", "--no-container", *words)
        code, _, err = typed("--engine", "memory", "submit", "pytorch", *options, "python3 train.py")
        assert code == 0, err
        return err

    return call


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_a_job_of_plain_processes_of_root_is_announced(submit, dry_run):
    """Also when nothing is started."""
    assert WARNING in submit(*dry_run)


def test_an_account_is_not_announced(submit):
    """The processes are those of the account."""
    assert WARNING not in submit("--user=1000:1000")


def test_a_login_node_runs_jobs_as_its_user(submit):
    """A cluster that others manage starts no process of root."""
    assert WARNING not in submit(cluster_engine="slurm", cluster_slurm_login="gpu1")
