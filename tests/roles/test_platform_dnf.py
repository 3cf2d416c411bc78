"""dnf and rpm behind the interface of package managers, by words that dnf 4.5, 4.14 and 4.23 print."""

from __future__ import annotations

import base64
import importlib
import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from provision.report.package_remedies import REMEDIES
from tests.support.modules import load, provide_utils, run

provide_utils()
manager = importlib.import_module("ansible.module_utils.platform_package_manager")
base = importlib.import_module("ansible.module_utils.platform_package_base")
dnf = importlib.import_module("ansible.module_utils.platform_package_dnf")
managed = importlib.import_module("ansible.module_utils.platform_managed")
undo = importlib.import_module("ansible.module_utils.platform_undo_packages")


class Node:
    """A node with rpm and dnf: packages by name, and what each command of dnf prints."""

    def __init__(self) -> None:
        self.no_log_values: set[str] = set()
        self.packages = {"kmod": "28-9.el9", "rpm": "4.16.1.3-29.el9"}
        self.needs: dict[str, str] = {}
        self.answers: dict[str, tuple[int, str]] = {}
        self.effects: dict[str, Callable[[], None]] = {}
        self.ran: list[list[str]] = []

    def run_command(self, words: list[str]) -> tuple[int, str, str]:
        """Answer one program; record the commands of dnf, and of rpm those that change something."""
        if words[:2] == ["rpm", "-ql"]:
            return 0, "", ""
        if words[:2] == ["rpm", "-qa"] and "PROVIDES" in words[3]:
            table = [f"{name}\t{v}\t{name} \t{self.needs.get(name, '')}\f\n" for name, v in self.packages.items()]
            return 0, "".join(table), ""
        if words[:2] in (["rpm", "-q"], ["rpm", "-qa"]):
            rows = [(name, version) for name, versions in self.packages.items() for version in versions.split()]
            if words[1] == "-q":
                rows = [row for row in rows if {row[0], f"{row[0]}-{row[1]}.x86_64"} & set(words[4:])]
            return 0, "".join(f"{name} installed {version} x86_64\n" for name, version in rows), ""
        self.ran.append([word for word in words if not word.startswith("--setopt") and word != "-y"])
        command = " ".join(self.ran[-1])
        code, output = next((answer for start, answer in self.answers.items() if command.startswith(start)), (0, ""))
        for start, effect in self.effects.items():
            if command.startswith(start):
                effect()
        return code, "", output

    def get_bin_path(self, name: str, **_more: Any) -> str:
        """Have every program."""
        return f"/usr/bin/{name}"


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Node:
    """A node whose package manager has its records in a folder of the test."""
    one = Node()
    pending = tmp_path / "state" / "package-transaction.json"
    monkeypatch.setattr(managed, "PENDING", str(pending))
    monkeypatch.setattr(dnf, "PENDING", str(pending))
    monkeypatch.setattr(dnf, "MODULES", str(tmp_path / "*.module"))
    monkeypatch.setattr(dnf, "VERSIONLOCK", (str(tmp_path / "versionlock.conf"), str(tmp_path / "versionlock.list")))
    monkeypatch.setattr(dnf, "CONFIGURATION", str(tmp_path / "dnf.conf"))
    monkeypatch.setattr(dnf, "REPOSITORIES", str(tmp_path / "*.repo"))
    monkeypatch.setattr(dnf, "KEY_FILES", str(tmp_path / "RPM-GPG-KEY-*"))
    monkeypatch.setattr(dnf, "OWN_KEY_FILES", str(tmp_path / "RPM-GPG-KEY-provision-*"), raising=False)
    return one


