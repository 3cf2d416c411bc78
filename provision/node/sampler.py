"""Samples a node for a minute while a job runs on it, and prints the samples as lines of JSON.

It arrives over SSH (`python3 -c`), needs only Python 3.6, changes nothing and leaves nothing. Standard input is one
line of JSON, and stays open: the sampler ends when it closes, or after its window. For example:

    {"seconds": 60, "interval": 1, "containers": [{"id": "64 digits", "pid": 4711, "instance": "job-worker-0",
     "gpus": ["GPU-..."], "log": "/file/on/the/node", "watch": ["/folder/in/the/container"]}]}

Each line has a `kind`: begin, nccl, device, apps, app, mounts, gpu, process, node, note, end; `t` is seconds since the
start. Counters are the kernel's, since boot or since the start of the process; unreadable values are null or missing.
nvidia-smi is started once as a loop, and once for the processes that use GPUs.
"""

import contextlib
import errno
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from typing import IO, Any, Dict, Iterator, List, Optional, Tuple

Record = Dict[str, Any]

FIELDS = {
    "uuid": "uuid",
    "index": "index",
    "name": "name",
    "pci.bus_id": "bus",
    "utilization.gpu": "utilization",
    "memory.used": "memory_used",
    "memory.total": "memory_total",
    "power.draw": "power",
    "power.limit": "power_limit",
    "temperature.gpu": "temperature",
    "clocks_event_reasons.active": "clock_events",
    "pcie.link.gen.current": "pcie_gen",
    "pcie.link.gen.max": "pcie_gen_max",
    "pcie.link.width.current": "pcie_width",
    "pcie.link.width.max": "pcie_width_max",
}
"""Field of nvidia-smi -> our key; MiB, watts, degrees Celsius, per cent."""
OLDER = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}
"""Names of fields in drivers before 535."""
TEXTS = ("uuid", "name", "bus")
REJECTED = re.compile(r'Field "([^"]+)" is not a valid field')
CHECKPOINT = re.compile(r"\.(pt|pth|ckpt|safetensors|bin|distcp|h5)$|^(global_step|checkpoint-)\d+$")
EVENTS = "events.out.tfevents"
SELDOM = 5
"""Threads, folders and mounts are read in every fifth sample."""
MOST_FILES, MOST_PROCESSES, MOST_LOG = 2000, 2000, 1 << 22
MOST_DEPTH = 16
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
CHANNELS = re.compile(rb"NCCL INFO .*(?:via (?:COLL)?NET/|Using network )")
MOST_CHANNELS = 64
CLOCK_WAIT = 15
PSEUDO = {
    "proc",
    "sysfs",
    "cgroup",
    "cgroup2",
    "devpts",
    "mqueue",
    "devtmpfs",
    "securityfs",
    "bpf",
    "tracefs",
    "debugfs",
}
NFS_CALLS = {"READ:", "GETATTR:", "LOOKUP:", "OPEN:", "ACCESS:", "READDIRPLUS:"}
OUTPUT = threading.Lock()


class Gone(Exception):
    """The reader of the output has gone."""


def emit(kind: str, **values: Any) -> None:
    """Print one record."""
    data = (json.dumps({"kind": kind, **values}, separators=(",", ":")) + "\n").encode()
    with OUTPUT:
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            raise Gone from None


