"""Answers one request about jobs for a person without root access, as far as the person's role allows.

sshd runs it for the key of a person of the inventory, as root through sudo: ``job-agent NAME``. The command that the
client sends is ignored. The request is one line of JSON on standard input, as `requests.py` takes it. Only the requests
of `RULES` are accepted, and each is built again from checked fields. The answer is that of `requests.py`, reduced to
what the person may see. Python 3.6 or newer, and nothing else.
"""

import base64
import json
import os
import re
import select
import struct
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from provision.node import audit as node_audit
from provision.node import files as node_files
from provision.node.files import Record, Refused, copy_input, read_json
from provision.node.jobs import records as node_records
from provision.node.jobs.leases import all_leases
from provision.node.jobs.records import FILE, NAME, UPLOAD_BYTES, job_folder, job_names

CONFIG = "/etc/provision/job-agent.json"
REQUEST_BYTES = 48 << 20
REQUEST_SECONDS = 120
DEPTH = 8
SIGNED_LENGTH = 1 << 17
RETRIES = 1000000
JOBS = 200
"""The most undeleted jobs of a submitter: reports of all jobs have a limit, and are for all users."""
NAMES = 10000
GRACE_SECONDS = 3600
TOKEN = re.compile(r"[a-z0-9]{1,64}\Z")
NODE = re.compile(r"[^\x00-\x20\x7f/]{1,255}\Z")
STATES = ("pending", "held", "started", "failed", "over", "stopped")
SIGNATURE = b"SSHSIG"

