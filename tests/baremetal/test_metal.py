"""What virtual machines can show and containers cannot: kernel modules, power cuts in the middle, real reboots."""

from __future__ import annotations

import json
import os
import re
from functools import partial
from pathlib import Path

import pytest

from provision.lab.systems import DEFAULT_SYSTEM
from tests.baremetal.conftest import LAB, lab_up
from tests.support.command import eventually
from tests.support.jobs import Jobs
from tests.support.reasons import shown_document
from tests.support.recorded_systems import converged_roles

UP = lab_up(2)
KERNEL = ("apply", "--lab", LAB, "--yes", "--json", "--only", "base_system", "--only", "rdma_stack")
ALL = ("apply", "--lab", LAB, "--yes", "--json")


def processes_naming(text):
    """Pids of processes whose command line holds `text`."""
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if text in line:
                processes.append((int(entry.name), line[:120]))
    return processes


def cut_power_during(provision, words, node, role):
    """Run an apply, pull the power of `node` when it is at `role`, and return the apply's report of that node."""
    running = provision.start(*words, "-v")
    try:
        seen = []
        for line in running.stdout:
            seen.append(line)
            if f"{node}: {role}" in line:
                break
        assert running.poll() is None, "".join(seen)
        provision.ok("lab", "power", LAB, node, "off")
        rest = running.stdout.read()
        code = running.wait()
    finally:
        running.kill()
    assert code == 1, rest
    document = json.loads(rest[rest.index("\n{\n") :])
    return {entry["name"]: entry for entry in document["nodes"]}


def statuses(done):
    """The status of each node in an apply's document."""
    return [node["status"] for node in done.document["nodes"]]


def on_node(provision, node, command):
    """Run a shell command on a node."""
    return provision.ok("lab", "ssh", LAB, node, "--", command).out


@pytest.fixture(scope="module")
def with_rdma(provision, lab):
    """The lab after an apply of the roles for kernel modules and RDMA."""
    provision.ok(*KERNEL)
    return lab


@pytest.mark.long
def test_apply_reports_a_power_cut_and_the_next_apply_completes(provision, lab):
    """The report names node, role and task, the other node is done, and what the cut left is repaired."""
    first, second = (node["name"] for node in lab["nodes"])
    report = cut_power_during(provision, KERNEL, second, "platform")

    assert report[first]["status"] == "changed"
    assert report[second]["status"] == "unreachable"
    assert report[second]["error"]["role"] == "platform"
    assert report[second]["error"]["task"]

    provision.ok(*UP)
    provision.ok(*KERNEL)
    assert statuses(provision.ok(*KERNEL)) == ["unchanged", "unchanged"]


def test_an_unloaded_kernel_module_is_reported_and_loaded_by_apply(provision, with_rdma):
    """Somebody takes Soft-RoCE's module away: the plan says which, for its role alone, and one apply brings it back."""
    *others, last = (node["name"] for node in with_rdma["nodes"])
    only = ("--lab", LAB, "--json", "--only", "base_system", "--only", "rdma_stack")
    on_node(provision, last, "rdma link delete rxe0 && modprobe -r rdma_rxe")

    planned = {node["name"]: node["steps"] for node in provision.ok("plan", *only).document["nodes"]}

    assert [step["role"] for step in planned[last]] == ["rdma_stack"]
    assert "rdma_rxe is not loaded" in "; ".join(planned[last][0]["reasons"])
    assert statuses(provision.ok("apply", "--yes", *only)) == [*["unchanged"] * len(others), "changed"]
    assert "ACTIVE" in on_node(provision, last, "cat /sys/class/infiniband/rxe0/ports/1/state")
    assert not any(node["steps"] for node in provision.ok("plan", *only).document["nodes"])


@pytest.mark.long
def test_a_changed_sysctl_and_a_removed_list_of_modules_are_detected_and_repaired(provision, with_rdma):
    """Containers do not have these two files; tests/integration/test_systems.py has the other manual changes."""
    second = with_rdma["nodes"][1]["name"]
    only = ("--lab", LAB, "--json", "--only", "base_system", "--only", "rdma_stack")
    sysctls, modules = "/etc/sysctl.d/90-provision.conf", "/etc/modules-load.d/provision-rdma.conf"
    on_node(provision, second, f"echo 'vm.swappiness = 99' >>{sysctls} && rm {modules}")

    planned = {node["name"]: node["steps"] for node in provision.ok("plan", *only).document["nodes"]}
    reasons = {step["role"]: list(map(shown_document, step["reason_codes"])) for step in planned[second]}

    assert f"file.edited: {sysctls}" in reasons["base_system"]
    assert f"file.missing: {modules}" in reasons["rdma_stack"]
    assert statuses(provision.ok("apply", "--yes", *only)) == ["unchanged", "changed"]
    assert not any(node["steps"] for node in provision.ok("plan", *only).document["nodes"])


@pytest.mark.row(44)
def test_soft_roce_is_restored_after_a_reboot(provision, with_rdma):
    """Soft-RoCE on the data network comes back by itself, before anything that needs it."""
    node = with_rdma["nodes"][-1]["name"]
    before = on_node(provision, node, "ls /sys/class/infiniband /dev/infiniband")
    assert "uverbs0" in before, before

    provision.ok("lab", "reboot", LAB, node)

    after = eventually(
        lambda: on_node(provision, node, "ls /sys/class/infiniband /dev/infiniband; true"),
        seconds=60,
        what="the RDMA device is back",
    )
    assert after == before
    state = on_node(provision, node, "cat /sys/class/infiniband/*/ports/1/state")
    assert "ACTIVE" in state


