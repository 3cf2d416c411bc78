"""Many jobs of three users on a Slurm cluster, through our commands and plain ``sbatch`` at once.

What the jobs had is recorded by the jobs on the nodes, and by a watch of the Docker engines. The GPUs are
SIMULATED.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from tests.integration.slurm_scene import SlurmScene, slurm_scene_of_a_lab
from tests.integration.test_many_jobs import SEEN, WATCH, uses
from tests.support.command import ROOT, Provision, eventually

LAB = f"sload{os.getpid()}"
PREFIX = f"load{os.getpid()}-"
JOBS = int(os.environ.get("SLURM_JOBS") or 500)
USERS = {"anna": 3001, "boris": 3002, "carol": 3003}
GPUS, NODES = 8, 4
RECORDER = ROOT / "tests/support/node/gpu_record.sh"
COMPARE_SECONDS = 20.0
RECORDS = "/var/lib/gpu-record"
SECRET = "s3cret-of-many-jobs"
PLACES = "/var/lib/slurm /var/log/slurm /var/lib/provision /run/provision /etc/slurm /var/log/syslog /var/log/journal"
SIZES = ((1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 2), (8, 2))
WEIGHTS = (10, 6, 4, 2, 2, 2, 1)
METHODS = {"sbatch": 12, "process": 5, "container": 3}
"""Method of submission -> its weight."""
ENDS = {"COMPLETED": "SUCCEEDED", "FAILED": "FAILED"}
LIST_WORDS = {"PENDING": {"PENDING"}, "RUNNING": {"PENDING", "RUNNING", *ENDS.values()}, **{
    state: {word} for state, word in ENDS.items()
}}  # fmt: skip
"""State in Slurm -> the statuses that `list` may show: a job is RUNNING in Slurm from the start of its starter on."""
LEFT_OF_USERS = "pgrep -a -u anna,boris,carol; ss -Hltn 'sport >= 20000 and sport < 32000'; true"

pytestmark = pytest.mark.long


@dataclass(frozen=True)
class Load:
    """One job."""

    name: str
    user: str
    method: str
    """sbatch, process or container."""
    gpus: int
    """Of a worker, or with sbatch of a node."""
    workers: int
    seconds: int
    code: int
    exact: int
    """Minor number of the GPU that a job of one GPU asks for with sbatch; -1: any."""
    is_secret: bool

    @property
    def line(self) -> str:
        """The program."""
        if self.method == "container":
            return f"sleep {self.seconds}; exit {self.code}"
        return f"{RECORDS}/gpu_record.sh {self.name} {self.seconds} {self.code}"

    def submit_words(self, scene: SlurmScene) -> list[str]:
        """Return the words of our command."""
        how = ["--no-container"] if self.method == "process" else [f"--image={scene.image}"]
        size = [f"--gpus={self.gpus}", f"--workers={self.workers}", *(["--env=TOKEN"] if self.is_secret else [])]
        return ["submit", "run", f"--name={self.name}", *how, *size, self.line]

    def sbatch_line(self) -> str:
        """Return the shell line of plain sbatch."""
        gpus = f"--gres=gpu:g{self.exact}:1" if self.exact >= 0 else f"--gpus-per-node={self.gpus}"
        program = self.line if self.workers == 1 else f"srun -N{self.workers} -n{self.workers} {self.line}"
        words = f"--job-name={self.name} -N{self.workers} -n{self.workers} {gpus} --mem=100 -t 10 -o /dev/null"
        return f"runuser -u {self.user} -- sbatch --parsable {words} --wrap '{program}'"


def loads(count: int, chance: random.Random) -> list[Load]:
    """Return jobs of all users, methods and sizes; the first one has all GPUs."""
    made = [Load(f"{PREFIX}0", "anna", "sbatch", GPUS, NODES, 1, 0, -1, is_secret=False)]
    for number in range(1, count):
        (gpus, workers), method = (
            chance.choices(SIZES, WEIGHTS)[0],
            chance.choices(list(METHODS), list(METHODS.values()))[0],
        )
        made.append(
            Load(
                f"{PREFIX}{number}", chance.choice(list(USERS)), method, gpus, workers, chance.randint(1, 4),
                3 if chance.random() < 0.05 else 0,
                chance.randrange(GPUS) if (gpus, workers) == (1, 1) and chance.random() < 0.2 else -1,
                chance.random() < 0.2,
            )
        )  # fmt: skip
    return made


@dataclass
class SlurmCrowd:
    """The users with their jobs."""

    scene: SlurmScene
    loads: list[Load]
    minors: dict[str, str] = field(default_factory=dict)
    """UUID -> node and minor number."""

    def set_up(self) -> None:
        """Add the users and the recorder to all nodes, and begin to watch the Docker engines."""
        recorder = RECORDER.read_text()
        for node in self.scene.everywhere:
            for user, number in USERS.items():
                self.scene.on(node, f"id {user} >/dev/null 2>&1 || useradd -u {number} -m {user}")
            self.scene.on(node, f"install -d -m 1777 {RECORDS}; cat >{RECORDS}/gpu_record.sh <<'END'\n{recorder}\nEND")
            self.scene.on(
                node, f"cd {RECORDS}; chmod 755 gpu_record.sh; rm -f records; install -m 666 /dev/null records"
            )
        for node in self.scene.nodes:
            self.scene.on(node, f": >{SEEN}; cat >/run/gpu_watch.py <<'END'\n{WATCH.read_text()}\nEND")
            self.scene.on(node, f"systemd-run --collect --unit gpu-watch python3 /run/gpu_watch.py {SEEN}")
            self.minors |= {uuid: f"{node}/{minor}" for uuid, minor in minors_of(self.scene.on(node, "nvidia-smi -q"))}

    def submit(self) -> None:
        """Submit the first half while the partition is down, so that all of these jobs wait for GPUs, then the rest."""
        half = len(self.loads) // 2
        self.scene.on(self.scene.controller, "scontrol update PartitionName=gpu State=DOWN")
        self.submit_all(self.loads[:half])
        self.scene.on(self.scene.controller, "scontrol update PartitionName=gpu State=UP")
        self.submit_all(self.loads[half:])

    def submit_all(self, loads: Sequence[Load]) -> None:
        """Let each user submit all of their jobs, with our command or with sbatch."""

        def one_user(user: str) -> None:
            operator = self.scene.operator(user)
            operator.environment["TOKEN"] = SECRET
            for load in loads:
                if load.user == user and load.method == "sbatch":
                    self.scene.on(self.scene.controller, load.sbatch_line())
                elif load.user == user:
                    done = self.scene.by(operator, *load.submit_words(self.scene))
                    assert done.code == 0, f"{load}: {done}"

        with ThreadPoolExecutor(len(USERS)) as pool:
            list(pool.map(one_user, USERS))

    def run(self) -> None:
        """Submit all jobs and wait until all have ended; compare both tools meanwhile."""
        try:
            with ThreadPoolExecutor(1) as pool:
                submitting = pool.submit(self.submit)
                while wait([submitting], timeout=COMPARE_SECONDS).not_done:
                    self.assert_same_states()
                submitting.result()
            eventually(self.all_ended, seconds=120 + 10 * len(self.loads), what="all jobs have ended")
        finally:
            for node in self.scene.nodes:
                self.scene.on(node, "systemctl stop gpu-watch")

    def all_ended(self) -> bool:
        """Compare both tools; return whether Slurm's queue is empty."""
        self.assert_same_states()
        return self.scene.on(self.scene.controller, "squeue -h") == ""

    def listed(self) -> dict[str, dict[str, Any]]:
        """Return our jobs by name."""
        done = self.scene.by(self.scene.other, "list", "-o", "json")
        assert done.code == 0, str(done)
        return {job["name"]: job for job in done.document}

    def in_slurm(self) -> dict[str, list[str]]:
        """Return name -> number, state, exit status and nodes of all jobs of this test in Slurm."""
        rows = self.scene.squeue("JobID Name State exit_code NodeList")
        return {row[1]: [row[0], *row[2:]] for row in rows if row[1].startswith(PREFIX)}

    def assert_same_states(self) -> None:
        """Compare the statuses of `list` with the states in Slurm that were the same before and after it."""
        before, listed, after = self.in_slurm(), self.listed(), self.in_slurm()
        wrong = {
            name: (job["status"], job["reason"], after[name])
            for name, job in listed.items()
            if name in before and before[name] == after.get(name) and after[name][1] in LIST_WORDS
            if job["status"] not in LIST_WORDS[after[name][1]]
        }
        assert not wrong, f"(status, reason, state in Slurm) by job: {wrong}"

    def spans(self) -> dict[str, list[tuple[float, float, str]]]:
        """Return node/minor -> (begin, end, job) of each job that had this GPU, in the order of time."""
        spans: dict[str, list[tuple[float, float, str]]] = {}
        for node in self.scene.nodes:
            for name, begin, end, first, last in self.records(node):
                assert first == last, f"{name} on {node} had other GPUs at its end: {first}, {last}"
                for gpu in filter(None, first.split(",")):
                    key = self.minors[gpu] if gpu.startswith("GPU-") else f"{node}/{gpu}"
                    spans.setdefault(key, []).append((float(begin), float(end), name))
        for gpu, of_containers in uses(list(self.seen())).items():
            spans.setdefault(self.minors[gpu], []).extend(of_containers)
        return {gpu: sorted(of_gpu) for gpu, of_gpu in spans.items()}

    def seen(self) -> Iterator[dict[str, Any]]:
        """Yield the events of the Docker engines of all nodes."""
        for node in self.scene.nodes:
            yield from map(json.loads, self.scene.on(node, f"cat {SEEN}").splitlines())

    def records(self, node: str) -> Iterator[list[str]]:
        """Yield name, begin, end, and GPUs at the beginning and the end of the programs on a node."""
        for line in self.scene.on(node, f"cat {RECORDS}/records").splitlines():
            yield line.split("|")