JOB_FIELDS = ("name", "id", "owner", "submitted", "attempt", "keeper", "boot_id")
SPEC_FIELDS = (
    "kind",
    "gpus",
    "workers",
    "priority",
    "exclusive",
    "tensorboard",
    "depends",
    "retry",
    "ttl_after_finished",
)
QUEUE_FIELDS = ("state", "attempt", "time", "passed", "retry", "handed", "unconfirmed", "deleted", "result")
ATTEMPT_FIELDS = ("attempt", "id", "seats", "node", "boot_id")
INSTANCE_FIELDS = ("instance", "status", "exit_code", "signal", "started", "ended")
RESULT_FIELDS = ("status", "exit_code", "first_rank", "ended", "chief")
"""The fields of a job that other users may see: no reasons, output, command, environment or mounts."""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Answer the request on standard input for the person whom sshd has authenticated; return the exit status."""
    name = (sys.argv if argv is None else argv)[1]
    do, job = "", ""
    try:
        person = person_of(name)
        request = parsed(request_line())
        do, job = shown(verb_of(request)), shown(request.get("name"))
        return carry_out(name, person, request)
    except Refused as refusal:
        message = refusal.answer["error"]["message"]
        node_audit.audit("refused", name, message, agent=True, request=do, job=job)
        print(json.dumps(refusal.answer))
        return 1


def verb_of(request: Record) -> Any:
    """Return the verb for the audit record: `stop` and `delete` begin with a change of the queue."""
    do, queue = request.get("do"), request.get("queue")
    if do == "queue" and isinstance(queue, dict) and queue.get("state") == "stopped":
        return "delete" if queue.get("deleted") is True else "stop"
    return do


class UnknownJob(Refused):
    """There is no such job on this node."""


class NotAllowed(Refused):
    """The person may not make this request; the code is the reason for programs."""

    def __init__(self, code: str, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.answer["error"]["code"] = code


def person_of(name: str) -> Record:
    """Return role, key and account of a person."""
    people = read_json(CONFIG).get("people")
    person = people.get(name) if isinstance(people, dict) else None
    if not isinstance(person, dict):
        raise NotAllowed(
            "agent.unknown_person",
            "the inventory has no person {}".format(name),
            "Ask an operator to run: provision apply",
        )
    return person


def request_line() -> bytes:
    """Return standard input up to a newline, limited in length and time; `read_ahead` gets the bytes after it."""
    line, deadline = b"", time.monotonic() + REQUEST_SECONDS
    while b"\n" not in line:
        if not select.select([0], [], [], max(deadline - time.monotonic(), 0))[0]:
            raise Refused("the request did not arrive in {} s".format(REQUEST_SECONDS))
        piece = os.read(0, 1 << 16)
        if not piece:
            break
        line += piece
        if len(line) > REQUEST_BYTES:
            raise Refused("the request is longer than {} bytes".format(REQUEST_BYTES))
    line, _, node_files.read_ahead = line.partition(b"\n")
    return line


def parsed(line: bytes) -> Record:
    """Return the request in a line."""
    try:
        request = json.loads(line.decode(), parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        raise Refused("the request is not JSON") from None
    if not isinstance(request, dict):
        raise Refused("the request is not a JSON object")
    return request


def refuse_constant(_text: str) -> None:
    """Refuse NaN and infinities."""
    raise ValueError


def carry_out(name: str, person: Record, request: Record) -> int:
    """Check a request, carry it out, and print what the person may see of the answer; return the exit status."""
    do = request.get("do")
    if not isinstance(do, str) or do not in RULES:
        raise NotAllowed(
            "agent.request",
            "the job agent does not accept the request {}".format(shown(do)),
            "Ask an operator with root access. {} can submit, list, follow, stop and delete jobs.".format(name),
        )
    try:
        checked = dict(RULES[do](person, name, request), do=do)
    except UnknownJob:
        if do not in NOTHING:
            raise
        print(json.dumps(NOTHING[do]))  # a command asks several nodes, and not all of them have a part of the job
        return 0
    view = {"report": view_of(person), "look": view_of(person), "reserve": without_job}.get(do)
    code, answer = run(checked, name, captured=view is not None)
    if view is None:
        return code
    try:
        document = json.loads(answer.decode())
    except ValueError:
        raise Refused("the node program returned no answer") from None
    print(json.dumps(view(document)))
    return code


def run(request: Record, name: str, *, captured: bool) -> Tuple[int, bytes]:
    """Carry out a request in a child process; return its exit status, and its output if that is `captured`."""
    source, sink = os.pipe()
    result = os.pipe() if captured else (-1, -1)
    sys.stdout.flush()
    child = os.fork()
    if not child:
        code = 70
        try:
            os.dup2(source, 0)
            os.close(sink)
            if captured:
                os.dup2(result[1], 1)
                os.close(result[0])
            os.environ["PROVISION_JOB_AGENT"] = name
            from provision.node.jobs import requests as node_jobs

            code = node_jobs.main()
            sys.stdout.flush()
        finally:
            os._exit(code)
    os.close(source)
    with os.fdopen(sink, "wb") as stream:
        try:
            stream.write(json.dumps(request).encode() + b"\n")
            if request["do"] == "upload":
                copy_input(stream, request["size"])
            stream.flush()
        except OSError:
            pass  # it has ended, and its answer says why
        output = b""
        if captured:
            os.close(result[1])
            with os.fdopen(result[0], "rb") as answer:
                output = answer.read()
        status = os.waitpid(child, 0)[1]
    return (os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1), output


# Permissions


def is_operator(person: Record) -> bool:
    """Return whether a person may act on all jobs."""
    return person.get("role") == "operator"


def own_job(person: Record, request: Record) -> Tuple[str, str]:
    """Return name and ID of a job that the person may act on."""
    name = request.get("name")
    if not isinstance(name, str) or not NAME.match(name):
        raise Refused("{}: invalid job name".format(shown(name)))
    job = read_json(os.path.join(job_folder(name), "job.json"))
    if not job:
        raise UnknownJob("there is no job {} on this node".format(name))
    if not is_operator(person) and not signed_by(person, job):
        raise NotAllowed(
            "job.not_owner",
            "the job {} belongs to another user".format(name),
            "Ask an operator, who can act on all jobs.",
        )
    token = request.get("id") or request.get("if_id")
    if token is not None and str(token) != str(job.get("id")):
        raise UnknownJob("there is no job {} with the ID {} on this node".format(name, shown(token)))
    return name, str(job.get("id"))


def signed_by(person: Record, job: Record) -> bool:
    """Return whether a job was recorded with a signature by the person's key."""
    key, signature = key_blob(person), signature_key(job.get("signature"))
    return bool(key) and key == signature


