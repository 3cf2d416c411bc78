"""The audit record: what node programs write, and what ``history --audit`` reads."""

import json
import os
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provision.documents.audit import AuditRecord, AuditTrail, audit_trail
from provision.errors import ConnectionFailed, NodeError
from provision.node import audit as node_audit
from provision.report.audit_report import audit_document, audit_text
from provision.testing import make_node
from provision.workflow.audit_records import read_audit


def entry(message):
    """One entry of the journal."""
    return json.dumps({"MESSAGE": message, "_PID": "1", "__REALTIME_TIMESTAMP": "1"})


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda one: st.lists(one) | st.dictionaries(st.text(), one),
)


@settings(deadline=None)
@given(caller=st.text(), job=ANYTHING, result=st.text(), secrets=st.lists(st.text()))
def test_no_value_adds_a_line_or_a_field_to_an_entry(caller, job, result, secrets):
    """Whatever a name or a message contains, it is one line of ASCII that the reader accepts, with bounded length."""
    line = node_audit.line_of("stopped", caller, result, job=job, secrets=secrets)

    assert "\n" not in line
    assert line.isascii()
    assert line.isprintable()
    assert len(line) < 8 * 200 * 40
    document = json.loads(line)
    assert document["action"] == "stopped"
    assert document["caller"] == caller[:200]
    if isinstance(job, str):
        (record,) = audit_trail(entry(line), "a").records
        assert (record.action, record.caller) == ("stopped", caller[:200])


@settings(deadline=None)
@given(st.lists(ANYTHING | st.text()))
def test_every_journal_entry_is_parsed_or_counted_as_invalid(messages):
    """A node that lies about its journal gets nothing else done."""
    text = "\n".join([*(entry(one) for one in messages), "{", "NaN", "[" * 100000])
    trail = audit_trail(text, "a")

    assert len(trail.records) + trail.invalid == len(messages) + 3
    assert max(map(len, audit_text({"a": trail}).splitlines())) <= 80
    json.dumps(audit_document({"a": trail}))


