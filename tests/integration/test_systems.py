"""A cluster of Debian, Ubuntu and Enterprise Linux: from bare nodes to a job, and back.

Ubuntu and Enterprise Linux are SIMULATED. An Ubuntu node has the files of Debian with the os-release of Ubuntu,
needrestart and unattended-upgrades. A node of Enterprise Linux has real dnf and rpm over the files of Debian; that of
release 8 runs modules with Python 3.6. The tests show what the program and the roles do with them. They do not test the
packages, the kernel or SELinux of these systems.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from provision.lab.systems import SYSTEMS, lab_system
from tests.integration.system_drifts import BATCHES, Drift, drifts
from tests.support.command import Provision
from tests.support.node_state import differences, node_state
from tests.support.plain_ansible import changed_by_check_mode
from tests.support.reasons import shown_document
from tests.support.recorded_systems import SystemRecorder, converged_roles

pytestmark = pytest.mark.long

LAB = f"systems{os.getpid()}"
WITHOUT_PYTHON_36 = "this machine has no Python 3.6, which the node of el8 runs modules with"
HAS_PYTHON_36 = bool(lab_system("el8").python)
NODES = {
    system: f"{LAB}-{number}"
    for number, system in enumerate(("debian12", "debian13", "ubuntu24", "el9", *(["el8"] if HAS_PYTHON_36 else [])), 1)
}
"""System -> the name of its node."""
DEBIAN, UBUNTU, EL = NODES["debian12"], NODES["ubuntu24"], NODES["el9"]
FAMILIES = {"apt": DEBIAN, "dnf": EL}
"""Package manager -> the node that stands for its family where one is enough."""
WITH_RPM = [system for system in NODES if SYSTEMS[system].rpm]
UBUNTU_TITLE = "Ubuntu 24.04 LTS (SIMULATED: files of Debian 13)"
EL_TITLE = "Enterprise Linux 9 (SIMULATED: files of Debian 12)"
IDENTITY = "/usr/lib/os-release"
KEY = "/etc/pki/rpm-gpg/RPM-GPG-KEY-lab"
OF_NVIDIA = "libnvidia-container/stable/rpm/x86_64"
"""The lab's repository that is like NVIDIA's: its index is signed, its packages are not."""
SLOWER = 1.5
"""How much longer the apply of a node of Enterprise Linux may take than that of a node of Debian."""

Shell = Callable[[str, str], str]


@pytest.fixture(scope="module")
def lab(provision: Provision) -> Iterator[str]:
    """One node of each system, with SIMULATED GPUs."""
    words = ("--driver", "container", "--system", ",".join(NODES), "--nodes", str(len(NODES)), "--machine", "pair")
    try:
        provision.ok("lab", "up", LAB, *words, timeout=3600)
        yield LAB
    finally:
        down = provision("lab", "down", LAB)
    assert down.code == 0, str(down)


@pytest.fixture(scope="module")
def shell(provision: Provision, lab: str) -> Shell:
    """Return the output of a command on a node; it must succeed."""

    def call(node: str, command: str) -> str:
        return provision.ok("lab", "ssh", lab, node, "--", command).out

    return call


@pytest.fixture(scope="module")
def before(shell: Shell) -> dict[str, dict[str, Any]]:
    """The state of each node before the first apply."""
    return {node: node_state(partial(shell, node)) for node in NODES.values()}


@pytest.fixture(scope="module")
def applied(provision: Provision, lab: str, before: dict[str, Any]) -> dict[str, Any]:
    """The document of the first apply."""
    assert before
    done = provision("apply", "--lab", lab, "--yes", "--json", timeout=3600)
    assert done.code == 0, str(done)
    document: dict[str, Any] = done.document
    return document


@pytest.fixture(scope="module")
def image(provision: Provision, applied: dict[str, Any]) -> str:
    """The training image."""
    assert applied["ok"]
    inventory = yaml.safe_load(Path(provision.ok("lab", "inventory", LAB).out.strip()).read_text(encoding="utf-8"))
    return str(inventory["all"]["children"]["gpu_nodes"]["vars"]["training_image_reference"])


def by_name(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in document["nodes"]}


def refused(provision: Provision, command: str) -> str:
    """Return the output of a command on the node of Enterprise Linux 9 that fails."""
    done = provision("lab", "ssh", LAB, EL, "--", f"{command} 2>&1")
    assert done.code != 0, str(done)
    return done.out


# Bare nodes


@pytest.mark.skipif(not HAS_PYTHON_36, reason=WITHOUT_PYTHON_36)
def test_the_node_of_el8_runs_modules_with_python_36(shell: Shell) -> None:
    """As the system's own interpreter does."""
    assert shell(NODES["el8"], "/usr/libexec/platform-python --version").startswith("Python 3.6.")


