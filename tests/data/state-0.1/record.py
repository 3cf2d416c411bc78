"""Write the state that provision leaves on the controller and on nodes, with its own functions; see README.md.

Docker, systemd, dpkg and GPUs are STAND-INS; what they answer is recorded too.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from provision import workflow
from provision.benchmarks.base import Run
from provision.benchmarks.record import NodeInfo, Record
from provision.cli.main import main
from provision.components import ROLES
from provision.connectors.ssh_signatures import own_signing_key
from provision.inventory import load
from provision.jobs.engines.base import Secrets
from provision.lab import state as lab_state
from provision.lab.base import DriverName, LabSpec
from provision.model import NodePlan, Plan, Secret
from provision.model.job import JobSpec, JobStatus, Kind
from provision.node.lock.state import append
from provision.node_archive import archive
from provision.planning import fingerprint
from provision.workflow import benchmark_files, history, job_names, plan, stored_secrets
from provision.workflow.drain_record import DrainRecord
from provision.workflow.plan_result import PlanResult
from provision.workflow.sources import role_sources
from tests.support.matrices import QUAD, rendered
from tests.support.modules import load as load_module
from tests.support.modules import run as run_module
from tests.support.node.direct import direct_engine
from tests.support.node.node import FakeNode, until

OUT = Path(sys.argv[1]).resolve()
BOOT_ID = "6f0d6c0a-0000-4000-8000-000000000001"
HOST_KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"
IMAGE = "registry.example.com/team/train:1"
FILES = {
    "etc/sysctl.d/90-provision.conf": ("vm.overcommit_memory = 1\n", 0o644),
    "etc/provision/job-agent.json": ('{"people": {}}\n', 0o600),
    "etc/hosts": ("127.0.0.1 localhost\n# BEGIN provision\n10.77.0.1 gpu1\n# END provision\n", 0o644),
    "etc/docker/daemon.json": ('{"log-driver": "json-file", "theirs": 1}\n', 0o644),
    "usr/local/lib/provision/rdma-setup": ("#!/bin/sh\n", 0o755),
}
"""Path below the node's root -> content and mode."""
ANSWERS = {
    f"/images/{IMAGE}/json": {"Id": "sha256:" + "11" * 32},
    "/containers/provision-training/json": {
        "Id": "c1" * 32,
        "Image": "sha256:" + "11" * 32,
        "State": {"Status": "running"},
        "Config": {"Labels": {"provision.role": "training_container"}},
    },
}
UNITS = "Type=notify\nRemainAfterExit=no\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\n"
RECEIPTS: dict[str, dict[str, Any]] = {
    "base_system": {
        "inputs": {"limits": {"memlock": "unlimited"}},
        "files": ["etc/sysctl.d/90-provision.conf", "etc/provision/job-agent.json", "etc/hosts"],
        "parts": {"etc/hosts": {"block": "provision"}},
        "packages": ["chrony"],
        "reductions": ["nofile: 1048576 is reduced to 524288, the node's own limit"],
    },
    "rdma_stack": {
        "files": ["usr/local/lib/provision/rdma-setup", "etc/modules-load.d/provision-rdma.conf"],
        "packages": ["rdma-core"],
        "modules": ["ib_uverbs"],
    },
    "docker_engine": {
        "files": ["etc/docker/daemon.json"],
        "parts": {"etc/docker/daemon.json": {"keys": ["log-driver"]}},
        "packages": ["docker.io"],
        "units": ["docker.service"],
    },
    "training_image": {"inputs": {"reference": IMAGE}, "images": [IMAGE]},
    "training_container": {"units": ["docker.service"], "containers": ["provision-training"]},
}
"""Role -> its receipt as its tasks list it, with paths below the root; other roles manage nothing here."""


def controller() -> None:
    """Write the inventory with `init`, and the files of the state and cache folders."""
    os.chdir(OUT / "controller")
    Path("keys").write_text("".join(f"192.0.2.{n} ssh-ed25519 {HOST_KEY}\n" for n in (1, 2)))
    words = ["init", "gpu1=192.0.2.1", "gpu2=192.0.2.2", "--user", "root", "--known-hosts", "keys"]
    with pytest.raises(SystemExit):
        main([*words, "--name", "prod", "--image", IMAGE])
    Path("keys").unlink()
    cluster = workflow.with_defaults(load(Path("inventories/prod")))
    entry = history.begin(cluster, command="provision apply --yes", nodes=["gpu1", "gpu2"])
    changed = {"status": "changed", "roles": ["base_system"], "message": ""}
    history.end(entry, status="ok", seconds=61.5, nodes={"gpu1": changed, "gpu2": changed})
    history.begin(cluster, command="provision apply", nodes=["gpu2"])
    DrainRecord(cluster).add({"gpu2": {"kind": "slurm", "name": "gpu2", "since": entry.started, "user": "root"}})
    stored_secrets.store(stored_secrets.Credential("git", "git.example.com", "reader", Secret("not-a-secret")))
    benchmark_files.store_record(
        Record(
            benchmark_files.new_id(), "vgg16", entry.started, 40.0, command="python3 bench.py",
            nodes=(NodeInfo("gpu1", 4, "4x SIMULATED", fabric=("mlx5_0 InfiniBand 200 Gb/sec (4X HDR)",)),),
            environment={"NCCL_DEBUG": "INFO", "TOKEN": None}, about={"torch": "2.5"},
            runs=(Run("vgg16", "vgg16", 64, 4, 205.1, 0.6, 820.5, 2.5, iterations=(205.5, 204.7)),),
        )
    )  # fmt: skip
    lab_state.save_spec(lab_state.lab_folder("demo"), LabSpec("demo", DriverName.CONTAINER, 2, packages=("docker.io",)))
    job_names.store_job_names(cluster.inventory, ["running", "succeeded"])
    nothing_to_do = Plan(tuple(NodePlan(node.name, ()) for node in cluster.nodes))
    plan.save(PlanResult(cluster, nothing_to_do, {}, {}), Path("change.plan"), plan.Request())
    receipts(cluster)


