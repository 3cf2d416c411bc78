"""What an ordinary account of a node, and a container without privileges, gain on the container lab: nothing.

alice attacks, by a login of the node and by jobs of her own; bob has jobs on the same nodes.
"""

from __future__ import annotations

import base64
import io
import json
import os
import tarfile
import time

import pytest

from tests.integration.conftest import LAB
from tests.support.command import Provision, eventually
from tests.support.node.archive import ARCHIVE
from tests.support.node.node import HERE

NODE, OTHER = f"{LAB}-1", f"{LAB}-2"
ALICE, BOB = "2042:2042", "2043:2043"
KINDS = ("container", "process")
"""Of jobs: in a container, and as processes of the node."""
IMAGE = "hostile:1"


@pytest.fixture(autouse=True)
def people(jobs, on_node):
    """Give the nodes two accounts, and forget their jobs."""
    for node in (NODE, OTHER):
        for name, account in (("alice", ALICE), ("bob", BOB)):
            on_node(node, f"useradd --create-home --uid {account.partition(':')[0]} {name}; chmod 700 /home/{name}")
    yield
    left = [job["name"] for job in jobs.ok("list", "-o", "json").document]
    if left:
        jobs.ok("delete", "--force", *left)
    for node in (NODE, OTHER):
        on_node(node, "for name in alice bob; do pkill -KILL -U $name; userdel --remove $name 2>/dev/null; done; true")


def submit(jobs, kind, name, *words, provision=None):
    """Hand a job of one instance in; return what the command said."""
    place = ["--no-container"] if kind == "process" else [f"--image={jobs.image}"]
    asked = ["submit", "run", "--lab", LAB, f"--name={name}", f"--nodes={NODE}", *place, *words]
    return (provision or jobs.provision)(*asked, timeout=300)


def ended(jobs, name):
    """The job after its end, and what it printed."""
    return jobs.until(name, "SUCCEEDED", "FAILED"), jobs.logs(name)


def as_alice(on_node, script):
    """Run a script on the node as an account that has logged in there; its failure is no failure of the test."""
    packed = base64.b64encode(script.encode()).decode()
    return on_node(NODE, f"echo {packed} | base64 -d >/home/alice/script; chmod 755 /home/alice/script; "
                         "runuser -u alice -- sh /home/alice/script 2>&1; rm -f /home/alice/script")  # fmt: skip


LOOK = """
exec 2>/dev/null
for file in /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do
  tr '\\0' '\\n' <"$file" 2>/dev/null | grep -q 'MARK' && echo "read $file"
done
grep -rlsI 'MARK' /run /tmp /var/tmp /var/lib /var/log /dev/shm /home 2>/dev/null
for folder in /run/provision/leases /run/provision/units /run/provision/mounts /var/lib/provision/jobs /home/bob; do
  ls "$folder" >/dev/null 2>&1 && echo "listed $folder"
done
for pid in $(ls /proc | grep '^[0-9]'); do
  ls /proc/$pid/root/provision-run /proc/$pid/fd >/dev/null 2>&1 && [ "$(stat -c %u /proc/$pid)" != "$(id -u)" ] &&
    echo "entered $pid"
done
[ -w /run/docker.sock ] && echo "docker"
echo looked
"""


def test_an_account_cannot_read_data_of_another_users_job(jobs, on_node):
    """No variable, line of output, secret or lease: from a login, from a container, from a process of the node."""
    mark = f"marker{os.getpid()}x{time.monotonic_ns()}"
    mine = jobs.provision
    knowing = Provision(mine.folder, XDG_STATE_HOME=mine.environment["XDG_STATE_HOME"], API_TOKEN=mark)
    say = 'echo "$API_TOKEN"; exec sleep 4300'
    for kind in KINDS:
        done = submit(jobs, kind, f"bob-{kind}", f"--user={BOB}", "--env=API_TOKEN", say, provision=knowing)
        assert done.code == 0, str(done)
    for kind in KINDS:
        eventually(lambda kind=kind: jobs.logs(f"bob-{kind}") == [mark], seconds=30, what="bob's job runs")
    assert on_node(NODE, f"grep -rl '[m]{mark[1:]}' /var/lib/provision/jobs").split()

    look = LOOK.replace("MARK", f"[m]{mark[1:]}")
    assert as_alice(on_node, look) == "looked\n"
    for kind in KINDS:
        done = submit(jobs, kind, f"alice-{kind}", f"--user={ALICE}", look)
        assert done.code == 0, str(done)
        job, said = ended(jobs, f"alice-{kind}")
        assert (job["status"], said) == ("SUCCEEDED", ["looked"])