def test_the_lab_says_which_system_is_simulated(provision: Provision, lab: str, shell: Shell) -> None:
    """In `lab status`, in `lab list`, on the node and in its packages."""
    simulated = provision.ok("lab", "status", lab, "--json").document["simulated"]

    assert "Ubuntu 24.04 LTS: the files of Debian 13 with the os-release of Ubuntu 24.04 LTS" in simulated
    assert (
        "Enterprise Linux 9: dnf and rpm over the files of Debian 12 with the os-release of Enterprise Linux 9"
        in simulated
    )
    assert "debian12, debian13, ubuntu24 (SIMULATED), el9 (SIMULATED)" in provision.ok("lab", "list").out
    assert "ID=debian" in shell(DEBIAN, "cat /etc/os-release")
    assert f'PRETTY_NAME="{UBUNTU_TITLE}"' in shell(UBUNTU, "cat /etc/os-release")
    assert f'PRETTY_NAME="{EL_TITLE}"' in shell(EL, "cat /etc/os-release")
    assert "SIMULATED" in shell(EL, "cat /etc/redhat-release")
    summaries = shell(EL, "rpm -qa --qf '%{NAME} %{SUMMARY}\\n' | grep -v ^gpg-pubkey").splitlines()
    assert len(summaries) > 3
    assert all(" SIMULATED: " in line for line in summaries)


@pytest.mark.parametrize("system", WITH_RPM)
def test_a_node_with_rpm_has_no_package_manager_of_debian(shell: Shell, system: str) -> None:
    """What a role calls by name is not there; sshd has the name of the system, and all units run."""
    node = NODES[system]

    assert "none" in shell(node, "command -v apt-get dpkg dpkg-query || echo none")
    assert shell(node, "ls -d /etc/apt /var/lib/dpkg /etc/debian_version 2>/dev/null || true") == ""
    assert shell(node, "systemctl is-active sshd.service").strip() == "active"
    assert shell(node, "systemctl list-units --failed --no-legend").strip() == ""
    assert shell(node, "dnf -q check --dependencies") == ""


@pytest.mark.parametrize("system", WITH_RPM)
def test_dnf_installs_from_the_signed_repository_of_the_lab(shell: Shell, system: str) -> None:
    """With dependencies."""
    node = NODES[system]
    shell(node, "dnf -y -q install infiniband-diags")

    assert "libibumad" in shell(node, "rpm -q --whatrequires 'libibumad.so.3()(64bit)'; rpm -qa libibumad")
    assert "lab" in shell(node, "dnf -q repoquery --installed --qf '%{from_repo}' infiniband-diags")
    shell(node, "dnf -y -q remove infiniband-diags")


