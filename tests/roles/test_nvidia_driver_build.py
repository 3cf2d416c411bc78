"""Builds of the driver: their failures, and their way from the node that built them to another one."""

from __future__ import annotations

import base64
import copy
import hashlib
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.plugins.loader import action_loader

from tests.support.expressions import ROLES  # which initializes Ansible's loader of plugins
from tests.support.light_modules import light
from tests.support.modules import load, run

action_loader.add_directory(str(ROLES / "platform/action_plugins"))
module = load("nvidia_driver", "nvidia_driver_build")
carry = load("nvidia_driver", "nvidia_driver_carry", part="action_plugins")
COMPILER = "/build/nvidia/nv-pci.c:223:9: error: too few arguments to function 'pci_resize_resource'\n"
NAME, VERSION, KERNEL, MACHINE = "nvidia-current-open", "535.261.03", "6.1.0-50-amd64", os.uname().machine
MODULES = {"nvidia-current-open.ko": b"\x7fELF nvidia", "nvidia-current-open-uvm.ko": b"\x7fELF uvm"}


class Node:
    """A node whose DKMS is a program of the test, with its own folders."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.monkeypatch = root, monkeypatch
        self.magic = KERNEL
        self.dkms = "exit 0"
        self.calls: list[list[str]] = []
        (root / "dkms" / NAME / VERSION / "source").mkdir(parents=True)
        (root / "modules" / KERNEL).mkdir(parents=True)

    def built(self) -> Path:
        """Return the folder of the modules, with those of a build that is installed."""
        folder = self.folder
        folder.mkdir(parents=True)
        for name, content in MODULES.items():
            (folder / name).write_bytes(content)
        (self.root / "modules" / KERNEL / "modules.dep").touch()
        link = self.root / "dkms" / NAME / f"kernel-{KERNEL}-{MACHINE}"
        link.unlink(missing_ok=True)
        link.symlink_to(f"{VERSION}/{KERNEL}/{MACHINE}")
        return folder

    @property
    def folder(self) -> Path:
        """The folder of the modules in that of DKMS."""
        return self.root / "dkms" / NAME / VERSION / KERNEL / MACHINE / "module"

    def call(self, **parameters: Any) -> dict[str, Any]:
        """Run the module on this node."""
        root, patch = self.root, self.monkeypatch
        programs = root / "bin"
        programs.mkdir(exist_ok=True)
        for name, script in {"dkms": self.dkms, "modinfo": f"echo {self.magic} SMP"}.items():
            (programs / name).write_text(f'#!/bin/sh\necho "$*" >>{root}/calls\n{script}\n')
            (programs / name).chmod(0o755)
        listed = root / "modules" / KERNEL / "modules.dep"
        with patch.context() as context:
            context.setenv("PATH", f"{programs}:{os.environ['PATH']}")
            context.setattr(module, "DKMS", str(root / "dkms"))
            context.setattr(module, "module_file", lambda _kernel: str(listed) if listed.exists() else "")
            context.setattr(module, "requires_signature", (root / "secure").exists)
            isdir = os.path.isdir
            here = f"/lib/modules/{KERNEL}"
            moved = {here: root / "modules" / KERNEL, f"{here}/build": root / "headers"}
            context.setattr(module.os.path, "isdir", lambda path: isdir(moved.get(str(path), path)))
            return run(module, **parameters)

    def commands(self) -> str:
        """Return the command lines of the programs."""
        file = self.root / "calls"
        return file.read_text() if file.exists() else ""


Make = Callable[[str], Node]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return nodes with the sources of the driver in DKMS."""
    return lambda name: Node(tmp_path / name, monkeypatch)


# Building


def build(node: Node) -> dict[str, Any]:
    """Return the outcome of a build."""
    result = node.call(action="build", kernels=[KERNEL])
    assert result["changed"]
    outcome: dict[str, Any] = result["outcome"]
    return outcome


def test_a_build_that_fails_has_the_line_of_the_compiler(make: Make) -> None:
    """And the file with the rest."""
    node = make("a")
    (node.root / "headers").mkdir()
    log = node.root / "dkms" / NAME / VERSION / "build/make.log"
    log.parent.mkdir()
    log.write_text("make[1]: Entering directory\n" + COMPILER + "make: *** Error 2\n")
    outcome = build(node)

    assert not outcome["ok"]
    assert outcome["evidence"] == COMPILER.strip()
    assert str(log) in outcome["remedy"]
    assert f"autoinstall -k {KERNEL}" in node.commands()


def test_missing_headers_are_named(make: Make) -> None:
    """DKMS only skips the kernel."""
    assert build(make("a"))["cause"] == "kernel_headers_missing"


