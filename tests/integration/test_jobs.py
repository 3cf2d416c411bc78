"""Batch jobs on real nodes: what any engine has to do, seen through the command. The GPUs are SIMULATED."""

from __future__ import annotations

import os
import re
import time

import pytest

from tests.integration.conftest import LAB
from tests.support.command import Provision

NODES = (f"{LAB}-1", f"{LAB}-2")
MUTE = 'import socket, time; server = socket.create_server(("", 5999), backlog=50); time.sleep(600)'
"""Takes connections and says nothing."""


def left_on_nodes(on_node):
    """Containers, leases and units of jobs that are still there."""
    look = "docker ps -aq --filter label=provision.job; ls /run/provision/leases; pgrep -f '[k]eeper.py' || true"
    return {node: on_node(node, look).split() for node in NODES}


def facts_of(lines):
    """NAME=value lines as a dict."""
    return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.mark.row(10, 11, 22, 34, 35, 39, 40, 43)
def test_each_instance_gets_its_identity_and_its_output_is_logged(jobs, on_node):
    """Names, ranks, the master's address, its GPUs, its folder; and nothing of it stays behind but the record."""
    command = 'env | sort; pwd; nvidia-smi -L; echo "rank $RANK"'
    jobs.submit(
        "pytorch", "who", "--gpus=2", "--workers=2", "--working-dir=/opt", "--env=COLOUR=blue", "--wait", command
    )

    master, worker = facts_of(jobs.logs("who")), facts_of(jobs.logs("who", "who-worker-0"))
    assert (master["RANK"], worker["RANK"]) == ("0", "1")
    assert {one["WORLD_SIZE"] for one in (master, worker)} == {"2"}
    assert master["MASTER_ADDR"] == worker["MASTER_ADDR"]
    assert master["MASTER_ADDR"] == jobs.get("who")["instances"][0]["nodeIP"]
    assert (master["MASTER_PORT"], worker["PET_NODE_RANK"]) == (worker["MASTER_PORT"], "1")
    assert (master["PET_NNODES"], master["PET_NPROC_PER_NODE"], master["gpus"]) == ("2", "2", "2")
    assert {one["COLOUR"] for one in (master, worker)} == {"blue"}
    lines = jobs.logs("who")
    assert "/opt" in lines
    assert sum("UUID" in line and "SIMULATED" not in line for line in lines) == 2
    assert "who-worker-0" in jobs("logs", "who", "--all").out
    assert left_on_nodes(on_node) == {node: [] for node in NODES}


@pytest.mark.row(14, 15, 16, 51)
def test_an_mpi_job_starts_ranks_on_its_own_workers_only(jobs):
    """The line is the user's own; the launcher has no GPU; the layout is arena's."""
    command = "sh -c 'echo $OMPI_COMM_WORLD_RANK on $PROVISION_NODE'"
    line = f"mpirun --allow-run-as-root -np 4 -bind-to none -map-by slot -x PATH {command}"
    jobs.submit("mpi", "span", "--gpus=2", "--workers=2", "--wait", line)

    said = sorted(jobs.logs("span"))
    assert said == [f"0 on {NODES[0]}", f"1 on {NODES[0]}", f"2 on {NODES[1]}", f"3 on {NODES[1]}"]
    shown = jobs("get", "span", "--type", "mpijob").out
    assert re.search(r"Trainer: +MPIJOB", shown)
    assert re.search(rf"span-launcher-[a-z0-9]{{5}} +\S+ +\S+ +true +0 +{NODES[0]}", shown)
    assert re.search(rf"span-worker-1 +\S+ +\S+ +false +2 +{NODES[1]}", shown)


def test_mpirun_is_generated_for_an_argument_vector(jobs):
    """With as many ranks as there are GPUs, and variables for all of them."""
    jobs.submit("mpi", "vector", "--gpus=1", "--workers=2", "--env=A=b c", "--wait", "--", "sh", "-c", "echo $A")

    assert jobs.logs("vector") == ["b c", "b c"]


def test_a_program_killed_by_sigkill_has_exit_code_137(jobs):
    """As in a shell, by every verb that exits with the code of a job."""
    command = "python3 -c 'import os; os.kill(os.getpid(), 9)'; exit $?"
    jobs.submit("run", "killed", "--wait", command, code=137)
    assert jobs("wait", "killed").code == 137
    assert jobs("logs", "killed", "-f").code == 137
    assert jobs.get("killed")["exitCode"] == 137


def test_the_first_failed_rank_ends_the_job_and_is_reported(jobs, on_node):
    """Its code is the command's, its last lines are shown, the others do not run on."""
    command = 'if [ $RANK = 1 ]; then echo "out of memory" >&2; exit 7; fi; sleep 600'
    started = time.monotonic()
    done = jobs.submit("pytorch", "broken", "--gpus=1", "--workers=2", "--spread", "--wait", command, code=7)

    assert time.monotonic() - started < 60
    job = jobs.get("broken")
    assert (job["status"], job["exitCodes"]["broken-worker-0"]) == ("FAILED", 7)
    assert "broken-worker-0" in done.err
    assert "out of memory" in jobs("get", "broken").out
    assert left_on_nodes(on_node) == {node: [] for node in NODES}