def key_blob(person: Record) -> bytes:
    """Return a person's public key as bytes."""
    try:
        return base64.b64decode(str(person.get("key")).split(" ")[1])
    except (ValueError, IndexError):
        return b""


def signature_key(text: Any) -> bytes:
    """Return the public key that is part of an SSH signature, empty if there is none.

    The controller that starts the job verifies the signature.
    """
    if not isinstance(text, str) or len(text) > 1 << 16:
        return b""
    try:
        data = base64.b64decode(text, validate=True)
        version, length = struct.unpack(">II", data[6:14])
    except (ValueError, struct.error):
        return b""
    if data[:6] != SIGNATURE or version != 1 or len(data) < 14 + length:
        return b""
    return data[14 : 14 + length]


# Requests, each built again from checked fields


def report(_person: Record, _name: str, request: Record) -> Record:
    """Return the jobs of the node."""
    return {"names": requested_names(request), "brief": request.get("brief") is not False}


def look(_person: Record, _name: str, request: Record) -> Record:
    """Return the resources and jobs of the node."""
    return {"names": requested_names(request), "brief": request.get("brief") is not False, "topology": False}


def requested_names(request: Record) -> Optional[List[str]]:
    """Return the job names in a request, None for all jobs."""
    return None if request.get("names") is None else valid_names(request["names"], NAME)


def valid_names(names: Any, form: "re.Pattern[str]") -> List[str]:
    """Return the names in a list that have a form."""
    if not isinstance(names, list) or len(names) > NAMES:
        raise Refused("names: not a list of at most {} names".format(NAMES))
    return [name for name in names if isinstance(name, str) and form.match(name)]


def reserve(person: Record, _name: str, request: Record) -> Record:
    """Submit a job that is signed with the key that authenticated the caller."""
    name, job = request.get("name"), request.get("job")
    if not isinstance(name, str) or not NAME.match(name) or not isinstance(job, dict):
        raise Refused("{}: invalid job name".format(shown(name)))
    text = job.get("signed")
    try:
        signed = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        signed = None
    if not isinstance(signed, dict) or not signed_by(person, job):
        raise NotAllowed(
            "job.signature",
            "the job {} is not signed with the key of this SSH connection".format(name),
            "Set PROVISION_SIGNING_KEY to that key.",
        )
    spec, token = signed.get("spec"), signed.get("id")
    agrees = signed.get("name") == name and token == job.get("id") and signed.get("owner") == job.get("owner")
    agrees = agrees and isinstance(signed["owner"], str) and is_plain([signed["owner"], spec])
    if not agrees or not isinstance(spec, dict) or not isinstance(token, str) or not TOKEN.match(token):
        raise NotAllowed("job.signature", "the job {} differs from its signed text".format(name))
    if not is_operator(person) and not runs_as(spec.get("user"), person):
        raise NotAllowed(
            "job.user",
            "your jobs run as {}, not as {}".format(person.get("user"), spec.get("user") or "root"),
            "Submit with: --user {}".format(person.get("user")),
        )
    check_unused_id(name, token)
    queue = as_record(request.get("queue"))
    retry = queue.get("retry", 0)
    if not is_count(retry) or retry > RETRIES:
        raise NotAllowed("job.limit", "--retry {}: the maximum is {}".format(shown(retry), RETRIES))
    if not is_operator(person):
        check_limits(person, str(text))
    return {
        "name": name,
        "job": {"id": token, "owner": signed["owner"], "spec": spec, "signed": text, "signature": job["signature"]},
        "queue": {
            "state": "held" if queue.get("state") == "held" else "pending",
            "attempt": 0,
            "failures": 0,
            "retry": retry,
        },
        "secrets": as_record(request.get("secrets")),
        "upload": token if request.get("upload") == token else "",
    }


def is_plain(value: Any) -> bool:
    """Return whether all JSON parsers accept a value: Python also accepts 1e999, half characters and any depth."""
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    level = [value]
    for _ in range(DEPTH):
        groups = (one.values() if isinstance(one, dict) else one for one in level)
        level = [item for group in groups for item in group if isinstance(item, (dict, list))]
    return not level


