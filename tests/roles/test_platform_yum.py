"""yum 3.4 behind the interface of package managers, by words that it prints. No test has yum itself."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from types import ModuleType

import pytest

from provision.report.package_remedies import REMEDIES
from tests.roles.test_platform_dnf import Node, base, dnf, managed, manager
from tests.support.modules import load, run

yum = importlib.import_module("ansible.module_utils.platform_package_yum")
LOCKED = (
    "Existing lock /var/run/yum.pid: another copy is running as pid {}.\n"
    "Another app is currently holding the yum lock; exiting as configured by exit_on_lock"
)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Node:
    """A node whose package manager has its files in a folder of the test."""
    one = Node()
    one.packages = {"kmod": "20-28.el7", "rpm": "4.11.3-48.el7_9"}
    for module in (managed, dnf):
        monkeypatch.setattr(module, "PENDING", str(tmp_path / "state" / "package-transaction.json"))
    monkeypatch.setattr(yum, "VERSIONLOCK", (str(tmp_path / "versionlock.conf"), str(tmp_path / "versionlock.list")))
    monkeypatch.setattr(yum, "CONFIGURATION", str(tmp_path / "yum.conf"))
    monkeypatch.setattr(yum, "JOURNALS", str(tmp_path / "transaction-all*"))
    monkeypatch.setattr(yum, "REQUESTED", str(tmp_path / "yumdb/*/*/reason"))
    return one


@pytest.fixture
def packages(node: Node, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that installs packages, on that node."""
    module = load("platform", "platform_packages")
    monkeypatch.setattr(manager, "MANAGERS", {"yum": "/"})
    monkeypatch.setattr(module.AnsibleModule, "run_command", lambda _self, command, **_more: node.run_command(command))
    monkeypatch.setattr(module.AnsibleModule, "get_bin_path", lambda _self, name, **_more: node.get_bin_path(name))
    return module


def test_a_node_with_yum_only_has_yum(tmp_path: Path) -> None:
    """On newer systems yum is another name of dnf."""
    paths = {name: str(tmp_path / name) for name in manager.MANAGERS}
    (tmp_path / "yum").touch()

    class Nothing:
        def get_bin_path(self, _name: str) -> None:
            """Have no program in the search path."""

    only = manager.name_of_manager(Nothing(), paths)
    (tmp_path / "dnf").touch()

    assert (only, manager.name_of_manager(Nothing(), paths)) == ("yum", "dnf")


def test_packages_are_installed_once(packages: ModuleType, node: Node) -> None:
    """Lists are fetched if they are old; a second run changes nothing."""
    node.effects["yum install"] = lambda: node.packages.update(pigz="2.3.4-1.el7")
    first, commands = run(packages, packages=["pigz", "kmod"]), list(node.ran)

    assert (first["changed"], first["installed"]) == (True, ["pigz"])
    assert commands == [["yum", "makecache", "fast"], ["yum", "install", "pigz"]]
    assert not run(packages, packages=["pigz", "kmod"])["changed"]


def test_the_lock_holder_is_reported(packages: ModuleType, node: Node) -> None:
    """yum names the process; it would wait without end by default."""
    node.answers["yum makecache"] = (1, LOCKED.format(os.getpid()))

    result = run(packages, packages=["pigz"], lock_timeout=0)

    assert result["reason"] == "packages.locked"
    assert f"locked by process {os.getpid()} (" in result["msg"]