def text_of(path: str) -> str:
    """Return a file's text; empty if it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read(1 << 20).decode("utf-8", "replace")
    except OSError:
        return ""


def number(text: str) -> Optional[float]:
    """Return a number; None for other text, such as [N/A]."""
    try:
        return float(int(text, 16)) if text.startswith("0x") else float(text)
    except ValueError:
        return None


class Smi:
    """nvidia-smi as one loop, whose lines become records."""

    def __init__(self, begin: float, interval: float) -> None:
        self.begin, self.interval = begin, interval
        self.fields = list(FIELDS)
        self.child: "Optional[subprocess.Popen[str]]" = None
        self.known: Dict[str, bool] = {}
        self.closing = False

    def run(self) -> None:
        """Start it, and restart it for each field that this driver does not support."""
        with contextlib.suppress(Gone):
            for _ in range(len(FIELDS) + 1):
                rejected = self.once()
                if rejected is None:
                    return
                again = [OLDER[rejected]] if rejected in OLDER else []
                at = self.fields.index(rejected)
                self.fields[at : at + 1] = again

    def once(self) -> Optional[str]:
        """Run until it ends; return the field that it rejects."""
        whole = self.interval >= 1 and self.interval == int(self.interval)
        pause = ["-l", str(int(self.interval))] if whole else ["-lms", str(max(100, int(self.interval * 1000)))]
        argv = ["nvidia-smi", "--query-gpu=" + ",".join(self.fields), "--format=csv,noheader,nounits", *pause]
        try:
            self.child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                universal_newlines=True,
                errors="replace",
            )
        except OSError as error:
            emit("note", text="nvidia-smi: %s" % error.strerror, source="nvidia-smi")
            return None
        if self.closing:
            self.close()
        for line in self.child.stdout or ():
            rejected = REJECTED.search(line)
            if rejected and rejected.group(1) in self.fields:
                self.child.kill()
                self.child.wait()
                return rejected.group(1)
            self.line(line.strip())
        code = self.child.wait()
        if not self.closing:
            emit("note", text="nvidia-smi ended with exit code %d" % code, source="nvidia-smi")
        return None

    def line(self, line: str) -> None:
        """Parse one GPU's line; other output becomes a note."""
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(self.fields):
            if line:
                emit("note", text=line[:300], source="nvidia-smi")
            return
        newer = {old: new for new, old in OLDER.items()}
        values: Record = {}
        for field, cell in zip(self.fields, cells):
            key = FIELDS[newer.get(field, field)]
            values[key] = cell if key in TEXTS else number(cell)
        uuid = str(values["uuid"])
        if uuid not in self.known:
            self.known[uuid] = True
            emit("device", uuid=uuid, index=values["index"], name=values["name"], **place_of(str(values.get("bus"))))
        for key in ("index", "name", "bus"):
            values.pop(key, None)
        emit("gpu", t=round(time.monotonic() - self.begin, 3), **values)

    def close(self) -> None:
        """Kill the process."""
        self.closing = True
        if self.child is not None and self.child.poll() is None:
            self.child.kill()
            self.child.wait()


def place_of(bus: str) -> Record:
    """Return the NUMA node and the nearest CPUs of a PCI device, by the address that nvidia-smi prints."""
    folder = "/sys/bus/pci/devices/" + bus[-12:].lower()
    numa = number(text_of(folder + "/numa_node").strip())
    return {"bus": bus, "numa": numa, "cpus": text_of(folder + "/local_cpulist").strip() or None}


