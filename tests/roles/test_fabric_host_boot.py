"""The role fabric_host: arguments of the kernel in the boot menu, and their reset."""

from __future__ import annotations

import importlib
import json
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from provision.commands.fabric_arguments import argument_problem
from tests.support.expressions import Role
from tests.support.modules import load, play_commands, provide_utils, run, undone

provide_utils()
origin = importlib.import_module("ansible.module_utils.platform_origin")
boot = importlib.import_module("ansible.module_utils.platform_boot")
undo = importlib.import_module("ansible.module_utils.platform_undo_kernel")
undo_files = importlib.import_module("ansible.module_utils.platform_undo_files")
MODULES: dict[str, ModuleType] = {}
ORIGINAL = ("root=UUID=0", "ro", "quiet")


def module() -> ModuleType:
    """Return the module, which is loaded once."""
    return MODULES.setdefault("boot", load("fabric_host", "fabric_host_boot"))


class Grub:
    """GRUB of Debian: the settings are shell, the menu has two kernels with recovery entries, and a memory test."""

    def __init__(self, root: Path) -> None:
        self.root, self.ran, self.fails, self.ignores_settings = root, [], False, False
        (root / "boot/grub").mkdir(parents=True)
        (root / "sbin").mkdir()
        self.settings = root / "grub.d/zz-provision-fabric.cfg"
        self.settings.parent.mkdir()
        self._program("grub-mkconfig")
        self.generate()

    def _program(self, name: str) -> None:
        (self.root / "sbin" / name).write_text("")
        (self.root / "sbin" / name).chmod(0o755)

    def generate(self) -> None:
        """Write the menu as grub-mkconfig does."""
        shell = 'GRUB_CMDLINE_LINUX_DEFAULT=quiet; [ ! -e "$1" ] || . "$1"; printf %s "$GRUB_CMDLINE_LINUX_DEFAULT"'
        command = ["sh", "-ec", shell, "sh", "/none" if self.ignores_settings else str(self.settings)]
        words = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        entries = "".join(
            f"menuentry '{kernel}' {{\n\tlinux\t/boot/vmlinuz-{kernel} root=UUID=0 ro  {words}\n}}\n"
            f"menuentry '{kernel} (recovery mode)' {{\n\tlinux\t/boot/vmlinuz-{kernel} root=UUID=0 ro single \n}}\n"
            for kernel in ("6.1.0-49-amd64", "6.1.0-48-amd64")
        )
        (self.root / "boot/grub/grub.cfg").write_text(entries + "\tlinux /boot/memtest86+x64.bin\n")

    def run_command(self, command: list[str]) -> tuple[int, str, str]:
        """Do what grub-mkconfig does."""
        assert command == ["grub-mkconfig", "-o", str(self.root / "boot/grub/grub.cfg")]
        self.ran.append(command)
        if self.fails:
            return 1, "", "syntax error in 41_custom"
        self.generate()
        return 0, "", ""

    @property
    def arguments(self) -> list[frozenset[str]]:
        """The arguments of each kernel."""
        return list(boot.menu_arguments((self.root / "boot/grub/grub.cfg").read_text()))


