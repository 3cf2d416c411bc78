"""The request start: the keeper of an attempt becomes a unit of systemd."""

import os
import re
import shutil
import sys
import time

import provision.node
from provision.node.files import Refused, boot_id, program, read_json, read_text, remove, write_file, write_json
from provision.node.jobs.leases import LeaseLock, all_leases, belongs_to, write_lease
from provision.node.jobs.records import FILE, FOR_TESTS, UNIT_FILES, attempt_folder, attempt_number, job_name, unit_name
from provision.node.jobs.supervisors import has_supervisor, supervised


def start(request):
    """Start the keeper of an attempt that was prepared; return once it has read what it is told."""
    name, attempt = job_name(request), attempt_number(request)
    folder = attempt_folder(name, attempt)
    record = read_json(os.path.join(folder, "attempt.json"))
    told = dict(request["keeper"], boot_id=boot_id(), attempt=attempt, name=name)
    if not record or str(record.get("id")) != str(told.get("id")):
        raise Refused("attempt {} of {} was not prepared on this node".format(attempt, name))
    if os.path.exists(os.path.join(folder, "result.json")):
        raise Refused("attempt {} of {} is over".format(attempt, name))
    if record.get("boot_id") != told["boot_id"]:
        raise Refused("the node was rebooted while the job was made ready", "start it again")
    if supervised([(name, attempt)]):
        return {"unit": unit_name(name, attempt)}
    hold_all(told)
    write_files(os.path.join(folder, "mount"), request.get("files") or {}, 0o644)
    for item, files, mode in (("config", request.get("configs") or {}, 0o644),):
        os.makedirs(os.path.join(folder, item), mode=0o700, exist_ok=True)
        write_files(os.path.join(folder, item), files, mode)
    write_json(os.path.join(folder, "attempt.json"), dict(record, **(request.get("record") or {})))
    write_json(os.path.join(folder, "keeper.json"), told)
    try:
        run_keeper(name, attempt, folder)
    except BaseException:
        if not has_supervisor(folder):
            remove(os.path.join(folder, "keeper.json"))
        raise
    return {"unit": unit_name(name, attempt)}


def copy_programs(folder):
    """Copy the archive of our programs into an attempt, whose supervisor outlives the version; return its path."""
    target = os.path.join(folder, "programs", "node.pyz")
    os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
    shutil.copyfile(archive_path(), target + ".new")
    os.rename(target + ".new", target)
    return target


def archive_path():
    """Return the archive that this program runs from."""
    return os.path.dirname(os.path.dirname(os.path.dirname(provision.node.__file__)))


def write_files(folder, files, mode):
    """Write files into a folder; a name is no path."""
    for item, content in files.items():
        if not FILE.match(item):
            raise Refused("{!r} is no name of a file".format(item))
        write_file(os.path.join(folder, item), content, mode)


def hold_all(told):
    """See to it that all leases of an attempt are still its own: one that was given back meanwhile is taken again."""
    request = {"job": told["name"], "id": told["id"], "attempt": told["attempt"]}
    with LeaseLock():
        leases = all_leases()
        for name in told.get("leases") or ():
            held = leases.get(name)
            if held is not None and not belongs_to(held, told["name"], told["id"], told["attempt"]):
                raise Refused("{} was taken by {} meanwhile".format(name, held.get("job")))
        for name in told.get("leases") or ():
            if name not in leases:
                write_lease(name, request, "")


def run_keeper(name, attempt, folder):
    """Start the keeper as a unit of its own, which outlives our SSH session, and wait until it has begun."""
    unit = unit_name(name, attempt)
    argv = [sys.executable or "/usr/bin/python3", "-I", "-S", copy_programs(folder), "supervisor", folder]
    words = ["systemd-run", "--quiet", "--collect", "--unit", unit, "--description", "provision job " + name]
    words += ["--property=" + setting for setting in UNIT_SETTINGS]
    words += ["--setenv={}={}".format(key, os.environ[key]) for key in FOR_TESTS if os.environ.get(key)]
    code, out, err = program([*words, "--", *argv], 60)
    if code and re.search(r"[Uu]nknown assignment|unrecognized option|[Cc]annot set property", err):
        code, out, err = start_unit_file(unit, argv)
    if code:
        raise Refused("systemd did not start the keeper of the job", "systemctl status " + unit, err or out)
    deadline = time.monotonic() + 20
    while not os.path.exists(os.path.join(folder, "state.json")):
        if time.monotonic() > deadline:
            _, out, _ = program(["journalctl", "--no-pager", "-n", "12", "-u", unit], 10)
            said = read_text(os.path.join(folder, "keeper.out")) or out
            raise Refused("the keeper of the job did not begin", "systemctl status " + unit, said[-2000:])
        time.sleep(0.02)


UNIT_SETTINGS = (
    "KillMode=process",
    "Restart=on-failure",
    "RestartSec=1",
    "StartLimitIntervalSec=300",
    "StartLimitBurst=20",
    "TimeoutStopSec=120",
    "OOMScoreAdjust=-500",
    "After=docker.service",  # so that a shutdown lets the keeper end its containers while docker still answers
)


def start_unit_file(unit, argv):
    """Start the keeper where systemd is so old that a transient unit cannot be started anew when it fails."""
    others = ("StartLimit", "OOMScoreAdjust", "After")
    lines = ["[Unit]", "Description=provision job", "After=docker.service", "[Service]"]
    lines += [setting for setting in UNIT_SETTINGS if not setting.startswith(others)]
    lines += ["StartLimitInterval=300", "StartLimitBurst=20", "ExecStart=" + " ".join(argv)]
    write_file(os.path.join(UNIT_FILES, unit), "\n".join(lines) + "\n", 0o644)
    return program(["systemctl", "start", unit], 60)
