"""The job agent: what people without root access may do on a node. Docker and systemd are STAND-INS."""

import base64
import json
import os
import shutil
import struct
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provision.documents import decode
from provision.documents.jobs import MOST_RETRIES, ReportAnswer, job_reports
from provision.node.jobs import agent as job_agent
from provision.node.jobs import queue as node_queue
from tests.support.interpreters import NODE_PYTHON
from tests.support.node.archive import ARCHIVE
from tests.support.node.node import Engine, FakeNode, assignment, job, run

KEYS = {name: b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + name.encode().ljust(32, b".") for name in ("alice", "bob", "eve")}
PEOPLE = {
    name: {"role": role, "key": "ssh-ed25519 " + base64.b64encode(KEYS[name]).decode(), "user": user}
    for name, role, user in (
        ("alice", "operator", ""),
        ("bob", "submitter", "1001:1001"),
        ("eve", "submitter", "1002:1002"),
    )
}
AUDIT = """
import json, sys
sys.path.insert(0, {archive!r})
from provision.node.jobs import agent as job_agent
job_agent.CONFIG = {config!r}
class Syslog:
    LOG_AUTHPRIV = LOG_INFO = 0
    openlog = closelog = staticmethod(lambda *_: None)
    @staticmethod
    def syslog(_priority, line):
        with open({record!r}, "a") as stream:
            stream.write(line + "\\n")
sys.modules["syslog"] = Syslog
sys.exit(job_agent.main())
"""


class Agent:
    """The agent of one node, as sshd runs it for the key of a person; a file records its messages to syslog."""

    def __init__(self, node):
        self.node, self.record = node, node.folder / "audit"
        self.config = node.folder / "job-agent.json"
        self.config.write_text(json.dumps({"people": PEOPLE}))
        self.wrapper = ()

    def raw(self, caller, data, **environment):
        """Return exit status and output of the agent for some input."""
        code = AUDIT.format(archive=str(ARCHIVE), config=str(self.config), record=str(self.record))
        done = subprocess.run(
            [*self.wrapper, NODE_PYTHON, "-I", "-S", "-c", code, caller],
            input=data,
            capture_output=True,
            timeout=60,
            check=False,
            env={**self.node.environment, "SSH_ORIGINAL_COMMAND": "rm -rf /", **environment},
        )
        return done.returncode, done.stdout

    def ask(self, caller, do, **request):
        """Return the answer to a request."""
        return json.loads(self.raw(caller, json.dumps({"do": do, **request}).encode() + b"\n")[1])

    def refused(self, caller, do, **request):
        """Return why a request is refused."""
        answer = self.ask(caller, do, **request)
        assert "error" in answer, answer
        return answer["error"]["message"]

    def audited(self):
        """Return the audit records."""
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        return [json.loads(line) for line in lines]


@pytest.fixture
def agent(tmp_path):
    with FakeNode(tmp_path) as node:
        yield Agent(node)


@pytest.fixture
def docked(agent):
    engine = Engine(agent.node.folder / "engine")
    agent.node.with_docker(engine)
    yield agent
    engine.end()


def signature(person):
    """Return the text of an SSH signature that contains a person's key."""
    data = b"SSHSIG" + struct.pack(">II", 1, len(KEYS[person])) + KEYS[person] + b"rest"
    return base64.b64encode(data).decode()


def signed(name, person, ident="", **more):
    """Return a job document as a person's controller creates it."""
    document = job(name, ident or f"{name}1", **{"user": PEOPLE[person]["user"], "env": {"A": "of-" + person}, **more})
    text = {"version": 1, "name": name, **{key: document[key] for key in ("id", "owner", "spec")}}
    return {**document, "signed": json.dumps(text), "signature": signature(person)}


def submitted(agent, name, person, **more):
    """Submit a job through the agent."""
    answer = agent.ask(person, "reserve", name=name, job=signed(name, person), queue={"state": "pending"}, **more)
    assert answer == {"reserved": True}


