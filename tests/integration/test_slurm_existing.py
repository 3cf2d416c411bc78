"""A Slurm cluster that others have set up by hand is used, and never written to. Its GPUs are SIMULATED.

The first node is the login node. The second one is Slurm's controller and takes jobs, as does the third. `alice` is an
ordinary user with a home folder that all nodes share; she has no SSH key for the nodes that take jobs, and no sudo.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.conftest import ENGINES
from tests.support.command import Done, Provision, eventually
from tests.support.engine import engine_host, held
from tests.support.slurm.by_hand import configure

LAB = f"existing{os.getpid()}"
LOGIN, FIRST, SECOND = NODES = [f"{LAB}-{number}" for number in (1, 2, 3)]
SHARE = Path(__file__).parents[1] / "support/slurm/shared_home.py"
SECRET = "s3cret-of-alice"
KEYS_OF_ALICE = "echo 'AuthorizedKeysFile .ssh/authorized_keys /etc/ssh/%u.pub' >/etc/ssh/sshd_config.d/alice.conf"
SAVES = "trap 'echo saved; exit 0' TERM; echo begun; while true; do sleep 0.2; done"
SLURM_FILES = r"""
find /etc/slurm /etc/munge /etc/default /etc/systemd /lib/systemd/system /usr/sbin /usr/bin \
  \( -path '/etc/*' -o -name '*slurm*' -o -name '*munge*' -o -name 's[abcinqrt]*' \) \
  -printf '%p %y %m %U %G %l %T@\n' 2>/dev/null | sort
find /etc/slurm /etc/munge /etc/default /etc/systemd -type f -exec sha256sum {} + | sort -k2
scontrol show config | grep -v -e ' data as of ' -e BOOT_TIME -e NEXT_JOB_ID
scontrol show partition
scontrol show node | grep -oE '^NodeName=[^ ]+|Gres=[^ ]+|RealMemory=[0-9]+|Partitions=[^ ]+'
"""
"""Prints names, attributes and contents of Slurm's files, and the configuration that slurmctld uses."""
SYSTEM_FILES = r"""
find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /home -o -path /var/log \
  -o -path /var/lib/slurm -o -path /var/lib/systemd -o -path /var/cache -o -path /var/spool \) -prune -o \
  -type f -printf '%p %s %m %U %T@\n' | sort
ls -A /run/provision /var/lib/provision /usr/local/lib/provision 2>&1 || true
"""
"""Prints all files of the system, and folders of our own."""

pytestmark = pytest.mark.long


@dataclass
class Site:
    """The cluster, as root sees it, and alice's inventory."""

    provision: Provision
    inventory: Path
    before: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Node -> the outputs of both scripts, before the first use."""

    def on(self, node: str, script: str) -> str:
        """Return the output of a shell script of root on a node."""
        return self.provision.ok("lab", "ssh", LAB, node, "--", script).out

    def alice(self, verb: str, *words: str, **options: Any) -> Done:
        """Type a command as a user with alice's inventory."""
        at = words.index("--") if "--" in words else len(words)
        return self.provision(*verb.split(), *words[:at], "--inventory", str(self.inventory), *words[at:], **options)

    def ok(self, verb: str, *words: str) -> Done:
        done = self.alice(verb, *words)
        assert done.code == 0, str(done)
        return done

    def submit(self, name: str, line: str, *words: str, kind: str = "run") -> Done:
        return self.ok("submit", kind, f"--name={name}", "--no-container", *words, line)

    def get(self, name: str) -> Any:
        return self.ok("get", name, "-o", "json").document

    def until(self, name: str, *statuses: str) -> Any:
        """Return the job, once it has one of these statuses."""
        wanted = f"{name} becomes {' or '.join(statuses)}"
        return eventually(lambda: (job := self.get(name))["status"] in statuses and job, seconds=120, what=wanted)

    def logs(self, name: str, *words: str) -> list[str]:
        return self.ok("logs", name, *words).out.splitlines()

    def files(self) -> dict[str, tuple[str, str]]:
        return {node: (self.on(node, SLURM_FILES), self.on(node, SYSTEM_FILES)) for node in NODES}


