"""Files of jobs on this node: paths and contents. README.md of `provision/jobs` describes them."""

import json
import os
import re
import time
from typing import Dict, Iterable, List, Optional, Tuple

from provision.node.files import Record, Refused, names_in, read_json, read_text, remove, remove_tree

ROOT = os.environ.get("PROVISION_JOBS_ROOT") or "/var/lib/provision/jobs"
DRAINED = os.path.join(ROOT, ".drained")
"""While the node is drained: the reason."""
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
"""The states of an instance that has ended."""
STAMP_LENGTH = 27  # 2026-01-31T12:00:00.123456Z
PREFIX_LENGTH = STAMP_LENGTH + 3  # and " o "
OTHER_RECORDS = ("attempt", "result", "keeper", "state", "stop")
"""JSON files of an attempt's folder that are not of instances."""

Attempt = Tuple[str, int]
"""Job name and attempt number."""


# Names and paths


def job_name(request: Record, key: str = "name") -> str:
    """Return the job name in a request; it becomes a part of paths."""
    name = request.get(key)
    if not isinstance(name, str) or not NAME.match(name):
        raise Refused("{!r}: invalid job name".format(name), "Use lower-case letters, digits, '-' and '.'.")
    return name


def attempt_number(request: Record) -> int:
    """Return the attempt number in a request."""
    attempt = request.get("attempt")
    if isinstance(attempt, bool) or not isinstance(attempt, int) or attempt < 1:
        raise Refused("{!r}: invalid attempt number".format(attempt))
    return attempt


def job_names() -> List[str]:
    """Return the names of the jobs on this node."""
    return [item for item in names_in(ROOT) if NAME.match(item)]


def job_folder(name: str) -> str:
    """Return the folder of a job."""
    return os.path.join(ROOT, name)


def attempt_folder(name: str, attempt: int) -> str:
    """Return the folder of an attempt."""
    return os.path.join(ROOT, name, "attempts", str(attempt))


def attempts_of(name: str) -> List[int]:
    """Return the numbers of a job's attempts on this node, in order."""
    return sorted(int(item) for item in names_in(os.path.join(ROOT, name, "attempts")) if item.isdigit())


def unit_name(name: str, attempt: int) -> str:
    """Return the name of the job supervisor's systemd unit."""
    return "provision-job-{}-{}.service".format(name, attempt)


def existing_job_folder(name: str) -> str:
    """Return the folder of a job that this node has; refuse other names."""
    folder = job_folder(name)
    if not os.path.isdir(folder):
        raise Refused("there is no job {} on this node".format(name))
    return folder


def check_job_id(request: Record, name: str) -> None:
    """Refuse a request with the ID of an earlier job of the same name."""
    token = request.get("id")
    if token is not None and str(read_json(os.path.join(job_folder(name), "job.json")).get("id")) != str(token):
        raise Refused("the job {} on this node has another ID".format(name))


def make_folders() -> None:
    """Create the folders of all jobs; only root may list them."""
    for path in (ROOT, *(os.path.join(RUN, name) for name in ("leases", "mounts", "units"))):
        os.makedirs(path, mode=0o700, exist_ok=True)
        if os.stat(path).st_mode & 0o777 != 0o700:  # created by an earlier version
            os.chmod(path, 0o700)


# Contents


def instances_of(folder: str, names: Optional[Iterable[str]] = None) -> Dict[str, Record]:
    """Return the records of the instances on this node by name."""
    records = {}
    for item in sorted(names_in(folder) if names is None else names):
        instance, extension = os.path.splitext(item)
        if extension == ".json" and instance not in OTHER_RECORDS:
            records[instance] = read_json(os.path.join(folder, item))
    return records


def new_record(instance: str) -> Record:
    """Return the record of an instance that has not started."""
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


def add_event(name: str, source: str, message: str, kind: str = "Normal", when: Optional[float] = None) -> None:
    """Append an event to a job's list, in one write so that events of two processes do not mix."""
    line = {"time": time.time() if when is None else when, "source": source, "type": kind, "message": message}
    path = os.path.join(ROOT, name, "events.jsonl")
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, (json.dumps(line) + "\n").encode())
    finally:
        os.close(handle)


_OWNER = "\nowner: "


def drain_reason() -> str:
    """Return why the node is drained, empty if it is not."""
    return read_text(DRAINED).partition(_OWNER)[0].strip()


def drain_owner() -> str:
    """Return the program that drained the node, empty for a person."""
    return read_text(DRAINED).partition(_OWNER)[2].strip()


def drain_text(reason: str, owner: str) -> str:
    """Return the content of the file `DRAINED`."""
    return reason.replace("\n", " ") + (_OWNER + owner if owner else "") + "\n"


def remove_secrets(folder: str) -> None:
    """Remove the secret files of an attempt: configuration of the supervisor, variables, private keys."""
    remove(os.path.join(folder, "keeper.json"))
    for item in names_in(folder):
        if item.startswith("env-") or item.endswith(".new"):
            remove(os.path.join(folder, item))
    remove(os.path.join(folder, "stop.json"))
    for item in ("ssh", "config", "programs"):
        remove_tree(os.path.join(folder, item))