def test_more_retries_than_a_record_can_have_are_refused(agent):
    """The record would be invalid, and no command could show the job."""
    assert job_agent.RETRIES == MOST_RETRIES
    for retry in (MOST_RETRIES + 1, -1, "2", True):
        queue = {"state": "pending", "retry": retry}
        assert "--retry" in agent.refused("bob", "reserve", name="j", job=signed("j", "bob"), queue=queue)
    submitted_queue = {"state": "pending", "retry": MOST_RETRIES}
    assert agent.ask("bob", "reserve", name="j", job=signed("j", "bob"), queue=submitted_queue) == {"reserved": True}


def test_the_id_of_another_job_or_lease_is_refused(agent):
    """All users can read it, and nodes identify containers and leases by it."""
    submitted(agent, "j", "bob")
    agent.node.ok("reserve", name="old", job=job("old", "x1"), queue={})
    (agent.node.run / "leases" / "GPU-a").write_text(json.dumps({"job": "r", "id": "r7", "attempt": 1}))

    for ident in ("j1", "x1", "r7"):
        answer = agent.refused("eve", "reserve", name="evil", job=signed("evil", "eve", ident))
        assert answer == f"another job has the ID {ident}"
    assert not (agent.node.root / "evil").exists()


def test_the_agent_runs_from_its_archive_alone(tmp_path):
    """It imports nothing from its working directory or environment."""
    (tmp_path / "json.py").write_text("raise SystemExit('imported')")
    done = subprocess.run(
        [NODE_PYTHON, "-I", "-S", ARCHIVE, "agent", "nobody"],
        input=b'{"do": "report"}\n',
        capture_output=True,
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PROVISION_JOBS_ROOT": str(tmp_path)},
    )

    assert "the inventory has no person nobody" in json.loads(done.stdout)["error"]["message"]


def test_a_submitter_can_submit_list_stop_and_delete_an_own_job(agent):
    submitted(agent, "j", "bob", secrets={"env": {"TOKEN": "x"}})

    assert json.loads((agent.node.root / "j/queue.json").read_text())["state"] == "pending"
    (seen,) = agent.ask("bob", "report", names=["j"], brief=False)["jobs"]
    assert seen["spec"]["env"] == {"A": "of-bob"}
    marked = {"state": "stopped", "attempt": 7, "reason": "hello"}
    assert agent.ask("bob", "queue", name="j", queue=marked, if_state=["pending"]) == {"written": True}
    queue = json.loads((agent.node.root / "j/queue.json").read_text())
    assert (queue["state"], queue["reason"], queue["attempt"]) == ("stopped", "stopped by bob", 0)
    assert not (agent.node.root / "j/secrets.json").exists()
    assert agent.ask("bob", "stop", name="j", grace=1) == {"asked": False}
    assert agent.ask("bob", "delete", name="j", id="j1") == {"deleted": True}
    assert not (agent.node.root / "j").exists()
    assert [(one["action"], one["caller"], one["job"], one["agent"]) for one in agent.audited()] == [
        ("submitted", "bob", "j", True),
        ("stopped", "bob", "j", True),
        ("deleted", "bob", "j", True),
    ]
    assert agent.audited()[0]["secrets"] == ["TOKEN"]
    assert {(one["owner"], one["id"]) for one in agent.audited()} == {("u@h", "j1")}
    assert "x" not in agent.audited()[0].values()


def test_a_request_with_the_id_of_an_earlier_job_changes_nothing(agent):
    """A late stop of an old job must not end a new job with its name."""
    submitted(agent, "j", "bob")

    assert agent.ask("bob", "stop", name="j", id="old", grace=1) == {"asked": False}
    assert agent.ask("bob", "delete", name="j", id="old") == {"deleted": False}
    assert agent.ask("bob", "queue", name="j", queue={"state": "stopped"}, if_id="old") == {"written": False}
    assert json.loads((agent.node.root / "j/queue.json").read_text())["state"] == "pending"


