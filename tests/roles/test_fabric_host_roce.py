"""The role fabric_host: default RoCE mode and type of service, at boot as well, and their reset."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jinja2
import pytest

from tests.support.expressions import Role
from tests.support.modules import ROLES, load, play_commands, provide_utils, run, undone

provide_utils()
origin = importlib.import_module("ansible.module_utils.platform_origin")
links = importlib.import_module("ansible.module_utils.platform_links")
roce = importlib.import_module("ansible.module_utils.platform_roce")
cards = importlib.import_module("ansible.module_utils.fabric_host_cards")
settings = importlib.import_module("ansible.module_utils.fabric_host_settings")
undo = importlib.import_module("ansible.module_utils.platform_undo_kernel")
MODULES: dict[str, ModuleType] = {}
MODE, TOS = "default_roce_mode", "default_roce_tos"


def module() -> ModuleType:
    """Return the module, which is loaded once."""
    return MODULES.setdefault("roce", load("fabric_host", "fabric_host_roce"))


class Node:
    """A RoCE card on ens4, an InfiniBand card, and configfs, whose folders have the values of a device."""

    def __init__(self, root: Path) -> None:
        self.root, self.ran = root, []
        self.values = {"mlx5_0": {MODE: "RoCE v2", TOS: "0"}, "mlx5_1": {MODE: "RoCE v2", TOS: "0"}}
        for name in ("ens4", "ens3", "ib0"):
            (root / "net" / name).mkdir(parents=True)
            (root / "net" / name / "mtu").write_text("1500\n")
        for device, names in (("mlx5_0", ("ens3", "ens4")), ("mlx5_1", ())):
            folder = root / "infiniband" / device / "ports/1/gid_attrs/ndevs"
            folder.mkdir(parents=True)
            for index, name in enumerate(names):
                (folder / str(index)).write_text(f"{name}\n")
        (root / "config/rdma_cm").mkdir(parents=True)

    @property
    def folders(self) -> list[str]:
        """The folders that programs left in configfs."""
        return sorted(path.name for path in (self.root / "config").glob("rdma_cm/*"))

    def make_folder(self, path: str) -> None:
        """Do what configfs does."""
        device = Path(path).name
        if device not in self.values:
            raise OSError(19, "No such device")
        port = Path(path) / "ports/1"
        port.mkdir(parents=True)
        for name, value in self.values[device].items():
            (port / name).write_text(f"{value}\n")

    def remove_folder(self, path: str) -> None:
        """Remove a folder with its files, as configfs does."""
        self.values[Path(path).name] = {
            file.name: file.read_text().strip() for file in (Path(path) / "ports/1").iterdir()
        }
        shutil.rmtree(path)

    def run_command(self, command: list[str]) -> tuple[int, str, str]:
        """Load the connection manager."""
        self.ran.append(command)
        if command == ["modprobe", "rdma_cm"]:
            return (0, "", "") if self.values else (1, "", "modprobe: FATAL: Module rdma_cm not found")
        (self.root / "config/rdma_cm").mkdir()
        return 0, "", ""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node with RDMA devices."""
    made = Node(tmp_path)
    monkeypatch.setattr(links, "NET", str(tmp_path / "net"))
    monkeypatch.setattr(cards, "RDMA", str(tmp_path / "infiniband"))
    monkeypatch.setattr(roce, "CONFIG", str(tmp_path / "config"))
    kernel = SimpleNamespace(path=os.path, mkdir=made.make_folder, rmdir=made.remove_folder)
    monkeypatch.setattr(roce, "os", kernel)
    play_commands(monkeypatch, settings.AnsibleModule, made)
    return made


def apply(*interfaces: str, check: bool = False, **more: Any) -> dict[str, Any]:
    """Run the module."""
    return run(module(), check=check, interfaces=list(interfaces or ("ens4",)), **more)


def reset() -> tuple[list[str], list[str]]:
    """Undo the settings; return the steps and what is left."""
    left: list[str] = []
    steps = undo.roce_steps(left)
    return undone(steps), left


def test_mode_and_type_of_service_of_data_devices_are_set_and_reset(node: Node) -> None:
    """Check mode and a second run change nothing, and no folder is left, which would keep the module loaded."""
    planned = apply(mode="v1", tos=106, check=True)
    assert (planned["changed"], node.values["mlx5_0"], origin.records("roce")) == (
        True,
        {MODE: "RoCE v2", TOS: "0"},
        [],
    )
    assert planned["diff"][0]["after"] == f"mlx5_0/1/{MODE} IB/RoCE v1\nmlx5_0/1/{TOS} 106\n"

    assert apply(mode="v1", tos=106)["changed"]
    assert node.values == {"mlx5_0": {MODE: "IB/RoCE v1", TOS: "106"}, "mlx5_1": {MODE: "RoCE v2", TOS: "0"}}
    assert (apply(mode="v1", tos=106)["changed"], node.folders) == (False, [])
    assert reset() == ([f"set {MODE} of mlx5_0 port 1 back to RoCE v2", f"set {TOS} of mlx5_0 port 1 back to 0"], [])
    assert (node.values["mlx5_0"], node.folders, reset()) == ({MODE: "RoCE v2", TOS: "0"}, [], ([], []))


