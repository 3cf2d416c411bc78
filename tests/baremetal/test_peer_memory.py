"""GPUDirect RDMA over reboots and kernel upgrades: SIMULATED modules; kernels, builds and boots that are real."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import ROOT, Done, Provision

LAB = f"peer{os.getpid()}"
NODE = f"{LAB}-1"
ROLES = ("peer_memory", "docker_engine")
PROGRAM = "/usr/local/lib/provision/peer-memory"
UNIT = "provision-peer-memory.service"
CARRIED = ("linux-headers-amd64", "docker.io", "mlnx-ofed-kernel-dkms=5.8~simulated", "nvidia-kernel-dkms")
"""What a site has on its nodes already; in this order, because a driver that is built before the RDMA stack gets a peer
memory module that does nothing."""
INSTALL = "DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends"


@dataclass(frozen=True)
class Node:
    """One virtual machine and an inventory of its own."""

    provision: Provision
    inventory: Path

    def shell(self, command: str) -> str:
        """Run a command on the node; it must succeed."""
        return self.provision.ok("lab", "ssh", LAB, NODE, "--", command).out

    def settings(self, **variables: Any) -> None:
        """Set variables of the inventory, and no others."""
        (self.inventory / "group_vars/all.yml").write_text(json.dumps(variables))

    def apply(self, *roles: str) -> Done:
        """Apply the roles that a node needs to have docker and peer memory."""
        only = [word for role in roles or ROLES for word in ("--only", role)]
        return self.provision("apply", "-i", str(self.inventory), "--yes", "--json", *only)

    def reboot(self) -> None:
        """Reboot from inside and wait until the node answers with its units started."""
        self.provision.ok("lab", "reboot", LAB, NODE)
        self.shell("systemctl is-system-running --wait || true")

    def status(self) -> dict[str, Any]:
        """The status file that the unit wrote at this boot."""
        status = json.loads(self.shell("cat /var/lib/provision/peer_memory/status.json"))
        assert status["boot_id"] == self.shell("cat /proc/sys/kernel/random/boot_id").strip()
        return status

    def loaded(self) -> set[str]:
        """Names of the loaded modules."""
        return {line.split()[0] for line in self.shell("cat /proc/modules").splitlines()}

    def moment(self, unit: str, name: str) -> int:
        """A moment of a unit, in microseconds since boot."""
        return int(self.shell(f"systemctl show --value -p {name}TimestampMonotonic {unit}"))


@pytest.fixture(scope="module")
def node(provision: Provision) -> Iterator[Node]:
    """A node with SIMULATED GPUs, and with the SIMULATED OFED and driver that its site's image carries."""
    try:
        carried = [word for package in CARRIED for word in ("--with", package)]
        provision.ok("lab", "up", LAB, "--driver", "vm", "--nodes", "1", "--machine", "pair", *carried)
        inventory = provision.folder / "inventories/peer"
        (inventory / "group_vars").mkdir(parents=True)
        shutil.copy(provision.ok("lab", "inventory", LAB).out.strip(), inventory / "hosts.yml")
        made = Node(provision, inventory)
        made.settings(peer_memory_provider="nv_peer_mem")
        yield made
    finally:
        down = provision("lab", "down", LAB)
    assert down.code == 0, str(down)


@pytest.fixture(scope="module")
def built(node: Node) -> Node:
    """The node after its first apply with nv_peer_mem."""
    done = node.apply()
    assert done.code == 0, str(done)
    return node


@pytest.mark.row(45)
@pytest.mark.slow
def test_the_module_is_built_from_source_and_loaded(built: Node) -> None:
    """By name and from /lib/modules; the second apply finds nothing to do."""
    assert "nv_peer_mem" in built.loaded()
    assert built.shell("modinfo -n nv_peer_mem").startswith("/lib/modules/")
    assert "SIMULATED" in built.shell("modinfo -F description nv_peer_mem")

    again = built.apply("peer_memory")

    assert [node["status"] for node in again.document["nodes"]] == ["unchanged"], str(again)


