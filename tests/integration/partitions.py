"""Job verbs while a node is cut off: the states of a job, how a node is cut, and what has to hold afterwards."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.integration.job_faults import OVER, Scene, begun
from tests.support.command import Done, eventually

__all__ = ["CUTS", "MOMENTS", "STATES", "VERBS", "Case", "cut_off"]

STATES = ("waiting", "starting", "running", "spread", "on-head", "finished")
"""Of the job: in the queue; being started; on the last node; on two nodes; on the queue host; over."""
MOMENTS = ("before", "during", "after")
"""When the node is cut off: before the verb, while it is at work, after it."""
CUTS = (("eth0",), ("eth0", "eth1"))
"""The management network alone, or all networks."""
VERBS = ("stop", "delete", "restart", "submit", "list", "get", "queue run", "wait", "logs", "prune")
ENDING = ("stop", "delete")
NODE_UNREACHABLE, NAME_TAKEN = 7, 4
CARRIED_OUT_SECONDS = 90.0
"""So long after a node is back a requested end is carried out, by verbs that only look."""
ALIVE = "docker ps -q --filter label=provision.job={name}"
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

    def run(self) -> None:
        """Bring the job into its state, cut the node off, run the verb, connect the node again, and judge."""
        self.prepare()
        if self.moment == "before":
            with self.cut():
                self.judge_while_cut(self.act())
        elif self.moment == "during":
            done = self.act_and_cut()
            self.judge_end(done)
        else:
            done = self.act()
            self.judge_end(done)
            with self.cut():
                self.is_visible()
        self.judge_afterwards()
        self.clean()

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Cut the node off for a while."""
        with cut_off(self.scene, self.node, self.interfaces):
            yield

    # The job

    def prepare(self) -> None:
        """Submit the job, and wait for the state that is wanted."""
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
        """What another operator is told of the job."""
        return self.scene.get(self.name)

    def runs_on(self) -> list[str]:
        """The nodes with a container of the job, by no network."""
        return [node for node in self.scene.nodes if self.scene.on(node, ALIVE.format(name=self.name)).split()]

    # The verb

    def words(self) -> tuple[str, ...]:
        """The command line of the verb."""
        return {
            "stop": ("stop", self.name, "--grace", "2s"),
            "delete": ("delete", self.name, "--force"),
            "restart": ("restart", self.name),
            "submit": self.words_of_a_second_job(),
            "list": ("list", "--json"),
            "get": ("get", self.name, "--json"),
            "queue run": ("queue", "run"),
            "wait": ("wait", self.name, "--timeout", "3s"),
            "logs": ("logs", self.name),
            "prune": ("prune", "--since", "1s"),
        }[self.verb]

    def act(self) -> Done:
        """Run the verb, as the second operator."""
        return self.scene.by(self.scene.other, *self.words(), timeout=300)

    def act_and_cut(self) -> Done:
        """Run the verb, and cut the node off while it is at work."""
        found: list[Done] = []
        acting = threading.Thread(target=lambda: found.append(self.act()))
        acting.start()
        time.sleep(self.pause)  # the moment is what is tried
        with self.cut():
            acting.join(timeout=320)
            assert found, f"{self}: the verb did not end"
            self.judge_while_cut(found[0])
        return found[0]

    # What has to hold

    def judge_end(self, done: Done) -> None:
        """A verb that reports an end is right: nothing of the job runs anywhere."""
        if self.verb == "stop" and done.code == 0:
            assert not self.runs_on(), f"{self}: it runs on {self.runs_on()}, and stop says: {done}"
        if self.verb == "delete" and done.code == 0:
            assert not self.runs_on(), f"{self}: it runs on {self.runs_on()}, and delete says: {done}"
        assert "Traceback" not in done.err, f"{self}: {done}"

    def judge_while_cut(self, done: Done) -> None:
        """No false end; whoever did not get an end is told so; the job is seen, and nobody else gets its name."""
        self.judge_end(done)
        running = self.runs_on()
        if self.verb in ENDING and running:
            assert done.code in {NODE_UNREACHABLE, 6}, f"{self}: it runs on {running}: {done}"
            assert self.node in done.err, f"{self}: {done}"
        self.is_visible()
        if running and self.node != self.head:
            again = self.scene.by(self.scene.other, *self.words_of_a_second_job(), timeout=120)
            assert again.code == NAME_TAKEN, f"{self}: another job got the name: {again}"
            if self.verb in ENDING and done.code == NODE_UNREACHABLE:
                assert self.node in again.err, f"{self}: {again}"

    def words_of_a_second_job(self) -> tuple[str, ...]:
        """The command line that submits a job of the same name."""
        return (
            "submit", "pytorch", f"--name={self.name}", f"--image={self.scene.image}", f"--nodes={self.head}", "true",
        )  # fmt: skip

    def is_visible(self) -> None:
        """A job that runs is listed, or the only nodes that know it are named as unreachable."""
        running = self.runs_on()
        if not running:
            return
        listed = self.scene.by(self.scene.other, "list", "--json", timeout=120)
        names = [job["name"] for job in listed.document] if listed.code == 0 else []
        unknown = all(node in listed.err for node in {*running, self.head} & {self.node})
        assert self.name in names or (self.node == self.head and unknown), f"{self}: it runs on {running}: {listed}"

    def judge_afterwards(self) -> None:
        """The node is back: what was requested is carried out by verbs that only look, and all of it is consistent."""
        if self.starting is not None:
            self.starting.communicate(timeout=300)
        end, job = time.monotonic() + CARRIED_OUT_SECONDS, self.get()
        requested = job is not None and job["status"] == "STOPPING"
        while requested and time.monotonic() < end:
            listed = {one["name"]: one for one in self.scene.by(self.scene.other, "list", "--json").document}
            requested = listed.get(self.name, {}).get("status") == "STOPPING"
        assert not requested, f"{self}: still STOPPING: {self.get()}"
        job = self.get()
        if job is None or job["status"] in OVER:
            self.nothing_runs()
        else:
            self.is_visible()

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
        """The job can be deleted now; nothing at all is kept of it."""

        def deleted() -> bool:
            return self.scene.by(self.scene.other, "delete", self.name, "--force", timeout=200).code in {0, 3}

        eventually(deleted, seconds=CARRIED_OUT_SECONDS, what=f"{self}: it is deleted")
        self.nothing_runs()
        for node in self.scene.nodes:
            kept = self.scene.on(node, "ls -A /var/lib/provision/jobs").split()
            assert self.name not in kept, f"{self}: {node} keeps {kept}"


WATCH_START = """
file=/var/lib/provision/jobs/{name}/attempts/1/attempt.json
while [ $SECONDS -lt 12 ] && ! [ -e $file ]; do sleep 0.02; done
"""


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