def test_a_submitter_can_record_the_nodes_that_confirmed_the_end_of_an_own_job(agent):
    """As names only; other users see the nodes that have not."""
    submitted(agent, "j", "bob")
    started = {"state": "started", "nodes": ["a", "b"]}
    assert agent.node.ask("queue", name="j", queue=started, merge=True) == {"written": True}
    assert agent.ask("bob", "queue", name="j", queue={"state": "stopped", "deleted": True}) == {"written": True}
    more = {"queue": {"state": "stopped", "reason": "x", "unconfirmed": []}, "confirmed": ["a", "../b", 3, None]}
    assert agent.ask("bob", "queue", name="j", **more) == {"written": True}

    (seen,) = agent.ask("eve", "report", names=["j"])["jobs"]
    assert (seen["queue"]["unconfirmed"], seen["queue"]["deleted"]) == (["b"], True)
    assert json.loads((agent.node.root / "j/queue.json").read_text())["reason"] == "stopped by bob"
    assert agent.refused("eve", "queue", name="j", queue={"state": "stopped"}, confirmed=["b"])
    assert [one["action"] for one in agent.audited()] == ["submitted", "stopped", "refused"]
    assert agent.audited()[-1]["request"] == "stop"


@pytest.mark.parametrize(
    ("do", "more"),
    [
        ("stop", {"grace": 0}),
        ("delete", {"id": "j1"}),
        ("logs", {"instance": "j-worker-0"}),
        ("queue", {"queue": {"state": "stopped"}}),
        ("queue", {"queue": {"state": "pending"}, "action": "released"}),
    ],
)
def test_a_submitter_cannot_change_the_job_of_another_user_and_an_operator_can(agent, do, more):
    submitted(agent, "j", "bob")

    assert agent.refused("eve", do, name="j", **more) == "the job j belongs to another user"
    assert agent.ask("eve", do, name="j", **more)["error"]["code"] == "job.not_owner"
    assert (agent.node.root / "j/job.json").exists()
    assert json.loads((agent.node.root / "j/queue.json").read_text())["state"] == "pending"
    answer = agent.ask("alice", do, name="j", **more)
    assert "somebody else" not in json.dumps(answer)
    assert agent.audited()[1]["action"] == "refused"
    assert agent.audited()[1]["caller"] == "eve"
    assert agent.audited()[1]["request"] == ("stop" if more == {"queue": {"state": "stopped"}} else do)


def test_only_operators_can_change_a_job_without_a_signature(agent):
    """A job that an older version recorded for an operator belongs to no submitter."""
    agent.node.ok("reserve", name="j", job=job("j", "j1"), queue={"state": "pending"})

    assert agent.refused("bob", "delete", name="j") == "the job j belongs to another user"
    assert agent.ask("alice", "delete", name="j") == {"deleted": True}


def test_only_public_fields_of_other_users_jobs_are_shown(docked):
    """No environment, command, mounts, output, events or reasons."""
    node = docked.node
    run(node, "sh", "-c", "echo hidden-word; echo hidden-word >&2; exit 3")
    node.result()
    path = node.root / "j/job.json"
    hidden = {"command": ["hidden-word"], "mounts": ["/hidden-word:/x"], "labels": {"a": "hidden-word"}}
    path.write_text(json.dumps(signed("j", "bob", "t1", **hidden)))
    node.ok("queue", name="j", queue={"state": "failed", "reason": "hidden-word"}, event={"message": "hidden-word"})

    own = docked.ask("bob", "report", names=None, brief=False)
    assert "hidden-word" in json.dumps(own)
    for do, brief in (("report", False), ("report", True), ("look", False)):
        other = docked.ask("eve", do, names=None, brief=brief)
        assert "hidden-word" not in json.dumps(other)
        assert [(one["name"], one["instances"]["j-worker-0"]["status"]) for one in other["jobs"]] == [("j", "Error")]
    assert "hidden-word" in json.dumps(docked.ask("alice", "report", names=None, brief=False))
    assert docked.raw("bob", b'{"do": "logs", "name": "j", "instance": "j-worker-0"}\n')[1].count(b"hidden-word") == 2
    assert docked.audited()[-1]["action"] == "read logs"