class Grubby(Grub):
    """GRUB of Enterprise Linux: grubby replaces the value of an argument with the same name."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._program("grubby")
        self.options = {name: [*ORIGINAL, "iommu=strict"] for name in ("kernel-1", "kernel-0-rescue")}
        self.breaks = ""

    def run_command(self, command: list[str]) -> tuple[int, str, str]:
        """Do what grubby does."""
        assert command[0] == "grubby"
        if command[1:] == ["--info=ALL"]:
            lines = [f'kernel="/boot/{name}"\nargs="{" ".join(words)}"\n' for name, words in self.options.items()]
            return 0, "".join(lines), ""
        self.ran.append(command)
        given = dict(word.lstrip("-").split("=", 1) for word in command[1:])
        assert given["update-kernel"] == "ALL"
        add, remove = given.get("args", "").split(), given.get("remove-args", "").split()
        keys = {word.partition("=")[0] for word in add}
        for name, words in self.options.items():
            left = [word for word in words if word not in remove and word.partition("=")[0] not in keys]
            self.options[name] = [word for word in [*left, *add] if word != self.breaks]
        return 0, "", ""


def prepared(grub: Grub, monkeypatch: pytest.MonkeyPatch) -> Grub:
    """Let the module see the files of a boot loader."""
    monkeypatch.setattr(boot, "BOOT", str(grub.root / "boot"))
    monkeypatch.setattr(boot, "PROGRAMS", str(grub.root / "sbin"))
    monkeypatch.setattr(boot, "KERNEL_UPGRADE", str(grub.root / "upgrade.json"))
    play_commands(monkeypatch, module().AnsibleModule, grub)
    return grub


@pytest.fixture
def grub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Grub:
    """A node of Debian."""
    return prepared(Grub(tmp_path), monkeypatch)


@pytest.fixture
def grubby(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Grubby:
    """A node of Enterprise Linux."""
    made = prepared(Grubby(tmp_path), monkeypatch)
    assert isinstance(made, Grubby)
    return made


def apply(grub: Grub, *arguments: str, check: bool = False) -> dict[str, Any]:
    """Run the module."""
    return run(module(), check=check, arguments=list(arguments), settings_path=str(grub.settings))


def reset(grub: Grub) -> tuple[list[str], list[str]]:
    """Undo the arguments; return the steps and what is left."""
    left: list[str] = []
    steps = [step for step in map(undo_files.file_step, origin.records("files")) if step]
    steps += undo.argument_steps(grub, left)
    return undone(steps), left


def test_every_kernel_but_no_recovery_entry_gets_the_arguments(grub: Grub) -> None:
    """Check mode changes nothing, and a second run neither. A damaged argument can be left by the recovery entry."""
    planned = apply(grub, "iommu=pt", "pci=realloc", check=True)
    assert (planned["changed"], grub.settings.exists(), grub.ran) == (True, False, [])
    assert planned["diff"][0]["after"] == "iommu=pt\npci=realloc\n"

    done = apply(grub, "iommu=pt", "pci=realloc")

    assert (done["changed"], done["files"]) == (True, [str(grub.settings)])
    assert grub.arguments == [frozenset({*ORIGINAL, "iommu=pt", "pci=realloc"})] * 2
    menu = (grub.root / "boot/grub/grub.cfg").read_text()
    assert menu.count("iommu=pt") == 2
    again = apply(grub, "iommu=pt", "pci=realloc")
    assert (again["changed"], again["files"], len(grub.ran)) == (False, [str(grub.settings)], 1)


def test_arguments_that_are_removed_leave_the_menu(grub: Grub) -> None:
    """One after the other; without any, the file is removed as well."""
    apply(grub, "iommu=pt", "pci=realloc")

    assert apply(grub, "iommu=pt")["changed"]
    assert grub.arguments[0] == frozenset({*ORIGINAL, "iommu=pt"})
    assert apply(grub)["changed"]
    assert grub.arguments[0] == frozenset(ORIGINAL)
    assert (grub.settings.exists(), origin.records("kernel_arguments")) == (False, [])
    assert not apply(grub)["changed"]


def test_a_menu_that_was_not_written_is_written_by_the_next_run(grub: Grub) -> None:
    """The power failed between the file and the menu, or a kernel was installed by other means."""
    apply(grub, "iommu=pt")
    grub.settings.rename(grub.settings.with_suffix(".away"))
    grub.generate()
    grub.settings.with_suffix(".away").rename(grub.settings)

    assert apply(grub, "iommu=pt")["changed"]
    assert all("iommu=pt" in words for words in grub.arguments)


@pytest.mark.parametrize("failure", ["fails", "ignores_settings"])
def test_a_menu_without_the_arguments_is_an_error(grub: Grub, failure: str) -> None:
    """The file is removed again, so that a later kernel does not get them unexpectedly."""
    setattr(grub, failure, True)

    done = apply(grub, "iommu=pt")

    expected = "syntax error in 41_custom" if failure == "fails" else "has not written iommu=pt into every entry"
    assert expected in done["msg"]
    assert (grub.settings.exists(), origin.records("kernel_arguments")) == (False, [])


def test_a_reset_removes_the_settings(grub: Grub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The running kernel keeps the arguments until the next boot, which the reset reports."""
    apply(grub, "iommu=pt")
    monkeypatch.setattr(undo.links, "words", lambda _path: "root=UUID=0 ro iommu=pt")

    steps, left = reset(grub)

    assert steps == [f"remove {grub.settings}"]
    assert left == ["the running kernel has iommu=pt until the next boot"]


def test_grubby_adds_the_arguments_and_restores_what_they_replaced(grubby: Grubby) -> None:
    """It changes all entries and the settings for new kernels, so that no file is written."""
    done = apply(grubby, "iommu=pt", "pci=realloc")

    assert (done["changed"], done["files"], grubby.settings.exists()) == (True, [], False)
    assert grubby.ran == [["grubby", "--update-kernel=ALL", "--args=iommu=pt pci=realloc"]]
    assert not apply(grubby, "iommu=pt", "pci=realloc")["changed"]

    apply(grubby, "iommu=off")
    assert {*grubby.options["kernel-1"]} == {*ORIGINAL, "iommu=off"}
    apply(grubby)
    assert {*grubby.options["kernel-1"]} == {*ORIGINAL, "iommu=strict"}
    assert origin.records("kernel_arguments") == []


