"""The role nvidia_driver without a node: what it reads, refuses, writes and reports."""

from __future__ import annotations

import base64
import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from provision.inventory.role_files import systems
from provision.resources import roles_folder
from tests.support.expressions import Role
from tests.support.modules import load, run

module = load("nvidia_driver", "nvidia_driver")
KERNEL = os.uname().release
NO_DEVICE = "[   11.9] NVRM: No NVIDIA GPU found.\n"
MODPROBE = "modprobe: ERROR: could not insert 'nvidia_current_open': No such device\n"
JOURNAL = (
    "Starting NVIDIA fabric manager service...\n"
    "fabric manager NVIDIA GPU driver interface version 580.95.05 don't match with driver version 580.82.07. "
    "Please update with matching NVIDIA driver package.\n"
)
DEBIAN = systems(roles_folder())["debian_12"]
PACKAGES = {"linux-image-amd64": "6.1"}


# What the module reads


def card(root: Path, address: str, device: str = "0x20b2", kind: str = "0x030200", vendor: str = "0x10de") -> Path:
    """Put a PCI device below a root."""
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    for name, text in (("vendor", vendor), ("device", device), ("class", kind)):
        (folder / name).write_text(f"{text}\n")
    return folder


def test_gpus_are_read_from_the_bus(tmp_path: Path) -> None:
    """Without switches, other vendors, virtual functions, GPUs of virtual machines and malformed IDs."""
    card(tmp_path, "0000:17:00.0")
    card(tmp_path, "0000:18:00.0", "0x1af1", "0x068000")
    card(tmp_path, "0000:19:00.0", vendor="0x8086")
    (card(tmp_path, "0000:1a:00.0") / "physfn").mkdir()
    card(tmp_path, "0000:1b:00.0")
    (tmp_path / "sys/bus/pci/drivers/vfio-pci/0000:1b:00.0").mkdir(parents=True)
    card(tmp_path, "0000:1c:00.0", "0x20b2; rm")
    card(tmp_path, "0000:1d:00.0", "0x1db5", "0x030000")

    assert module.gpus(str(tmp_path)) == ["20b2", "1db5"]
    assert module.devices("0x0680", str(tmp_path)) == ["1af1"]


@pytest.mark.parametrize(
    ("name", "is_driver"),
    [
        ("updates/dkms/nvidia-current-open.ko", True),
        ("updates/dkms/nvidia-current.ko.xz", True),
        ("kernel/nvidia-580srv-open/nvidia.ko.zst", True),
        ("extra/nvidia.ko", True),
        ("updates/dkms/nvidia-current-open-uvm.ko", False),
        ("updates/dkms/nvidia-peermem.ko", False),
        ("kernel/drivers/net/nvidia_net.ko", False),
    ],
)
def test_a_module_of_the_driver_has_the_names_of_its_packages(tmp_path: Path, name: str, is_driver: bool) -> None:  # noqa: FBT001
    """Debian's files have other names than the module."""
    folder = tmp_path / "lib/modules/6.1"
    folder.mkdir(parents=True)
    (folder / "modules.dep").write_text(f"kernel/a.ko:\n{name}: kernel/a.ko\n")

    assert module.module_file("6.1", str(tmp_path)) == (f"{folder}/{name}" if is_driver else "")


def secure_boot(root: Path, *, on: bool, lists: bytes = b"") -> None:
    """Write the variables of the firmware."""
    folder = root / "sys/firmware/efi/efivars"
    folder.mkdir(parents=True)
    (folder / "SecureBoot-8be4").write_bytes(b"\6\0\0\0" + (b"\1" if on else b"\0"))
    (folder / "MokListRT-605d").write_bytes(lists)


@pytest.mark.parametrize("on", [True, False])
def test_secure_boot_is_read_from_the_firmware(tmp_path: Path, on: bool) -> None:  # noqa: FBT001
    """The kernel's lockdown decides where it says something."""
    secure_boot(tmp_path, on=on)
    assert module.requires_signature(str(tmp_path)) is on

    lockdown = tmp_path / "sys/kernel/security/lockdown"
    lockdown.parent.mkdir(parents=True)
    lockdown.write_text("[none] integrity confidentiality\n")
    assert module.requires_signature(str(tmp_path)) is False
    lockdown.write_text("none [integrity] confidentiality\n")
    assert module.requires_signature(str(tmp_path)) is True


@pytest.mark.parametrize("form", ["DER", "PEM"])
def test_a_certificate_is_enrolled_if_a_list_contains_it(tmp_path: Path, form: str) -> None:
    """A missing or empty certificate never is."""
    der = bytes(range(64))
    pem = b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(der) + b"-----END CERTIFICATE-----\n"
    (tmp_path / "mok.pub").write_bytes(der if form == "DER" else pem)
    (tmp_path / "empty").touch()
    secure_boot(tmp_path, on=True, lists=b"head" + der + b"tail")

    assert module.is_enrolled("/mok.pub", str(tmp_path))
    assert not module.is_enrolled("/missing", str(tmp_path))
    assert not module.is_enrolled("/empty", str(tmp_path))
    (tmp_path / "sys/firmware/efi/efivars/MokListRT-605d").write_bytes(b"others")
    assert not module.is_enrolled("/mok.pub", str(tmp_path))


