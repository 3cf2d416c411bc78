"""Lab nodes as QEMU machines with real kernels, reboots, power cuts and network cuts.

Files in the lab's folder: ``vm/plan.json`` (ports and addresses), ``vm/NODE/`` (disk, seed, console, pid file),
``hostkeys/NODE/``. A node exists if its disk does; it runs if its process does.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from provision.batch.durations import elapsed
from provision.documents import decode
from provision.documents.lab import DiskInformation
from provision.errors import ConnectionFailed, LabError, ProvisionError
from provision.lab.access import make_host_key, make_operator_key, remember_host_key, run_script, wait_for_ssh
from provision.lab.base import LabNode, LabSpec, NodeState, Progress
from provision.lab.seed import Identity, seed_archive
from provision.lab.vm_accel import accelerator, virtual_cpus
from provision.lab.vm_image import Image, ensure_image, need_programs
from provision.lab.vm_plan import Plan, load_plan, make_plan, save_plan
from provision.lab.vm_qemu import Machine, MachineSettings, is_running, kill, set_link, start
from provision.lab.vm_recipe import Recipe, recipe_for
from provision.local_files import cache_folder, write_private
from provision.threads import outcomes

HOST_ADDRESS = "10.0.2.2"
"""The controller's loopback interface as seen from a node."""

PROGRAMS = {"qemu-system-x86_64": "qemu-system-x86", "qemu-img": "qemu-utils", "ssh-keygen": "openssh-client"}
_BOOT_SECONDS = 1200  # a boot takes 20 s; two emulated ones on a busy machine took 340 s
_LOCALHOST = "127.0.0.1"
_RETRY_SECONDS = 1.0


class _Silent:
    def step(self, message: str) -> None:
        """Ignore the message."""


