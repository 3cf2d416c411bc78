"""DOCA-OFED on container nodes of apt and dnf: SIMULATED packages from a signed repository, real builds by DKMS.

The node of Debian has the headers of a real kernel and a compiler. The headers of the SIMULATED node of Enterprise
Linux compile nothing: its modules are texts. A container has the kernel of its host, so nothing is loaded here. The
first test is that of `make test`, on the common lab; `make driver` runs all.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from provision.lab.package_managers import APT, DNF
from provision.lab.services import repository, rpm_repository
from provision.lab.services.kernel import DOCA_VERSION, EL_KERNEL
from provision.lab.systems import lab_system
from tests.support.command import Done, Provision
from tests.support.nvidia_packages import release_kernel

ONLY = ("--only", "base_system", "--only", "rdma_stack")
RECEIPT = "/var/lib/provision/receipts/rdma_stack.json"


@dataclass(frozen=True)
class Family:
    """What differs between nodes of apt and of dnf."""

    system: str
    version: str
    """The release of DOCA."""
    path: str
    """The repository, below the URL of the lab's."""
    modules: str
    """Name and version in DKMS."""
    set_up: str
    """Prepares the bare node, and prints the release of the kernel."""
    newer: str
    """The release of a kernel that DOCA does not support."""
    packages: str
    """Prints the names of all packages."""
    files: str
    """Files of the role, and folders of sources and repositories."""
    offered: str
    """Prints the versions of dkms in all repositories, including excluded ones."""
    installed: str
    """Prints the version of the installed dkms."""
    remove: str
    """Removes a package, but not those that it requires."""
    driver: str
    """Verifies that a module for the kernel `$kernel` is installed."""


DEBIAN = Family(
    system="debian12",
    version=DOCA_VERSION[APT],
    path=repository.DOCA_PATH,
    modules="mlnx-ofed-kernel/24.10",
    set_up="apt-get -qq update && " + release_kernel("amd64"),
    newer="6.12.5-1-amd64",
    packages="dpkg-query -W -f '${db:Status-Abbrev} ${Package}\\n' | grep '^i'",
    files="/etc/apt/preferences.d/provision-rdma-stack.pref /etc/apt/sources.list.d/provision-rdma-stack.sources",
    offered="apt-cache madison dkms",
    installed="dpkg-query -W -f '${Version}' dkms",
    remove="DEBIAN_FRONTEND=noninteractive apt-get -qq remove -y",
    driver='test "$(modinfo -k $kernel -F version ib_peer_mem)" = 24.10',
)
_KERNEL = f"{EL_KERNEL}.x86_64"
EL = Family(
    system="el9",
    version=DOCA_VERSION[DNF],
    path=rpm_repository.doca_path(lab_system("el9")),
    modules="mlnx-ofa_kernel/25.10",
    # The package of the kernel has this link.
    set_up=f"mkdir -p /lib/modules/{_KERNEL} && ln -s /usr/src/kernels/{_KERNEL} /lib/modules/{_KERNEL}/build"
    f" && echo {_KERNEL}",
    newer="5.14.0-700.el9_9.x86_64",
    packages="rpm -qa --queryformat '%{NAME}\\n'",
    files="/etc/yum.repos.d/provision-rdma-stack.repo /etc/pki/rpm-gpg/RPM-GPG-KEY-provision-rdma-stack",
    offered="dnf -q --disableexcludes=all repoquery dkms",
    installed="rpm -q dkms",
    remove="dnf -q -y --noautoremove remove",
    driver="find /lib/modules/$kernel -name ib_peer_mem.ko | grep -q .",
)


def inventory_of(provision: Provision, lab: str) -> Path:
    """Return a folder with the nodes of a lab, for other variables than those of the lab."""
    inventory = provision.folder / f"inventories/rdma-{lab}"
    (inventory / "group_vars").mkdir(parents=True)
    shutil.copy(provision.ok("lab", "inventory", lab).out.strip(), inventory / "hosts.yml")
    return inventory


def node_of(provision: Provision, lab: str, node: str) -> OneNode:
    """Return a node of a lab with the URL and the key of the lab's repositories."""
    folder = Path(provision.environment["XDG_STATE_HOME"]) / "provision/labs" / lab
    info = json.loads((folder / "services/info.json").read_text())
    url, key = info["repository_url"], info["repository_key"]
    return OneNode(provision, inventory_of(provision, lab), lab, node, url, key, info["repositories"])


