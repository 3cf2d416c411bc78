"""The owner of a job: the key of its signature decides, not the claimed name."""

from __future__ import annotations

import dataclasses

import pytest

from provision.batch.direct_record import DirectRecord
from provision.batch.signed import secrets_digest
from provision.connectors import ssh_signatures
from provision.documents.jobs import SecretsDocument, SignedJob
from provision.jobs.engines.direct import DirectEngine
from provision.jobs.node_ask import owner
from provision.jobs.signing import JobKeys
from provision.model.job import JobSpec, JobStatus, Kind
from provision.model.people import Person
from provision.testing import make_cluster
from tests.support.node.direct import FakeClusterProbe

SPEC = JobSpec("a", Kind.RUN, ("true",))


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    """Exclude the keys of the person who runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.delenv(ssh_signatures.KEY_VARIABLE, raising=False)


def keys(tmp_path, name="mine", people=None):
    path = tmp_path / name
    ssh_signatures.own_signing_key(path)
    return JobKeys("c", people or {}, path)


def job(by, *, owner="me@here", **changes):
    """A job that `by` has signed."""
    words = {"version": 1, "cluster": "c", "id": "1", "name": "a", "owner": owner, "submitted": 1.0}
    text, signature = by.sign(
        SignedJob(**{**words, "spec": SPEC, "secrets": secrets_digest(SecretsDocument()), "code": None, **changes})
    )
    return DirectRecord(SPEC, "1", owner, 1.0, JobStatus.RUNNING, signed=text, signature=signature)


def test_a_job_with_a_signature_of_my_key_is_mine(tmp_path):
    mine = keys(tmp_path)

    assert mine.owns(job(mine), "me@here")
    assert mine.owns(job(mine, owner="me@other-machine"), "me@here")


def test_a_job_with_my_name_and_another_users_key_is_not_mine(tmp_path):
    """The name is only a claim."""
    assert not keys(tmp_path).owns(job(keys(tmp_path, "other")), "me@here")


def test_accounts_that_share_the_key_of_a_controller_are_distinguished_by_name(tmp_path):
    mine = keys(tmp_path)

    assert not mine.owns(job(mine, owner="eve@here"), "me@here")


def test_a_key_of_the_inventory_identifies_a_person_with_any_account_name(tmp_path, monkeypatch):
    monkeypatch.setenv(ssh_signatures.KEY_VARIABLE, str(tmp_path / "alice"))
    public = ssh_signatures.own_signing_key(tmp_path / "alice").public
    alice = keys(tmp_path, people={"alice": Person("alice", public, "operator")})

    assert alice.owns(job(alice, owner="alice@laptop"), "awong@ops1")


def test_a_signed_text_of_another_job_does_not_change_the_owner(tmp_path):
    """A head could record the text and signature of my job beside the job of another user."""
    mine = keys(tmp_path)

    assert not mine.owns(job(mine, id="2"), "me@here")


def test_a_job_with_an_invalid_signature_has_no_owner(tmp_path):
    good = job(mine := keys(tmp_path))

    assert not mine.owns(
        DirectRecord(SPEC, "1", "me@here", 1.0, JobStatus.RUNNING, signed=good.signed, signature="x"), ""
    )


@pytest.mark.parametrize(("owner", "own"), [("me@here", True), ("", True), ("eve@here", False), ("me@there", False)])
def test_the_owner_of_a_job_without_a_signature_is_its_name(tmp_path, owner, own):
    """Earlier versions record such jobs."""
    assert keys(tmp_path).owns(DirectRecord(SPEC, "1", owner, 1.0, JobStatus.RUNNING), "me@here") is own


def test_the_owner_of_a_job_does_not_depend_on_the_connection(tmp_path):
    """An operator who uses the job agent must confirm the end of another user's job."""
    bob, alice = keys(tmp_path, "bob"), keys(tmp_path, "alice")
    engine = through_agent(bob)

    assert engine.owns(job(bob, owner=owner()))
    for_operator = job(alice, owner="alice@ops")
    assert not engine.owns(for_operator)
    assert not engine.refuses(for_operator), "an operator sees the signature, and may end the job"


def test_a_request_that_the_job_agent_refuses_needs_no_confirmation(tmp_path):
    """A submitter sees no signature of other users' jobs; the agent refuses the change and audits the attempt."""
    bob, alice = keys(tmp_path, "bob"), keys(tmp_path, "alice")
    hidden = dataclasses.replace(job(alice, owner="alice@ops"), signed="", signature="")

    assert through_agent(bob).refuses(hidden)
    assert not through_agent(bob, agent=False).refuses(hidden)


def through_agent(own, *, agent=True):
    """Return an engine whose nodes are reached through the job agent."""
    cluster = make_cluster("gpu1")
    (node,) = cluster.nodes
    node = dataclasses.replace(node, connection=dataclasses.replace(node.connection, agent=agent))
    return DirectEngine(dataclasses.replace(cluster, nodes=(node,)), FakeClusterProbe(), own)
