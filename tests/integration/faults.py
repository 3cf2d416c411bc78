"""Faults that come while an apply is at work: how each is made, and how it is lifted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.command import Provision, eventually

__all__ = ["FAULTS", "Place"]


@dataclass
class Place:
    """The lab, the apply under way, and what lifts the faults."""

    provision: Provision
    lab: str
    node: str
    services: Path
    """Folder of the lab's registry and repository."""
    apply: subprocess.Popen[str]
    lift: ExitStack = field(default_factory=ExitStack)

    def shell(self, command: str) -> None:
        """Run something on the node; where it is cut off already, nothing is lost."""
        self.provision("lab", "ssh", self.lab, self.node, "--", command)

    def verb(self, *words: str) -> None:
        """Run a verb of the lab; it must succeed."""
        self.provision.ok("lab", *words)

    def later(self, function: Callable[..., object], *words: str) -> None:
        """Lift the fault so."""
        self.lift.callback(function, *words)


def controller_killed(place: Place) -> None:
    """No word is said any more; what runs on the nodes runs on."""
    os.killpg(place.apply.pid, signal.SIGKILL)


def controller_interrupted(place: Place) -> None:
    """Ctrl-C."""
    os.killpg(place.apply.pid, signal.SIGINT)


def controller_terminated(place: Place) -> None:
    """A laptop that is closed sends SIGHUP."""
    os.killpg(place.apply.pid, signal.SIGHUP)


def sessions_killed(place: Place) -> None:
    """All SSH sessions of the node end."""
    place.shell("pkill -KILL -f '^sshd(-session)?: root' ; true")


def power_cut(place: Place) -> None:
    """The node goes without a word."""
    place.verb("power", place.lab, place.node, "off")
    place.later(place.verb, "power", place.lab, place.node, "on")


def rebooted(place: Place) -> None:
    """Somebody else reboots the node."""
    place.provision("lab", "reboot", place.lab, place.node)


def all_networks_cut(place: Place) -> None:
    """Management too: half-open connections on both sides."""
    place.verb("link", place.lab, place.node, "off")
    place.later(place.verb, "link", place.lab, place.node, "on")


def data_network_cut(place: Place) -> None:
    """The node can be reached, and none of the others from it."""
    place.later(place.verb, "link", place.lab, place.node, "on")
    place.shell("ip link set dev eth1 down || true")


def packages_do_not_fit(place: Place) -> None:
    """No space for the packages that are fetched."""
    place.later(place.shell, "umount /var/cache/apt/archives || true")
    place.shell("mount -t tmpfs -o size=32k none /var/cache/apt/archives && mkdir /var/cache/apt/archives/partial")


def records_do_not_fit(place: Place) -> None:
    """No space for receipts."""
    place.later(place.shell, "umount /var/lib/provision/receipts || true")
    place.shell("mkdir -p /var/lib/provision/receipts; mount -t tmpfs -o size=4k none /var/lib/provision/receipts")


def registry_stopped(place: Place) -> None:
    """It takes connections and answers none."""
    halt(place, "registry-*.json")


def repository_stopped(place: Place) -> None:
    """The same of the package repository."""
    halt(place, "repository*.json")


def halt(place: Place, records: str) -> None:
    pids = [json.loads(record.read_text())["pid"] for record in place.services.glob(records)]
    assert pids, f"no process is recorded in {place.services}/{records}"
    for pid in pids:
        place.lift.callback(os.kill, pid, signal.SIGCONT)
        os.kill(pid, signal.SIGSTOP)


def apt_locked(place: Place) -> None:
    """Somebody else installs packages."""
    program = (
        "import fcntl, time; stream = open('/var/lib/dpkg/lock-frontend', 'w'); "
        "fcntl.lockf(stream, fcntl.LOCK_EX); time.sleep(600)"
    )
    place.later(place.shell, "pkill -KILL -f '^python3 -c import fcntl, time' ; true")
    place.shell(f'nohup python3 -c "{program}" >/dev/null 2>&1 </dev/null &')


def docker_killed(place: Place) -> None:
    """The engine dies while images and containers are made."""
    place.shell("pkill -KILL dockerd; true")


FAULTS: tuple[Callable[[Place], None], ...] = (
    controller_killed,
    controller_interrupted,
    controller_terminated,
    sessions_killed,
    power_cut,
    rebooted,
    all_networks_cut,
    data_network_cut,
    packages_do_not_fit,
    records_do_not_fit,
    registry_stopped,
    repository_stopped,
    apt_locked,
    docker_killed,
)


def ready(place: Place) -> None:
    """Wait until the node answers again."""
    eventually(
        lambda: place.provision("lab", "ssh", place.lab, place.node, "--", "true").code == 0,
        seconds=120,
        what=f"{place.node} answers",
    )
