"""One QEMU process per node: command line, start, identification and end.

A process counts as a node's only if the node's pid file is on its command line, so that a reused process ID is never
mistaken for a node or killed.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from provision.errors import LabError
from provision.lab.qmp import QmpClient

_START_SECONDS = 60
_KILL_SECONDS = 30
_REAP_SECONDS = 5


@dataclass(frozen=True)
class Machine:
    """The files of one node."""

    name: str
    folder: Path

    @property
    def disk(self) -> Path:
        """The node's changes on top of its image."""
        return self.folder / "disk.qcow2"

    @property
    def seed(self) -> Path:
        """The archive with its identity."""
        return self.folder / "seed.tar"

    @property
    def pid_file(self) -> Path:
        """Written by QEMU itself."""
        return self.folder / "qemu.pid"

    @property
    def serial(self) -> Path:
        """The console output since its last start."""
        return self.folder / "serial.log"

    @property
    def socket(self) -> Path:
        """The control socket of QEMU."""
        return self.folder / "provision-lab-qmp.sock"

    def last_words(self, count: int = 15) -> str:
        """Return the end of the console output."""
        try:
            text = self.serial.read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join([line.strip() for line in text.splitlines() if line.strip()][-count:])


@dataclass(frozen=True)
class MachineSettings:
    """The virtual hardware of a node."""

    accelerator: tuple[str, ...]
    """``-accel`` and ``-cpu`` with their values."""
    cpus: int
    memory_mib: int
    ssh_port: int
    multicast: str
    management_mac: str
    data_mac: str


def qemu_argv(machine: Machine, settings: MachineSettings) -> list[str]:
    """Return the command that starts the machine in the background."""
    # cache=unsafe skips fsync on the controller, but a guest's flush reaches the kernel: killing QEMU loses no more
    # than a power cut of a real machine.
    disk = f"file={_escaped(machine.disk)},format=qcow2,if=none,id=disk,cache=unsafe,discard=unmap"
    seed = f"file={_escaped(machine.seed)},format=raw,if=none,id=seed,read-only=on"
    argv = ["qemu-system-x86_64", "-name", machine.name, "-machine", "pc", *settings.accelerator]
    argv += ["-smp", str(settings.cpus), "-m", str(settings.memory_mib), "-nodefaults", "-no-user-config"]
    argv += ["-display", "none", "-vga", "none"]
    argv += ["-drive", disk, "-device", "virtio-blk-pci,drive=disk,addr=0x5,bootindex=0"]
    argv += ["-drive", seed, "-device", "virtio-blk-pci,drive=seed,addr=0x6,serial=seed"]
    argv += ["-device", "virtio-rng-pci,addr=0x7"]
    argv += ["-netdev", f"user,id=management,hostfwd=tcp:127.0.0.1:{settings.ssh_port}-:22"]
    argv += ["-device", _card("management", "0x3", settings.management_mac)]
    argv += ["-netdev", f"socket,id=data,mcast={settings.multicast},localaddr=127.0.0.1"]
    argv += ["-device", _card("data", "0x4", settings.data_mac)]
    argv += ["-serial", f"file:{machine.serial}"]
    argv += ["-qmp", f"unix:{machine.socket.name},server=on,wait=off"]  # relative: a socket's path must be short
    return [*argv, "-daemonize", "-pidfile", str(machine.pid_file)]


def start(machine: Machine, settings: MachineSettings) -> None:
    """Start the machine; it continues to run when this process ends.

    Raises:
        LabError: QEMU did not start; its message is in the output.
    """
    for leftover in (machine.pid_file, machine.socket, machine.serial):
        leftover.unlink(missing_ok=True)
    machine.serial.touch(mode=0o600)
    done = subprocess.run(
        qemu_argv(machine, settings),
        cwd=machine.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=_START_SECONDS,
    )
    if done.returncode:
        output = done.stderr.strip()
        remedy = "Check the output below; `provision lab down` and `up` create the nodes again."
        if "host forwarding" in output:
            remedy = f"Stop the program that uses port {settings.ssh_port}, or take the lab down and up again."
        raise LabError("the virtual machine did not start", node=machine.name, output=output, remedy=remedy)


def is_running(machine: Machine) -> bool:
    """Return whether the node's QEMU process is running."""
    process = _open_process(machine)
    if process is not None:
        os.close(process)
    return process is not None


def kill(machine: Machine) -> None:
    """Kill the process and return when it has ended."""
    process = _open_process(machine)
    if process is not None:
        try:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            if not select.select([process], [], [], _KILL_SECONDS)[0]:
                raise LabError(f"its process did not end within {_KILL_SECONDS} s", node=machine.name)
            _await_reaped(machine)
        except ProcessLookupError:
            pass
        finally:
            os.close(process)
    machine.pid_file.unlink(missing_ok=True)
    machine.socket.unlink(missing_ok=True)


def set_link(machine: Machine, *, up: bool) -> None:
    """Connect both network cables, or disconnect them."""
    with QmpClient(machine.socket, node=machine.name) as client:
        for card in ("management", "data"):
            client.execute("set_link", name=f"nic-{card}", up=up)


def _open_process(machine: Machine) -> int | None:
    """Return a descriptor of the node's process, which unlike a process ID is never reused."""
    try:
        pid = int(machine.pid_file.read_text())
        process = os.pidfd_open(pid)
    except (OSError, ValueError):
        return None
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        words = []
    if os.fsencode(machine.pid_file) in words:
        return process
    os.close(process)
    return None


def _await_reaped(machine: Machine) -> None:
    """Wait until init has reaped the dead process."""
    entry = Path(f"/proc/{machine.pid_file.read_text().strip()}")
    end = time.monotonic() + _REAP_SECONDS
    while entry.exists() and time.monotonic() < end:
        time.sleep(0.1)


def _card(name: str, slot: str, mac: str) -> str:
    return f"virtio-net-pci,netdev={name},id=nic-{name},addr={slot},mac={mac}"


def _escaped(path: Path) -> str:
    return str(path).replace(",", ",,")