class VmDriver:
    """The lab driver ``vm``."""

    def up(self, spec: LabSpec, folder: Path, progress: Progress) -> list[LabNode]:
        """Create and start all nodes of `spec` and wait for SSH; running nodes are left unchanged."""
        need_programs(PROGRAMS)
        machines = _machines(spec, folder)
        made = [machine for machine in machines if machine.disk.exists()]
        # Existing nodes keep their image, so a newer recipe is built only for new nodes.
        image = _image_of(made[0], spec) if made == machines != [] else ensure_image(_recipe(spec), progress)
        acceleration = accelerator(image, cache_folder(), progress)
        plan = _planned(spec, folder)
        for machine in machines:
            _prepare(machine, plan, image, folder)

        def bring_up(machine: Machine) -> None:
            self._start(spec, folder, machine, plan, acceleration, progress)

        _in_parallel(bring_up, machines)
        return self.nodes(spec, folder)

    def nodes(self, spec: LabSpec, folder: Path) -> list[LabNode]:
        """Return the current state of the nodes without changing it."""
        plan = load_plan(folder / "vm")
        return [_node(machine, plan) for machine in _machines(spec, folder)]

    def down(self, spec: LabSpec, folder: Path, progress: Progress) -> None:
        """Remove every process and file of the nodes; missing ones are no error."""
        home = folder / "vm"
        folders = sorted(path for path in home.glob("*") if path.is_dir()) if home.exists() else []
        for path in folders:  # including nodes that are not in `spec` any more
            machine = Machine(path.name, path)
            if is_running(machine):
                progress.step(f"stopping {machine.name}")
            kill(machine)
        shutil.rmtree(home, ignore_errors=True)
        for name in {path.name for path in folders} | {machine.name for machine in _machines(spec, folder)}:
            shutil.rmtree(folder / "hostkeys" / name, ignore_errors=True)

    def reboot(self, spec: LabSpec, folder: Path, node: str) -> None:
        """Reboot one node cleanly and return when its sshd answers again."""
        machine, target = self._running(spec, folder, node)
        before = _boot_id(folder, target)
        with suppress(ConnectionFailed):  # the connection may end before the reply; the boot ID is checked
            run_script(folder, target, "systemctl reboot", timeout=30)
        begin = time.monotonic()
        while time.monotonic() - begin < _BOOT_SECONDS:
            wait_for_ssh(folder, target, limit_seconds=_BOOT_SECONDS, alive=_alive(machine))
            with suppress(ConnectionFailed):  # it may have answered just before its shutdown
                if _boot_id(folder, target) != before:
                    return
            time.sleep(_RETRY_SECONDS)
        raise LabError(f"the node did not restart within {_BOOT_SECONDS} s", node=node, output=machine.last_words())

    def power(self, spec: LabSpec, folder: Path, node: str, *, on: bool) -> None:
        """Cut the power of a node, or restore it and return when its sshd answers."""
        machine = _machine(spec, folder, node)
        plan = load_plan(folder / "vm")
        if plan is None or not machine.disk.exists():
            raise LabError("the node does not exist", node=node, remedy=f"Create it: provision lab up {spec.name}")
        if not on:
            kill(machine)
            return
        need_programs(PROGRAMS)
        silent = _Silent()
        acceleration = accelerator(_image_of(machine, spec), cache_folder(), silent)
        self._start(spec, folder, machine, plan, acceleration, silent)

    def link(self, spec: LabSpec, folder: Path, node: str, *, up: bool) -> None:
        """Disconnect a node from all its networks, or reconnect it."""
        machine = _machine(spec, folder, node)
        if not is_running(machine):
            raise LabError("the node is not running", node=node, remedy=f"Run: provision lab up {spec.name}")
        set_link(machine, up=up)

    def host_address(self, spec: LabSpec, folder: Path) -> str:  # noqa: ARG002 - the interface's
        """Return the address under which nodes reach services on the controller's loopback interface."""
        return HOST_ADDRESS

    def _running(self, spec: LabSpec, folder: Path, node: str) -> tuple[Machine, LabNode]:
        machine = _machine(spec, folder, node)
        if not is_running(machine):
            raise LabError("the node is not running", node=node, remedy=f"Run: provision lab up {spec.name}")
        return machine, _node(machine, load_plan(folder / "vm"))

    def _start(
        self,
        spec: LabSpec,
        folder: Path,
        machine: Machine,
        plan: Plan,
        acceleration: tuple[str, ...],
        progress: Progress,
    ) -> None:
        fresh = not is_running(machine)
        if fresh:
            progress.step(f"starting {machine.name}")
            _image_of(machine, spec)
            start(machine, _settings(spec, machine, plan, acceleration))
        seconds = wait_for_ssh(folder, _node(machine, plan), limit_seconds=_BOOT_SECONDS, alive=_alive(machine))
        progress.step(f"{machine.name} answers on SSH" + (f" after {elapsed(seconds)}" if fresh else ""))


def _machine(spec: LabSpec, folder: Path, name: str) -> Machine:
    for machine in _machines(spec, folder):
        if machine.name == name:
            return machine
    raise LabError(f"the lab {spec.name} has no node {name}", remedy=f"Run: provision lab status {spec.name}")


def _machines(spec: LabSpec, folder: Path) -> list[Machine]:
    names = [f"{spec.name}-{number}" for number in range(1, spec.nodes + 1)]
    return [Machine(name, folder / "vm" / name) for name in names]


def _node(machine: Machine, plan: Plan | None) -> LabNode:
    if plan is None or machine.name not in plan.ssh_ports:
        return LabNode(machine.name, _LOCALHOST, 0, "", NodeState.MISSING)
    state = NodeState.MISSING
    if is_running(machine):
        state = NodeState.RUNNING
    elif machine.disk.exists():
        state = NodeState.STOPPED
    name = machine.name
    return LabNode(name, _LOCALHOST, plan.ssh_ports[name], plan.data_address(name), state)


def _planned(spec: LabSpec, folder: Path) -> Plan:
    home = folder / "vm"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    old = load_plan(home)
    others = [load_plan(path / "vm") for path in folder.parent.iterdir() if path.is_dir() and path != folder]
    plan = make_plan(spec, old, taken_subnets=[other.subnet for other in others if other])
    if plan != old:
        save_plan(home, plan)
    return plan


