"""People without a root login on a lab of their own: one submits, follows and stops his job, but no other user's.

The head of the lab takes no jobs and has no docker.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import node_shell
from tests.support.command import Done, Provision, eventually, with_own_state
from tests.support.engine import engine_host, held

LAB = f"people{os.getpid()}"
HEAD, WORKER = f"{LAB}-1", f"{LAB}-2"
ACCOUNTS = {"bob": "1001:1001", "eve": "1002:1002"}
OPERATOR = "alice"
"""An operator whose own connection goes through the job agent."""


@dataclass
class Site:
    """The lab as its operator and its submitters see it."""

    operator: Provision
    inventory: Path
    people: dict[str, Provision]
    image: str
    address: str
    files: Path

    def op(self, *words: str) -> Done:
        """Run a verb as the operator; it has to end well."""
        return self.operator.ok(*words, "-i", str(self.inventory))

    def on(self, name: str, command: str) -> str:
        """Return what a command on a node says, as root."""
        return node_shell.on_node(self.operator, LAB, name, command)

    def __call__(self, person: str, *words: str) -> Done:
        """Run a verb as a submitter, with his own home and key."""
        return self.people[person](*words)

    def ok(self, person: str, *words: str) -> Done:
        """Run it; it has to end well."""
        done = self(person, *words)
        assert done.code == 0, f"{words}: {done}"
        return done

    def submit(self, person: str, name: str, script: str) -> Done:
        """Submit a job of one rank."""
        line = ("--image", self.image, f"--user={ACCOUNTS[person]}", "--env=TOKEN=of-the-job", "--")
        return self.ok(person, "submit", "pytorch", f"--name={name}", *line, "sh", "-c", script)

    def ssh(self, person: str, *words: str, data: str = "") -> subprocess.CompletedProcess[str]:
        """Log in to the account of the job agent by the ssh program."""
        trust = ("-o", f"UserKnownHostsFile={self.files / 'known_hosts'}", "-o", "StrictHostKeyChecking=yes")
        key = self.people[person].folder / ".ssh/id_ed25519"
        argv = ["ssh", "-F", "none", *trust, "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-i", str(key)]
        return subprocess.run([*argv, *words], input=data, capture_output=True, text=True, timeout=60, check=False)

    def audit(self) -> list[dict[str, Any]]:
        """Return the records of all nodes."""
        answer = self.operator("history", "--audit", "--json", "-n", "1000", "-i", str(self.inventory)).document
        assert answer["ok"], answer
        assert [node["invalid"] for node in answer["nodes"]] == [0, 0]
        return [{**record, "node": node["name"]} for node in answer["nodes"] for record in node["records"]]


def _key(folder: Path) -> str:
    (folder / ".ssh").mkdir(parents=True, mode=0o700)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / ".ssh/id_ed25519"], check=True)
    return (folder / ".ssh/id_ed25519.pub").read_text().strip()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A head that takes no jobs, a worker, two submitters, applied."""
    folder = tmp_path_factory.mktemp("site")
    keys = {name: _key(folder / name) for name in (*ACCOUNTS, OPERATOR)}
    with with_own_state() as operator:
        try:
            up = ("--driver", "container", "--distro", "debian13", "--nodes", "2", "--machine", "pair")
            operator.ok("lab", "up", LAB, *up)
            files = operator.folder / "state/provision/labs" / LAB
            host = engine_host(files)
            lab = yaml.safe_load((files / "inventory/hosts.yml").read_text())
            nodes, given = lab["all"]["children"]["gpu_nodes"]["hosts"], lab["all"]["children"]["gpu_nodes"]["vars"]
            people = [{"name": name, "key": keys[name], "user": user} for name, user in ACCOUNTS.items()]
            operators = [{"name": OPERATOR, "key": keys[OPERATOR]}]
            shared = {"cluster_name": LAB, "cluster_head": HEAD, "cluster_submitters": people}
            shared["cluster_operators"] = operators
            nodes[HEAD]["cluster_takes_jobs"] = False
            given |= shared
            inventory = folder / "inventory"
            inventory.mkdir()
            (inventory / "hosts.yml").write_text(yaml.safe_dump(lab))
            operator.ok("apply", "--yes", "-i", str(inventory))
            submitters = {}
            for name in (*ACCOUNTS, OPERATOR):
                home = folder / name
                known = f"-o UserKnownHostsFile={files}/known_hosts -o StrictHostKeyChecking=yes"
                login = {
                    **shared,
                    "cluster_agent": True,
                    "ansible_ssh_common_args": known,
                    "ansible_ssh_private_key_file": str(home / ".ssh/id_ed25519"),
                }
                own = {"all": {"hosts": nodes, "vars": login}}
                (home / "inventory").mkdir()
                (home / "inventory/hosts.yml").write_text(yaml.safe_dump(own))
                environment = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "SSH_AUTH_SOCK": ""}
                environment["PROVISION_SIGNING_KEY"] = str(home / ".ssh/id_ed25519")
                submitters[name] = Provision(home, **environment)
                submitters[name].environment["PROVISION_INVENTORY"] = str(home / "inventory")
            address = str(nodes[HEAD]["ansible_host"])
            yield Site(operator, inventory, submitters, given["training_image_reference"], address, files)
        finally:
            down = operator("lab", "down", LAB)
        assert down.code == 0, str(down)
        assert held(host, "ps", "-aq", "--filter", f"name=provision-{LAB}-") == []


