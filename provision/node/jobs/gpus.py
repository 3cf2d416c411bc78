"""The GPUs of this node, and the processes on them that are of no job."""

import os
import re
import time

from provision.node.docker import labels_of
from provision.node.files import PROC, read_text, result_of
from provision.node.jobs.leases import all_leases, belongs_to
from provision.node.jobs.units import UNIT

SMI_SECONDS = 20
RUNS = re.compile(r"[0-9a-f]{64}|" + UNIT.pattern)
"""Containers and units of jobs, in what the kernel says of a process's control group."""


class Gpus:
    """The node's GPUs and who uses them; its programs run beside what is asked between `__init__` and `answer`."""

    def __init__(self):
        self.deadline = time.monotonic() + SMI_SECONDS
        self.children = {}
        if not any(os.access(os.path.join(folder, "nvidia-smi"), os.X_OK) for folder in os.get_exec_path()):
            return
        import subprocess

        form = "--format=csv,noheader,nounits"
        wanted = {
            "gpus": ["--query-gpu=index,uuid,name,memory.total", form],
            "uses": ["--query-compute-apps=gpu_uuid,pid", form],
        }
        if has_mig():
            wanted["list"] = ["-L"]
        for title, words in wanted.items():
            self.children[title] = subprocess.Popen(
                ["nvidia-smi", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=dict(os.environ, LC_ALL="C"),
            )

    def answer(self, containers):
        """Return ``gpus`` (None when they are not known), ``gpu_error`` and ``foreign``."""
        said = {title: result_of(child, "nvidia-smi", self.deadline) for title, child in self.children.items()}
        if not said:
            error = "the driver is loaded, but there is no nvidia-smi" if has_driver() else ""
            return {"gpus": None if error else [], "gpu_error": error, "foreign": {}}
        for code, out, err in said.values():
            if code and "No devices were found" in out + err:
                return {"gpus": [], "gpu_error": "", "foreign": {}}
            if code:
                return {
                    "gpus": None,
                    "gpu_error": (err or out.strip() or "nvidia-smi: exit {}".format(code))[-400:],
                    "foreign": {},
                }
        gpus = gpu_rows(said["gpus"][1])
        for gpu in gpus:
            gpu["mig"] = mig_of(said.get("list", (0, "", ""))[1], gpu["uuid"])
        ours = {item["Id"]: labels_of(item) for item in containers or () if isinstance(item.get("Id"), str)}
        return {"gpus": gpus, "gpu_error": "", "foreign": foreign_uses(said["uses"][1], gpus, ours)}


def has_driver():
    """Return whether NVIDIA's kernel module is loaded."""
    return os.path.exists(PROC + "/driver/nvidia/version")


def has_mig():
    """Return whether a GPU of the node is cut into instances."""
    import glob

    return bool(glob.glob(PROC + "/driver/nvidia/capabilities/gpu*/mig/gi*"))


def gpu_rows(text):
    """Return the GPUs that nvidia-smi lists; memory in MiB."""
    found = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) >= 4 and words[0].isdigit():
            memory = int(words[-1]) if words[-1].isdigit() else 0
            name = ", ".join(words[2:-1])
            found.append({"index": int(words[0]), "uuid": words[1], "name": name, "memory": memory, "mig": []})
    return found


def mig_of(text, uuid):
    """Return the UUIDs of a GPU's MIG instances in what ``nvidia-smi -L`` prints."""
    found, inside = [], False
    for line in text.splitlines():
        if line.startswith("GPU "):
            inside = uuid in line
        elif inside:
            found += re.findall(r"UUID: (MIG-[^)\s]+)\)", line)
    return found


def foreign_uses(text, gpus, ours):
    """Return UUID -> a process on it that is not in a container or unit of the attempt that has a lease of it.

    A process is told with its GPU alone, so that one on an instance of MIG speaks for all instances of that GPU.

    Args:
        text: GPU and process of each line, as nvidia-smi tells them.
        gpus: as `gpu_rows` returns them.
        ours: container -> (job, id, attempt) of those of jobs.
    """
    parts = {gpu["uuid"]: [gpu["uuid"], *gpu["mig"]] for gpu in gpus}
    found, leases = {}, all_leases()
    for line in text.splitlines():
        uuid, _, pid = (word.strip() for word in line.partition(","))
        if not pid.isdigit() or not os.path.isdir("{}/{}".format(PROC, pid)):
            continue
        inside = RUNS.findall(read_text("{}/{}/cgroup".format(PROC, pid)))
        users = [ours[container] for container in inside if container in ours]
        family = parts.get(uuid, [uuid])
        if not any(part in leases and belongs_to(leases[part], *user) for part in family for user in users):
            for part in family:
                found.setdefault(part, who(pid))
    return found


def who(pid):
    """Return a process by program, number and account; never its arguments, which can hold passwords."""
    import pwd

    try:
        owner = os.stat("{}/{}".format(PROC, pid)).st_uid
        try:
            owner = pwd.getpwuid(owner).pw_name
        except KeyError:
            owner = "uid {}".format(owner)
    except OSError:
        owner = "unknown"
    comm = read_text("{}/{}/comm".format(PROC, pid)).strip() or "unknown program"
    return "{} (pid {} of {})".format(comm, pid, owner)