def test_packages_without_modules_for_this_kernel_are_named(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signed modules of another kernel."""
    basic = module.AnsibleModule
    monkeypatch.setattr(basic, "get_bin_path", lambda _self, _name: None)

    assert build(make("a"))["cause"] == "not_installed"


def test_a_kernel_with_modules_is_not_built_again(make: Make) -> None:
    """The second run changes nothing."""
    node = make("a")
    (node.root / "modules" / KERNEL / "modules.dep").touch()

    result = node.call(action="build", kernels=[KERNEL])
    assert (result["changed"], result["outcome"]["ok"], node.commands()) == (False, True, "")


@pytest.fixture
def stack(make: Make, monkeypatch: pytest.MonkeyPatch) -> tuple[Node, Path]:
    """A node with built modules, and the symbols of a vendor's RDMA stack for the same kernel."""
    node = make("a")
    node.built()
    monkeypatch.setattr(module, "STACK", str(node.root / "ofa_kernel"))
    symbols = node.root / "ofa_kernel" / MACHINE / KERNEL / "Module.symvers"
    symbols.parent.mkdir(parents=True)
    symbols.touch()
    os.utime(node.root / "modules" / KERNEL / "modules.dep", (1000, 1000))
    return node, symbols


def test_modules_that_are_older_than_the_rdma_stack_are_built_anew(stack: tuple[Node, Path]) -> None:
    """nvidia-peermem is built against it."""
    node, symbols = stack
    os.utime(symbols, (2000, 2000))

    result = node.call(action="build", kernels=[KERNEL])
    assert (result["changed"], result["outcome"]["ok"]) == (True, True)
    source = f"-m {NAME} -v {VERSION} -k {KERNEL}"
    assert node.commands() == f"build --force {source}\ninstall --force {source}\n"


def test_modules_that_are_newer_than_the_rdma_stack_stay(stack: tuple[Node, Path]) -> None:
    """Also without such a stack."""
    node, symbols = stack
    os.utime(symbols, (500, 500))
    assert not node.call(action="build", kernels=[KERNEL])["changed"]
    symbols.unlink()
    assert not node.call(action="build", kernels=[KERNEL])["changed"]
    assert node.commands() == ""


def test_only_the_installed_driver_is_built_anew(stack: tuple[Node, Path]) -> None:
    """DKMS can have the sources of another one, whose modules would replace those of the installed driver."""
    node, symbols = stack
    os.utime(symbols, (2000, 2000))
    (node.root / "dkms" / NAME / "550.1" / "source").mkdir(parents=True)

    assert node.call(action="build", kernels=[KERNEL])["changed"]
    assert "550.1" not in node.commands()


def test_modules_that_are_older_than_the_rdma_stack_are_carried_anew(stack: tuple[Node, Path]) -> None:
    """A node with the modules of a build node gets its next build; DKMS replaces an installed build only if forced."""
    node, symbols = stack
    os.utime(symbols, (500, 500))
    [current] = node.call(action="state", kernels=[KERNEL])["builds"]
    os.utime(symbols, (2000, 2000))
    [stale] = node.call(action="state", kernels=[KERNEL])["builds"]

    assert (bool(current["digest"]), stale["digest"]) == (True, "")


def test_a_failed_build_against_the_rdma_stack_is_named(stack: tuple[Node, Path]) -> None:
    """With the log."""
    node, symbols = stack
    os.utime(symbols, (2000, 2000))
    node.dkms = "echo 'Error! Bad return status for module build' >&2; exit 10"
    outcome = build(node)

    assert (outcome["ok"], outcome["cause"]) == (False, "rdma_stack")
    assert "Bad return status" in outcome["evidence"]
    assert "make.log" in outcome["remedy"]


def test_a_reset_removes_the_folders_of_kernels_that_are_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers created them; older folders and a kernel that was installed since then stay."""
    undo = load("platform", "platform_undo_kernel", part="module_utils")
    folders = tmp_path / "modules"
    monkeypatch.setattr(module, "FOLDERS", str(folders))
    monkeypatch.setattr(undo, "KERNELS", str(folders))
    assert undo.kernel_folder_steps() == []
    (folders / "6.1.0-1").mkdir(parents=True)
    run(module, action="record")
    assert undo.kernel_folder_steps() == []

    for name, file in (("6.1.0-2", "modules.dep"), ("6.1.0-3", "vmlinuz"), ("6.1.0-4", "kernel/nvme.ko")):
        path = folders / name / file
        path.parent.mkdir(parents=True)
        path.touch()
    (folders / "6.1.0-2/build").symlink_to("/usr/src")
    steps = undo.kernel_folder_steps()
    for step in [*steps, *steps]:  # the packages of the headers may have removed a folder
        assert step.act() is None
    assert sorted(path.name for path in folders.iterdir()) == ["6.1.0-1", "6.1.0-3", "6.1.0-4"]


# From one node to another


class Plugin(carry.ActionModule):  # type: ignore[misc]
    """The action plugin, which reaches the node of the test."""

    def __init__(self, node: Node, source: str = "builder") -> None:
        self.node = node
        self.forged: Callable[[dict[str, Any]], dict[str, Any]] = lambda answer: answer
        arguments = {"source": source, "kernels": [KERNEL], "certificate": ""}
        self._task = SimpleNamespace(args=arguments, check_mode=False, async_val=False)
        self._connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir=""))

    def _execute_module(self, module_name: str, module_args: dict[str, str], **_: Any) -> dict[str, Any]:
        assert module_name == "platform_light"
        document = light.decoded(module_args["program"])
        assert document["path"].endswith("/nvidia_driver_build.py")
        arguments = document["arguments"]
        self.node.calls.append([arguments["action"]])
        return self.forged(self.node.call(**arguments))

    def on(self, host: str) -> dict[str, Any]:
        """Run the task on a host."""
        result: dict[str, Any] = self.run(task_vars={"inventory_hostname": host})
        return result


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/provision/nvidia-driver"


def installing(node: Node) -> str:
    """Return the script of a DKMS whose installation succeeds."""
    return f"case $1 in install) touch {node.root}/modules/{KERNEL}/modules.dep;; esac"


def test_the_modules_of_one_node_are_installed_on_another(make: Make, cache: Path) -> None:
    """The same bytes, by DKMS, from a private file of the controller; the second run sends nothing."""
    builder, other = make("a"), make("b")
    builder.built()
    stored = Plugin(builder).on("builder")
    assert stored["stored"][0]["kernel"] == KERNEL
    assert not stored["changed"]
    [file] = cache.iterdir()
    assert (cache.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)

    other.dkms = installing(other)
    result = Plugin(other).on("other")
    assert result["changed"]
    assert {path.name: path.read_bytes() for path in other.folder.iterdir()} == MODULES
    assert f"install --force -m {NAME} -v {VERSION} -k {KERNEL} -a {MACHINE}" in other.commands()
    assert result["carried"] == stored["stored"]

    for node, host in ((builder, "builder"), (other, "other")):
        node.calls.clear()
        assert not Plugin(node).on(host)["changed"]
        assert node.calls == [["state"]]


def test_an_interrupted_installation_is_completed(make: Make) -> None:
    """Modules that DKMS has not installed yet are no driver of the kernel."""
    builder, other = make("a"), make("b")
    builder.built()
    Plugin(builder).on("builder")
    (other.built() / "nvidia-current-open.ko").write_bytes(b"incomplete")
    (other.root / "modules" / KERNEL / "modules.dep").unlink()
    other.dkms = installing(other)

    assert Plugin(other).on("other")["changed"]
    assert {path.name: path.read_bytes() for path in other.folder.iterdir()} == MODULES


def test_a_build_that_does_not_exist_is_refused_with_the_commands(make: Make) -> None:
    """The operator has to build first, on the named node and for this kernel."""
    with pytest.raises(carry.RefusedError, match=rf"{KERNEL}.*\n?.*--limit builder"):
        Plugin(make("b")).on("other")


def test_the_builds_of_another_node_are_not_used(make: Make) -> None:
    """The operator trusts one node, by its name."""
    builder, other = make("a"), make("b")
    builder.built()
    Plugin(builder, "mallory").on("mallory")

    with pytest.raises(carry.RefusedError, match="builder has built no modules"):
        Plugin(other).on("other")


@pytest.mark.parametrize("damage", ["other", "kernel", "missing", "certificate", "dkms"])
def test_a_node_refuses_modules_that_it_cannot_use(make: Make, damage: str) -> None:
    """And has none afterwards."""
    builder, other = make("a"), make("b")
    builder.built()
    Plugin(builder).on("builder")
    other.dkms = installing(other)
    expected = {
        "other": "not a driver of this node",
        "kernel": "built for kernel 6.1.0-99-amd64, not for",
        "missing": "is not installed",
        "certificate": "the modules are not signed with the key of",
        "dkms": "DKMS cannot install .* Bad return status",
    }[damage]
    if damage == "kernel":
        other.magic = "6.1.0-99-amd64"
    elif damage == "missing":
        (other.root / "modules" / KERNEL).rmdir()
    elif damage == "certificate":
        (other.root / "secure").touch()
    elif damage == "dkms":
        other.dkms = "echo Bad return status >&2; exit 9"
    plugin = Plugin(other)
    if damage == "other":
        state = other.call(action="state", kernels=[KERNEL])
        (other.root / "dkms" / NAME / VERSION / "source").rmdir()
        plugin.forged = lambda answer: state if "builds" in answer else answer

    with pytest.raises(carry.RefusedError, match=expected):
        plugin.on("other")
    assert not other.folder.exists()


def test_a_node_verifies_the_hashes_itself(make: Make) -> None:
    """A name with a folder, another content and other bytes than the hash are refused."""
    node = make("b")
    content = base64.b64encode(zlib.compress(b"x")).decode()
    good = {"name": "nvidia.ko", "sha256": hashlib.sha256(b"x").hexdigest(), "content": content}
    for wrong in ({"name": "../nvidia.ko"}, {"name": "x.ko"}, {"sha256": "0" * 64}):
        answer = node.call(action="install", name=NAME, version=VERSION, kernel=KERNEL, files=[good | wrong])

        assert "not the file that was built" in answer["msg"]
        assert not node.folder.exists()


FORGERIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a name with a folder": lambda answer: answer["files"][0].update(name="../../nvidia.ko"),
    "an option as name": lambda answer: answer["files"][0].update(name="-nvidia.ko"),
    "a shell's characters": lambda answer: answer["files"][0].update(name="nvidia;reboot.ko"),
    "another content": lambda answer: answer["files"][0].update(content=base64.b64encode(zlib.compress(b"x")).decode()),
    "another hash": lambda answer: answer["files"][0].update(sha256="0" * 64),
    "no archive": lambda answer: answer["files"][0].update(content="AAAA"),
    "no text": lambda answer: answer["files"][0].update(content=7),
    "no files": lambda answer: answer.update(files=[]),
    "a missing file": lambda answer: answer["files"].pop(),
    "many files": lambda answer: answer.update(files=answer["files"] * 99),
    "a certificate with a newline": lambda answer: answer.update(certificate="\n"),
}
STATES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another kernel": lambda answer: answer["builds"][0].update(kernel="6.1.0-99-amd64"),
    "an option as kernel": lambda answer: answer["builds"][0].update(kernel="-k"),
    "a folder as version": lambda answer: answer["builds"][0].update(version="../1"),
    "another module": lambda answer: answer["builds"][0].update(name="zfs"),
    "no list": lambda answer: answer.update(builds={"a": 1}),
    "a long list": lambda answer: answer.update(builds=answer["builds"] * 99),
}


@pytest.mark.parametrize("forgery", [*FORGERIES, *STATES])
def test_a_forged_answer_is_not_stored(make: Make, cache: Path, forgery: str) -> None:
    """Names, sizes, hashes and form are those of a build."""
    builder = make("a")
    builder.built()
    plugin = Plugin(builder)

    def forged(answer: dict[str, Any]) -> dict[str, Any]:
        made = copy.deepcopy(answer)
        if ("builds" in made) == (forgery in STATES):
            (STATES | FORGERIES)[forgery](made)
        return made

    plugin.forged = forged
    with pytest.raises(carry.RefusedError):
        plugin.on("builder")
    assert not cache.exists() or list(cache.iterdir()) == []


def test_a_build_that_unpacks_to_more_than_the_limit_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the memory of the controller is used for it."""
    builder = make("a")
    (builder.built() / "nvidia-current-open.ko").write_bytes(bytes(10**6))
    monkeypatch.setattr(carry, "_MOST_BYTES", 10**5)

    with pytest.raises(carry.RefusedError, match="too large"):
        Plugin(builder).on("builder")


def test_the_oldest_builds_leave_the_cache(make: Make, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not grow with every driver and kernel."""
    monkeypatch.setattr(carry, "_MOST_CACHED", 2)
    builder = make("a")
    builder.built()
    for age, name in enumerate(("c", "b", "a")):
        Plugin(builder, name).on(name)
        for file in cache.iterdir():
            os.utime(file, (0, file.stat().st_mtime - 10 * age - 10))

    assert len(list(cache.iterdir())) == 2
    for name, action in (("a", ["state"]), ("b", ["state"]), ("c", ["state", "export"])):
        builder.calls.clear()
        Plugin(builder, name).on(name)
        assert [call for [call] in builder.calls] == action


@pytest.mark.parametrize("damage", ["content", "mode", "link"])
def test_a_cached_file_that_is_not_private_or_damaged_is_not_used(make: Make, cache: Path, damage: str) -> None:
    """It is the same as no build."""
    builder, other = make("a"), make("b")
    builder.built()
    Plugin(builder).on("builder")
    [file] = cache.iterdir()
    if damage == "content":
        checksum = hashlib.sha256(MODULES["nvidia-current-open.ko"]).hexdigest()
        file.write_text(file.read_text().replace(checksum, "0" * 64))
    elif damage == "mode":
        file.chmod(0o666)
    else:
        file.rename(cache / "x")
        file.symlink_to(cache / "x")

    with pytest.raises(carry.RefusedError, match="has built no modules"):
        Plugin(other).on("other")