def get(site: Site, person: str, name: str) -> Any:
    """What a submitter sees of a job."""
    return site.ok(person, "get", name, "-o", "json").document


def test_a_submitter_can_submit_follow_and_stop_only_his_own_jobs(site: Site) -> None:
    """Without a root login: an operator's queue starts the job, on the node that takes jobs."""
    said = site.submit("bob", "mine", "echo first; id -u; sleep 600")
    assert "an operator's queue" in said.err
    assert get(site, "bob", "mine")["status"] == "PENDING"

    assert site.op("queue", "run", "--json").document["started"] == ["mine"]
    running = eventually(
        lambda: (job := get(site, "bob", "mine"))["status"] == "RUNNING" and job, seconds=90, what="mine runs"
    )
    assert {one["node"] for one in running["instances"]} == {WORKER}
    follower = site.people["bob"].start("-q", "logs", "-f", "mine")
    assert follower.stdout is not None
    assert [follower.stdout.readline().strip() for _ in range(2)] == ["first", "1001"]

    for words in (("logs", "mine"), ("stop", "mine"), ("delete", "--force", "mine")):
        refused = site("eve", *words)
        assert refused.code == 2, str(refused)
        assert "belongs to another user" in refused.err
        assert "first" not in refused.out
    by_hand = json.dumps({"do": "delete", "name": "mine", "id": "x"}) + "\n"
    assert "belongs to another user" in site.ssh("eve", f"provision-jobs@{site.address}", data=by_hand).stdout
    seen = site.ok("eve", "get", "mine", "-e", "-o", "json").out
    assert "of-the-job" not in seen
    assert "echo first" not in seen
    assert "mine" in site.ok("eve", "list").out
    assert get(site, "bob", "mine")["status"] == "RUNNING"

    site.ok("bob", "stop", "mine")
    assert follower.wait(timeout=60) is not None
    assert get(site, "bob", "mine")["status"] == "STOPPED"
    site.ok("bob", "delete", "mine")
    assert site("bob", "get", "mine").code == 3


def test_a_waiting_job_can_be_stopped_only_by_its_submitter(site: Site) -> None:
    """It is only in the queue of the head then."""
    site.submit("eve", "hers", "true")
    assert "belongs to another user" in site("bob", "stop", "hers").err
    refused = site("bob", "delete", "hers", "--json")
    assert (refused.code, refused.document["error"]["code"]) == (2, "job.not_owner")
    assert get(site, "eve", "hers")["status"] == "PENDING"
    site.ok("eve", "stop", "hers")
    assert get(site, "eve", "hers")["status"] == "STOPPED"
    assert site.op("queue", "run", "--json").document["started"] == []
    site.ok("eve", "delete", "hers")


