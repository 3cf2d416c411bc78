"""The driver of Debian on container nodes: real packages, real builds for two kernels, and one build for both nodes.

A container has the kernel of its host, so nothing is loaded here; tests/baremetal/test_nvidia_driver.py does that. The
first test is that of `make test`, on the common lab; `make driver` runs all.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Done, Provision
from tests.support.nvidia_packages import (
    ADD_SECTIONS,
    DRIVER_VERSION,
    DRIVER_VERSIONS,
    INSTALL,
    INSTALLED,
    release_kernel,
)

LAB = f"driver{os.getpid()}"
BUILDER, OTHER = f"{LAB}-1", f"{LAB}-2"
ONLY = ("--only", "base_system", "--only", "nvidia_driver")
MODULE = "nvidia-current-open"
"""Debian's name of the open kernel module, and of the driver in DKMS."""
PIN = "/etc/apt/preferences.d/provision-nvidia-driver.pref"
SUMS = "cd /lib/modules && sha256sum */updates/dkms/nvidia*.ko"
LEFT = "find /lib/modules /var/lib/dkms /usr/src -path '*nvidia-current*'"


def inventory_of(provision: Provision, lab: str) -> Path:
    """Return a folder with the nodes of a lab, for other variables than those of the lab."""
    inventory = provision.folder / f"inventories/driver-{lab}"
    (inventory / "group_vars").mkdir(parents=True)
    shutil.copy(provision.ok("lab", "inventory", lab).out.strip(), inventory / "hosts.yml")
    return inventory


def request(inventory: Path, **variables: Any) -> None:
    """Set variables of an inventory, and no others; the lab's SIMULATED packages are not in its repositories."""
    settings = {"platform_extra_repositories": [], **variables}
    (inventory / "group_vars/gpu_nodes.yml").write_text(json.dumps(settings))


def test_a_request_without_its_package_sources_changes_nothing(provision: Provision, lab: dict[str, Any]) -> None:
    """The sections with the driver are not Debian's default; the remedy names them."""
    inventory, nodes = inventory_of(provision, lab["name"]), [node["name"] for node in lab["nodes"]]
    state = "dpkg-query -W; ls /etc/modprobe.d /etc/apt/preferences.d /var/lib/provision/receipts 2>&1 || true"
    command = ("lab", "ssh", lab["name"], nodes[0], "--", state)
    before = provision.ok(*command).out
    request(
        inventory,
        nvidia_driver_source="distribution",
        nvidia_driver_without_gpu_enabled=True,
        nvidia_driver_kernels=["6.12.0-1-amd64"],
    )
    done = provision("apply", "-i", str(inventory), "--yes", "--json", "--only", "nvidia_driver")

    assert done.code == 1, str(done)
    [problem] = done.document["problems"]
    assert (problem["code"], problem["role"]) == ("package.missing", "nvidia_driver")
    assert "libcuda1" in problem["object"]
    assert "non-free-firmware" in problem["remedy"]
    assert provision.ok(*command).out == before


@dataclass
class Cluster:
    """Two container nodes without a GPU, and an inventory of their own."""

    provision: Provision
    controller: Provision
    inventory: Path
    kernels: list[str] = field(default_factory=list)
    version: str = ""

    def shell(self, node: str, command: str) -> str:
        """Run a command on a node; it must succeed."""
        return self.provision.ok("lab", "ssh", LAB, node, "--", command, timeout=3600).out.strip()

    def request(self, **variables: Any) -> None:
        """Request the driver of Debian for both kernels."""
        request(
            self.inventory,
            nvidia_driver_source="distribution",
            nvidia_driver_without_gpu_enabled=True,
            nvidia_driver_version=self.version,
            nvidia_driver_kernels=self.kernels,
            **variables,
        )

    def call(self, verb: str, *words: str) -> Done:
        """Run a verb with this inventory."""
        return self.controller(verb, "-i", str(self.inventory), "--json", *words, timeout=6 * 3600)

    def apply(self, *words: str) -> dict[str, dict[str, Any]]:
        """Apply the role; return the results by node."""
        return {one["name"]: one for one in self.call("apply", "--yes", *ONLY, *words).document["nodes"]}

    def steps(self) -> list[str]:
        """Return the roles that a plan would run, on any node."""
        return [step["role"] for node in self.call("plan", *ONLY).document["nodes"] for step in node["steps"]]