@pytest.mark.parametrize("kind", ["container", pytest.param("process", marks=pytest.mark.slow)])
def test_an_account_cannot_mount_inaccessible_files(jobs, on_node, kind):
    """Others may read the files, but not enter the folder above them: a home, or the account's link to one."""
    on_node(NODE, "mkdir -m 755 /home/bob/open; echo bobs >/home/bob/open/file; mkdir -p /home/alice/own; "
                  "ln -s /home/bob/open /home/alice/link; chown -hR alice: /home/alice")  # fmt: skip
    for name, source in (("direct", "/home/bob/open"), ("link", "/home/alice/link")):
        done = submit(jobs, kind, name, f"--user={ALICE}", f"--mount={source}:/theirs:ro", "cat /theirs/file")
        if done.code == 0:
            job, said = ended(jobs, name)
            assert (job["status"], said) == ("FAILED", [])
            assert "Permission denied" in job["reason"]
    done = submit(jobs, kind, "own", f"--user={ALICE}", "--mount=/home/alice/own:/mine", "touch /mine/kept")
    assert done.code == 0, str(done)
    assert ended(jobs, "own")[0]["status"] == "SUCCEEDED"
    assert on_node(NODE, "stat -c %U /home/alice/own/kept; ls /run/provision/mounts") == "alice\n"


@pytest.mark.parametrize("starter", [pytest.param("shim", marks=pytest.mark.slow), "systemd"])
def test_an_account_cannot_exploit_a_race_on_a_mount_point(provision, on_node, starter):
    """In 1,000 attempts of the shim, and some in units: nothing is made, mounted or removed in a folder of root's."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in (ARCHIVE, HERE / "mount_race.py"):
            archive.add(path, path.name)
    attempts = 1000 if starter == "shim" else 40
    work = "/opt/race/work"
    words = f"/opt/race/{ARCHIVE.name} {work} {ALICE} {attempts} {starter}"
    run = f"PROVISION_JOBS_RUN={work}/run python3 -IB /opt/race/mount_race.py {words}"
    unpack = "rm -rf /opt/race; mkdir /opt/race; base64 -d | tar -C /opt/race -xz --no-same-owner"
    sent = base64.b64encode(packed.getvalue()).decode()
    try:
        said = provision("lab", "ssh", LAB, NODE, "--", f"{unpack}; {run}", stdin=sent)
        assert said.code == 0, str(said)
    finally:
        on_node(NODE, "rm -rf /opt/race")
    done = json.loads(said.out)

    assert done["roots"] == ["victim/made", "victim/made/deep", "victim/mark"]
    assert done["units"] == []
    done["seen"].pop("why", "")
    assert sum(done["seen"].values()) == attempts
    assert set(done["seen"]) <= {"refused", "root's\ndeep", "root's\ndeep\nthe account's"}


def test_planted_files_neither_block_nor_redirect_commands_of_root(provision, on_node):
    """In folders that are everybody's, under the names that root's programs use there."""
    plant = """
cd /run/lock 2>/dev/null && rm -f provision.lock* && mkfifo provision.lock && ln -s /etc/victim provision.lock.holder
ln -s /etc/victim provision.lock.holder.new
cd /tmp && ln -s /etc ompi.planted && ln -s /etc prte.planted && mkdir -p provision && ln -s /etc/victim provision/x
"""
    on_node(NODE, "echo root >/etc/victim; chmod 600 /etc/victim")
    try:
        as_alice(on_node, plant)
        for words in (("plan",), ("apply", "--yes"), ("verify",)):
            done = provision(*words, "--lab", LAB, "--json", timeout=180)
            assert done.code == 0, str(done)
        assert on_node(NODE, "cat /etc/victim; stat -c '%U %a' /etc/victim; ls -d /etc/passwd") == (
            "root\nroot 600\n/etc/passwd\n"
        )
        assert on_node(NODE, "find /run/provision /var/lib/provision -perm /022 ! -type l") == ""
    finally:
        on_node(NODE, "rm -rf /etc/victim /tmp/ompi.planted /tmp/prte.planted /tmp/provision /run/lock/provision.lock*")


KNOCK = """
import socket, sys, time
held = []
for port in sys.argv[1:]:
    for words in (b"", b"{}\\n", b'{"node": "x", "end": true}\\n' * 9, b"\\0" * 100000, b"[" * 100000 + b"\\n"):
        one = socket.create_connection(("@ADDRESS@", int(port)), 5)
        one.settimeout(1)
        try:
            one.sendall(words)
            print(one.recv(1 << 16).hex())
        except OSError:
            pass
        held.append(one)