def test_a_stopped_job_leaves_only_its_record(jobs, on_node):
    """Containers, leases, ports and job supervisors are gone; a second stop changes nothing."""
    jobs.submit("pytorch", "long", "--gpus=1", "--workers=2", "--spread", "echo begun; sleep 600")
    jobs.until("long", "RUNNING")

    assert jobs("stop", "long").code == 0
    assert jobs.get("long")["status"] == "STOPPED"
    assert jobs.logs("long")[0] == "begun"
    assert left_on_nodes(on_node) == {node: [] for node in NODES}
    assert jobs("stop", "long").code == 0


@pytest.fixture
def stranger(jobs):
    """An operator on another machine: with a state folder and a signing key of his own, and the same inventory."""
    state = jobs.provision.environment["XDG_STATE_HOME"]
    made = Provision(jobs.provision.folder, LOGNAME="eve", XDG_STATE_HOME=f"{state}-eve")
    inventory = jobs.provision.ok("lab", "inventory", LAB).out.strip()
    return lambda *words: made("--inventory", inventory, *words)


def test_ending_a_job_of_another_operator_requires_confirmation(jobs, stranger):
    """Without a terminal it is refused with exit 2, and the job runs on; the owner is in the list."""
    jobs.submit("run", "owned", "--gpus=1", "sleep 600")
    jobs.until("owned", "RUNNING")
    owner = jobs.get("owned")["owner"]
    refused = {verb: stranger(verb, "owned") for verb in ("stop", "delete", "restart")}

    assert {verb: done.code for verb, done in refused.items()} == dict.fromkeys(refused, 2)
    assert all(f"owned is RUNNING and owned by {owner}" in done.err for done in refused.values())
    assert jobs.get("owned")["status"] == "RUNNING"
    assert jobs.get("owned")["attempt"] == 1
    row = next(line.split() for line in stranger("list").out.splitlines() if line.startswith("owned "))
    assert row[-1] == owner
    assert stranger("stop", "owned", "--yes").code == 0
    assert jobs.get("owned")["status"] == "STOPPED"
    assert jobs("delete", "owned").code == 0


def test_a_second_operator_sees_the_applies_of_the_first(jobs, stranger):
    """This machine's history is empty; the nodes have it. The first operator's own list has each apply once."""
    mine = jobs("history", "--json").document["entries"]
    theirs = stranger("history", "--json").document["entries"]

    assert mine
    assert stranger("history", "--local").out == ""
    assert {entry["source"] for entry in theirs} == {"nodes"}
    assert len(theirs) == len([entry for entry in mine if entry["nodes"]])
    assert {node["name"] for node in theirs[0]["nodes"]} == set(NODES)
    assert {entry["command"] for entry in theirs} == {entry["command"] for entry in mine}


@pytest.mark.row(3, 7)
def test_a_job_is_pending_with_a_reason_until_all_its_workers_fit(jobs):
    """None of its instances is there before; what frees the GPUs lets it start."""
    jobs.submit("run", "holder", "--gpus=1", "sleep 600")
    jobs.submit("pytorch", "waiter", "--gpus=2", "--workers=2", "echo now")

    waiting = jobs.get("waiter")
    assert waiting["status"] == "PENDING"
    assert waiting["instances"] == []
    assert "insufficient GPUs for 1 of 2 workers" in jobs("get", "waiter", "-e").out
    assert jobs("stop", "holder").code == 0
    assert jobs("queue run").code == 0
    assert jobs.until("waiter", "SUCCEEDED")["instances"]


def test_a_start_that_exceeds_its_timeout_is_cancelled(jobs, on_node):
    """With the node and what it waited for; nothing of it is left. An image whose sshd hangs, a registry that does."""
    for node in NODES:
        on_node(node, "printf '#!/bin/sh\nexec sleep 600\n' >/srv/mute; chmod 755 /srv/mute")
    late = ("--gpus=1", "--starting-timeout=6s")
    mute = "--mount=/srv/mute:/usr/sbin/sshd:ro"
    jobs.submit("mpi", "mute", *late, "--workers=2", "--spread", mute, "--wait", "mpirun -np 2 true", code=1)

    why = jobs.get("mute")["reason"]
    assert f"node {NODES[1]} was not ready within 6 s (starting_timeout): waiting for port" in why
    assert left_on_nodes(on_node) == {node: [] for node in NODES}

    on_node(NODES[0], f"systemd-run --unit=mute python3 -c '{MUTE}'")
    words = ("--name=pulls", "--image=127.0.0.1:5999/x:1", f"--nodes={NODES[0]}", *late, "true")
    refused = jobs("submit", "run", *words, timeout=120)
    on_node(NODES[0], "systemctl stop mute")
    assert "the image 127.0.0.1:5999/x:1 was not pulled within 6 s" in refused.err
    assert "pulling the image" in jobs("get", "pulls", "-e").out
    assert left_on_nodes(on_node) == {node: [] for node in NODES}


