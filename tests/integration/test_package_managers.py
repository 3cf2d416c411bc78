"""The contract of package managers: the same promises, and the same test code, for apt and dnf.

Each test runs the module `platform_packages` on a node of each package manager, with a signed repository of small
packages. SIMULATED Enterprise Linux has real dnf and rpm.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision.lab.systems import SYSTEMS
from provision.report.package_remedies import REMEDIES
from tests.support.packages.build import PROGRAMS, Key, Package, Repository, build, new_key
from tests.support.packages.lab import lab_nodes, systems
from tests.support.packages.node import NAME, REPOSITORY, Node, result_of

pytestmark = pytest.mark.long

A, B, C, HOLDER = (Package(f"contract-{name}") for name in ("a", "b", "c", "holder"))
NEWER = "1.0-2"
ONLY_APT = pytest.mark.parametrize("package_node", ["apt"], indirect=True)
ONLY_DNF = pytest.mark.parametrize("package_node", ["dnf"], indirect=True)


@pytest.fixture(scope="module")
def nodes() -> Iterator[dict[str, Node]]:
    """A node of each package manager."""
    for manager in systems():
        missing = [program for program in PROGRAMS[manager] if shutil.which(program) is None]
        if missing:
            pytest.skip(f"{', '.join(missing)}: not installed (apt-get install apt-utils gnupg rpm createrepo-c)")
    with lab_nodes() as made:
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of keys, packages and repositories."""
    place = tmp_path_factory.mktemp("packages")
    (place / "cache").mkdir()
    return place


@pytest.fixture(scope="module")
def keys(folder: Path) -> tuple[Key, Key]:
    """The key of the repository, and another one."""
    return new_key(folder), new_key(folder)


@pytest.fixture(params=list(systems()))
def package_node(request: pytest.FixtureRequest, nodes: dict[str, Node]) -> Iterator[Node]:
    """A node without anything of another test."""
    node = nodes[request.param]
    names = [package.name for package in (A, B, C, HOLDER)]
    node.forget(names)
    yield node
    node.forget(names)


@pytest.fixture
def offer(package_node: Node, folder: Path, keys: tuple[Key, Key]) -> Callable[..., None]:
    """Replace the packages of the node's repository; its files are written as the role writes them."""

    def call(*packages: Package, key: Key = keys[0], trusted: Key | None = None, modules: str = "") -> None:
        repository = Repository(packages, key, modules)
        made = build(repository, package_node.manager, folder / package_node.manager, folder / "cache")
        package_node.publish(made)
        package_node.configure((trusted or key).public, repo_gpgcheck=True)

    return call


def failed(result: dict[str, Any], reason: str) -> None:
    """Verify that a module failed with a reason code, and with its remedy."""
    assert result.get("failed"), result
    assert (result["reason"], result["remedy"]) == (reason, REMEDIES[reason]), result["msg"]
    assert result["msg"].endswith(")") or ": " in result["msg"], result["msg"]


# Installation


def test_packages_are_installed_with_their_dependencies(package_node: Node, offer: Callable[..., None]) -> None:
    """A second run changes nothing, and check mode neither."""
    offer(replace(A, requires=("contract-b",)), B)

    first, second = package_node.install(A.name), package_node.install(A.name)

    assert (first.get("changed"), first.get("installed")) == (True, [A.name]), first
    assert (second.get("changed"), second.get("installed")) == (False, []), second
    assert (package_node.version(A.name), package_node.version(B.name)) == ("1.0-1", "1.0-1")


def test_optional_packages_are_installed_if_they_are_offered(package_node: Node, offer: Callable[..., None]) -> None:
    """One that no repository has is no failure."""
    offer(A, B)

    result = package_node.install(A.name, optional=[B.name, "contract-absent"])

    assert result.get("installed") == [A.name, B.name], result


@ONLY_APT
@pytest.mark.parametrize("version", ["1.0-1", "2.0-1"], ids=["older", "newer"])
def test_an_exact_version_replaces_another_one(package_node: Node, offer: Callable[..., None], version: str) -> None:
    """Older or newer, and without a change of other packages; a version that no repository has is missing."""
    offer(*(replace(A, version=one) for one in ("1.0-1", NEWER, "2.0-1")), B)
    first = package_node.install(A.name, B.name, versions={A.name: NEWER})
    second = package_node.install(A.name, B.name, outdated=[A.name], versions={A.name: version})
    absent = package_node.install(A.name, B.name, outdated=[A.name], versions={A.name: "3.0-1"})

    assert first.get("installed") == [A.name, B.name], first
    assert second.get("installed") == [A.name], second
    failed(absent, "packages.missing")
    assert package_node.version(A.name) == version