@pytest.fixture(scope="module")
def site(provision: Provision) -> Iterator[Site]:
    try:
        words = ("--driver", "container", "--distro", "debian12", "--nodes", "3", "--machine", "pair")
        provision.ok("lab", "up", LAB, *words)
        host = engine_host(provision.folder / "state/provision/labs" / LAB)
        ENGINES.add(host)
        made = Site(provision, provision.folder / "alice")
        set_up(made, host)
        write_inventory(made)
        made.before = made.files()
        yield made
    finally:
        down = provision("lab", "down", LAB)
    assert down.code == 0, str(down)


def set_up(site: Site, host: str) -> None:
    """Configure Slurm and alice's account by hand."""
    nodes = site.provision.ok("lab", "status", LAB, "--json").document["nodes"]
    hosts = "\n".join(f"{node['address']} {node['name']}" for node in nodes)
    for node in NODES:
        site.on(
            node, f"echo '{hosts}' >>/etc/hosts; groupadd -g 2001 alice; useradd -u 2001 -g alice -s /bin/bash alice"
        )
    configure(site.on, [FIRST, SECOND], gpus=2)
    site.on(LOGIN, "apt-get update -qq && apt-get install -y -qq munge slurm-client python3 >/dev/null 2>&1")
    for path in ("/etc/munge/munge.key", "/etc/slurm/slurm.conf"):
        content = site.on(FIRST, f"base64 -w0 {path}").strip()
        site.on(LOGIN, f"mkdir -p /etc/slurm; echo {content} | base64 -d >{path}")
    site.on(LOGIN, "systemctl restart munge; install -d -o alice -g alice /home/alice")
    key = base64.b64encode((site.provision.folder / f"state/provision/labs/{LAB}/id_ed25519.pub").read_bytes()).decode()
    site.on(LOGIN, f"echo {key} | base64 -d >/etc/ssh/alice.pub; {KEYS_OF_ALICE}; systemctl reload ssh")
    pids = [held(host, "inspect", "-f", "{{.State.Pid}}", f"provision-{LAB}-{node}")[0] for node in NODES]
    for pid in pids[1:]:
        subprocess.run([sys.executable, SHARE, pids[0], "/home/alice", pid], check=True)
    eventually(lambda: site.on(LOGIN, "sinfo -h -o %t").split() == ["idle"], seconds=60, what="idle nodes")


def write_inventory(site: Site) -> None:
    """Write the inventory of a user who knows the login node only."""
    lab = yaml.safe_load((site.provision.folder / f"state/provision/labs/{LAB}/inventory/hosts.yml").read_text())
    group = lab["all"]["children"]["gpu_nodes"]
    connection = {key: value for key, value in group["vars"].items() if key.startswith("ansible_")}
    settings = {
        "ansible_user": "alice",
        "cluster_engine": "slurm",
        "slurm_source": "present",
        "cluster_slurm_login": LOGIN,
    }
    (site.inventory / "group_vars").mkdir(parents=True)
    (site.inventory / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {LOGIN: group["hosts"][LOGIN]}}}))
    (site.inventory / "group_vars/all.yml").write_text(yaml.safe_dump({**connection, **settings}))


@pytest.fixture(autouse=True)
def nothing_left(site: Site) -> Iterator[None]:
    """Each test ends without jobs and processes, in Slurm too."""
    yield
    left = [job["name"] for job in site.ok("list", "-o", "json").document]
    if left:
        site.ok("delete", "--force", *left)
    assert site.on(LOGIN, "squeue -h") == ""
    assert site.on(LOGIN, "ls -A /home/alice/.provision/slurm 2>/dev/null; true") == ""
    for node in (FIRST, SECOND):
        assert site.on(node, "pgrep -u alice; true") == "", node


def test_the_account_is_that_of_an_ordinary_user(site: Site) -> None:
    """She has no root by sudo, and a login on the login node only."""
    assert "uid=0" not in site.on(LOGIN, "runuser -u alice -- sh -c 'sudo -n id 2>&1; true'")
    for node in (FIRST, SECOND):
        assert site.on(node, "ls /etc/ssh/alice.pub /home/alice/.ssh 2>/dev/null; true") == ""