def apps() -> Dict[int, str]:
    """Print the GPU of each process that uses one; return pid -> GPU."""
    argv = ["nvidia-smi", "--query-compute-apps=pid,gpu_uuid,used_memory", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=CLOCK_WAIT,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        emit("note", text="the processes of the GPUs are unknown: %s" % error, source="compute-apps")
        return {}
    users = {}
    if done.returncode:
        emit("note", text="the processes of the GPUs are unknown", source="compute-apps")
        return {}
    emit("apps", known=True)
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 3 and cells[0].isdigit():
            users[int(cells[0])] = cells[1]
            emit("app", pid=int(cells[0]), gpu=cells[1], memory=number(cells[2]), comm=comm_of(int(cells[0])))
    return users


def comm_of(pid: int) -> Optional[str]:
    """Return a process's name."""
    return text_of("/proc/%d/comm" % pid).strip() or None


class Processes:
    """The processes of the job's containers, and those that use GPUs."""

    def __init__(self, containers: List[Record], users: Dict[int, str]) -> None:
        self.instances = {str(c.get("id", "")): str(c.get("instance", "")) for c in containers if c.get("id")}
        self.main = {str(c.get("id", "")): c["pid"] for c in containers if isinstance(c.get("pid"), int)}
        self.users = users
        self.owner: Dict[str, Optional[str]] = {}
        self.first: Dict[str, int] = {}
        """Container -> one of its running processes."""

    def container(self, pid: str, began: str) -> Optional[str]:
        """Return the id of a process's container; it is cached for each process."""
        key = pid + " " + began
        if key not in self.owner:
            cgroup = text_of("/proc/%s/cgroup" % pid)
            self.owner[key] = next((name for name in self.instances if name in cgroup), None)
        return self.owner[key]

    def sample(self, t: float, *, deep: bool) -> None:
        """Print each process; `deep` counts threads too."""
        self.first = {name: pid for name, pid in self.main.items() if os.path.exists("/proc/%d" % pid)}
        shown, up = 0, float((text_of("/proc/uptime").split() or ["0"])[0])
        for pid in os.listdir("/proc"):
            if not pid.isdigit() or shown >= MOST_PROCESSES:
                continue
            name, _, rest = text_of("/proc/%s/stat" % pid).partition("(")[2].rpartition(")")
            words = rest.split()
            if len(words) < 40:
                continue
            container = self.container(pid, words[19])
            if container is None and int(pid) not in self.users:
                continue
            shown += 1
            if container is not None:
                self.first.setdefault(container, int(pid))
            age = round(up - int(words[19]) / os.sysconf("SC_CLK_TCK"), 1)
            emit("process", t=t, pid=int(pid), comm=name, age=age, **self.values(pid, words, container, deep=deep))

    def values(self, pid: str, words: List[str], container: Optional[str], *, deep: bool) -> Record:
        """Return the values of one process in /proc; `words` are those of stat after the name."""
        values: Record = {
            "instance": self.instances.get(container or ""),
            "state": words[0],
            "ppid": int(words[1]),
            "utime": int(words[11]),
            "stime": int(words[12]),
            "blkio": int(words[39]),
        }
        for line in text_of("/proc/%s/io" % pid).splitlines():
            key, _, value = line.partition(": ")
            if key in ("rchar", "syscr", "read_bytes", "write_bytes"):
                values[key] = int(value)
        if deep:
            allowed = re.search(r"^Cpus_allowed_list:\s*(\S+)", text_of("/proc/%s/status" % pid), re.MULTILINE)
            values["cpus"] = allowed.group(1) if allowed else None
            values.update(threads(pid))
        return values


def threads(pid: str) -> Record:
    """Return the names of a process's threads, and how many of them are runnable."""
    names, runnable, count = set(), 0, 0
    folder = "/proc/%s/task" % pid
    with contextlib.suppress(OSError):
        for thread in os.listdir(folder)[:512]:
            name, _, rest = text_of("%s/%s/stat" % (folder, thread)).partition("(")[2].rpartition(")")
            if rest:
                count += 1
                names.add(name)
                runnable += rest.split()[0] == "R"
    return {"threads": sorted(names)[:64], "thread_count": count, "runnable": runnable}


def pressure(name: str) -> Record:
    """Return the microseconds since boot in which some, and all, tasks waited for a resource."""
    totals = {}
    for line in text_of("/proc/pressure/" + name).splitlines():
        total = re.search(r"total=(\d+)", line)
        if total:
            totals["%s_%s_us" % (name, line.split()[0])] = int(total.group(1))
    return totals


def interfaces() -> Dict[str, List[int]]:
    """Return bytes received and sent of each network interface."""
    counters = {}
    for line in text_of("/proc/net/dev").splitlines()[2:]:
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) >= 9 and name.strip() != "lo":
            counters[name.strip()] = [int(words[0]), int(words[8])]
    return counters


def ports() -> Iterator[str]:
    """Yield the RDMA ports as card/ports/number below /sys/class/infiniband."""
    root = "/sys/class/infiniband"
    for card in listed(root):
        for port in listed("%s/%s/ports" % (root, card)):
            yield "%s/ports/%s" % (card, port)


