"""The role slurm, on container nodes: from bare nodes to a Slurm cluster and back. The GPUs are SIMULATED.

Device files without a driver stand for the GPUs. To open one fails with "No such device" if the cgroup allows it, else
with "Operation not permitted".
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import node_shell
from tests.support.command import Provision, with_own_state
from tests.support.reasons import shown_document
from tests.support.recorded_systems import SystemRecorder

GPUS = 4
OPEN = (
    'for n in 0 1 2 3; do (: </dev/nvidia$n) 2>&1 | grep -q "not permitted" && echo $n denied || echo $n allowed; done'
)
SETTINGS: dict[str, Any] = {
    "cluster_engine": "slurm",
    "slurm_health_interval_seconds": 10,
    "training_image_enabled": False,
    "training_container_enabled": False,
    "container_ssh_enabled": False,
}
NO_DOCKER = {f"{role}_enabled": False for role in ("rdma_stack", "peer_memory", "nvidia_container", "docker_engine")}


@dataclass(frozen=True)
class Form:
    """One form of the test: the system and the number of nodes."""

    distro: str
    nodes: int
    settings: dict[str, Any]


SHORT = Form("debian12", 2, NO_DOCKER)
LONG = [Form("debian12", 4, {}), Form("debian13", 4, {})]
ACCOUNTING = [Form(distro, 2, {**NO_DOCKER, "slurm_accounting": "slurmdbd"}) for distro in ("debian12", "debian13")]


@dataclass(frozen=True)
class Site:
    """A lab and an inventory of its own."""

    provision: Provision
    lab: str
    form: Form

    @property
    def inventory(self) -> Path:
        return self.provision.folder / "slurm-site"

    @property
    def names(self) -> list[str]:
        return [f"{self.lab}-{number}" for number in range(1, self.form.nodes + 1)]

    @property
    def controller(self) -> str:
        return self.names[0]

    @property
    def computes(self) -> list[str]:
        return self.names[1:]

    def write(self, **settings: Any) -> None:
        """Write the inventory: the lab's, with our settings."""
        hosts = self.provision.folder / "state/provision/labs" / self.lab / "inventory/hosts.yml"
        for folder in ("group_vars", "host_vars"):
            (self.inventory / folder).mkdir(parents=True, exist_ok=True)
        (self.inventory / "hosts.yml").write_text(hosts.read_text())
        text = yaml.safe_dump({**SETTINGS, **self.form.settings, **settings})
        (self.inventory / "group_vars/all.yml").write_text(text)
        (self.inventory / f"host_vars/{self.controller}.yml").write_text("cluster_takes_jobs: false\n")
        for number, name in enumerate(self.computes):
            (self.inventory / f"host_vars/{name}.yml").write_text(f"cluster_leaf: leaf{number // 2}\n")

    def run(self, node: str, command: str) -> str:
        """Run a shell command on a node; it must succeed."""
        return node_shell.on_node(self.provision, self.lab, node, command)

    def apply(self, *words: str) -> dict[str, Any]:
        done = self.provision("apply", "-i", str(self.inventory), "--yes", "--json", *words)
        assert done.code == 0, str(done)
        return dict(done.document)

    def plan(self) -> dict[str, dict[str, list[str]]]:
        document = self.provision("plan", "-i", str(self.inventory), "--json").document
        return {
            node["name"]: {step["role"]: list(map(shown_document, step["reason_codes"])) for step in node["steps"]}
            for node in document["nodes"]
        }

    def states(self) -> dict[str, str]:
        lines = self.run(self.controller, "sinfo -h -N -o '%N %T'").splitlines()
        return dict(line.split() for line in lines)

    def wait(self, node: str, command: str, wanted: str) -> str:
        """Wait until the output of a command matches, and return it."""
        deadline = time.monotonic() + 120
        while not re.search(wanted, out := self.run(node, command)):
            assert time.monotonic() < deadline, f"{command}: {wanted} does not match: {out}"
            time.sleep(0.5)
        return out


LONG_FORMS = [pytest.param(form, marks=pytest.mark.long, id=f"{form.distro}-{form.nodes}") for form in LONG]
only_long_forms = pytest.mark.parametrize("site", LONG_FORMS, indirect=True, scope="module")
ACCOUNTING_FORMS = [pytest.param(form, marks=pytest.mark.long, id=f"{form.distro}-accounting") for form in ACCOUNTING]
only_accounting_forms = pytest.mark.parametrize("site", ACCOUNTING_FORMS, indirect=True, scope="module")


