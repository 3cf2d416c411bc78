"""Management of labs: nodes by a driver, services, an inventory, and one state directory per lab."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from provision.errors import LabError, ProvisionError
from provision.lab import state
from provision.lab.access import ssh_argv
from provision.lab.base import DriverName, LabDriver, LabNode, LabSpec, NodeState, Progress
from provision.lab.hardware import install_hardware
from provision.lab.inventory_file import inventory_of, write_inventory
from provision.lab.mirror import public
from provision.lab.node_sources import write_sources

if TYPE_CHECKING:
    from provision.lab.services import ServiceInfo, Services
    from provision.report.json_documents.labs import Lab


_MAX_NODES = 64
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(=[A-Za-z0-9.+:~-]+)?")


@dataclass(frozen=True)
class LabOptions:
    """The options of ``lab up``; None means the value of the existing lab, or the default of a new one."""

    driver: DriverName | None = None
    nodes: int | None = None
    distro: str | None = None
    machine: str | None = None
    packages: tuple[str, ...] | None = None
    mirror: str | None = None


@dataclass(frozen=True)
class LabReport:
    """The current state of a lab."""

    spec: LabSpec
    nodes: tuple[LabNode, ...]
    inventory: Path
    simulated: tuple[str, ...]
    services: tuple[tuple[str, bool], ...] = ()
    """Name of each service and whether it runs."""
    site: Mapping[str, str] = field(default_factory=dict)
    """Options of ``init`` for a separate inventory: image, registry CA, NVIDIA repository and its key."""
    known_hosts: Path | None = None
    key: Path | None = None
    """The operator's private key."""

    @property
    def healthy(self) -> bool:
        """Whether all nodes and services run and the inventory exists."""
        nodes = all(node.state is NodeState.RUNNING for node in self.nodes)
        return nodes and all(running for _, running in self.services) and self.inventory.exists()

    def document(self) -> Lab:
        """Return the report as ``--json`` prints it."""
        return {
            "name": self.spec.name,
            "driver": self.spec.driver.value,
            "distro": self.spec.distro,
            "machine": self.spec.machine,
            "packages": list(self.spec.packages),
            "simulated": list(self.simulated),
            "nodes": [
                {"name": node.name, "address": node.address, "port": node.port, "state": node.state.value}
                for node in self.nodes
            ],
            "services": [{"name": name, "running": running} for name, running in self.services],
            "inventory": str(self.inventory),
            "init": self.init_words(),
        }

    def init_words(self) -> list[str]:
        """Return the command that writes an inventory of these nodes like that of a site."""
        hosts = [f"{node.name}={node.address}:{node.port}" for node in self.nodes if node.address]
        words = ["provision", "init", *hosts, "--name", self.spec.name, "--user", "root"]
        words += ["--key", str(self.key), "--known-hosts", str(self.known_hosts)]
        return words + [word for option in self.site.items() for word in option]


def up(name: str, options: LabOptions, progress: Progress) -> LabReport:
    """Create a lab or repair the existing one: start stopped parts, create missing ones.

    Raises:
        LabError: the lab exists with other options, or a step failed.
    """
    folder = state.lab_folder(name)
    with state.locked(name, f"lab up {name}"):
        spec = _spec(name, options, state.load_spec(folder))
        _check(spec)
        state.save_spec(folder, spec)
        driver = _driver(spec.driver)
        nodes = driver.up(spec, folder, progress)
        services = _services()
        info = services.up(spec, folder, _listen(spec, folder, driver), driver.host_address(spec, folder), progress)
        _prepare_nodes(spec, folder, nodes, services, info, progress)
        write_inventory(spec, folder, nodes, info)
    return status(name)


def _prepare_nodes(
    spec: LabSpec, folder: Path, nodes: Sequence[LabNode], services: Services, info: ServiceInfo, progress: Progress
) -> None:
    """Give nodes what comes from the lab: package sources and simulated hardware."""
    from provision.lab.services.rpm_repository import node_files

    systems = [spec.system_of(index) for index in range(len(nodes))]
    files = [node_files(system, info.repository_url, info.repository_key) for system in systems]
    write_sources(folder, list(zip(nodes, files, strict=True)))
    managers = [(node, system.manager) for node, system in zip(nodes, systems, strict=True)]
    install_hardware(folder, managers, lambda manager: services.hardware_packages(spec, manager), progress)


def status(name: str) -> LabReport:
    """Return the current state of a lab without changing it."""
    spec, folder = _existing(name)
    services = _services()
    info = services.info(folder)
    return LabReport(
        spec=spec,
        nodes=tuple(_driver(spec.driver).nodes(spec, folder)),
        inventory=inventory_of(folder),
        simulated=tuple(info.simulated) if info else (),
        services=tuple((service.name, service.running) for service in services.status(folder)),
        site=info.site() if info else {},
        known_hosts=folder / "known_hosts",
        key=folder / "id_ed25519",
    )


def list_labs() -> list[LabReport | ProvisionError]:
    """Return the state of all labs; for one that fails, return its error with the lab's name as the node."""
    reports: list[LabReport | ProvisionError] = []
    for name in state.known_labs():
        try:
            reports.append(status(name))
        except ProvisionError as error:
            reports.append(LabError(error.message, node=name, remedy=error.remedy))
    return reports


def down(name: str, progress: Progress) -> bool:
    """Remove a lab and everything that belongs to it, even if incomplete; return whether it existed."""
    folder = state.lab_folder(name)
    with state.locked(name, f"lab down {name}"):
        existed = folder.exists()
        for spec in _specs_to_remove(name, folder):
            _driver(spec.driver).down(spec, folder, progress)
        _services().down(folder)
        if existed:
            shutil.rmtree(folder)
    return existed