# The initramfs


@pytest.fixture
def rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Arguments for a rebuild whose command counts its runs."""
    monkeypatch.setattr(module, "REBUILT", str(tmp_path / "state/initramfs"))
    (tmp_path / "nouveau.conf").write_text("blacklist nouveau\n")
    script = f"echo x >>{tmp_path}/runs; test ! -e {tmp_path}/full || {{ echo 'No space left on device' >&2; exit 1; }}"
    return {"action": "initramfs", "initramfs": ["sh", "-c", script], "files": [str(tmp_path / "nouveau.conf")]}


def runs(tmp_path: Path) -> int:
    """Return how often the command ran."""
    file = tmp_path / "runs"
    return len(file.read_text().splitlines()) if file.exists() else 0


def test_the_initramfs_is_rebuilt_once_for_each_content(tmp_path: Path, rebuilt: dict[str, Any]) -> None:
    """Check mode only reports."""
    assert run(module, check=True, **rebuilt)["changed"]
    assert runs(tmp_path) == 0
    assert [run(module, **rebuilt)["changed"] for _ in range(3)] == [True, False, False]
    (tmp_path / "nouveau.conf").write_text("blacklist nouveau\noptions nouveau modeset=0\n")
    assert run(module, **rebuilt)["changed"]
    assert runs(tmp_path) == 2


def test_a_rebuild_that_fails_is_repeated_by_the_next_run(tmp_path: Path, rebuilt: dict[str, Any]) -> None:
    """And named, with its last words."""
    (tmp_path / "full").touch()
    failed = run(module, **rebuilt)
    (tmp_path / "full").unlink()

    assert failed["failed"]
    assert "No space left on device" in failed["msg"]
    assert run(module, **rebuilt)["changed"]


def test_a_reset_rebuilds_the_initramfs(tmp_path: Path, rebuilt: dict[str, Any]) -> None:
    """By the recorded command; without a record there is no step."""
    undo = load("platform", "platform_undo_kernel", part="module_utils")
    basic = importlib.import_module("ansible.module_utils.platform_light_basic")
    basic.ARGUMENTS = {}
    node = basic.AnsibleModule(argument_spec={})
    assert undo.initramfs_steps(node) == []
    run(module, **rebuilt)
    [step] = undo.initramfs_steps(node)

    assert step.sentence == "rebuild the initramfs of every kernel"
    assert step.act() is None
    assert runs(tmp_path) == 2


# Building and loading


class Programs:
    """A node on which the programs that the module runs have prepared results."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loaded: set[str] = set()
        self.file, self.version, self.loaded_version = "/lib/modules/x/nvidia.ko", "535.261.03", ""
        self.gpus: list[str] = ["20b2"]
        self.unit = {"LoadState": "loaded", "ActiveState": "inactive", "UnitFileState": "enabled"}
        self.log = "[    1.0] Linux\n"
        self.commands: list[str] = []
        self.modprobe: tuple[int, str, str] = (0, "", "")
        self.in_use: set[str] = set()
        self.recorded: list[str] = []
        self.failing: set[str] = set()
        for name, value in {
            "gpus": lambda: self.gpus,
            "is_loaded": lambda name: name in self.loaded,
            "module_file": lambda _kernel: self.file,
            "installed_version": lambda _module, path: self.version if path else "",
            "record_module": self.recorded.append,
            "record_unit": lambda _module, _name: None,
        }.items():
            monkeypatch.setattr(module, name, value)
        text = module.text
        monkeypatch.setattr(
            module, "text", lambda path: self.loaded_version if path == "/sys/module/nvidia/version" else text(path)
        )
        self.params: dict[str, Any] = {
            "persistence": True,
            "disruptive": False,
            "fabric": "",
            "dcgm": False,
            "imex": "",
        }
        self.run_command_environ_update: dict[str, str] = {}

    def run_command(self, argv: list[str]) -> tuple[int, str, str]:
        words = argv[2:] if argv[0] == "timeout" else argv
        self.commands.append(" ".join(words))
        texts = {"dmesg": self.log, "journalctl": JOURNAL}
        if words[0] in texts:
            return 0, texts[words[0]], ""
        if words[:2] == ["modprobe", "-r"] or words[0] == "rmmod":
            self.loaded -= {words[-1]} - self.in_use
            return 0, "", ""
        if words[0] == "modprobe":
            code, log, errors = self.modprobe
            self.log += log
            self.loaded |= {words[1].replace("-", "_")} if code == 0 else set()
            return code, "", errors
        if words[0] == "systemctl" and self.failing & {words[-1], f"{words[1]} {words[-1]}"}:
            return 3, "", ""
        if words[:2] == ["systemctl", "show"]:
            return 0, "".join(f"{key}={value}\n" for key, value in self.unit.items()), ""
        return 0, "", ""

    def start(self, **params: Any) -> dict[str, Any]:
        """Run the action; return the outcome."""
        self.params |= params
        self.last = module.Start(self)
        outcome: dict[str, Any] = self.last.outcome()
        return outcome


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Programs:
    """A node with a GPU and an installed driver that is not loaded."""
    return Programs(monkeypatch)


