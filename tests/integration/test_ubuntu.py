"""A cluster of two systems, Debian and a SIMULATED Ubuntu: from bare nodes to verified ones, and back.

The Ubuntu node has the files of Debian with the os-release of Ubuntu, needrestart and unattended-upgrades. The tests
show that the program and the roles take a node for Ubuntu, and what they do then. They do not test Ubuntu's packages.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.command import Provision

pytestmark = pytest.mark.long

LAB = f"ubuntu{os.getpid()}"
DEBIAN, UBUNTU = f"{LAB}-1", f"{LAB}-2"
TITLE = "Ubuntu 24.04 LTS (SIMULATED: files of Debian 13)"
IDENTITY = "/usr/lib/os-release"


@pytest.fixture(scope="module")
def lab(provision: Provision) -> Iterator[str]:
    """One node of each system, with SIMULATED GPUs."""
    words = ("--driver", "container", "--system", "debian12,ubuntu24", "--nodes", "2", "--machine", "pair")
    try:
        provision.ok("lab", "up", LAB, *words)
        yield LAB
    finally:
        down = provision("lab", "down", LAB)
    assert down.code == 0, str(down)


@pytest.fixture(scope="module")
def applied(provision: Provision, lab: str) -> dict[str, Any]:
    """The document of the first apply."""
    done = provision("apply", "--lab", lab, "--yes", "--json")
    assert done.code == 0, str(done)
    document: dict[str, Any] = done.document
    return document


def shell(provision: Provision, node: str, command: str) -> str:
    """Return the output of a command on a node; it must succeed."""
    return provision.ok("lab", "ssh", LAB, node, "--", command).out


def by_name(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in document["nodes"]}


def test_the_lab_says_which_system_is_simulated(provision: Provision, lab: str) -> None:
    """In `lab status`, in `lab list` and on the node."""
    simulated = provision.ok("lab", "status", lab, "--json").document["simulated"]

    assert "Ubuntu 24.04 LTS: the files of Debian 13 with the os-release of Ubuntu 24.04 LTS" in simulated
    assert "debian12, ubuntu24 (SIMULATED)" in provision.ok("lab", "list").out
    assert f'PRETTY_NAME="{TITLE}"' in shell(provision, UBUNTU, "cat /etc/os-release")
    assert "ID=debian" in shell(provision, DEBIAN, "cat /etc/os-release")


def test_an_interim_release_is_refused_by_name(provision: Provision, lab: str) -> None:
    """Before anything changes; the other node has a plan."""
    shell(provision, UBUNTU, f"cp {IDENTITY} /root/identity && sed -i s/24.04/24.10/ {IDENTITY}")
    try:
        nodes = by_name(provision("plan", "--lab", lab, "--json").document)
    finally:
        shell(provision, UBUNTU, f"mv /root/identity {IDENTITY}")

    assert nodes[UBUNTU]["error_code"] == "node.os.interim"
    assert "Ubuntu 24.10" in nodes[UBUNTU]["error"]
    assert "ubuntu 24.04" in nodes[UBUNTU]["remedy"]
    assert nodes[DEBIAN]["error"] is None


def test_docker_as_a_snap_is_refused_in_the_plan(provision: Provision, lab: str) -> None:
    """With the command that removes it."""
    shell(provision, UBUNTU, "mkdir -p /snap/docker/current")
    try:
        problems = provision("plan", "--lab", lab, "--json").document["problems"]
    finally:
        shell(provision, UBUNTU, "rm -r /snap")

    [problem] = [problem for problem in problems if problem["object"] == "docker (snap)"]
    assert (problem["nodes"], problem["role"]) == ([UBUNTU], "docker_engine")
    assert "snap remove docker" in problem["remedy"]


def test_the_slurm_of_the_system_is_refused_in_the_plan(provision: Provision, lab: str) -> None:
    """With its version, beside the mix of systems."""
    own = provision.folder / "slurm"
    shutil.copytree(provision.folder / "state/provision/labs" / lab / "inventory", own)
    (own / "group_vars").mkdir()
    (own / "group_vars/all.yml").write_text("cluster_engine: slurm\n", encoding="utf-8")
    problems = provision("plan", "-i", str(own), "--json").document["problems"]

    [problem] = [problem for problem in problems if problem["object"] == "cluster_engine"]
    assert (problem["nodes"], problem["role"]) == ([UBUNTU], "slurm")
    assert "Slurm 23.11 of Ubuntu 24.04 LTS is not supported" in problem["problem"]
    [text, *_] = [problem["problem"] for problem in problems if problem["object"] == "operating system"]
    assert f"ubuntu 24.04 (SIMULATED) on {UBUNTU}" in text


def test_both_systems_converge_and_a_second_apply_changes_nothing(
    provision: Provision, applied: dict[str, Any]
) -> None:
    """Each node gets the packages of its system."""
    again = provision.ok("apply", "--lab", LAB, "--yes", "--json").document

    assert {name: node["status"] for name, node in by_name(applied).items()} == {DEBIAN: "changed", UBUNTU: "changed"}
    assert {name: node["status"] for name, node in by_name(again).items()} == {DEBIAN: "unchanged", UBUNTU: "unchanged"}
    assert provision.ok("plan", "--lab", LAB, "--json").document["converged"]


def test_verify_marks_the_simulated_system(provision: Provision, applied: dict[str, Any]) -> None:
    """In the check of the system, and where the systems of the nodes differ."""
    assert applied["ok"]
    document = provision.ok("verify", "--lab", LAB, "--json").document
    systems = {
        node["name"]: next(check for check in node["checks"] if check["id"] == "node.os") for node in document["nodes"]
    }
    skew = next(check for check in document["cluster"] if check["id"] == "cluster.skew_os")

    assert {name: check["status"] for name, check in systems.items()} == {DEBIAN: "pass", UBUNTU: "pass"}
    assert (systems[DEBIAN]["simulated"], systems[UBUNTU]["simulated"]) == (False, True)
    assert TITLE in systems[UBUNTU]["reason"]
    assert (skew["status"], skew["simulated"]) == ("warn", True)
    assert f"ubuntu 24.04 (SIMULATED) on {UBUNTU}" in skew["reason"]


def test_an_upgrade_of_the_base_system_keeps_the_identity(provision: Provision, applied: dict[str, Any]) -> None:
    """The package that owns os-release writes it beside the simulated one."""
    assert applied["ok"]
    shell(provision, UBUNTU, "DEBIAN_FRONTEND=noninteractive apt-get -q -y install --reinstall base-files >/dev/null")

    assert TITLE in shell(provision, UBUNTU, "cat /etc/os-release")


def test_reset_leaves_both_nodes_bare(provision: Provision, applied: dict[str, Any]) -> None:
    """Without the packages of the roles, and with those of the image."""
    assert applied["ok"]
    done = provision("reset", "--lab", LAB, "--yes", "--json")

    assert done.code == 0, str(done)
    for node in (DEBIAN, UBUNTU):
        installed = shell(provision, node, "dpkg-query -W -f '${Package} ${db:Status-Status}\\n'").splitlines()
        assert "docker.io installed" not in installed
        assert not shell(provision, node, "ls /var/lib/provision/receipts 2>/dev/null || true").strip()
    assert "needrestart installed" in installed
    assert TITLE in shell(provision, UBUNTU, "cat /etc/os-release")
