"""Batch jobs on a real Slurm that is configured by hand, on two nodes with two SIMULATED GPUs each.

The first node is Slurm's controller and the queue host, and runs jobs as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provision.batch.slurm.states import gpu_counts
from tests.integration.slurm_by_hand import nothing_is_left, on, slurm_jobs
from tests.support.command import Provision, eventually
from tests.support.jobs import Jobs

LAB = f"slurm{os.getpid()}"
FIRST, SECOND = f"{LAB}-1", f"{LAB}-2"
SECRET = "s3cret-of-the-job"
SAVES = "trap 'echo saved; exit 0' TERM; echo begun; while true; do sleep 0.2; done"
RUNS = "echo begun; while true; do sleep 0.2; done"
PLACES = "/var/lib/slurm /var/log/slurm /var/lib/provision/slurm /var/log/syslog /var/log/journal"

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def slurm(provision: Provision) -> Iterator[Jobs]:
    """Job verbs for a lab that Slurm schedules."""
    with slurm_jobs(provision, LAB, machine="pair", gpus=2, cpus=2) as jobs:
        yield jobs


@pytest.fixture(autouse=True)
def nothing_left(slurm: Jobs) -> Iterator[None]:
    """Each test ends without jobs, containers and leases."""
    yield
    nothing_is_left(slurm, seconds=60)


def number_of(jobs: Jobs, name: str) -> str:
    """Return the number of a job in Slurm."""
    return on(jobs, FIRST, f"squeue -h -t all -n {name} -o %A").split()[-1]


def gpus_of(job: Any) -> dict[str, list[str]]:
    """Return node -> UUIDs of the GPUs of a job."""
    return {node: sorted(uuids) for node, uuids in job["leases"].items()}


def test_a_job_of_two_nodes_gets_the_gpus_that_slurm_allocated(slurm: Jobs) -> None:
    """Both tools report the same GPUs; ranks have the variables of torch."""
    slurm.submit("pytorch", "mnist", "--workers=2", "--gpus=2", f"env; {RUNS}")
    job = slurm.until("mnist", "RUNNING")
    number = number_of(slurm, "mnist")
    allocated = on(slurm, FIRST, f"scontrol show job -d -o {number}")
    variables = dict(line.split("=", 1) for line in slurm.logs("mnist", "mnist-worker-0") if "=" in line)

    assert {node: len(uuids) for node, uuids in gpus_of(job).items()} == {FIRST: 2, SECOND: 2}
    assert gpu_counts(allocated) == {FIRST: 2, SECOND: 2}
    assert (variables["RANK"], variables["WORLD_SIZE"]) == ("1", "2")
    assert sorted(variables["NVIDIA_VISIBLE_DEVICES"].split(",")) == gpus_of(job)[SECOND]
    assert on(slurm, FIRST, f"squeue -h -j {number} -o '%T %k'").split("@")[0] == "RUNNING provision:mnist"


def test_ranks_of_mpi_find_each_other(slurm: Jobs) -> None:
    line = "mpirun --allow-run-as-root -np 4 sh -c 'echo rank $OMPI_COMM_WORLD_RANK on $(hostname)'"
    slurm.submit("mpi", "ranks", "--workers=4", "--gpus=1", line)
    slurm.until("ranks", "SUCCEEDED", "FAILED")

    assert sorted(line for line in slurm.logs("ranks") if line.startswith("rank")) == [
        f"rank {rank} on {node}" for rank, node in enumerate((FIRST, FIRST, SECOND, SECOND))
    ]


def test_nodes_of_a_job_may_have_different_numbers_of_gpus(slurm: Jobs) -> None:
    """Slurm leaves a step waiting that asks for its GPUs by a total, on the node with fewer of them."""
    slurm.submit("run", "uneven", "--workers=3", "--gpus=1", "echo $NVIDIA_VISIBLE_DEVICES")
    slurm.until("uneven", "SUCCEEDED", "FAILED")
    used = [slurm.logs("uneven", f"uneven-worker-{rank}")[0] for rank in range(3)]

    assert len(set(used)) == 3


def test_no_gpu_is_used_twice(slurm: Jobs) -> None:
    """Six jobs of one GPU on four GPUs: two wait, with the reason."""
    for index in range(6):
        slurm.submit("run", f"one{index}", "--gpus=1", SAVES)
    for index in range(4):
        slurm.until(f"one{index}", "RUNNING")
    jobs = {job["name"]: slurm.get(job["name"]) for job in slurm.ok("list", "-o", "json").document}
    used = [uuid for job in jobs.values() for uuids in gpus_of(job).values() for uuid in uuids]

    assert len(used) == len(set(used)) == 4
    assert sorted(job["status"] for job in jobs.values()) == ["PENDING"] * 2 + ["RUNNING"] * 4
    assert {job["code"] for job in jobs.values() if job["status"] == "PENDING"} <= {
        "slurm.resources", "slurm.priority",
    }  # fmt: skip
    slurm.ok("stop", "one0")
    slurm.until("one4", "RUNNING")


def test_the_exit_code_of_a_rank_is_that_of_the_job(slurm: Jobs) -> None:
    slurm.submit("run", "fails", "--workers=2", "--gpus=1", "exit 7")
    job = slurm.until("fails", "FAILED")

    assert (job["exitCode"], job["attempt"]) == (7, 1)
    shown = "squeue -h -t all -n fails -O exit_code:9,State:12"
    eventually(lambda: on(slurm, FIRST, shown).split() == ["1792", "FAILED"], seconds=30, what="the end in Slurm")


def test_a_failed_job_is_tried_again(slurm: Jobs) -> None:
    line = "if [ -e /tmp/shared/tried ]; then echo second; else touch /tmp/shared/tried; exit 3; fi"
    on(slurm, FIRST, "rm -rf /srv/retry; mkdir -p /srv/retry")
    on(slurm, SECOND, "rm -rf /srv/retry; mkdir -p /srv/retry")
    slurm.submit("run", "again", "--retry=1", f"--nodes={FIRST}", "--mount=/srv/retry:/tmp/shared", line)
    job = slurm.until("again", "SUCCEEDED", "FAILED")

    assert (job["status"], job["attempt"], slurm.logs("again")) == ("SUCCEEDED", 2, ["second"])


def test_stop_gives_the_job_time_to_save(slurm: Jobs) -> None:
    slurm.submit("pytorch", "long", "--workers=2", "--gpus=1", SAVES)
    slurm.until("long", "RUNNING")
    slurm.ok("stop", "long")
    job = slurm.until("long", "STOPPED")

    assert slurm.logs("long")[-1] == "saved"
    assert job["leases"] == {}


def test_scancel_gives_the_job_time_to_save(slurm: Jobs) -> None:
    """Users of Slurm stop jobs with its own command."""
    slurm.submit("pytorch", "long", "--workers=2", "--gpus=1", SAVES)
    slurm.until("long", "RUNNING")
    on(slurm, FIRST, f"scancel {number_of(slurm, 'long')}")
    job = slurm.until("long", "STOPPED")

    assert slurm.logs("long")[-1] == "saved"
    assert (job["reason"], job["leases"]) == ("cancelled in Slurm", {})
    assert on(slurm, FIRST, "find /run/provision/slurm -name 'starter-*'") == ""


def test_nothing_of_a_killed_job_stays(slurm: Jobs) -> None:
    """Without an epilog too: when the starter is gone, its supervisors end the job."""
    slurm.submit("pytorch", "killed", "--workers=2", "--gpus=2", SAVES)
    slurm.until("killed", "RUNNING")
    on(slurm, FIRST, f"scancel --signal=KILL --batch {number_of(slurm, 'killed')}")
    slurm.until("killed", "STOPPED")
    slurm.submit("run", "next", "--gpus=2", "--workers=2", "echo ran")

    slurm.until("next", "SUCCEEDED", "FAILED")
    assert slurm.logs("next") == ["ran"]


def test_secrets_are_on_the_nodes_only_in_the_job(slurm: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in no script, record, log, argument or accounting of Slurm, and on the queue host until the end."""
    monkeypatch.setitem(slurm.provision.environment, "TOKEN", SECRET)
    slurm.submit("pytorch", "secret", "--workers=2", "--env=TOKEN", f"echo ${{#TOKEN}}; {RUNS}")
    slurm.until("secret", "RUNNING")
    assert slurm.logs("secret")[0] == str(len(SECRET))
    arguments = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f; echo; done"
    for node in (FIRST, SECOND):
        # The secret is in a file here, so that no argument of the search has it.
        on(slurm, node, f"printf '%s%s\\n' {SECRET[:6]} {SECRET[6:]} >/run/pattern")
        assert on(slurm, node, f"grep -rlF -f /run/pattern {PLACES} 2>/dev/null; true") == ""
        assert on(slurm, node, f"{arguments} 2>/dev/null | grep -F -f /run/pattern; true") == ""
        on(slurm, node, "rm /run/pattern")
    assert SECRET not in on(slurm, FIRST, "scontrol show job; cat /var/log/slurm/jobcomp.txt")
    slurm.ok("stop", "secret")
    slurm.until("secret", "STOPPED")
    for node in (FIRST, SECOND):
        assert on(slurm, node, f"grep -rl '{SECRET}' /var/lib/provision /run/provision 2>/dev/null; true") == ""


