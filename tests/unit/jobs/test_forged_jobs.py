"""Jobs that root on the head records by hand: none starts, the reason is reported, and other jobs start.

The real node programs run on nodes in folders; Docker, systemd and GPUs are STAND-INS.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from provision.batch.signed import NAMESPACE, SIGNED_VERSION, Refused, secrets_digest
from provision.connectors.ssh_signatures import SigningKey, own_signing_key, sign
from provision.documents import decode
from provision.documents.jobs import JobReport, PackedCode, ReportAnswer, SecretsDocument, SignedJob, job_reports
from provision.errors import InvalidRecord, NodeError, UsageError
from provision.jobs.engines.base import Secrets
from provision.jobs.engines.direct import DirectEngine
from provision.jobs.signing import JobKeys
from provision.model.job import CodeSource, JobRecord, JobSpec, JobStatus, Kind, as_document
from provision.model.people import Person
from provision.model.reason import reason
from tests.support.node.direct import direct_engine, recorded, signing_keys
from tests.support.node.node import Engine, FakeNode, until


@pytest.fixture
def head(tmp_path: Path, docker: Engine) -> Iterator[FakeNode]:
    with FakeNode(tmp_path, "a") as made:
        yield made.with_docker(docker)
    docker.reset()


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, head: FakeNode) -> DirectEngine:
    return direct_engine(monkeypatch, head)


def spec(name: str = "forged", line: str = "true", **more: Any) -> JobSpec:
    return JobSpec(name, Kind.RUN, (line,), **{"image": "image", **more})


def write(head: FakeNode, document: dict[str, Any], name: str = "forged", **files: Any) -> None:
    """Record a job on the head by hand, as root can."""
    folder = head.root / name
    folder.mkdir(parents=True)
    queue = {"state": "pending", "attempt": 0, "time": time.time()}
    for item, content in {"job": {"submitted": 1.0, **document}, "queue": queue, **files}.items():
        (folder / f"{item}.json").write_text(json.dumps(content))


def over(jobs: DirectEngine, name: str) -> JobRecord:
    return until(lambda: (job := jobs.get(name)).status.over and job, f"the end of {name}")


def assert_refused(jobs: DirectEngine, head: FakeNode, *words: str) -> None:
    """Check that the job stays PENDING with this reason, is on no node, and does not delay a later job."""
    said: list[str] = []
    jobs.submit(spec("honest"), Secrets(), said.append)

    forged = jobs.get("forged")
    assert over(jobs, "honest").status is JobStatus.SUCCEEDED
    assert (forged.status, forged.attempt) == (JobStatus.PENDING, 0)
    assert not (head.root / "forged" / "attempts").exists()
    assert head.ok("look")["leases"] == {}
    for word in ("forged", *words):
        assert word in forged.reason
        assert any(word in line for line in said if line.startswith("warning: "))


def test_a_job_without_a_signature_is_refused(jobs: DirectEngine, head: FakeNode) -> None:
    """Also one that an earlier version recorded; the reason has a remedy."""
    write(head, {"id": "1", "owner": "root@a", "spec": as_document(spec(privileged=True))})

    assert_refused(jobs, head, "is not signed", "submit it again")


def test_the_refusal_of_an_unknown_key_has_the_line_that_lists_it(jobs: DirectEngine, head: FakeNode) -> None:
    """Root on the head can create a key, and no controller trusts it; an operator's key can be listed."""
    stranger = JobKeys("a", {}, head.folder / "stranger")
    write(head, recorded(stranger, spec()))
    public = own_signing_key(head.folder / "stranger").public

    assert_refused(jobs, head, "cluster_operators", f'key: "{public}"')