@pytest.mark.slow
def test_an_operator_confirms_before_ending_another_users_job(site: Site) -> None:
    """The agent allows it, so only the question protects the job."""
    site.submit("eve", "asked", "true")
    for verb in ("stop", "delete"):
        refused = site("alice", verb, "asked")
        assert refused.code == 2, str(refused)
        assert "asked is PENDING and owned by" in refused.err
        assert "To confirm, add --yes" in refused.err
    assert get(site, "eve", "asked")["status"] == "PENDING"
    site.ok("alice", "stop", "asked", "--yes")
    site.ok("alice", "delete", "asked")


def test_a_job_runs_as_the_account_of_its_submitter(site: Site) -> None:
    """Not as root, and not as the account of somebody else."""
    line = ("--image", site.image, "--name=root", "--", "true")
    for user in ((), ("--user=0:0",), ("--user=1002:1002",)):
        refused = site("bob", "submit", "pytorch", *user, *line)
        assert refused.code == 2
        assert "your jobs run as 1001:1001" in refused.err
    assert site("bob", "get", "root").code == 3


def test_the_login_of_a_submitter_runs_only_the_job_agent(site: Site) -> None:
    """Whatever the client asks sshd for, the agent answers a request or nothing."""
    account = f"provision-jobs@{site.address}"
    for words in (["id"], ["sudo", "-n", "id"], ["sh", "-c", "id"], []):
        done = site.ssh("bob", account, *words)
        assert "uid=" not in done.stdout
        assert json.loads(done.stdout)["error"]["message"] == "the request is not JSON"
    for do in ("prepare", "start", "drain", "secrets"):
        done = site.ssh("bob", account, "id", data=json.dumps({"do": do, "name": "mine", "reason": "x"}) + "\n")
        assert "does not accept the request" in json.loads(done.stdout)["error"]["message"]
    assert "PTY allocation request failed" in site.ssh("bob", "-tt", account).stderr
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for way in (f"-L127.0.0.1:{port}:127.0.0.1:22", f"-D127.0.0.1:{port}"):
        assert not _forwards(site, way, port, account)
    refused = site.ssh("bob", "-o", "ExitOnForwardFailure=yes", "-N", "-R0:127.0.0.1:22", account)
    assert refused.returncode != 0
    assert site.ssh("bob", "-s", account, "sftp").returncode != 0
    assert "sftp-server" not in site.on(HEAD, "ps axww -o args")
    assert site.ssh("bob", f"root@{site.address}", "id").returncode == 255
    account_may = site.on(HEAD, "su -s /bin/sh provision-jobs -c 'sudo -n id; sudo -n -l' 2>&1; true")
    assert "uid=0" not in account_may
    assert account_may.count("/usr/local/lib/provision/job-agent") == len(site.people)


def _forwards(site: Site, way: str, port: int, account: str) -> bool:
    """Return whether a forwarded port leads anywhere."""
    trust = ("-o", f"UserKnownHostsFile={site.files / 'known_hosts'}", "-o", "StrictHostKeyChecking=yes")
    key = site.people["bob"].folder / ".ssh/id_ed25519"
    argv = ["ssh", "-F", "none", *trust, "-o", "BatchMode=yes", "-i", str(key), way, account]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:

        def connected() -> socket.socket | None:
            try:
                return socket.create_connection(("127.0.0.1", port), timeout=5)
            except OSError:
                assert child.poll() is None
                return None

        with eventually(connected, seconds=30, what="ssh listens") as connection:
            connection.settimeout(20)
            if way.startswith("-D"):
                connection.sendall(b"\x05\x01\x00")
                connection.recv(2)
                connection.sendall(b"\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x16")
                answer = connection.recv(10)
                return answer[1:2] == b"\x00" and bool(connection.recv(4))
            return bool(connection.recv(4))
    finally:
        child.kill()
        child.wait()