@ONLY_APT
def test_an_exact_version_releases_no_hold(package_node: Node, offer: Callable[..., None]) -> None:
    """An operator's hold counts more than a lock."""
    offer(A, replace(A, version=NEWER))
    package_node.install(A.name, versions={A.name: "1.0-1"})
    package_node.hold(A.name)
    result = package_node.install(A.name, outdated=[A.name], versions={A.name: NEWER})

    failed(result, "packages.held")
    assert package_node.version(A.name) == "1.0-1"
    assert A.name in package_node.holds()


def test_a_new_package_in_a_repository_is_installed(package_node: Node, offer: Callable[..., None]) -> None:
    """Although the package lists are recent enough not to be fetched again."""
    offer(A)
    package_node.install(A.name)
    offer(A, B)
    package_node.ok(f"touch -d '2 minutes ago' {_repository_file(package_node)}")

    result = package_node.install(B.name)

    assert result.get("installed") == [B.name], result


def test_a_missing_package_is_reported_by_name(package_node: Node, offer: Callable[..., None]) -> None:
    """Nothing is installed."""
    offer(A)

    result = package_node.install(A.name, "contract-absent")

    failed(result, "packages.missing")
    assert "contract-absent" in result["msg"]
    assert package_node.version(A.name) == ""


def test_packages_that_conflict_are_reported(package_node: Node, offer: Callable[..., None]) -> None:
    """Nothing is installed or removed."""
    offer(A, replace(B, conflicts=(A.name,)))
    package_node.install(A.name)

    failed(package_node.install(B.name, C.name), "packages.missing")
    failed(package_node.install(A.name, B.name, outdated=[A.name]), "packages.conflict")
    assert package_node.version(A.name) == "1.0-1"


# Locks


def test_a_lock_of_the_package_manager_is_named(package_node: Node, offer: Callable[..., None]) -> None:
    """After the timeout: the process, its program and its account."""
    offer(A, HOLDER)
    package_node.install("contract-absent")  # fetches the package lists
    with package_node.stopped_at(HOLDER.name, "after") as place:
        package_node.start_shell(f"{_installs(package_node)} {HOLDER.name}")
        package_node.wait_for(place)
        result = package_node.install(A.name, lock_timeout=2)

    failed(result, "packages.locked")
    assert "(waited 2 seconds)" in result["msg"]
    assert any(f"({program} of root)" in result["msg"] for program in ("apt-get", "dpkg", "dnf")), result["msg"]


def test_a_released_lock_is_waited_for(package_node: Node, offer: Callable[..., None]) -> None:
    """The packages are installed as soon as the other transaction has ended."""
    offer(A, HOLDER)
    package_node.install("contract-absent")
    with package_node.stopped_at(HOLDER.name, "after") as place:
        package_node.start_shell(f"{_installs(package_node)} {HOLDER.name}")
        package_node.wait_for(place)
        waiting = package_node.start("platform_packages", packages=[A.name])
        package_node.wait_for_retries()
    result = result_of(waiting)

    assert result.get("installed") == [A.name], result
    assert result["waited_for"]
    assert package_node.version(HOLDER.name) == "1.0-1"


def test_a_lock_of_dpkg_or_rpm_is_named(package_node: Node, offer: Callable[..., None]) -> None:
    """An operator installs a file."""
    offer(A, HOLDER)
    program = "dpkg" if package_node.manager == "apt" else "rpm"
    with package_node.stopped_at(HOLDER.name, "after") as place:
        package_node.start_shell(f"{program} -i {REPOSITORY}/{HOLDER.name}*")
        package_node.wait_for(place)
        result = package_node.install(A.name, lock_timeout=2)

    failed(result, "packages.locked")
    assert f"({program} of root)" in result["msg"]