def minors_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield UUID and minor number of each GPU in the output of ``nvidia-smi -q``."""
    for part in re.split(r"(?m)^GPU ", text)[1:]:
        uuid, minor = re.search(r"GPU UUID\s*: (\S+)", part), re.search(r"Minor Number\s*: (\d+)", part)
        assert uuid is not None
        assert minor is not None
        yield uuid[1], minor[1]


def assert_no_gpu_is_used_twice(crowd: SlurmCrowd) -> None:
    """At no time two jobs had a GPU, and each job had as many as it asked for."""
    spans, counts = crowd.spans(), dict[str, int]()
    for gpu, of_gpu in spans.items():
        twice = [(before, after) for before, after in pairwise(of_gpu) if before[1] > after[0]]
        assert not twice, f"{gpu} was used twice: {twice}"
        for _, _, name in of_gpu:
            counts[name] = counts.get(name, 0) + 1
    wrong = {
        load.name: counts.get(load.name, 0)
        for load in crowd.loads
        if counts.get(load.name, 0) != load.gpus * load.workers
    }
    listed, in_slurm = (crowd.listed(), crowd.in_slurm()) if wrong else ({}, {})
    known = {name: (count, listed.get(name), in_slurm.get(name)) for name, count in wrong.items()}
    assert not wrong, f"number of GPUs, job and state in Slurm of jobs with another number of GPUs: {known}"
    assert len(spans) == GPUS * len(crowd.scene.nodes), f"GPUs that no job used: {len(spans)} were used"


def completions(text: str) -> dict[str, tuple[str, str, str]]:
    """Return number of a job -> name, state and nodes of the lines of jobcomp.txt."""
    fields = (dict(word.split("=", 1) for word in line.split() if "=" in word) for line in text.splitlines())
    return {one["JobId"]: (one["Name"], one["JobState"], one["NodeList"]) for one in fields}


def assert_both_tools_agree(crowd: SlurmCrowd) -> None:
    """Status, exit code and nodes are the same in `list`, squeue, jobcomp and sacct."""
    scene, listed, in_slurm = crowd.scene, crowd.listed(), crowd.in_slurm()
    recorded = completions(scene.on(scene.controller, "cat /var/log/slurm/jobcomp.txt"))
    shown = scene.on(scene.controller, "sacct -c -n -P -o jobid,jobname,state,nodelist").splitlines()
    accounted = {line.split("|")[0]: tuple(line.split("|")[1:]) for line in shown}
    assert sorted(in_slurm) == sorted(load.name for load in crowd.loads)
    for load in crowd.loads:
        number, state, code, nodes = in_slurm[load.name]
        assert (state, int(code) >> 8) == ("FAILED" if load.code else "COMPLETED", load.code), load
        assert recorded[number] == (load.name, state, nodes), load
        assert accounted[number] == (load.name, state, nodes), load
        if load.method != "sbatch":
            job = listed[load.name]
            assert (job["status"], job["exitCode"] or 0) == (ENDS[state], load.code), (load, job)
            own = {one["node"] for one in job["instances"]}
            assert own == set(scene.on(scene.controller, f"scontrol show hostnames {nodes}").split()), (load, job)
            assert job["owner"].partition("@")[0] == load.user, (load, job)


def assert_nothing_is_left(crowd: SlurmCrowd) -> None:
    """Neither containers, processes, units, leases, ports and files of jobs, nor secrets in clear."""
    scene = crowd.scene
    scene.nothing_left("after all jobs")
    pattern = f"printf '%s%s\\n' {SECRET[:6]} {SECRET[6:]} >/run/pattern"  # no argument has the secret
    for node in scene.everywhere:
        assert scene.on(node, LEFT_OF_USERS) == "", node
        scene.on(node, pattern)
        assert scene.on(node, f"grep -rlF -f /run/pattern {PLACES} 2>/dev/null; rm /run/pattern") == "", node
    ours = [load.name for load in crowd.loads if load.method != "sbatch"]
    scene.forget(ours)
    assert crowd.listed() == {}


@pytest.fixture
def scene(provision: Provision) -> Iterator[SlurmScene]:
    """A controller and four nodes of eight GPUs."""
    with slurm_scene_of_a_lab(provision, LAB, computes=NODES, machine="dgx1v") as made:
        yield made


def test_many_jobs_of_three_users_share_the_gpus(scene: SlurmScene) -> None:
    """No GPU is used twice, both tools report the same, and nothing is left."""
    jobs = loads(JOBS, random.Random(24))  # noqa: S311 - to be repeated
    crowd = SlurmCrowd(scene, jobs)
    crowd.set_up()
    crowd.run()

    assert_no_gpu_is_used_twice(crowd)
    assert_both_tools_agree(crowd)
    assert_nothing_is_left(crowd)
