"""Batch jobs whose ranks are processes of the nodes themselves (``--no-container``), on SIMULATED GPUs.

Open MPI is not on the lab's nodes: of mpi what is shown is the way by SSH that its mpirun takes.
"""

from __future__ import annotations

import os
import time

import pytest

from tests.integration.conftest import LAB
from tests.support.command import Provision, eventually

NODES = (f"{LAB}-1", f"{LAB}-2")
LEFT = (
    "ls /run/provision/leases /run/provision/units | grep -v : || true; systemctl list-units --no-legend --all "
    "'provision-rank-*' 'provision-job-*'; ps axww -o args | grep '[s]leep 43[0-9][0-9]'; ls -d /provision* /srv/host "
    "2>/dev/null; true"
)
"""Leases, units, processes and folders to mount upon."""
DAEMON = "(setsid sh -c 'trap \"\" TERM; exec sleep 4321' >/dev/null 2>&1 &); setsid sleep 4322 & "


def submit(jobs, kind, name, *words):
    return jobs.ok("submit", kind, f"--name={name}", "--no-container", *words)


def left(on_node):
    """What an ended job has left on its nodes."""
    return {node: on_node(node, LEFT).split() for node in NODES}


NOTHING = {node: [] for node in NODES}


@pytest.mark.row(12)
def test_ranks_are_processes_of_their_nodes(jobs, on_node):
    """They know their ranks and see their GPUs; the first failure is the job's reason."""
    line = 'echo "$RANK of $WORLD_SIZE, $(hostname), $CUDA_VISIBLE_DEVICES"; pwd; '
    end = 'if [ "$RANK" = 1 ]; then sleep 1; exit 7; fi; exec sleep 4300'
    submit(jobs, "pytorch", "bare", "--gpus=2", "--workers=2", "--spread", line + end)

    job = jobs.until("bare", "FAILED")
    uuids = {one["instance"]: ",".join(one["uuids"]) for one in job["placement"]}
    where = {one["instance"]: one["node"] for one in job["placement"]}
    for rank, name in enumerate(("bare-master-0", "bare-worker-0")):
        assert jobs.logs("bare", name) == [f"{rank} of 2, {where[name]}, {uuids[name]}", "/root"]
    assert (job["exitCode"], job["firstFailure"]["instance"]) == (7, "bare-worker-0")
    assert (job["noContainer"], job["exitCodes"]["bare-worker-0"]) == (True, 7)
    assert left(on_node) == NOTHING


@pytest.mark.row(12)
def test_no_process_of_a_stopped_job_survives_after_supervisor_and_submit_were_killed(jobs, on_node):
    """Not what daemonizes either, nor what was attached; and a secret was in the program's variables alone."""
    marker = f"marker{os.getpid()}x{time.monotonic_ns()}"
    mine = jobs.provision
    knowing = Provision(mine.folder, XDG_STATE_HOME=mine.environment["XDG_STATE_HOME"], API_TOKEN=marker)
    words = ("--lab", LAB, "--name=demon", "--no-container", "--gpus=1", f"--nodes={NODES[0]}", "--env", "API_TOKEN")
    command = DAEMON + 'echo "length ${#API_TOKEN}"; for i in 1 2 3 4; do sleep 1; echo $i; done; exec sleep 4323'
    process = knowing.start("submit", "run", *words, "--follow", command)
    try:
        assert any(line == "1\n" for line in process.stdout)
    finally:
        process.kill()
        process.communicate()
    on_node(NODES[0], "pkill -9 -f '[d]emon/attempts/1/programs/node.pyz supervisor'")
    attached = jobs.ok("attach", "demon", "--", "sh", "-c", 'setsid sleep 4324 >/dev/null 2>&1 & echo "$API_TOKEN"')
    assert attached.out == f"{marker}\n"
    mark = f"'[m]{marker[1:]}'"  # no process that looks for it is found
    look = f"ps axww -o args | grep -c {mark} || true; grep -rl {mark} /run/systemd /run/provision /tmp || true"
    assert on_node(NODES[0], look).split() == ["0"]
    assert "sleep 4321" in on_node(NODES[0], LEFT)
    assert "foreign" not in jobs.ok("top gpu", "-o", "json").out.replace('"foreign": ""', "")
    eventually(lambda: jobs.logs("demon")[-1] == "4", seconds=30, what="the output goes on")

    jobs.ok("stop", "demon")
    assert jobs.get("demon")["status"] == "STOPPED"
    assert jobs.logs("demon") == [f"length {len(marker)}", "1", "2", "3", "4"]
    assert left(on_node) == NOTHING
    assert on_node(NODES[0], f"grep -rl {mark} /var/lib/provision /run || true") == ""


@pytest.mark.row(12)
def test_a_job_of_a_node_account_has_its_home_and_private_mounts(jobs, on_node):
    """Its groups, its limits; and by SSH the nodes of an mpi job reach each other as that account."""
    for node in NODES:
        on_node(node, "useradd --create-home --uid 2042 --groups video alice; chmod 755 /srv")
    try:
        see = "echo $(id -un) $(id -Gn) $HOME $(ulimit -n); touch kept; cat /srv/host/hostname"
        words = ("--mount=/etc:/srv/host:ro", "--ulimit=nofile=512", "--user=2042:2042")
        hop = 'ssh -F /provision/ssh_config "$(tail -n 1 /provision/machinefile | cut -d: -f1)" '
        submit(jobs, "run", "own", *words, f"--nodes={NODES[0]}", "--wait", see)
        both = ("--workers=2", "--spread", "--user=2042:2042", "--wait")
        submit(jobs, "mpi", "hop", *both, hop + "'echo $(id -un) $PROVISION_NODE'")

        said = jobs.logs("own")
        assert said[0].split()[:5] == ["alice", "alice", "video", "/home/alice", "512"]
        assert said[-1] == NODES[0]
        assert jobs.logs("hop") == [f"alice {NODES[1]}"]
        assert on_node(NODES[0], "stat -c %U /home/alice/kept") == "alice\n"
        assert left(on_node) == NOTHING
    finally:
        for node in NODES:
            on_node(node, "userdel --remove alice")


def test_a_failed_start_is_reported_with_its_reason(jobs, on_node):
    """A program, or an account, that the node does not have; nothing is left of it."""
    submit(jobs, "run", "nosuch", "--", "nosuch", "-x")
    submit(jobs, "run", "nobody", "--user=4242:4242", "true")
    assert "nosuch: there is no such program on the node" in jobs.until("nosuch", "FAILED")["reason"]
    assert "no account with the number 4242" in jobs.until("nobody", "FAILED")["reason"]
    assert left(on_node) == NOTHING