@pytest.fixture(scope="module", params=[pytest.param(SHORT, id="short"), *LONG_FORMS, *ACCOUNTING_FORMS])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """Bare nodes, the first of them for the controller, after one apply."""
    form: Form = request.param
    with with_own_state() as provision:
        made = Site(provision, f"slurm{os.getpid()}x{form.nodes}{form.distro[-2:]}", form)
        try:
            provision.ok(
                "lab", "up", made.lab, "--driver", "container", "--distro", form.distro,
                "--nodes", str(form.nodes), "--machine", "pcie4",
            )  # fmt: skip
            made.write()
            made.apply()
            yield made
        finally:
            down = provision("lab", "down", made.lab)
    assert down.code == 0, str(down)


def test_one_apply_makes_bare_nodes_a_slurm_cluster(site: Site) -> None:
    """All nodes are registered with their GPUs, and every check of verify agrees."""
    lines = site.run(site.controller, "sinfo -h -N -o '%N|%T|%G|%f|%P'").splitlines()
    gres = ",".join(f"gpu:g{number}:1" for number in range(GPUS))

    assert lines == [f"{name}|idle|{gres}|l40s|gpu*" for name in site.computes]
    document = site.provision("verify", "-i", str(site.inventory), "--json").document
    results = {
        (node["name"], check["id"]): check["status"]
        for node in document["nodes"]
        for check in node["checks"]
        if check["id"].startswith("slurm.")
    }
    wanted = [("controller", "pass"), ("munge", "pass"), ("node", "pass"), ("gres", "pass"), ("devices", "pass")]
    for name in site.computes:
        assert [(check, results[name, f"slurm.{check}"]) for check, _ in wanted] == wanted, results
    assert results[site.controller, "slurm.configuration"] == "pass", results


def test_a_job_can_open_only_the_gpus_that_it_got(site: Site) -> None:
    """Exact GPUs by their types; the device constraint is that of the cgroup."""
    out = site.run(site.controller, f"srun -N1 --gres=gpu:g1:1,gpu:g3:1 sh -c 'echo $SLURM_STEP_GPUS; {OPEN}'")

    assert out.split("\n")[0] == "1,3"
    assert out.split("\n")[1:5] == ["0 denied", "1 allowed", "2 denied", "3 allowed"]


def test_a_second_apply_changes_nothing(site: Site) -> None:
    """No Ansible runs."""
    document = site.apply()

    assert {node["status"] for node in document["nodes"]} == {"unchanged"}
    assert site.provision("plan", "-i", str(site.inventory), "--exit-code").code == 0


def test_a_job_of_provision_runs_on_the_allocated_gpus(site: Site) -> None:
    """The engine slurm submits it; it runs without a container, fails with its exit code, and leaves nothing."""
    node, job = site.computes[0], f"{site.lab}-job"
    words = ("submit", "run", "-i", str(site.inventory), f"--name={job}", "--no-container", "--gpus=2")
    site.provision.ok(*words, f"--nodes={node}", "echo gpus $NVIDIA_VISIBLE_DEVICES; exit 7", timeout=300)
    waited = site.provision("wait", "-i", str(site.inventory), job, timeout=300)
    document = site.provision.ok("get", "-i", str(site.inventory), job, "-o", "json").document
    logs = site.provision.ok("logs", "--inventory", str(site.inventory), job).out

    assert (waited.code, document["status"], document["instances"][0]["node"]) == (7, "FAILED", node), document
    assert len(re.search(r"gpus (\S+)", logs)[1].split(",")) == 2
    site.wait(site.controller, "squeue -h; echo done", r"\Adone")
    assert site.run(node, "ls -A /run/provision/leases").split() == []
    site.provision.ok("delete", "-i", str(site.inventory), job)


def test_the_key_of_munge_is_not_on_the_controller_of_the_operator(site: Site) -> None:
    """Neither in logs nor in state, neither as it is nor as base64, and no other account of a node can read it."""
    encoded = site.run(site.controller, "base64 -w0 /etc/munge/munge.key").strip()
    key = site.run(
        site.controller, "xxd -p -c0 /etc/munge/munge.key || od -An -v -tx1 /etc/munge/munge.key | tr -d ' \\n'"
    )
    for path in filter(Path.is_file, site.provision.folder.rglob("*")):
        content = path.read_bytes()
        assert encoded[:40].encode() not in content, path
        assert bytes.fromhex(key.strip()[:64]) not in content, path
    for name in site.names:
        assert site.run(name, "stat -c '%U %a' /etc/munge/munge.key").split() == ["munge", "400"]
        assert encoded[:40] not in site.run(
            name, "journalctl --no-pager | base64 -w0 >/dev/null; journalctl --no-pager"
        )