def test_a_job_that_can_never_start_is_refused(slurm: Jobs) -> None:
    done = slurm.submit("run", "never", "--gpus=3", "true", code=5)

    assert "Requested node configuration is not available" in done.err
    assert slurm("get", "never").code == 3


def test_a_failed_start_says_why(slurm: Jobs) -> None:
    done = slurm("submit", "run", "--name=noimage", "--image=127.0.0.1:9/none:1", "--gpus=1", "true")
    assert done.code == 0, str(done)
    job = slurm.until("noimage", "FAILED")

    assert job["code"] == "job.start_failed"
    assert "127.0.0.1:9/none:1" in job["reason"]


def test_dependent_and_held_jobs_wait_in_slurm(slurm: Jobs) -> None:
    slurm.submit("run", "held", "--hold", "echo first")
    slurm.submit("run", "after", "--depends=held", "echo second")
    assert slurm.get("held")["status"] == "QUEUING"
    assert slurm.get("after")["code"] == "slurm.dependency"
    slurm.ok("queue release", "held")

    slurm.until("after", "SUCCEEDED")
    assert slurm.logs("after") == ["second"]


def test_a_restart_is_the_next_attempt(slurm: Jobs) -> None:
    slurm.submit("run", "twice", "echo hello")
    slurm.until("twice", "SUCCEEDED")
    slurm.ok("restart", "twice")
    job = eventually(
        lambda: (one := slurm.get("twice"))["attempt"] == 2 and one["status"] == "SUCCEEDED" and one,
        seconds=60, what="the second attempt",
    )  # fmt: skip

    assert job["status"] == "SUCCEEDED"


