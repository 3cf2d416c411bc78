"""Reads the state of Slurm on this node: version, what slurmd counts, GPUs, key, and the nodes as slurmctld sees them.

The probe uses it, and modules of the role `slurm` import it as slurm_probe. It needs Python 3.6 or newer and the
standard library only. It writes nothing, and reports only a hash of the key.
"""

import glob
import hashlib
import json
import os
import re
import subprocess
from typing import Any, Dict, List, Optional, Sequence, Tuple

KEY = "/etc/munge/munge.key"
CONFIGURATION = "/etc/slurm/slurm.conf"
STATE = "/etc/provision/slurm.json"
"""What the role knows: on a node its name, on a controller also the recorded nodes."""
DRIVER = "/proc/driver/nvidia/gpus"
SIMULATED = "/usr/share/provision/simulated/gpus"
PCI = "/sys/bus/pci/devices"
CPUS = "/sys/devices/system/cpu"
MOST_BYTES = 1 << 24
SECONDS = 10
VERSIONS = (("slurmd", "-V"), ("slurmctld", "-V"), ("scontrol", "--version"))
"""Without a configuration, scontrol does not even print its version."""
FIELDS = ("node", "state", "gres", "user", "state_cause")
FORMAT = "%N|%T|%G|%u|%E"
"""Explicit fields of sinfo; the reason may contain anything, and is the last one."""
CLUSTERS = ("sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=cluster")
COUNTS = {
    "sockets": "SocketsPerBoard",
    "cores": "CoresPerSocket",
    "threads": "ThreadsPerCore",
    "memory": "RealMemory",
    "boards": "Boards",
}


def slurm_state() -> Dict[str, Any]:
    """Return the state of Slurm, with empty values for what is not there."""
    version = next(filter(None, map(version_of, VERSIONS)), "")
    state: Dict[str, Any] = {"version": version, "node": "", "layout": None, "key": "", "recorded": None}
    if not version:
        return state
    recorded = read_state()
    state["node"] = str(recorded.get("node") or os.uname().nodename.split(".")[0])
    state["recorded"] = recorded.get("nodes") if isinstance(recorded.get("nodes"), dict) else None
    state.update(record_of(recorded))
    state["layout"] = layout()
    state["key"] = key_hash()
    state.update(answers(state["node"], is_controller=state["recorded"] is not None))
    return state


def record_of(document: Dict[str, Any]) -> Dict[str, Any]:
    """Return what the role recorded of controllers, and on a controller of partitions, state folder and accounting."""
    controllers = [str(one.get("name")) for one in document.get("controllers") or () if isinstance(one, dict)]
    partitions = [str(name) for name in document.get("partitions") or ()]
    return {
        "controllers": controllers,
        "state_folder": str(document.get("state_folder") or ""),
        "partitions": partitions,
        "busy_partitions": busy_partitions() if partitions else [],
        "accounting": accounting(str(document.get("cluster"))) if document.get("accounting") == "slurmdbd" else None,
    }


def accounting(cluster: str) -> Dict[str, Any]:
    """Return why slurmdbd does not answer (empty if it answers), and whether it knows the cluster."""
    code, out, err = run(CLUSTERS)
    problem = "" if code == 0 else (err.strip().splitlines() or ["sacctmgr: exit status {}".format(code)])[-1]
    return {"problem": problem, "is_registered": cluster in out.split()}


def busy_partitions() -> Optional[List[str]]:
    """Return the partitions with pending or running jobs; None if slurmctld does not answer."""
    code, out, _ = run(["squeue", "--noheader", "--all", "--format", "%P"])
    return sorted({name for line in out.split() for name in line.split(",") if name}) if code == 0 else None


def answers(node: str, *, is_controller: bool) -> Dict[str, Any]:
    """Return what slurmctld answers; on a controller about all nodes, elsewhere about this one."""
    command = ["sinfo", "--noheader", "--all", "--Node", "--format", FORMAT]
    code, out, err = run(command if is_controller else [*command, "--nodes", node])
    nodes: Dict[str, Dict[str, str]] = {}
    for line in out.splitlines():
        words = line.split("|", len(FIELDS) - 1)
        if len(words) == len(FIELDS):
            nodes[words[0]] = {name: words[place] for place, name in enumerate(FIELDS) if place}
    problem = "" if code == 0 else (err.strip().splitlines() or ["sinfo: exit status {}".format(code)])[-1]
    return {"problem": problem, "nodes": nodes, "devices": constrains_devices() if code == 0 else None}


