"""A change that cuts SSH is reverted by the node within its limit, and the report names it.

It has a lab of its own, because its node's program `ip` is replaced: with one MTU it drops SSH, as a switch may
(SIMULATED).
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from provision.lab.access import ssh_argv
from provision.lab.base import LabNode, NodeState
from tests.support.command import Done, Provision
from tests.support.node_shell import on_node
from tests.support.processes import marked

LAB = f"rescue{os.getpid()}"
NODE = f"{LAB}-1"
SECONDS, MTU = 20, 4200
WAITING = "/var/lib/provision/rescue/pending.json"
RULES = {
    "all packets": "tcp dport 22 drop",
    "new connections": "tcp dport 22 tcp flags & (syn | ack) == syn drop",
}
WRAPPER = f"""\
#!/bin/sh
# SIMULATED: SSH does not pass the switch while the MTU is {MTU}.
PROGRAM.real "$@" || exit
case "$*" in
*" mtu {MTU}") nft -f /root/cut.nft ;;
*" mtu "*) nft delete table inet cut 2>/dev/null ;;
esac
exit 0
"""
Apply = Callable[[], Done]


@pytest.fixture(scope="module")
def lab(provision: Provision) -> Iterator[dict[str, Any]]:
    """A bare node with nftables."""
    try:
        provision.ok("lab", "up", LAB, "--driver", "container", "--distro", "debian13", "--nodes", "1")
        shell(provision, "apt-get -q update && apt-get -y -q --no-install-recommends install nftables")
        [node] = provision.ok("lab", "status", LAB, "--json").document["nodes"]
        yield node
    finally:
        down = provision("lab", "down", LAB)
    assert down.code == 0, str(down)


def shell(provision: Provision, command: str) -> str:
    """Run a command on the node, over a connection of its own."""
    return on_node(provision, LAB, NODE, command, timeout=300)


@pytest.fixture(scope="module")
def interface(provision: Provision, lab: dict[str, Any]) -> str:
    """The interface over which SSH reaches the node."""
    lines = [line.split() for line in shell(provision, "ip -o -4 addr show").splitlines()]
    return next(words[1] for words in lines if words[3].partition("/")[0] == lab["address"])


@pytest.fixture
def inventory(provision: Provision, interface: str, tmp_path: Path) -> Path:
    """The inventory of the lab with an MTU."""
    path = tmp_path / "hosts.yml"
    document = yaml.safe_load((folder(provision) / "inventory/hosts.yml").read_text())
    settings = {
        "fabric_host_enabled": True,
        "fabric_host_interfaces": [interface],
        "fabric_host_mtu": MTU,
        "platform_rescue_seconds": SECONDS,
    }
    document["all"]["vars"] = {**document["all"].get("vars", {}), **settings}
    path.write_text(yaml.safe_dump(document))
    return path


def folder(provision: Provision) -> Path:
    """The folder of the lab's state."""
    return Path(provision.environment["XDG_STATE_HOME"]) / "provision/labs" / LAB


@pytest.fixture
def cut(provision: Provision, interface: str) -> Iterator[Callable[[str], None]]:
    """Let SSH not pass with the new MTU; afterwards the node is as before, with its own MTU."""
    program = shell(provision, "readlink -f $(command -v ip)").strip()
    before = shell(provision, f"cat /sys/class/net/{interface}/mtu").strip()

    def install(rule: str) -> None:
        table = f"table inet cut {{ chain input {{ type filter hook input priority 0; {rule}; }}; }}"
        lines = [f"printf '%s\\n' '{table}' >/root/cut.nft", "nft -c -f /root/cut.nft", f"mv {program} {program}.real"]
        lines += [f"cat >{program} <<'END'\n{WRAPPER.replace('PROGRAM', program)}END", f"chmod 755 {program}"]
        shell(provision, "\n".join(["set -e", *lines]))

    yield install
    shell(provision, f"[ ! -e {program}.real ] || mv {program}.real {program}; ip link set {interface} mtu {before}")


def applied(provision: Provision, inventory: Path) -> Done:
    """Apply the role to the node."""
    return provision("apply", "-i", str(inventory), "--yes", "--json", "--only", "fabric_host", timeout=400)


def mtu(provision: Provision, interface: str) -> int:
    """Return the MTU of the node, over a new connection."""
    return int(shell(provision, f"cat /sys/class/net/{interface}/mtu"))


def waiting(provision: Provision) -> str:
    """Return what would revert a change."""
    paths = f"{WAITING} /etc/systemd/system/provision-rescue-boot.service"
    timers = "systemctl list-timers --all --no-legend 'provision-rescue-*'"
    return shell(provision, f"for path in {paths}; do [ ! -e $path ] || echo $path; done; {timers}")