def test_drained_nodes_take_no_jobs_in_both_tools(slurm: Jobs) -> None:
    slurm.ok("node drain", SECOND, "--reason", "memory errors")
    assert "provision: memory errors" in on(slurm, FIRST, f"sinfo -h -N -n {SECOND} -o '%T %E'")
    slurm.submit("run", "wide", "--workers=2", "--gpus=2", "echo ran")
    waiting = slurm.get("wide")
    assert (waiting["status"], waiting["code"]) == ("PENDING", "slurm.nodes_unavailable")
    slurm.ok("node resume", SECOND)

    slurm.until("wide", "SUCCEEDED")


def test_jobs_of_other_users_of_slurm_count(slurm: Jobs) -> None:
    """A plain job has a GPU: both tools show it, and jobs of ours wait."""
    number = on(slurm, FIRST, "sbatch --parsable -N2 --gpus-per-node=2 --mem=100 --wrap 'sleep 600'").strip()
    eventually(
        lambda: on(slurm, FIRST, f"squeue -h -j {number} -o %T").strip() == "RUNNING", seconds=30, what="a start"
    )
    try:
        nodes = slurm.ok("top node", "-o", "json").document["nodes"]
        slurm.submit("run", "mine", "--gpus=1", "true")
        assert [gpu["foreign"] for node in nodes for gpu in node["gpus"]] == ["a job in Slurm"] * 4
        assert slurm.get("mine")["status"] == "PENDING"
    finally:
        on(slurm, FIRST, f"scancel {number}")
    slurm.until("mine", "SUCCEEDED")


def test_run_reserves_gpus_in_slurm(slurm: Jobs) -> None:
    """`provision run` does not compete with the queue, and leaves no allocation."""
    slurm.submit("run", "busy", "--gpus=2", SAVES)
    slurm.until("busy", "RUNNING")
    done = slurm("run", "--", "true")
    assert done.code == 125, str(done)
    assert "busy" in done.err
    slurm.ok("stop", "busy")
    slurm.until("busy", "STOPPED")
    done = slurm("run", "--", "sh", "-c", "echo ran")
    assert done.code == 0, str(done)
    assert on(slurm, FIRST, "squeue -h") == ""


def test_the_engine_direct_is_refused_where_slurm_schedules(slurm: Jobs) -> None:
    """The inventory does not mention Slurm here: the nodes refuse."""
    direct = Jobs(slurm.provision, "direct", LAB)
    done = direct("submit", "run", "--name=other", f"--image={slurm.image}", "--gpus=1", "true")
    waiting = direct.get("other") if done.code == 0 else None

    assert waiting is None or (waiting["status"] == "PENDING" and "Slurm schedules this node" in waiting["reason"])
    direct("delete", "--force", "other")


def test_packed_code_reaches_all_nodes(slurm: Jobs, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("print('from the submitter')\n")
    words = ("--sync-mode=local", f"--sync-source={tmp_path}/code", "--workers=2", "--gpus=1")
    slurm.submit("run", "code", *words, "python3 code/code/train.py")
    slurm.until("code", "SUCCEEDED", "FAILED")

    assert slurm.logs("code", "code-worker-1") == ["from the submitter"]
