"""Job verbs while a node is cut off: states of a job, moments of a cut, and the conditions that must hold afterwards.

A group of cases shares one cut: its verbs run on jobs of the same state, and each verb that changes a job has its own.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.integration.job_faults import OVER, Scene, begun
from tests.support.command import Done, eventually

__all__ = ["CUTS", "MOMENTS", "STATES", "VERBS", "Case", "Group", "cut_off", "groups_of", "random_case"]

STATES = ("waiting", "starting", "running", "spread", "on-head", "finished")
"""Of the job: in the queue; being started; on the last node; on two nodes; on the queue host; over."""
MOMENTS = ("before", "during", "after")
"""When the node is cut off: before the verb, while it is at work, after it."""
CUTS = (("eth0",), ("eth0", "eth1"))
"""The management network alone, or all networks."""
VERBS = ("stop", "delete", "restart", "submit", "list", "get", "queue run", "wait", "logs", "prune")
ENDING = ("stop", "delete")
OF_ONE_JOB = ("stop", "delete", "restart", "get", "wait", "logs")
"""Verbs that exit with NOT_FOUND if the job does not exist."""
ON_QUEUE_HOST = ("waiting", "on-head")
"""States in which the queue host is cut off: in the others it is the last node of the job."""
BESIDE_A_START = (("stop", "submit", "get", "wait"), ("delete", "list", "queue run"), ("restart", "logs", "prune"))
"""Verbs that run at the same time on one job that is being started: a start is short, so each group is short.

