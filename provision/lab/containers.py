"""Lab nodes as systemd containers with their own Docker engines: they start in seconds, without kernel modules.

Files in the lab's folder: ``containers.json`` (the subnets), ``engine.json`` (the Docker engine), ``hostkeys/NODE/``.
All Docker objects of a lab have the label ``provision.lab=NAME`` and are identified by it.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from provision.connectors.container import ContainerSpec, ContainerStatus, Engine, NodeFile
from provision.errors import ConnectionFailed, LabError
from provision.lab.access import make_host_key, make_operator_key, remember_host_key, run_script, wait_for_ssh
from provision.lab.base import LabNode, LabSpec, NodeState, Progress
from provision.lab.container_image import ensure_image
from provision.lab.container_plan import Plan, choose_block, labels_of, load_plan, node_names, route_networks, save_plan
from provision.lab.engine_process import engine_of, release_engine, require_engine
from provision.local_files import cache_folder
from provision.threads import outcomes

_SSH_PORT = 22
_BOOT_SECONDS = 90
_NEVER_RAN = {"created", "dead", "removing"}
_ALIVE = {"running", "restarting"}
_TMPFS = {"/run": "rw,nosuid,nodev,mode=0755,size=512m", "/tmp": "rw,exec,nosuid,nodev,mode=1777"}  # noqa: S108 # nosec B108 # a tmpfs of the node's own


_SWITCH = (
    "sh",
    "-ec",
    """switch=$1 gateway=$2
shift 2
for address in "$@"; do
  interface=$(ip -o -4 addr show to "$address" | awk '{ print $2; exit }')
  [ -z "$interface" ] || ip link set "$interface" "$switch"