def test_a_job_with_the_id_of_a_running_job_is_refused(monkeypatch: pytest.MonkeyPatch, head: FakeNode) -> None:
    """A submitter chooses the ID of a job and can read all IDs; the running job continues, and other jobs start."""
    own = JobKeys("a", {}, head.folder / "bob")
    person = Person("bob", own_signing_key(head.folder / "bob").public, "submitter", "1001:1001")
    jobs = direct_engine(monkeypatch, head, people={"bob": person})
    jobs.submit(spec("alice", "sleep 60", gpus=1), Secrets(), [].append)
    record = until(lambda: (job := jobs.get("alice")).status is JobStatus.RUNNING and job, "alice runs")
    evil = dataclasses.replace(spec("evil", user="1001:1001", pull="never"), image="missing")
    write(head, {**recorded(own, evil, id=record.id), "submitted": time.time()}, "evil")
    said: list[str] = []

    assert jobs.start_pending(said.append).waiting == ("evil",)

    refused, alice = jobs.get("evil"), jobs.get("alice")
    assert (refused.status, refused.attempt) == (JobStatus.PENDING, 0)
    assert (refused.cause.code, refused.cause.params["error"]) == ("job.refused", "job.duplicate_id")
    assert refused.cause.params["cause"] == reason("job.duplicate_id", job="evil", other="alice")
    assert "provision delete evil" in refused.reason
    assert (alice.status, alice.allocations) == (JobStatus.RUNNING, record.allocations)
    jobs.stop("alice", said.append, grace=0)


def test_a_job_of_a_listed_operator_starts(monkeypatch: pytest.MonkeyPatch, head: FakeNode) -> None:
    """From any controller whose inventory lists the key."""
    other = JobKeys("a", {}, head.folder / "stranger")
    write(head, recorded(other, spec("shared")), "shared")
    person = Person("bob", own_signing_key(head.folder / "stranger").public, "operator")
    jobs = direct_engine(monkeypatch, head, people={"bob": person})

    assert jobs.start_pending([].append).started == ("shared",)
    assert over(jobs, "shared").status is JobStatus.SUCCEEDED


@pytest.mark.parametrize("part", ["text", "signature", "truncated", "empty", "types"])
def test_a_signature_that_does_not_match_is_refused(jobs: DirectEngine, head: FakeNode, part: str) -> None:
    """After a change of the text, and with another or a damaged signature."""
    document = recorded(signing_keys(head), spec())
    other = recorded(signing_keys(head), spec("forged", "id"))
    document |= {
        "text": {"signed": document["signed"].replace('"retry":0', '"retry":9')},
        "signature": {"signature": other["signature"]},
        "truncated": {"signature": document["signature"][:-8]},
        "empty": {"signature": ""},
        "types": {"signature": ["x"], "signed": {}},
    }[part]
    write(head, document)

    assert_refused(jobs, head, "sign")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"id": "other"}, "id"),
        ({"name": "honest2"}, "name"),
        ({"cluster": "elsewhere"}, "signed for the cluster elsewhere"),
        ({"spec": spec("another")}, "another job"),
    ],
)
def test_a_signed_job_is_valid_only_with_its_id_name_and_cluster(
    jobs: DirectEngine, head: FakeNode, changes: dict[str, Any], word: str
) -> None:
    """Root on the head cannot record it under another name, or record a job of another cluster."""
    document = recorded(signing_keys(head), spec(), **changes)
    write(head, {**document, "id": "id-forged"})

    assert_refused(jobs, head, word)