def killed_before_the_confirmation(
    provision: Provision, lab: dict[str, Any], inventory: Path, afterwards: str = "true"
) -> None:
    """Apply the role, kill the command as soon as the node has made the change, and run a command on the node."""
    mark = secrets.token_hex(8)
    node = LabNode(lab["name"], lab["address"], lab["port"], "", NodeState.RUNNING)
    changed = f'until grep -qs \'"stage": "changed"\' {WAITING}; do sleep 0.1; done'
    watch = ssh_argv(folder(provision), node, f"{changed}; echo changed; read -r line; {afterwards}")
    words = provision.argv("apply", "-i", str(inventory), "--yes", "--only", "fabric_host")
    environment = {**provision.environment, "RESCUE_TEST": mark}
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(watch, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdin is not None
        assert watcher.stdout is not None
        with subprocess.Popen(words, cwd=provision.folder, env=environment, **quiet) as apply:  # type: ignore[call-overload]
            assert watcher.stdout.readline() == "changed\n"
            for pid in marked(f"RESCUE_TEST={mark}"):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        assert apply.returncode == -signal.SIGKILL
        watcher.stdin.write("\n")
        watcher.stdin.close()
        assert watcher.wait(timeout=60) == 0


@pytest.mark.parametrize("packets", RULES)
def test_a_change_that_cuts_ssh_is_reverted_and_reported(
    provision: Provision, inventory: Path, interface: str, cut: Callable[[str], None], packets: str
) -> None:
    """Also one that only refuses new connections, over which Ansible's own connection still works."""
    before = mtu(provision, interface)
    cut(RULES[packets])

    started = time.monotonic()
    done = applied(provision, inventory)
    seconds = time.monotonic() - started
    [node] = done.document["nodes"]

    assert (done.code, node["status"]) == (1, "failed")
    assert "/etc/udev/rules.d/90-provision-fabric.rules" in node["error"]["message"]
    assert f"the controller had no new connection within {SECONDS} s" in node["error"]["message"]
    assert "platform_rescue_seconds" in node["error"]["remedy"]
    assert seconds < SECONDS + 100
    assert (mtu(provision, interface), waiting(provision)) == (before, "")
    shell(provision, "! [ -e /etc/udev/rules.d/90-provision-fabric.rules ]")
    checks = provision("verify", "-i", str(inventory), "--json").document["nodes"][0]["checks"]
    [check] = [one for one in checks if one["id"] == "platform.rescue"]
    assert (check["status"], check["code"]) == ("warn", "platform.rescue.limit"), check


def test_an_apply_that_was_killed_before_the_confirmation_is_reverted_and_completed_by_the_next(
    provision: Provision, lab: dict[str, Any], inventory: Path, interface: str, cut: Callable[[str], None]
) -> None:
    """The node reverts the change without its controller, and the confirmed change of the next apply stays."""
    before = mtu(provision, interface)
    cut(RULES["new connections"])
    killed_before_the_confirmation(provision, lab, inventory)

    end = time.monotonic() + SECONDS + 60
    while time.monotonic() < end:
        try:
            if mtu(provision, interface) == before:
                break
        except AssertionError:
            time.sleep(1)
    assert (mtu(provision, interface), waiting(provision)) == (before, "")

    shell(provision, "program=$(readlink -f $(command -v ip)); mv $program.real $program")
    done = applied(provision, inventory)
    assert done.code == 0, str(done)
    assert (mtu(provision, interface), waiting(provision)) == (MTU, "")
    assert provision("plan", "-i", str(inventory), "--json").document["nodes"][0]["reachable"]
    assert applied(provision, inventory).document["nodes"][0]["status"] == "unchanged"


def test_a_change_is_reverted_at_a_boot_before_its_confirmation(
    provision: Provision, lab: dict[str, Any], inventory: Path, interface: str, cut: Callable[[str], None]
) -> None:
    """The limit does not have to pass; nothing of the change is left, and the next apply makes it again."""
    provision.ok("reset", "--lab", LAB, "--yes")
    inventory.write_text(inventory.read_text().replace(f"rescue_seconds: {SECONDS}", "rescue_seconds: 600"))
    cut(RULES["new connections"])
    killed_before_the_confirmation(provision, lab, inventory, "nft delete table inet cut")

    provision.ok("lab", "reboot", LAB, NODE)
    assert waiting(provision) == ""
    shell(provision, "! [ -e /etc/udev/rules.d/90-provision-fabric.rules ]")
    checks = provision("verify", "-i", str(inventory), "--json").document["nodes"][0]["checks"]
    [check] = [one for one in checks if one["id"] == "platform.rescue"]
    assert (check["status"], check["code"]) == ("warn", "platform.rescue.boot"), check

    shell(provision, "program=$(readlink -f $(command -v ip)); mv $program.real $program")
    assert applied(provision, inventory).code == 0
    assert mtu(provision, interface) == MTU