CONTROLLER_DRIFTS = {
    r"file\.edited: .*/etc/slurm/slurm\.conf": "echo 'KillWait=7' >>/etc/slurm/slurm.conf",
    r"file\.missing: .*/etc/slurm/gres\.conf": "rm /etc/slurm/gres.conf",
    r"file\.edited: .*/etc/slurm/cgroup\.conf": "sed -i s/Devices=yes/Devices=no/ /etc/slurm/cgroup.conf",
    r"file\.missing: .*/etc/provision/slurm\.json": "rm /etc/provision/slurm.json",
    r"unit\.stopped: slurmctld\.service": "systemctl stop slurmctld",
}
NODE_DRIFTS = {
    r"file\.edited: .*/etc/munge/munge\.key": "head -c 128 /dev/urandom >/etc/munge/munge.key; systemctl restart munge",
    r"unit\.stopped: slurmd\.service": "systemctl stop slurmd",
    r"unit\.enabled: slurmd\.service disabled": "systemctl disable slurmd 2>/dev/null",
    r"file\.edited: .*/etc/default/slurmd": "echo SLURMD_OPTIONS= >/etc/default/slurmd",
    r"file\.missing: .*/slurmd\.service\.d/90-provision\.conf": "rm /etc/systemd/system/slurmd.service.d/*",
    r"file\.missing: .*/epilog\.d/50-provision": "rm /etc/slurm/epilog.d/50-provision",
    r"file\.attribute: .*/slurm-node\.pyz": "chmod 0644 /usr/local/lib/provision/slurm-node.pyz",
    r"file\.edited: .*/provision-slurm-health": "echo exit 1 >>/usr/local/sbin/provision-slurm-health",
}


@pytest.mark.slow
def test_manual_changes_are_detected_and_repaired(site: Site) -> None:
    """Thirteen at once, on the controller and on a node; each has its reason, and one apply repairs all."""
    node = site.computes[0]
    for name, drifts in ((site.controller, CONTROLLER_DRIFTS), (node, NODE_DRIFTS)):
        site.run(name, "\n".join(["set -e", *drifts.values()]))

    steps = site.plan()
    for name, drifts in ((site.controller, CONTROLLER_DRIFTS), (node, NODE_DRIFTS)):
        reasons = steps[name].get("slurm", [])
        for wanted in drifts:
            assert any(re.search(wanted, reason) for reason in reasons), f"{wanted} is not among {reasons}"
    site.apply()

    assert site.provision("plan", "-i", str(site.inventory), "--exit-code").code == 0
    assert site.states() == dict.fromkeys(site.computes, "idle")
    assert "KillWait                = 30" in site.run(site.controller, "scontrol show config")
    assert site.run(site.controller, f"srun -w {node} hostname").strip() == node


@only_long_forms
def test_changes_of_the_configuration_do_not_end_a_running_job(site: Site) -> None:
    """A partition is read again, a daemon restarts for an option, and a line of a node with a job waits."""
    node = site.computes[0]
    job = site.run(
        site.controller, f"sbatch --parsable -w {node} --gres=gpu:g0:1 -o /dev/null --wrap 'sleep 600'"
    ).strip()
    site.wait(site.controller, f"squeue -h -j {job} -o %T", "RUNNING")
    site.write(
        slurm_partitions=[{"name": "gpu", "default": True}, {"name": "day", "max_time": "1-0"}],
        slurm_options={"TCPTimeout": 9},
    )
    site.apply()

    shown = site.run(site.controller, "scontrol show config; sinfo -h -o %P")
    assert re.search(r"TCPTimeout\s*= 9 sec", shown)
    assert re.search(r"(?m)^day$", shown)
    assert site.run(site.controller, f"squeue -h -j {job} -o '%T %N'").split() == ["RUNNING", node]
    assert site.provision("plan", "-i", str(site.inventory), "--exit-code").code == 0
    site.run(site.controller, f"scancel {job}")
    site.write()
    site.apply()