@pytest.mark.parametrize(
    "asked",
    [
        {"image": "--privileged"},
        {"image": ""},
        {"share_memory": "1g --privileged"},
        {"ulimits": {"memlock": "-1 --privileged"}},
        {"ulimits": {"memlock": "--5"}},
        {"starting_timeout": 1e308},
        {"nproc_per_node": "9" * 5000},
        {"gpus": 10**30},
        {"gpu_ids": (10**30,), "gpus": 1},
        {"priority": 10**30},
        {"user": "1:" + "9" * 5000},
        {"sync": CodeSource("git", "https://h/p.git", options={"GIT_SYNC_DEPTH": "1" * 5000})},
        {"env": {"A=B\nC": "x"}},
        {"user": "0:0 --privileged"},
        {"mounts": ("/:/host:rw,z",)},
        {"command": ()},
        {"command": ("x" * (1 << 17),)},
        {"working_dir": "relative"},
        {"sync": CodeSource("git", "-u./x")},
        {"sync": CodeSource("git", "ext::sh -c id")},
        {"sync": CodeSource("git", "file:///root/secret")},
        {"sync": CodeSource("git", "/root/secret")},
        {"sync": CodeSource("git", "user@-oProxyCommand=id:x")},
        {"sync": CodeSource("git", "https://h/p.git", "--upload-pack=id")},
        {"sync": CodeSource("git", "https://h/p.git", options={"GIT_SYNC_SSH_KEY_FILE": "/root/.ssh/id_ed25519"})},
        {"sync": CodeSource("git", "https://h/p.git", options={"GIT_SSL_CAINFO": "/etc/shadow"})},
        {"sync": CodeSource("rsync", "--rsh=id")},
        {"sync": CodeSource("rsync", "/root")},
        {"sync": CodeSource("rsync", "u@-oProxyCommand=id:/x")},
        {"sync": CodeSource("local", "/root")},
    ],
)
def test_a_spec_is_checked_at_the_start_as_at_submission(
    jobs: DirectEngine, head: FakeNode, asked: dict[str, Any]
) -> None:
    """Also with a valid signature: a spec that cannot be submitted does not start."""
    bad = dataclasses.replace(spec(), **asked)
    write(head, recorded(signing_keys(head), bad))

    assert_refused(jobs, head, "cannot be started")
    if not (bad.sync and bad.sync.mode == "local"):
        with pytest.raises(UsageError):
            jobs.submit(dataclasses.replace(bad, name="again"), Secrets(), print)


def test_an_unexpected_error_of_a_start_does_not_delay_other_jobs(
    monkeypatch: pytest.MonkeyPatch, jobs: DirectEngine, head: FakeNode
) -> None:
    """A signed job may cause any error."""
    from provision.jobs import attempt

    limits = attempt.create_words

    def odd(job: JobSpec, *words: Any, **more: Any) -> list[str]:
        return limits(job, *words, **more) if job.name == "honest" else [str(int("--5"))]

    monkeypatch.setattr(attempt, "create_words", odd)
    write(head, recorded(signing_keys(head), spec()))
    said: list[str] = []
    jobs.submit(spec("honest"), Secrets(), said.append)

    assert over(jobs, "honest").status is JobStatus.SUCCEEDED
    assert over(jobs, "forged").status is JobStatus.FAILED
    assert any("forged: its start failed" in line for line in said)


def test_only_the_signed_spec_is_started(jobs: DirectEngine, head: FakeNode) -> None:
    """The owner and spec that the head records beside it change nothing."""
    honest = recorded(signing_keys(head), spec("mine", "echo honest"))
    forged = as_document(spec("mine", "echo forged", privileged=True, mounts=("/:/host",)))
    write(head, {**honest, "owner": "root@a", "spec": forged}, "mine")
    jobs.start_pending([].append)

    assert over(jobs, "mine").status is JobStatus.SUCCEEDED
    started = json.loads((head.attempt("mine").parent.parent / "job.json").read_text())
    lines: list[bytes] = []
    from provision.jobs.engines.base import LogRequest

    jobs.logs(jobs.get("mine"), LogRequest(), lambda _, line: lines.append(line))
    assert lines == [b"honest\n"]
    assert json.loads(started["signed"])["spec"]["command"] == ["echo honest"]