def test_an_unsigned_package_is_refused(provision: Provision, shell: Shell) -> None:
    """Of a repository that should have signed packages; with its signed index only, it is installed."""
    base = shell(EL, "sed -n 's,^baseurl=\\(.*\\)/rpm/.*,\\1,p' /etc/yum.repos.d/lab.repo").strip()
    source = f"dnf -y --repofrompath=vendor,{base}/{OF_NVIDIA} --setopt=vendor.gpgkey=file://{KEY}"
    output = refused(provision, f"{source} --setopt=vendor.gpgcheck=1 install libnvidia-container1")

    assert "GPG check FAILED" in output
    assert "not installed" in refused(provision, "rpm -q libnvidia-container1")
    index = "--setopt=vendor.gpgcheck=0 --setopt=vendor.repo_gpgcheck=1"
    shell(EL, f"{source} {index} -q install libnvidia-container1 && dnf -y -q remove libnvidia-container1")


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


@pytest.mark.parametrize(
    ("node", "change", "code", "name", "nearest"),
    [
        (UBUNTU, "s/24.04/24.10/", "node.os.interim", "Ubuntu 24.10", "ubuntu 24.04"),
        (UBUNTU, "s/24.04/20.04/", "node.os.unsupported", "Ubuntu 20.04", "ubuntu 22.04"),
        (EL, 's/"9.4"/"11.0"/; s/Linux 9/Linux 11/', "node.os.unsupported", "Enterprise Linux 11", "el 10"),
    ],
    ids=["interim", "ubuntu", "el"],
)
def test_the_plan_refuses_a_system_that_is_not_supported(
    provision: Provision, lab: str, shell: Shell, node: str, change: str, code: str, name: str, nearest: str
) -> None:
    """With its name, the nearest supported system and the page of the documentation; the other nodes have a plan."""
    shell(node, f"cp {IDENTITY} /root/identity && sed -i '{change}' {IDENTITY}")
    try:
        nodes = by_name(provision("plan", "--lab", lab, "--json").document)
    finally:
        shell(node, f"mv /root/identity {IDENTITY}")

    assert nodes[node]["error_code"] == code
    assert name in nodes[node]["error"]
    assert nearest in nodes[node]["remedy"]
    assert "docs/reference/systems.md" in nodes[node]["remedy"]
    assert {other["error"] for other in nodes.values() if other["name"] != node} == {None}


def test_docker_as_a_snap_is_refused_in_the_plan(provision: Provision, lab: str, shell: Shell) -> None:
    """With the command that removes it."""
    shell(UBUNTU, "mkdir -p /snap/docker/current")
    try:
        problems = provision("plan", "--lab", lab, "--json").document["problems"]
    finally:
        shell(UBUNTU, "rm -r /snap")

    [problem] = [problem for problem in problems if problem["object"] == "docker (snap)"]
    assert (problem["nodes"], problem["role"]) == ([UBUNTU], "docker_engine")
    assert "snap remove docker" in problem["remedy"]


def test_the_slurm_of_ubuntu_is_refused_in_the_plan(provision: Provision, lab: str) -> None:
    """With its version, beside the mix of systems."""
    own = provision.folder / "slurm"
    shutil.copytree(provision.folder / "state/provision/labs" / lab / "inventory", own)
    (own / "group_vars").mkdir()
    (own / "group_vars/all.yml").write_text("cluster_engine: slurm\n", encoding="utf-8")
    problems = provision("plan", "-i", str(own), "--json").document["problems"]

    refusals = {
        tuple(problem["nodes"]): problem["problem"] for problem in problems if problem["object"] == "cluster_engine"
    }
    assert "Slurm 23.11 of Ubuntu 24.04 LTS is not supported" in refusals[(UBUNTU,)]
    [text, *_] = [problem["problem"] for problem in problems if problem["object"] == "operating system"]
    assert f"ubuntu 24.04 (SIMULATED) on {UBUNTU}" in text


# From bare nodes to a job