@pytest.mark.long
def test_nodes_converge_and_run_a_job_after_a_power_cut_and_a_reboot(provision, lab, record_system):
    """Power is cut while docker is set up; then both nodes converge, run a job, and do so after a reboot."""
    first, second = (node["name"] for node in lab["nodes"])
    report = cut_power_during(provision, ALL, second, "docker_engine")
    assert report[second]["status"] == "unreachable"

    provision.ok(*UP)
    provision.ok(*ALL)
    assert statuses(provision.ok(*ALL)) == ["unchanged", "unchanged"]

    provision.ok("lab", "reboot", LAB, second)
    eventually(lambda: provision("verify", "--lab", LAB).code == 0, seconds=120, what="verify passes after a reboot")
    job = provision.ok("run", "--lab", LAB, "--", "provision-smoke")
    assert job.out.count("sum 10") >= 4
    assert first in job.out
    assert second in job.out
    record_system(DEFAULT_SYSTEM, converged_roles(partial(on_node, provision, second)), machine=True)


@pytest.mark.long
def test_bandwidth_is_measured_between_containers_and_a_broken_data_link_is_reported(provision, lab):
    """Real ib_write_bw over Soft-RoCE; then the data link of one node goes down, and the result says whose."""
    first, second = (node["name"] for node in lab["nodes"])
    provision.ok(*UP)
    provision.ok(*ALL)
    good = provision("verify", "--lab", LAB, "--level", "full", "--json")
    assert good.code == 0, str(good)
    pairs = good.document["pairs"]
    assert {(pair["a"], pair["b"]) for pair in pairs} == {(first, second), (second, first)}, pairs
    assert all(pair["gbit_s"] > 0 for pair in pairs), pairs

    interface = "$(ip -o -4 addr show to $(getent ahostsv4 $(hostname) | head -n 1 | cut -d' ' -f1) | cut -d' ' -f2)"
    on_node(provision, second, f"ip link set {interface} down")
    cut = provision("verify", "--lab", LAB, "--level", "full", "--json")
    provision.ok("lab", "reboot", LAB, second)

    assert cut.code == 1, str(cut)
    bandwidth = {check["id"]: check for check in cut.document["cluster"]}["rdma_stack.bandwidth"]
    assert (bandwidth["status"], second in bandwidth["reason"], first in bandwidth["reason"]) == (
        "fail",
        True,
        False,
    ), bandwidth


LOOK = "ibv_devices | tail -n +3; ls /dev/infiniband; grep CapEff /proc/self/status; grep locked /proc/self/limits; env"
MAKE_WITHOUT_DRIVER = """set -e
docker run --name norxe IMAGE rm /etc/libibverbs.d/rxe.driver
docker commit norxe norxe:1
docker rm norxe"""


@pytest.mark.long
@pytest.mark.row(48, 49, 52, 56)
def test_a_job_gets_the_rdma_devices_of_the_node_and_the_nccl_settings_for_them(provision, lab):
    """Real verbs devices without --privileged, none with --no-rdma; --fabric roce names the card and its own GID index.

    The locked memory has no limit. An image without a library for the card is named.
    """
    second = lab["nodes"][1]["name"]
    provision.ok(*UP)
    provision.ok(*ALL)
    jobs = Jobs(provision, "direct", LAB)
    options = {"less": (), "none": ("--no-rdma",), "all": ("--privileged",), "roce": ("--fabric=roce",)}
    outputs = {}
    for name, words in options.items():
        jobs.submit("run", name, "--gpus=1", f"--nodes={second}", *words, "--wait", LOOK)
        outputs[name] = jobs.logs(name)
    gids = on_node(provision, second, "cd /sys/class/infiniband/rxe0/ports/1/gids && grep . [0-9]")

    for name in ("less", "all", "roce"):
        assert outputs[name][0].split()[0] == "rxe0", outputs[name]
        assert {"uverbs0", "rdma_cm"} <= set(outputs[name])
        assert any(re.match(r"Max locked memory +unlimited +unlimited", line) for line in outputs[name])
    assert "rxe0" not in " ".join(outputs["none"])
    rights = {name: next(line for line in lines if line.startswith("CapEff")) for name, lines in outputs.items()}
    assert rights["less"] == rights["roce"] != rights["all"]
    nccl = {
        name: dict(line.split("=", 1) for line in lines if line.startswith("NCCL_")) for name, lines in outputs.items()
    }
    assert (nccl["less"]["NCCL_IB_DISABLE"], "NCCL_IB_HCA" in nccl["less"]) == ("1", False)  # made in software
    assert (nccl["roce"]["NCCL_IB_DISABLE"], nccl["roce"]["NCCL_IB_HCA"]) == ("0", "=rxe0:1")
    routable = [line.partition(":")[0] for line in gids.splitlines() if ":0000:ffff:" in line]
    assert [nccl["roce"]["NCCL_IB_GID_INDEX"]] == routable

    on_node(provision, second, MAKE_WITHOUT_DRIVER.replace("IMAGE", jobs.image))
    whole, lacking = (jobs.ok("image inspect", image, "--node", second).out for image in (jobs.image, "norxe:1"))
    mismatch = "the image has no library for the RDMA driver rxe"
    assert (mismatch in whole, mismatch in lacking) == (False, True)
    jobs.ok("delete", *options)


def test_lab_down_removes_all_processes_files_and_sockets(provision, lab):
    """No process, file or socket of the lab is left when it is down."""
    folder = provision.folder / "state/provision/labs" / LAB
    assert folder.is_dir()
    assert lab["nodes"]
    provision.ok("lab", "down", LAB)

    assert not folder.exists()
    assert processes_naming(f"labs/{LAB}") == []
    assert processes_naming(f"{LAB}-1") == []