def test_an_unreadable_journal_is_an_error_of_the_node(tmp_path, monkeypatch):
    """An audit record that cannot be read does not look like an empty one."""
    program = tmp_path / "journalctl"
    program.write_text("#!/bin/sh\necho 'Failed to open the journal' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    trails = read_audit([make_node("a", local=True)], newest=5)

    assert isinstance(trails["a"], NodeError)
    assert "Failed to open the journal" in trails["a"].message
    program.write_text("#!/bin/sh\nexit 0\n")
    assert read_audit([make_node("a", local=True)], newest=5) == {"a": AuditTrail((), 0)}


def test_the_table_shows_caller_action_and_verification():
    """A claimed name has a question mark; a node that does not answer has its reason."""
    record = AuditRecord(
        time=1_700_000_000.0,
        action="submitted",
        caller="bob",
        agent=True,
        job="mnist",
        secrets=("API_TOKEN", "HF_TOKEN"),
        address="198.51.100.7",
    )
    stopped = AuditRecord(time=1.7e9, action="stopped", caller="eve", agent=True, job="vgg", id="t1", owner="bob@ops2")
    claimed = AuditRecord(time=1_700_000_000.0, action="applied", caller="root@ops1", command="provision apply")
    drained = AuditRecord(time=1_700_000_000.0, action="drained", caller="eve", reason="the fan is loud (eve)")
    text = audit_text({
        "head": AuditTrail((record, stopped, claimed, drained), 1),
        "gpu1": ConnectionFailed("does not answer", remedy="look at it"),
    })  # fmt: skip

    assert "bob               submitted      mnist; secrets" in text
    assert "API_TOKEN, HF_TOKEN; from" in " ".join(text.split())
    assert "vgg; owner bob@ops2" in text
    assert "root@ops1?        applied        provision apply" in text
    assert "drained        the fan is loud (eve)" in text
    assert "1 invalid records in the journal" in text
    assert "error: does not answer" in text
    assert audit_document({"head": AuditTrail((record,), 0)})["nodes"][0]["records"][0]["verified"] is True
    assert audit_document({"head": AuditTrail((drained,), 0)})["nodes"][0]["records"][0]["reason"] == drained.reason


def test_the_address_is_that_of_the_ssh_session(tmp_path, monkeypatch):
    """sudo removes the variable, so the parent processes are read; values that are no address are ignored."""
    monkeypatch.setattr(node_audit, "PROC", str(tmp_path))
    me = os.getpid()
    for pid, parent, variables in ((me, 500, "A=1"), (500, 400, "B=2"), (400, 1, "SSH_CONNECTION=198.51.100.7 5 x 22")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b) S {parent} 0")
        (tmp_path / str(pid) / "environ").write_text(f"{variables}\0PATH=/bin\0")

    assert node_audit.client_address() == "198.51.100.7"
    (tmp_path / "400" / "environ").write_text('SSH_CONNECTION=","x":"\0')
    assert node_audit.client_address() == ""
    (tmp_path / "400" / "environ").unlink()
    assert node_audit.client_address() == ""


@pytest.mark.parametrize(
    ("do", "request_", "answer", "action"),
    [
        ("reserve", {"name": "j", "secrets": {"env": {"A": "x"}}}, {"reserved": True}, "submitted"),
        ("reserve", {"name": "j"}, {"reserved": False}, None),
        ("stop", {"name": "j"}, {"asked": True}, "stopped"),
        ("stop", {"name": "j"}, {"asked": False}, None),
        ("delete", {"name": "j"}, {"deleted": True}, "deleted"),
        ("delete", {"name": "j"}, {"deleted": False}, None),
        ("secrets", {"name": "j"}, {"env": {"A": "x"}}, "used secrets"),
        ("secrets", {"name": "j"}, {}, None),
        ("secrets", {"name": "j"}, {"env": {}, "salt": "s"}, None),
        ("logs", {"name": "j", "instance": "j-master-0"}, None, "read logs"),
        ("attached", {"name": "j", "instance": "j-master-0"}, {}, "attached"),
        ("queue", {"name": "j", "queue": {"state": "stopped"}}, {"written": True}, "stopped"),
        ("queue", {"name": "j", "queue": {"state": "pending"}, "action": "released"}, {}, "released"),
        ("queue", {"name": "j", "queue": {"state": "started"}}, {"written": True}, None),
        ("drain", {"name": "j", "reason": "fan"}, {}, "drained"),
        ("resume", {"name": "j"}, {}, "resumed"),
        ("report", {"names": None}, {}, None),
    ],
)
def test_changes_and_reads_of_jobs_are_recorded(monkeypatch, do, request_, answer, action):
    """What changes a job or shows its output; never the value of a secret."""
    lines = []
    syslog = type("S", (), {"LOG_AUTHPRIV": 0, "LOG_INFO": 0, "openlog": print, "closelog": print})
    syslog.syslog = staticmethod(lambda _priority, line: lines.append(json.loads(line)))
    monkeypatch.setitem(sys.modules, "syslog", syslog)
    node_audit.of_request(do, {"by": "alice@ops1", **request_}, answer)

    assert [one["action"] for one in lines] == ([action] if action else [])
    for one in lines:
        assert (one["caller"], one["agent"], one["job"]) == ("alice@ops1", False, "j")
        assert "x" not in json.dumps(one.get("secrets", []))
        assert one.get("reason") == ("fan" if do == "drain" else None)


def test_only_the_agent_sets_the_verified_caller(monkeypatch):
    """A request cannot say that its caller was verified."""
    assert node_audit.caller_of({"by": "alice@ops1", "agent": True}) == ("alice@ops1", False)
    monkeypatch.setenv("PROVISION_JOB_AGENT", "bob")
    assert node_audit.caller_of({"by": "alice@ops1"}) == ("bob", True)