@pytest.mark.parametrize(
    ("program", "title"), [("unattended-upgrade", "unattended-upgrades"), ("packagekitd", "PackageKit")]
)
def test_a_lock_of_a_service_has_the_name_of_the_service(
    package_node: Node, offer: Callable[..., None], program: str, title: str
) -> None:
    """People do not know which process of unattended-upgrades or PackageKit holds the lock."""
    offer(A, HOLDER)
    install = f"{'dpkg' if package_node.manager == 'apt' else 'rpm'} -i {REPOSITORY}/{HOLDER.name}*"
    package_node.put(f"/usr/local/sbin/{program}", f"#!/bin/sh\n{install}\n:\n", "0755")
    with package_node.stopped_at(HOLDER.name, "after") as place:
        package_node.start_shell(f"/usr/local/sbin/{program}")
        package_node.wait_for(place)
        result = package_node.install(A.name, lock_timeout=2)
    package_node.ok(f"rm /usr/local/sbin/{program}")

    failed(result, "packages.locked")
    assert f"locked by {title} (process " in result["msg"]


# Interruptions


@pytest.mark.parametrize("module", [False, True], ids=["manager", "everything"])
@pytest.mark.parametrize(
    ("package", "point"),
    [(A, "before"), (A, "after"), (B, "before"), (B, "after")],
    ids=["before-first", "after-first", "before-last", "after-last"],
)
def test_an_interrupted_installation_is_completed(
    package_node: Node,
    offer: Callable[..., None],
    package: Package,
    point: str,
    module: bool,  # noqa: FBT001
) -> None:
    """SIGKILL for the package manager, or for everything as in a power cut: the next run does the rest."""
    marked = [replace(one, after=f"echo {one.name} >>/opt/{NAME}/done") for one in (A, B)]
    offer(marked[0], replace(marked[1], requires=(A.name,)))
    package_node.ok(f"mkdir -p /opt/{NAME}")
    _interrupt(package_node, package.name, point, module=module)

    result, again = package_node.install(B.name), package_node.install(B.name)

    assert (result.get("changed"), again.get("changed")) == (True, False), result
    assert (package_node.version(A.name), package_node.version(B.name)) == ("1.0-1", "1.0-1")
    assert {A.name, B.name} <= set(package_node.ok(f"cat /opt/{NAME}/done").split())


def test_an_interrupted_upgrade_is_completed(package_node: Node, offer: Callable[..., None]) -> None:
    """Of the two versions that rpm has then, or of the half configured package, one configured version remains."""
    offer(A)
    package_node.install(A.name)
    offer(replace(A, version=NEWER))
    _interrupt(package_node, A.name, "after", module=True, outdated=[A.name])

    result = package_node.install(A.name)

    assert result["changed"], result
    assert package_node.version(A.name) == NEWER
    assert package_node.facts()["packages"][A.name] == NEWER


def test_a_package_in_a_broken_state_counts_as_not_installed(package_node: Node, offer: Callable[..., None]) -> None:
    """Unpacked and not configured (dpkg), or installed in two versions (rpm); the next run repairs it."""
    offer(A)
    if package_node.manager == "apt":
        package_node.ok(f"dpkg --unpack {REPOSITORY}/{A.name}*.deb")
    else:
        package_node.install(A.name)
        offer(replace(A, version=NEWER))
        package_node.ok(f"rpm -i --force --nodeps --noscripts {REPOSITORY}/{A.name}-{NEWER}*.rpm")
    broken = A.name in package_node.facts()["packages"]

    result = package_node.install(A.name)

    assert (broken, result.get("changed")) == (False, True), result
    assert package_node.facts()["packages"][A.name] == package_node.version(A.name)


# Scripts of packages


def test_a_script_that_fails_is_a_failure_until_it_succeeds(package_node: Node, offer: Callable[..., None]) -> None:
    """dnf exits with 0. Until the script succeeds, the package counts as not installed."""
    offer(replace(A, requires=(B.name,)), replace(B, after=f"test -e /opt/{NAME}/cause"))

    first = package_node.install(A.name)
    between = package_node.facts()["packages"]
    second = package_node.install(A.name)
    package_node.ok(f"mkdir -p /opt/{NAME}; touch /opt/{NAME}/cause")
    third, fourth = package_node.install(A.name), package_node.install(A.name)

    failed(first, "packages.scriptlet")
    failed(second, "packages.scriptlet")
    assert B.name in first["msg"]
    assert {A.name, B.name}.isdisjoint(between)
    assert (third.get("changed"), fourth.get("changed")) == (True, False), third