@pytest.fixture(scope="module")
def cluster(provision: Provision) -> Iterator[Cluster]:
    """The nodes with the sections of Debian that the driver is in; the second one has the kernels, and no headers."""
    try:
        provision.ok("lab", "up", LAB, "--driver", "container", "--nodes", "2", "--system", "debian12")
        inventory = inventory_of(provision, LAB)
        # The cache of the builds is that of this test; the cache of the lab's images is that of all labs.
        own = {**provision.environment, "XDG_CACHE_HOME": str(provision.folder / "cache")}
        made = Cluster(provision, Provision(provision.folder, **own), inventory)
        for node in (BUILDER, OTHER):
            made.shell(node, ADD_SECTIONS)
        made.kernels = [made.shell(BUILDER, release_kernel(flavor)) for flavor in ("amd64", "cloud-amd64")]
        made.version = made.shell(BUILDER, DRIVER_VERSION)
        images = " ".join(f"linux-image-{kernel}" for kernel in made.kernels)
        made.shell(OTHER, f"{INSTALL} {images}")
        yield made
    finally:
        down = provision("lab", "down", LAB)
    assert down.code == 0, str(down)


@pytest.fixture(scope="module")
def before(cluster: Cluster) -> dict[str, str]:
    """The files of drivers on the bare nodes: none."""
    return {node: cluster.shell(node, f"{INSTALLED}; {LEFT}; ls -d {PIN} || true") for node in (BUILDER, OTHER)}


@pytest.mark.long
def test_without_listed_kernels_a_container_gets_no_driver(cluster: Cluster, before: dict[str, str]) -> None:
    """It cannot load it, and its host's kernel has no headers."""
    assert before == dict.fromkeys(before, "")
    assert len(set(cluster.kernels)) == 2
    request(cluster.inventory, nvidia_driver_source="distribution", nvidia_driver_without_gpu_enabled=True)

    assert {node["status"] for node in cluster.apply().values()} == {"changed"}
    receipt = json.loads(cluster.shell(BUILDER, "cat /var/lib/provision/receipts/nvidia_driver.json"))
    assert receipt["reductions"] == ["skipped: a container node cannot load kernel modules"]
    assert cluster.shell(BUILDER, INSTALLED) == ""


@pytest.mark.long
def test_a_node_does_not_take_a_build_that_does_not_exist(cluster: Cluster, before: dict[str, str]) -> None:
    """The message has the node and the command."""
    assert before
    cluster.request(nvidia_driver_build_node=BUILDER)
    refused = cluster.apply("--limit", OTHER)[OTHER]

    assert refused["status"] == "failed"
    assert f"{BUILDER} has built no modules of {MODULE} {cluster.version}" in refused["error"]["message"]
    assert f"--limit {BUILDER}" in refused["error"]["message"]
    assert cluster.shell(OTHER, "dkms status") == f"{MODULE}/{cluster.version}: added"


@pytest.fixture(scope="module")
def built(cluster: Cluster, before: dict[str, str]) -> Cluster:
    """Both nodes after one apply; the first one has built for both."""
    assert before
    cluster.request(nvidia_driver_build_node=BUILDER)
    assert {name: node["status"] for name, node in cluster.apply().items()} == {BUILDER: "changed", OTHER: "changed"}
    return cluster


