"""Detects running jobs on this node from /proc alone, because a GPU tool may hang and docker may be down.

Slurm and a kubelet may be down too: their jobs are detected by processes, and by the kubelet's device records.

Modules of the roles import it as platform_busy. Regular expressions are used for rare cases only, because importing
them takes longer than all the rest.
"""

import os
import pwd
import stat
from typing import Dict, List, Optional, Set, Tuple

PROC = "/proc"
HEXADECIMAL = frozenset("0123456789abcdef")
ENTRYPOINT = "/usr/local/lib/provision/container-entrypoint"
DEVICES = ("/dev/nvidia", "/dev/infiniband/uverbs")
GPU_SERVICES = ("nvidia-persiste", "nv-fabricmanage", "nv-hostengine", "nvidia-imex", "nvidia-smi")
SERVICES = ("docker-init", "tini", "sshd", *GPU_SERVICES)
SLURM_PROGRAM = "slurmstepd"
SLURM = "slurmstepd: ["
SLURM_JOB = r"^([0-9][^].]*)"
SLURM_SCOPE = " infinity"
PODS = "kubepods"
POD = r"kubepods.*?[-/]pod([0-9a-f][0-9a-f_-]{31,35})"
PAUSE = "pause"
KUBELET_ROOT = r"(?:^|\s)--root-dir[= ](\S+)"
KUBELET_FOLDER = "/var/lib/kubelet"
DEVICES_GIVEN = ("device-plugins/kubelet_internal_checkpoint", "dra_manager_state")
POD_LOGS = "/var/log/pods"
LEASES = "/run/provision/leases"
JOB = r'"job":\s*"([a-z0-9][-a-z0-9.]*)"'
VIEWER = r'"instance":\s*("tensorboard")'
KERNEL_THREAD = 0x00200000

Table = Dict[str, Tuple[str, str, str, str, str]]
"""Process number -> name, command line, parent, container id, pod id; ids may be empty."""


def read_proc_file(path: str) -> str:
    """Return a file of /proc as text, empty if the process is gone."""
    try:
        with open(path, "rb") as stream:
            return stream.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _first_group(pattern: str, text: str) -> str:
    """Return the first group of the first match of a regular expression, empty without a match."""
    import re

    match = re.search(pattern, text)
    return match.group(1) if match else ""


def who(pid: str) -> str:
    """Return a process by number, program and account. Arguments are never included: they can contain passwords.

    The process itself chooses the program's name, so it proves nothing.
    """
    try:
        number = os.stat(f"{PROC}/{pid}").st_uid
    except OSError:
        return f"process {pid}"
    try:
        owner = pwd.getpwuid(number).pw_name
    except KeyError:
        owner = f"uid {number}"
    name = "".join(letter if letter.isprintable() else "?" for letter in read_proc_file(f"{PROC}/{pid}/comm"))
    return "process {} ({} of {})".format(pid, name or "unknown program", owner)


def is_nodes_own(pid: str, program: str) -> bool:
    """Return whether a process with the name of a root program can really be one; true if that is unknown.

    Any account, and root in a container, chooses the name and arguments of its processes, but not their account, their
    PID in the node's own namespace, or their executable.
    """
    status = read_proc_file(f"{PROC}/{pid}/status")
    if not status:
        return True
    facts = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    state, users = facts.get("State", "").split(), facts.get("Uid", "").split()
    if state[:1] in (["Z"], ["X"]) or users[:1] != ["0"] or len(facts.get("NSpid", "").split()) > 1:
        return False
    try:
        if os.readlink(f"{PROC}/{pid}/ns/pid") != os.readlink(f"{PROC}/self/ns/pid"):
            return False
        path = os.readlink(f"{PROC}/{pid}/exe").split(" (deleted)")[0]
        if os.stat(f"{PROC}/{pid}/exe").st_mode & stat.S_ISUID:
            return False  # such as sudo, which runs as root before it has asked for a password
    except OSError:
        return True
    return os.path.basename(path).startswith(program)


def _devices(pid: str) -> List[str]:
    """Return the GPU and RDMA devices that a process has open."""
    names: Set[str] = set()
    folder = f"{PROC}/{pid}/fd/"
    try:
        numbers = os.listdir(folder)
    except OSError:
        return []
    for number in numbers:
        try:
            names.update(name for name in _device(os.readlink(folder + number)) if _is_real(folder + number, name))
        except OSError:
            continue
    return sorted(names)