def check_unused_id(name: str, token: str) -> None:
    """Refuse the ID of another job: nodes identify containers and leases by the ID, and all users can read it."""
    ids = [read_json(os.path.join(job_folder(other), "job.json")).get("id") for other in job_names() if other != name]
    ids += [lease.get("id") for lease in all_leases().values() if lease.get("job") != name]
    if token in map(str, ids):
        raise Refused("another job has the ID {}".format(token), "Submit the job again with a new ID.")


def check_limits(person: Record, text: str) -> None:
    """Refuse a job that would prevent other users from reading the list of jobs."""
    if len(text) > SIGNED_LENGTH:
        raise NotAllowed(
            "job.limit", "the job's description has {} characters; the maximum is {}".format(len(text), SIGNED_LENGTH)
        )
    jobs = (read_json(os.path.join(job_folder(name), "job.json")) for name in job_names())
    if sum(1 for job in jobs if signed_by(person, job)) >= JOBS:
        raise NotAllowed(
            "job.limit", "you have {} jobs on this node".format(JOBS), "Delete finished jobs: provision delete NAME"
        )


def runs_as(user: Any, person: Record) -> bool:
    """Return whether a job's account is the person's, with all or some of the person's groups."""
    account, _, groups = (user if isinstance(user, str) else "").partition(",")
    own_account, _, own_groups = str(person.get("user")).partition(",")
    return account == own_account and set(filter(None, groups.split(","))) <= set(own_groups.split(","))


def upload(_person: Record, _name: str, request: Record) -> Record:
    """Store the packed code of a job that is about to be submitted; the submitter signs its hash."""
    token, size = request.get("id"), request.get("size")
    if not isinstance(token, str) or not TOKEN.match(token):
        raise Refused("{}: invalid job ID".format(shown(token)))
    if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= UPLOAD_BYTES:
        raise Refused("{}: invalid size of packed code".format(shown(size)))
    node_records.make_folders()
    status = os.statvfs(node_records.ROOT)
    if 2 * size > status.f_bavail * status.f_frsize:
        raise Refused("insufficient disk space for {} bytes of code".format(size))
    return {"id": token, "size": size}


def logs(person: Record, _name: str, request: Record) -> Record:
    """Return the output of an own job."""
    name, token = own_job(person, request)
    instance = request.get("instance")
    if instance not in (None, "") and not (isinstance(instance, str) and FILE.match(instance)):
        raise Refused("{}: invalid instance name".format(shown(instance)))
    tail, since, attempt = request.get("tail", -1), request.get("since"), request.get("attempt")
    return {
        "name": name,
        "id": token,
        "attempt": attempt if is_count(attempt) else 0,
        "instance": instance or "",
        "tail": tail if is_count(tail) else -1,
        "since": since if is_time(since) else 0,
        "timestamps": request.get("timestamps") is True,
        "follow": request.get("follow") is True,
    }


def stop(person: Record, caller: str, request: Record) -> Record:
    """End an own job."""
    name, token = own_job(person, request)
    grace: Any = request.get("grace")
    checked: Record = {"name": name, "id": token, "reason": "stopped by {}".format(caller)}
    checked["grace"] = min(grace, GRACE_SECONDS) if is_time(grace) else 15
    if is_count(request.get("attempt")):
        checked["attempt"] = request["attempt"]
    return checked


def delete(person: Record, _name: str, request: Record) -> Record:
    """Delete an own job."""
    name, token = own_job(person, request)
    return {"name": name, "id": token}


def queue(person: Record, caller: str, request: Record) -> Record:
    """Remove an own job from the queue, or release a held one."""
    name, token = own_job(person, request)
    changes = as_record(request.get("queue"))
    if changes.get("state") == "stopped":
        expected = request.get("if_state")
        states = [one for one in STATES if one in expected] if isinstance(expected, list) else list(STATES)
        confirmed = valid_names(request.get("confirmed") or [], NODE)
        checked = queue_request(name, token, "stopped", "stopped by {}".format(caller), states, over=True)
        if changes.get("deleted") is True:
            checked["queue"]["deleted"] = True
        if confirmed:  # the end is recorded already, so it needs no event
            del checked["queue"]["reason"], checked["event"]
        return dict(checked, confirmed=confirmed)
    if changes.get("state") == "pending" and request.get("action") == "released":
        return dict(queue_request(name, token, "pending", "", ["held"], over=False), action="released")
    raise NotAllowed("agent.request", "the job agent only stops and releases jobs", "Ask an operator.")