def test_commands_that_require_an_operator_are_refused_with_the_reason(site: Site) -> None:
    """Before anything is tried on the nodes."""
    for words in (
        ("plan",),
        ("apply", "--yes"),
        ("verify",),
        ("run", "--", "id"),
        ("queue", "run"),
        ("attach", "mine"),
        ("restart", "mine"),
        ("node", "drain", WORKER),
        ("history", "--audit"),
    ):
        refused = site("bob", *words)
        assert refused.code == (125 if words[0] == "run" else 2), f"{words}: {refused}"
        assert "an operator" in refused.err, f"{words}: {refused}"


def test_the_queue_host_needs_no_docker(site: Site) -> None:
    """It is converged, and has nothing for jobs."""
    assert site.operator("plan", "--exit-code", "-i", str(site.inventory)).code == 0
    assert site.on(HEAD, "command -v dockerd docker || echo none").strip() == "none"
    assert site.op("hostfile").out == f"{WORKER} slots=2\n"
    nodes = {one["name"]: one for one in site.operator("plan", "--json", "-i", str(site.inventory)).document["nodes"]}
    assert nodes[HEAD]["steps"] == []
    checks = site.operator("verify", "--json", "-i", str(site.inventory)).document["nodes"][0]["checks"]
    codes = {one["code"] for one in checks if one["id"].startswith(("docker_engine.", "container_ssh."))}
    assert codes == {"check.no_jobs"}


@pytest.mark.slow
def test_manual_changes_are_detected_and_removed_submitters_lose_access(site: Site) -> None:
    """An edited file of the agent is a drift; a person who is no longer in the inventory cannot log in."""
    keys = "/var/lib/provision-jobs/.ssh/authorized_keys"
    site.on(HEAD, f"echo 'ssh-ed25519 AAAA mallory' >> {keys}; chmod 600 /etc/sudoers.d/provision-jobs")
    plan = site.operator("plan", "--json", "-i", str(site.inventory)).document["nodes"][0]
    reasons = "\n".join(reason for step in plan["steps"] for reason in step["reasons"])
    assert keys in reasons
    assert "/etc/sudoers.d/provision-jobs" in reasons
    hosts = site.inventory / "hosts.yml"
    before = hosts.read_text()
    lab = yaml.safe_load(before)
    variables = lab["all"]["children"]["gpu_nodes"]["vars"]
    variables["cluster_submitters"] = [one for one in variables["cluster_submitters"] if one["name"] != "eve"]
    hosts.write_text(yaml.safe_dump(lab))

    site.op("apply", "--yes")
    assert "mallory" not in site.on(HEAD, f"cat {keys}")
    assert site("eve", "list").code != 0
    site.ok("bob", "list")


def test_the_audit_record_lists_all_actions_and_refusals(site: Site) -> None:
    """Who submitted, read, stopped and deleted which job, from where, and what was refused to whom."""
    records = site.audit()
    known = {(one["action"], one["caller"], one["job"], one["verified"]) for one in records}

    assert {
        ("submitted", "bob", "mine", True),
        ("read logs", "bob", "mine", True),
        ("stopped", "bob", "mine", True),
        ("deleted", "bob", "mine", True),
        ("submitted", "eve", "hers", True),
    } <= known
    refused = [(one["caller"], one["request"], one["job"]) for one in records if one["action"] == "refused"]
    assert {("eve", "logs", "mine"), ("eve", "stop", "mine"), ("eve", "delete", "mine"), ("bob", "stop", "hers")} <= {
        *refused
    }
    assert ("bob", "start", "mine") in refused
    started = [one for one in records if one["action"] == "started"]
    assert [(one["node"], one["job"], one["verified"]) for one in started] == [(WORKER, "mine", False)]
    assert {one["caller"] for one in records if one["action"] == "applied"} == {started[0]["caller"]}
    assert all(one["address"] for one in records)
    assert all(abs(one["time"] - time.time()) < 3600 for one in records)
    text = site.op("history", "--audit", "-n", "1000").out
    assert max(map(len, text.splitlines())) <= 80
    assert "of-the-job" not in json.dumps(records)
    site.on(HEAD, "su -s /bin/sh nobody -c 'logger -t provision-audit forged'")
    assert site.audit()  # an entry of another account than root is not even counted as invalid
