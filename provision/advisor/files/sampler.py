"""Looks at a node for a minute while a job runs on it, and prints what it sees as lines of JSON.

It arrives over SSH (`python3 -c`), needs Python 3.8 and nothing else, changes nothing and leaves nothing. Standard
input is one line of JSON, and stays open: when it closes, the sampler ends, as it does after its window. For example:

    {"seconds": 60, "interval": 1, "containers": [{"id": "64 digits", "pid": 4711, "instance": "job-worker-0",
     "gpus": ["GPU-..."], "log": "/file/on/the/node", "watch": ["/folder/in/the/container"]}]}

Each line has a `kind`: begin, nccl, device, apps, app, mounts, gpu, process, node, note, end; `t` is seconds since
the begin. Counters are as the kernel has them, since boot or since the process began; what cannot be read is null or
missing. nvidia-smi is started once as a loop, and once for the processes that use GPUs.
"""

from __future__ import annotations

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
"""What nvidia-smi is asked -> our key; MiB, watts, degrees Celsius, per cent."""
OLDER = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}
"""What drivers before 535 call it."""
TEXTS = ("uuid", "name", "bus")
REFUSED = re.compile(r'Field "([^"]+)" is not a valid field')
CHECKPOINT = re.compile(r"\.(pt|pth|ckpt|safetensors|bin|distcp|h5)$|^(global_step|checkpoint-)\d+$")
EVENTS = "events.out.tfevents"
SELDOM = 5
"""Threads, folders and mounts are looked at in every fifth sample."""
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
    """Nobody reads what we print any more."""


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
    """Return a file's text; empty where there is none, or no right to it."""
    try:
        with open(path, "rb") as stream:
            return stream.read(1 << 20).decode("utf-8", "replace")
    except OSError:
        return ""


def number(text: str) -> Optional[float]:
    """Return a number; None for what is none, such as [N/A]."""
    try:
        return float(int(text, 16)) if text.startswith("0x") else float(text)
    except ValueError:
        return None


class Smi:
    """nvidia-smi as one loop, whose lines become records as they come."""

    def __init__(self, begin: float, interval: float) -> None:
        self.begin, self.interval = begin, interval
        self.fields = list(FIELDS)
        self.child: Optional[subprocess.Popen[str]] = None
        self.known: Dict[str, bool] = {}
        self.closing = False

    def run(self) -> None:
        """Start it, and once more for each field that this driver does not know."""
        with contextlib.suppress(Gone):
            for _ in range(len(FIELDS) + 1):
                refused = self.once()
                if refused is None:
                    return
                again = [OLDER[refused]] if refused in OLDER else []
                at = self.fields.index(refused)
                self.fields[at : at + 1] = again

    def once(self) -> Optional[str]:
        """Run until it ends; return the field that it refuses."""
        whole = self.interval >= 1 and self.interval == int(self.interval)
        pause = ["-l", str(int(self.interval))] if whole else ["-lms", str(max(100, int(self.interval * 1000)))]
        argv = ["nvidia-smi", "--query-gpu=" + ",".join(self.fields), "--format=csv,noheader,nounits", *pause]
        try:
            self.child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            emit("note", text="nvidia-smi: %s" % error.strerror, source="nvidia-smi")
            return None
        if self.closing:
            self.close()
        for line in self.child.stdout or ():
            refused = REFUSED.search(line)
            if refused and refused.group(1) in self.fields:
                self.child.kill()
                self.child.wait()
                return refused.group(1)
            self.line(line.strip())
        code = self.child.wait()
        if not self.closing:
            emit("note", text="nvidia-smi ended with exit code %d" % code, source="nvidia-smi")
        return None

    def line(self, line: str) -> None:
        """Take one GPU's line; anything else it says is passed on as a note."""
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(self.fields):
            if line:
                emit("note", text=line[:300], source="nvidia-smi")
            return
        newer = {old: new for new, old in OLDER.items()}
        found: Record = {}
        for field, cell in zip(self.fields, cells):
            key = FIELDS[newer.get(field, field)]
            found[key] = cell if key in TEXTS else number(cell)
        uuid = str(found["uuid"])
        if uuid not in self.known:
            self.known[uuid] = True
            emit("device", uuid=uuid, index=found["index"], name=found["name"], **place_of(str(found.get("bus"))))
        for key in ("index", "name", "bus"):
            found.pop(key, None)
        emit("gpu", t=round(time.monotonic() - self.begin, 3), **found)

    def close(self) -> None:
        """End it."""
        self.closing = True
        if self.child is not None and self.child.poll() is None:
            self.child.kill()
            self.child.wait()


def place_of(bus: str) -> Record:
    """Return the NUMA node and the near CPUs of a PCI device, by the address that nvidia-smi prints."""
    folder = "/sys/bus/pci/devices/" + bus[-12:].lower()
    numa = number(text_of(folder + "/numa_node").strip())
    return {"bus": bus, "numa": numa, "cpus": text_of(folder + "/local_cpulist").strip() or None}


