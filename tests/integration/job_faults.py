"""Faults that come while batch jobs run: how each is made, and what has to become of the jobs."""

from __future__ import annotations

import os
import random
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.command import Done, Provision, eventually
from tests.support.engine import engine_host

__all__ = [
    "FAULTS",
    "Job",
    "Scene",
    "Struck",
    "begun",
    "judged",
    "killed_after",
    "killed_at_a_mark",
    "killed_in_between",
    "scene_of_a_lab",
    "strike",
]

LINES = 150
"""Each rank prints so many."""
LINES_A_SECOND = 5
WITHIN_SECONDS = 30.0
"""So long after a fault the job's status and reason are right."""
DELETED_BY_ONE_COMMAND = 50
"""Jobs are deleted one after the other, so the time limit of a command limits their number."""
OVER = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
LEFT = r"""
docker ps -aq --filter label=provision.job | sed 's/^/container /'
ls /run/provision/leases 2>/dev/null | sed 's/^/lease /'
ls -d /var/lib/provision/jobs/*/attempts/*/{keeper.json,stop.json,ssh,programs,config,env-*,*.new} 2>/dev/null
ls -d /var/lib/provision/jobs/*/secrets.json /var/lib/provision/jobs/.new-* 2>/dev/null
ls -d /run/systemd/system/provision-job-* 2>/dev/null
systemctl list-units --all --plain --no-legend 'provision-job-*' | sed 's/^/unit /'
pgrep -af '[/]programs/node.pyz supervisor' | sed 's/^/process /'
pgrep -af '[/]run/provision/programs/.*[.]pyz jobs' | sed 's/^/process /'
ss -Hltn 'sport >= 20000 and sport < 32000' | sed 's/^/port /'
true
"""
"""Prints what ended jobs left behind, a line for each."""


class Scene:
    """A lab's nodes, inspected and broken from the nodes themselves, and operators with a state folder each."""

    def __init__(self, provision: Provision, lab: str) -> None:
        self.provision, self.lab = provision, lab
        state = Path(provision.environment["XDG_STATE_HOME"])
        self.host = engine_host(state / "provision/labs" / lab)
        self.nodes = [node["name"] for node in provision.ok("lab", "status", lab, "--json").document["nodes"]]
        self.inventory = provision.ok("lab", "inventory", lab).out.strip()
        self.image = self.image_of(self.nodes[0])
        self.other = self.operator("other")

    def operator(self, name: str) -> Provision:
        """Somebody else's command, who has nothing of ours but the inventory."""
        return self.provision.operator(name)

    def by(self, operator: Provision, *words: str, timeout: float = 300) -> Done:
        """Run a verb as an operator."""
        return operator("--inventory", self.inventory, *words, timeout=timeout)

    def on(self, node: str, command: str, *, check: bool = True) -> str:
        """Return what a shell command prints on a node: by no network, so that it works on one that is cut off."""
        argv = ["docker", "-H", self.host, "exec", f"provision-{self.lab}-{node}", "bash", "-c", command]
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False, timeout=60)
        assert done.returncode == 0 or not check, f"{node}: {command}: {done.stderr}"
        return done.stdout

    def image_of(self, node: str) -> str:
        """Return the reference of the image on a node."""
        return self.on(node, "docker image ls --format '{{.Repository}}:{{.Tag}}' | head -1").strip()

    def get(self, name: str) -> dict[str, Any] | None:
        """Return the job's status as another operator gets it; None if there is no such job or no node answers."""
        done = self.by(self.other, "get", name, "--json", timeout=60)
        return done.document if done.code == 0 else None

    def start_waiting(self) -> None:
        """What `queue run --daemon` does now and then."""
        self.by(self.other, "queue", "run", timeout=300)

    def left(self) -> dict[str, list[str]]:
        """Return what ended jobs left on the nodes."""
        return {node: self.on(node, LEFT).splitlines() for node in self.nodes}

    def nothing_left(self, context: str) -> None:
        """Check that ended jobs leave nothing, at the latest after the nodes were probed."""

        def clean() -> bool:
            self.by(self.other, "list")
            return not any(self.left().values())

        end = time.monotonic() + WITHIN_SECONDS
        while not clean():
            assert time.monotonic() < end, f"{context}: left behind: {self.left()}"

    def ready(self) -> None:
        """Wait until all nodes and their docker engines answer."""
        for node in self.nodes:
            eventually(
                lambda node=node: self.on(node, "docker info >/dev/null 2>&1 && echo yes || true", check=False).strip(),
                seconds=120,
                what=f"docker answers on {node}",
            )

    def forget(self, names: Sequence[str]) -> None:
        """Delete jobs; nothing at all is kept of them."""
        for start in range(0, len(names), DELETED_BY_ONE_COMMAND):
            done = self.by(self.other, "delete", "--force", *names[start : start + DELETED_BY_ONE_COMMAND])
            assert done.code == 0, str(done)
        for node in self.nodes:
            names_on_node = self.on(node, "ls -A /var/lib/provision/jobs 2>/dev/null; true").split()
            assert not set(names_on_node) & set(names), f"{node} keeps {names_on_node}"