def queue_request(name: str, token: str, state: str, reason: str, states: List[str], *, over: bool) -> Record:
    """Return the request that changes a job's state in the queue."""
    event = {"source": "queue", "type": "Normal", "message": reason or "released"}
    changes = {"state": state, "reason": reason}
    checked = {"name": name, "queue": changes, "merge": True, "if_id": token, "if_state": states, "event": event}
    return dict(checked, over=over)


RULES: Dict[str, Callable[[Record, str, Record], Record]] = {
    "report": report,
    "look": look,
    "reserve": reserve,
    "upload": upload,
    "logs": logs,
    "stop": stop,
    "delete": delete,
    "queue": queue,
}
"""Request -> the function that checks it and builds it again."""


NOTHING: Dict[str, Record] = {"stop": {"asked": False}, "delete": {"deleted": False}, "queue": {"written": False}}
"""The answers of a node without a part of the job."""


# The visible part of an answer


def view_of(person: Record) -> Callable[[Any], Any]:
    """Return a function that reduces an answer to what the person may see."""

    def view(answer: Any) -> Any:
        if is_operator(person) or not isinstance(answer, dict) or "error" in answer:
            return answer
        jobs = [visible(person, job) for job in answer.get("jobs") or ()]
        reduced = dict(answer, jobs=jobs)
        if "queue" in answer:
            reduced["queue"] = {job["name"]: job["queue"] for job in jobs if job.get("queue")}
        if "foreign" in answer:
            reduced["foreign"] = dict.fromkeys(answer["foreign"], "another program")
        return reduced

    return view


def without_job(answer: Any) -> Any:
    """Return the answer to `reserve` without the job that has the name already: another user may own it."""
    return answer if "error" in answer else {"reserved": answer.get("reserved") is True}


def visible(person: Record, job: Record) -> Record:
    """Return an own job unchanged, and the public fields of another user's job.

    Another job may have taken the name since the report was made.
    """
    recorded = read_json(os.path.join(job_folder(job["name"]), "job.json"))
    if signed_by(person, recorded) and recorded.get("id") == job.get("id"):
        return job
    public = {key: job.get(key) for key in JOB_FIELDS}
    public["spec"] = fields_of(job.get("spec"), SPEC_FIELDS)
    queue = fields_of(job.get("queue"), QUEUE_FIELDS)
    if queue.get("result"):
        queue["result"] = fields_of(queue["result"], RESULT_FIELDS)
    public["queue"] = queue
    public["attempt_record"] = fields_of(job.get("attempt_record"), ATTEMPT_FIELDS)
    instances = as_record(job.get("instances"))
    public["instances"] = {name: fields_of(record, INSTANCE_FIELDS) for name, record in instances.items()}
    public["result"] = fields_of(job["result"], RESULT_FIELDS) if job.get("result") else None
    public.update(fields_of(job, ("attempts", "nodes")))
    return public


def fields_of(value: Any, keys: Sequence[str]) -> Record:
    """Return some fields of an object, none if the value is something else."""
    return {key: value[key] for key in keys if key in value} if isinstance(value, dict) else {}


# Values


def as_record(value: Any) -> Record:
    """Return an object, an empty one if the value is something else."""
    return value if isinstance(value, dict) else {}


def is_count(value: Any) -> bool:
    """Return whether a value is a whole number that is not negative."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def is_time(value: Any) -> bool:
    """Return whether a value is a number of seconds."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e11


def shown(value: Any) -> str:
    """Return a value as short printable text."""
    text = value if isinstance(value, str) else repr(value)
    return "".join(one if one.isprintable() else "?" for one in text[:64])