def apps() -> Dict[int, str]:
    """Tell which processes use which GPU; return their pids."""
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
        emit("note", text="the processes of the GPUs are not known: %s" % error, source="compute-apps")
        return {}
    found = {}
    if done.returncode:
        emit("note", text="the processes of the GPUs are not known", source="compute-apps")
        return {}
    emit("apps", known=True)
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 3 and cells[0].isdigit():
            found[int(cells[0])] = cells[1]
            emit("app", pid=int(cells[0]), gpu=cells[1], memory=number(cells[2]), comm=comm_of(int(cells[0])))
    return found


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
        """Container -> a living process of it."""

    def container(self, pid: str, began: str) -> Optional[str]:
        """Return the id of a process's container; it is read once for each process."""
        key = pid + " " + began
        if key not in self.owner:
            cgroup = text_of("/proc/%s/cgroup" % pid)
            self.owner[key] = next((name for name in self.instances if name in cgroup), None)
        return self.owner[key]

    def look(self, t: float, *, deep: bool) -> None:
        """Tell of each process; `deep` counts threads too."""
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
        """Return what /proc tells of one process; the words are those of stat behind the name."""
        found: Record = {
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
                found[key] = int(value)
        if deep:
            allowed = re.search(r"^Cpus_allowed_list:\s*(\S+)", text_of("/proc/%s/status" % pid), re.MULTILINE)
            found["cpus"] = allowed.group(1) if allowed else None
            found.update(threads(pid))
        return found


def threads(pid: str) -> Record:
    """Return the names of a process's threads, and how many of them want a CPU."""
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
    found = {}
    for line in text_of("/proc/pressure/" + name).splitlines():
        total = re.search(r"total=(\d+)", line)
        if total:
            found["%s_%s_us" % (name, line.split()[0])] = int(total.group(1))
    return found


def interfaces() -> Dict[str, List[int]]:
    """Return bytes received and sent of each network interface."""
    found = {}
    for line in text_of("/proc/net/dev").splitlines()[2:]:
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) >= 9 and name.strip() != "lo":
            found[name.strip()] = [int(words[0]), int(words[8])]
    return found


def ports() -> Iterator[str]:
    """Return the RDMA ports, as card/ports/number below /sys/class/infiniband."""
    root = "/sys/class/infiniband"
    for card in listed(root):
        for port in listed("%s/%s/ports" % (root, card)):
            yield "%s/ports/%s" % (card, port)


def listed(folder: str) -> List[str]:
    """Return a folder's names; none where there is no such folder."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def rdma() -> Dict[str, List[int]]:
    """Return bytes received and sent of each RDMA port; the counters count words of four bytes."""
    found = {}
    for port in ports():
        folder = "/sys/class/infiniband/%s/counters/" % port
        words = [text_of(folder + name).strip() for name in ("port_rcv_data", "port_xmit_data")]
        if all(word.isdigit() for word in words):
            found[port.replace("/ports/", "/")] = [4 * int(word) for word in words]
    return found


def speeds() -> Dict[str, float]:
    """Return the line rates, in Gbit/s, of what is up."""
    found = {}
    for name in interfaces():
        rate = number(text_of("/sys/class/net/%s/speed" % name).strip())
        if rate and rate > 0:
            found[name] = rate / 1000
    for port in ports():
        rate = number(text_of("/sys/class/infiniband/%s/rate" % port).partition(" ")[0])
        if rate:
            found[port.replace("/ports/", "/")] = rate
    return found


def throttled(pid: int) -> Optional[int]:
    """Return how often the CPU quota of a process's cgroup was used up; None where it has none."""
    for line in text_of("/proc/%d/cgroup" % pid).splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3 and (parts[1] == "" or "cpu" in parts[1].split(",")):
            for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/cpu"):
                told = re.search(r"nr_throttled (\d+)", text_of("%s%s/cpu.stat" % (root, parts[2])))
                if told:
                    return int(told.group(1))
    return None


def mounts(pid: int) -> List[List[str]]:
    """Return what a process has mounted: place, type of the file system, source."""
    found = []
    for line in text_of("/proc/%d/mountinfo" % pid).splitlines():
        left, _, right = line.partition(" - ")
        words, behind = left.split(), right.split()
        if len(words) > 4 and len(behind) > 1 and behind[0] not in PSEUDO:
            found.append([words[4], behind[0], behind[1]])
    return found[:200]


def nfs(pid: int) -> Dict[str, List[float]]:
    """Return of each NFS mount how many calls there were since it was mounted, and the milliseconds they took."""
    found: Dict[str, List[float]] = {}
    place = ""
    for line in text_of("/proc/%d/mountstats" % pid).splitlines():
        mounted = re.match(r"device (\S+) mounted on (\S+) with fstype (\S+)", line)
        if mounted:
            place = mounted.group(2) if mounted.group(3).startswith("nfs") else ""
        words = line.split()
        if (
            place
            and len(words) >= 8
            and words[0] in ("READ:", "GETATTR:", "LOOKUP:", "OPEN:", "ACCESS:", "READDIRPLUS:")
        ):
            total = found.setdefault(place, [0.0, 0.0])
            total[0] += float(words[1])
            total[1] += float(words[7])
    return found