def test_replaced_secrets_are_refused(jobs: DirectEngine, head: FakeNode) -> None:
    """Otherwise the head could give a signed job other variables, files or credentials; the signed ones are used."""
    signed = SecretsDocument(env={"TOKEN": "t"}, salt="s")
    document = recorded(signing_keys(head), spec("mine", secret_env=("TOKEN",)), secrets=secrets_digest(signed))
    write(head, document, "mine", secrets={"env": {"TOKEN": "t", "LD_PRELOAD": "/x.so"}, "salt": "s"})
    jobs.start_pending([].append)

    assert jobs.get("mine").status is JobStatus.FAILED
    cause = jobs.get("mine").cause
    assert (cause.code, cause.params["error"], cause.params["node_name"]) == (
        "job.start_failed",
        "job.secrets_changed",
        "a",
    )
    assert "provision delete mine" in jobs.get("mine").reason
    assert not head.attempt("mine").exists()
    assert head.ok("look")["leases"] == {}


LOGIN = {"username": "bob", "password": "p", "server": "registry"}


@pytest.mark.parametrize(
    ("asked", "secrets"),
    [
        ({"secret_env": ("TOKEN",)}, SecretsDocument(env={"TOKEN": "t"}, salt="s")),
        ({"config_files": ("/home/me/c:/etc/c",)}, SecretsDocument(files={"/etc/c": b"c"}, salt="s")),
        ({}, SecretsDocument(registry=LOGIN, salt="s")),
        ({}, SecretsDocument(sync={"GIT_SYNC_PASSWORD": "p"}, salt="s")),
    ],
    ids=["variable", "file", "registry", "git"],
)
@pytest.mark.parametrize("left", [None, {}, {"salt": "s"}], ids=["no file", "empty", "salt"])
def test_a_job_does_not_start_without_its_signed_secrets(
    jobs: DirectEngine, head: FakeNode, asked: dict[str, Any], secrets: SecretsDocument, left: dict[str, str] | None
) -> None:
    """If root on the head removes them, the job could pull another image, fetch other code or train without a key."""
    document = recorded(signing_keys(head), spec("mine", **asked), secrets=secrets_digest(secrets))
    write(head, document, "mine", **({} if left is None else {"secrets": left}))
    jobs.start_pending([].append)
    job = jobs.get("mine")

    assert job.status is JobStatus.FAILED
    assert (job.cause.code, job.cause.params["error"]) == ("job.start_failed", "job.secrets_missing")
    assert "provision delete mine" in job.reason
    assert not head.attempt("mine").exists()
    assert head.ok("look")["leases"] == {}
    with pytest.raises(Refused) as caught:
        jobs.restart("mine", print)
    assert caught.value.code == "job.secrets_missing"


def test_a_restart_without_the_signed_secrets_does_not_stop_the_running_job(jobs: DirectEngine, head: FakeNode) -> None:
    """It is refused before it ends anything."""
    jobs.submit(spec("mine", "exec sleep 60"), Secrets(registry=LOGIN), print)
    until(lambda: jobs.get("mine").status is JobStatus.RUNNING, "running")
    (head.root / "mine" / "secrets.json").unlink()

    with pytest.raises(Refused):
        jobs.restart("mine", print)

    assert jobs.get("mine").status is JobStatus.RUNNING
    jobs.stop("mine", print, grace=1)


def changed(head: FakeNode, change: Callable[[dict[str, Any]], object], **asked: Any) -> dict[str, Any]:
    """Return a job whose text was changed before it was signed, as another version would sign it."""
    document = recorded(signing_keys(head), spec(**asked))
    text = json.loads(document["signed"])
    change(text)
    signed = json.dumps(text)
    return {**document, "signed": signed, "signature": sign(signed.encode(), signing_key(head), NAMESPACE)}


def signing_key(head: FakeNode) -> SigningKey:
    """Return the key of the controller."""
    return own_signing_key(head.folder / "signing_key")