def test_a_setting_that_is_removed_is_restored(node: Node) -> None:
    """A value that was changed since is left."""
    apply(mode="v1", tos=106)
    node.values["mlx5_0"][TOS] = "32"

    assert apply()["changed"]
    assert node.values["mlx5_0"] == {MODE: "RoCE v2", TOS: "32"}
    assert (origin.records("roce"), apply()["changed"]) == ([], False)


def test_a_reset_leaves_what_was_changed_since(node: Node) -> None:
    """A device that does not exist any more has nothing to restore."""
    apply(tos=106)
    node.values["mlx5_0"][TOS] = "32"
    assert reset() == ([], [f"leave {TOS} of mlx5_0 port 1 at 32, which was changed since (originally 0)"])

    del node.values["mlx5_0"]
    assert reset() == ([], [])
    assert not apply()["changed"]


def test_an_open_folder_of_another_program_is_left(node: Node) -> None:
    """It may need it."""
    node.make_folder(f"{node.root}/config/rdma_cm/mlx5_0")

    assert apply(tos=106)["changed"]
    assert node.folders == ["mlx5_0"]
    assert (node.root / "config/rdma_cm/mlx5_0/ports/1" / TOS).read_text() == "106"


def test_an_interface_without_an_rdma_device_is_left_out(node: Node) -> None:
    """InfiniBand has no RoCE."""
    done = apply("ib0", mode="v2")

    assert (done["changed"], done["boot"], node.ran) == (False, [], [])
    assert done["left_out"] == ["RoCE settings skipped: no RDMA device on ib0"]


def test_the_connection_manager_is_loaded(node: Node) -> None:
    """A reset unloads it, because it was not loaded before; check mode loads nothing."""
    (node.root / "config/rdma_cm").rmdir()
    assert apply(tos=106, check=True)["changed"]
    assert node.ran == []

    assert apply(tos=106)["changed"]
    assert node.ran == [["modprobe", "rdma_cm"], ["mount", "-t", "configfs", "none", f"{node.root}/config"]]


def _refuse(_path: str, _text: str) -> None:
    raise OSError(22, "Invalid argument")


def _unload(node: Node, _: pytest.MonkeyPatch) -> None:
    (node.root / "config/rdma_cm").rmdir()
    node.values = {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda _node, patch: patch.setattr(links, "write", _refuse),
            f"mlx5_0: {MODE} IB/RoCE v1 is refused (Invalid argument)",
        ),
        (lambda node, _: node.values.pop("mlx5_0"), f"mlx5_0: configfs has no {MODE} of port 1"),
        (_unload, "Module rdma_cm not found"),
    ],
)
def test_a_value_that_cannot_be_set_is_an_error(
    node: Node, monkeypatch: pytest.MonkeyPatch, change: Callable[[Node, pytest.MonkeyPatch], None], message: str
) -> None:
    """Soft-RoCE has no version 1."""
    change(node, monkeypatch)

    assert message in apply(mode="v1")["msg"]
    assert node.folders == []


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("tos", [-2, 256])
def test_a_type_of_service_has_eight_bits(tos: int) -> None:
    """Before anything is changed."""
    assert "fabric_host_roce_tos" in apply(tos=tos)["msg"]


def test_the_script_sets_the_same_values_at_boot(node: Node) -> None:
    """A device that does not exist any more is skipped, and no folder is left."""
    rows = apply(mode="v1", tos=106)["boot"]
    rows.append({"device": "mlx5_9", "port": 1, "file": TOS, "value": "1"})
    template = (ROLES / "fabric_host/templates/fabric-setup.j2").read_text()
    environment = jinja2.Environment(trim_blocks=True, autoescape=False)  # noqa: S701
    environment.filters["quote"] = lambda text: f"'{text}'"
    text = environment.from_string(template).render(__fabric_host_hugepages={}, __fabric_host_roce_boot=rows)
    programs = {
        "modprobe": f'echo "modprobe $*" >>{node.root}/calls',
        "mkdir": 'case $1 in *mlx5_0) exec /bin/mkdir -p "$1/ports/1";; esac; exit 1',
        "rmdir": f'cat "$1"/ports/1/* >>{node.root}/calls; exec rm -r "$1"',
    }
    (node.root / "bin").mkdir()
    for name, line in programs.items():
        (node.root / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (node.root / "bin" / name).chmod(0o755)

    done = subprocess.run(
        ["sh", "-c", text.replace("/sys/kernel/config", str(node.root / "config"))],
        env={"PATH": f"{node.root}/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert (node.root / "calls").read_text().splitlines() == ["modprobe rdma_cm", "IB/RoCE v1", "106"]
    assert (done.stderr, node.folders) == ("mlx5_9: no such RDMA device; skipped\n", [])


def test_rdma_devices_of_a_container_node_belong_to_its_host() -> None:
    """Its receipt records it."""
    variables = {"fabric_host_roce_tos": 0, "__fabric_host_network": {}, "__fabric_host_kernel": {}}
    metal, inside = (Role("fabric_host", platform_node={"kind": kind}, **variables) for kind in ("metal", "container"))

    names = ("uses_interfaces", "has_script", "reductions")
    assert [metal.value(f"__fabric_host_{name}") for name in names] == [True, True, []]
    assert [inside.value(f"__fabric_host_{name}") for name in names] == [
        False,
        False,
        ["RoCE settings skipped: those of a container node belong to its host"],
    ]