@only_long_forms
def test_an_unhealthy_node_is_drained_and_resumed(site: Site) -> None:
    """By its health checks alone; a node that an operator drained stays drained."""
    node = site.computes[0]
    show = f"sinfo -h -n {node} -o '%T %E'"
    site.run(node, "mv /dev/nvidia2 /dev/away")
    try:
        site.wait(site.controller, show, "^drained provision: health: gpu_device_missing")
        verify = site.provision("verify", "-i", str(site.inventory), "--json")
        results = {c["id"]: c for n in verify.document["nodes"] if n["name"] == node for c in n["checks"]}
        assert results["slurm.node"]["status"] == "fail"
        assert "gpu_device_missing" in results["slurm.node"]["reason"]
    finally:
        site.run(node, "mv /dev/away /dev/nvidia2")
    site.wait(site.controller, show, "^idle")

    site.run(site.controller, f"scontrol update NodeName={node} State=DRAIN Reason=mine")
    site.run(
        node,
        "for run in 1 2 3; do /usr/local/sbin/provision-slurm-health; done",
    )
    assert site.run(site.controller, show).startswith("drained mine")
    site.run(site.controller, f"scontrol update NodeName={node} State=RESUME")


@only_long_forms
def test_the_epilog_ends_what_a_job_of_ours_left(site: Site) -> None:
    """A container of the job is removed, one of another job stays, and so does that of a job with a forged comment."""
    node = site.computes[0]
    libraries = "usr/lib64 usr/lib/x86_64-linux-gnu/libc.so.6 usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
    site.run(node, f"tar -C / -c bin lib lib64 usr/bin/sleep {libraries} | docker import - left:1 >/dev/null")

    def container(name: str) -> None:
        labels = f"--label provision.job={name} --label provision.id={name}-id --label provision.attempt=1"
        site.run(node, f"docker run -d --name {name} {labels} left:1 /usr/bin/sleep 900 >/dev/null")

    def job(comment: str, *words: str) -> str:
        command = f"sbatch --parsable -w {node} --comment {comment} -o /dev/null {' '.join(words)} --wrap 'sleep 600'"
        number = site.run(site.controller, command).strip()
        site.wait(site.controller, f"squeue -h -j {number} -o %T", "RUNNING")
        return number

    for name in ("ours", "other", "forged"):
        container(name)
    number = job("provision:ours@ours-id")
    mark = json.dumps({"name": "ours", "id": "ours-id", "attempt": 1})
    site.run(node, f"install -d -m 0700 /run/provision/slurm; echo '{mark}' >/run/provision/slurm/{number}")
    site.run(site.controller, f"scancel {number}")
    site.wait(node, "docker ps --format '{{.Names}}' | sort | tr '\\n' ' '", "^forged other $")

    number = job("provision:forged@forged-id", "--uid=nobody")
    site.run(site.controller, f"scancel {number}")
    site.wait(site.controller, f"squeue -h -j {number} -t all -o %T", "CANCELLED")
    site.wait(site.controller, f"sinfo -h -n {node} -o %T", "^idle$")
    assert site.run(node, "docker ps --format '{{.Names}}' | sort").split() == ["forged", "other"]
    site.run(node, "docker rm -f forged other >/dev/null; docker rmi left:1 >/dev/null")


def record(job: str) -> str:
    """Return the command that prints what slurmdbd knows of a job."""
    return f"sacct --noheader --parsable2 --allocations --jobs {job} --format State,ExitCode,AllocTRES"


@only_accounting_forms
def test_slurmdbd_records_jobs_without_a_password(site: Site) -> None:
    """State, exit code and GPUs, read on every node. MariaDB knows slurmdbd by its system account."""
    words = f"-w {site.computes[0]} --gres=gpu:2 -o /dev/null --wrap 'exit 3'"
    job = site.run(site.controller, f"sbatch --parsable --wait {words} || true").strip()

    site.wait(site.controller, record(job), r"^FAILED\|3:0\|.*gres/gpu=2")
    assert site.run(site.computes[0], record(job)) == site.run(site.controller, record(job))
    conf = site.run(site.controller, "stat -c '%U %a' /etc/slurm/slurmdbd.conf; cat /etc/slurm/slurmdbd.conf")
    assert conf.splitlines()[0] == "slurm 600"
    assert "StoragePass" not in conf
    account = "mariadb -BN -e \"SELECT User, plugin FROM mysql.user WHERE User = 'slurm'\""
    assert site.run(site.controller, account).split() == ["slurm", "unix_socket"]
    document = site.provision("verify", "-i", str(site.inventory), "--json").document
    checks = {node["name"]: {one["id"]: one["status"] for one in node["checks"]} for node in document["nodes"]}
    assert checks[site.controller]["slurm.accounting"] == "pass"