@pytest.mark.parametrize(
    "change",
    [
        {"signature": signature("eve")},
        {"signature": None},
        {"signature": "AAAA"},
        {"signed": "{}"},
        {"signed": "[" * 100000},
        {"id": "other"},
        {"owner": "root@head"},
        {"signed": signed("k", "bob", "j1")["signed"]},
    ],
)
def test_a_job_without_the_signature_of_the_caller_is_not_recorded(agent, change):
    assert "signed" in agent.refused("bob", "reserve", name="j", job={**signed("j", "bob"), **change}, queue={})
    assert not agent.node.root.exists() or list(agent.node.root.iterdir()) == []


def test_only_the_signed_text_is_recorded(agent):
    """Another spec beside the signed text is not even shown."""
    document = signed("j", "bob")
    other = {**document["spec"], "command": ["other"]}

    assert agent.ask("bob", "reserve", name="j", job={**document, "spec": other}, queue={})["reserved"]
    assert json.loads((agent.node.root / "j/job.json").read_text())["spec"] == document["spec"]


def test_the_refusal_of_a_used_name_does_not_show_its_job(agent):
    submitted(agent, "j", "bob")

    answer = agent.ask("eve", "reserve", name="j", job=signed("j", "eve"), queue={})
    assert answer == {"reserved": False}


def test_packed_code_is_stored_for_the_job_with_its_id(agent):
    """Exactly the announced bytes."""
    data = os.urandom(300_000)
    request = json.dumps({"do": "upload", "id": "j1", "size": len(data)}).encode() + b"\n"

    assert json.loads(agent.raw("bob", request + data + b"more")[1]) == {"stored": True}
    submitted(agent, "j", "bob", upload="j1")
    (stored,) = [path for path in (agent.node.root / "j").iterdir() if path.suffix != ".json"]
    assert stored.read_bytes() == data
    for wrong in ({"id": "../x", "size": 1}, {"id": "j2", "size": 0}, {"id": "j2", "size": 1 << 40}, {"id": "j2"}):
        assert "error" in json.loads(agent.raw("bob", json.dumps({"do": "upload", **wrong}).encode() + b"\nx")[1])


def test_a_submitters_job_must_use_the_account_of_the_submitter(agent):
    document = signed("j", "bob", user="0:0")

    assert agent.refused("bob", "reserve", name="j", job=document, queue={}) == "your jobs run as 1001:1001, not as 0:0"


@pytest.mark.parametrize(
    "do",
    [
        *(
            "prepare",
            "start",
            "lease",
            "hold",
            "renew",
            "release",
            "drain",
            "resume",
            "secrets",
            "event",
            "queues",
            "hold_queue",
        ),
        *("watch", "attached", "", "__class__", None, 3, ["report"], {"do": "report"}),
    ],
)
@pytest.mark.parametrize("caller", ["alice", "bob"])
def test_other_requests_are_refused(agent, do, caller):
    """The agent does not start or drain anything, takes no leases and returns no secrets."""
    answer = json.loads(agent.raw(caller, json.dumps({"do": do, "name": "j", "reason": "x"}).encode() + b"\n")[1])

    assert "does not accept the request" in answer["error"]["message"]
    assert not agent.node.root.exists()
    assert agent.audited()[-1]["action"] == "refused"


@pytest.mark.parametrize("data", [b"", b"\n", b"[]\n", b"NaN\n", b'{"do": NaN}\n', b"\xff\n", b"[" * 100000 + b"\n"])
def test_an_invalid_request_is_refused(agent, data):
    code, answer = agent.raw("bob", data)

    assert code == 1
    assert json.loads(answer)["error"]["message"]