def test_an_installed_driver_is_loaded_and_its_daemon_started(node: Programs) -> None:
    """With the module that CUDA needs."""
    assert node.start()["ok"]
    assert node.loaded == {"nvidia", "nvidia_uvm"}
    assert node.last.changed
    assert node.commands[-2:] == [f"systemctl --no-reload enable {module.UNIT}", f"systemctl start {module.UNIT}"]


def test_a_running_driver_is_left_alone(node: Programs) -> None:
    """The second run changes nothing."""
    node.loaded, node.loaded_version = {"nvidia", "nvidia_uvm"}, "535.261.03"
    node.unit["ActiveState"] = "active"

    assert node.start()["ok"]
    assert not node.last.changed
    assert [line for line in node.commands if not line.startswith("systemctl show")] == []


def test_a_node_without_device_has_exactly_that_outcome(node: Programs) -> None:
    """It is no failure; the daemon, which would fail at every boot, is disabled."""
    node.gpus, node.modprobe = [], (1, NO_DEVICE, MODPROBE)
    node.unit["ActiveState"] = "failed"
    outcome = node.start(persistence=False)

    assert (outcome["ok"], outcome["cause"]) == (True, "no_device")
    assert outcome["explanation"] == (
        f"no NVIDIA device: driver 535.261.03 is installed for kernel {KERNEL}, and does not load without one"
    )
    assert f"systemctl --no-reload disable {module.UNIT}" in node.commands
    assert f"systemctl reset-failed {module.UNIT}" in node.commands


@pytest.mark.parametrize("log", [NO_DEVICE, ""])
def test_no_device_is_recognised_by_the_kernel_or_by_modprobe(node: Programs, log: str) -> None:
    """Debian's module has another file name."""
    node.gpus, node.modprobe = [], (1, log, MODPROBE)

    assert node.start(persistence=False)["cause"] == "no_device"


def test_a_gpu_that_the_driver_does_not_find_is_a_failure(node: Programs) -> None:
    """The bus has it."""
    node.modprobe = (1, NO_DEVICE, MODPROBE)
    outcome = node.start()

    assert (outcome["ok"], outcome["cause"]) == (False, "no_gpu")
    assert outcome["evidence"] == NO_DEVICE.strip()
    assert outcome["remedy"]


def test_another_failure_on_a_node_without_device_remains_a_failure(node: Programs) -> None:
    """A key that the kernel does not accept, for example."""
    node.gpus = []
    node.modprobe = (1, "", "modprobe: ERROR: could not insert 'nvidia_current_open': Key was rejected by service\n")
    outcome = node.start(persistence=False)

    assert (outcome["ok"], outcome["cause"]) == (False, "secure_boot")


def test_only_messages_of_this_attempt_count(node: Programs) -> None:
    """An older attempt may have failed for another reason."""
    node.log = "[    9.1] Loading of module with unavailable key is rejected\n"
    node.gpus, node.modprobe = [], (1, NO_DEVICE, MODPROBE)

    assert node.start(persistence=False)["cause"] == "no_device"


def test_a_load_that_hangs_is_named(node: Programs) -> None:
    """timeout ends it."""
    node.modprobe = (124, "", "")

    assert "hangs" in node.start()["explanation"]


def test_nouveau_is_unloaded_or_named(node: Programs) -> None:
    """A console may use it; then only a reboot helps."""
    node.loaded = {"nouveau"}
    assert node.start()["ok"]
    assert "nouveau" not in node.loaded

    node.loaded = node.in_use = {"nouveau"}
    outcome = node.start()
    assert (outcome["ok"], outcome["cause"]) == (False, "nouveau")
    assert "Reboot" in outcome["remedy"]


def test_another_version_is_replaced_only_with_consent(node: Programs) -> None:
    """Modules and the services that use them, in the order of their dependencies."""
    node.loaded, node.loaded_version, node.version = {"nvidia", "nvidia_uvm"}, "535.1", "580.1"
    outcome = node.start(disruptive=False)
    assert (outcome["ok"], outcome["cause"]) == (False, "reboot")
    assert node.loaded == {"nvidia", "nvidia_uvm"}

    assert node.start(disruptive=True)["ok"]
    unloaded = [line for line in node.commands if line.startswith("rmmod")]
    assert unloaded == ["rmmod nvidia_uvm", "rmmod nvidia"]
    assert "systemctl start nvidia-fabricmanager.service" in node.commands