def test_a_job_of_two_nodes_runs_with_the_gpus_of_slurm(site: Site) -> None:
    """Each rank is alice's, on its own node; logs and exit codes are there."""
    line = 'echo "$(id -un) $RANK/$WORLD_SIZE $(hostname) $CUDA_VISIBLE_DEVICES $MASTER_ADDR $PWD"; exit $((RANK * 7))'
    site.submit("pair", line, "--workers=2", "--gpus=2", kind="pytorch")
    waited = site.alice("wait", "pair")
    job = site.get("pair")

    assert (waited.code, job["status"], job["exitCode"]) == (7, "FAILED", 7), job
    assert job["firstFailure"]["instance"] == "pair-worker-0"
    assert [one["node"] for one in job["instances"]] == [FIRST, SECOND]
    ranks = [site.logs("pair", "-i", f"pair-{name}")[:1] for name in ("master-0", "worker-0")]
    assert ranks == [[f"alice {rank}/2 {node} 0,1 {FIRST} /home/alice"] for rank, node in enumerate((FIRST, SECOND))]


def test_no_gpu_is_used_twice_and_the_reason_of_a_waiting_job_is_shown(site: Site) -> None:
    for index in range(3):
        site.submit(f"one{index}", SAVES, "--gpus=2")
    jobs = [site.until(f"one{index}", "RUNNING") for index in range(2)]
    eventually(lambda: site.get("one2")["code"] == "slurm.resources", seconds=60, what="one2 waits")

    assert {job["instances"][0]["node"] for job in jobs} == {FIRST, SECOND}
    shown = site.ok("top node", "-o", "json").document["nodes"]
    assert {node["name"] for node in shown} == {FIRST, SECOND}
    site.ok("stop", "one0")
    assert site.until("one0", "STOPPED")["reason"] == ""
    lines = site.logs("one0")
    assert (lines[0], lines[-1]) == ("begun", "saved"), lines  # in between, slurmstepd reports the cancellation
    site.until("one2", "RUNNING")


def test_output_is_followed_to_the_end(site: Site) -> None:
    line = "for i in 1 2 3; do echo $i; sleep 1; done"
    done = site.alice("submit", "run", "--name=follow", "--no-container", "--follow", line)

    assert (done.code, done.out.splitlines()) == (0, ["1", "2", "3"]), str(done)


def test_a_job_that_alice_cancels_with_slurms_own_command_is_stopped(site: Site) -> None:
    site.submit("long", SAVES)
    number = site.until("long", "RUNNING")["engineDetails"]["slurmJob"]
    eventually(lambda: site.logs("long") == ["begun"], seconds=30, what="the first line")
    site.on(LOGIN, f"runuser -u alice -- scancel {number}")

    assert site.until("long", "STOPPED")["code"] == "slurm.cancelled"
    assert site.logs("long")[-1] == "saved"


def test_a_job_that_slurm_kills_has_failed(site: Site) -> None:
    """The batch script cannot record its end."""
    site.submit("killed", "sleep 600")
    node = site.until("killed", "RUNNING")["instances"][0]["node"]
    site.on(node, "pkill -KILL -u alice")

    job = site.until("killed", "FAILED", "STOPPED")
    assert (job["status"], job["code"]) == ("FAILED", "slurm.ended")


def test_a_restart_is_the_next_attempt(site: Site) -> None:
    site.submit("again", "if [ -e /home/alice/tried ]; then echo second; else touch /home/alice/tried; exit 3; fi")
    assert site.until("again", "FAILED", "SUCCEEDED")["exitCode"] == 3
    site.ok("restart", "again")
    job = site.until("again", "SUCCEEDED", "FAILED")

    assert (job["status"], job["attempt"], site.logs("again")) == ("SUCCEEDED", 2, ["second"])