def test_a_script_that_fails_before_the_installation_is_a_failure(
    package_node: Node, offer: Callable[..., None]
) -> None:
    """The package is not installed."""
    offer(replace(A, before="exit 3"))

    failed(package_node.install(A.name), "packages.scriptlet")
    assert A.name not in package_node.facts()["packages"]


# Signatures


def test_a_repository_of_another_key_is_refused(
    package_node: Node, offer: Callable[..., None], keys: tuple[Key, Key]
) -> None:
    """Nothing of it is installed."""
    offer(A, key=keys[1], trusted=keys[0])

    failed(package_node.install(A.name), "packages.signature")
    assert package_node.version(A.name) == ""


def test_a_changed_index_is_refused(package_node: Node, offer: Callable[..., None]) -> None:
    """Its signature does not match."""
    offer(A)
    index = "InRelease" if package_node.manager == "apt" else "repodata/repomd.xml"
    package_node.ok(
        f"sed -i 's/[Oo]rigin: contract/Origin: changed/; s/<revision>[0-9]*/<revision>1/' {REPOSITORY}/{index}"
    )

    failed(package_node.install(A.name), "packages.signature")


def test_a_package_that_was_replaced_is_refused(
    package_node: Node, offer: Callable[..., None], folder: Path, keys: tuple[Key, Key]
) -> None:
    """The index, which is signed, has another hash."""
    offer(A)
    other = build(
        Repository((replace(A, after="true # other"),), keys[1]), package_node.manager, folder / "x", folder / "cache"
    )
    [file] = [path for path in other.glob(f"{A.name}*") if path.is_file()]
    package_node.put(f"{REPOSITORY}/{file.name}", file.read_bytes())

    result = package_node.install(A.name)

    failed(result, "packages.signature")
    assert package_node.version(A.name) == ""


def test_an_unsigned_package_is_refused(package_node: Node, offer: Callable[..., None], keys: tuple[Key, Key]) -> None:
    """With dnf's gpgcheck alone, the packages are verified; apt's index must be signed."""
    offer(replace(A, signed=False))
    if package_node.manager == "apt":
        package_node.ok(f"rm {REPOSITORY}/InRelease")
    else:
        package_node.configure(keys[0].public)

    failed(package_node.install(A.name), "packages.signature")


def test_the_signature_of_the_index_is_enough_for_dnf(
    package_node: Node, offer: Callable[..., None], keys: tuple[Key, Key]
) -> None:
    """NVIDIA signs the index alone (gpgcheck: false, repo_gpgcheck: true); apt verifies nothing else anyway."""
    offer(replace(A, signed=False))
    package_node.configure(keys[0].public, gpgcheck=False, repo_gpgcheck=True)

    assert package_node.install(A.name).get("changed")


def test_a_replaced_key_is_not_trusted_any_more(
    package_node: Node, offer: Callable[..., None], keys: tuple[Key, Key]
) -> None:
    """The new key of the inventory is used, and what the old one signs is refused."""
    old, new = keys
    offer(A, key=old)
    first = package_node.install(A.name)
    offer(A, B, key=new)
    second = package_node.install(B.name)
    offer(A, B, C, key=old, trusted=new)
    package_node.ok("rm -rf /var/cache/dnf/*")
    third = package_node.install(C.name)

    assert first.get("changed"), first
    assert second.get("changed"), second
    failed(third, "packages.signature")
    if package_node.manager == "dnf":
        assert len(package_node.ok("rpm -q gpg-pubkey").split()) == 1


# Versions and holds


def test_a_downgraded_package_is_detected_and_upgraded(package_node: Node, offer: Callable[..., None]) -> None:
    """Older than in a receipt, by the order of the package manager: 10 is newer than 9."""
    offer(replace(A, version="1.9-1"))
    package_node.install(A.name)
    _receipt(package_node, {A.name: "1.10-1"})
    downgraded = package_node.facts()["downgraded"]
    offer(replace(A, version="1.10-1"))

    result = package_node.install(A.name, outdated=downgraded)

    assert (downgraded, result.get("changed")) == ([A.name], True)
    assert package_node.version(A.name) == "1.10-1"
    assert package_node.facts()["downgraded"] == []