def test_a_driver_in_use_is_replaced_by_a_reboot(node: Programs) -> None:
    """The stopped services run again until then."""
    node.loaded = node.in_use = {"nvidia"}
    node.loaded_version, node.version = "535.1", "580.1"
    outcome = node.start(disruptive=True)

    assert (outcome["ok"], outcome["cause"]) == (False, "reboot")
    assert f"systemctl start {module.UNIT}" in node.commands


@pytest.mark.parametrize("fabric", ["", "nvswitch", "nvlink5"])
def test_the_fabric_manager_is_started_after_the_driver(node: Programs, fabric: str) -> None:
    """On B200 after ib_umad; a running one stays."""
    node.failing = {module.FABRIC_UNIT}
    node.start(fabric=fabric)
    started = [line for line in node.commands if module.FABRIC_UNIT in line]
    assert bool(started) == bool(fabric)
    assert ("modprobe ib_umad" in node.commands) == ("ib_umad" in node.recorded) == (fabric == "nvlink5")
    if fabric:
        assert node.commands.index("modprobe nvidia") < node.commands.index(started[0])

    node.failing, node.commands = set(), []
    assert node.start(fabric=fabric)["ok"]
    assert [line for line in node.commands if f"start {module.FABRIC_UNIT}" in line] == []


def test_a_running_service_that_is_not_enabled_starts_at_the_next_boot(node: Programs) -> None:
    """Otherwise the machine has no fabric after a reboot."""
    node.failing = {f"is-enabled {module.FABRIC_UNIT}"}

    assert node.start(fabric="nvswitch")["ok"]
    assert f"systemctl --no-reload enable {module.FABRIC_UNIT}" in node.commands
    assert node.last.changed


def test_a_fabric_manager_of_another_version_is_named_by_its_own_words(node: Programs) -> None:
    """It ends at once."""
    node.failing = {module.FABRIC_UNIT}
    outcome = node.start(fabric="nvswitch")

    assert (outcome["ok"], outcome["cause"]) == (False, "fabric_manager")
    assert "580.95.05 don't match with driver version 580.82.07" in outcome["evidence"]
    assert "exactly the version of the driver" in outcome["remedy"]


def test_dcgm_is_started_last_and_named_if_it_fails(node: Programs) -> None:
    """Only where it is requested."""
    node.failing = {module.DCGM_UNIT}
    assert node.start()["ok"]
    assert [line for line in node.commands if module.DCGM_UNIT in line] == []

    outcome = node.start(dcgm=True)
    assert (outcome["ok"], outcome["cause"]) == (False, "dcgm")
    assert f"journalctl -b -u {module.DCGM_UNIT}" in outcome["remedy"]
    node.failing = set()
    assert node.start(dcgm=True)["ok"]


