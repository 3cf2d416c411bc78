"""A cluster of two systems, Debian and a SIMULATED Enterprise Linux: from bare nodes to verified ones, and back.

The second node has real dnf and rpm over the files of Debian. The tests show what the program and the roles do with
them. They do not test the packages, the kernel or SELinux of Enterprise Linux.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.command import Provision

pytestmark = pytest.mark.long

LAB = f"el{os.getpid()}"
DEBIAN, EL = f"{LAB}-1", f"{LAB}-2"
TITLE = "Enterprise Linux 9 (SIMULATED: files of Debian 12)"
KEY = "/etc/pki/rpm-gpg/RPM-GPG-KEY-lab"
OF_NVIDIA = "libnvidia-container/stable/rpm/x86_64"
"""The lab's repository that is like NVIDIA's: its index is signed, its packages are not."""


@pytest.fixture(scope="module")
def lab(provision: Provision) -> Iterator[str]:
    """One node of each system, with SIMULATED GPUs."""
    words = ("--driver", "container", "--system", "debian12,el9", "--nodes", "2", "--machine", "pair")
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


def refused(provision: Provision, command: str) -> str:
    """Return the output of a command on the node with rpm that fails."""
    done = provision("lab", "ssh", LAB, EL, "--", f"{command} 2>&1")
    assert done.code != 0, str(done)
    return done.out


def by_name(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in document["nodes"]}


def test_the_lab_says_which_system_is_simulated(provision: Provision, lab: str) -> None:
    """In `lab status`, in `lab list`, on the node and in its packages."""
    simulated = provision.ok("lab", "status", lab, "--json").document["simulated"]

    assert (
        "Enterprise Linux 9: dnf and rpm over the files of Debian 12 with the os-release of Enterprise Linux 9"
        in simulated
    )
    assert "debian12, el9 (SIMULATED)" in provision.ok("lab", "list").out
    assert f'PRETTY_NAME="{TITLE}"' in shell(provision, EL, "cat /etc/os-release")
    assert "SIMULATED" in shell(provision, EL, "cat /etc/redhat-release")
    summaries = shell(provision, EL, "rpm -qa --qf '%{NAME} %{SUMMARY}\\n' | grep -v ^gpg-pubkey").splitlines()
    assert len(summaries) > 3
    assert all(" SIMULATED: " in line for line in summaries)


@pytest.mark.usefixtures("lab")
def test_the_node_has_no_package_manager_of_debian(provision: Provision) -> None:
    """What a role calls by name is not there; sshd has the name of the system, and all units run."""
    assert "none" in shell(provision, EL, "command -v apt-get dpkg dpkg-query || echo none")
    assert shell(provision, EL, "ls -d /etc/apt /var/lib/dpkg /etc/debian_version 2>/dev/null || true") == ""
    assert shell(provision, EL, "systemctl is-active sshd.service").strip() == "active"
    assert shell(provision, EL, "systemctl list-units --failed --no-legend").strip() == ""
    assert shell(provision, EL, "dnf -q check --dependencies") == ""


@pytest.mark.usefixtures("lab")
def test_dnf_installs_from_the_signed_repository_of_the_lab(provision: Provision) -> None:
    """With dependencies; services do not start."""
    shell(provision, EL, "dnf -y -q install infiniband-diags")

    assert "libibumad" in shell(provision, EL, "rpm -q --whatrequires 'libibumad.so.3()(64bit)'; rpm -qa libibumad")
    assert "lab" in shell(provision, EL, "dnf -q repoquery --installed --qf '%{from_repo}' infiniband-diags")
    shell(provision, EL, "dnf -y -q remove infiniband-diags")


@pytest.mark.usefixtures("lab")
def test_an_unsigned_package_is_refused(provision: Provision) -> None:
    """Of a repository that should have signed packages; with its signed index only, it is installed."""
    base = shell(provision, EL, "sed -n 's,^baseurl=\\(.*\\)/rpm/.*,\\1,p' /etc/yum.repos.d/lab.repo").strip()
    source = f"dnf -y --repofrompath=vendor,{base}/{OF_NVIDIA} --setopt=vendor.gpgkey=file://{KEY}"
    output = refused(provision, f"{source} --setopt=vendor.gpgcheck=1 install libnvidia-container1")

    assert "GPG check FAILED" in output
    assert "not installed" in refused(provision, "rpm -q libnvidia-container1")
    index = "--setopt=vendor.gpgcheck=0 --setopt=vendor.repo_gpgcheck=1"
    shell(provision, EL, f"{source} {index} -q install libnvidia-container1 && dnf -y -q remove libnvidia-container1")


def test_a_changed_index_is_refused(provision: Provision, lab: str) -> None:
    """The signature of the index is verified too."""
    folder = provision.folder / "state/provision/labs" / lab / "services/repository/rpm/el9/repodata/repomd.xml"
    before = folder.read_bytes()
    folder.write_bytes(before + b"\n")
    try:
        output = refused(provision, "dnf -y --refresh install pigz")
    finally:
        folder.write_bytes(before)

    assert "GPG" in output or "signature" in output.lower()


def test_both_systems_converge_and_a_second_apply_changes_nothing(
    provision: Provision, applied: dict[str, Any]
) -> None:
    """Each node gets the packages of its system."""
    again = provision.ok("apply", "--lab", LAB, "--yes", "--json").document

    assert {name: node["status"] for name, node in by_name(applied).items()} == {DEBIAN: "changed", EL: "changed"}
    assert {name: node["status"] for name, node in by_name(again).items()} == {DEBIAN: "unchanged", EL: "unchanged"}
    assert provision.ok("plan", "--lab", LAB, "--json").document["converged"]
    assert "docker-ce-3:20.10" in shell(provision, EL, "rpm -q --qf '%{NAME}-%{EVR}' docker-ce")


def test_verify_marks_the_simulated_system(provision: Provision, applied: dict[str, Any]) -> None:
    """In the check of the system, and where the systems of the nodes differ."""
    assert applied["ok"]
    document = provision.ok("verify", "--lab", LAB, "--json").document
    systems = {
        node["name"]: next(check for check in node["checks"] if check["id"] == "node.os") for node in document["nodes"]
    }

    assert {name: check["status"] for name, check in systems.items()} == {DEBIAN: "pass", EL: "pass"}
    assert (systems[DEBIAN]["simulated"], systems[EL]["simulated"]) == (False, True)
    assert TITLE in systems[EL]["reason"]


def test_a_job_runs_on_both_systems(provision: Provision, applied: dict[str, Any]) -> None:
    """In the containers of both nodes."""
    assert applied["ok"]
    done = provision.ok("run", "--lab", LAB, "--", "provision-smoke")

    assert done.code == 0


def test_reset_leaves_both_nodes_bare(provision: Provision, applied: dict[str, Any]) -> None:
    """Without the packages of the roles, and with those of the image."""
    assert applied["ok"]
    done = provision("reset", "--lab", LAB, "--yes", "--json")

    assert done.code == 0, str(done)
    installed = shell(provision, EL, "rpm -qa --qf '%{NAME}\\n'").splitlines()
    assert {"lab-base", "iproute", "sudo"} <= {*installed}
    assert not {"docker-ce", "containerd.io"} & {*installed}
    assert shell(provision, EL, "ls /etc/yum.repos.d").split() == ["lab.repo"]
    assert not shell(provision, EL, "ls /var/lib/provision/receipts 2>/dev/null || true").strip()
