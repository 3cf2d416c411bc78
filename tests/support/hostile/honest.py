"""What a well-behaved node answers to every script of ours: the real node programs' answers, or SIMULATED hardware.

The program for batch jobs runs for real, in a folder, when a request is seen for the first time; its answer is
recorded and used again. So is the program of the locks. Everything else comes from the descriptions of the benchmarks.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision.facts.gpu_usage import SCRIPT as USAGE_SCRIPT
from tests.benchmarks import described_hardware as hardware
from tests.benchmarks.described_node import DIGEST, IMAGE, Description, answer
from tests.support.node.node import FakeNode

__all__ = ["Answer", "Cluster", "Question", "uuids"]

_NAME = re.compile(r"(?:\.pyz|(?P<size>\d+)) (?P<name>[\w-]+)\s*$")
"""The end of a script that runs a program; without a stored archive, its size in bytes precedes the name."""


@dataclass(frozen=True)
class Question:
    """A script and what was written to its standard input."""

    script: str
    stdin: bytes

    @functools.cached_property
    def program(self) -> str:
        """The program of the archive that the script runs; empty for other scripts."""
        match = _NAME.search(self.script)
        return match["name"] if match else ""

    @functools.cached_property
    def payload(self) -> bytes:
        """Standard input of the program, without an archive before it."""
        match = _NAME.search(self.script)
        return self.stdin[int(match["size"] or 0) :] if match else self.stdin

    @functools.cached_property
    def lines(self) -> list[bytes]:
        """Requests, one a line."""
        return self.payload.split(b"\n")

    @functools.cached_property
    def request(self) -> dict[str, Any]:
        """The first request."""
        return json.loads(self.lines[0]) if self.lines[0].strip() else {}

    @property
    def label(self) -> str:
        """What is asked, in a word."""
        if self.program:
            return f"{self.program} {self.request.get('do', '')}".strip()
        return self.script.strip()[:40]


@dataclass(frozen=True)
class Answer:
    """What a command printed, and its exit status; a request that stays has several chunks."""

    chunks: tuple[bytes, ...] = ()
    errors: bytes = b""
    code: int = 0


@dataclass
class Cluster:
    """Nodes gpu0001, gpu0002, ... of eight GPUs each."""

    folder: Path
    outputs: Mapping[str, Mapping[str, str]]
    """Node -> fact -> what its command prints where that is no constant."""
    nodes: dict[str, FakeNode] = field(default_factory=dict)
    recorded: dict[tuple[str, str], Answer] = field(default_factory=dict)
    recording: bool = True
    missed: list[str] = field(default_factory=list)
    """Questions without an answer, for developers who add a verb."""

    def answer(self, node: str, question: Question) -> Answer:
        """Return what the node answers."""
        if question.program == "jobs":
            return self._jobs(node, question)
        if question.program == "lock":
            return self._lock(node, question)
        return self._canned(node, question)

    def _canned(self, node: str, question: Question) -> Answer:
        script = question.script
        if question.program == "probe":
            return _text(answer(Description(int(node[3:]) - 1, 3, self.outputs.get(node, {})), question.payload))
        if question.program in _PROGRAMS:
            return _PROGRAMS[question.program](question)
        if "sha256sum -c --status" in script:
            return _text("")
        if script == USAGE_SCRIPT:
            return _text(_usage())
        for part, text in _SCRIPTS.items():
            if part in script:
                return _text(text(script) if callable(text) else text)
        self.missed.append(question.label)
        return _text("")

    def _jobs(self, node: str, question: Question) -> Answer:
        """Answer as the real program does; as it did, when nothing more is recorded."""
        request = question.request
        key = (node, f"{request.get('do')} {request.get('name') or request.get('names') or ''}")
        if not self.recording:
            same = (answer for (_, label), answer in self.recorded.items() if label.startswith(f"{request.get('do')} "))
            return self.recorded.get(key) or next(same, _text("{}"))
        process = self.nodes[node].program(subprocess.PIPE)
        out, errors = process.communicate(json.dumps(request).encode() + b"\n", timeout=60)
        made = Answer(tuple(line for line in out.splitlines(keepends=True)), errors, process.returncode or 0)
        self.recorded[key] = made
        return made

    def _lock(self, node: str, question: Question) -> Answer:
        """Answer each order; the lock itself is not taken."""
        request = question.request
        if request.get("do") == "keep":
            said = [{"locked": "/run/lock/provision.lock", "usual": True}]
            said += [
                {"released": True, "working": [], "trouble": ""} for line in question.lines[1:] if b'"release"' in line
            ]
            return Answer(tuple(json.dumps(one).encode() + b"\n" for one in said))
        if request.get("do") == "unlock":
            return _text(json.dumps({"unlocked": True, "working": [], "trouble": ""}))
        holder = {
            "id": "20260101T000000-abcdef01",
            "node": node,
            "user": "alice",
            "host": "ops1",
            "pid": 4711,
            "command": "provision apply",
            "since": "2026-01-01T00:00:00Z",
            "gone": "",
            "keeper": {"pid": 99, "started": "1"},
        }
        entry = {
            "id": "20260101T000000-abcdef01",
            "started": "2026-01-01T00:00:00Z",
            "user": "alice",
            "host": "ops1",
            "pid": 4711,
            "command": "provision apply",
            "status": "changed",
            "ended": "2026-01-01T00:05:00Z",
            "roles": ["docker_engine"],
            "notes": ["docker_engine: changed"],
            "message": "",
        }
        return _text(json.dumps({"held": True, "holder": holder, "working": ["ansible 12"], "entries": [entry] * 2}))


def _text(text: str) -> Answer:
    return Answer((text.encode(errors="surrogateescape"),) if text else ())


@functools.cache
def _usage() -> str:
    gpus = [line.split(", ") for line in hardware.gpus().splitlines()[1:]]
    rows = [f"{n}, {_uuid(row)}, H100, 3, 100, 81559, 30, 80.5, 700.0" for n, row in enumerate(gpus)]
    apps = [f"{_uuid(gpus[0])}, 4711, /usr/bin/python3, 1000"]
    return "\n".join([*rows, "== processes", *apps, "== users", "4711 alice", ""])


def _uuid(row: list[str]) -> str:
    return next(cell for cell in row if cell.startswith("GPU-"))


@functools.cache
def uuids() -> tuple[str, ...]:
    """The GPUs that every node has."""
    return tuple(_uuid(line.split(", ")) for line in hardware.gpus().splitlines()[1:])


def _frame(kind: str, data: bytes = b"") -> bytes:
    return b"%s %d\n%s" % (kind.encode(), len(data), data)


_BENCH = (
    "Model: vgg16\nBatch size: 64\nNumber of GPUs: 4\nIter #0: 205.5 img/sec per GPU\n"
    "Img/sec per GPU: 205.1 +-0.6\nTotal img/sec on 4 GPU(s): 820.5 +-2.5\n"
)


def _supervisor(_question: Question) -> Answer:
    ending = json.dumps({"code": 0, "reason": None, "left": {}}).encode()
    about = f"About: {json.dumps({'torch': '2.5', 'backend': 'nccl'})}\n".encode()
    said = _frame("s"), _frame("a"), _frame("o", about), _frame("o", _BENCH.encode()), _frame("e", b"a warning\n")
    return Answer((b"".join(said), _frame("x", ending)))


def _sampler(question: Question) -> Answer:
    names = [one["instance"] for one in question.request.get("containers", [])]
    records: list[dict[str, Any]] = [
        {
            "kind": "begin",
            "interval": 1.0,
            "cores": 64,
            "ticks": 100,
            "speeds": {"bond0": 25000},
            "delayacct": "1",
            "containers": [
                {"instance": n, "gpus": list(uuids()[:1]), "log": True, "speaks_for_all": True} for n in names
            ],
        },
        {"kind": "device", "uuid": uuids()[0], "index": 0, "name": "H100", "numa": 0, "cpus": "0-31"},
        {"kind": "apps"},
        {"kind": "app", "pid": 4711, "gpu": uuids()[0], "comm": "python3"},
        {"kind": "mounts", "instance": names[0] if names else "x", "mounts": [["/data", "nfs", "storage:/data"]]},
        {"kind": "note", "text": "a note"},
        {"kind": "nccl", "lines": ["node:1:1 [0] NCCL INFO Using network IB"]},
    ]
    for t in range(4):
        records += [
            {
                "kind": "gpu",
                "uuid": uuids()[0],
                "t": float(t),
                "utilization": 3,
                "memory_used": 1000,
                "memory_total": 81559,
                "clock_events": 4,
            },
            {
                "kind": "process",
                "pid": 4711,
                "t": float(t),
                "comm": "python3",
                "ppid": 1,
                "instance": names[0] if names else "x",
                "age": 100.0,
                "utime": 100 + t,
                "stime": 2,
                "state": "R",
                "rchar": 10,
                "syscr": 1,
                "threads": ["python3"],
                "runnable": 1,
            },
            {
                "kind": "node",
                "t": float(t),
                "cpu_some_us": 10,
                "io_some_us": 0,
                "io_full_us": 0,
                "running": 3,
                "net": {"bond0": [t, t]},
                "ib": {"mlx5_0": [t, t]},
                "containers": {
                    n: {"log_lines": t, "shm": [1, 100], "watched": 1, "nfs": {"/data": [1, 2]}} for n in names
                },
            },
        ]
    records.append({"kind": "end", "reason": "window"})
    return Answer(tuple(json.dumps(one).encode() + b"\n" for one in records))


def _data(question: Question) -> Answer:
    one = {"exists": True, "readable": True, "writable": True, "mount": {"type": "nfs", "source": "storage:/data"}}
    return _text(json.dumps({"volumes": {volume["name"]: one for volume in question.request["volumes"]}}))


def _image_peers(question: Question) -> Answer:
    """Answer as a node that has no image, and sends or receives one."""
    progress = {"event": "progress", "step": "saving", "done": 1, "total": 2, "received": 0, "sent": 0}
    names = ["a" * 64, "b" * 64]
    offer = {
        "event": "offer", "torrent": "AAAA", "id": f"sha256:{names[0]}", "config": names[0], "layers": names[1:],
        "blobs": names, "table": "", "diffs": [f"sha256:{names[1]}"], "port": 6881,
    }  # fmt: skip
    events = {
        "send": [progress, offer],
        "receive": [
            {"event": "listening", "port": 6882},
            {**progress, "step": "downloading"},
            {"event": "done", "id": f"sha256:{names[0]}", "received": 2},
        ],
    }
    state = {"event": "state", "problem": "", "library": "2.0.8", "docker": "", "id": "", "content": ""}
    answers = events.get(question.request.get("do", ""), [{**state, "containerd": False}])
    return Answer(tuple(json.dumps(one).encode() + b"\n" for one in answers))


_PROGRAMS = {
    "image-peers": _image_peers,
    "reload": lambda _: _text(json.dumps({"step": "done", "exit_code": 0, "output": ""}) + "\n"),
    "run": _supervisor,
    "sampler": _sampler,
    "data-check": _data,
    "package-preflight": lambda q: _text(
        json.dumps(
            {
                "packages": dict.fromkeys(q.request["packages"], "1.0"),
                "install": [{"name": name, "version": "1.0"} for name in q.request["packages"]],
                "sources": [],
                "conflict": "",
                **({"image": {"code": "ok", "reason": ""}} if q.request.get("image") else {}),
            }
        )
    ),
    "tensorboard": lambda _: _text(json.dumps({"running": True, "port": 6006})),
    "code": lambda q: _text(json.dumps({"sha": "a" * 40, **({"error": None} if not q.request else {})})),
}

_WRITE_BW = """
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000             195.10             190.05               0.362
"""


def _pairs(script: str) -> str:
    token = re.search(r"([0-9a-f]{16}) \$1 \$code", script)
    peers = re.findall(r"\bgpu\d{4}\b", script)
    return "".join(f"{token[1] if token else ''} {peer} 0 0 \n" for peer in peers)


def _container(script: str) -> str:
    program = "/usr/bin/python3" if "program=" in script else ""
    return (
        "interface=bond0\nuid=0\nmpirun=/usr/bin/mpirun\nversion=mpirun (Open MPI) 4.1.4\nlibrary_path=1\n"
        f"python3=/usr/bin/python3\nprogram={program}\n"
    )


def _logins(script: str) -> str:
    return "".join(f"provision-login {name} 0\n\n" for name in dict.fromkeys(re.findall(r"\bgpu\d{4}\b", script)))


def _listing(script: str) -> str:
    """A container's folder that holds just what the folder here does, so that nothing is to be copied."""
    folder = Path(shlex.split(script)[-1])
    names = sorted(path.relative_to(folder) for path in folder.rglob("*"))
    listed = "".join(f"f {(folder / name).stat().st_mode & 0o777:o} \0{name}\0" for name in names)
    sums = "".join(f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  ./{name}\0" for name in names)
    return f"exists\nmarked\nBEGIN\n{listed}sums\0{sums}mark\0"


def _journal(_script: str) -> str:
    record = {"time": 1.7e9, "action": "submitted", "caller": "bob", "agent": True, "job": "busy", "owner": "bob@ops2"}
    used = {**record, "action": "used secrets", "id": "t1", "secrets": ["TOKEN"], "address": "198.51.100.7"}
    return "".join(json.dumps({"MESSAGE": json.dumps(one), "_PID": "1"}) + "\n" for one in (record, used))


_SCRIPTS: dict[str, Any] = {
    "SYSLOG_IDENTIFIER=provision-audit": _journal,
    "# Print what a directory": _listing,
    "/var/lib/dkms/*/*/source": "depends=linux-image-6.12.1-1-amd64 (= 6.12.1-1)\nheaders=6.12.1-1-amd64 6.12.1-1\n"
    "tree=nvidia 550.90\nMIN=4.4\nexcluded=6.12.1-1-amd64\n",
    "docker image inspect --format": f"sha256:{'1' * 64} {IMAGE.rpartition(':')[0]}@{DIGEST} 12345678901\n",
    "== image": "ofed=\nrdma-core=44.0\nrdma-driver=mlx5\n== image\nos=Debian\nmpi=mpirun (Open MPI) 4.1\n"
    "torch=2.5.1\ncuda=12.4\nnccl=2.21.5\n",
    "provision-login": _logins,
    "library_path=": _container,
    "echo asked": "held 4711 /dev/infiniband/uverbs0 nvidia-smi\nlooked\nknows --use_cuda\nasked\n",
    "provision-ready": "provision-ready 18515\n" + _WRITE_BW + "provision-end 0\n",
    "ssh -F /etc/provision/ssh/ssh_config": _pairs,
    "command -v python3 || true": "/usr/bin/python3\n",
    "t=$(mktemp ": "",
    "uname -r": "6.1.0-44-amd64\n",
}