def test_an_endless_request_is_refused(monkeypatch):
    monkeypatch.setattr(job_agent, "REQUEST_BYTES", 1000)
    ours, theirs = os.pipe()
    os.write(theirs, b"x" * 2000)
    saved = os.dup(0)
    os.dup2(ours, 0)
    try:
        with pytest.raises(job_agent.Refused, match="longer than 1000 bytes"):
            job_agent.request_line()
    finally:
        os.dup2(saved, 0)
        for handle in (ours, theirs, saved):
            os.close(handle)


def test_a_new_job_with_the_name_of_the_checked_job_is_not_stopped(agent):
    """The checked job and the stopped job are the same."""
    submitted(agent, "j", "bob")

    for do in ("stop", "logs"):
        answer = agent.node.ask(do, name="j", id="another", instance="j-worker-0")
        assert answer["error"]["message"] == "the job j on this node has another ID"


WORDS = st.sampled_from([*job_agent.RULES, "j", "k", "..", "a/b", "pending", "stopped", "secrets", "start", "\n"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20) | WORDS,
    lambda one: st.lists(one, max_size=4) | st.dictionaries(WORDS | st.text(max_size=8), one, max_size=4),
    max_leaves=12,
)
FIELDS = (
    "name",
    "names",
    "job",
    "queue",
    "secrets",
    "id",
    "if_id",
    "if_state",
    "attempt",
    "instance",
    "action",
    "grace",
)
REQUESTS = st.fixed_dictionaries(
    {"do": WORDS | VALUES}, optional=dict.fromkeys((*FIELDS, "brief", "many", "tail", "since", "over"), VALUES)
)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(request=REQUESTS)
def test_no_request_does_more_than_the_rules_permit(monkeypatch, request):
    """With any JSON: only listed requests run, only for own jobs, and only with checked fields."""
    ran = []
    jobs = {"j": signed("j", "bob"), "k": signed("k", "eve")}
    monkeypatch.setattr(job_agent, "read_json", lambda path: jobs.get(path.split("/")[-2], {}))
    monkeypatch.setattr(job_agent, "run", lambda checked, *_args, **_more: (ran.append(checked), (0, b"{}"))[1])
    try:
        job_agent.carry_out("bob", PEOPLE["bob"], json.loads(json.dumps(request)))
    except job_agent.Refused:
        assert ran == []
    fields = {
        "report": {"names", "brief"},
        "look": {"names", "brief", "topology"},
        "reserve": {"name", "job", "queue", "secrets", "upload"},
        "upload": {"id", "size"},
        "logs": {"name", "id", "attempt", "instance", "tail", "since", "timestamps", "follow"},
        "stop": {"name", "id", "reason", "grace", "attempt"},
        "delete": {"name", "id"},
        "queue": {"name", "queue", "merge", "if_id", "if_state", "event", "over", "action"},
    }
    for checked in ran:
        assert set(checked) <= {"do", *fields[checked["do"]]}
        assert checked["do"] in ("report", "look", "upload") or checked["name"] == "j"
        assert checked["do"] != "reserve"
        assert checked["do"] == "upload" or checked.get("id", checked.get("if_id", "j1")) == "j1"


def test_assignments_of_jobs_are_visible_to_all_users():
    """Users see the nodes and GPUs of all jobs, because GPUs are shared."""
    report = {"name": "j", "attempt_record": {"seats": [assignment("j-worker-0", "a", 0)], "image_digest": "x"}}

    assert job_agent.visible(PEOPLE["eve"], report)["attempt_record"] == {"seats": [assignment("j-worker-0", "a", 0)]}