def test_held_and_dependent_jobs_wait_in_slurm(site: Site) -> None:
    site.submit("held", "echo first", "--hold")
    site.submit("after", "echo second", "--depends=held")
    assert site.get("held")["status"] == "QUEUING"
    assert site.get("after")["code"] == "slurm.dependency"
    site.ok("queue release", "held")

    site.until("after", "SUCCEEDED")
    assert site.logs("after") == ["second"]


def test_secrets_are_in_alices_home_until_the_end_of_the_job(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """And in no script, argument, log or record of Slurm."""
    monkeypatch.setitem(site.provision.environment, "TOKEN", SECRET)
    site.submit("secret", f"echo ${{#TOKEN}}; {SAVES}", "--env=TOKEN")
    site.until("secret", "RUNNING")
    eventually(lambda: site.logs("secret")[:1] == [str(len(SECRET))], seconds=30, what="the length of the secret")

    holds = f"grep -rl {SECRET[:5]}.*alice /home/alice /var/lib/slurm /var/log /tmp 2>/dev/null; true"
    file = "/home/alice/.provision/slurm/secret/attempt-1/secrets"
    assert site.on(LOGIN, holds).split() == [file]
    assert site.on(LOGIN, f"stat -c '%a %U' {file}").split() == ["600", "alice"]
    assert SECRET not in site.on(FIRST, "scontrol show job; cat /var/lib/slurm/slurmctld/hash.*/job.*/*")
    site.ok("stop", "secret")
    assert site.on(LOGIN, holds) == ""


def test_a_job_that_can_never_start_is_refused(site: Site) -> None:
    done = site.alice("submit", "run", "--name=never", "--no-container", "--workers=3", "true")

    assert done.code == 5, str(done)
    assert site.ok("list", "-o", "json").document == []


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("apply --yes", "root on the nodes"),
        ("verify", "root on the nodes"),
        ("run --yes -- true", "root on the nodes"),
        ("attach any -- true", "attach"),
        (f"node drain {FIRST} --reason x", "drain"),
        ("submit run --name=x --image=image true", "cluster_slurm_containers"),
        ("submit run --name=x --no-container --retry=2 true", "retry"),
    ],
)
def test_what_needs_more_is_one_error_with_a_remedy(site: Site, line: str, says: str) -> None:
    words = line.split()
    done = site.alice(words[0], *words[1:])
    lines = done.err.splitlines()

    assert done.code in {2, 125}, str(done)
    assert [one for one in lines if one.startswith("error: ")] == lines[:1], str(done)
    assert says in lines[0]
    assert lines[1].strip().startswith("hint: "), str(done)
    assert "Traceback" not in done.err


def test_the_cluster_is_as_it_was(site: Site) -> None:
    """All of the tests before have used it; nothing but alice's home has changed on any node."""
    after = site.files()

    for node in NODES:
        for before, now in zip(site.before[node], after[node], strict=True):
            assert before.splitlines() == now.splitlines(), node


def test_an_apply_as_root_changes_nothing_of_slurm_and_a_reset_leaves_it(site: Site) -> None:
    """With `slurm_source: present`: the checks read, and the receipt of the role is the only file."""
    lab = site.provision.folder / f"state/provision/labs/{LAB}/inventory/hosts.yml"
    inventory = site.provision.folder / "root"
    (inventory / "group_vars").mkdir(parents=True)
    document = yaml.safe_load(lab.read_text())
    hosts = document["all"]["children"]["gpu_nodes"]["hosts"]
    del hosts[LOGIN]
    (inventory / "hosts.yml").write_text(yaml.safe_dump(document))
    (inventory / "group_vars/all.yml").write_text(
        yaml.safe_dump({"cluster_engine": "slurm", "slurm_source": "present", "slurm_controller": FIRST})
    )
    for words in (("apply", "--only", "slurm", "--yes"), ("reset", "--yes")):
        site.provision.ok(*words, "-i", str(inventory), timeout=1200)
        for node in (FIRST, SECOND):
            assert site.on(node, SLURM_FILES).splitlines() == site.before[node][0].splitlines(), (words, node)
    assert site.on(LOGIN, f"srun -w {FIRST} hostname").split() == [FIRST]