def test_a_reset_restores_the_entries_of_grubby(grubby: Grubby) -> None:
    """A second reset has nothing to do."""
    apply(grubby, "iommu=pt", "pci=realloc")

    assert reset(grubby) == (["remove iommu=pt pci=realloc from the boot menu"], [])
    assert all({*words} == {*ORIGINAL, "iommu=strict"} for words in grubby.options.values())
    assert reset(grubby) == ([], [])


def test_entries_that_grubby_damages_are_an_error(grubby: Grubby) -> None:
    """An old version replaces a part of another argument."""
    grubby.breaks = "quiet"

    done = apply(grubby, "iommu=pt")

    assert "grubby has not written the expected entries" in done["msg"]
    assert "iommu=strict" in grubby.options["kernel-1"]
    assert origin.records("kernel_arguments") == []


def test_the_options_of_enterprise_linux_8_are_in_the_environment(grubby: Grubby) -> None:
    """Its entries have a variable."""
    (grubby.root / "boot/grub2").mkdir()
    (grubby.root / "boot/grub2/grubenv").write_text(
        "# GRUB Environment Block\nkernelopts=root=UUID=0 ro iommu=pt \n#####"
    )
    grubby.options = {"kernel-1": ["$kernelopts", "$tuned_params"]}

    assert not apply(grubby, "iommu=pt")["changed"]


def test_another_boot_loader_is_an_error(grub: Grub) -> None:
    """Without arguments it does not matter."""
    (grub.root / "boot/grub/grub.cfg").unlink()

    assert not apply(grub)["changed"]
    assert "the boot loader is not GRUB 2" in apply(grub, "iommu=pt", check=True)["msg"]


@pytest.mark.parametrize("phase", ["rebooting", "trial"])
def test_the_menu_is_not_changed_while_a_kernel_is_on_trial(grub: Grub, phase: str) -> None:
    """A boot of the previous kernel has to be the same as before."""
    (grub.root / "upgrade.json").write_text(json.dumps({"phase": phase, "to": "6.1.0-50-amd64"}))

    done = apply(grub, "iommu=pt")

    assert "the upgrade to the kernel 6.1.0-50-amd64 has not ended" in done["msg"]
    assert (grub.ran, grub.settings.exists()) == ([], False)


@pytest.mark.parametrize(
    "argument",
    ["iommu=pt", "intel_iommu=on,sm_on", "pci=realloc=off", "mlx5_core.prof_sel=2", "isolcpus=managed_irq,2-7", "nohz"],
)
def test_arguments_for_devices_and_processors_are_accepted(argument: str) -> None:
    """Values can have commas, ranges and further values."""
    assert argument_problem(argument) == ""


@pytest.mark.parametrize(
    "argument",
    [
        *(
            "",
            " ",
            "iommu=pt ro",
            "a=$(reboot)",
            "a=`x`",
            'a="b"',
            "a='b'",
            "a;b",
            "a=b\n",
            "a\\b",
            "a={1}",
            "1",
            "=a",
            "-x",
            "#",
        ),
        *("root=/dev/sda", "init=/bin/sh", "RD.break", "rd.break", "systemd.unit=x", "single", "s", "ro", "ip=dhcp"),
        *("console=ttyS0", "panic=5", "hugepages=1000000", "mem=1G", "acpi=off", "nr-cpus=1", "selinux=0", "maxcpus=1"),
    ],
)
def test_arguments_that_can_stop_the_boot_or_belong_to_others_are_refused(argument: str) -> None:
    """So are characters with a meaning for GRUB or a shell."""
    assert argument_problem(argument)
    role = Role("fabric_host", inventory_hostname="gpu1", fabric_host_kernel_arguments=["iommu=pt", argument])
    check = ("preflight", "Check the arguments of the kernel")
    assert not role.holds(*check)
    assert role.says(*check).startswith("gpu1: refused arguments")
    assert Role("fabric_host", inventory_hostname="gpu1", fabric_host_kernel_arguments=["iommu=pt"]).holds(*check)


def test_a_container_node_runs_the_kernel_of_its_host() -> None:
    """Its receipt records it."""
    variables = {"fabric_host_kernel_arguments": ["iommu=pt"], "__fabric_host_network": {}, "__fabric_host_kernel": {}}
    roles = {kind: Role("fabric_host", platform_node={"kind": kind}, **variables) for kind in ("metal", "container")}

    assert roles["metal"].value("__fabric_host_arguments") == ["iommu=pt"]
    assert roles["metal"].value("__fabric_host_reductions") == []
    assert roles["container"].value("__fabric_host_arguments") == []
    assert roles["container"].value("__fabric_host_reductions") == [
        "arguments of the kernel skipped: a container node runs the kernel of its host"
    ]
