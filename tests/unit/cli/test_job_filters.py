"""Filters of the verbs that list jobs, ``queue list``, ``secret add``, and exit codes of what did not happen."""

from __future__ import annotations

import io
import json

import pytest

from provision.model.job import JobStatus
from provision.model.job_views import JobPage
from provision.testing import make_cluster
from provision.workflow import history
from tests.support.memory_engine import MemoryEngine, job_of

OWNERS = {"a": "alice@desk", "b": "bob", "c": "alice@laptop"}


@pytest.fixture(autouse=True)
def engine(monkeypatch, tmp_path):
    """Three jobs of two people; one of them waits."""
    jobs = tuple(
        job_of(
            name,
            status=JobStatus.PENDING if name == "a" else JobStatus.RUNNING,
            assignments=name != "a",
            record={"owner": owner},
        )
        for name, owner in OWNERS.items()
    )
    made = MemoryEngine(jobs)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("provision.cli.job_options.cluster_from", lambda *_a, **_k: make_cluster("gpu1", "gpu2"))
    monkeypatch.setattr("provision.workflow.jobs.job_engine", lambda *_: made)
    return made


def names(entries):
    """The names of the jobs of a document, in order."""
    return sorted(job["name"] for job in json.loads(entries[1]))


@pytest.mark.parametrize(
    ("user", "expected"),
    [("alice", ["a", "c"]), ("alice@laptop", ["c"]), ("bob,alice@desk", ["a", "b"]), ("ali", []), ("@laptop", [])],
)
@pytest.mark.parametrize("option", ["--user", "-u"])
def test_jobs_are_listed_by_owner(typed, option, user, expected):
    """A name matches on every host, NAME@HOST on that one; `top job` takes the same."""
    assert names(typed("list", option, user, "--json")) == expected
    assert names(typed("top", "job", option, user, "--json")) == expected


def test_filters_of_a_list_are_combined(typed):
    """All of them must match."""
    assert names(typed("list", "-u", "alice", "--status", "running", "--json")) == ["c"]


def test_a_status_that_does_not_exist_is_refused(typed):
    """It is no empty list."""
    code, _, err = typed("list", "--status", "runing")

    assert code == 2
    assert "running" in err


def test_the_owner_filter_of_one_job_is_refused(typed):
    """`top job NAME --user` would not filter anything."""
    assert typed("top", "job", "a", "--user", "bob")[0] == 2


def test_queue_list_is_the_same_as_queue(typed):
    """With a filter by owner."""
    assert typed("queue", "list") == typed("queue")
    assert typed("-o", "json", "queue", "list")[1] == typed("queue", "--json")[1]
    assert names(typed("queue", "list", "--json")) == ["a"]
    assert names(typed("queue", "list", "-u", "bob", "--json")) == []


@pytest.mark.parametrize(
    "words", [["list"], ["queue"], ["queue", "list"], ["top", "job"], ["events"], ["prune", "-s1h"]]
)
def test_a_list_that_is_empty_because_nodes_did_not_answer_exits_with_7(engine, typed, words):
    """An empty list of nodes that answered exits with 0."""
    engine.known.clear()
    assert typed(*words)[0] == 0

    engine.page = JobPage((), unreachable={"gpu1": "timed out", "gpu2": "timed out"})
    assert typed(*words)[0] == 7


def test_the_release_of_a_job_that_has_ended_is_refused(engine, typed):
    """Nothing is released then; a job that waits or runs is left as it is."""
    engine.known["c"] = job_of("c", status=JobStatus.SUCCEEDED)

    assert typed("queue", "release", "c")[0] == 2
    assert typed("queue", "release", "none")[0] == 3
    assert typed("queue", "release", "b") == (0, "b RUNNING\n", "")


@pytest.mark.parametrize("verb", ["add", "set"])
def test_credentials_are_stored_by_add_and_its_alias(typed, monkeypatch, verb):
    """`set` is the older name."""
    monkeypatch.setattr("sys.stdin", io.StringIO("password\n"))
    assert typed("secret", verb, "git", "--server=git.example.com", "--username=u")[0] == 0
    entries = json.loads(typed("secret", "list", "--json")[1])["secrets"]

    assert [(one["kind"], one["server"], one["username"]) for one in entries] == [("git", "git.example.com", "u")]


def test_the_help_of_secret_lists_only_add(typed):
    """An alias would be a second name for the same thing."""
    _, out, _ = typed("secret", "--help")
    commands = [line.split()[0] for line in out.partition("Commands:")[2].splitlines() if line.strip()]

    assert "add" in commands
    assert "set" not in commands


def test_removing_unknown_credentials_exits_with_3(typed, monkeypatch):
    """Nothing was removed."""
    monkeypatch.setattr("sys.stdin", io.StringIO("password\n"))
    typed("secret", "add", "git", "--server=git.example.com")

    assert typed("secret", "rm", "git", "--server=git.example.com")[0] == 0
    assert typed("secret", "rm", "git", "--server=git.example.com")[0] == 3


def test_history_is_filtered_by_operator(typed, monkeypatch):
    """Before the newest are chosen."""
    cluster = make_cluster("gpu1")
    monkeypatch.setattr("provision.cli.common.cluster_from", lambda *_a, **_k: cluster)
    for user in ("alice", "bob", "bob"):
        monkeypatch.setattr(history, "user", lambda user=user: user)
        entry = history.begin(cluster, command="provision apply", nodes=["gpu1"])
        history.end(entry, status="changed", seconds=1.0, nodes={"gpu1": {"status": "changed"}})
    entries = json.loads(typed("history", "--user", "alice", "-n", "1", "--json")[1])["entries"]

    assert [entry["user"] for entry in entries] == ["alice"]