@dataclass
class OneNode:
    """A node, and an inventory with its RDMA stack."""

    provision: Provision
    inventory: Path
    lab: str
    node: str
    url: str
    key: str
    others: list[dict[str, str]]
    """Another repository on the same host: only the label distinguishes the two."""
    family: Family = DEBIAN
    kernel: str = "6.1.0-1-amd64"

    @property
    def state(self) -> str:
        """The packages and files of an RDMA stack on the node; empty without one."""
        return self.shell(
            f"{self.family.packages} | grep -E 'ofed|mlnx|dkms|rdma-core|kernel-devel' | sort;"
            " find /lib/modules /var/lib/dkms /usr/src -path '*mlnx*' -o -name 'ib_peer_mem*';"
            f" ls -d /usr/src/ofa_kernel {self.family.files} 2>/dev/null || true"
        )

    def shell(self, command: str) -> str:
        """Run a command on the node; it must succeed."""
        return self.provision.ok("lab", "ssh", self.lab, self.node, "--", command, timeout=1800).out.strip()

    def request(self, **variables: Any) -> None:
        """Request DOCA from the lab's repository; an empty source requests nothing."""
        settings = {
            # That of rpm packages, with the SIMULATED headers, is in the inventory of the lab.
            **({"platform_extra_repositories": self.others} if self.family is DEBIAN else {}),
            "rdma_stack_source": "doca",
            "rdma_stack_version": self.family.version,
            "rdma_stack_repository_uri": f"{self.url}/{self.family.path}",
            "rdma_stack_repository_key": self.key,
            "rdma_stack_kernels": [self.kernel],
            **variables,
        }
        (self.inventory / "group_vars/gpu_nodes.yml").write_text(json.dumps(settings))

    def call(self, verb: str, *words: str) -> Done:
        """Run a verb with this inventory."""
        return self.provision(verb, "-i", str(self.inventory), "--json", *words, timeout=3600)

    def apply(self) -> Done:
        """Apply the role on the node."""
        return self.call("apply", "--yes", *ONLY, "--limit", self.node)

    def steps(self) -> list[str]:
        """Return the roles that a plan would run."""
        plan = self.call("plan", *ONLY, "--limit", self.node).document
        return [step["role"] for node in plan["nodes"] for step in node["steps"]]


def assert_refused(one: OneNode, code: str, *words: str) -> None:
    """Apply, which is refused before anything changes on the node."""
    folders = "/etc/apt/preferences.d /etc/apt/sources.list.d /etc/yum.repos.d /var/lib/provision/receipts"
    state = f"{one.family.packages}; ls {folders} 2>/dev/null || true"
    before = one.shell(state)
    done = one.apply()

    assert done.code == 1, str(done)
    [problem] = done.document["problems"]
    assert (problem["code"], problem["role"]) == (code, "rdma_stack")
    for word in words:
        assert word in problem["problem"] + problem["remedy"]
    assert one.shell(state) == before


def test_a_system_without_such_a_stack_is_refused_and_nothing_changes(
    provision: Provision, lab: dict[str, Any]
) -> None:
    """With the sources that the system has."""
    one = node_of(provision, lab["name"], lab["nodes"][0]["name"])
    one.request()
    assert_refused(one, "variable.invalid", "no entry for the RDMA stack doca", "Use one of distribution")


@pytest.fixture(scope="module", params=[DEBIAN, EL], ids=lambda family: str(family.system))
def one(provision: Provision, request: pytest.FixtureRequest) -> Iterator[OneNode]:
    """A bare node, and a kernel that DOCA supports: that of Debian's last point release, or SIMULATED headers."""
    family: Family = request.param
    lab = f"rdma{os.getpid()}{family.system}"
    try:
        provision.ok("lab", "up", lab, "--driver", "container", "--nodes", "1", "--system", family.system, timeout=1800)
        made = node_of(provision, lab, f"{lab}-1")
        made.family = family
        made.kernel = made.shell(family.set_up)
        yield made
    finally:
        down = provision("lab", "down", lab)
    assert down.code == 0, str(down)