done
[ "$switch" = down ] || [ -n "$(ip route show default)" ] || ip route add default via "$gateway"
""",
    "sh",
)


class ContainerDriver:
    """The lab driver ``container``."""

    def up(self, spec: LabSpec, folder: Path, progress: Progress) -> list[LabNode]:
        """Create and start all nodes of `spec` and wait for SSH; running nodes are left unchanged."""
        engine = require_engine(folder, progress)
        site = _Site(engine, _planned(spec, folder, engine), folder)
        site.make_networks()
        make_operator_key(folder)
        names = node_names(spec)
        for index, name in enumerate(names):
            site.make_node(spec, index, name, progress)
        progress.step(f"waiting for SSH on {', '.join(names)}")
        waited = outcomes(lambda numbered: site.wait(*numbered), list(enumerate(names)), limit=8)
        for error in filter(None, waited):
            raise error
        return self.nodes(spec, folder)

    def nodes(self, spec: LabSpec, folder: Path) -> list[LabNode]:
        """Return the current state of the nodes without changing it."""
        plan = load_plan(folder)
        engine = engine_of(folder)
        if plan is None:
            return [LabNode(name, "", _SSH_PORT, "", NodeState.MISSING) for name in node_names(spec)]
        if engine is None:  # the private engine is down, and the nodes with it
            return [_node(plan, index, name, NodeState.STOPPED) for index, name in enumerate(node_names(spec))]
        site = _Site(engine, plan, folder)
        return [_node(plan, index, name, site.state(name)) for index, name in enumerate(node_names(spec))]

    def down(self, spec: LabSpec, folder: Path, progress: Progress) -> None:
        """Remove every container, network and volume of the lab, and the private engine with its last lab."""
        engine = engine_of(folder, start=True)
        if engine is not None:
            _remove_all(engine, labels_of(spec.name, folder), progress)
            engine.close()
        release_engine(folder, progress)
        shutil.rmtree(folder / "hostkeys", ignore_errors=True)
        (folder / "containers.json").unlink(missing_ok=True)

    def reboot(self, spec: LabSpec, folder: Path, node: str) -> None:
        """Reboot one node cleanly and return when its sshd answers again."""
        site, index = _existing(spec, folder, node)
        before = site.status(node)
        if before is None or before.state != "running":
            raise LabError("the node is not running", node=node, remedy=f"Run: provision lab up {spec.name}")
        with contextlib.suppress(ConnectionFailed):  # it may end before the reply; the start time is checked
            run_script(folder, _node(site.plan, index, node, NodeState.RUNNING), "systemctl reboot", timeout=30)

        def started_again() -> bool:
            now = site.status(node)
            return now is not None and now.state == "running" and now.started_at != before.started_at

        _until(started_again, node, "did not start again after its reboot")
        site.wait(index, node)

    def power(self, spec: LabSpec, folder: Path, node: str, *, on: bool) -> None:
        """Cut the power of a node, or restore it and return when its sshd answers."""
        site, index = _existing(spec, folder, node)
        container = site.plan.container(node)
        if on:
            site.engine.start(container)
            site.wait(index, node)
        else:
            site.engine.kill(container)
            _until(lambda: site.state(node) is NodeState.STOPPED, node, "did not stop")

    def link(self, spec: LabSpec, folder: Path, node: str, *, up: bool) -> None:
        """Disconnect a node from all its networks, or reconnect it with the same addresses and interface names.

        The interfaces of a running node are set down, because the engine would reconnect them under other names.
        """
        site, index = _existing(spec, folder, node)
        if up:
            site.plug_in(index, node)
        elif site.state(node) is NodeState.RUNNING:
            site.switch_interfaces(index, node, up=False)
        else:
            for network in site.plan.networks:
                site.engine.disconnect(network.name, site.plan.container(node))

    def host_address(self, spec: LabSpec, folder: Path) -> str:
        """Return the address of the management bridge."""
        plan = load_plan(folder)
        if plan is None:
            raise LabError(f"lab {spec.name} has no network yet", remedy=f"Run: provision lab up {spec.name}")
        return plan.gateway


@dataclass(frozen=True)
class _Site:
    """One lab on one engine."""

    engine: Engine
    plan: Plan
    folder: Path

    @property
    def labels(self) -> dict[str, str]:
        return labels_of(self.plan.lab, self.folder)

    def make_networks(self) -> None:
        existing = self.engine.networks(self.labels)
        for network in self.plan.networks:
            if network.name not in existing:
                self.engine.create_network(
                    network.name,
                    subnet=network.subnet,
                    gateway=network.gateway,
                    labels=self.labels,
                    internal=network.internal,
                )

    def make_node(self, spec: LabSpec, index: int, node: str, progress: Progress) -> None:
        """Create, start and connect one node; a partially created one is replaced."""
        container = self.plan.container(node)
        status = self.status(node)
        if status is not None and not self.labels.items() <= status.labels.items():
            raise LabError(
                f"the container {container} already exists and does not belong to this lab",
                node=node,
                remedy=f"Choose another lab name than {self.plan.lab}, or remove that container.",
            )
        if status is not None and status.state in _NEVER_RAN:
            self.engine.remove_container(container)
            status = None
        if status is None:
            image = ensure_image(self.engine, spec.system_of(index), cache_folder(), progress)
            progress.step(f"making {node}")
            self._create(index, node, image)
        elif status.state == "paused":
            self.engine.unpause(container)
        remember_host_key(
            self.folder, self.plan.management.address(index), _SSH_PORT, make_host_key(self.folder, node)[1]
        )
        self.plug_in(index, node)
        if status is None or status.state == "exited":
            progress.step(f"starting {node}")
            self.engine.start(container)

    def plug_in(self, index: int, node: str) -> None:
        """Connect a node to its networks and set its interfaces up."""
        status = self.status(node)
        plugged = () if status is None else status.networks
        for network in self.plan.networks:
            if network.name not in plugged:
                self.engine.connect(network.name, self.plan.container(node), network.address(index))
        if status is not None and status.state == "running":
            self.switch_interfaces(index, node, up=True)

    def switch_interfaces(self, index: int, node: str, *, up: bool) -> None:
        """Set the interfaces of a running node up or down, and restore the default route."""
        addresses = [network.address(index) for network in self.plan.networks]
        words = [*_SWITCH, "up" if up else "down", self.plan.gateway, *addresses]
        self.engine.execute(self.plan.container(node), words)

    def wait(self, index: int, node: str) -> None:
        """Return when the node accepts SSH connections."""
        target = _node(self.plan, index, node, NodeState.RUNNING)
        wait_for_ssh(self.folder, target, limit_seconds=_BOOT_SECONDS, alive=lambda: self._stop_reason(node))

    def status(self, node: str) -> ContainerStatus | None:
        return self.engine.inspect(self.plan.container(node))

    def state(self, node: str) -> NodeState:
        status = self.status(node)
        if status is None or status.state in _NEVER_RAN:
            return NodeState.MISSING
        return NodeState.RUNNING if status.state in _ALIVE else NodeState.STOPPED

    def _stop_reason(self, node: str) -> str | None:
        status = self.status(node)
        if status is None:
            return "its container does not exist"
        if status.state in _ALIVE:
            return None
        log = self.engine.logs(self.plan.container(node))
        return f"its container is {status.state}; its console ends with:\n{log}"

    def _create(self, index: int, node: str, image: str) -> None:
        private, public = make_host_key(self.folder, node)
        plan = self.plan
        self.engine.create_volume(plan.volume(node), self.labels)
        spec = ContainerSpec(
            name=plan.container(node),
            image=image,
            hostname=node,
            network=plan.management.name,
            address=plan.management.address(index),
            labels={**self.labels, "provision.node": node},
            volumes={plan.volume(node): "/var/lib/docker"},
            tmpfs=_TMPFS,
            shm_size="1g",
        )
        files = [
            NodeFile("/etc/ssh/ssh_host_ed25519_key", private.read_bytes(), 0o600),
            NodeFile("/etc/ssh/ssh_host_ed25519_key.pub", f"{public} root@{node}\n".encode()),
            NodeFile("/root/.ssh", None, 0o700),
            NodeFile("/root/.ssh/authorized_keys", f"{make_operator_key(self.folder)}\n".encode(), 0o600),
        ]
        self.engine.create(spec, files)


def _planned(spec: LabSpec, folder: Path, engine: Engine) -> Plan:
    plan = load_plan(folder)
    if plan is None:
        routes = route_networks(Path("/proc/net/route").read_text(encoding="ascii"))
        plan = Plan(spec.name, choose_block(spec.name, [*routes, *engine.subnets()]))
        save_plan(folder, plan)
    return plan


def _existing(spec: LabSpec, folder: Path, node: str) -> tuple[_Site, int]:
    """Return the lab and the node's index, or raise LabError for an unknown node."""
    names = node_names(spec)
    if node not in names:
        raise LabError(f"lab {spec.name} has no node called {node}", remedy=f"Choose from {', '.join(names)}.")
    plan, engine = load_plan(folder), engine_of(folder)
    if plan is None or engine is None or engine.inspect(plan.container(node)) is None:
        raise LabError("the node does not exist", node=node, remedy=f"Run: provision lab up {spec.name}")
    return _Site(engine, plan, folder), names.index(node)


def _remove_all(engine: Engine, labels: Mapping[str, str], progress: Progress) -> None:
    for container in engine.containers(labels):
        progress.step(f"removing {container}")
        engine.remove_container(container)
    for network in engine.networks(labels):
        engine.remove_network(network)
    for volume in engine.volumes(labels):
        engine.remove_volume(volume)


def _node(plan: Plan, index: int, name: str, state: NodeState) -> LabNode:
    return LabNode(name, plan.management.address(index), _SSH_PORT, plan.data.address(index), state)


def _until(done: Callable[[], bool], node: str, complaint: str) -> None:
    """Return when `done` is true; raise LabError with `complaint` after a time limit."""
    end = time.monotonic() + _BOOT_SECONDS
    while not done():
        if time.monotonic() > end:
            raise LabError(f"the node {complaint} within {_BOOT_SECONDS} s", node=node)
        time.sleep(0.2)