def opened(pid: int, path: str) -> int:
    """Open a folder that a process sees. Its links are the container's choice, and would lead to the node's files.

    Raises:
        OSError: there is no such folder, or a part of its path is a link.
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
    """Yield the folders below one that a process sees, as os.fwalk does, and follow no link."""
    with contextlib.suppress(OSError):
        top = opened(pid, path)
        try:
            for folder, folders, files, handle in os.fwalk(".", dir_fd=top):
                yield os.path.normpath(os.path.join(path, folder)), folders, files, handle
        finally:
            os.close(top)


class Container:
    """What is seen of one container beside its processes."""

    def __init__(self, asked: Record) -> None:
        self.id, self.instance = str(asked.get("id", "")), str(asked.get("instance", ""))
        self.watch = [str(path) for path in asked.get("watch") or [] if str(path).startswith("/")]
        self.log = str(asked.get("log") or "")
        self.log_at: Optional[int] = None
        self.lines = 0
        self.told = False

    def look(self, pid: Optional[int], *, deep: bool) -> Record:
        """Return its shared memory, quota, log and files; what needs a living process is missing without one."""
        found: Record = {"log_lines": self.count_lines()}
        if pid is None:
            return found
        found["throttled"] = throttled(pid)
        with contextlib.suppress(OSError):
            shared = opened(pid, "/dev/shm")  # noqa: S108 # nosec B108 # of the container
            try:
                room = os.fstatvfs(shared)
            finally:
                os.close(shared)
            size = room.f_blocks * room.f_frsize
            found["shm"] = [size, size - room.f_bfree * room.f_frsize]
        if deep:
            found["nfs"] = nfs(pid)
            found.update(self.files(pid))
        if not self.told:
            self.told = True
            emit("mounts", instance=self.instance, mounts=mounts(pid))
        return found

    def tell_channels(self) -> None:
        """Tell what NCCL wrote of its network into the first part of the log: it does so as the job starts."""
        lines: List[str] = []
        with contextlib.suppress(OSError), open(self.log or os.devnull, "rb") as stream:
            for line in stream.read(MOST_LOG).splitlines():
                if len(lines) < MOST_CHANNELS and CHANNELS.search(line[:1000]):
                    lines.append(line[:300].decode("utf-8", "replace"))
        if lines:
            emit("nccl", instance=self.instance, lines=lines)

    def count_lines(self) -> Optional[int]:
        """Return the lines that came to the log since the begin; None without a log."""
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
    """Return what is seen of the whole node and of each container."""
    running = re.search(r"^procs_running (\d+)", text_of("/proc/stat"), re.MULTILINE)
    return {
        **pressure("cpu"),
        **pressure("io"),
        "running": int(running.group(1)) if running else None,
        "net": interfaces(),
        "ib": rdma(),
        "containers": {c.instance: c.look(first.get(c.id), deep=deep) for c in containers},
    }


def closed(source: IO[bytes], until: float) -> bool:
    """Wait until a moment; return early, and true, when the input has closed."""
    while True:
        left = until - time.monotonic()
        if left <= 0:
            return False
        if select.select([source], [], [], left)[0] and not os.read(source.fileno(), 4096):
            return True


def watch(asked: Record, source: IO[bytes]) -> None:
    """Look until the window is over, or nobody listens any more."""
    begin = time.monotonic()
    interval = min(60.0, max(0.1, float(asked.get("interval") or 1)))
    seconds = min(3600.0, max(interval, float(asked.get("seconds") or 60)))
    wanted = [item for item in asked.get("containers") or [] if isinstance(item, dict)]
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
            for c in wanted
        ],
    )
    smi = Smi(begin, interval)
    reader = threading.Thread(target=smi.run, daemon=True)
    late = threading.Timer(seconds + 2 * CLOCK_WAIT, os._exit, [1])  # a driver that hangs holds whoever waits for it
    late.daemon = True
    late.start()
    reason, samples = "window", 0
    try:
        processes = Processes(wanted, apps())
        reader.start()
        containers = [Container(item) for item in wanted]
        for container in containers:
            container.tell_channels()
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            deep = samples % SELDOM == 0
            t = round(time.monotonic() - begin, 3)
            processes.look(t, deep=deep)
            emit("node", t=t, **node(containers, processes.first, deep=deep))
            samples += 1
            if closed(source, start + samples * interval):
                reason = "closed"
                break
    finally:
        smi.close()
    emit("end", t=round(time.monotonic() - begin, 3), samples=samples, reason=reason)


def main() -> None:
    """Do what the line on standard input asks."""
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
        asked = json.loads(line or b"{}")
    except ValueError:
        asked = None
    if not isinstance(asked, dict):
        sys.exit("sampler: one line of JSON is wanted on standard input")
    with contextlib.suppress(Gone):
        watch(asked, source)
    os._exit(0)  # a thread that waits for nvidia-smi must not keep us


if __name__ == "__main__":
    main()