@pytest.fixture(scope="module")
def before(one: OneNode) -> str:
    """The packages and files of RDMA stacks on the bare node: none."""
    assert one.state == ""
    return one.state


@pytest.mark.long
def test_a_kernel_that_the_release_does_not_support_is_refused_and_nothing_changes(one: OneNode, before: str) -> None:
    """Before anything is installed, with a reason code and the remedy."""
    assert before == ""
    one.request(rdma_stack_kernels=[one.kernel, one.family.newer])
    assert_refused(one, "kernel.unsupported", one.family.newer, "rdma_stack_kernel_check_enabled")


@pytest.fixture(scope="module")
def installed(one: OneNode, before: str) -> OneNode:
    """The node with the vendor's stack."""
    assert before == ""
    one.request()
    done = one.apply()
    assert [node["status"] for node in done.document["nodes"]] == ["changed"], str(done)
    return one


@pytest.mark.long
def test_the_stack_is_installed_and_built_for_the_kernel(installed: OneNode) -> None:
    """By DKMS's and kmod's own words."""
    modules = installed.family.modules
    assert installed.shell("ofed_info -s").startswith(f"OFED-internal-{modules.partition('/')[2]}")
    assert installed.shell("dkms status") == f"{modules}, {installed.kernel}, x86_64: installed"
    installed.shell(f"kernel={installed.kernel}; {installed.family.driver}")
    receipt = json.loads(installed.shell(f"cat {RECEIPT}"))
    assert receipt["inputs"]["source"] == "doca"
    assert "doca-ofed" in receipt["packages"]


@pytest.mark.long
def test_dkms_is_the_distributions(installed: OneNode) -> None:
    """The repository has a newer one of its own, which the package manager must not choose."""
    assert "99~simulated" in installed.shell(installed.family.offered)
    assert "99~simulated" not in installed.shell(installed.family.installed)
    if installed.family is DEBIAN:
        assert "origin" not in installed.shell("cat /etc/apt/preferences.d/provision-rdma-stack.pref")
        version = installed.shell(installed.family.installed)
        assert f"Candidate: {version}" in installed.shell("apt-cache policy dkms")


@pytest.mark.long
def test_the_firmware_of_the_cards_is_not_updated(installed: OneNode) -> None:
    """A package of the profile does it when it is installed."""
    assert "mlnx-fw-updater" in installed.shell(installed.family.packages)
    assert installed.shell("ls /var/lib/provision-lab-firmware-updated 2>/dev/null || echo none") == "none"


@pytest.mark.long
def test_a_second_apply_changes_nothing(installed: OneNode) -> None:
    """The plan is empty, and the packages pass verification."""
    assert installed.steps() == []
    assert [node["status"] for node in installed.apply().document["nodes"]] == ["unchanged"]
    verified = installed.call("verify", "--limit", installed.node).document
    results = {check["id"]: check["status"] for node in verified["nodes"] for check in node["checks"]}
    assert results["rdma_stack.packages"] == "pass", verified


@pytest.mark.long
def test_a_removed_package_of_the_stack_plans_the_stack_again(installed: OneNode) -> None:
    """And an apply installs it."""
    installed.shell(f"{installed.family.remove} doca-ofed >/dev/null")
    assert "rdma_stack" in installed.steps()

    assert [node["status"] for node in installed.apply().document["nodes"]] == ["changed"]
    assert "doca-ofed" in installed.shell(installed.family.packages).split()


@pytest.mark.long
def test_a_return_to_the_distribution_is_refused_with_the_way_back(installed: OneNode) -> None:
    """Packages of the same names are newer; nothing changes."""
    installed.request(rdma_stack_source="distribution")
    assert_refused(installed, "stack.installed", "provision reset")
    installed.request()


@pytest.mark.long
def test_a_reset_removes_everything(installed: OneNode, before: str) -> None:
    """Packages, modules, sources, DKMS's folders, the repository and the pin."""
    done = installed.call("reset", "--yes")
    assert done.code == 0, str(done)

    assert installed.state == before
    assert installed.shell("ls /lib/modules 2>/dev/null || true") == (
        "" if installed.family is DEBIAN else installed.kernel
    )