`wait` is not beside `restart`, which ends an attempt: then it reports that end while the next attempt runs already.
"""
MISSING, NAME_TAKEN, TIMED_OUT, NODE_UNREACHABLE = 3, 4, 6, 7
GONE = "gone"
CARRIED_OUT_SECONDS = 90.0
"""So long after a node is back a requested end is carried out, by verbs that only look."""
ALIVE = "docker ps --filter label=provision.job={name} --format '{{{{.Label \"provision.attempt\"}}}}'"
"""Prints the attempt of each running container of a job."""
SESSIONS = "ss -Htn state established '( sport = :22 )' | wc -l"
WATCH_SESSION = 'while [ $SECONDS -lt 15 ] && [ "$({sessions})" -le {before} ]; do sleep 0.02; done'
"""Returns when a node has a new SSH session."""
REMAINS = "docker ps -aq --filter label=provision.job={name}; grep -ls '{quoted}' /run/provision/leases/* || true"


@contextmanager
def cut_off(scene: Scene, node: str, interfaces: Sequence[str]) -> Iterator[None]:
    """Cut a node off, and connect it again at the end."""
    down, up = ("; ".join(f"ip link set {one} {way}" for one in interfaces) for way in ("down", "up"))
    scene.on(node, f"ip route show default >/run/default-route; {down}")
    try:
        yield
    finally:
        scene.on(node, f"{up}; if [ -s /run/default-route ]; then ip route replace $(cat /run/default-route); fi")
        eventually(
            lambda: scene.provision("lab", "ssh", scene.lab, node, "--", "true").code == 0,
            seconds=60,
            what=f"{node} answers",
        )


@dataclass
class Case:
    """One job, one verb, and one node that is cut off at some moment."""

    scene: Scene
    name: str
    state: str
    verb: str
    moment: str
    node: str
    """That is cut off."""
    interfaces: Sequence[str] = ("eth0",)
    pause: float = 0.0
    """Of a cut during the verb: seconds after it began."""

    def __str__(self) -> str:
        networks = "+".join(self.interfaces)
        return f"{self.name}: {self.verb} of a {self.state} job, {self.node} cut ({networks}) {self.moment}"

    @property
    def head(self) -> str:
        """The queue host."""
        return self.scene.nodes[0]

    @property
    def place(self) -> str:
        """The node of the job, where it is one that is not the queue host."""
        return self.scene.nodes[-1]

    done: Done | None = None
    """The result of the verb."""

    def run(self) -> None:
        """Run this case alone."""
        Group(self.scene, [self]).run()

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Cut the node off for a while."""
        with cut_off(self.scene, self.node, self.interfaces):
            yield

    # The job

    def prepare(self) -> None:
        """Submit the job, and wait for the desired state."""
        more = {
            "waiting": ("--hold",),
            "spread": ("--workers=2", "--max-per-node=1", f"--nodes={self.head},{self.place}"),
            "on-head": (f"--nodes={self.head}",),
        }.get(self.state, (f"--nodes={self.place}",))
        line = "true" if self.state == "finished" else "exec sleep 600"
        process = self.submit(line, *more)
        if self.state == "starting":
            self.scene.on(self.place, WATCH_START.format(name=self.name))
            self.starting = process
            return
        said, _ = process.communicate(timeout=200)
        assert process.returncode == 0, f"{self}: {said}"
        wanted = {"waiting": "QUEUING", "finished": "SUCCEEDED"}.get(self.state, "RUNNING")
        eventually(lambda: (self.get() or {}).get("status") == wanted, seconds=60, what=f"{self}: {wanted}")

    starting: subprocess.Popen[str] | None = None

    def submit(self, line: str, *more: str) -> subprocess.Popen[str]:
        """Begin to submit the job, with a GPU for each worker."""
        words = ("submit", "pytorch", "-i", self.scene.inventory, f"--name={self.name}", f"--image={self.scene.image}")
        return begun(self.scene.provision, [*words, "--gpus=1", *more, line])

    def get(self) -> dict[str, Any] | None:
        """Return the job as another operator gets it."""
        return self.scene.get(self.name)

    def runs_on(self) -> list[str]:
        """The nodes with a container of the job, by no network."""
        return [node for node in self.scene.nodes if self.scene.on(node, ALIVE.format(name=self.name)).split()]

    def attempts(self) -> set[str]:
        """Return the attempts of which a container runs, on any node."""
        return {one for node in self.scene.nodes for one in self.scene.on(node, ALIVE.format(name=self.name)).split()}

    # The verb

    def words(self) -> tuple[str, ...]:
        """The command line of the verb."""
        return {
            "stop": ("stop", self.name, "--grace", "2s", "--yes"),
            "delete": ("delete", self.name, "--force"),
            "restart": ("restart", self.name, "--yes"),
            "submit": self.words_of_a_second_job(),
            "list": ("list", "--json"),
            "get": ("get", self.name, "--json"),
            "queue run": ("queue", "run"),
            "wait": ("wait", self.name, "--timeout", "3s"),
            "logs": ("logs", self.name),
            "prune": ("prune", "--since", "1s", "--all-users", "--yes"),
        }[self.verb]

    def act(self) -> Done:
        """Run the verb, as the second operator."""
        return self.scene.by(self.scene.other, *self.words(), timeout=300)

    # What has to hold

    def judge_answer(self, *, cut: bool) -> None:
        """Check that the verb reported no end that did not happen, and did not deny a job that exists."""
        done, running = self.done, self.runs_on()
        assert done is not None, f"{self}: the verb did not run"
        assert "Traceback" not in done.err, f"{self}: {done}"
        if self.verb in ENDING and running:
            assert cut, f"{self}: no node is cut off, and it runs on {running}: {done}"
            assert done.code in {NODE_UNREACHABLE, TIMED_OUT}, f"{self}: it runs on {running}: {done}"
            assert self.node in done.err, f"{self}: the message does not name {self.node}: {done}"
        may_be_pruned = self.pruned and self.state in {"finished", "spread"} and self.moment == "during"
        has_no_instance_yet = self.verb == "logs" and self.state in {"waiting", "starting"}
        if self.verb in OF_ONE_JOB and not (self.is_refused() or may_be_pruned or has_no_instance_yet):
            assert done.code != MISSING, f"{self}: the job exists: {done}"
        if running and self.verb in {"list", "get"} and done.code == 0:
            jobs = done.document if self.verb == "list" else [done.document]
            status = {job["name"]: job["status"] for job in jobs}.get(self.name)
            assert status not in OVER, f"{self}: it runs on {running}, and is reported as {status}: {done}"
        if running and self.verb == "wait":
            assert done.code in {NODE_UNREACHABLE, TIMED_OUT}, f"{self}: it runs on {running}: {done}"
        # A stop needs the queue host only for the part of a job there: other nodes confirm the end of their parts.
        needs_head = {"delete", "restart", "submit"} | ({"stop"} if self.state in {*ON_QUEUE_HOST, "spread"} else set())
        if cut and self.moment == "before" and self.node == self.head and self.verb in needs_head:
            assert done.code == NODE_UNREACHABLE, f"{self}: the queue host is cut off: {done}"

    def judge_job_while_cut(self) -> None:
        """Check that the job is listed, that its name is not given away, and that at most one attempt of it runs."""
        self.is_visible()
        running = self.runs_on()
        if running and self.node != self.head:
            again = self.scene.by(self.scene.other, *self.words_of_a_second_job(), timeout=120)
            assert again.code == NAME_TAKEN, f"{self}: another job got the name: {again}"
            if self.verb in ENDING and self.done is not None and self.done.code == NODE_UNREACHABLE:
                assert self.node in again.err, f"{self}: {again}"

    def is_refused(self) -> bool:
        """Return whether the start of the job, beside which the verb ran, has refused the job."""
        return self.starting is not None and self.starting.poll() not in {None, 0}

    def words_of_a_second_job(self) -> tuple[str, ...]:
        """The command line that submits a job of the same name."""
        return (
            "submit", "pytorch", f"--name={self.name}", f"--image={self.scene.image}", f"--nodes={self.head}", "true",
        )  # fmt: skip

    def is_visible(self) -> None:
        """Check that a job that runs is listed as such, or that all nodes that know it are named as unreachable."""
        running = self.runs_on()
        attempts = self.attempts()
        assert len(attempts) <= 1, f"{self}: attempts {sorted(attempts)} run at the same time"
        if not running:
            return
        listed = self.scene.by(self.scene.other, "list", "--json", timeout=120)
        status = {job["name"]: job["status"] for job in listed.document} if listed.code == 0 else {}
        unknown = self.node == self.head and self.node in listed.err
        still = self.runs_on()
        assert self.name in status or unknown or not still, f"{self}: it runs on {running}: {listed}"
        assert status.get(self.name) not in OVER or not still, f"{self}: it runs on {still}: {listed}"

    def judge_afterwards(self) -> None:
        """Check the job when the node is back: verbs that only read jobs have carried out what was requested."""
        if self.starting is not None:
            self.starting.communicate(timeout=300)
        wanted = self.wanted_end()

        def settled() -> bool:
            self.scene.by(self.scene.other, "list")
            status = self.status()
            return status in wanted if wanted else status not in {"STOPPING", ""}

        what = f"{self}: it becomes {' or '.join(sorted(wanted)) or 'other than STOPPING'} (the verb: {self.done})"
        eventually(settled, seconds=CARRIED_OUT_SECONDS, what=what)
        status = self.status()
        if status in OVER or status == GONE:
            self.nothing_runs()
        else:
            self.is_visible()

    def wanted_end(self) -> set[str]:
        """Return the statuses of which the job must have one in the end; empty if any will do.

        The queue host has recorded the end if it was not cut off: then also an end that was not confirmed is final.
        """
        if self.verb not in ENDING or self.done is None or (self.node == self.head and self.done.code != 0):
            return set()
        if self.done.code not in {0, TIMED_OUT, NODE_UNREACHABLE}:
            return set()
        if self.verb == "delete":
            return {GONE}
        over = {"SUCCEEDED"} if self.state == "finished" else OVER  # a stop does not change an ended job
        return {*over, GONE} if self.pruned else set(over)

    pruned: bool = False
    """Whether `prune` runs in the same group, and may remove the job once it has ended."""

    def status(self) -> str:
        """Return the job's status; GONE if there is no such job, empty if no node has it."""
        done = self.scene.by(self.scene.other, "get", self.name, "--json", timeout=60)
        if done.code == MISSING:
            return GONE
        return str(done.document["status"]) if done.code == 0 else ""

    def must_exist(self) -> None:
        """Check that a job that was not deleted is not gone."""
        if not self.is_refused():
            status = eventually(self.status, seconds=CARRIED_OUT_SECONDS, what=f"{self}: its status")
            assert status != GONE, f"{self}: the job is gone, but was not deleted"

    def nothing_runs(self) -> None:
        """No container of the job is left, and no GPU is leased to it."""

        def clean() -> bool:
            self.scene.by(self.scene.other, "list")
            return not self.remains()

        eventually(clean, seconds=CARRIED_OUT_SECONDS, what=f"{self}: nothing is left of it")

    def remains(self) -> list[str]:
        """The containers and leases of the job, by no network."""
        look = REMAINS.format(name=self.name, quoted=f'"job": "{self.name}"')
        return [f"{node} {line}" for node in self.scene.nodes for line in self.scene.on(node, look).split()]

    def clean(self) -> None:
        """Delete the job."""
        Group(self.scene, [self]).clean()