def test_one_apply_and_one_run_lead_from_bare_nodes_to_a_job(provision: Provision, applied: dict[str, Any]) -> None:
    """The job has a rank on every GPU of all systems, and the sum of all of them."""
    job = provision.ok("run", "--lab", LAB, "--", "provision-smoke").out
    count = 2 * len(NODES)
    ranks = [line for line in job.splitlines() if f" of {count} on " in line]

    assert {node["status"] for node in applied["nodes"]} == {"changed"}
    assert len(ranks) == count, job
    assert all(f"sum {count * (count + 1) // 2}" in line for line in ranks)
    assert all(any(name in line for line in ranks) for name in NODES.values())


def test_a_second_apply_changes_nothing(
    provision: Provision, shell: Shell, applied: dict[str, Any], record_system: SystemRecorder
) -> None:
    """Each node has the packages of its system."""
    assert applied["ok"]
    again = provision.ok("apply", "--lab", LAB, "--yes", "--json").document

    assert {node["status"] for node in again["nodes"]} == {"unchanged"}
    assert provision.ok("plan", "--lab", LAB, "--json").document["converged"]
    assert "docker-ce-3:20.10" in shell(EL, "rpm -q --qf '%{NAME}-%{EVR}' docker-ce")
    for system, name in NODES.items():
        record_system(system, converged_roles(partial(shell, name)))


def test_plain_ansible_in_check_mode_reports_no_change(provision: Provision, applied: dict[str, Any]) -> None:
    """On the nodes of all systems."""
    assert applied["ok"]
    changed = changed_by_check_mode(provision, provision.ok("lab", "inventory", LAB).out.strip())

    assert changed == dict.fromkeys(NODES.values(), 0)


def test_verify_passes_and_marks_simulated_systems(provision: Provision, applied: dict[str, Any]) -> None:
    """In the check of the system, and where the systems of the nodes differ."""
    assert applied["ok"]
    document = provision.ok("verify", "--lab", LAB, "--json").document
    systems = {
        node["name"]: next(check for check in node["checks"] if check["id"] == "node.os") for node in document["nodes"]
    }
    skew = next(check for check in document["cluster"] if check["id"] == "cluster.skew_os")
    simulated = {name for system, name in NODES.items() if SYSTEMS[system].stand_in}

    assert {check["status"] for check in systems.values()} == {"pass"}
    assert {name for name, check in systems.items() if check["simulated"]} == simulated
    assert UBUNTU_TITLE in systems[UBUNTU]["reason"]
    assert EL_TITLE in systems[EL]["reason"]
    assert (skew["status"], skew["simulated"]) == ("warn", True)
    assert f"ubuntu 24.04 (SIMULATED) on {UBUNTU}" in skew["reason"]


def test_an_upgrade_of_the_base_system_keeps_the_identity(shell: Shell, applied: dict[str, Any]) -> None:
    """The package that owns os-release writes it beside the simulated one."""
    assert applied["ok"]
    shell(UBUNTU, "DEBIAN_FRONTEND=noninteractive apt-get -q -y install --reinstall base-files >/dev/null")

    assert UBUNTU_TITLE in shell(UBUNTU, "cat /etc/os-release")


# Manual changes


def reasons(document: dict[str, Any], node: str) -> dict[str, list[str]]:
    """Return role -> codes and values of the reasons of its step on a node."""
    plan = by_name(document)[node]
    assert plan["error"] is None, plan
    return {step["role"]: list(map(shown_document, step["reason_codes"])) for step in plan["steps"]}


def unreported(made: Mapping[str, list[Drift]], document: dict[str, Any], image: str) -> list[str]:
    """Return the drifts that a plan does not have with their reasons."""
    return [
        f"{node}: {one.name}: {one.reason} is not among {steps.get(one.role)}"
        for node, ones in made.items()
        for steps in [reasons(document, node)]
        for one in ones
        if not any(re.search(one.reason.replace("IMAGE", re.escape(image)), text) for text in steps.get(one.role, []))
    ]