def listed(folder: str) -> List[str]:
    """Return the names in a folder; empty for a missing folder."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def rdma() -> Dict[str, List[int]]:
    """Return bytes received and sent by each RDMA port; its counters count words of four bytes."""
    counters = {}
    for port in ports():
        folder = "/sys/class/infiniband/%s/counters/" % port
        words = [text_of(folder + name).strip() for name in ("port_rcv_data", "port_xmit_data")]
        if all(word.isdigit() for word in words):
            counters[port.replace("/ports/", "/")] = [4 * int(word) for word in words]
    return counters


def speeds() -> Dict[str, float]:
    """Return the line rates, in Gbit/s, of all links that are up."""
    rates = {}
    for name in interfaces():
        rate = number(text_of("/sys/class/net/%s/speed" % name).strip())
        if rate and rate > 0:
            rates[name] = rate / 1000
    for port in ports():
        rate = number(text_of("/sys/class/infiniband/%s/rate" % port).partition(" ")[0])
        if rate:
            rates[port.replace("/ports/", "/")] = rate
    return rates


def throttled(pid: int) -> Optional[int]:
    """Return how often the cgroup of a process exhausted its CPU quota; None without a quota."""
    for line in text_of("/proc/%d/cgroup" % pid).splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3 and (parts[1] == "" or "cpu" in parts[1].split(",")):
            for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/cpu"):
                counter = re.search(r"nr_throttled (\d+)", text_of("%s%s/cpu.stat" % (root, parts[2])))
                if counter:
                    return int(counter.group(1))
    return None


def mounts(pid: int) -> List[List[str]]:
    """Return the mounts of a process: path, type of the file system, source."""
    rows = []
    for line in text_of("/proc/%d/mountinfo" % pid).splitlines():
        left, _, right = line.partition(" - ")
        words, behind = left.split(), right.split()
        if len(words) > 4 and len(behind) > 1 and behind[0] not in PSEUDO:
            rows.append([words[4], behind[0], behind[1]])
    return rows[:200]


def nfs(pid: int) -> Dict[str, List[float]]:
    """Return NFS mount -> number and milliseconds of calls since it was mounted."""
    totals: Dict[str, List[float]] = {}
    mount = ""
    for line in text_of("/proc/%d/mountstats" % pid).splitlines():
        match = re.match(r"device (\S+) mounted on (\S+) with fstype (\S+)", line)
        if match:
            mount = match.group(2) if match.group(3).startswith("nfs") else ""
        words = line.split()
        if (
            mount
            and len(words) >= 8
            and words[0] in ("READ:", "GETATTR:", "LOOKUP:", "OPEN:", "ACCESS:", "READDIRPLUS:")
        ):
            total = totals.setdefault(mount, [0.0, 0.0])
            total[0] += float(words[1])
            total[1] += float(words[7])
    return totals


def opened(pid: int, path: str) -> int:
    """Open a folder in a process's root. Links are not followed: the container's links could lead to the node's files.

    Raises:
        OSError: The folder does not exist, or a part of its path is a link.
    """
    folder = os.open("/proc/%d/root" % pid, FOLDER)
    for name in path.split("/"):
        if name not in ("", "."):
            try:
                if name == "..":
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                below = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            finally:
                os.close(folder)
            folder = below
    return folder


def walk(pid: int, path: str) -> Iterator[Tuple[str, List[str], List[str], int]]:
    """Yield the folders below a folder in a process's root, as os.fwalk does, without following links."""
    with contextlib.suppress(OSError):
        top = opened(pid, path)
        try:
            for folder, folders, files, handle in os.fwalk(".", dir_fd=top):
                yield os.path.normpath(os.path.join(path, folder)), folders, files, handle
        finally:
            os.close(top)


class Container:
    """Samples one container without its processes."""

    def __init__(self, request: Record) -> None:
        self.id, self.instance = str(request.get("id", "")), str(request.get("instance", ""))
        self.watch = [str(path) for path in request.get("watch") or [] if str(path).startswith("/")]
        self.log = str(request.get("log") or "")
        self.log_at: Optional[int] = None
        self.lines = 0
        self.mounts_printed = False

    def sample(self, pid: Optional[int], *, deep: bool) -> Record:
        """Return its shared memory, quota, log and files; without a running process, only the log."""
        sample: Record = {"log_lines": self.count_lines()}
        if pid is None:
            return sample
        sample["throttled"] = throttled(pid)
        with contextlib.suppress(OSError):
            shared = opened(pid, "/dev/shm")  # nosec B108 # of the container
            try:
                space = os.fstatvfs(shared)
            finally:
                os.close(shared)
            size = space.f_blocks * space.f_frsize
            sample["shm"] = [size, size - space.f_bfree * space.f_frsize]
        if deep:
            sample["nfs"] = nfs(pid)
            sample.update(self.files(pid))
        if not self.mounts_printed:
            self.mounts_printed = True
            emit("mounts", instance=self.instance, mounts=mounts(pid))
        return sample

    def print_channels(self) -> None:
        """Print NCCL's lines about its network in the first part of the log, because NCCL writes them at the start."""
        lines: List[str] = []
        with contextlib.suppress(OSError), open(self.log or os.devnull, "rb") as stream:
            for line in stream.read(MOST_LOG).splitlines():
                if len(lines) < MOST_CHANNELS and CHANNELS.search(line[:1000]):
                    lines.append(line[:300].decode("utf-8", "replace"))
        if lines:
            emit("nccl", instance=self.instance, lines=lines)

    def count_lines(self) -> Optional[int]:
        """Return the number of lines added to the log since the start; None without a log."""
        if not self.log:
            return None
        try:
            size = os.stat(self.log).st_size
            if self.log_at is None or size < self.log_at:
                self.log_at = size
            with open(self.log, "rb") as stream:
                stream.seek(self.log_at)
                data = stream.read(MOST_LOG)
        except OSError:
            return None
        self.log_at += len(data)
        self.lines += data.count(b"\n")
        return self.lines

    def files(self, pid: int) -> Record:
        """Return sizes of TensorBoard's files, and times and sizes of checkpoints, in the watched folders."""
        events: Dict[str, int] = {}
        checkpoints: Dict[str, List[float]] = {}
        seen, complete = 0, True
        for path in self.watch:
            for folder, folders, files, handle in walk(pid, path):
                for name in files + [name for name in folders if CHECKPOINT.search(name)]:
                    seen += 1
                    with contextlib.suppress(OSError):
                        status = os.stat(name, dir_fd=handle, follow_symlinks=False)
                        if EVENTS in name:
                            events[os.path.join(folder, name)] = status.st_size
                        elif CHECKPOINT.search(name):
                            checkpoints[os.path.join(folder, name)] = [status.st_mtime, status.st_size]
                if folders and (seen >= MOST_FILES or folder.count("/") - path.count("/") >= MOST_DEPTH):
                    folders[:], complete = [], False
        return {"tfevents": events, "checkpoints": checkpoints, "watched": len(self.watch), "complete": complete}


