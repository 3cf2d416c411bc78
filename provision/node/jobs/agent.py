"""Answers one request about jobs for a person who has no root login, as far as the person's role allows.

sshd runs it for the key of a person of the inventory, as root through sudo: ``job-agent NAME``. What the client asked
sshd to run is ignored. The request is one line of JSON on standard input, as node_jobs.py takes it; only the requests
of `RULES` are accepted, and each is made anew from fields that were checked. The answer is that of node_jobs.py, whose
parts this program carries. Python 3.6 or newer, and nothing else.
"""

import base64
import json
import os
import re
import select
import struct
import sys
import time

if __name__ == "__main__":  # before a part reads it; sudo should have cleared it
    os.environ.clear()
    os.environ["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"

from provision.node import audit as node_audit
from provision.node import files as node_files
from provision.node.files import Refused, read_json
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
"""Of a submitter, as long as nobody deletes them: reports of all jobs have a limit, and are for everybody."""
NAMES = 10000
GRACE_SECONDS = 3600
TOKEN = re.compile(r"[a-z0-9]{1,64}\Z")
NODE = re.compile(r"[^\x00-\x20\x7f/]{1,255}\Z")
STATES = ("pending", "held", "started", "failed", "over", "stopped")
SIGNATURE = b"SSHSIG"

JOB = ("name", "id", "owner", "submitted", "attempt", "keeper", "boot_id")
SPEC = ("kind", "gpus", "workers", "priority", "exclusive", "tensorboard", "depends", "retry", "ttl_after_finished")
QUEUE = ("state", "attempt", "time", "passed", "retry", "handed", "unconfirmed", "deleted", "result")
ATTEMPT = ("attempt", "id", "seats", "node", "boot_id")
INSTANCE = ("instance", "status", "exit_code", "signal", "started", "ended")
RESULT = ("status", "exit_code", "first_rank", "ended", "chief")
"""What others may see of a job: no reasons, no output, no command, no environment, no mounts."""


def main(argv=None):
    """Answer the request on standard input for the person whom sshd has recognized by the key."""
    name = (sys.argv if argv is None else argv)[1]
    do, job = "", ""
    try:
        person = person_of(name)
        request = parsed(request_line())
        do, job = shown(verb_of(request)), shown(request.get("name"))
        return carry_out(name, person, request)
    except Refused as refusal:
        said = refusal.answer["error"]["message"]
        node_audit.audit("refused", name, said, agent=True, request=do, job=job)
        print(json.dumps(refusal.answer))
        return 1


def verb_of(request):
    """Return what a request is for, for the audit record: `stop` and `delete` begin with a change of the queue."""
    do, queue = request.get("do"), request.get("queue")
    if do == "queue" and isinstance(queue, dict) and queue.get("state") == "stopped":
        return "delete" if queue.get("deleted") is True else "stop"
    return do


class UnknownJob(Refused):
    """This node knows no such job."""


class NotAllowed(Refused):
    """The person may not make this request; the code is the reason for programs."""

    def __init__(self, code, message, remedy=""):
        super().__init__(message, remedy)
        self.answer["error"]["code"] = code


def person_of(name):
    """Return role, key and account of a person."""
    known = read_json(CONFIG).get("people")
    person = known.get(name) if isinstance(known, dict) else None
    if not isinstance(person, dict):
        raise NotAllowed(
            "agent.unknown_person",
            "the inventory names nobody called {}".format(name),
            "ask an operator to run: provision apply",
        )
    return person


def request_line():
    """Return our input up to a newline, bounded in length and in time; what was read of the rest is kept."""
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


def parsed(line):
    """Return a request as a mapping."""
    try:
        request = json.loads(line.decode(), parse_constant=not_a_number)
    except (ValueError, RecursionError):
        raise Refused("the request is not JSON") from None
    if not isinstance(request, dict):
        raise Refused("the request is not a JSON object")
    return request


def not_a_number(_text):
    """Refuse NaN and infinities."""
    raise ValueError


def carry_out(name, person, request):
    """Check a request, run it, and answer what the person may see of it."""
    do = request.get("do")
    rule = RULES.get(do) if isinstance(do, str) else None
    if rule is None:
        raise NotAllowed(
            "agent.request",
            "the job agent does not accept the request {}".format(shown(do)),
            "an operator with a root login can do this; {} can submit, list, follow, stop and delete jobs".format(name),
        )
    try:
        checked = dict(rule(person, name, request), do=do)
    except UnknownJob:
        if do not in NOTHING:
            raise
        print(json.dumps(NOTHING[do]))  # a command asks several nodes, and not all of them have a part in the job
        return 0
    view = {"report": views(person), "look": views(person), "reserve": without_job}.get(do)
    code, answer = run(checked, name, captured=view is not None)
    if view is None:
        return code
    try:
        document = json.loads(answer.decode())
    except ValueError:
        raise Refused("the node's program gave no answer") from None
    print(json.dumps(view(document)))
    return code


def run(request, name, captured):
    """Run the program for jobs with a request; return its exit status, and its output where that is `captured`."""
    ours, theirs = os.pipe()
    result = os.pipe() if captured else (-1, -1)
    sys.stdout.flush()
    child = os.fork()
    if not child:
        code = 70
        try:
            os.dup2(ours, 0)
            os.close(theirs)
            if captured:
                os.dup2(result[1], 1)
                os.close(result[0])
            os.environ["PROVISION_JOB_AGENT"] = name
            from provision.node.jobs import requests as node_jobs

            code = node_jobs.main()
            sys.stdout.flush()
        finally:
            os._exit(code)
    os.close(ours)
    with os.fdopen(theirs, "wb") as stream:
        try:
            stream.write(json.dumps(request).encode() + b"\n")
            if request["do"] == "upload":
                copy_input(stream, request["size"])
            stream.flush()
        except OSError:
            pass  # it has ended, and says why
        output = b""
        if captured:
            os.close(result[1])
            with os.fdopen(result[0], "rb") as answer:
                output = answer.read()
        status = os.waitpid(child, 0)[1]
    return (os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1), output


def copy_input(stream, left):
    """Copy so many bytes that follow the request."""
    piece = node_files.read_ahead
    while left:
        piece = (piece or os.read(0, 1 << 18))[:left]
        if not piece:
            return
        stream.write(piece)
        left, piece = left - len(piece), b""


# Who may do what


def is_operator(person):
    """Return whether a person may act on all jobs."""
    return person.get("role") == "operator"


def own_job(person, request):
    """Return name and id of a job that the person may act on."""
    name = request.get("name")
    if not isinstance(name, str) or not NAME.match(name):
        raise Refused("{} is not the name of a job".format(shown(name)))
    job = read_json(os.path.join(job_folder(name), "job.json"))
    if not job:
        raise UnknownJob("this node knows no job {}".format(name))
    if not is_operator(person) and not signed_by(person, job):
        raise NotAllowed(
            "job.not_owner", "the job {} belongs to somebody else".format(name), "an operator can act on all jobs"
        )
    asked = request.get("id") or request.get("if_id")
    if asked is not None and str(asked) != str(job.get("id")):
        raise UnknownJob("this node knows no job {} with the id {}".format(name, shown(asked)))
    return name, str(job.get("id"))


def signed_by(person, job):
    """Return whether a job was recorded with a signature by the person's key."""
    key, signature = key_blob(person), signature_key(job.get("signature"))
    return bool(key) and key == signature


def key_blob(person):
    """Return a person's public key as bytes."""
    try:
        return base64.b64decode(str(person.get("key")).split(" ")[1])
    except (ValueError, IndexError):
        return b""


def signature_key(text):
    """Return the public key that is part of an SSH signature; nothing where there is none.

    Whether the signature is valid is checked by the controller that starts the job.
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


# Requests, each made anew from what was checked


def report(_person, _name, request):
    """Read what the node knows of jobs."""
    return {"names": names_of(request), "brief": request.get("brief") is not False}


def look(_person, _name, request):
    """Read what the node has for jobs."""
    return {"names": names_of(request), "brief": request.get("brief") is not False, "topology": False}


def names_of(request, form=NAME):
    """Return the names that a request is about, None for all."""
    names = request.get("names")
    if names is None:
        return None
    if not isinstance(names, list) or len(names) > NAMES:
        raise Refused("names: not a list of at most {} names".format(NAMES))
    return [name for name in names if isinstance(name, str) and form.match(name)]


def reserve(person, _name, request):
    """Submit a job that is signed with the key by which the caller logged in."""
    name, job = request.get("name"), request.get("job")
    if not isinstance(name, str) or not NAME.match(name) or not isinstance(job, dict):
        raise Refused("{} is not the name of a job".format(shown(name)))
    text = job.get("signed")
    try:
        signed = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        signed = None
    if not isinstance(signed, dict) or not signed_by(person, job):
        raise NotAllowed(
            "job.signature",
            "the job {} is not signed with the key that you logged in with".format(name),
            "set PROVISION_SIGNING_KEY to that key",
        )
    spec, token = signed.get("spec"), signed.get("id")
    agreed = signed.get("name") == name and token == job.get("id") and signed.get("owner") == job.get("owner")
    agreed = agreed and isinstance(signed["owner"], str) and is_plain([signed["owner"], spec])
    if not agreed or not isinstance(spec, dict) or not isinstance(token, str) or not TOKEN.match(token):
        raise NotAllowed("job.signature", "the job {} is not what was signed".format(name))
    if not is_operator(person) and not runs_as(spec.get("user"), person):
        raise NotAllowed(
            "job.user",
            "your jobs run as {}, not as {}".format(person.get("user"), spec.get("user") or "root"),
            "submit with: --user {}".format(person.get("user")),
        )
    insist_on_unused_id(name, token)
    queue = request.get("queue") if isinstance(request.get("queue"), dict) else {}
    retry = queue.get("retry", 0)
    if not is_count(retry) or retry > RETRIES:
        raise NotAllowed("job.limit", "--retry {}: at most {} is possible".format(shown(retry), RETRIES))
    if not is_operator(person):
        insist_on_room(person, text)
    return {
        "name": name,
        "job": {"id": token, "owner": signed["owner"], "spec": spec, "signed": text, "signature": job["signature"]},
        "queue": {
            "state": "held" if queue.get("state") == "held" else "pending",
            "attempt": 0,
            "failures": 0,
            "retry": retry,
        },
        "secrets": request.get("secrets") if isinstance(request.get("secrets"), dict) else {},
        "upload": token if request.get("upload") == token else "",
    }


def is_plain(value):
    """Return whether every reader of JSON reads this: Python takes 1e999, half characters and any depth for JSON."""
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    level = [value]
    for _ in range(DEPTH):
        groups = (one.values() if isinstance(one, dict) else one for one in level)
        level = [item for group in groups for item in group if isinstance(item, (dict, list))]
    return not level


def insist_on_unused_id(name, token):
    """Refuse the id of another job: nodes recognize containers and leases by the id, and everybody can read it."""
    ids = [read_json(os.path.join(job_folder(other), "job.json")).get("id") for other in job_names() if other != name]
    ids += [lease.get("id") for lease in all_leases().values() if lease.get("job") != name]
    if token in map(str, ids):
        raise Refused("another job has the id {}".format(token), "submit the job again with an id of its own")


def insist_on_room(person, text):
    """Refuse a job that would keep others from reading what there is."""
    if len(text) > SIGNED_LENGTH:
        raise NotAllowed(
            "job.limit", "the job's description has {} characters, {} are possible".format(len(text), SIGNED_LENGTH)
        )
    recorded = (read_json(os.path.join(job_folder(name), "job.json")) for name in job_names())
    if sum(1 for job in recorded if signed_by(person, job)) >= JOBS:
        raise NotAllowed(
            "job.limit", "you have {} jobs here".format(JOBS), "provision delete NAME, of those that are over"
        )


def runs_as(user, person):
    """Return whether a job's account is the person's; it may leave out groups of the person."""
    account, _, groups = (user if isinstance(user, str) else "").partition(",")
    own_account, _, own_groups = str(person.get("user")).partition(",")
    return account == own_account and set(filter(None, groups.split(","))) <= set(own_groups.split(","))


def upload(_person, _name, request):
    """Store the packed code of a job that is about to be submitted; its hash is in what the submitter signs."""
    token, size = request.get("id"), request.get("size")
    if not isinstance(token, str) or not TOKEN.match(token):
        raise Refused("{} is not the id of a job".format(shown(token)))
    if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= UPLOAD_BYTES:
        raise Refused("{} is not a possible size of packed code".format(shown(size)))
    node_records.make_folders()
    about = os.statvfs(node_records.ROOT)
    if 2 * size > about.f_bavail * about.f_frsize:
        raise Refused("there is no room for {} bytes of code".format(size))
    return {"id": token, "size": size}


def logs(person, _name, request):
    """Read the output of a job of one's own."""
    name, token = own_job(person, request)
    instance = request.get("instance")
    if instance not in (None, "") and not (isinstance(instance, str) and FILE.match(instance)):
        raise Refused("{} is not the name of an instance".format(shown(instance)))
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


def stop(person, caller, request):
    """End a job of one's own."""
    name, token = own_job(person, request)
    grace = request.get("grace")
    checked = {"name": name, "id": token, "reason": "stopped by {}".format(caller)}
    checked["grace"] = min(grace, GRACE_SECONDS) if is_time(grace) else 15
    if is_count(request.get("attempt")):
        checked["attempt"] = request["attempt"]
    return checked


def delete(person, _name, request):
    """Forget a job of one's own."""
    name, token = own_job(person, request)
    return {"name": name, "id": token}


def queue(person, caller, request):
    """Take a job of one's own out of the queue, or release it where it is held."""
    name, token = own_job(person, request)
    wanted = request.get("queue") if isinstance(request.get("queue"), dict) else {}
    if wanted.get("state") == "stopped":
        seen = request.get("if_state")
        states = [one for one in STATES if one in seen] if isinstance(seen, list) else list(STATES)
        confirmed = names_of({"names": request.get("confirmed") or []}, NODE)
        checked = placed(name, token, "stopped", "stopped by {}".format(caller), states, over=True)
        if wanted.get("deleted") is True:
            checked["queue"]["deleted"] = True
        if confirmed:  # of an end that is recorded already: no event of its own
            del checked["queue"]["reason"], checked["event"]
        return dict(checked, confirmed=confirmed)
    if wanted.get("state") == "pending" and request.get("action") == "released":
        return dict(placed(name, token, "pending", "", ["held"], over=False), action="released")
    raise NotAllowed("agent.request", "the job agent only stops and releases jobs", "an operator can do this")


def placed(name, token, state, reason, states, over):
    """Return the request that changes a job's place in the queue."""
    event = {"source": "queue", "type": "Normal", "message": reason or "released"}
    changes = {"state": state, "reason": reason}
    checked = {"name": name, "queue": changes, "merge": True, "if_id": token, "if_state": states, "event": event}
    return dict(checked, over=over)


RULES = {
    "report": report,
    "look": look,
    "reserve": reserve,
    "upload": upload,
    "logs": logs,
    "stop": stop,
    "delete": delete,
    "queue": queue,
}
"""Request -> what checks it and makes it anew."""


NOTHING = {"stop": {"asked": False}, "delete": {"deleted": False}, "queue": {"written": False}}
"""What is answered where the node has no part in the job."""


# What of an answer a person may see


def views(person):
    """Return a function from an answer to what the person may see of it."""

    def view(answer):
        if is_operator(person) or not isinstance(answer, dict) or "error" in answer:
            return answer
        jobs = [visible(person, job) for job in answer.get("jobs") or ()]
        seen = dict(answer, jobs=jobs)
        if "queue" in answer:
            seen["queue"] = {job["name"]: job["queue"] for job in jobs if job.get("queue")}
        if "foreign" in answer:
            seen["foreign"] = dict.fromkeys(answer["foreign"], "another program")
        return seen

    return view


def without_job(answer):
    """Return the answer to `reserve` without the job that has the name already: it may be somebody else's."""
    return answer if "error" in answer else {"reserved": answer.get("reserved") is True}


def visible(person, job):
    """Return a job in full where it is the person's own, else only in brief.

    The name may have been taken by another job since the report was made.
    """
    recorded = read_json(os.path.join(job_folder(job["name"]), "job.json"))
    if signed_by(person, recorded) and recorded.get("id") == job.get("id"):
        return job
    found = {key: job.get(key) for key in JOB}
    found["spec"] = some(job.get("spec"), SPEC)
    found["queue"] = some(job.get("queue"), QUEUE)
    if found["queue"].get("result"):
        found["queue"]["result"] = some(found["queue"]["result"], RESULT)
    found["attempt_record"] = some(job.get("attempt_record"), ATTEMPT)
    instances = job.get("instances") if isinstance(job.get("instances"), dict) else {}
    found["instances"] = {name: some(record, INSTANCE) for name, record in instances.items()}
    found["result"] = some(job["result"], RESULT) if job.get("result") else None
    for key in ("attempts", "nodes"):
        if key in job:
            found[key] = job[key]
    return found


def some(value, keys):
    """Return a mapping with some of its keys only."""
    return {key: value[key] for key in keys if key in value} if isinstance(value, dict) else {}


# Values


def is_count(value):
    """Return whether a value is a whole number that is not negative."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def is_time(value):
    """Return whether a value is a number of seconds."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e11


def shown(value):
    """Return a value as short printable text."""
    text = value if isinstance(value, str) else repr(value)
    return "".join(one if one.isprintable() else "?" for one in text[:64])