WATCH_START = """
file=/var/lib/provision/jobs/{name}/attempts/1/attempt.json
while [ $SECONDS -lt 12 ] && ! [ -e $file ]; do sleep 0.02; done
"""


@dataclass
class Group:
    """Cases that share one cut: of one state, one moment, one node."""

    scene: Scene
    cases: Sequence[Case]
    since: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        prunes = any(case.verb == "prune" for case in self.cases)
        for case in self.cases:
            # The parts of a job on two nodes end it when no network is left between them.
            ends_by_itself = case.state == "spread" and len(case.interfaces) == len(CUTS[-1])
            case.pruned = prunes and (case.state == "finished" or case.verb == "stop" or ends_by_itself)

    @property
    def first(self) -> Case:
        """A case, for what all have in common."""
        return self.cases[0]

    @property
    def jobs(self) -> list[Case]:
        """One case for each job: its first, which is the one that changes the job if any does."""
        first_cases: dict[str, Case] = {}
        for case in self.cases:
            first_cases.setdefault(case.name, case)
        return list(first_cases.values())

    def run(self) -> None:
        """Prepare the jobs, cut the node off, run the verbs, connect the node again, and judge."""
        try:
            for job in self.jobs:
                job.prepare()
            for case in self.cases:
                case.starting = next(job.starting for job in self.jobs if job.name == case.name)
            self.log("prepared")
            self.run_verbs()
            for job in self.jobs:
                job.judge_afterwards()
            deleted = {case.name for case in self.cases if case.verb == "delete" or case.pruned}
            for job in self.jobs:
                if job.name not in deleted:
                    job.must_exist()
            self.log("judged")
        except BaseException:
            self.scene.by(self.scene.other, "delete", "--force", *(job.name for job in self.jobs))
            raise
        self.clean()
        self.log("clean")

    def run_verbs(self) -> None:
        """Run the verbs, and cut the node off before, during or after that."""
        if self.first.moment == "before":
            with self.first.cut():
                if self.first.state == "starting":
                    self.act_at_once(len(self.cases))
                    self.judge_while_cut()
                else:
                    for case in self.cases:
                        self.act(case)
                        case.judge_answer(cut=True)
                    self.judge_jobs_while_cut()
        elif self.first.moment == "during":
            before = int(self.scene.on(self.first.node, SESSIONS))
            with ThreadPoolExecutor(len(self.cases)) as pool:
                acting = [pool.submit(self.act, case) for case in self.cases]
                self.scene.on(self.first.node, WATCH_SESSION.format(sessions=SESSIONS, before=before))
                time.sleep(self.first.pause)  # the moment is what is tried
                with self.first.cut():
                    self.log(f"cut {self.first.pause:.1f} s after a verb connected")
                    for one in acting:
                        one.result(timeout=320)
                    self.judge_while_cut()
        else:
            if self.first.state == "starting":
                self.act_at_once(len(self.cases))
                for case in self.cases:
                    case.judge_answer(cut=False)
            else:
                for case in self.cases:
                    self.act(case)
                    case.judge_answer(cut=False)
            with self.first.cut():
                for job in self.jobs:
                    job.judge_job_while_cut()

    def act(self, case: Case) -> None:
        """Run the verb of a case."""
        case.done = case.act()
        self.log(f"{case.verb}: exit {case.done.code}")

    def act_at_once(self, count: int) -> None:
        """Run all verbs at the same time."""
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(self.act, self.cases))

    def judge_while_cut(self) -> None:
        """Judge all answers and all jobs."""
        for case in self.cases:
            case.judge_answer(cut=True)
        self.judge_jobs_while_cut()

    def judge_jobs_while_cut(self) -> None:
        """Judge all jobs."""
        for job in self.jobs:
            job.judge_job_while_cut()

    def clean(self) -> None:
        """Delete the jobs: nothing at all is kept of them, and no GPU is leased."""
        names = [job.name for job in self.jobs]

        def deleted() -> bool:
            words = ("delete", "--force", "--ignore-not-found", *names)
            return self.scene.by(self.scene.other, *words, timeout=200).code == 0

        eventually(deleted, seconds=CARRIED_OUT_SECONDS, what=f"{names} are deleted")
        for node in self.scene.nodes:
            names_on_node = self.scene.on(node, "ls -A /var/lib/provision/jobs").split()
            assert not set(names_on_node) & set(names), f"{self.first}: {node} keeps {names_on_node}"
        self.scene.nothing_left(str(self.first))

    def log(self, text: str) -> None:
        """Print progress."""
        case = self.first
        networks = "+".join(case.interfaces)
        about = f"{case.state}, {case.node} cut ({networks}) {case.moment}"
        sys.stdout.write(f"[{time.monotonic() - self.since:5.0f} s] {about}: {text}\n")
        sys.stdout.flush()