@pytest.mark.long
@pytest.mark.parametrize("node", [BUILDER, OTHER])
def test_the_open_modules_are_there_for_both_kernels(built: Cluster, node: str) -> None:
    """By DKMS's and kmod's own words."""
    status = built.shell(node, "dkms status").splitlines()
    assert sorted(status) == sorted(f"{MODULE}/{built.version}, {one}, x86_64: installed" for one in built.kernels)
    for kernel in built.kernels:
        words = built.shell(
            node, f"for field in version license vermagic; do modinfo -k {kernel} -F $field {MODULE}; done"
        ).splitlines()
        assert words[:2] == [built.version, "Dual MIT/GPL"]
        assert words[2].split()[0] == kernel
    receipt = json.loads(built.shell(node, "cat /var/lib/provision/receipts/nvidia_driver.json"))
    assert receipt["reductions"] == [
        "not loaded: a container node cannot load kernel modules; the driver is built for " + ", ".join(built.kernels)
    ]


@pytest.mark.long
def test_only_the_build_node_has_built(built: Cluster) -> None:
    """The other one has neither headers nor the log of a build, and the same modules."""
    headers = "dpkg-query -W -f '${db:Status-Abbrev} ${Package}\\n' | grep -c '^ii *linux-headers' || true"
    log = f"find /var/lib/dkms/{MODULE} -name make.log | wc -l"

    assert built.shell(OTHER, f"{headers}; {log}").split() == ["0", "0"]
    assert int(built.shell(BUILDER, headers)) >= len(built.kernels)
    sums = {built.shell(node, SUMS) for node in (BUILDER, OTHER)}
    assert len(sums) == 1
    assert len(sums.pop().splitlines()) == 5 * len(built.kernels)


@pytest.mark.long
def test_a_second_apply_changes_nothing(built: Cluster) -> None:
    """And the plan is empty."""
    assert built.steps() == []
    assert {node["status"] for node in built.apply().values()} == {"unchanged"}


@pytest.mark.long
def test_a_reset_removes_everything(built: Cluster, before: dict[str, str]) -> None:
    """Packages, modules, sources, DKMS's folders and the pin."""
    done = built.call("reset", "--yes")
    assert done.code == 0, str(done)

    for node in (BUILDER, OTHER):
        assert built.shell(node, f"{INSTALLED}; {LEFT}; ls -d {PIN} 2>/dev/null || true") == before[node]
    assert built.shell(BUILDER, "ls -d /usr/src/linux-headers-* /lib/modules/* 2>/dev/null || echo gone") == "gone"
    assert built.shell(OTHER, "ls /lib/modules").split() == built.kernels


@pytest.mark.long
def test_another_version_of_the_driver_replaces_the_installed_one_and_back(provision: Provision) -> None:
    """Newer and older, with its libraries and its modules; these are the proprietary ones, which Debian has twice."""
    lab = f"versions{os.getpid()}"
    node = f"{lab}-1"
    try:
        provision.ok("lab", "up", lab, "--driver", "container", "--nodes", "1", "--system", "debian12")
        inventory = inventory_of(provision, lab)

        def shell(command: str) -> str:
            return provision.ok("lab", "ssh", lab, node, "--", command).out.strip()

        kernel = shell(f"({ADD_SECTIONS}) >&2; {release_kernel('amd64')}")
        older, newer = (versions := shell(DRIVER_VERSIONS).split())[0], versions[-1]
        assert older != newer, "the package sources have one version"
        for version in (older, newer, older):
            request(
                inventory,
                nvidia_driver_source="distribution",
                nvidia_driver_flavor="proprietary",
                nvidia_driver_without_gpu_enabled=True,
                nvidia_driver_version=version,
                nvidia_driver_kernels=[kernel],
            )
            only = ("-i", str(inventory), "--json", *ONLY)
            done = provision("apply", "--yes", *only, timeout=2 * 3600)

            assert [one["status"] for one in done.document["nodes"]] == ["changed"], str(done)
            assert shell("dkms status") == f"nvidia-current/{version}, {kernel}, x86_64: installed"
            installed = shell("dpkg-query -W -f '${Version}\\n' nvidia-kernel-dkms libcuda1 nvidia-smi libnvidia-ml1")
            assert {line.partition("-")[0] for line in installed.splitlines()} == {version}
            assert provision.ok("plan", *only).document["converged"] is True
    finally:
        down = provision("lab", "down", lab)
    assert down.code == 0, str(down)