@pytest.mark.parametrize(
    ("change", "code", "word"),
    [
        (lambda text: text.update(sandbox="gvisor"), "job.unknown_field", "sandbox"),
        (lambda text: text["spec"].update(network="none"), "job.unknown_field", "spec.network"),
        (lambda text: text["spec"]["sync"].update(verify="signed-tags"), "job.unknown_field", "spec.sync.verify"),
        (lambda text: text.update(version=2), "job.version", "newer version"),
        (lambda text: (text.update(version=9), text["spec"].update(network="none")), "job.version", "newer version"),
        (lambda text: (text.update(version=9), text["spec"].clear()), "job.version", "newer version"),
        (lambda text: text.update(version=0), "job.format", "form"),
        (lambda text: text.update(version="1"), "job.format", "form"),
    ],
)
def test_a_signed_job_with_an_unknown_version_or_field_is_refused(
    jobs: DirectEngine, head: FakeNode, change: Callable[[dict[str, Any]], object], code: str, word: str
) -> None:
    """It would start differently from what its submitter requested; the reason names the version or field."""
    document = changed(head, change, sync=CodeSource("git", "https://h/p.git"))
    with pytest.raises(Refused) as caught:
        signing_keys(head).check(JobReport("forged", "id-forged", **_signed_part(document)), "a")
    assert caught.value.code == code

    write(head, document)
    assert_refused(jobs, head, word)


def _signed_part(document: dict[str, Any]) -> dict[str, str]:
    return {key: document[key] for key in ("signed", "signature")}


def test_a_job_of_an_older_version_starts_with_defaults_for_new_fields(jobs: DirectEngine, head: FakeNode) -> None:
    """The defaults of new fields mean the earlier behaviour."""
    document = changed(head, lambda text: [text["spec"].pop(name) for name in ("ulimits", "annotations", "pull")])
    write(head, document)

    assert jobs.start_pending([].append).started == ("forged",)


FIELDS_OF_VERSION = {1: "f32fba147a56bb80"}


def test_a_change_of_the_signed_fields_has_a_new_version() -> None:
    """Raise SIGNED_VERSION and add the digest: controllers of older versions then refuse the job with that reason."""
    names = [
        *(f"job.{item.name}" for item in msgspec.structs.fields(SignedJob)),
        *(f"spec.{item.name}" for item in dataclasses.fields(JobSpec)),
        *(f"sync.{item.name}" for item in dataclasses.fields(CodeSource)),
        *(f"code.{item.name}" for item in msgspec.structs.fields(PackedCode)),
    ]
    digest = hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:16]

    assert FIELDS_OF_VERSION[SIGNED_VERSION] == digest


class Asked:
    """Extras that record whether the controller may fetch the code of a job."""

    def __init__(self) -> None:
        self.own: dict[str, bool] = {}

    def mounts(self, _spec: JobSpec, _node: str) -> list[str]:
        return []

    def before(self, attempt: Any, *_: Any) -> str:
        self.own[attempt.spec.name] = attempt.own
        return "0" * 40

    def after(self, *_: Any) -> str:
        return ""