@pytest.fixture
def packages(node: Node, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that installs packages, on that node."""
    module = load("platform", "platform_packages")
    monkeypatch.setattr(manager, "MANAGERS", {"dnf": "/"})
    monkeypatch.setattr(module.AnsibleModule, "run_command", lambda _self, command, **_more: node.run_command(command))
    return module


def installs(node: Node, **versions: str) -> None:
    """Let `dnf install` succeed and install packages of these versions."""
    node.effects["dnf install"] = lambda: node.packages.update(versions)


# Versions


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("1.0-1", "1.0-2"),
        ("1.9-1", "1.10-1"),
        ("20.10.24-3.el9", "3:19.03-1.el9"),
        ("1.0~rc1-1", "1.0-1"),
        ("1.0-1", "1.0^git1-1"),
        ("1.0^git1-1", "1.0.1-1"),
        ("1.0a-1", "1.0.1-1"),
        ("5.14.0-427.el9", "5.14.0-427.13.1.el9_4"),
        ("1.0-1.el9", "1.0-1.el9_4"),
        ("2.fc-1", "2.1-1"),
    ],
)
def test_versions_are_ordered_as_rpm_orders_them(node: Node, older: str, newer: str) -> None:
    """A tilde is older than nothing, a caret newer; letters are older than numbers."""
    one = dnf.Dnf(node)

    assert one.is_older(older, newer)
    assert not one.is_older(newer, older)


@pytest.mark.parametrize(("one", "other"), [("1.0-1", "1.00-1"), ("1.0-1", "1_0-1"), ("1.0.-1", "1.0-1")])
def test_separators_and_leading_zeros_do_not_order_versions(node: Node, one: str, other: str) -> None:
    """Neither is older."""
    assert not dnf.Dnf(node).is_older(one, other)
    assert not dnf.Dnf(node).is_older(other, one)


def test_versions_have_one_format_and_kernels_the_newest_version(node: Node) -> None:
    """EPOCH:VERSION-RELEASE, without an epoch of 0. Of packages that exist several times the newest counts."""
    node.packages.update(docker="3:20.10.24-3.el9", zero="0:1-1", kernel="5.14.0-427 5.14.0-70 5.14.0-362")

    versions = dnf.Dnf(node).versions()

    assert (versions["docker"], versions["zero"], versions["kernel"]) == ("3:20.10.24-3.el9", "1-1", "5.14.0-427")


def test_each_package_of_a_kernel_is_known_by_its_full_name() -> None:
    """The roles install the headers of one kernel by this name; otherwise they would be missing in every plan."""
    text = "kernel-devel installed 5.14.0-1.el9 x86_64\nkernel-devel installed 0:5.14.0-2.el9 x86_64\n"

    assert managed.rpm_versions(text) == {
        "kernel-devel": "5.14.0-2.el9",
        "kernel-devel-5.14.0-1.el9.x86_64": "5.14.0-1.el9",
        "kernel-devel-5.14.0-2.el9.x86_64": "5.14.0-2.el9",
    }


def test_a_package_with_two_versions_is_not_completely_installed(node: Node) -> None:
    """An interrupted upgrade leaves both; the same package for two architectures is complete."""
    node.packages["half"] = "1-1 2-1"
    rows = managed.rpm_versions("both installed 1-1 x86_64\nboth installed 1-1 i686\n")

    assert "half" not in dnf.Dnf(node).versions()
    assert dnf.Dnf(node).duplicates() == ["half"]
    assert rows == {"both": "1-1"}


@pytest.mark.skipif(shutil.which("rpm") is None, reason="rpm is not installed")
def test_rpm_itself_gives_the_same_order() -> None:
    """For pairs of random versions."""
    choice = random.Random(4).choice  # noqa: S311
    parts = ["1", "2", "10", "01", "a", "b", "rc", ".", "_", "+", "~", "^", "el9"]
    pairs = [("".join(choice(parts) for _ in range(4)), "".join(choice(parts) for _ in range(4))) for _ in range(500)]
    program = "".join(f"print(rpm.vercmp('{one}', '{other}') + 1)" for one, other in pairs)
    done = subprocess.run(["rpm", "--eval", f"%{{lua: {program}}}"], capture_output=True, text=True, check=True)
    keys = [(managed.rpm_order(one), managed.rpm_order(other)) for one, other in pairs]

    assert [int(number) - 1 for number in done.stdout.strip()] == [(a > b) - (a < b) for a, b in keys]


# Holds


@pytest.mark.parametrize(
    ("pattern", "is_held"),
    [
        ("docker-ce-3:20.10.24-3.el9.*", True),
        ("docker-ce", True),
        ("docker-*", True),
        ("docker-ce-20.10.24-3.el9.x86_64", True),
        ("3:docker-ce-20.10.24-3.el9.x86_64", True),
        ("docker-ce-20.10.24", True),
        ("docker-ce-3:20.10.25-3.el9.*", False),
        ("!docker-ce", False),
        ("# docker-ce", False),
        ("docker", False),
    ],
)
def test_locks_of_versions_are_read_in_every_form(node: Node, tmp_path: Path, pattern: str, is_held: bool) -> None:  # noqa: FBT001
    """`dnf versionlock` writes them, and people do; an exclusion locks no installed package."""
    node.packages["docker-ce"] = "3:20.10.24-3.el9"
    (tmp_path / "versionlock.list").write_text(f"# Added lock on Mon\n{pattern}\n")

    assert (dnf.Dnf(node).holds() == {"docker-ce"}) is is_held


def test_a_disabled_plugin_locks_nothing_and_dnf_conf_excludes(node: Node, tmp_path: Path) -> None:
    """Packages that dnf.conf excludes are never changed either."""
    (tmp_path / "versionlock.list").write_text("rpm\n")
    (tmp_path / "versionlock.conf").write_text("[main]\nenabled = 0\n")
    (tmp_path / "dnf.conf").write_text("[main]\nexclude=kmod*, kernel\n  other\n")

    assert dnf.Dnf(node).holds() == {"kmod"}


def test_downgraded_packages_are_detected_except_held_ones(node: Node, tmp_path: Path) -> None:
    """By rpm's order of versions."""
    (tmp_path / "versionlock.list").write_text("rpm-4.16*\n")
    recorded = {"kmod": "28-10.el9", "rpm": "4.17-1.el9", "gone": "1-1"}
    one = dnf.Dnf(node)

    assert one.downgraded(recorded, one.versions()) == ["kmod"]


# Locks


LOCKED = [
    (200, "RPMDB already locked by 481"),
    (200, "Failed to obtain the transaction lock (metadata already locked by 481)."),
    (1, "error: can't create transaction lock on /var/lib/rpm/.rpm.lock (Resource temporarily unavailable)"),
]


@pytest.mark.parametrize("answer", LOCKED)
def test_a_lock_that_is_not_released_is_reported(packages: ModuleType, node: Node, answer: tuple[int, str]) -> None:
    """dnf and rpm hold locks of their own; none of them waits."""
    node.answers["dnf makecache"] = answer

    result = run(packages, packages=["docker-ce"], lock_timeout=0)

    assert "the package database is locked by " in result["msg"]
    assert (result["reason"], result["remedy"]) == ("packages.locked", REMEDIES["packages.locked"])


def test_the_lock_holder_is_read_from_the_pid_files_of_dnf(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of a process that ended holds no lock."""
    live, stale = tmp_path / "metadata_lock.pid", tmp_path / "rpmdb_lock.pid"
    stale.write_text("4194305")
    monkeypatch.setattr(dnf.Dnf, "pid_files", (str(stale), str(live)))
    monkeypatch.setattr(dnf.Dnf, "lock_files", ())
    none = dnf.Dnf(node).lock_holder()
    live.write_text(str(os.getpid()))

    assert none == ""
    assert dnf.Dnf(node).lock_holder().startswith(f"process {os.getpid()} (")


def test_a_released_lock_is_waited_for(packages: ModuleType, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result names the process that held it."""
    installs(node, pigz="2.5-1")
    node.answers["dnf makecache"] = LOCKED[0]
    monkeypatch.setattr(base.time, "sleep", lambda _seconds: node.answers.clear())

    result = run(packages, packages=["pigz"])

    assert result["changed"]
    assert result["waited_for"]


# Transactions


NO_MATCH = "Error: Unable to find a match: docker-ce"
FILTERED = "All matches were filtered out by {} filtering for argument: docker-ce\n" + NO_MATCH
NO_METADATA = "Error: Failed to download metadata for repo 'x': "
FAILURES = [
    (NO_MATCH, "packages.missing"),
    (FILTERED.format("exclude"), "packages.held"),
    (FILTERED.format("modular"), "packages.stream"),
    ("Package docker-ce-1-1.x86_64.rpm is not signed\nError: GPG check FAILED", "packages.signature"),
    (NO_METADATA + "repomd.xml GPG signature verification error: Bad GPG signature", "packages.signature"),
    ("  - Curl error (7): Couldn't connect to server\n" + NO_METADATA + "Cannot download", "packages.unreachable"),
    ("Error: \n Problem: conflicting requests\n  - nothing provides libfoo", "packages.conflict"),
    ("Error: Transaction test error:\n  installing package x needs 12MB more space on the /", "packages.disk_full"),
    ("Error in PREIN scriptlet in rpm package docker-ce\nError: Transaction failed", "packages.scriptlet"),
    ("something odd", "packages.failed"),
]


@pytest.mark.parametrize(("output", "reason"), FAILURES)
def test_the_cause_of_a_failed_transaction_has_a_reason_code(
    packages: ModuleType, node: Node, output: str, reason: str
) -> None:
    """A transaction that changed nothing leaves no record behind."""
    node.answers["dnf install"] = node.answers["dnf --refresh install"] = (1, output)

    result = run(packages, packages=["docker-ce"])

    assert result["msg"].startswith("packages docker-ce: cannot install them (")
    assert (result["reason"], result["remedy"]) == (reason, REMEDIES[reason])
    assert not Path(dnf.PENDING).exists()


def test_stale_lists_are_fetched_again_once(packages: ModuleType, node: Node) -> None:
    """dnf uses lists of two days, which may lack a new package."""
    node.answers["dnf install"] = (1, "Error: Unable to find a match: pigz")
    node.effects["dnf --refresh install"] = lambda: node.packages.update(pigz="2.5-1")

    assert run(packages, packages=["pigz"])["changed"]
    assert [words[1:] for words in node.ran] == [["makecache"], ["install", "pigz"], ["--refresh", "install", "pigz"]]


SCRIPTLETS = [
    "Error in POSTIN scriptlet in rpm package failing",
    "warning: %post(failing-1-1.x86_64) scriptlet failed, exit status 1",
]


@pytest.mark.parametrize("output", SCRIPTLETS)
def test_a_failed_script_fails_the_module_until_it_succeeds(packages: ModuleType, node: Node, output: str) -> None:
    """dnf exits with 0. The package counts as not installed; the next run reinstalls it, which repeats the script."""
    installs(node, failing="1-1", wanted="1-1")
    node.answers["dnf install"] = (0, output)

    first = run(packages, packages=["wanted"])
    pending = dnf.Dnf(node).versions()
    node.ran.clear()
    node.answers.clear()
    second = run(packages, packages=["wanted"])
    reinstalled = [words[2:] for words in node.ran if "reinstall" in words]

    assert (first["reason"], "failing" in first["msg"]) == ("packages.scriptlet", True)
    assert {"wanted", "failing"}.isdisjoint(pending)
    assert (second["changed"], reinstalled) == (True, [["failing"]])
    assert {"wanted", "failing"} <= dnf.Dnf(node).versions().keys()
    assert not run(packages, packages=["wanted"])["changed"]


def test_the_packages_of_an_interrupted_transaction_are_installed_again(packages: ModuleType, node: Node) -> None:
    """A power cut ends the module too: rpm says that the package is installed, but its script may not have run.

    Packages that others upgraded since are not reinstalled.
    """
    Path(dnf.PENDING).parent.mkdir()
    Path(dnf.PENDING).write_text(json.dumps({"packages": ["wanted"], "before": dict(node.packages), "again": []}))
    node.packages.update(wanted="1-1", dependency="1-1", upgraded="2-1")
    node.needs["wanted"] = "dependency"

    result = run(packages, packages=["wanted"])
    commands = [words[1:] for words in node.ran if words[1] != "makecache"]

    assert result["installed"] == ["wanted"]
    assert commands == [["reinstall", "dependency", "wanted"], ["install", "wanted"]]
    assert not Path(dnf.PENDING).exists()


def test_a_dependency_of_a_package_that_was_not_reached_is_installed_again(packages: ModuleType, node: Node) -> None:
    """The interruption was in a script of the dependency: the package that needs it is not there yet."""
    Path(dnf.PENDING).parent.mkdir()
    Path(dnf.PENDING).write_text(json.dumps({"packages": ["wanted"], "before": dict(node.packages), "again": []}))
    node.packages.update(dependency="1-1", upgraded="2-1")
    node.answers["dnf -q repoquery --available --requires"] = (0, "dependency\n")
    installs(node, wanted="1-1")

    run(packages, packages=["wanted"])

    assert reinstalled(node) == [["dependency"]]


def reinstalled(node: Node) -> list[list[str]]:
    """Return the packages of each reinstallation."""
    return [words[2:] for words in node.ran if words[:2] == ["dnf", "reinstall"]]


def test_a_lock_timeout_changes_nothing(packages: ModuleType, node: Node) -> None:
    """What the lock holder upgrades meanwhile is complete: reinstalling docker would restart it."""
    node.packages.update({"docker-ce": "1-1"})
    node.answers["dnf install"] = LOCKED[0]

    first = run(packages, packages=["docker-ce", "pigz"], lock_timeout=0)
    installed = dnf.Dnf(node).versions()
    node.packages.update({"docker-ce": "2-1"})
    node.answers.clear()
    installs(node, pigz="1-1")
    second = run(packages, packages=["docker-ce", "pigz"])

    assert first["reason"] == "packages.locked"
    assert "docker-ce" in installed
    assert (second["installed"], reinstalled(node)) == (["pigz"], [])


def test_a_lock_timeout_preserves_the_record_of_an_earlier_failure(packages: ModuleType, node: Node) -> None:
    """The package whose script failed is reinstalled once the lock is released."""
    installs(node, failing="1-1")
    node.answers["dnf install"] = (0, SCRIPTLETS[0])
    run(packages, packages=["failing"])
    node.answers = {"dnf reinstall": LOCKED[0]}
    run(packages, packages=["failing"], lock_timeout=0)
    node.answers.clear()
    node.ran.clear()

    assert run(packages, packages=["failing"])["changed"]
    assert reinstalled(node) == [["failing"]]


def test_packages_that_were_upgraded_after_a_failed_script_are_not_reinstalled(
    packages: ModuleType, node: Node
) -> None:
    """Only the package whose script failed is."""
    installs(node, failing="1-1")
    node.answers["dnf install"] = (0, SCRIPTLETS[0])
    run(packages, packages=["failing"])
    node.packages.update(kmod="29-1", openssh="2-1")
    node.answers.clear()

    run(packages, packages=["failing"])

    assert reinstalled(node) == [["failing"]]


def test_a_failed_transaction_after_changes_of_others_leaves_no_record(packages: ModuleType, node: Node) -> None:
    """dnf waited until another transaction had ended, and then refused ours."""
    node.effects["dnf install"] = lambda: node.packages.update(kmod="29-1")
    node.answers["dnf install"] = (1, "Error: \n Problem: conflicting requests\n  - nothing provides libfoo")

    assert run(packages, packages=["docker-ce"])["reason"] == "packages.conflict"
    assert not Path(dnf.PENDING).exists()


def test_the_record_of_a_killed_transaction_stays(packages: ModuleType, node: Node) -> None:
    """The out-of-memory killer ends dnf in the middle of it."""
    installs(node, wanted="1-1")
    node.answers["dnf install"] = (-9, "")
    run(packages, packages=["wanted"])
    node.answers.clear()

    assert run(packages, packages=["wanted"])["installed"] == ["wanted"]
    assert reinstalled(node) == [["wanted"]]


def test_packages_that_may_have_several_versions_block_nothing(packages: ModuleType, node: Node) -> None:
    """dnf.conf and packages themselves declare them (installonlypkg); dnf knows them."""
    node.packages["vmod"] = "1-1 2-1"
    node.answers["dnf remove --duplicates"] = (1, "Error: No duplicated packages found for removal.")
    installs(node, pigz="1-1")

    result = run(packages, packages=["pigz"])
    node.answers["dnf remove --duplicates"] = (1, "Error: something else")
    refused = run(packages, packages=["other"])

    assert result.get("installed") == ["pigz"]
    assert refused["msg"].startswith("packages vmod: cannot remove their older versions (")


def test_the_headers_of_one_kernel_are_installed(packages: ModuleType, node: Node) -> None:
    """By name, version and architecture: several versions may be installed, and only one fits the kernel."""
    old, new, newest = (f"kernel-devel-5.14.0-{number}.el9.x86_64" for number in (1, 2, 3))
    node.packages["kernel-devel"] = "5.14.0-1.el9"
    node.answers["dnf -q repoquery"] = (0, "kernel-devel offered 0:5.14.0-2.el9 x86_64\nkernel-devel\n")
    node.effects["dnf install"] = lambda: node.packages.update({"kernel-devel": "5.14.0-1.el9 5.14.0-2.el9"})

    first = run(packages, packages=["kmod"], optional=[old, new, newest])
    second = run(packages, packages=["kmod"], optional=[old, new])

    assert (first.get("installed"), second.get("installed")) == ([new], [])


def test_a_script_that_calls_rpm_is_not_taken_for_a_lock(packages: ModuleType, node: Node) -> None:
    """The transaction itself holds the lock, so waiting would not help."""
    output = "  Running scriptlet: odd-1-1.x86_64\nerror: can't create transaction lock on /var/lib/rpm/.rpm.lock\n"
    node.answers["dnf install"] = (1, output + "Error: Transaction failed")

    assert run(packages, packages=["odd"], lock_timeout=0)["reason"] == "packages.failed"


def test_a_disabled_module_is_not_enabled(packages: ModuleType, node: Node, tmp_path: Path) -> None:
    """The message says that it is disabled."""
    (tmp_path / "driver.module").write_text("[driver]\nname=driver\nstream=\nstate=disabled\nprofiles=\n")
    installs(node, wanted="1-1")

    result = run(packages, packages=["wanted"], streams=["driver:580"])

    assert (result.get("reason"), "module driver is disabled" in result.get("msg", "")) == ("packages.stream", True)


def test_a_hold_of_another_package_is_not_the_cause(packages: ModuleType, node: Node, tmp_path: Path) -> None:
    """The name of a held package may be the beginning of another one."""
    node.packages["docker"] = "1-1"
    (tmp_path / "versionlock.list").write_text("docker\n")
    node.answers["dnf install"] = (1, "Error: \n Problem: nothing provides libfoo needed by docker-ce-3:1-1.x86_64")

    assert run(packages, packages=["docker-ce"])["reason"] == "packages.conflict"


def test_both_versions_of_an_interrupted_upgrade_are_repaired(packages: ModuleType, node: Node) -> None:
    """dnf itself says nothing, and exits with 0."""
    node.packages["half"] = "1-1 2-1"
    node.effects["dnf remove --duplicates"] = lambda: node.packages.update(half="2-1")

    result = run(packages, packages=["half"])

    assert result["installed"] == ["half"]
    assert ["dnf", "remove", "--duplicates"] in node.ran


def test_a_package_that_only_provides_the_name_is_refused(packages: ModuleType, node: Node) -> None:
    """Every run would install it again."""
    installs(node, **{"iptables-nft": "1.8-1"})

    result = run(packages, packages=["iptables"])

    assert result["reason"] == "packages.missing"
    assert "dnf installed others that provide them" in result["msg"]


def test_a_stream_is_enabled_and_another_one_is_never_replaced(
    packages: ModuleType, node: Node, tmp_path: Path
) -> None:
    """The message names both."""
    installs(node, driver="580-1")
    run(packages, packages=["driver"], streams=["nvidia-driver:580-open"])
    enabled = [words[1:] for words in node.ran if "module" in words]
    (tmp_path / "nvidia.module").write_text(
        "[nvidia-driver]\nname=nvidia-driver\nstream=590\nstate=enabled\nprofiles=\n"
    )

    refused = run(packages, packages=["other"], streams=["nvidia-driver:580-open"])

    assert enabled == [["module", "enable", "nvidia-driver:580-open"]]
    assert refused["reason"] == "packages.stream"
    assert "the stream 590 is enabled, not 580-open" in refused["msg"]


def test_a_proxy_is_in_the_environment_only(packages: ModuleType, node: Node) -> None:
    """Its password is on no command line, and not in the result."""
    node.answers["dnf install"] = (1, "Error: Curl error (56): hunter2 is wrong")

    result = run(packages, packages=["pigz"], http_proxy="http://me:hunter2@proxy:3128")

    assert "hunter2" not in json.dumps(result)
    assert all("hunter2" not in word for words in node.ran for word in words)


# Repositories and keys


def test_other_repositories_are_those_that_are_enabled(node: Node, tmp_path: Path) -> None:
    """Variables of dnf are replaced, and files of the roles left out."""
    (tmp_path / "docker-ce.repo").write_text(
        "[stable]\nbaseurl=https://d.example/linux/rhel/9/$basearch/stable/\nenabled=1\n"
        "[test]\nbaseurl=https://d.example/test\nenabled=0\n[other]\nname=x\nmetalink=https://m.example\n"
    )
    (tmp_path / "provision-docker.repo").write_text("[x]\nbaseurl=https://own.example\n")

    assert dnf.Dnf(node).sources() == [f"https://d.example/linux/rhel/9/{os.uname().machine}/stable"]


@pytest.mark.parametrize(
    "text", ["text\n[a]\nbaseurl=https://a\n", "[a]\nbaseurl=https://a\nno value\n", "\ufeff[a]\n"]
)
def test_an_invalid_file_of_dnf_is_ignored(node: Node, tmp_path: Path, text: str) -> None:
    """dnf ignores it with a warning; a traceback would end the play."""
    for name in ("odd.repo", "odd.module", "versionlock.conf", "dnf.conf"):
        (tmp_path / name).write_text(text)
    (tmp_path / "other.repo").write_text("[b]\nbaseurl=https://b/$releasever\n")
    node.answers["rpm --eval"] = (0, "")

    assert dnf.Dnf(node).sources() == ["https://b/$releasever"]
    assert dnf.enabled_streams() == {}
    assert dnf.Dnf(node).holds() == set()


def test_a_key_that_no_file_has_any_more_is_not_trusted(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replaced key of a repository would otherwise be trusted for ever. Keys of others stay.

    A file may have several keys. Keys that dnf imported for repositories of others are not recorded.
    """
    blocks = {name: armored(name.encode() * 41 + b"!") for name in ("old", "new", "second", "other")}
    (tmp_path / "RPM-GPG-KEY-provision-site").write_text(blocks["new"] + blocks["second"])
    (tmp_path / "RPM-GPG-KEY-other").write_text(blocks["other"])
    names = {f"gpg-pubkey-{number:08x}-11111111": name for number, name in enumerate(blocks)}
    ran: list[list[str]] = []

    def run_command(_self: Any, words: list[str]) -> tuple[int, str, str]:
        if words[-1] == "gpg-pubkey":
            return 0, "\n".join(names), ""
        if words[-1] in names and "-q" in words:
            return 0, blocks[names[words[-1]]].replace("\n\n", "\nVersion: rpm\n\n"), ""
        ran.append(words)
        return 0, "", ""

    monkeypatch.setattr(Node, "run_command", run_command)

    recorded = dnf.Dnf(node).keys()
    dnf.Dnf(node).remove_stale_keys([*names, "gpg-pubkey-cccccccc-33333333"])

    assert ran == [["rpm", "-e", "--allmatches", "gpg-pubkey-00000000-11111111"]]
    assert recorded == ["gpg-pubkey-00000001-11111111", "gpg-pubkey-00000002-11111111"]


def armored(content: bytes) -> str:
    """Return bytes as OpenPGP armor."""
    text = base64.encodebytes(content).decode()
    return f"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n{text}=abcd\n-----END PGP PUBLIC KEY BLOCK-----\n"


# Reset


def test_a_requirement_of_a_file_or_a_rich_one_preserves_a_package(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package may require a file of ours, or one of several names."""
    table = (
        "ours\t0:1-1\tours ours(x86-64) \trpmlib(X)\f/bin/sh\f\n"
        "runc\t1-1\trunc \t\n"
        "other\t1-1\tother \t/usr/bin/ours\f\n"
        "rich\t1-1\trich \t(crun or runc >= 1)\f\n"
        "gpg-pubkey\t1-1\tgpg \t\n"
    )
    answers = {"-qa": table, "-ql": "/usr/bin/ours\n/usr/share/ours\n"}
    monkeypatch.setattr(Node, "run_command", lambda _self, words: (0, answers[words[1]], ""))
    one = dnf.Dnf(node)

    known = one.table()
    one.add_files(known, ["ours"])
    removable, stay = undo.split({"ours", "runc"}, set(), known)

    assert known.keys() == {"ours", "runc", "other", "rich"}
    assert known["ours"]["version"] == "1-1"
    assert removable == []
    assert stay == {"ours": "other requires it", "runc": "rich requires it"}


def test_saved_configuration_files_are_removed_unless_they_were_edited(node: Node, tmp_path: Path) -> None:
    """rpm saves every configuration file that differs from its package's, and there is no purge.

    An edit is later than the transaction that installed the file; later transactions do not count.
    """
    base_path = tmp_path / "record"
    later = {"base": str(tmp_path / "later"), "managed": {"etc": []}}
    (tmp_path / "later.ours").touch()
    os.utime(tmp_path / "later.ours", (2**33, 2**33))
    paths = [tmp_path / "own.conf", tmp_path / "edited.conf", tmp_path / "existed.conf"]
    (tmp_path / "existed.conf.rpmsave").touch()
    doc = {"base": str(base_path), "managed": {"etc": [str(path) for path in paths]}}
    (tmp_path / "record.ours").touch()
    saved = undo.saved_files(dnf.Dnf(node), [doc, later])
    for name, age in (("own", -10), ("edited", 100)):
        (tmp_path / f"{name}.conf.rpmsave").touch()
        os.utime(tmp_path / f"{name}.conf.rpmsave", ((tmp_path / "record.ours").stat().st_mtime + age,) * 2)

    left = undo.remove_saved(saved)

    assert left == [f"leave {tmp_path}/edited.conf.rpmsave: it was edited since it was installed"]
    assert sorted(path.name for path in tmp_path.glob("*.rpmsave")) == ["edited.conf.rpmsave", "existed.conf.rpmsave"]


@pytest.mark.parametrize(
    ("requested", "name"),
    [
        ("kernel-devel-5.14.0-427.13.1.el9_4.x86_64", "kernel-devel"),
        ("kernel-devel", "kernel-devel"),
        ("docker-ce-cli", "docker-ce-cli"),
        ("datacenter-gpu-manager-4-cuda13", "datacenter-gpu-manager-4-cuda13"),
    ],
)
def test_a_package_that_was_requested_with_its_version_is_the_roles(node: Node, requested: str, name: str) -> None:
    """dnf lists what the roles requested as requested by a person, by its plain name; a reset removes it."""
    assert dnf.Dnf(node).plain_name(requested) == name


def test_a_package_with_several_versions_is_removed(node: Node) -> None:
    """rpm refuses a name that has several versions, unless it removes all of them."""
    node.answers["rpm -e --test kernel-devel"] = (1, 'error: "kernel-devel" specifies multiple packages')

    dnf.Dnf(node).remove(["kernel-devel"], data=True)

    assert node.ran[-1] == ["dnf", "remove", "kernel-devel"]


def test_rpm_is_asked_where_dpkg_has_no_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """EPEL has dpkg and apt as well; their database is empty."""
    monkeypatch.setattr(managed, "DPKG_STATUS", str(tmp_path / "status"), raising=False)
    monkeypatch.setattr(managed, "ASK_PACKAGES", (("true", "dpkg"), ("echo", "rpm")))
    titles = []
    for text in ("", "Package: dpkg\n"):
        (tmp_path / "status").write_text(text)
        titles.append(managed.Packages({"bash"}).title)

    assert titles == ["echo", "true"]