@pytest.fixture
def imex_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The list of nodes for IMEX."""
    monkeypatch.setattr(module, "IMEX_NODES", str(tmp_path / "state/imex"))
    file = tmp_path / "nodes_config.cfg"
    file.write_text("10.0.0.1\n10.0.0.2\n")
    return file


def imex_calls(node: Programs) -> list[str]:
    """Return the starts and stops of IMEX, and forget all calls."""
    calls = [line.split()[1] for line in node.commands if line.endswith(module.IMEX_UNIT)]
    node.commands = []
    return [word for word in calls if word in {"start", "stop"}]


def test_imex_is_started_again_for_another_list_of_nodes(node: Programs, imex_nodes: Path) -> None:
    """Only on an idle node or with consent; once for each list."""
    node.failing = {module.IMEX_UNIT}
    assert not node.start(imex=str(imex_nodes))["ok"]
    assert imex_calls(node) == ["start"]
    node.failing = {f"is-active {module.IMEX_UNIT}", f"is-enabled {module.IMEX_UNIT}"}
    assert node.start(imex=str(imex_nodes))["ok"]
    node.failing = set()
    assert imex_calls(node) == ["start"]
    assert node.start(imex=str(imex_nodes))["ok"]
    assert imex_calls(node) == []

    imex_nodes.write_text("10.0.0.1\n")
    outcome = node.start(imex=str(imex_nodes))
    assert (outcome["ok"], outcome["cause"]) == (False, "imex")
    assert imex_calls(node) == []
    node.start(imex=str(imex_nodes), disruptive=True)
    assert imex_calls(node)[0] == "stop"


def test_a_running_imex_with_the_same_list_is_adopted(node: Programs, imex_nodes: Path) -> None:
    """Without a restart; one with another list is restarted only on an idle node, also after a failed apply."""
    node.params["imex"] = str(imex_nodes)
    node.check_mode = False
    assert module.adopt_imex(node)
    assert node.start(imex=str(imex_nodes))["ok"]
    assert imex_calls(node) == []

    imex_nodes.write_text("10.0.0.1\n")
    assert not module.adopt_imex(node)
    assert node.start(imex=str(imex_nodes))["cause"] == "imex"


def test_a_stopped_imex_is_not_adopted(node: Programs, imex_nodes: Path) -> None:
    """Its list says nothing about what it runs with."""
    node.params["imex"] = str(imex_nodes)
    node.check_mode = False
    node.failing = {f"is-active {module.IMEX_UNIT}"}

    assert not module.adopt_imex(node)
    assert not Path(module.IMEX_NODES).exists()


def test_imex_is_stopped_where_the_node_left_its_domain(node: Programs, imex_nodes: Path) -> None:
    """Only on an idle node, and only if the role started IMEX."""
    assert node.start(disruptive=True)["ok"]
    assert imex_calls(node) == []

    node.start(imex=str(imex_nodes), disruptive=True)
    imex_calls(node)
    outcome = node.start(imex="", disruptive=False)
    assert (outcome["ok"], outcome["cause"]) == (False, "imex")
    assert imex_calls(node) == []

    assert node.start(imex="", disruptive=True)["ok"]
    assert f"systemctl --no-reload disable {module.IMEX_UNIT}" in node.commands
    assert imex_calls(node) == ["stop"]


def test_imex_of_another_version_is_named_by_its_own_words(node: Programs, imex_nodes: Path) -> None:
    """It ends at once."""
    node.failing = {module.IMEX_UNIT}
    outcome = node.start(imex=str(imex_nodes))

    assert (outcome["ok"], outcome["cause"]) == (False, "imex")
    assert "exactly the version of the driver" in outcome["remedy"]


# The role's expressions


def role(facts: dict[str, Any] | None = None, **variables: Any) -> Role:
    """Return the role on a node after its probe."""
    usual = {
        "gpus": ["20b2"],
        "has_switches": False,
        "loaded": "",
        "installed": "",
        "managed": False,
        "imex": False,
        "stale": False,
        "secure_boot": False,
        "certificate": False,
        "enrolled": False,
    }
    platform = {
        "kind": "metal",
        "kernel": "6.1.0",
        "modules_loadable": True,
        "gpus": 1,
        "packages": PACKAGES,
        "jobs": [],
        **variables.pop("platform_node", {}),
    }
    return Role(
        "nvidia_driver",
        inventory_hostname="gpu1",
        platform_node=platform,
        __nvidia_driver_probe={"facts": usual | (facts or {})},
        **DEBIAN | {"nvidia_driver_source": "distribution", "__platform_disruptive": False} | variables,
    )


NEXT: dict[str, Any] = {"nvidia_driver_kernels": ["6.2.0", "6.3.0"]}


def test_listed_kernels_get_the_driver_without_being_run() -> None:
    """Their headers are required; nothing is loaded or configured to be, and a container is no hindrance."""
    for kind in ("metal", "container"):
        one = role(**NEXT, platform_node={"kind": kind, "modules_loadable": kind == "metal"})

        assert one.value("__nvidia_driver_managed") is True
        assert one.value("__nvidia_driver_loads") is False
        assert one.value("__nvidia_driver_boots") is (kind == "metal")
        assert one.value("__nvidia_driver_choice.packages")[-2:] == ["linux-headers-6.2.0", "linux-headers-6.3.0"]
        assert one.value("__nvidia_driver_choice.optional") == []


def test_only_the_build_node_gets_headers() -> None:
    """The others get its modules."""
    builder, other = (role(**NEXT, nvidia_driver_build_node=name) for name in ("gpu1", "gpu2"))

    assert [one.value("__nvidia_driver_carried") for one in (role(), builder, other)] == [False, False, True]
    assert "linux-headers-6.2.0" in builder.value("__nvidia_driver_choice.packages")
    assert not any("headers" in name for name in other.value("__nvidia_driver_choice.packages"))
    locked = role({"secure_boot": True}, nvidia_driver_build_node="gpu2").says("preflight", CHECKS["signature"])
    assert "which gpu2 builds" in locked
    assert "copy this file of gpu2 to the node, then `mokutil" in locked


def test_a_pinned_version_is_written_for_apt() -> None:
    """And the file is removed with the setting."""
    pinned = role(nvidia_driver_version="535.261.03").value("__nvidia_driver_pin_file")

    assert pinned["path"] == "/etc/apt/preferences.d/provision-nvidia-driver.pref"
    assert "Pin: version 535.261.03-*" in pinned["content"].splitlines()
    assert [pinned["state"], role().value("__nvidia_driver_pin_file.state")] == ["file", "absent"]
    wrong = role(nvidia_driver_version="580.1")
    assert wrong.value("__nvidia_driver_choice.refusal.variable") == "nvidia_driver_version"


@pytest.mark.parametrize(
    ("requested", "installed", "replaced"),
    [
        ("535.309.01", "535.261.03-1", ["libcuda1", "nvidia-smi"]),
        ("535.261.03", "535.309.01-0+deb12u1", ["libcuda1", "nvidia-smi"]),
        ("535.261.03", "535.261.03-1", []),
        ("", "535.261.03-1", []),
    ],
)
def test_packages_of_another_version_are_replaced(requested: str, installed: str, replaced: list[str]) -> None:
    """Older and newer ones; those of the driver's tools have versions of their own."""
    own = dict.fromkeys(("libcuda1", "nvidia-smi", "nvidia-kernel-dkms"), installed)
    packages = {**PACKAGES, **own, "nvidia-persistenced": "535.171.04-1", "nvidia-modprobe": "535.309.01-1"}
    one = role(nvidia_driver_version=requested, platform_node={"packages": packages})

    assert one.value("__nvidia_driver_replaced") == dict.fromkeys(replaced, f"{requested}-*")


