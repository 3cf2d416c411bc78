"""Where jobs are kept on this node, and what is written down of them: README.md of `provision/jobs` has the files."""

import json
import os
import re
import time

from provision.node.files import Refused, names_in, read_json, read_text, remove, remove_tree

ROOT = os.environ.get("PROVISION_JOBS_ROOT") or "/var/lib/provision/jobs"
RUN = os.environ.get("PROVISION_JOBS_RUN") or "/run/provision"
FOR_TESTS = (
    "PROVISION_JOBS_ROOT",
    "PROVISION_JOBS_RUN",
    "PROVISION_PROC",
    "PROVISION_DOCKER_SOCKET",
    "PROVISION_DOCKER_AWAY_SECONDS",
)
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?\Z")
FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,120}\Z")
UPLOAD_BYTES = 2 << 30  # of packed code
UNIT_FILES = "/run/systemd/system"
OVER = ("Completed", "Error", "Stopped", "Lost")
STAMP = 27  # 2026-01-31T12:00:00.123456Z
PREFIX = STAMP + 3  # and " o "
NO_INSTANCES = ("attempt", "result", "keeper", "state", "stop")


# Names and places


def job_name(request, key="name"):
    """Return a job's name, which becomes a part of paths."""
    name = request.get(key)
    if not isinstance(name, str) or not NAME.match(name):
        raise Refused("{!r} is no name of a job".format(name), "lower-case letters, digits and - are")
    return name


def number_of(request):
    """Return the number of an attempt."""
    attempt = request.get("attempt")
    if isinstance(attempt, bool) or not isinstance(attempt, int) or attempt < 1:
        raise Refused("{!r} is no number of an attempt".format(attempt))
    return attempt


def job_names():
    """Return the names of the jobs that this node knows."""
    return [item for item in names_in(ROOT) if NAME.match(item)]


def job_folder(name):
    """Return where a job is kept."""
    return os.path.join(ROOT, name)


def attempt_folder(name, attempt):
    """Return where an attempt is kept."""
    return os.path.join(ROOT, name, "attempts", str(attempt))


def attempts_of(name):
    """Return the numbers of a job's attempts here, in order."""
    return sorted(int(item) for item in names_in(os.path.join(ROOT, name, "attempts")) if item.isdigit())


def unit_name(name, attempt):
    """Return the name of the keeper's unit."""
    return "provision-job-{}-{}.service".format(name, attempt)


def known_job(name):
    """Return a job's folder, or refuse."""
    folder = job_folder(name)
    if not os.path.isdir(folder):
        raise Refused("this node knows no job {}".format(name))
    return folder


def insist_on_id(request, name):
    """Refuse a request that names the ID of another job than the one that has this name now."""
    token = request.get("id")
    if token is not None and str(read_json(os.path.join(job_folder(name), "job.json")).get("id")) != str(token):
        raise Refused("the job {} is another one by now".format(name))


def make_folders():
    """Make the folders of all jobs, whose names are root's business alone."""
    for path in (ROOT, *(os.path.join(RUN, name) for name in ("leases", "mounts", "units"))):
        os.makedirs(path, mode=0o700, exist_ok=True)
        if os.stat(path).st_mode & 0o777 != 0o700:  # of an earlier version
            os.chmod(path, 0o700)


# What is in them


def instances_of(folder, names=None):
    """Return instance -> its record, of those that live on this node."""
    found = {}
    for item in sorted(names_in(folder) if names is None else names):
        instance, ending = os.path.splitext(item)
        if ending == ".json" and instance not in NO_INSTANCES:
            found[instance] = read_json(os.path.join(folder, item))
    return found


def new_record(instance):
    """Return the record of an instance that has not begun."""
    return {
        "instance": instance,
        "status": "Pending",
        "exit_code": None,
        "signal": None,
        "reason": "",
        "started": 0.0,
        "ended": 0.0,
        "container_id": "",
        "last_lines": [],
    }


def add_event(name, source, message, kind="Normal", when=None):
    """Append an event to a job's list; one write, so that events of two writers do not mix."""
    line = {"time": time.time() if when is None else when, "source": source, "type": kind, "message": message}
    path = os.path.join(ROOT, name, "events.jsonl")
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, (json.dumps(line) + "\n").encode())
    finally:
        os.close(handle)


def drained():
    """Return why the node takes no new jobs, empty when it does."""
    return read_text(os.path.join(ROOT, ".drained")).strip()


def take_away_secrets(folder):
    """Remove what an attempt needed and nobody may see: what the keeper was told, variables, private keys."""
    remove(os.path.join(folder, "keeper.json"))
    for item in names_in(folder):
        if item.startswith("env-") or item.endswith(".new"):
            remove(os.path.join(folder, item))
    remove(os.path.join(folder, "stop.json"))
    for item in ("ssh", "config", "programs"):
        remove_tree(os.path.join(folder, item))