print("knocked", flush=True)
time.sleep(600)
"""


def test_an_unauthenticated_connection_to_a_job_supervisor_receives_no_data(jobs, on_node):
    """Strangers receive nothing about the job, which continues and ends while they keep their connections."""
    line = "until [ -e /tmp/go ]; do sleep 0.2; done; echo over"
    words = ("--workers=2", "--spread", f"--user={BOB}", line)
    jobs.submit("run", "bobs", *words)
    jobs.until("bobs", "RUNNING")
    rows = "".join(on_node(node, "ss -Hltnp | grep python; true") for node in (NODE, OTHER)).splitlines()
    listening = [row.split()[3].rpartition(":") for row in rows]
    assert listening, "no job supervisor listens"
    address, ports = listening[0][0], {port for _, _, port in listening}
    code = base64.b64encode(KNOCK.replace("@ADDRESS@", address).encode()).decode()
    on_node(NODE, f"echo {code} | base64 -d >/home/alice/knock.py; chown alice: /home/alice/knock.py; "
                  f"cd /; runuser -u alice -- setsid python3 -I /home/alice/knock.py {' '.join(sorted(ports))} "
                  ">/tmp/knocked 2>&1 </dev/null &")  # fmt: skip
    said = eventually(
        lambda: "knocked" in (text := on_node(NODE, "cat /tmp/knocked")) and text, seconds=60, what="knock"
    )
    answers = b"".join(bytes.fromhex(row) for row in said.split()[:-1])

    assert b"bobs" not in answers
    assert b"end" not in answers
    assert jobs.get("bobs")["status"] == "RUNNING"
    for node in (NODE, OTHER):
        on_node(
            node,
            "for name in $(docker ps -q --filter label=provision.job=bobs); do docker exec $name touch /tmp/go; done",
        )
    assert jobs.until("bobs", "SUCCEEDED", "FAILED")["status"] == "SUCCEEDED"
    on_node(NODE, "rm -f /tmp/knocked")


STAY = """
(setsid sh -c 'trap "" TERM HUP INT; exec sleep 4401' >/dev/null 2>&1 &)
env -i /bin/sh -c 'setsid /bin/sleep 4402 >/dev/null 2>&1 &'
(nohup sh -c '(sleep 4403 &) &' >/dev/null 2>&1 &)
for folder in /sys/fs/cgroup /sys/fs/cgroup/*/ /sys/fs/cgroup/*/*/; do
  (echo 0 >"$folder/cgroup.procs" && exec setsid sleep 4404) >/dev/null 2>&1 &
done
(systemd-run --user sleep 4405; systemd-run --scope sleep 4405; loginctl enable-linger) >/dev/null 2>&1 &
(unshare --user --map-root-user --pid --fork --mount-proc setsid sleep 4406) >/dev/null 2>&1 &
echo "* * * * * sleep 4407" | crontab - >/dev/null 2>&1
sleep 1
echo over
"""


@pytest.mark.parametrize("kind", KINDS)
def test_no_process_of_an_account_outlives_its_job(jobs, on_node, kind):
    """Whether it forks twice, leaves its session, clears its environment, or tries to leave its control group."""
    done = submit(jobs, kind, "stay", f"--user={ALICE}", STAY)
    assert done.code == 0, str(done)
    job, said = ended(jobs, "stay")

    assert (job["status"], said[-1]) == ("SUCCEEDED", "over")
    left = "ps axww -o pid,user,args | grep '[s]leep 44[0-9][0-9]'; ls /var/lib/systemd/linger 2>/dev/null; true"
    assert on_node(NODE, left) == ""


GAIN = "/usr/local/bin/gain -u; grep -E 'NoNewPrivs|CapEff|CapPrm' /proc/self/status | tr -d '[:space:]'"


@pytest.mark.parametrize("kind", KINDS)
def test_a_setuid_program_gains_no_privileges(jobs, on_node, kind):
    """Neither one of the image nor one of the node, whose trusted files an account's mounts could replace."""
    make = "cp /usr/bin/id /usr/local/bin/gain && chmod 4755 /usr/local/bin/gain"
    on_node(NODE, f"{make}; docker run --name hostile --entrypoint sh {jobs.image} -c '{make}' && "
                  f"docker commit hostile {IMAGE} >/dev/null; docker rm hostile >/dev/null")  # fmt: skip
    try:
        image = [f"--image={IMAGE}"] if kind == "container" else []
        done = submit(jobs, kind, "gain", *image, f"--user={ALICE}", GAIN)
        assert done.code == 0, str(done)
        job, said = ended(jobs, "gain")
        assert job["status"] == "SUCCEEDED"
        assert said == ["2042", "CapPrm:0000000000000000CapEff:0000000000000000NoNewPrivs:1"]
    finally:
        on_node(NODE, f"rm -f /usr/local/bin/gain; docker image rm -f {IMAGE} >/dev/null")


def test_ranks_of_an_account_reach_each_other_by_ssh(jobs):
    """sshd in their containers has no privilege, and needs none."""
    say = "echo $(id -u) $(grep NoNewPrivs /proc/self/status | cut -f2) $PROVISION_NODE"
    jobs.submit("mpi", "meet", "--workers=2", "--spread", "--gpus=1", "--np=auto", f"--user={ALICE}", say)
    assert jobs.until("meet", "SUCCEEDED", "FAILED")["status"] == "SUCCEEDED"
    assert sorted(jobs.logs("meet")) == [f"2042 1 {node}" for node in (NODE, OTHER)]
