"""Answers one request about the jobs of an ordinary user of Slurm, on a login node.

The request is one line of JSON on standard input, the answer one line on standard output. Everything of a job is in
its folder below ``~/.provision/slurm``, which the nodes of the job share:

- ``job.json``: its record;
- ``attempt-N/``: ``secrets`` (until its end), ``started``, ``ended``, ``batch.log``, and ``N.log`` with the output of
  each task.

Nothing else is written, and no command needs root.
"""

import base64
import json
import os
import re
import shutil
import sys
from typing import Any, Callable, Dict, List, Tuple

from provision.node.files import Record, Refused, names_in, read_json, read_text, write_file, write_json
from provision.node.jobs.records import NAME, attempt_number, job_name
from provision.node.slurm.controller import JOB_FIELDS, NODE_FIELDS, form, job_number, slurm, slurm_submit

PIECE_BYTES = 4 << 20
"""The most output of one file in an answer."""
BLOCK = 1 << 16
LINE = 500
FAILURE = re.compile(r"^srun: error: .*tasks? ([0-9]{1,6})[0-9,-]*: Exited with exit code ([0-9]{1,3})$")
MOST_NODES = 100000
MOST_FILES = 100000


def main() -> int:
    """Answer the request on standard input; return the exit status."""
    try:
        request = json.loads(sys.stdin.readline())
        answer = REQUESTS[request["do"]](request)
    except Refused as refusal:
        print(json.dumps(refusal.answer))
        return 1
    except OSError as problem:
        print(json.dumps(storage_problem(problem).answer))
        return 1
    except (ValueError, LookupError, TypeError, AttributeError) as problem:
        print(json.dumps(Refused("the request is invalid: {!r}".format(problem)).answer))
        return 1
    print(json.dumps(answer))
    return 0


def storage_problem(problem: OSError) -> Refused:
    """Return the refusal because of a file that cannot be read or written."""
    text = "{}: {}".format(problem.filename or "a file of the job", problem.strerror)
    return Refused(text, "Check the home folder of the account: df -h ~; df -i ~; quota")


# Folders


def root() -> str:
    """Return the folder of all jobs."""
    return os.path.join(os.path.expanduser("~"), ".provision", "slurm")


def folder_of(name: str) -> str:
    """Return the folder of a job."""
    return os.path.join(root(), name)


def attempt_folder(name: str, attempt: int) -> str:
    """Return the folder of an attempt."""
    return os.path.join(folder_of(name), "attempt-{}".format(attempt))


def recorded(request: Record) -> Tuple[str, Record]:
    """Return the name and the record of a job; refuse the request if another job has the name."""
    name = job_name(request)
    record = record_of(name)
    if not record or record.get("id") != request.get("id"):
        raise Refused("the job {} was deleted or replaced meanwhile".format(name), "See the jobs: provision list")
    return name, record


def changed(name: str, record: Record, **fields: Any) -> Record:
    """Write fields of a record; return the record."""
    record = dict(record, **fields)
    write_json(os.path.join(folder_of(name), "job.json"), record)
    return record


# Commands of Slurm


def output_of(*argv: str) -> str:
    """Return the output of a command of Slurm.

    It is refused if the command is missing or fails.
    """
    code, out, err = slurm(argv)
    if code == 127:
        raise Refused(
            "there is no {} in the PATH of this login".format(argv[0]),
            "Set cluster_slurm_login to a login node of Slurm. Check: ssh NODE command -v {}".format(argv[0]),
        )
    if code:
        lines = (err or out).strip().splitlines()
        raise Refused(
            "{}: {}".format(argv[0], lines[-1] if lines else "exit {}".format(code)),
            "Ask the administrator of Slurm. Check: scontrol ping",
            (err or out)[-2000:],
        )
    return out


def queue() -> str:
    """Return the jobs of this user in Slurm, a line each."""
    return output_of("squeue", "-h", "-t", "all", "-u", str(os.getuid()), "-O", form(JOB_FIELDS))