@pytest.mark.long
def test_check_mode_changes_nothing_on_a_converged_node(built: Node) -> None:
    """Ansible's own, with no command of ours."""
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    done = subprocess.run(
        [program, "-i", str(built.inventory), "nodes.yml", "--check", "--tags", "peer_memory"],
        cwd=ROOT / "playbooks",
        env={**built.provision.environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^{NODE} .*changed=0 ", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.long
def test_loading_both_peer_memory_modules_is_refused(built: Node) -> None:
    """nvidia_peermem in nv_peer_mem's place is named; nothing is changed."""
    built.shell(f"{PROGRAM} unload && modprobe nvidia_peermem")
    refused = built.apply("peer_memory")
    built.shell(f"modprobe -r nvidia_peermem && {PROGRAM} load")

    error = refused.document["nodes"][0]["error"]
    assert refused.code == 1
    assert "nvidia_peermem is loaded, and both register under the same name" in error["message"]


@pytest.mark.long
def test_a_module_in_use_is_not_unloaded(built: Node) -> None:
    """Memory of a running job may be registered through it."""
    output = built.shell(f"exec 9</dev/simulated_gpu_job; {PROGRAM} unload 2>&1; echo exit $?")

    assert "nv_peer_mem is in use (1 user" in output
    assert "Stop the jobs on this node" in output
    assert output.endswith("exit 1\n")
    assert "nv_peer_mem" in built.loaded()


@pytest.mark.row(45)
@pytest.mark.slow
def test_the_module_is_loaded_before_docker_starts_after_a_reboot(built: Node) -> None:
    """Without any apply."""
    built.reboot()

    status = built.status()
    assert (status["ok"], status["module"]) == (True, "nv_peer_mem"), status
    assert "nv_peer_mem" in built.loaded()
    ready, docker = built.moment(UNIT, "ActiveEnter"), built.moment("docker.service", "ExecMainStart")
    assert 0 < ready < docker


@pytest.mark.long
def test_a_hanging_modprobe_delays_the_boot_by_no_more_than_its_time_limit(built: Node) -> None:
    """Docker comes up, the status file says why, and once the cause is gone a load by hand is enough."""
    built.shell("echo 'install nv_peer_mem /bin/sleep 100000' > /etc/modprobe.d/hang.conf")
    built.reboot()

    status = built.status()
    assert (status["ok"], status["cause"]) == (False, "load_hangs"), status
    assert built.shell("systemctl is-active docker").strip() == "active"
    late = built.moment("docker.service", "ExecMainStart") - built.moment(UNIT, "InactiveExit")
    assert 10e6 < late < 125e6

    built.shell("rm /etc/modprobe.d/hang.conf")
    reloaded = built.provision("reload", "-i", str(built.inventory), "--yes", "--json")
    assert reloaded.code == 0, str(reloaded)
    assert built.status()["ok"] is True


@pytest.mark.long
def test_a_module_built_for_another_rdma_stack_is_reported_and_rebuilt_by_apply(built: Node) -> None:
    """The stack changed after the module was built: what differs is named, and apply builds it anew."""
    built.shell(f"{INSTALL} --allow-downgrades mlnx-ofed-kernel-dkms=4.9~simulated")
    output = built.shell(f"{PROGRAM} check || true")
    assert "ib_register_peer_memory_client" in output
    assert "was built with another version" in output

    done = built.apply("peer_memory")

    assert done.code == 0, str(done)
    assert "nv_peer_mem" in built.loaded()


@pytest.mark.long
def test_a_kernel_without_headers_is_reported_and_fixed_by_apply(built: Node) -> None:
    """Docker starts all the same; the node takes no jobs until then. The module is built for it and loaded."""
    kernel = built.shell("uname -r").strip().replace("-amd64", "-cloud-amd64")
    built.shell(f"{INSTALL} linux-image-{kernel}")
    built.reboot()

    status = built.status()
    assert (status["kernel"], status["ok"], status["cause"]) == (kernel, False, "headers_missing"), status
    assert f"linux-headers-{kernel}" in status["remedy"]
    assert built.shell(f"systemctl is-failed {UNIT}; systemctl is-active docker").split() == ["failed", "active"]

    hosts = built.provision("hostfile", "-i", str(built.inventory))
    assert hosts.code == 1
    assert f"excluded: {NODE}: " in hosts.err
    assert "headers" in hosts.err
    job = built.provision("run", "-i", str(built.inventory), "--", "true")
    assert job.code == 125
    assert NODE in job.err
    checks = built.provision("verify", "-i", str(built.inventory), "--json").document["nodes"][0]["checks"]
    boot = next(check for check in checks if check["id"] == "peer_memory.boot")
    assert (boot["status"], f"linux-headers-{kernel}" in boot["remedy"]) == ("fail", True), boot

    done = built.apply("peer_memory")

    assert done.code == 0, str(done)
    assert built.status()["ok"] is True
    assert "nv_peer_mem" in built.loaded()
    # What is left is what these roles do not make.
    hosts = built.provision("hostfile", "-i", str(built.inventory))
    assert f"excluded: {NODE}: it has no training container" in hosts.err, str(hosts)


@pytest.mark.long
def test_the_module_is_built_when_a_kernel_with_headers_is_installed(built: Node) -> None:
    """It is built when the kernel is installed, by the package system's hooks, and loaded at the first boot."""
    kernel = built.shell("uname -r").strip().replace("-cloud-amd64", "-rt-amd64")
    built.shell(f"{INSTALL} linux-image-{kernel} linux-headers-{kernel}")
    built.reboot()

    status = built.status()
    assert (status["kernel"], status["ok"], status["module"]) == (kernel, True, "nv_peer_mem"), status
    assert "nv_peer_mem" in built.loaded()


@pytest.mark.long
def test_the_module_is_built_for_a_kernel_of_another_series(built: Node) -> None:
    """Its interfaces are others; the sources are built for it all the same, when it is installed."""
    built.shell(
        "sed -i 's/Enabled: no/Enabled: yes/' /etc/apt/sources.list.d/backports.sources && apt-get -qq update && "
        f"{INSTALL} -t bookworm-backports linux-image-amd64 linux-headers-amd64"
    )
    before = built.shell("uname -r")
    built.reboot()

    status = built.status()
    assert status["kernel"] != before.strip()
    assert (status["ok"], status["kernel"]) == (True, built.shell("uname -r").strip()), status
    assert "nv_peer_mem" in built.loaded()
