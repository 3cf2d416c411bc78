"""The GPUs of this node, and the processes on them that belong to no job."""

import os
import re
import time
from typing import TYPE_CHECKING, Dict, Iterable, List, NamedTuple, Optional

from provision.node.docker import AttemptKey, labels_of
from provision.node.files import PROC, Record, read_text, result_of
from provision.node.jobs.leases import all_leases, belongs_to
from provision.node.jobs.units import UNIT

if TYPE_CHECKING:
    import subprocess

SMI_SECONDS = 20
RUNS = re.compile(r"[0-9a-f]{64}|" + UNIT.pattern)
"""Containers and units of jobs in /proc/PID/cgroup."""


class GpuState(NamedTuple):
    """What `nvidia-smi` reports."""

    gpus: Optional[List[Record]]
    """None if the GPUs are unknown."""
    gpu_error: str
    foreign: Dict[str, str]
    """UUID -> the process on it that belongs to no job."""


class Gpus:
    """The GPUs of the node; `nvidia-smi` runs in the background between `__init__` and `state`."""

    def __init__(self) -> None:
        self.deadline = time.monotonic() + SMI_SECONDS
        self.children: "Dict[str, subprocess.Popen[bytes]]" = {}
        if not any(os.access(os.path.join(folder, "nvidia-smi"), os.X_OK) for folder in os.get_exec_path()):
            return
        import subprocess

        form = "--format=csv,noheader,nounits"
        queries = {
            "gpus": ["--query-gpu=index,uuid,name,memory.total", form],
            "uses": ["--query-compute-apps=gpu_uuid,pid", form],
        }
        if has_mig():
            queries["list"] = ["-L"]
        for title, words in queries.items():
            self.children[title] = subprocess.Popen(
                ["nvidia-smi", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=dict(os.environ, LC_ALL="C"),
            )

    def state(self, containers: Optional[Iterable[Record]]) -> GpuState:
        """Wait for `nvidia-smi` and return the state of the GPUs."""
        results = {title: result_of(child, "nvidia-smi", self.deadline) for title, child in self.children.items()}
        if not results:
            error = "the driver is loaded, but there is no nvidia-smi" if has_driver() else ""
            return GpuState(None if error else [], error, {})
        for code, out, err in results.values():
            if code and "No devices were found" in out + err:
                return GpuState([], "", {})
            if code:
                return GpuState(None, (err or out.strip() or "nvidia-smi: exit {}".format(code))[-400:], {})
        gpus = gpu_rows(results["gpus"][1])
        for gpu in gpus:
            gpu["mig"] = mig_of(results.get("list", (0, "", ""))[1], gpu["uuid"])
        owners = {item["Id"]: labels_of(item) for item in containers or () if isinstance(item.get("Id"), str)}
        return GpuState(gpus, "", foreign_uses(results["uses"][1], gpus, owners))


def has_driver() -> bool:
    """Return whether NVIDIA's kernel module is loaded."""
    return os.path.exists(PROC + "/driver/nvidia/version")


def has_mig() -> bool:
    """Return whether a GPU of the node has MIG instances."""
    import glob

    return bool(glob.glob(PROC + "/driver/nvidia/capabilities/gpu*/mig/gi*"))


def gpu_rows(text: str) -> List[Record]:
    """Return the GPUs that `nvidia-smi` lists, with their memory in MiB."""
    gpus: List[Record] = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) >= 4 and words[0].isdigit():
            memory = int(words[-1]) if words[-1].isdigit() else 0
            name = ", ".join(words[2:-1])
            gpus.append({"index": int(words[0]), "uuid": words[1], "name": name, "memory": memory, "mig": []})
    return gpus


def mig_of(text: str, uuid: str) -> List[str]:
    """Return the UUIDs of a GPU's MIG instances in the output of ``nvidia-smi -L``."""
    instances: List[str] = []
    inside = False
    for line in text.splitlines():
        if line.startswith("GPU "):
            inside = uuid in line
        elif inside:
            instances += re.findall(r"UUID: (MIG-[^)\s]+)\)", line)
    return instances


def foreign_uses(text: str, gpus: Iterable[Record], owners: Dict[str, AttemptKey]) -> Dict[str, str]:
    """Return by UUID a process that is in no container or unit of the attempt with a lease of the GPU.

    `nvidia-smi` reports only the GPU of a process, so a process on a MIG instance counts for all instances of its GPU.
    """
    families = {gpu["uuid"]: [gpu["uuid"], *gpu["mig"]] for gpu in gpus}
    foreign: Dict[str, str] = {}
    leases = all_leases()
    for line in text.splitlines():
        uuid, _, pid = (word.strip() for word in line.partition(","))
        if not pid.isdigit() or not os.path.isdir("{}/{}".format(PROC, pid)):
            continue
        runs = RUNS.findall(read_text("{}/{}/cgroup".format(PROC, pid)))
        attempts = [owners[run] for run in runs if run in owners]
        family = families.get(uuid, [uuid])
        if not any(one in leases and belongs_to(leases[one], *attempt) for one in family for attempt in attempts):
            for one in family:
                foreign.setdefault(one, describe_process(pid))
    return foreign


def describe_process(pid: str) -> str:
    """Return program, process ID and account; never the arguments, which can contain passwords."""
    import pwd

    try:
        uid = os.stat("{}/{}".format(PROC, pid)).st_uid
        try:
            owner = pwd.getpwuid(uid).pw_name
        except KeyError:
            owner = "uid {}".format(uid)
    except OSError:
        owner = "unknown"
    comm = read_text("{}/{}/comm".format(PROC, pid)).strip() or "unknown program"
    return "{} (pid {} of {})".format(comm, pid, owner)