@contextmanager
def scene_of_a_lab(provision: Provision, name: str, machine: str) -> Iterator[Scene]:
    """Start and apply a lab of three nodes, and remove it at the end."""
    try:
        provision.ok("lab", "up", name, "--driver", "container", "--nodes", "3", "--machine", machine)
        provision.ok("apply", "--lab", name, "--yes")
        yield Scene(provision, name)
    finally:
        down = provision("lab", "down", name)
    assert down.code == 0, str(down)


@dataclass
class Job:
    """One job of the stream."""

    scene: Scene
    name: str
    kind: str
    workers: int
    retry: int = 0
    lines: int = LINES
    submit: subprocess.Popen[str] | None = None

    def words(self, *more: str) -> list[str]:
        """What hands it in, behind the command's name."""
        rank = "$OMPI_COMM_WORLD_RANK" if self.kind == "mpi" else "$RANK"
        program = f': {self.name}; for n in $(seq {self.lines}); do echo "{rank} $n"; sleep {1 / LINES_A_SECOND}; done'
        line = program
        if self.kind == "mpi":
            line = f"mpirun --allow-run-as-root -np {self.workers} -bind-to none -x PATH sh -c '{program}'"
        words = ("submit", self.kind, "-i", self.scene.inventory, f"--name={self.name}", f"--image={self.scene.image}")
        size = ("--gpus=1", f"--workers={self.workers}", "--spread", f"--retry={self.retry}")
        return [*words, *size, *more, line]

    def hand_in(self, operator: Provision | None = None, *more: str) -> subprocess.Popen[str]:
        """Begin to submit it."""
        operator = operator or self.scene.provision
        self.submit = begun(operator, self.words(*more))
        return self.submit

    def get(self) -> dict[str, Any] | None:
        """Return its status as another operator gets it."""
        return self.scene.get(self.name)

    def said(self, attempt: int = 0) -> dict[int, list[int]]:
        """Rank -> the numbers that it printed, of all instances, as another operator reads them."""
        words = ("--attempt", str(attempt)) if attempt else ()
        done = self.scene.by(self.scene.other, "logs", self.name, "--all", *words)
        assert done.code == 0, f"logs of {self.name}: {done}"
        numbers: dict[int, list[int]] = {}
        for rank, number in re.findall(r"^(?:\[\S+\] )?(\d+) (\d+)$", done.out, re.MULTILINE):
            numbers.setdefault(int(rank), []).append(int(number))
        return numbers

    def is_whole(self) -> None:
        """All lines of all ranks are there, once each and in their order."""
        said = self.said()
        whole = {rank: list(range(1, self.lines + 1)) for rank in range(self.workers)}
        assert said == whole, f"{self.name}: " + "; ".join(
            f"rank {rank}: {gaps(said.get(rank, []), self.lines)}" for rank in whole if said.get(rank) != whole[rank]
        )

    def has_no_gap(self, attempt: int = 0) -> None:
        """What there is of each rank is there from its first line on, once each."""
        for rank, numbers in self.said(attempt).items():
            assert numbers == list(range(1, len(numbers) + 1)), f"{self.name}: rank {rank}: {gaps(numbers, self.lines)}"