def node(containers: List[Container], first: Dict[str, int], *, deep: bool) -> Record:
    """Return the sample of the whole node and of each container."""
    running = re.search(r"^procs_running (\d+)", text_of("/proc/stat"), re.MULTILINE)
    return {
        **pressure("cpu"),
        **pressure("io"),
        "running": int(running.group(1)) if running else None,
        "net": interfaces(),
        "ib": rdma(),
        "containers": {c.instance: c.sample(first.get(c.id), deep=deep) for c in containers},
    }


def input_closed(source: IO[bytes], until: float) -> bool:
    """Wait until a moment; return true early if the input closes."""
    while True:
        seconds = until - time.monotonic()
        if seconds <= 0:
            return False
        if select.select([source], [], [], seconds)[0] and not os.read(source.fileno(), 4096):
            return True


def watch(request: Record, source: IO[bytes]) -> None:
    """Sample until the window ends or the input closes."""
    begin = time.monotonic()
    interval = min(60.0, max(0.1, float(request.get("interval") or 1)))
    seconds = min(3600.0, max(interval, float(request.get("seconds") or 60)))
    requested = [item for item in request.get("containers") or [] if isinstance(item, dict)]
    emit(
        "begin",
        time=time.time(),
        interval=interval,
        seconds=seconds,
        cores=os.cpu_count(),
        ticks=os.sysconf("SC_CLK_TCK"),
        speeds=speeds(),
        delayacct=text_of("/proc/sys/kernel/task_delayacct").strip() or None,
        containers=[
            {
                "instance": c.get("instance"),
                "gpus": c.get("gpus") or [],
                "log": bool(c.get("log")),
                "speaks_for_all": bool(c.get("speaks_for_all")),
            }
            for c in requested
        ],
    )
    smi = Smi(begin, interval)
    reader = threading.Thread(target=smi.run, daemon=True)
    late = threading.Timer(seconds + 2 * CLOCK_WAIT, os._exit, [1])  # a driver that hangs blocks its callers
    late.daemon = True
    late.start()
    reason, samples = "window", 0
    try:
        processes = Processes(requested, apps())
        reader.start()
        containers = [Container(item) for item in requested]
        for container in containers:
            container.print_channels()
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            deep = samples % SELDOM == 0
            t = round(time.monotonic() - begin, 3)
            processes.sample(t, deep=deep)
            emit("node", t=t, **node(containers, processes.first, deep=deep))
            samples += 1
            if input_closed(source, start + samples * interval):
                reason = "closed"
                break
    finally:
        smi.close()
    emit("end", t=round(time.monotonic() - begin, 3), samples=samples, reason=reason)


def main() -> None:
    """Execute the request on standard input."""
    source = os.fdopen(0, "rb", buffering=0, closefd=False)
    for ending in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(ending, lambda *_: sys.exit(1))
    line = b""
    while not line.endswith(b"\n"):
        piece = source.readline()
        if not piece:
            break
        line += piece
    try:
        request = json.loads(line or b"{}")
    except ValueError:
        request = None
    if not isinstance(request, dict):
        sys.exit("sampler: standard input must be one line of JSON")
    with contextlib.suppress(Gone):
        watch(request, source)
    os._exit(0)  # do not wait for the thread that reads nvidia-smi