def test_a_version_that_replaces_a_loaded_driver_waits_for_jobs() -> None:
    """Also if no package is missing."""
    names = role().value("__nvidia_driver_choice.packages")
    for requested, holds in (("535.261.03", True), ("535.309.01", False)):
        node = {"jobs": ["training"], "packages": PACKAGES | dict.fromkeys(names, "535.261.03-1")}
        one = role({"loaded": "535.261.03"}, nvidia_driver_version=requested, platform_node=node)

        assert one.holds("preflight", CHECKS["jobs"]) is holds


CHECKS = {
    "driver": "Check that there is a driver for the node",
    "domain": "Check that the addresses of the NVLink domain are known",
    "elsewhere": "Check that no driver from elsewhere is installed",
    "signature": "Check that the kernel accepts the modules",
    "jobs": "Check that no job uses the driver that would be replaced",
}


def test_a_usual_node_passes_the_preflight() -> None:
    """And gets the packages of its system."""
    one = role()

    assert all(one.holds("preflight", name) for name in CHECKS.values())
    assert one.value("__nvidia_driver_managed") is True
    assert one.value("__nvidia_driver_choice.packages")[0] == "nvidia-open-kernel-dkms"
    assert one.value("__nvidia_driver_choice.optional") == ["linux-headers-6.1.0", "linux-headers-amd64"]


def test_the_default_manages_nothing() -> None:
    """No probe, no files, no repository, no packages."""
    one = role(nvidia_driver_source="present")

    for name in ("__nvidia_driver_requested", "__nvidia_driver_possible", "__nvidia_driver_managed"):
        assert one.value(name) is False
    assert one.value("__nvidia_driver_own_repositories") == []
    assert one.value("__nvidia_driver_reductions") == []


def test_a_refusal_names_variable_problem_and_remedy() -> None:
    """Before anything is installed."""
    one = role({"gpus": ["2901"]})

    assert not one.holds("preflight", CHECKS["driver"])
    assert one.says("preflight", CHECKS["driver"]).startswith(
        "gpu1: nvidia_driver_branch: driver 535 does not support Blackwell (since 570.133.20). Choose"
    )


def test_a_driver_from_elsewhere_is_not_mixed_with_packages() -> None:
    """Neither with those of the first run; later runs replace the role's own."""
    other = {"installed": "570.1"}
    packages = {"packages": PACKAGES | {"nvidia-open-kernel-dkms": "535.1"}}

    assert not role(other).holds("preflight", CHECKS["elsewhere"])
    assert "570.1 is installed from elsewhere" in role(other).says("preflight", CHECKS["elsewhere"])
    assert role(other | {"managed": True}).holds("preflight", CHECKS["elsewhere"])
    assert role(other, platform_node=packages).holds("preflight", CHECKS["elsewhere"])


def test_secure_boot_refuses_modules_that_nobody_signed_for() -> None:
    """With the commands; an enrolled certificate passes."""
    locked = {"secure_boot": True, "certificate": True}
    one = role(locked)

    assert not one.holds("preflight", CHECKS["signature"])
    assert "mokutil --import /var/lib/dkms/mok.pub" in one.says("preflight", CHECKS["signature"])
    missing = role(locked | {"certificate": False}).says("preflight", CHECKS["signature"])
    assert "dkms generate_mok" in missing
    assert role(locked | {"enrolled": True}).holds("preflight", CHECKS["signature"])


def test_secure_boot_accepts_the_systems_own_signed_modules() -> None:
    """Ubuntu's need no key of the site."""
    ubuntu = systems(roles_folder())["ubuntu_24.04"]
    one = role({"secure_boot": True}, **ubuntu, platform_node={"packages": {"linux-image-generic": "6.8"}})

    assert one.holds("preflight", CHECKS["signature"])