def constrains_devices() -> Optional[bool]:
    """Return whether jobs can use only the devices that Slurm gave them; None if it is unknown."""
    code, out, _ = run(["scontrol", "show", "config"])
    match = re.search(r"^ConstrainDevices\s*=\s*(\S+)", out, re.MULTILINE)
    return match.group(1).lower() == "yes" if code == 0 and match else None


def version_of(command: Sequence[str]) -> str:
    """Return the version that a program of Slurm prints, empty if it is not installed."""
    code, out, _ = run(command)
    words = out.split()
    return words[-1] if code == 0 and words else ""


def layout() -> Optional[Dict[str, Any]]:
    """Return sockets, cores, threads and memory as slurmd counts them, and the GPUs; None without slurmd."""
    code, out, _ = run(["slurmd", "-C"])
    pairs = dict(word.split("=", 1) for word in out.split() if "=" in word)
    values = {name: pairs.get(key, "") for name, key in COUNTS.items()}
    if code != 0 or not all(value.isdigit() for value in values.values()):
        return None
    counts: Dict[str, Any] = {name: int(value) for name, value in values.items()}
    counts["sockets"] *= counts.pop("boards")
    counts["hostname"] = os.uname().nodename.split(".")[0]
    counts["gpus"] = gpus(counts["sockets"])
    return counts


def gpus(sockets: int) -> List[Dict[str, Any]]:
    """Return the GPUs by minor number, each with its model and the socket beside it (None if it is unknown)."""
    places = socket_places()
    known = {address: place for address, place in places.items() if len(set(places.values())) == sockets}
    entries = [
        {"minor": minor, "model": model, "socket": socket_of(address, known)} for minor, model, address in devices()
    ]
    return sorted(entries, key=lambda gpu: int(gpu["minor"]))


def devices() -> List[Tuple[int, str, str]]:
    """Return minor number, model and PCI address of each GPU of the driver."""
    rows = []
    for path in glob.glob(DRIVER + "/*/information"):
        pairs = dict(re.findall(r"^([A-Za-z ]+):[ \t]*(.*)$", text(path), re.MULTILINE))
        if pairs.get("Device Minor", "").strip().isdigit():
            minor = int(pairs["Device Minor"])
            rows.append((minor, pairs.get("Model", "").strip(), os.path.basename(os.path.dirname(path))))
    if rows or not os.path.exists(SIMULATED):
        return rows
    _, out, _ = run(["nvidia-smi", "--query-gpu=minor_number,name,pci.bus_id", "--format=csv,noheader"])
    for line in out.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 3 and words[0].isdigit():
            rows.append((int(words[0]), words[1], words[2].lower()[-12:]))
    return rows


def socket_places() -> Dict[int, int]:
    """Return CPU -> index of its socket; sockets are counted by their first CPU, as slurmd does."""
    packages: Dict[int, str] = {}
    for path in glob.glob(CPUS + "/cpu[0-9]*/topology/physical_package_id"):
        packages[int(path.split("/")[-3][3:])] = text(path).strip()
    order: Dict[str, int] = {}
    for cpu in sorted(packages):
        order.setdefault(packages[cpu], len(order))
    return {cpu: order[package] for cpu, package in packages.items()}


def socket_of(address: str, places: Dict[int, int]) -> Optional[int]:
    """Return the only socket beside a PCI device, None if there is no such socket."""
    beside = {places.get(cpu) for cpu in cpu_list(text(os.path.join(PCI, address, "local_cpulist")))}
    return beside.pop() if len(beside) == 1 else None


def cpu_list(words: str) -> List[int]:
    """Return the CPUs of a list such as ``0-3,8``."""
    cpus: List[int] = []
    for part in words.strip().split(",") if words.strip() else ():
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


def key_hash() -> str:
    """Return a hash of munge's key; the key is long and random, so the hash reveals nothing."""
    try:
        with open(KEY, "rb") as stream:
            return hashlib.sha256(b"munge" + stream.read(MOST_BYTES)).hexdigest()
    except OSError:
        return ""


def read_state() -> Dict[str, Any]:
    """Return what the role recorded, empty without the role or if it cannot be read."""
    try:
        document = json.loads(text(STATE) or "{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def text(path: str) -> str:
    """Return a file's text, empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(MOST_BYTES)
    except OSError:
        return ""


def run(command: Sequence[str]) -> Tuple[int, str, str]:
    """Return exit status, output and error output of a program; 127 if it does not exist, 124 if it hung."""
    environment = dict(os.environ, LC_ALL="C")
    environment["PATH"] = "{}:/usr/sbin:/sbin".format(environment.get("PATH") or "/usr/bin:/bin")
    try:
        with subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                return 124, "", "{}: no end within {} s".format(command[0], SECONDS)
            return process.returncode, out, err
    except OSError as problem:
        return 127, "", str(problem)