def begun(operator: Provision, words: Sequence[str]) -> subprocess.Popen[str]:
    """Begin a verb, which can be killed with all that it starts."""
    return subprocess.Popen(
        operator.argv(*words), cwd=operator.folder, env=operator.environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip


def gaps(numbers: Sequence[int], last: int) -> str:
    """What is missing or double, in words."""
    missing = sorted(set(range(1, last + 1)) - set(numbers))
    double = sorted({number for number in numbers if numbers.count(number) > 1})
    return f"{len(numbers)} lines, missing {missing[:9]}, double {double[:9]}"


@dataclass
class Struck:
    """A fault, the jobs that it has to end, and what lifts it."""

    scene: Scene
    dice: random.Random
    jobs: Sequence[Job]
    lift: ExitStack = field(default_factory=ExitStack)
    ends: dict[str, str] = field(default_factory=dict)
    """Job -> pattern that its reason has to fit; other jobs go on."""
    description: str = ""
    since: float = 0.0
    """When it came."""
    away: str = ""
    """The node that is rebooted or powered off."""
    silences: bool = False
    """Whether a node stops answering: then the result follows when its part must have ended there, too."""

    def places(self) -> dict[str, list[dict[str, Any]]]:
        """Job -> its instances."""
        return {
            job.name: status["instances"]
            for job in self.jobs
            for status in [job.get()]
            if status and status["instances"]
        }

    def one(self, *, launcher: bool = True) -> tuple[Job, dict[str, Any]]:
        """A job and one of its instances, drawn; without `chief` none that only launches."""
        name, instances = self.dice.choice(sorted(self.places().items()))
        job = next(one for one in self.jobs if one.name == name)
        return job, self.dice.choice([one for one in instances if launcher or one["role"] != "launcher"])

    def node(self) -> str:
        """A node, drawn."""
        return self.dice.choice(self.scene.nodes)

    def comes(self, description: str, node: str, command: str) -> None:
        """Let it come: the clock runs from here."""
        self.description, self.since = description, time.monotonic()
        self.scene.on(node, command)

    def ends_all_of(self, node: str, pattern: str) -> None:
        """All jobs of a node end by it, and the node does not answer."""
        self.silences = True
        for name, instances in self.places().items():
            if any(one["node"] == node for one in instances):
                self.ends[name] = pattern


KILL_RANK = """
import os, sys
rank, job = sys.argv[1:]
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        words = open("/proc/%s/cmdline" % pid).read().split("\\0")
        names = open("/proc/%s/environ" % pid).read().split("\\0")
    except OSError:
        continue
    if words[0] == "sh" and (": %s;" % job) in words[-2] and rank in names:
        os.kill(int(pid), 9)
        sys.exit(0)
sys.exit("there is no such process")
"""


def rank_killed(struck: Struck) -> None:
    """The program of one rank is killed with SIGKILL."""
    job, instance = struck.one(launcher=False)
    node, rank = instance["node"], instance["rank"]
    struck.ends[job.name] = rf"({instance['name']}|rank {rank}) on {node} failed: killed by signal 9"
    variable = f"{'OMPI_COMM_WORLD_RANK' if job.kind == 'mpi' else 'RANK'}={rank}"
    command = shlex.join(["python3", "-c", KILL_RANK, variable, job.name])
    struck.comes(f"rank {rank} of {job.name} on {node} is killed", node, command)


def container_removed(struck: Struck) -> None:
    """Somebody runs ``docker rm -f``."""
    job, instance = struck.one()
    node = instance["node"]
    look = f"docker ps --filter label=provision.job={job.name} --format '{{{{.Names}}}}'"
    box = struck.scene.on(node, look).split()[0]
    struck.ends[job.name] = rf"{box} on {node} failed: its container was removed"
    struck.comes(f"{box} on {node} is removed", node, f"docker rm -f {box}")


def supervisor_killed(struck: Struck) -> None:
    """systemd restarts it, and the job's status does not change."""
    job, instance = struck.one()
    command = f"pkill -9 -f '[/]{job.name}/attempts/1/programs/node.pyz supervisor'"
    struck.comes(f"the job supervisor of {job.name} on {instance['node']} is killed", instance["node"], command)


def docker_restarted(struck: Struck) -> None:
    """An administrator restarts docker's engine: containers live on."""
    node = struck.node()
    struck.comes(f"docker is restarted on {node}", node, "systemctl restart docker")


def docker_killed(struck: Struck) -> None:
    """Docker's engine dies, and systemd starts it anew."""
    node = struck.node()
    struck.comes(f"dockerd is killed on {node}", node, "pkill -KILL -x dockerd")


def rebooted(struck: Struck) -> None:
    """Somebody reboots a node in good order."""
    node = struck.away = struck.node()
    struck.ends_all_of(node, rf"\bnode {node}\b.*(reboot|shuts down|does not answer)")
    struck.lift.callback(up_again, struck.scene, node, started_at(struck.scene, node))
    struck.comes(f"{node} is rebooted", node, "systemctl reboot")


def power_cut(struck: Struck) -> None:
    """A node goes without a word."""
    node, verb = struck.node(), struck.scene.provision.ok
    struck.away = node
    struck.ends_all_of(node, rf"\bnode {node}\b.*(reboot|does not answer)")
    struck.lift.callback(verb, "lab", "power", struck.scene.lab, node, "on")
    struck.description, struck.since = f"the power of {node} is cut", time.monotonic()
    verb("lab", "power", struck.scene.lab, node, "off")


def data_network_cut(struck: Struck) -> None:
    """The data network of a node stays away."""
    node = struck.node()
    struck.ends_all_of(node, rf"\bnode {node}\b.*(does not answer|is cut off)")
    cut(struck, node, ("eth1",), f"the data network of {node} is cut")


def data_network_flaps(struck: Struck) -> None:
    """It comes back before anybody is taken for lost."""
    node, seconds = struck.node(), struck.dice.uniform(1, 6)
    cut(struck, node, ("eth1",), f"the data network of {node} is cut for {seconds:.1f} s", seconds)


def management_cut(struck: Struck) -> None:
    """No operator reaches a node, and its jobs continue."""
    node, seconds = struck.node(), struck.dice.uniform(3, 30)
    cut(struck, node, ("eth0",), f"the management network of {node} is cut for {seconds:.1f} s", seconds)


def all_networks_cut(struck: Struck) -> None:
    """A node cannot be asked, nor can it be heard by the others."""
    node = struck.node()
    struck.ends_all_of(node, rf"\bnode {node}\b.*(does not answer|is cut off)")
    cut(struck, node, ("eth0", "eth1"), f"all networks of {node} are cut")


def cut(struck: Struck, node: str, interfaces: Sequence[str], description: str, seconds: float = 0.0) -> None:
    """Take interfaces down until it is lifted, or for a while, in which the jobs are asked for."""
    down, up = ("; ".join(f"ip link set {one} {way}" for one in interfaces) for way in ("down", "up"))
    down = f"ip route show default >/run/default-route; {down}"
    up = f"{up}; if [ -s /run/default-route ]; then ip route replace $(cat /run/default-route); fi"
    struck.lift.callback(struck.scene.on, node, up)
    struck.comes(description, node, down)
    if seconds:
        struck.lift.callback(lambda: time.sleep(max(0.0, struck.since + seconds - time.monotonic())))


def started_at(scene: Scene, node: str) -> str:
    """When the node's first process began."""
    return scene.on(node, "stat -c %Y /proc/1; awk '{print $22}' /proc/1/stat", check=False)


def up_again(scene: Scene, node: str, before: str) -> None:
    """Wait until a node that reboots is another one than before, and answers; systemd may stop units for 90 seconds."""
    eventually(lambda: (now := started_at(scene, node)) and now != before, seconds=180, what=f"{node} was rebooted")
    eventually(
        lambda: scene.provision("lab", "ssh", scene.lab, node, "--", "true").code == 0,
        seconds=60,
        what=f"{node} answers",
    )


FAULTS: tuple[Callable[[Struck], None], ...] = (
    rank_killed,
    container_removed,
    supervisor_killed,
    docker_restarted,
    docker_killed,
    rebooted,
    power_cut,
    data_network_cut,
    data_network_flaps,
    management_cut,
    all_networks_cut,
)


QUICK = (rank_killed, container_removed, supervisor_killed, docker_killed)
"""Those that need no more than seconds."""


def strike(scene: Scene, dice: random.Random, jobs: Sequence[Job], fault: Callable[[Struck], None]) -> Struck:
    """Let a fault come."""
    struck = Struck(scene, dice, jobs)
    try:
        fault(struck)
    except BaseException:
        struck.lift.close()
        raise
    return struck


def judged(struck: Struck, job: Job) -> str:
    """Return what is wrong with a job's status after a fault; empty when it is as it has to be."""
    status = job.get()
    if status is None:
        return "it cannot be asked for"
    summary = f"{status['status']}, attempt {status['attempt']}: {status['reason']}"
    pattern = struck.ends.get(job.name)
    if pattern is None:
        return "" if status["status"] in {"RUNNING", "SUCCEEDED"} and status["attempt"] == 1 else summary
    again = job.retry and status["status"] == "PENDING" and status["code"] == "job.retry"
    ending = struck.silences and status["status"] == "STOPPING"
    right = ending or (again if job.retry else status["status"] == "FAILED")
    return "" if right and re.search(pattern, status["reason"]) else f"{summary} (wanted: {pattern})"


MARKS = (
    "ls -d /var/lib/provision/jobs/{name}",
    "grep -l {name} /run/provision/leases/*",
    "ls -d /var/lib/provision/jobs/{name}/attempts/1/attempt.json",
    "grep -l '\"handed\": true' /var/lib/provision/jobs/{name}/queue.json",
    "ls /var/lib/provision/jobs/{name}/attempts/1/keeper.json",
    "ls /var/lib/provision/jobs/{name}/attempts/1/state.json",
)
"""Steps of a start, each seen on some node by a command that succeeds then."""
WATCH = "while ! {look} >/dev/null 2>&1; do [ $SECONDS -lt 12 ] || exit 0; sleep 0.02; done"


def killed_at_a_mark(scene: Scene, dice: random.Random, job: Job, process: subprocess.Popen[str]) -> str:
    """Kill a start as soon as one of its steps, or a little after it, is seen on a node; return what was seen."""
    look, node, pause = dice.choice(MARKS).format(name=job.name), dice.choice(scene.nodes), dice.uniform(0, 0.3)
    if "attempts" not in look and "leases" not in look:
        node = scene.nodes[0]
    scene.on(node, WATCH.format(look=look))
    time.sleep(pause)
    kill(process)
    return f"{pause:.2f} s after `{look}` on {node}"


def killed_in_between(scene: Scene, dice: random.Random, job: Job, process: subprocess.Popen[str]) -> str:
    """Kill a start while it waits for a node that is slow, so that its GPUs are held and nothing of it runs."""
    halt = f"{WATCH.format(look=MARKS[1].format(name=job.name))}; pkill -STOP -x dockerd"
    pause = dice.uniform(0, 2)
    try:
        with ThreadPoolExecutor(len(scene.nodes)) as pool:
            wait([pool.submit(scene.on, node, halt) for node in scene.nodes], return_when=FIRST_COMPLETED)
            time.sleep(pause)
            kill(process)
    finally:
        for node in scene.nodes:
            scene.on(node, "pkill -CONT -x dockerd")
    return f"{pause:.2f} s after its GPUs were held, docker being slow"


def killed_after(process: subprocess.Popen[str], seconds: float) -> str:
    """Kill a command after a time; return when."""
    time.sleep(seconds)
    kill(process)
    return f"after {seconds:.2f} s"


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a command with SIGKILL, and all that it has started here."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