def test_a_loaded_driver_is_not_replaced_under_a_job() -> None:
    """Unless nothing changes, or the operator consents."""
    loaded, busy = {"loaded": "530.1"}, {"jobs": ["process 1 holds /dev/nvidia0"]}

    assert not role(loaded, platform_node=busy).holds("preflight", CHECKS["jobs"])
    assert "process 1 holds /dev/nvidia0" in role(loaded, platform_node=busy).says("preflight", CHECKS["jobs"])
    assert role(platform_node=busy).holds("preflight", CHECKS["jobs"])
    assert role(loaded).holds("preflight", CHECKS["jobs"])
    assert role(loaded, platform_node=busy, __platform_disruptive=True).holds("preflight", CHECKS["jobs"])
    every = dict.fromkeys(role().value("__nvidia_driver_choice.packages"), "1")
    assert role(loaded, platform_node=busy | {"packages": PACKAGES | every}).holds("preflight", CHECKS["jobs"])


@pytest.mark.parametrize(
    ("facts", "variables", "reduction"),
    [
        ({"gpus": []}, {}, "skipped: the node has no NVIDIA GPU"),
        (
            {},
            {"platform_node": {"modules_loadable": False, "kind": "container"}},
            "skipped: a container node cannot load",
        ),
        ({}, {"platform_node": {"modules_loadable": False}}, "skipped: this node has no /lib/modules/6.1.0"),
        (
            {},
            {"platform_node": {"modules_loadable": False, "kind": "container"}, **NEXT},
            "not loaded: a container node cannot load kernel modules; the driver is built for 6.2.0, 6.3.0",
        ),
        ({}, NEXT, "not loaded: the node runs kernel 6.1.0; the driver is built for 6.2.0, 6.3.0"),
        (
            {"gpus": []},
            {
                "nvidia_driver_without_gpu_enabled": True,
                "__nvidia_driver_result": {
                    "outcome": {"ok": True, "cause": "no_device", "explanation": "no NVIDIA device: x"}
                },
            },
            "no NVIDIA device: x",
        ),
    ],
)
def test_a_receipt_has_what_the_node_does_not_get(
    facts: dict[str, Any], variables: dict[str, Any], reduction: str
) -> None:
    """Each with its cause."""
    [text] = role(facts, **variables).value("__nvidia_driver_reductions")

    assert text.startswith(reduction)


def test_the_driver_is_loaded_at_boot_only_where_a_gpu_is() -> None:
    """Elsewhere systemd would report a failed unit."""
    with_gpu = role().value("__nvidia_driver_files")
    without = role({"gpus": []}, nvidia_driver_without_gpu_enabled=True).value("__nvidia_driver_files")

    assert "blacklist nouveau\noptions nouveau modeset=0\n" in with_gpu[0]["content"]
    assert with_gpu[1]["content"].endswith("\nnvidia\nnvidia_uvm\n")
    assert [with_gpu[1]["state"], without[1]["state"]] == ["file", "absent"]


def test_a_machine_with_switches_starts_its_fabric_manager_at_boot() -> None:
    """On B200 ib_umad is loaded first."""
    ubuntu = systems(roles_folder())["ubuntu_24.04"] | {"platform_node": {"packages": {"linux-image-generic": "6.8"}}}
    switches = role({"has_switches": True}, **ubuntu)
    b200 = role({"gpus": ["2901"]}, **ubuntu, nvidia_driver_source="cuda")
    units = ["nvidia-persistenced.service", "nvidia-fabricmanager.service"]

    assert [one.value("__nvidia_driver_units") for one in (role(), switches, b200)] == [units[:1], units, units]
    dcgm = role(**ubuntu, nvidia_driver_source="cuda", nvidia_driver_dcgm_enabled=True)
    assert dcgm.value("__nvidia_driver_units") == [units[0], "nvidia-dcgm.service"]
    assert "datacenter-gpu-manager-4-cuda13" in dcgm.value("__nvidia_driver_choice.packages")
    assert "ib_umad" not in switches.value("__nvidia_driver_files")[1]["content"]
    assert b200.value("__nvidia_driver_files")[1]["content"].endswith("\nib_umad\nnvidia\nnvidia_uvm\n")


DOMAIN = {
    "groups": {"all": ["gpu1", "gpu2", "gpu3"], "gpu_nodes": ["gpu3", "gpu2", "gpu1"]},
    "hostvars": {
        "gpu1": {"cluster_nvlink_domain": "rack1"},
        "gpu2": {},
        "gpu3": {"cluster_nvlink_domain": "rack1"},
    },
    "cluster_nvlink_domain": "rack1",
    "nvidia_driver_source": "cuda",
}


def test_imex_gets_the_addresses_of_its_nvlink_domain() -> None:
    """One per line, in the same order on all of its nodes; an unknown address is refused before the installation."""
    ubuntu = systems(roles_folder())["ubuntu_24.04"] | {"platform_node": {"packages": {"linux-image-generic": "6.8"}}}
    addresses = {"gpu1": "10.0.0.1", "gpu2": "10.0.0.2", "gpu3": "10.0.0.3"}
    one = role({"gpus": ["2940"]}, **ubuntu, **DOMAIN, platform_data_addresses=addresses)

    assert [file["content"] for file in one.value("__nvidia_driver_imex_files")] == ["10.0.0.1\n10.0.0.3\n"]
    assert "nvidia-imex" in one.value("__nvidia_driver_choice.packages")
    assert "nvidia-imex.service" in one.value("__nvidia_driver_units")
    assert "/etc/nvidia-imex/nodes_config.cfg" in one.value("__nvidia_driver_present_files")
    assert one.holds("preflight", CHECKS["domain"])
    unknown = role({"gpus": ["2940"]}, **ubuntu, **DOMAIN, platform_data_addresses={"gpu1": "10.0.0.1"})
    assert not unknown.holds("preflight", CHECKS["domain"])
    assert "those of gpu3 are unknown" in unknown.says("preflight", CHECKS["domain"])