def test_the_controller_fetches_code_only_for_jobs_of_its_own_user(
    monkeypatch: pytest.MonkeyPatch, head: FakeNode, tmp_path: Path
) -> None:
    """Not for submitters or other operators; a key in the user's own folder counts as the user's."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    source, extras = CodeSource("git", "https://h/p.git"), Asked()
    people = {}
    for name, role in (("bob", "submitter"), ("eve", "operator"), ("me", "operator")):
        keys = JobKeys("a", {}, head.folder / name)
        write(head, recorded(keys, spec(name, user="1001:1001", sync=source)), name)
        people[name] = Person(name, own_signing_key(head.folder / name).public, role, "1001:1001")  # type: ignore[arg-type]
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    (tmp_path / "home" / ".ssh" / "id_ed25519.pub").write_text(f"{people['me'].key} me@here\n")
    jobs = direct_engine(monkeypatch, head, people=people, extras=extras)  # type: ignore[arg-type]
    jobs.submit(spec("mine", sync=source), Secrets(), print)

    assert extras.own == {"bob": False, "eve": False, "me": True, "mine": True}


class Brought:
    """Extras that record the archive that a start would relay."""

    def __init__(self) -> None:
        self.names: list[list[str]] = []

    def mounts(self, _spec: JobSpec, _node: str) -> list[str]:
        return []

    def before(self, _attempt: Any, _connectors: Any, _say: Any, code: Any) -> str:
        with tarfile.open(code.path) as archive:
            self.names.append(archive.getnames())
        return code.about.content

    def after(self, *_: Any) -> str:
        return ""


def test_a_local_folder_is_packed_at_submission_and_not_read_later(
    monkeypatch: pytest.MonkeyPatch, head: FakeNode, tmp_path: Path
) -> None:
    """A held job starts with that code, from any controller, also if the folder was removed."""
    folder, extras = tmp_path / "project", Brought()
    folder.mkdir()
    (folder / "train.py").write_text("1")
    jobs = direct_engine(monkeypatch, head, extras=extras)  # type: ignore[arg-type]
    jobs.submit(spec("local", hold=True, sync=CodeSource("local", str(folder))), Secrets(), print)
    shutil.rmtree(folder)
    jobs.release("local", print)

    assert over(jobs, "local").status is JobStatus.SUCCEEDED
    assert extras.names == [["train.py"]]
    assert jobs.restart("local", print).attempt == 2
    assert extras.names == [["train.py"]] * 2
    assert (head.root / "local" / "code.tar.gz").stat().st_mode & 0o777 == 0o600
    (head.root / "local" / "code.tar.gz").write_bytes(b"x" * 5_000_000)
    over(jobs, "local")
    with pytest.raises(NodeError, match="packed code of local is not the code that was signed"):
        jobs.restart("local", print)
    assert len(extras.names) == 2


def test_missing_packed_code_is_refused(jobs: DirectEngine, head: FakeNode) -> None:
    """The controller does not pack other files in its place."""
    code = PackedCode("0" * 64, "0" * 64, 100)
    write(head, recorded(signing_keys(head), spec("mine", sync=CodeSource("local", "/root")), code=code), "mine")
    jobs.start_pending([].append)

    assert jobs.get("mine").status is JobStatus.FAILED
    assert "no packed code of this job" in jobs.get("mine").reason


BOB = {"user": "1001:1001"}
SLOW = CodeSource("git", "https://git.example.com/x.git", options={"GIT_SYNC_TIMEOUT": "999999999"})


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({}, "--user 1001:1001,27"),
        ({"user": "0:0"}, "--user 1001:1001,27"),
        ({"user": "1002:1001"}, "--user 1001:1001,27"),
        ({"user": "1001:1001,0"}, "--user 1001:1001,27"),
        ({**BOB, "env": {"NVIDIA_VISIBLE_DEVICES": "all"}}, "NVIDIA_VISIBLE_DEVICES"),
        ({**BOB, "privileged": True}, "--privileged"),
        ({**BOB, "allow_drained": True}, "--toleration"),
        ({**BOB, "starting_timeout": 7200.0}, "--starting-timeout"),
        ({**BOB, "ulimits": {"rtprio": "99"}}, "--ulimit rtprio"),
        ({**BOB, "sync": SLOW}, "GIT_SYNC_TIMEOUT is at most 3600"),
        ({**BOB, "priority": 1}, "--priority"),
        ({**BOB, "image": "", "no_container": True, "env": {"CUDA_VISIBLE_DEVICES": "0"}}, "CUDA_VISIBLE_DEVICES"),
        ({**BOB, "mounts": ("/var/run/docker.sock:/s",)}, "--mount"),
        ({**BOB, "mounts": ("/home/bob/docker.sock:/s",)}, "--mount"),
        ({**BOB, "mounts": ("/run:/r",)}, "--mount"),
        ({**BOB, "mounts": ("//run/x:/r:ro",)}, "--mount"),
        ({**BOB, "mounts": ("/home/../proc:/p",)}, "--mount"),
        ({**BOB, "mounts": ("/:/host:ro",)}, "--mount"),
        ({**BOB, "mounts": ("/dev:/d",)}, "--mount"),
    ],
)
def test_a_submitters_job_has_the_account_and_rights_of_the_submitter(
    monkeypatch: pytest.MonkeyPatch, head: FakeNode, asked: dict[str, Any], word: str
) -> None:
    """His signature permits what he may do, whatever he has signed."""
    own = JobKeys("a", {}, head.folder / "bob")
    write(head, recorded(own, spec(**asked)))
    person = Person("bob", own_signing_key(head.folder / "bob").public, "submitter", "1001:1001,27")

    assert_refused(direct_engine(monkeypatch, head, people={"bob": person}), head, word, "bob")


def test_a_valid_job_of_a_submitter_starts(monkeypatch: pytest.MonkeyPatch, head: FakeNode) -> None:
    """With his account, some of its groups, and mounts that his account limits."""
    own = JobKeys("a", {}, head.folder / "bob")
    write(head, recorded(own, spec("fine", user="1001:1001,27", mounts=("/home/bob:/home/bob",))), "fine")
    person = Person("bob", own_signing_key(head.folder / "bob").public, "submitter", "1001:1001,27,28")
    jobs = direct_engine(monkeypatch, head, people={"bob": person})

    assert jobs.start_pending([].append).started == ("fine",)


def test_invalid_entries_are_reported_and_delay_no_other_job(jobs: DirectEngine, head: FakeNode) -> None:
    """Whatever files root on the head writes."""
    odd: dict[str, Any] = {
        "ids": {"id": ["x"]},
        "specs": {"id": "1", "spec": {"gpus": "many"}},
        "names": {"id": "1", "owner": {"a": 1}},
        "times": {"id": "1", "submitted": "now"},
        "nests": {"id": "1", "spec": {"env": {"a": {"b": {}}}}},
    }
    for name, document in odd.items():
        write(head, document, name)
    (head.root / "queues").mkdir()
    write(head, {"id": "1"}, "lists", queue={"state": "pending", "nodes": "all", "attempt": "--x"})
    said: list[str] = []

    jobs.submit(spec("honest"), Secrets(), said.append)

    assert over(jobs, "honest").status is JobStatus.SUCCEEDED
    for name in (*odd, "lists"):
        assert [line for line in said if f"a: job {name} is ignored" in line], name
    for name in ("ids", "specs", "names", "times", "lists"):
        assert [line for line in jobs.jobs().problems if f"a: job {name} is ignored" in line], name


@pytest.mark.parametrize(
    "record",
    [
        {"seats": [{"instance": "j-worker-0", "container": "other-worker-0"}]},
        {"seats": [{"instance": "j-worker-0", "container": "j-worker-0-worker-0"}]},
        {"seats": [{"instance": "other-worker-0"}]},
        {"tensorboard": "http://10.0.0.1:port"},
        {"tensorboard": "http://10.0.0.1"},
    ],
)
def test_a_node_cannot_send_a_command_into_another_jobs_container(record: dict[str, Any]) -> None:
    """`attach` and `port-forward` use the node's report of its attempt; such an entry is ignored."""
    rest = {"role": "worker", "index": 0, "node": "b", "address": "10.0.0.2", "rank": 0, "chief": True}
    whole = {**record, "seats": [{**rest, **one} for one in record.get("seats", ())]}
    job = {"name": "j", "id": "1", "attempt": 1, "attempt_record": whole}
    good = {**job, "attempt_record": {"seats": [{**rest, "instance": "j-worker-0", "container": "j-worker-0"}]}}
    answer = decode(json.dumps({"jobs": [job, good]}), ReportAnswer, node="b", what="answer")
    jobs, problems = job_reports(answer, "b")

    assert (len(jobs), len(problems)) == (1, 1)
    assert jobs[0].record.assignments[0].container == "j-worker-0"