def test_a_released_lock_is_waited_for(packages: ModuleType, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module repeats the command."""
    node.effects["yum install"] = lambda: node.packages.update(pigz="2.3.4-1.el7")
    node.answers["yum makecache"] = (1, LOCKED.format(481))
    monkeypatch.setattr(base.time, "sleep", lambda _seconds: node.answers.clear())

    assert run(packages, packages=["pigz"])["changed"]


@pytest.mark.parametrize(
    ("code", "output", "reason"),
    [
        (0, "No package docker-ce available.\nNothing to do", "packages.missing"),
        (1, "No package docker-ce available.\nError: Nothing to do", "packages.missing"),
        (1, "Public key for docker-ce-26.1.4-1.el7.x86_64.rpm is not installed", "packages.signature"),
        (1, "failure: repodata/repomd.xml from base: [Errno 256] No more mirrors to try.", "packages.unreachable"),
        (1, "Cannot find a valid baseurl for repo: base/7/x86_64", "packages.unreachable"),
        (1, "Error: Package: a-1-1.el7.x86_64 (x)\n           Requires: b >= 2", "packages.conflict"),
        (1, "Error: Protected multilib versions: a-1-1.el7.i686 != a-2-1.el7.x86_64", "packages.conflict"),
        (1, "Error Summary\n-------------\nDisk Requirements:\n  At least 12MB more space needed on the / filesystem.",
         "packages.disk_full"),
        (0, "error: %pre(docker-ce-3:26.1.4-1.el7.x86_64) scriptlet failed, exit status 1", "packages.scriptlet"),
        (1, "something odd", "packages.failed"),
    ],
)  # fmt: skip
def test_the_cause_of_a_failed_transaction_has_a_reason_code(
    packages: ModuleType, node: Node, code: int, output: str, reason: str
) -> None:
    """Also if yum exits with 0 although a package is missing."""
    node.answers["yum install"] = (code, output)

    result = run(packages, packages=["docker-ce"])

    assert (result["reason"], result["remedy"]) == (reason, REMEDIES[reason])
    assert not Path(dnf.PENDING).exists()


@pytest.mark.parametrize(
    "output",
    [
        "warning: %post(failing-1:1-1.x86_64) scriptlet failed, exit status 1",
        "Non-fatal POSTIN scriptlet failure in rpm package 1:failing-1-1.x86_64",
    ],
)
def test_a_failed_script_fails_the_module_until_it_succeeds(packages: ModuleType, node: Node, output: str) -> None:
    """yum exits with 0 and prints `Complete!`."""
    node.effects["yum install"] = lambda: node.packages.update(failing="1:1-1")
    node.answers["yum install"] = (0, f"{output}\nComplete!")
    first = run(packages, packages=["failing"])
    node.answers.clear()

    assert first["reason"] == "packages.scriptlet"
    assert run(packages, packages=["failing"])["changed"]
    assert ["yum", "reinstall", "failing"] in node.ran
    assert not run(packages, packages=["failing"])["changed"]


def test_an_interrupted_transaction_is_completed_first(packages: ModuleType, node: Node, tmp_path: Path) -> None:
    """Its journal is removed, and the older versions of packages of which it left two."""
    (tmp_path / "transaction-all.2026-11-29.12:00.00").touch()
    node.packages["half"] = "1-1 2-1"
    node.effects["package-cleanup"] = lambda: node.packages.update(half="2-1")
    node.effects["yum install"] = lambda: node.packages.update(pigz="1-1")

    assert run(packages, packages=["pigz"])["changed"]
    assert node.ran[1:3] == [["yum-complete-transaction", "--cleanup-only"], ["package-cleanup", "--cleandupes"]]


def test_two_versions_without_yum_utils_are_reported(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """yum itself cannot remove one of them."""
    node.packages["half"] = "1-1 2-1"
    monkeypatch.setattr(node, "get_bin_path", lambda _name, **_more: None)

    with pytest.raises(base.PackageFailure, match=r"half.*package-cleanup of yum-utils is missing") as failure:
        yum.Yum(node).repair()
    assert failure.value.code == "packages.interrupted"


@pytest.mark.parametrize(
    ("pattern", "is_held"),
    [
        ("3:docker-ce-26.1.4-1.el7.*", True),
        ("0:docker-ce-26.1.4-1.el7.*", False),
        ("!3:docker-ce-26.1.4-1.el7.*", False),
    ],
)
def test_a_locked_version_is_held(node: Node, tmp_path: Path, pattern: str, is_held: bool) -> None:  # noqa: FBT001
    """As `yum versionlock` writes it; and packages that yum.conf excludes."""
    node.packages["docker-ce"] = "3:26.1.4-1.el7"
    (tmp_path / "versionlock.list").write_text(f"{pattern}\n")
    (tmp_path / "yum.conf").write_text("[main]\nexclude=kmod*\n")

    assert yum.Yum(node).holds() == {"kmod", *(["docker-ce"] if is_held else [])}


def test_dependencies_are_not_counted_as_requested(node: Node, tmp_path: Path) -> None:
    """yum records why each package was installed; one without a record was not a dependency."""
    for name, why in (("kmod-20-28.el7-x86_64", "dep"), ("rpm-4.11.3-48.el7_9-x86_64", "user\n")):
        folder = tmp_path / "yumdb" / name[0] / f"{'0a' * 20}-{name}"
        folder.mkdir(parents=True)
        (folder / "reason").write_text(why)
    node.packages["by-hand"] = "1-1"

    assert yum.Yum(node).manual() == {"rpm", "by-hand"}


def test_offered_packages_are_listed(node: Node) -> None:
    """Those that are installed already do not matter."""
    listed = "Available Packages\ndocker-ce.x86_64       3:26.1.4-1.el7       docker\n"
    node.answers["yum -q list available"] = (0, listed)

    assert yum.Yum(node).offered(["docker-ce", "pigz"]) == ["docker-ce"]


def test_module_streams_are_refused(packages: ModuleType) -> None:
    """yum has none."""
    assert run(packages, packages=["a"], streams=["nvidia-driver:580-open"])["reason"] == "packages.stream"


def test_packages_that_others_require_are_not_removed(node: Node) -> None:
    """rpm itself lists what would break."""
    node.answers["rpm -e --test"] = (1, "error: Failed dependencies:\n\tkmod is needed by (installed) rpm-1-1")

    with pytest.raises(base.PackageFailure, match="is needed by") as failure:
        yum.Yum(node).remove(["kmod"], data=False)
    assert failure.value.code == "packages.conflict"
    assert [words[0] for words in node.ran] == ["rpm"]


def test_the_addresses_of_a_node_are_read_without_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """The `ip` of Enterprise Linux 7 has no JSON."""
    module = load("platform", "platform_node")
    answers = {
        "address": "1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever preferred_lft forever\n"
        "2: bond0    inet 10.0.0.5/24 brd 10.0.0.255 scope global bond0\\       valid_lft forever\n"
        "3: tun0@eth0    inet 10.9.0.1 peer 10.9.0.2/30 scope global tun0\\       valid_lft forever\n",
        "route": "default via 10.0.0.1 dev bond0 proto static \n"
        "10.0.0.0/24 dev bond0 proto kernel scope link src 10.0.0.5 \nunreachable 10.4.0.0/16 \n",
    }
    monkeypatch.setattr(Node, "run_command", lambda _self, words: (0, answers[words[3]], ""))

    assert json.loads(json.dumps(module.network(Node()))) == {
        "addresses": [
            {"interface": "bond0", "address": "10.0.0.5", "prefix": 24},
            {"interface": "tun0", "address": "10.9.0.1", "prefix": 30},
        ],
        "routes": ["10.0.0.0/24 bond0", "10.4.0.0/16"],
        "default_address": "10.0.0.5",
    }