def test_a_failed_job_is_retried_as_configured(jobs, on_node):
    """Both attempts' output is kept."""
    on_node(NODES[0], "mkdir -p /srv/tries")
    command = "date +%N >>/tries/log; test $(wc -l </tries/log) -ge 2 && echo second || { echo first; exit 3; }"
    jobs.submit("run", "again", "--retry=1", f"--nodes={NODES[0]}", "--mount=/srv/tries:/tries", "--wait", command)

    job = jobs.get("again")
    assert (job["status"], job["attempt"]) == ("SUCCEEDED", 2)
    assert jobs("logs", "again", "--attempt", "1").out == "first\n"
    assert jobs.logs("again") == ["second"]


@pytest.mark.row(9)
def test_duplicate_names_excessive_sizes_and_unknown_jobs_are_refused(jobs):
    """A name twice: 4. More than there is: 5. No such job: 3. Nothing is left of any."""
    jobs.submit("run", "taken", "--wait", "true")

    again = jobs.submit("run", "taken", "true", code=4)
    assert "provision delete taken" in again.err
    assert "idle" in jobs.submit("run", "giant", "--gpus=3", "true", code=5).err
    assert jobs("get", "giant").code == 3
    assert jobs("logs", "nobody").code == 3


@pytest.mark.row(18)
def test_logs_follow_prints_each_line_when_it_is_written(jobs):
    """Within a second, from the first to the last; the command ends as the job does."""
    jobs.submit("run", "clock", "for i in 1 2 3; do date +%s.%N; sleep 1; done; exit 5")
    done = jobs("logs", "-f", "clock", "--timestamps")

    assert done.code == 5, str(done)
    assert len(done.out.splitlines()) == 3


def test_a_job_continues_when_its_submit_command_is_killed(jobs):
    """The command is killed; the job ends as it would have, and anybody sees all of it."""
    command = "echo one; sleep 4; echo two"
    words = ("submit", "run", "--lab", LAB, "--name=orphan", f"--image={jobs.image}", "--follow", command)
    process = jobs.provision.start(*words)
    try:
        assert any(line == "one\n" for line in process.stdout)
    finally:
        process.kill()
        process.communicate()

    assert jobs.until("orphan", "SUCCEEDED")["status"] == "SUCCEEDED"
    assert jobs.logs("orphan") == ["one", "two"]


def test_a_killed_job_supervisor_is_restarted_without_losing_output(jobs, on_node):
    """No line is lost or there twice."""
    wait = "until [ -e /tmp/continue ]; do sleep 0.2; done"
    program = f"for i in 1 2 3; do echo $i; done; {wait}; for i in 4 5 6; do echo $i; sleep 1; done; exit 4"
    jobs.submit("run", "kept", f"--nodes={NODES[0]}", program)
    jobs.until("kept", "RUNNING")
    on_node(NODES[0], "pkill -9 -f 'kept/attempts/1/programs/node.pyz supervisor'")
    on_node(NODES[0], "docker exec kept-worker-0 touch /tmp/continue")

    job = jobs.until("kept", "FAILED")
    assert job["exitCodes"] == {"kept-worker-0": 4}
    assert jobs.logs("kept") == ["1", "2", "3", "4", "5", "6"]


def test_a_removed_container_fails_the_job(jobs, on_node):
    """Also if it was removed by hand; the job does not hang."""
    jobs.submit("pytorch", "robbed", "--gpus=1", "--workers=2", "--spread", "sleep 600")
    jobs.until("robbed", "RUNNING")
    on_node(NODES[1], "docker rm -f robbed-worker-0")

    job = jobs.until("robbed", "FAILED", seconds=40)
    assert "robbed-worker-0" in job["reason"]
    assert left_on_nodes(on_node) == {node: [] for node in NODES}


def test_secrets_reach_only_the_program_of_the_job(jobs, on_node):
    """By name from the environment: in the program, in no process list, file, record, event or log of ours."""
    marker = f"marker{os.getpid()}x{time.monotonic_ns()}"
    mine = jobs.provision
    knowing = Provision(mine.folder, XDG_STATE_HOME=mine.environment["XDG_STATE_HOME"], API_TOKEN=marker)
    command = 'echo "length ${#API_TOKEN}"; sleep 3'
    words = ("--name=private", f"--image={jobs.image}", f"--nodes={NODES[0]}", "--env", "API_TOKEN", command)
    knowing.ok("submit", "run", "--lab", LAB, *words)
    jobs.until("private", "RUNNING", "SUCCEEDED")
    processes = on_node(NODES[0], "ps axww -o args")
    jobs.until("private", "SUCCEEDED")

    assert jobs.logs("private") == [f"length {len(marker)}"]
    files = on_node(NODES[0], f"grep -rl {marker} /var/lib/provision /run/provision /tmp 2>/dev/null || true")
    assert marker not in processes
    assert files == ""
    assert marker not in jobs("get", "private", "-o", "json").out + jobs("events", "private").out