def test_the_driver_creates_an_imex_channel_in_an_nvlink_domain() -> None:
    """Programs cannot use IMEX without one; other nodes have no such option."""
    ubuntu = systems(roles_folder())["ubuntu_24.04"] | {"platform_node": {"packages": {"linux-image-generic": "6.8"}}}
    option = "\noptions nvidia NVreg_CreateImexChannel0=1\n"

    inside = role({"gpus": ["2940"]}, **ubuntu, **DOMAIN)
    outside = role({"gpus": ["2940"]}, **ubuntu, **DOMAIN | {"cluster_nvlink_domain": ""})
    contents = [one.value("__nvidia_driver_files")[0]["content"] for one in (inside, outside)]
    assert [option in content for content in contents] == [True, False]


def test_the_list_for_imex_is_removed_where_the_node_left_its_domain() -> None:
    """With its record, and only where the role started IMEX."""
    ubuntu = systems(roles_folder())["ubuntu_24.04"] | {"platform_node": {"packages": {"linux-image-generic": "6.8"}}}
    left = DOMAIN | {"cluster_nvlink_domain": ""}

    def removed(variables: dict[str, Any], *, recorded: bool) -> list[str]:
        one = role({"gpus": ["2940"], "imex": recorded}, **ubuntu, **variables)
        return [file["path"] for file in one.value("__nvidia_driver_imex_leftovers") if file["state"] == "absent"]

    assert removed(left, recorded=True) == ["/etc/nvidia-imex/nodes_config.cfg", module.IMEX_NODES]
    assert removed(left, recorded=False) == []
    assert removed(DOMAIN, recorded=True) == []


@pytest.mark.parametrize(
    ("source", "uri", "expected"),
    [
        ("distribution", "", []),
        ("cuda", "", ["https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64"]),
        ("cuda", "https://m/x", ["https://m/x"]),
        ("file", "https://m/x", ["https://m/x"]),
    ],
)
def test_the_repository_is_that_of_the_plan(source: str, uri: str, expected: list[str]) -> None:
    """Plan and role name the same address and key."""
    el = systems(roles_folder())["el_9"]
    one = role(**el, nvidia_driver_source=source, nvidia_driver_repository_uri=uri, nvidia_driver_repository_key="KEY")
    own = one.value("__nvidia_driver_own_repositories")

    assert [item["uris"].strip() for item in own] == expected
    assert all((item["key"], item["suites"]) == ("KEY", "/") for item in own)


def test_the_results_are_valid_json() -> None:
    """Choices are tuples with names; Ansible gets plain data."""
    assert json.loads(json.dumps(role().value("__nvidia_driver_choice")))["branch"] == "535"


# Other roles on a node with a driver and without a GPU


@pytest.mark.parametrize(
    ("modules", "loaded", "simulated", "without"),
    [
        ("updates/dkms/nvidia-current-open.ko: a.ko\n", False, False, True),
        ("updates/dkms/nvidia.ko.zst:\n", False, False, True),
        ("updates/dkms/nvidia.ko:\n", True, False, False),
        ("updates/dkms/nvidia.ko:\n", False, True, False),
        ("kernel/drivers/a.ko:\n", False, False, False),
        ("kernel/drivers/video/fbdev/nvidia/nvidiafb.ko:\n", False, False, False),
        ("kernel/drivers/platform/x86/nvidia-wmi-ec-backlight.ko:\n", False, False, False),
    ],
)
def test_a_driver_without_a_device_makes_no_gpu_node(
    monkeypatch: pytest.MonkeyPatch,
    modules: str,
    loaded: bool,  # noqa: FBT001
    simulated: bool,  # noqa: FBT001
    without: bool,  # noqa: FBT001
) -> None:
    """nvidia-smi is on the PATH there; simulated GPUs, and those of a container's host, have no such module."""
    platform = load("platform", "platform_node")
    monkeypatch.setattr(platform, "text", lambda path: modules if path == "/lib/modules/6.1/modules.dep" else "")
    monkeypatch.setattr(platform.os.path, "isdir", lambda path: loaded and path == "/sys/module/nvidia")
    monkeypatch.setattr(platform.os.path, "exists", lambda path: simulated and path == platform.SIMULATED_GPUS)

    assert platform.driver_without_device("6.1") is without