@pytest.mark.parametrize("batch", BATCHES)
def test_manual_changes_are_detected_and_repaired(provision: Provision, shell: Shell, image: str, batch: str) -> None:
    """With the tools of each family: the plan has each with its own reason, one apply repairs all."""
    made = {node: drifts(manager, batch) for manager, node in FAMILIES.items()}
    for node, ones in made.items():
        for one in ones:
            shell(node, one.make.replace("IMAGE", image))

    document = provision("plan", "--lab", LAB, "--json").document
    done = provision("apply", "--lab", LAB, "--yes", "--json")
    again = provision("plan", "--lab", LAB, "--exit-code", "--json")

    assert unreported(made, document, image) == []
    for name in set(NODES.values()) - set(made):
        assert set(reasons(document, name)) <= {"container_ssh", "base_system"}, name
    assert done.code == 0, str(done)
    assert again.code == 0, str(again)


HOLD = {
    "apt": ("apt-mark hold pigz", "apt-mark showhold", "apt-mark unhold pigz"),
    "dnf": (
        "tar -C /etc/dnf -cf /root/plugins.tar plugins; dnf -q versionlock add pigz",
        "dnf -q versionlock list",
        "rm -r /etc/dnf/plugins && tar -C /etc/dnf -xf /root/plugins.tar && rm /root/plugins.tar",
    ),
}
"""Package manager -> how an operator holds a package, lists held packages, and ends the hold."""


def test_a_hold_of_the_operator_is_no_change_and_stays(
    provision: Provision, shell: Shell, applied: dict[str, Any]
) -> None:
    """apply neither reports nor releases it, also while it repairs something else."""
    assert applied["ok"]
    for manager, node in FAMILIES.items():
        shell(node, HOLD[manager][0])
    plan = provision("plan", "--lab", LAB, "--exit-code", "--json")
    for node in FAMILIES.values():
        shell(node, "rm /etc/security/limits.d/90-provision.conf")
    provision.ok("apply", "--lab", LAB, "--yes")
    held = {manager: shell(node, HOLD[manager][1]) for manager, node in FAMILIES.items()}
    for manager, node in FAMILIES.items():
        shell(node, HOLD[manager][2])

    assert plan.code == 0, str(plan)
    assert all("pigz" in text for text in held.values()), held


# The way back


def reset(provision: Provision, *words: str) -> None:
    """Reset nodes of the lab."""
    done = provision("reset", "--lab", LAB, "--yes", "--json", *words)
    assert done.code == 0, str(done)
    assert {node["result"] for node in done.document["nodes"]} == {"reset"}


def test_reset_restores_the_nodes_of_all_systems(
    provision: Provision, shell: Shell, applied: dict[str, Any], before: dict[str, dict[str, Any]]
) -> None:
    """The files and packages are those from before the first apply; only the history is left."""
    assert applied["ok"]
    reset(provision)

    after = {node: node_state(partial(shell, node)) for node in NODES.values()}
    assert {node: differences(before[node], after[node]) for node in after} == {node: [] for node in after}
    assert {shell(node, "ls -A /var/lib/provision").strip() for node in after} == {"history.jsonl"}
    assert UBUNTU_TITLE in shell(UBUNTU, "cat /etc/os-release")
    assert EL_TITLE in shell(EL, "cat /etc/os-release")


def test_the_apply_of_enterprise_linux_is_not_much_slower_than_that_of_debian(
    provision: Provision, applied: dict[str, Any]
) -> None:
    """Of one bare node alone, which has no packages left; the faster of two applies each, in turns."""
    assert applied["ok"]
    seconds: dict[str, list[float]] = {DEBIAN: [], EL: []}
    for _ in range(2):
        for node, times in seconds.items():
            times.append(provision.ok("apply", "--lab", LAB, "--limit", node, "--yes", "--json").document["seconds"])
            reset(provision, "--limit", node)

    assert min(seconds[EL]) <= SLOWER * min(seconds[DEBIAN]), json.dumps(seconds)