def test_a_held_package_is_not_downgraded_and_stays(package_node: Node, offer: Callable[..., None]) -> None:
    """The hold is read and never released, also if another package requires a newer version."""
    if package_node.manager == "dnf" and "dnf-plugins-core" not in SYSTEMS[systems()["dnf"]].packages:
        pytest.skip("the lab's nodes of this system have no plugin versionlock (dnf-plugins-core)")
    offer(A)
    package_node.install(A.name)
    package_node.hold(A.name)
    _receipt(package_node, {A.name: NEWER})
    before, downgraded = package_node.holds(), package_node.facts()["downgraded"]
    offer(replace(A, version=NEWER), replace(B, requires=(f"{A.name} = {NEWER}",)))

    result = package_node.install(B.name)

    assert downgraded == []
    failed(result, "packages.held")
    assert (package_node.holds(), package_node.version(A.name), package_node.version(B.name)) == (before, "1.0-1", "")


def test_versions_have_the_same_format_everywhere(package_node: Node, offer: Callable[..., None]) -> None:
    """EPOCH:VERSION-RELEASE in receipts and facts; without an epoch if there is none."""
    offer(replace(A, version="3:1.0-1"), B)
    package_node.install(A.name, B.name)
    package_node.module("platform_receipt", receipts=[{"role": "contract", "packages": [A.name, B.name]}])
    receipt = json.loads(package_node.ok("cat /var/lib/provision/receipts/contract.json"))

    assert receipt["packages"] == {A.name: "3:1.0-1", B.name: "1.0-1"}
    assert package_node.facts()["packages"].items() >= receipt["packages"].items()


# Disk and network


def test_a_full_disk_is_reported(package_node: Node, offer: Callable[..., None]) -> None:
    """With the file system that has no space, and nothing is half installed afterwards."""
    offer(replace(A, large=f"/opt/{NAME}/large"))
    package_node.ok(f"mkdir -p /opt/{NAME} && mount -t tmpfs -o size=1m none /opt/{NAME}")

    failed(package_node.install(A.name), "packages.disk_full")
    package_node.ok(f"umount /opt/{NAME}")
    assert package_node.install(A.name).get("changed")


def test_a_mirror_that_does_not_answer_is_reported(
    package_node: Node, offer: Callable[..., None], keys: tuple[Key, Key]
) -> None:
    """In less time than the package manager itself takes."""
    offer(A)
    package_node.configure(keys[0].public, uri="http://127.0.0.1:9/repository")

    failed(package_node.install(A.name), "packages.unreachable")


def test_an_offline_mirror_is_enough(package_node: Node, offer: Callable[..., None]) -> None:
    """A folder of the node: nothing is fetched over the network."""
    offer(A)

    assert package_node.install(A.name, http_proxy="http://127.0.0.1:9").get("changed")


PASSWORD = "correct-horse-battery"


def test_packages_come_through_a_proxy_whose_password_leaves_no_traces(
    package_node: Node, offer: Callable[..., None], keys: tuple[Key, Key]
) -> None:
    """Neither in logs and caches nor in the result; a wrong password is reported without it."""
    offer(A, B)
    package_node.configure(keys[0].public, uri="http://mirror.invalid/repository")
    with package_node.server("proxy", PASSWORD) as port:
        good = package_node.install(A.name, http_proxy=f"http://me:{PASSWORD}@127.0.0.1:{port}")
        bad = package_node.install(
            B.name, http_proxy=f"http://me:{PASSWORD}-wrong@127.0.0.1:{port}", cache_valid_time=0
        )
        seen = package_node.ok("cat /run/contract-server.log")

    assert good.get("changed"), good
    assert "mirror.invalid" in seen
    failed(bad, "packages.unreachable")
    assert PASSWORD not in json.dumps([good, bad])
    assert _traces(package_node) == ""


def test_the_login_of_a_repository_is_in_one_private_file(
    package_node: Node, offer: Callable[..., None], keys: tuple[Key, Key]
) -> None:
    """Only root can read it, and no log or cache has the password."""
    offer(A)
    with package_node.server("login", PASSWORD) as port:
        package_node.configure(keys[0].public, uri=f"http://me:{PASSWORD}@127.0.0.1:{port}/")
        result = package_node.install(A.name)

    assert result.get("changed"), result
    [path] = _traces(package_node).split()
    assert path.startswith(("/etc/apt/auth.conf.d/", "/etc/yum.repos.d/"))
    assert package_node.ok(f"stat -c '%a %U' {path}").split() == ["600", "root"]