def _is_real(path: str, name: str) -> bool:
    """Return whether an open file is the node's device of that name, rather than a file in a mount namespace."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        return stat.S_ISCHR(status.st_mode) and status.st_rdev == os.stat("/dev/" + name).st_rdev
    except FileNotFoundError:
        return stat.S_ISCHR(status.st_mode)  # it has been removed from the node since then


def _device(path: str) -> List[str]:
    """Return a list with the path below /dev of a GPU or RDMA device; empty for other paths."""
    return [path[5:] for begin in DEVICES if path.startswith(begin) and path[len(begin) :].isdecimal()]


def processes() -> Table:
    """Return all processes except kernel threads."""
    table: Table = {}
    for pid in os.listdir(PROC):
        name, _, rest = (
            read_proc_file(f"{PROC}/{pid}/stat").partition("(")[2].rpartition(")") if pid.isdigit() else ("", "", "")
        )
        words = rest.split()  # state, parent, group, session, terminal, its group, flags
        if not words or int(words[6]) & KERNEL_THREAD:
            continue
        cgroup = read_proc_file(f"{PROC}/{pid}/cgroup")
        pod = _first_group(POD, cgroup).replace("_", "-") if PODS in cgroup else ""
        table[pid] = (name, read_proc_file(f"{PROC}/{pid}/cmdline"), words[1], _container(cgroup), pod)
    return table


def _container(cgroup: str) -> str:
    """Return the id of the Docker container of a cgroup, empty if it has none."""
    for part in cgroup.split("docker")[1:]:
        if len(part) > 64 and part[0] in "-/" and HEXADECIMAL.issuperset(part[1:65]):
            return part[1:65]
    return ""


def _slurm(table: Table) -> List[str]:
    """Return a sentence for each Slurm job: every running step has a slurmstepd with the job in its title."""
    jobs: Dict[str, str] = {}
    for pid in sorted(table, key=int):
        name, command = table[pid][:2]
        if not (command.startswith(SLURM) or name == SLURM_PROGRAM) or not is_nodes_own(pid, SLURM_PROGRAM):
            continue
        job = _first_group(SLURM_JOB, command[len(SLURM) :]) if command.startswith(SLURM) else ""
        if job:
            jobs.setdefault(job, f"Slurm job {job} (slurmstepd pid {pid}) runs here")
        elif name == SLURM_PROGRAM and not command.endswith(SLURM_SCOPE):
            jobs.setdefault("", f"a Slurm job (slurmstepd pid {pid}) begins here")
    return list(jobs.values())


def _pods(table: Table) -> List[str]:
    """Return a sentence for each pod with devices (GPUs, RDMA) from a kubelet and with more than its sandbox process.

    Pods without devices are not jobs: most of them are system pods, which run on every node all the time. If the pods
    with devices are unknown, each pod counts.
    """
    pods: Dict[str, str] = {}
    for pid in sorted(table, key=int):
        if table[pid][4] and table[pid][0] != PAUSE:
            pods.setdefault(table[pid][4], pid)
    given = _device_records(table) if pods else ""
    if given is None:
        return ["Kubernetes pods run here, and their devices are unknown: no kubelet's folder can be read"]
    return [
        f"Kubernetes pod {_pod(pod)}, which has devices of this node, runs here: {who(pid)}"
        for pod, pid in pods.items()
        if pod in given
    ]


def _device_records(table: Table) -> Optional[str]:
    """Return the kubelets' records of devices and pods; None if none of their folders can be read."""
    kubelets = [row[1] for pid, row in table.items() if "kubelet" in row[1] and is_nodes_own(pid, "")]
    roots = [_first_group(KUBELET_ROOT, command) for command in kubelets]
    folders = set(filter(None, roots)) or {KUBELET_FOLDER}
    texts = []
    for path in (os.path.join(folder, name) for folder in folders for name in DEVICES_GIVEN):
        try:
            with open(path, encoding="utf-8", errors="replace") as stream:
                texts.append(stream.read())
        except FileNotFoundError:
            continue  # no device was ever assigned
        except OSError:
            return None
    return "".join(texts) if any(map(os.path.isdir, folders)) else None


def _pod(pod: str) -> str:
    """Return a pod's namespace and name from its log folder, else its id."""
    try:
        folders = os.listdir(POD_LOGS)
    except OSError:
        folders = []
    names = [folder.split("_") for folder in folders if folder.endswith("_" + pod)]
    return "/".join(names[0][:2]) if names else pod


def running_jobs(table: Optional[Table] = None) -> List[str]:
    """Return a sentence for each job and each process of one, at most five; empty if the node is idle.

    `table` is the result of `processes`, if it was called before.
    """
    table = table or processes()
    return [job for detector in DETECTORS for job in detector(table)][:5]


def _holders(table: Table) -> List[str]:
    """Return a sentence for each process with an open GPU or RDMA device, or in the training container."""
    jobs = []
    training = {row[3] for row in table.values() if row[3] and ENTRYPOINT in row[1]}
    for pid, (name, command, parent, container, _) in sorted(table.items(), key=lambda item: int(item[0])):
        if name in SERVICES or ENTRYPOINT in command:
            continue
        devices = _devices(pid)
        if devices:
            jobs.append(f"{who(pid)} holds /dev/{devices[0]}")
        elif container in training and container and ENTRYPOINT not in table.get(parent, ("", ""))[1]:
            jobs.append(f"{who(pid)} runs in the training container")
    return jobs


def _leases(_table: Table) -> List[str]:
    """Return a sentence for each batch job with a lease of GPUs or ports; an unreadable lease counts too."""
    try:
        names = sorted(os.listdir(LEASES))
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"the leases of jobs in {LEASES} cannot be read: {error.strerror}"]
    jobs: Dict[str, str] = {}
    for name in names:
        try:
            with open(os.path.join(LEASES, name), encoding="utf-8", errors="replace") as stream:
                text = stream.read()
        except FileNotFoundError:
            continue  # released just now
        except OSError:
            text = ""
        if not name.endswith(".new") and not _first_group(VIEWER, text):
            jobs.setdefault(_first_group(JOB, text), name)
    return [f"job {job or 'of unknown name'} holds {lease} of this node" for job, lease in sorted(jobs.items())]


DETECTORS = (_slurm, _pods, _leases, _holders)
"""Each function receives the processes and returns jobs; add detection of other job systems here."""