@pytest.mark.parametrize(
    ("document", "files"),
    [
        ({"id": "1"}, {"queue": {"state": "pending", "retry": 2_000_000}}),
        ({"id": "1", "owner": {"a": 1}}, {}),
        ({"id": {}}, {}),
        ({"id": "1", "spec": {"gpus": "all"}}, {}),
        ({"id": "1", "spec": {"env": {"a": {"b": {}}}}}, {}),
    ],
)
def test_a_job_without_a_valid_entry_can_be_deleted(
    jobs: DirectEngine, head: FakeNode, document: dict[str, Any], files: dict[str, Any]
) -> None:
    """Its entry is reported with a remedy, all other commands fail with the reason, and the name is free afterwards."""
    write(head, document, "odd", **files)

    with pytest.raises(NodeError, match="the recorded job odd is not valid") as caught:
        jobs.stop("odd", [].append)
    assert caught.value.remedy == "Delete it: provision delete odd"
    assert all("`provision delete odd` deletes it" in line for line in jobs.jobs().problems)
    jobs.delete("odd", [].append)

    assert not (head.root / "odd").exists()
    assert jobs.jobs().problems == ()
    jobs.submit(spec("odd"), Secrets(), [].append)
    assert over(jobs, "odd").status is JobStatus.SUCCEEDED


