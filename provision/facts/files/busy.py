"""Is a job running on this node? Answered from /proc alone: a GPU tool may hang, and docker may be down.

Modules of the roles import it as platform_busy, and the probe sends its text: Python 3.6 or newer, and nothing else.
"""

import os
import pwd
import re

CONTAINER = re.compile(r"docker[-/]([0-9a-f]{64})")
ENTRYPOINT = "/usr/local/lib/provision/container-entrypoint"
DEVICES = re.compile(r"^/dev/(nvidia\d+|infiniband/uverbs\d+)$")
SERVICES = ("docker-init", "tini", "sshd", "nvidia-persiste", "nv-fabricmanage", "nvidia-smi")
KERNEL_THREAD = 0x00200000
PROC = "/proc"


def _read(path):
    """Return a file of /proc as text, empty when the process is gone."""
    try:
        with open(path, "rb") as stream:
            return stream.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def who(pid):
    """Return a process by number, program and account. Never its arguments: they can hold passwords."""
    try:
        number = os.stat(f"{PROC}/{pid}").st_uid
    except OSError:
        return f"process {pid}"
    try:
        owner = pwd.getpwuid(number).pw_name
    except KeyError:
        owner = f"uid {number}"
    return "process {} ({} of {})".format(pid, _read(f"{PROC}/{pid}/comm") or "unknown program", owner)


def _devices(pid):
    """Return the GPU and RDMA devices that a process holds open."""
    held, folder = set(), f"{PROC}/{pid}/fd/"
    try:
        numbers = os.listdir(folder)
    except OSError:
        return []
    for number in numbers:
        try:
            held.update(DEVICES.findall(os.readlink(folder + number)))
        except OSError:
            continue
    return sorted(held)


def processes():
    """Return pid -> (name, command line, parent's pid, container id or empty), without the kernel's own threads."""
    table = {}
    for pid in os.listdir(PROC):
        name, _, rest = _read(f"{PROC}/{pid}/stat").partition("(")[2].rpartition(")") if pid.isdigit() else ("", "", "")
        words = rest.split()  # state, parent, group, session, terminal, its group, flags
        if not words or int(words[6]) & KERNEL_THREAD:
            continue
        container = CONTAINER.search(_read(f"{PROC}/{pid}/cgroup"))
        table[pid] = (name, _read(f"{PROC}/{pid}/cmdline"), words[1], container.group(1) if container else "")
    return table


def running_jobs(table=None):
    """Return a sentence for each process that is part of a job, at most five; empty when the node is idle.

    `table` is what `processes` has found, where it was asked before.
    """
    table, jobs = table or processes(), []
    training = {container for _, command, _, container in table.values() if container and ENTRYPOINT in command}
    for pid, (name, command, parent, container) in sorted(table.items(), key=lambda item: int(item[0])):
        if name in SERVICES or ENTRYPOINT in command:
            continue
        devices = _devices(pid)
        if devices:
            jobs.append(f"{who(pid)} holds /dev/{devices[0]}")
        elif container in training and container and ENTRYPOINT not in table.get(parent, ("", "", "", ""))[1]:
            jobs.append(f"{who(pid)} runs in the training container")
    return jobs[:5]