# Reset


def test_a_reset_removes_what_the_roles_installed(package_node: Node, offer: Callable[..., None]) -> None:
    """With dependencies, configuration files and keys; packages that others require stay."""
    etc = f"/etc/{NAME}/b.conf"
    offer(replace(A, requires=(B.name,)), replace(B, configuration=etc), C, replace(HOLDER, requires=(C.name,)))
    package_node.install(A.name, C.name)
    package_node.ok(f"{_installs(package_node)} {HOLDER.name}")

    result = package_node.module("platform_reset", disruptive=True)

    assert not result.get("failed"), result
    assert [package_node.version(one.name) for one in (A, B, C, HOLDER)] == ["", "", "1.0-1", "1.0-1"]
    assert f"leave the package {C.name}: {HOLDER.name} requires it" in result["left"]
    assert package_node.shell(f"ls -A /etc/{NAME}").out.count("b.conf") == 0
    assert package_node.shell("ls /var/lib/provision/origins").code != 0


def test_a_reset_preserves_edited_configuration_files(package_node: Node, offer: Callable[..., None]) -> None:
    """apt removes them, as its users expect of a purge; rpm saves them, and the result names the file."""
    etc = f"/etc/{NAME}/a.conf"
    offer(replace(A, configuration=etc))
    package_node.install(A.name)
    package_node.ok(f"echo edited >>{etc}; touch -d '+1 minute' {etc}")

    result = package_node.module("platform_reset", disruptive=True)

    assert not result.get("failed"), result
    assert package_node.version(A.name) == ""
    if package_node.manager == "dnf":
        assert f"leave {etc}.rpmsave: it was edited since it was installed" in result["left"]
        assert "edited" in package_node.ok(f"cat {etc}.rpmsave")


# Module streams

MODULES = """---
document: modulemd
version: 2
data:
  name: contract
  stream: "{stream}"
  version: {number}
  context: "00000000"
  arch: noarch
  summary: streams of a test
  description: streams of a test
  license: {{module: [MIT]}}
  artifacts: {{rpms: ["contract-a-0:{version}.noarch"]}}
...
"""


@ONLY_DNF
def test_a_module_stream_is_enabled_and_never_switched(package_node: Node, offer: Callable[..., None]) -> None:
    """Packages come from the stream of the inventory; another stream of the operator stays enabled."""
    streams = [("old", "1.0-1"), ("new", "2.0-1")]
    modules = "".join(MODULES.format(stream=name, number=1, version=version) for name, version in streams)
    offer(A, replace(A, version="2.0-1"), B, modules=modules)

    first = package_node.install(A.name, streams=["contract:old"])
    enabled = package_node.ok("cat /etc/dnf/modules.d/contract.module")
    other = package_node.install(B.name, streams=["contract:new"])

    assert first.get("changed"), first
    assert (package_node.version(A.name), "stream=old" in enabled) == ("1.0-1", True)
    failed(other, "packages.stream")
    assert package_node.ok("cat /etc/dnf/modules.d/contract.module") == enabled


# Helpers


def _installs(node: Node) -> str:
    return "apt-get -y install" if node.manager == "apt" else "dnf -y install"


def _repository_file(node: Node) -> str:
    return "/etc/apt/sources.list.d/*" if node.manager == "apt" else "/etc/yum.repos.d/*"


def _interrupt(node: Node, package: str, point: str, *, module: bool, **arguments: Any) -> None:
    """Kill an installation of A and B while a script of a package runs."""
    names = [A.name] if arguments else [B.name]
    with node.stopped_at(package, point) as place:
        process = node.start("platform_packages", packages=names, **arguments)
        node.wait_for(place)
        node.kill(module=module)
    assert result_of(process).get("failed")


def _receipt(node: Node, packages: dict[str, str]) -> None:
    """Write a receipt with versions of packages."""
    node.put("/var/lib/provision/receipts/contract.json", json.dumps({"role": "contract", "packages": packages}))


def _traces(node: Node) -> str:
    """Return the files with the password, except those of this test's server."""
    data = "/var/cache/apt /var/cache/dnf /var/lib/apt /var/lib/dpkg /var/lib/dnf /var/lib/rpm /var/lib/provision"
    folders = f"/etc /var/log /run/provision {data}"
    return node.shell(f"grep -rls {PASSWORD} {folders} 2>/dev/null").out