def accounting(numbers: List[int]) -> str:
    """Return how jobs ended that slurmctld does not know any more; empty without accounting."""
    if not numbers:
        return ""
    words = ["sacct", "-n", "-P", "-X", "-D", "-j", ",".join(map(str, numbers)), "-o", "JobIDRaw,State,ExitCode"]
    code, out, _ = slurm(words)
    return "" if code else out


def cancel(numbers: List[int]) -> None:
    """Cancel jobs; a job that has ended or is unknown is no error."""
    if numbers:
        code, out, err = slurm(["scancel", "--quiet", *map(str, numbers)])
        if code and "Invalid job id" not in err and "already completing" not in err:
            raise Refused("scancel: {}".format((err or out).strip()[-LINE:]), "Check: scontrol ping")


# Requests


def reserve(request: Record) -> Record:
    """Record a job under a free name; ``reserved`` says whether the name was free."""
    name, job = job_name(request), request["job"]
    new = os.path.join(root(), ".new-{}-{}".format(name, os.getpid()))
    os.makedirs(root(), mode=0o700, exist_ok=True)
    os.mkdir(new, 0o700)
    try:
        write_json(os.path.join(new, "job.json"), dict(job, attempt=0, number=0, earlier=[], stopped=False))
        os.rename(new, folder_of(name))  # fails if the folder exists, because it has a record
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        if not os.path.isdir(folder_of(name)):
            raise
        return {"reserved": False, "home": home()}
    return {"reserved": True, "home": home()}


def home() -> str:
    """Return the home folder of the account."""
    return os.path.expanduser("~")


def submit(request: Record) -> Record:
    """Submit the batch script of the next attempt; return the number of Slurm's job, or why it was refused."""
    name, record = recorded(request)
    attempt = attempt_number(request)
    own = attempt_folder(name, attempt)
    try:
        os.mkdir(own, 0o700)
    except FileExistsError:
        raise Refused(
            "another command has submitted attempt {} of {}".format(attempt, name), "See it: provision get " + name
        )
    if request.get("secrets"):
        write_file(os.path.join(own, "secrets"), request["secrets"])
    earlier = [*record["earlier"], *([record["number"]] if record["number"] else [])]
    before = changed(name, record, attempt=attempt, number=0, earlier=earlier, stopped=False)
    options = dict(request["options"], output=os.path.join(own, "batch.log"))
    answer = slurm_submit({"options": options, "script": request["script"]})
    if answer["job"]:
        changed(name, before, number=answer["job"])
    elif not answer.get("uncertain"):
        changed(name, record)
        shutil.rmtree(own)
    return answer


def check(request: Record) -> Record:
    """Return whether Slurm would accept a batch script; ``refused`` says why it would not."""
    answer = slurm_submit({"options": dict(request["options"], test_only=True), "script": request["script"]})
    return dict(answer, home=home())


def report(request: Record) -> Record:
    """Return records of jobs (all, or those of ``names``) with what Slurm and their files report."""
    names = request.get("names")
    listed = [one for one in names_in(root()) if NAME.match(one)] if names is None else names
    records = [(name, record_of(job_name({"name": name}))) for name in listed]
    text = queue()
    # Files after the queue: those of a job that has ended in Slurm are complete.
    jobs = [job_report(name, record) for name, record in records if record]
    known = {int(line.partition("\x1f")[0]) for line in text.splitlines() if line.partition("\x1f")[0].isdigit()}
    gone = [one["number"] for one in jobs if one["number"] and not one["ended"] and one["number"] not in known]
    return {"user": str(os.getuid()), "home": home(), "jobs": jobs, "queue": text, "accounting": accounting(gone)}


def record_of(name: str) -> Record:
    """Return the record of a job; an empty one if there is no such job."""
    return read_json(os.path.join(folder_of(name), "job.json"))


def job_report(name: str, record: Record) -> Record:
    """Return the record of a job with the files of its current attempt."""
    own = attempt_folder(name, record["attempt"])
    began = read_text(os.path.join(own, "started")).split()
    ended = read_text(os.path.join(own, "ended")).split()
    over = len(ended) == 2 and all(word.isdigit() for word in ended)
    failed = over and ended[0] != "0"
    task, code = first_failure(os.path.join(own, "batch.log")) if failed else (-1, 0)
    return dict(
        record,
        started=int(began[0]) if began and began[0].isdigit() else 0,
        nodes=began[1:MOST_NODES],
        ended=int(ended[1]) if over else 0,
        exit_code=(code or int(ended[0])) if over else None,
        task=task,
        last=last_line(os.path.join(own, "batch.log")) if failed else "",
    )