def test_a_job_whose_start_failed_is_not_reported_as_started(jobs: DirectEngine, head: FakeNode) -> None:
    """The reason is reported; other jobs start."""
    write(head, recorded(signing_keys(head), dataclasses.replace(spec("odd", pull="never"), image="missing")), "odd")
    write(head, recorded(signing_keys(head), spec("fine")), "fine")
    said: list[str] = []

    assert jobs.start_pending(said.append).started == ("fine",)

    assert [line for line in said if line.startswith("warning: odd: its start failed: a: ")]


def test_a_refused_restart_does_not_end_the_running_job(jobs: DirectEngine, head: FakeNode) -> None:
    """For example of an unsigned job of an earlier version."""
    jobs.submit(spec("old", "sleep 60"), Secrets(), [].append)
    until(lambda: jobs.get("old").status is JobStatus.RUNNING, "the job runs")
    file = head.root / "old" / "job.json"
    document = json.loads(file.read_text())
    file.write_text(json.dumps({key: value for key, value in document.items() if key not in {"signed", "signature"}}))

    with pytest.raises(NodeError, match="is not signed"):
        jobs.restart("old", [].append)

    assert jobs.get("old").status is JobStatus.RUNNING
    jobs.stop("old", [].append, grace=0)


def test_the_deletion_of_a_job_with_a_damaged_record_ends_it_first(jobs: DirectEngine, head: FakeNode) -> None:
    """The error has the recorded owner, for the confirmation."""
    jobs.submit(spec("odd", "sleep 60", gpus=1), Secrets(), [].append)
    until(lambda: jobs.get("odd").status is JobStatus.RUNNING, "the job runs")
    file = head.root / "odd" / "job.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "submitted": "now", "owner": "eve@x"}))

    with pytest.raises(InvalidRecord) as caught:
        jobs.get("odd", time_limit=15.0)
    assert caught.value.other_owner == "eve@x"
    jobs.delete("odd", [].append)

    assert not (head.root / "odd").exists()
    assert head.ok("look")["leases"] == {}


def test_only_secret_variables_that_the_spec_names_are_used(jobs: DirectEngine, head: FakeNode) -> None:
    """Names in the spec are checked; other variables would be unchecked."""
    secrets = SecretsDocument(env={"NVIDIA_VISIBLE_DEVICES": "all"}, salt="s")
    document = recorded(signing_keys(head), spec("mine"), secrets=secrets_digest(secrets))
    write(head, document, "mine", secrets={"env": dict(secrets.env), "salt": "s"})
    jobs.start_pending([].append)

    assert jobs.get("mine").cause.params["error"] == "job.secrets_unnamed"