def groups_of(scene: Scene, state: str, moment: str, dice: random.Random) -> list[Group]:
    """Return groups with a case for every verb."""
    node = scene.nodes[0 if state in ON_QUEUE_HOST else -1]

    def group(part: int, verbs: Sequence[str]) -> Group:
        """Make a group; verbs that only read jobs share one."""
        own = {*ENDING, "restart", *(["prune"] if state == "finished" else [])}
        shared = state == "starting"
        interfaces, pause = dice.choice(CUTS), dice.uniform(0, 2)
        cases = [
            Case(
                scene,
                f"{state}-{moment}-{part}-{verb if verb in own and not shared else 'read'}",
                state,
                verb,
                moment,
                node,
                interfaces,
                pause,
            )
            for verb in verbs
        ]
        return Group(scene, cases)

    return [group(part, verbs) for part, verbs in enumerate(BESIDE_A_START if state == "starting" else (VERBS,))]


def random_case(scene: Scene, dice: random.Random, number: int) -> Case:
    """Draw a case; half of them end a job."""
    verb = dice.choice(ENDING) if dice.random() < 0.5 else dice.choice(VERBS)
    return Case(
        scene,
        f"part-{number}",
        dice.choice(STATES),
        verb,
        dice.choice(MOMENTS),
        dice.choice((scene.nodes[0], scene.nodes[-1], scene.nodes[-1])),
        dice.choice(CUTS),
        dice.uniform(0, 4),
    )