def receipts(cluster: Any) -> None:
    """Write the receipts of gpu1 with the Ansible module."""
    node, root = OUT / "node", OUT / "node/root"
    for name, (content, mode) in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(mode)
    programs = node / "answers"
    programs.mkdir()
    packages = {"chrony": "4.3-2", "rdma-core": "44.0-2", "docker.io": "20.10.24"}
    (programs / "dpkg-query").write_text("".join(f"{name} installed {v}\n" for name, v in packages.items()))
    (programs / "systemctl").write_text(UNITS)
    (programs / "docker.json").write_text(json.dumps(ANSWERS, indent=1) + "\n")
    with tempfile.TemporaryDirectory() as tools, pytest.MonkeyPatch.context() as patch:
        for name in ("dpkg-query", "systemctl"):
            Path(tools, name).write_text(f"#!/bin/sh\nexec cat {programs / name}\n")
            Path(tools, name).chmod(0o755)
        module = load_module("platform", "platform_receipt")
        managed = sys.modules["ansible.module_utils.platform_managed"]
        patch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        patch.setattr(managed, "SYSTEMD", "/nonexistent")
        Path(tools, "modules/ib_uverbs").mkdir(parents=True)
        patch.setattr(managed, "SYS_MODULES", f"{tools}/modules")
        patch.setattr(managed.Engine, "request", lambda _self, path: json.dumps(ANSWERS[path]))
        patch.setattr(module, "FOLDER", str(node / "receipts"))
        patch.chdir(root)
        sources, first = role_sources(), cluster.nodes[0]
        marks = {role: fingerprint(role, first, cluster, sources, "5a17" * 8) for role in ROLES}
        wanted = [{"role": role, **RECEIPTS.get(role, {})} for role in ROLES]
        result = run_module(module, receipts=wanted, fingerprints=marks)
        assert result.get("changed"), result
    record = {"id": "20261128T120000-0badcafe", "started": "2026-11-28T12:00:00Z", "user": "root", "host": "ops1"}
    path = str(node / "history.jsonl")
    append(path, {**record, "pid": 4711, "command": "provision apply", "status": "running"})
    append(path, {"id": record["id"], "status": "changed", "ended": "2026-11-28T12:01:00Z", "roles": ["base_system"]})


def batch_jobs() -> None:
    """Run batch jobs in each state on a node in a folder, and copy its records."""

    def spec(name: str, line: str, **more: Any) -> JobSpec:
        return JobSpec(name, Kind.RUN, (line,), image="image", **more)

    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
        FakeNode(Path(folder), "gpu1") as node,
    ):
        node.with_docker()
        jobs = direct_engine(patch, node)
        for made in (
            spec("succeeded", "echo hello", gpus=1),
            spec("failed", "echo broken >&2; exit 3"),
            spec("stopped", "exec sleep 600"),
            spec("held", "true", hold=True),
            spec("running", "exec sleep 600", gpus=4),
            spec("pending", "echo later", gpus=1),
        ):
            jobs.submit(made, Secrets(), print)
            if made.name in {"succeeded", "failed"}:
                until(lambda name=made.name: jobs.get(name).status.over, made.name)
            elif made.name in {"stopped", "running"}:
                until(lambda name=made.name: jobs.get(name).status is JobStatus.RUNNING, made.name)
            if made.name == "stopped":
                jobs.stop("stopped", print, grace=1)
                until(lambda: jobs.get("stopped").status.over, "the end")
        shutil.copytree(node.root, OUT / "jobs", ignore=shutil.ignore_patterns("programs", "*.lock"))
        public = own_signing_key(Path(folder, "signing_key")).public
        (OUT / "signing_key.pub").write_text(f"{public}\n")


def placement() -> None:
    """Write what `place --json` prints for a machine in a file."""
    with tempfile.TemporaryDirectory() as folder, (OUT / "controller/placement.json").open("w") as output:
        topology = Path(folder, "topology")
        topology.write_text(rendered(QUAD))
        words = ["place", "--gpus", "2", "--workers", "2", "--json", "--topo-file", f"gpu1={topology}"]
        with redirect_stdout(output), pytest.raises(SystemExit):
            main(words)


def replace_names() -> None:
    """Replace the boot ID and the paths of this machine."""
    own = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    for path in filter(Path.is_file, OUT.rglob("*")):
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(own, BOOT_ID).replace(str(OUT / "controller"), "/root"))


if __name__ == "__main__":
    for name in ("controller/state", "controller/cache", "node"):
        (OUT / name).mkdir(parents=True)
    os.environ |= {
        "HOME": str(OUT / "controller"),
        "XDG_STATE_HOME": str(OUT / "controller/state"),
        "XDG_CACHE_HOME": str(OUT / "controller/cache"),
    }
    controller()
    placement()
    batch_jobs()
    replace_names()
    for kind in ("inventory", "roles"):  # under keys that contain the version
        shutil.rmtree(OUT / "controller/cache/provision" / kind)
    (OUT / "node.pyz").write_bytes(archive())