def _prepare(machine: Machine, plan: Plan, image: Image, folder: Path) -> None:
    """Create seed and disk of a new node; the disk is created last, so that a node with a disk is complete."""
    operator = make_operator_key(folder)
    private, public = make_host_key(folder, machine.name)
    remember_host_key(folder, _LOCALHOST, plan.ssh_ports[machine.name], public)
    if machine.disk.exists():
        return
    machine.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    identity = Identity(
        name=machine.name,
        data_address=plan.data_address(machine.name),
        management_mac=plan.mac(machine.name, data=False),
        data_mac=plan.mac(machine.name, data=True),
        host_key=private.read_text(),
        host_key_public=public,
        authorized_keys=(operator,),
    )
    write_private(machine.seed, seed_archive(identity))
    partial = machine.disk.with_suffix(".partial")
    backing = ["-b", str(image.disk), "-F", "raw"]
    done = subprocess.run(
        ["qemu-img", "create", "-q", "-f", "qcow2", *backing, str(partial)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise LabError("cannot create the node's disk", node=machine.name, output=done.stderr)
    partial.replace(machine.disk)


def _recipe(spec: LabSpec) -> Recipe:
    """Return the recipe of a bare node, or of one with additional packages."""
    if not spec.packages:
        return recipe_for(spec.system_of(0))
    from provision.lab.services.packages import build_packages

    built = build_packages(cache_folder())
    stand_ins = {package: path for package in spec.packages if (path := _stand_in(package, built))}
    others = tuple(package for package in spec.packages if package not in stand_ins)
    return recipe_for(spec.system_of(0), packages=others, stand_ins=tuple(stand_ins.values()))


def _stand_in(package: str, built: Sequence[Path]) -> Path | None:
    """Return the lab's own package of that name, by default its last version; None for a Debian package."""
    name, _, version = package.partition("=")
    matches = [path for path in built if path.name.startswith(f"{name}_{version}_" if version else f"{name}_")]
    return matches[-1] if matches else None


def _image_of(machine: Machine, spec: LabSpec) -> Image:
    """Return the base image of a node's disk, which stores only differences and is useless without it."""
    argv = ["qemu-img", "info", "-U", "--output=json", str(machine.disk)]
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
    answer = done.stdout if done.returncode == 0 else "{}"
    disk = Path(decode(answer, DiskInformation, node=machine.name, what="answer of qemu-img").backing)
    if not disk.is_file():
        raise LabError(
            "the base image of the node's disk is missing in the cache, or the disk is damaged",
            node=machine.name,
            remedy=f"Create the nodes again: provision lab down {spec.name}, then provision lab up {spec.name}",
            output=done.stderr,
        )
    return Image.beside(disk)


def _settings(spec: LabSpec, machine: Machine, plan: Plan, acceleration: tuple[str, ...]) -> MachineSettings:
    return MachineSettings(
        accelerator=acceleration,
        cpus=virtual_cpus(acceleration, spec.cpus),
        memory_mib=spec.memory_mib,
        ssh_port=plan.ssh_ports[machine.name],
        multicast=plan.multicast,
        management_mac=plan.mac(machine.name, data=False),
        data_mac=plan.mac(machine.name, data=True),
    )


def _alive(machine: Machine) -> Callable[[], str | None]:
    def reason() -> str | None:
        if is_running(machine):
            return None
        return f"its virtual machine ended; the last lines of its console:\n{machine.last_words()}"

    return reason


def _boot_id(folder: Path, node: LabNode) -> str:
    return run_script(folder, node, "cat /proc/sys/kernel/random/boot_id", timeout=60).stdout.strip()


def _in_parallel(function: Callable[[Machine], None], machines: Sequence[Machine]) -> None:
    """Call `function` for all machines in parallel, wait for all, then raise the first error."""
    results = outcomes(function, machines, limit=len(machines))
    errors = [error for error in results if error is not None]
    for error in errors:
        if not isinstance(error, ProvisionError):
            raise error
    if errors:
        raise errors[0]