def first_failure(path: str) -> Tuple[int, int]:
    """Return the task that failed first and its exit code, from the messages of srun; without it -1 and 0.

    srun ends the other tasks then, and its own exit status is the highest one: that of a signal.
    """
    for line in message_lines(path):
        match = FAILURE.search(line)
        if match:
            return int(match.group(1)), int(match.group(2))
    return -1, 0


def message_lines(path: str) -> List[str]:
    """Return the lines at the end of the messages of a batch script."""
    try:
        with open(path, "rb") as stream:
            stream.seek(max(os.path.getsize(path) - BLOCK, 0))
            return stream.read(BLOCK).decode(errors="replace").splitlines()
    except OSError:
        return []


def last_line(path: str) -> str:
    """Return the last line of the messages of a batch script that can be printed."""
    lines = message_lines(path)
    shown = ["".join(char if char.isprintable() else " " for char in line).strip() for line in lines]
    return next((line[-LINE:] for line in reversed(shown) if line), "")


def logs(request: Record) -> Record:
    """Return the output of tasks, from an offset of each file or, with ``tail``, its last lines."""
    name, _ = recorded(request)
    own, pieces = attempt_folder(name, attempt_number(request)), []
    if len(request["files"]) > MOST_FILES:
        raise Refused("too many files of output")
    for one in request["files"]:
        task, offset, tail = int(one["task"]), int(one["offset"]), int(one.get("tail", -1))
        try:
            with open(os.path.join(own, "{}.log".format(task)), "rb") as stream:
                offset = offset if tail < 0 else tail_offset(stream, tail)
                stream.seek(offset)
                data = stream.read(PIECE_BYTES)
        except FileNotFoundError:
            data = b""
        pieces.append({"task": task, "offset": offset + len(data), "data": base64.b64encode(data).decode()})
    return {"pieces": pieces}


def tail_offset(stream: Any, count: int) -> int:
    """Return where the last lines of a file begin."""
    end: int = stream.seek(0, os.SEEK_END)
    start, data = end, b""
    while start > 0 and data.count(b"\n") <= count and len(data) < PIECE_BYTES:
        size = min(BLOCK, start)
        start -= size
        stream.seek(start)
        data = stream.read(size) + data
    lines = data.split(b"\n") if not data.endswith(b"\n") else data[:-1].split(b"\n")
    last = lines[-count:] if count and data else []
    return end - sum(len(line) + 1 for line in last) + (1 if last and not data.endswith(b"\n") else 0)


def stop(request: Record) -> Record:
    """Cancel a job in Slurm and record that its end was requested."""
    name, record = recorded(request)
    changed(name, record, stopped=True)
    cancel([job_number(one) for one in request["jobs"]])
    return {"done": True}


def release(request: Record) -> Record:
    """Release a held job in Slurm."""
    recorded(request)
    output_of("scontrol", "release", str(job_number(request["job"])))
    return {"done": True}


def delete(request: Record) -> Record:
    """Remove the record and the output of a job that has ended."""
    name, _ = recorded(request)
    gone = os.path.join(root(), ".deleted-{}-{}".format(name, os.getpid()))
    os.rename(folder_of(name), gone)
    shutil.rmtree(gone)
    return {"done": True}


def nodes(_request: Record) -> Record:
    """Return all nodes of Slurm, a line each."""
    return {"text": output_of("sinfo", "-N", "-h", "-O", form(NODE_FIELDS))}


REQUESTS: Dict[str, Callable[[Record], Record]] = {
    "reserve": reserve,
    "submit": submit,
    "check": check,
    "report": report,
    "logs": logs,
    "stop": stop,
    "release": release,
    "delete": delete,
    "nodes": nodes,
}
"""Request -> the function that answers it."""
