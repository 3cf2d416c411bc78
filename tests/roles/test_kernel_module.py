"""The module that installs a kernel beside the running one. Packages, DKMS and boot loader are stand-ins."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.kernel_machines import ENTRIES, NEW, OLD, Machine, kernel_node
from tests.support.modules import load, run

IMAGE, HEADERS = f"linux-image-{NEW}", f"linux-headers-{NEW}"
REQUEST = {"release": NEW, "packages": [IMAGE], "headers": [HEADERS]}


class Node(Machine):
    """A node with packages and a module of DKMS."""

    def __init__(self, root):
        super().__init__(root)
        self.module, self.packages, self.modules = load("kernel", "kernel"), set(), {OLD: {"nvidia/550"}}
        self.builds, self.image = True, "kernel"
        self.configure()

    def configure(self, settings='"${saved_entry}" panic=30'):
        path = self.root / "boot/grub/grub.cfg"
        path.write_text(f"{path.read_text()}\n# {settings}\n")

    def install(self, names):
        self.packages |= set(names)
        if IMAGE in names:
            for path in (f"boot/vmlinuz-{NEW}", f"boot/initrd.img-{NEW}", f"lib/modules/{NEW}/modules.dep"):
                (self.root / path).parent.mkdir(parents=True, exist_ok=True)
                (self.root / path).write_text(self.image)

    def missing_modules(self, release, wanted):
        if self.builds and HEADERS in self.packages:
            self.modules[release] = set(wanted)
        return sorted(set(wanted) - self.modules.get(release, set()))

    def rehearse(self, _manager, _headers, release, wanted):
        answer = {} if self.builds else self.module.not_built(release, sorted(wanted), "Nothing was installed.")
        return SimpleNamespace(result=lambda: answer)


@pytest.fixture
def node(tmp_path, monkeypatch):
    made = Node(tmp_path)
    manager = SimpleNamespace(
        missing=lambda names: [name for name in names if name not in made.packages],
        refresh=lambda: None,
        install=made.install,
    )
    for name, value in {
        "Loader": lambda: kernel_node.Loader(str(tmp_path), made.run),
        "Upgrade": lambda: made.upgrade,
        "package_manager": lambda *_args, **_options: manager,
        "dkms_modules": lambda release: made.modules.get(release, set()),
        "missing_modules": made.missing_modules,
        "Rehearsal": made.rehearse,
        "Refused": kernel_node.Refused,
    }.items():
        monkeypatch.setattr(made.module, name, value)
    return made


def test_a_second_run_changes_nothing(node):
    """The first one keeps the running kernel as the default."""
    first, second = run(node.module, **REQUEST), run(node.module, **REQUEST)

    assert first["changes"] == ["default", HEADERS, IMAGE]
    assert node.environment == {"saved_entry": ENTRIES[OLD]}
    assert (second["changed"], second["changes"]) == (False, [])


@pytest.mark.parametrize("rehearse", [True, False])
def test_a_kernel_is_refused_whose_modules_cannot_be_built(node, *, rehearse):
    """With a rehearsal, before anything is installed; the message says what is installed."""
    node.builds = False
    result = run(node.module, **REQUEST, rehearse=rehearse)

    assert result["reason"] == "kernel.module.not_built"
    assert node.packages == (set() if rehearse else {IMAGE, HEADERS})
    assert ("Nothing was installed" in result["msg"]) is rehearse


def test_a_kernel_without_initial_ram_file_system_is_refused(node):
    """For example after the disk was full."""
    node.image = ""
    assert run(node.module, **REQUEST)["reason"] == "kernel.incomplete"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda node: setattr(node, "abstraction", "lvm"), "kernel.loader.read_only"),
        (lambda node: (node.root / "boot/grub/grub.cfg").unlink(), "kernel.loader.unknown"),
        (lambda node: (node.root / "boot/grub/grub.cfg").write_text("next_entry"), "kernel.loader.unknown"),
    ],
)
def test_a_boot_loader_that_cannot_return_is_refused_first(node, change, code):
    """Nothing is installed, and the remedy leaves the node to other tools."""
    change(node)
    result = run(node.module, **REQUEST)

    assert (result["reason"], node.packages) == (code, set())
    assert "kernel_release" in result["remedy"]


def test_check_mode_changes_nothing(node):
    """It reports that the kernel would be installed."""
    assert run(node.module, check=True, **REQUEST)["changed"]
    assert (node.packages, node.environment) == (set(), {})


@pytest.mark.parametrize(
    "line",
    [f"nvidia/550.54, {NEW}, x86_64: installed", f"nvidia, 550.54, {NEW}, x86_64: installed (original_module exists)"],
)
def test_both_forms_of_dkms_status_are_read(monkeypatch, line):
    """That of DKMS 3, and the earlier one. Modules that are only built or only added do not count."""
    module = load("kernel", "kernel")
    monkeypatch.setattr(module.shutil, "which", lambda *_words, **_options: "/usr/sbin/dkms")
    more = f"mlnx/5.8, {OLD}, x86_64: installed\nnv/1.0: added\nknem/1.1, {NEW}, x86_64: built\n"
    monkeypatch.setattr(module, "run", lambda _argv: (0, f"{line}\n{more}"))

    assert module.dkms_modules(NEW) == {"nvidia/550.54"}
