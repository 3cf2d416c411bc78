"""A stack lock on container nodes: made on one node, it brings an older one to its versions and refuses a third one.

The packages are Debian's docker and the lab's SIMULATED container toolkit. Their newer versions have the same content
and a higher version number, in a signed repository of this test. The vendor's RDMA stack is SIMULATED by its program
`ofed_info`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.command import Done, Provision
from tests.support.packages.build import PROGRAMS, Key, index_debs, new_key
from tests.support.packages.lab import node_of
from tests.support.packages.node import REPOSITORY, Node

pytestmark = pytest.mark.long

LAB = f"stack{os.getpid()}"
FIRST, OLDER, VENDOR = (f"{LAB}-{number}" for number in (1, 2, 3))
DOCKER, TOOLKIT = "docker.io", "nvidia-container-toolkit"
PACKAGES = (DOCKER, TOOLKIT, f"{TOOLKIT}-base", "libnvidia-container-tools", "libnvidia-container1")
HOLDS = "/etc/apt/preferences.d/provision-stack-lock.pref"
REPACK = """
set -e; cd "$(mktemp -d)"; cp /srv/contract/{package}-later1.deb . 2>/dev/null || apt-get download -q {package} >&2
dpkg-deb -R *.deb tree; rm *.deb
version=$(sed -n 's/^Version: //p' tree/DEBIAN/control)
sed -i "s/^Version: .*/&+{mark}/; s/(= $version)/(= $version+{mark})/g" tree/DEBIAN/control
dpkg-deb -b -Zgzip -z1 tree new.deb >&2; cat new.deb
"""
"""Prints a package with the same content and a higher version."""
NEEDS_NEWER = """Package: needs-newer-docker
Version: 1
Architecture: all
Maintainer: nobody <nobody@example.com>
Depends: docker.io (>= {version})
Description: needs another docker than the lock
"""
OFED = "#!/bin/sh\necho 'MLNX_OFED_LINUX-24.10-0.7.0.0:'\n"


@dataclass
class Cluster:
    """Three nodes, with a repository of newer packages."""

    provision: Provision
    inventory: Path
    nodes: dict[str, Node]
    folder: Path
    key: Key

    def call(self, *words: str) -> Done:
        """Run a verb with this inventory."""
        verb = words[:2] if words[0] == "stack" else words[:1]
        return self.provision(*verb, "-i", str(self.inventory), "--json", *words[len(verb) :], timeout=3600)

    def plan(self, name: str) -> dict[str, Any]:
        """Return the plan of one node."""
        document: dict[str, Any] = self.call("plan", "--limit", name).document
        return next(node for node in document["nodes"] if node["name"] == name)

    def steps(self, name: str) -> dict[str, set[str]]:
        """Return role -> codes of the reasons of its step on a node."""
        return {step["role"]: {why["code"] for why in step["reason_codes"]} for step in self.plan(name)["steps"]}

    def versions(self, name: str) -> dict[str, str]:
        """Return the versions of docker and the toolkit on a node."""
        return {package: self.nodes[name].version(package) for package in (DOCKER, TOOLKIT)}

    def offer(self, mark: str) -> None:
        """Publish docker and the toolkit with a higher version on all nodes."""
        for package in PACKAGES:
            words = [*self.nodes[FIRST].argv, REPACK.format(package=package, mark=mark)]
            content = subprocess.run(words, check=True, capture_output=True, timeout=600).stdout
            (self.folder / f"{package}-{mark}.deb").write_bytes(content)
        index_debs(self.folder, self.key)
        for node in self.nodes.values():
            node.publish(self.folder)

    @property
    def lock(self) -> Path:
        """The lock file."""
        return self.inventory / "stack.lock.yml"


@pytest.fixture(scope="module")
def cluster(provision: Provision, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Nodes after an apply; then the first one gets newer packages manually, and the third one a vendor's stack."""
    missing = [program for program in PROGRAMS["apt"] if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed (apt-get install apt-utils gnupg)")
    try:
        provision.ok(
            "lab", "up", LAB, "--driver", "container", "--nodes", "3", "--system", "debian12", "--machine", "pair"
        )
        inventory = provision.folder / f"inventories/{LAB}"
        inventory.mkdir(parents=True)
        shutil.copy(provision.ok("lab", "inventory", LAB).out.strip(), inventory / "hosts.yml")
        folder = tmp_path_factory.mktemp("repository")
        key = new_key(tmp_path_factory.mktemp("keys"))
        status = provision.ok("lab", "status", LAB, "--json").document
        nodes = {entry["name"]: node_of(provision, LAB, "apt", entry) for entry in status["nodes"]}
        made = Cluster(provision, inventory, nodes, folder, key)
        done = made.call("apply", "--yes")
        assert done.code == 0, str(done)
        made.offer("later1")
        _add_repository(made)
        newer = " ".join(f"{REPOSITORY}/{package}-later1.deb" for package in PACKAGES)
        nodes[FIRST].ok(f"DEBIAN_FRONTEND=noninteractive apt-get install -y -q {newer}")
        nodes[VENDOR].put("/usr/bin/ofed_info", OFED, "0755")
        done = made.call("apply", "--yes")
        assert done.code == 0, str(done)
        yield made
    finally:
        down = provision("lab", "down", LAB)
    assert down.code == 0, str(down)


def _add_repository(made: Cluster) -> None:
    """Add the repository to those of the lab, for all nodes."""
    lab = yaml.safe_load((made.inventory / "hosts.yml").read_text())["all"]
    known = {**lab.get("vars", {}), **lab["children"]["gpu_nodes"].get("vars", {})}["platform_extra_repositories"]
    ours = {"name": "later", "uris": [f"file://{REPOSITORY}"], "suites": ["/"], "key": made.key.public}
    (made.inventory / "group_vars").mkdir()
    variables = {"platform_extra_repositories": [*known, ours]}
    (made.inventory / "group_vars/gpu_nodes.yml").write_text(json.dumps(variables))


@pytest.fixture(scope="module")
def locked(cluster: Cluster) -> Cluster:
    """The cluster with a lock of its first node."""
    done = cluster.call("stack", "lock", FIRST)
    assert done.code == 0, str(done)
    return cluster


def test_a_node_that_fails_a_check_is_not_locked(cluster: Cluster) -> None:
    """The check is named, and no file is written."""
    node = cluster.nodes[OLDER]
    node.ok("systemctl stop docker.socket docker.service")
    done = cluster.call("stack", "lock", OLDER)
    node.ok("systemctl start docker.service; docker start provision-training")

    assert done.code == 1
    error = done.document["error"]
    assert error["code"] == "stack.lock.failed", str(done)
    assert "docker_engine.service" in error["message"]
    assert not cluster.lock.exists()


def test_the_lock_has_the_versions_of_its_node(locked: Cluster) -> None:
    """Kernel, inbox RDMA stack, driver, toolkit, docker and the digest of the image."""
    document = yaml.safe_load(locked.lock.read_text())
    parts = document["components"]

    assert document["node"] == FIRST
    assert parts["kernel"]["version"] == locked.nodes[FIRST].ok("uname -r").strip()
    assert parts["rdma"]["version"] == "inbox"
    assert {name: parts[part]["packages"][name] for part, name in (("docker", DOCKER), ("toolkit", TOOLKIT))} == (
        locked.versions(FIRST)
    )
    assert all(version.endswith("+later1") for version in locked.versions(FIRST).values())
    assert parts["image"]["version"].startswith("sha256:")


def test_the_difference_of_two_nodes_is_shown(locked: Cluster) -> None:
    """By package; a lock file is compared like a node."""
    done = locked.call("stack", "diff", str(locked.lock), OLDER)
    results = {(one["component"], one["package"]) for one in done.document["differences"]}

    assert (done.code, done.document["same"]) == (1, False)
    assert {("docker", DOCKER), ("toolkit", TOOLKIT)} <= results
    assert locked.call("stack", "diff", str(locked.lock), FIRST).code == 0


def test_the_older_node_is_brought_to_the_lock_and_the_vendor_stack_is_refused(locked: Cluster) -> None:
    """Every deviating component is planned; afterwards the plan is empty, and the packages are held."""
    assert {"stack.differs", "plan.not_held"} <= set.union(*locked.steps(OLDER).values())
    assert {"docker_engine", "nvidia_container", "platform"} <= set(locked.steps(OLDER))
    assert locked.steps(FIRST) == {"platform": {"plan.not_held"}}
    refused = locked.plan(VENDOR)
    assert refused["error_code"] == "stack.rdma_vendor", refused
    assert refused["steps"] == []

    before = locked.versions(VENDOR)
    done = locked.call("apply", "--yes")
    results = {node["name"]: node for node in done.document["nodes"]}

    assert done.code == 1, str(done)
    assert {name: results[name]["status"] for name in (FIRST, OLDER)} == dict.fromkeys((FIRST, OLDER), "changed")
    assert "rdma: the node has" in json.dumps(results[VENDOR]["error"])
    assert locked.versions(OLDER) == locked.versions(FIRST)
    assert locked.versions(VENDOR) == before
    assert locked.steps(FIRST) == locked.steps(OLDER) == {}


def test_held_packages_are_not_upgraded(locked: Cluster) -> None:
    """A newer version in the repositories changes nothing, also if an operator upgrades everything."""
    locked.offer("later2")
    node = locked.nodes[OLDER]
    simulated = node.ok("apt-get update -q >/dev/null; apt-get -s -q dist-upgrade")

    assert DOCKER not in simulated
    assert TOOLKIT not in simulated
    assert "later2" in locked.nodes[VENDOR].ok(f"apt-get update -q >/dev/null; apt-cache policy {DOCKER}")
    assert locked.steps(OLDER) == {}


def test_a_package_that_needs_a_newer_version_than_the_lock_is_refused(locked: Cluster) -> None:
    """Another role cannot break the lock: apt refuses the transaction, and changes nothing."""
    node, before = locked.nodes[OLDER], locked.versions(OLDER)
    node.put("/srv/newer/DEBIAN/control", NEEDS_NEWER.format(version=f"{before[DOCKER]}+later2"))
    node.ok("dpkg-deb -b /srv/newer /srv/newer.deb")
    result = node.module("platform_packages", packages=["/srv/newer.deb"])

    assert result["failed"]
    assert result["reason"] == "packages.conflict", result
    assert DOCKER in str(result)
    assert locked.versions(OLDER) == before


def test_a_locked_version_that_no_repository_has_is_refused_before_a_change(locked: Cluster) -> None:
    """The preflight names the package with its version."""
    text = locked.lock.read_text()
    version = locked.versions(FIRST)[TOOLKIT]
    locked.lock.write_text(text.replace(version, f"{version}.9"))
    done = locked.call("apply", "--yes", "--limit", OLDER)
    locked.lock.write_text(text)

    assert done.code == 1, str(done)
    [problem] = done.document["problems"]
    assert problem["code"] == "package.missing"
    assert f"{TOOLKIT}={version}.9" in problem["object"]
    assert locked.versions(OLDER) == locked.versions(FIRST)


def test_a_removed_lock_releases_the_packages(locked: Cluster) -> None:
    """The versions stay, and nothing holds them any more."""
    assert "Pin-Priority: 1001" in locked.nodes[OLDER].ok(f"cat {HOLDS}")
    locked.lock.unlink()
    assert locked.steps(OLDER) == {"platform": {"plan.held"}}
    done = locked.call("apply", "--yes", "--limit", OLDER)

    assert done.code == 0, str(done)
    assert locked.nodes[OLDER].shell(f"test -e {HOLDS}").code == 1
    assert locked.steps(OLDER) == {}


def test_reset_removes_the_hold_of_the_lock_and_no_other(locked: Cluster) -> None:
    """The first node still has the versions of the removed lock, and a hold of its operator."""
    node = locked.nodes[FIRST]
    node.hold("bash")
    node.ok(f"test -e {HOLDS}")
    done = locked.call("reset", "--yes", "--limit", FIRST)

    assert done.code == 0, str(done)
    assert node.shell(f"test -e {HOLDS}").code == 1
    assert node.holds().split() == ["bash"]