def inventory_path(name: str) -> Path:
    """Return the inventory of a running lab."""
    _, folder = _existing(name)
    path = inventory_of(folder)
    if not path.exists():
        raise LabError(f"lab {name} is incomplete and has no inventory yet", remedy=f"Run: provision lab up {name}")
    return path


def reboot(name: str, node: str) -> None:
    """Reboot a node cleanly and wait until it is back."""
    spec, folder = _existing(name)
    _driver(spec.driver).reboot(spec, folder, _named(spec, folder, node).name)


def power(name: str, node: str, *, on: bool) -> None:
    """Cut a node's power, or restore it."""
    spec, folder = _existing(name)
    _driver(spec.driver).power(spec, folder, _named(spec, folder, node).name, on=on)


def link(name: str, node: str, *, up: bool) -> None:
    """Disconnect a node from its networks, or reconnect it."""
    spec, folder = _existing(name)
    _driver(spec.driver).link(spec, folder, _named(spec, folder, node).name, up=up)


def ssh_command(name: str, node: str | None, words: Sequence[str]) -> list[str]:
    """Return the ssh command that logs in to a node (default: the first), with the lab's key and host keys."""
    spec, folder = _existing(name)
    target = _named(spec, folder, node)
    if target.state is not NodeState.RUNNING:
        raise LabError(f"the node is {target.state.value}", node=target.name, remedy=f"Run: provision lab up {name}")
    return ssh_argv(folder, target, *words)


def _spec(name: str, options: LabOptions, recorded: LabSpec | None) -> LabSpec:
    """Return the recorded spec if the options match it, else a new one from options and defaults."""
    base = recorded or LabSpec(name=name, driver=DriverName.VM, nodes=2)
    requested = replace(base, **{key: value for key, value in vars(options).items() if value is not None})
    if recorded is not None and requested != recorded:
        raise LabError(
            f"lab {name} exists with {_words(recorded)}; requested: {_words(requested)}",
            remedy=f"Remove it first (provision lab down {name}), choose another name, or repeat its own options.",
        )
    return requested


def _words(spec: LabSpec) -> str:
    machine = f" --machine {spec.machine}" if spec.machine else ""
    packages = "".join(f" --with {package}" for package in spec.packages)
    mirror = f" --mirror {public(spec.mirror)}" if spec.mirror else ""
    return f"--driver {spec.driver} --nodes {spec.nodes} --system {spec.distro}{machine}{packages}{mirror}"


def _check(spec: LabSpec) -> None:
    """Refuse invalid options before anything is created."""
    if not 1 <= spec.nodes <= _MAX_NODES:
        raise LabError(f"a lab has 1 to {_MAX_NODES} nodes, not {spec.nodes}")
    from provision.lab.services.rpm_repository import require_programs

    require_programs(spec.systems)
    for system in spec.systems:
        if spec.driver is DriverName.VM and not system.kernel:
            raise LabError(
                f"{system.name} requires containers: the lab has no kernel for virtual machines with it",
                remedy="Add --driver container.",
            )
    if len(spec.systems) > 1 and spec.driver is not DriverName.CONTAINER:
        raise LabError(
            "nodes with several systems require containers", remedy="Add --driver container, or name one system."
        )
    if len(spec.systems) > 1 and spec.mirror:
        raise LabError("--mirror requires a single system", remedy="Name one system, or remove --mirror.")
    if spec.machine is not None:
        from provision.lab.machines import load

        load(spec.machine)
    if spec.packages and spec.driver is not DriverName.VM:
        raise LabError(
            "--with requires virtual machines, because containers share one image",
            remedy="Add --driver vm, or remove --with.",
        )
    for package in spec.packages:
        if not _PACKAGE.fullmatch(package):
            raise LabError(f"invalid package name {package!r}", remedy="Use NAME or NAME=VERSION, as in apt.")


def _existing(name: str) -> tuple[LabSpec, Path]:
    folder = state.lab_folder(name)
    spec = state.load_spec(folder)
    if spec is None:
        labs = ", ".join(state.known_labs()) or "none"
        raise LabError(f"unknown lab {name} (labs: {labs})", remedy=f"Run: provision lab up {name}")
    return spec, folder


def _named(spec: LabSpec, folder: Path, node: str | None) -> LabNode:
    nodes = _driver(spec.driver).nodes(spec, folder)
    for each in nodes:
        if node is None or each.name == node:
            return each
    names = ", ".join(each.name for each in nodes)
    raise LabError(f"lab {spec.name} has no node called {node}", remedy=f"Choose from {names}.")


def _specs_to_remove(name: str, folder: Path) -> list[LabSpec]:
    """Return the recorded lab; without a valid record, one for each driver that may have nodes of that name."""
    try:
        spec = state.load_spec(folder)
    except LabError:
        spec = None
    return [spec] if spec is not None else [LabSpec(name=name, driver=driver, nodes=0) for driver in DriverName]


def _listen(spec: LabSpec, folder: Path, driver: LabDriver) -> list[str]:
    """Return the addresses of the services: loopback (10.0.2.2 in vm nodes), and the bridge of container nodes."""
    bridge = [driver.host_address(spec, folder)] if spec.driver is DriverName.CONTAINER else []
    return ["127.0.0.1", *bridge]


def _driver(name: DriverName) -> LabDriver:
    if name is DriverName.VM:
        from provision.lab.vm import VmDriver

        return VmDriver()
    if name is DriverName.CONTAINER:
        from provision.lab.containers import ContainerDriver

        return ContainerDriver()
    assert_never(name)


def _services() -> Services:
    from provision.lab.services import Services

    return Services()