ACCOUNTING_DRIFTS = {
    r"file\.edited: .*/etc/slurm/slurmdbd\.conf": "echo DebugLevel=debug >>/etc/slurm/slurmdbd.conf",
    r"unit\.stopped: slurmdbd\.service": "systemctl stop slurmdbd",
    r"unit\.stopped: mariadb\.service": "systemctl stop mariadb",
}


@only_accounting_forms
def test_manual_changes_of_slurmdbd_are_detected_and_repaired(site: Site) -> None:
    """Jobs run on without slurmdbd."""
    site.run(site.controller, "\n".join(["set -e", *ACCOUNTING_DRIFTS.values()]))
    reasons = site.plan()[site.controller].get("slurm", [])
    for wanted in [*ACCOUNTING_DRIFTS, r"slurm\.accounting\.no_answer"]:
        assert any(re.search(wanted, reason) for reason in reasons), f"{wanted} is not among {reasons}"
    assert site.run(site.controller, f"srun -w {site.computes[0]} hostname").strip() == site.computes[0]
    site.apply()

    assert site.provision("plan", "-i", str(site.inventory), "--exit-code").code == 0
    assert "DebugLevel" not in site.run(site.controller, "cat /etc/slurm/slurmdbd.conf")
    assert site.run(site.controller, "sacctmgr --noheader --parsable2 show cluster format=cluster").split()


@only_accounting_forms
def test_a_change_of_accounting_does_not_end_a_running_job(site: Site) -> None:
    """Off, and on again with the records of before; the job is recorded when it ends."""
    node = site.computes[0]
    before = site.run(site.controller, "sacct --noheader --allusers --allocations --parsable2 --format JobID")
    words = f"-w {node} --gres=gpu:g0:1 -o /dev/null --wrap 'sleep 900'"
    job = site.run(site.controller, f"sbatch --parsable {words}").strip()
    site.wait(site.controller, f"squeue -h -j {job} -o %T", "RUNNING")
    for accounting in ("none", "slurmdbd"):
        site.write(slurm_accounting=accounting)
        site.apply()
        active = site.run(site.controller, "systemctl is-active slurmdbd || true").strip()
        assert active == {"none": "inactive", "slurmdbd": "active"}[accounting]
        assert site.run(site.controller, f"squeue -h -j {job} -o '%T %N'").split() == ["RUNNING", node]
        assert site.provision("plan", "-i", str(site.inventory), "--exit-code").code == 0
    site.run(site.controller, f"scancel {job}")

    site.wait(site.controller, record(job), "^CANCELLED")
    after = site.run(site.controller, "sacct --noheader --allusers --allocations --parsable2 --format JobID")
    assert set(before.split()) < set(after.split())


@only_accounting_forms
def test_a_reset_removes_the_records_of_jobs_only_if_the_operator_allows_it(site: Site) -> None:
    """The node is refused, and nothing on it changes."""
    words = ("reset", "-i", str(site.inventory), "--limit", site.controller, "--yes", "--json")
    done = site.provision(*words)

    assert done.code == 1, str(done)
    assert re.search(r"the records of [0-9]+ jobs? in the database slurm_acct_db would be removed", done.out)
    assert site.run(site.controller, "sacct --noheader --allusers --allocations --format JobID").split()
    assert site.provision("plan", "-i", str(site.inventory), "--exit-code").code == 0


LEFT = """
ls -A /var/lib/provision
ls -d /var/lib/mysql /etc/mysql /var/log/mysql
ls -d /etc/provision /etc/slurm /etc/munge /var/lib/slurm /var/log/slurm /var/lib/munge /var/log/munge
ls -d /usr/local/lib/provision
command -v sinfo slurmd slurmctld munge slurmdbd mariadb
getent passwd slurm munge mysql
systemctl list-unit-files --no-legend 'slurm*' 'munge*' 'mariadb*'
find /etc /usr/local /var/lib -name '*slurm*' ! -path '/var/lib/apt/*' ! -path '/var/lib/dpkg/*'
"""


def test_reset_leaves_nothing(site: Site, record_system: SystemRecorder) -> None:
    """Neither packages nor accounts, folders or units; only the node's history records the past."""
    allowed = ("--disruptive", site.controller) if "slurm_accounting" in site.form.settings else ()
    done = site.provision("reset", "-i", str(site.inventory), *allowed, "--yes", "--json")
    assert done.code == 0, str(done)

    for name in site.names:
        left = site.run(name, f"({LEFT}) 2>/dev/null; true").splitlines()
        assert [line for line in left if line] == ["history.jsonl"], name
    record_system(site.form.distro, ["slurm"])
