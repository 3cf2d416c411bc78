"""The request start: the job supervisor of an attempt starts as a systemd unit."""

import os
import re
import shutil
import sys
import time
from typing import Mapping, Sequence, Tuple

import provision.node
from provision.node.files import (
    Record,
    Refused,
    boot_id,
    program,
    read_json,
    read_text,
    remove,
    write_file,
    write_json,
)
from provision.node.jobs.leases import LeaseLock, all_leases, belongs_to, write_lease
from provision.node.jobs.records import (
    FILE,
    FOR_TESTS,
    UNIT_FILES,
    attempt_folder,
    attempt_number,
    job_name,
    unit_name,
)
from provision.node.jobs.supervisors import has_supervisor, supervised


def start(request: Record) -> Record:
    """Start the job supervisor of a prepared attempt; return when it has read its configuration."""
    name, attempt = job_name(request), attempt_number(request)
    folder = attempt_folder(name, attempt)
    record = read_json(os.path.join(folder, "attempt.json"))
    config = dict(request["keeper"], boot_id=boot_id(), attempt=attempt, name=name)
    if not record or str(record.get("id")) != str(config.get("id")):
        raise Refused("attempt {} of {} was not prepared on this node".format(attempt, name))
    if os.path.exists(os.path.join(folder, "result.json")):
        raise Refused("attempt {} of {} has finished".format(attempt, name))
    if record.get("boot_id") != config["boot_id"]:
        raise Refused("the node was rebooted while the job was prepared", "Start it again")
    if supervised([(name, attempt)]):
        return {"unit": unit_name(name, attempt)}
    renew_all(config)
    write_files(os.path.join(folder, "mount"), request.get("files") or {})
    config_folder = os.path.join(folder, "config")
    os.makedirs(config_folder, mode=0o700, exist_ok=True)
    write_files(config_folder, request.get("configs") or {})
    write_json(os.path.join(folder, "attempt.json"), dict(record, **(request.get("record") or {})))
    write_json(os.path.join(folder, "keeper.json"), config)
    try:
        run_supervisor(name, attempt, folder)
    except BaseException:
        if not has_supervisor(folder):
            remove(os.path.join(folder, "keeper.json"))
        raise
    return {"unit": unit_name(name, attempt)}


def copy_programs(folder: str) -> str:
    """Copy the archive of node programs into an attempt, whose supervisor outlives this version; return its path."""
    target = os.path.join(folder, "programs", "node.pyz")
    os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
    archive = os.path.dirname(os.path.dirname(os.path.dirname(provision.node.__file__)))
    shutil.copyfile(archive, target + ".new")
    os.rename(target + ".new", target)
    return target


def write_files(folder: str, files: Mapping[str, str]) -> None:
    """Write files into a folder; their names must not be paths."""
    for item, content in files.items():
        if not FILE.match(item):
            raise Refused("{!r} is not a file name".format(item))
        write_file(os.path.join(folder, item), content, 0o644)


def renew_all(config: Record) -> None:
    """Ensure that an attempt has all its leases; take those again that have expired."""
    owner = {"job": config["name"], "id": config["id"], "attempt": config["attempt"]}
    with LeaseLock():
        leases = all_leases()
        for name in config.get("leases") or ():
            lease = leases.get(name)
            if lease is not None and not belongs_to(lease, config["name"], config["id"], config["attempt"]):
                raise Refused("{} was taken by {} meanwhile".format(name, lease.get("job")))
        for name in config.get("leases") or ():
            if name not in leases:
                write_lease(name, owner, "")


def run_supervisor(name: str, attempt: int, folder: str) -> None:
    """Start the job supervisor as a systemd unit, which outlives the SSH session, and wait until it has begun."""
    unit = unit_name(name, attempt)
    argv = [sys.executable or "/usr/bin/python3", "-I", "-S", copy_programs(folder), "supervisor", folder]
    words = ["systemd-run", "--quiet", "--collect", "--unit", unit, "--description", "provision job " + name]
    words += ["--property=" + setting for setting in UNIT_SETTINGS]
    words += ["--setenv={}={}".format(key, os.environ[key]) for key in FOR_TESTS if os.environ.get(key)]
    code, out, err = program([*words, "--", *argv], 60)
    if code and re.search(r"[Uu]nknown assignment|unrecognized option|[Cc]annot set property", err):
        code, out, err = start_unit_file(unit, argv)
    if code:
        raise Refused("systemd did not start the job supervisor", "systemctl status " + unit, err or out)
    deadline = time.monotonic() + 20
    while not os.path.exists(os.path.join(folder, "state.json")):
        if time.monotonic() > deadline:
            _, out, _ = program(["journalctl", "--no-pager", "-n", "12", "-u", unit], 10)
            output = read_text(os.path.join(folder, "keeper.out")) or out
            raise Refused("the job supervisor did not begin", "systemctl status " + unit, output[-2000:])
        time.sleep(0.02)


UNIT_SETTINGS = (
    "KillMode=process",
    "Restart=on-failure",
    "RestartSec=1",
    "StartLimitIntervalSec=300",
    "StartLimitBurst=20",
    "TimeoutStopSec=120",
    "OOMScoreAdjust=-500",
    "LimitNOFILE=65536",  # the leader has a connection to each node; the usual limit is 1024
    "After=docker.service",  # a shutdown stops Docker after the supervisor has ended its containers
)


def start_unit_file(unit: str, argv: Sequence[str]) -> Tuple[int, str, str]:
    """Start the job supervisor on an old systemd, which does not restart transient units."""
    newer = ("StartLimit", "OOMScoreAdjust", "After")
    lines = ["[Unit]", "Description=provision job", "After=docker.service", "[Service]"]
    lines += [setting for setting in UNIT_SETTINGS if not setting.startswith(newer)]
    lines += ["StartLimitInterval=300", "StartLimitBurst=20", "ExecStart=" + " ".join(argv)]
    write_file(os.path.join(UNIT_FILES, unit), "\n".join(lines) + "\n", 0o644)
    return program(["systemctl", "start", unit], 60)