def test_only_public_fields_of_an_earlier_job_with_the_name_are_shown(agent):
    """A job of the caller may have taken the name since the report was made."""
    (agent.node.root / "j").mkdir(parents=True)
    (agent.node.root / "j" / "job.json").write_text(json.dumps(signed("j", "eve", "e1")))
    job_agent.node_records.ROOT, before = str(agent.node.root), job_agent.node_records.ROOT
    try:
        other, own = ({"name": "j", "id": ident, "events": ["of it"]} for ident in ("b1", "e1"))
        assert "events" not in job_agent.visible(PEOPLE["eve"], other)
        assert job_agent.visible(PEOPLE["eve"], own) == own
    finally:
        job_agent.node_records.ROOT = before


def test_a_submitter_cannot_submit_more_than_the_limit_of_a_report(agent):
    """Reports have a limit; beyond it no operator's command would get one."""
    huge = signed("huge", "bob", labels={"a": "x" * job_agent.SIGNED_LENGTH})
    assert "characters" in agent.refused("bob", "reserve", name="huge", job=huge)
    assert agent.ask("alice", "reserve", name="huge", job=signed("huge", "alice", labels=huge["spec"]["labels"]))
    for number in range(job_agent.JOBS):
        folder = agent.node.root / f"j{number}"
        folder.mkdir()
        (folder / "job.json").write_text(json.dumps(signed(f"j{number}", "bob")))
    assert f"{job_agent.JOBS} jobs" in agent.refused("bob", "reserve", name="more", job=signed("more", "bob"))
    submitted(agent, "hers", "eve")


def test_a_submitter_cannot_fill_the_disk_with_one_upload(agent):
    """Code that needs more than half of the free space is refused, and none of it is stored."""
    if not shutil.which("unshare"):
        pytest.skip("unshare is not installed")
    agent.node.root.mkdir(exist_ok=True)
    mount = 'mount -t tmpfs -o size=1m none "$1" || exit 77; shift; exec "$@"'
    agent.wrapper = ("unshare", "-rm", "sh", "-c", mount, "sh", str(agent.node.root))

    def upload(size):
        """Return the answer to an upload of so many bytes on a file system of 1 MiB."""
        request = json.dumps({"do": "upload", "id": "abc", "size": size}).encode()
        code, out = agent.raw("bob", request + b"\n" + bytes(size))
        if code == 77 or not out:
            pytest.skip("no file system can be mounted here")
        return json.loads(out)

    assert upload(400 << 10) == {"stored": True}
    for size in (600 << 10, 2 << 20):
        assert upload(size)["error"]["message"] == f"insufficient disk space for {size} bytes of code"


def test_the_agent_and_the_node_have_the_same_size_limit_for_code(agent):
    """Otherwise an upload would be refused after it was announced."""
    assert job_agent.UPLOAD_BYTES == node_queue.UPLOAD_BYTES
    refusal = f"{2 << 31}: invalid size of packed code"
    assert agent.refused("bob", "upload", id="abc", size=2 << 31) == refusal


@pytest.mark.parametrize("odd", ["1e999", "-1e999", '"\\ud800"', "[" * 900 + "]" * 900])
def test_a_signed_spec_that_not_all_json_parsers_read_is_refused(agent, odd):
    """Otherwise no command could read the answers of the queue host."""
    for key in ("spec", "owner"):
        odd_job = signed("odd", "bob")
        text = odd_job["signed"].replace('"of-bob"', odd).replace('"priority": 0', f'"priority": {odd}')
        if key == "owner":
            text = odd_job["signed"].replace(json.dumps(odd_job["owner"]), odd)
        document = json.dumps({**odd_job, "signed": text}).replace(json.dumps(odd_job["owner"]), odd)
        line = f'{{"do": "reserve", "name": "odd", "job": {document}}}\n'
        if key == "spec":
            line = json.dumps({"do": "reserve", "name": "odd", "job": {**odd_job, "signed": text}}) + "\n"
        agent.raw("bob", line.encode())
        answer = agent.raw("alice", b'{"do": "report"}\n')[1]

        result = decode(answer, ReportAnswer, node="a", what="answer")
        assert job_reports(result, "a") == ((), ())
