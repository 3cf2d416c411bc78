"""A container lab by itself: what it makes, what it repairs, and that nothing of it stays."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.command import with_own_state
from tests.support.engine import engine_host, held

LAB = f"bare{os.getpid()}"
FIRST, SECOND = f"{LAB}-1", f"{LAB}-2"


@pytest.fixture(scope="module")
def provision():
    """The command with a state folder of its own; built images are shared with every other lab."""
    with with_own_state() as command:
        yield command


@pytest.fixture(scope="module")
def lab(provision):
    """Two bare nodes without GPUs."""
    try:
        provision.ok("lab", "up", LAB, "--driver", "container")
        yield provision.ok("lab", "status", LAB, "--json").document
    finally:
        provision("lab", "down", LAB)


def shell(provision, node, command):
    """Output of a command on a node."""
    return provision.ok("lab", "ssh", LAB, node, "--", command).out.strip()


def output(*argv):
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def processes_of(folder):
    """Pids of processes that name the lab's folder."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in path.read_bytes():
                pids.append(path.parent.name)
    return pids


def test_bare_nodes_have_ssh_and_python_and_no_traces_of_provision(provision, lab):
    """A node boots cleanly and carries no docker, no MPI and no traces of provision."""
    assert [node["state"] for node in lab["nodes"]] == ["running", "running"]
    assert shell(provision, FIRST, "systemctl is-system-running --wait") == "running"
    assert shell(provision, FIRST, "python3 -c 'print(6 * 7)'") == "42"
    assert shell(provision, FIRST, "command -v docker mpirun || test -e /var/lib/provision || echo bare") == "bare"


def test_nodes_have_different_host_keys_and_a_common_data_network(provision, lab):
    """Every node has a host key of its own, a name of its own, and the data network between them."""
    keys = {shell(provision, node["name"], "cat /etc/ssh/ssh_host_ed25519_key.pub") for node in lab["nodes"]}
    other = shell(provision, SECOND, "ip -4 -br address show | grep -o '10\\.79[.0-9]*'")

    assert len(keys) == 2
    assert shell(provision, SECOND, "hostname") == SECOND
    program = f"import socket; socket.create_connection(('{other}', 22), 5); print('reached')"
    assert shell(provision, FIRST, f'python3 -c "{program}"') == "reached"


def test_a_wrong_host_key_is_refused(provision, lab):
    """With the node's key gone from known_hosts no login happens."""
    known = provision.folder / "state/provision/labs" / LAB / "known_hosts"
    text = known.read_text()
    try:
        known.write_text("")
        done = provision("lab", "ssh", LAB, FIRST, "--", "true")
    finally:
        known.write_text(text)

    assert lab["nodes"]
    assert done.code == 255
    assert "Host key verification failed" in done.err


def test_lab_up_starts_stopped_nodes_and_reconnects_disconnected_ones(provision, lab):
    """lab up repairs: it starts what is off and plugs in what is cut, with what the nodes had written."""
    shell(provision, FIRST, "echo kept > /root/note")
    provision.ok("lab", "power", LAB, FIRST, "off")
    provision.ok("lab", "link", LAB, SECOND, "off")
    states = [node["state"] for node in provision.ok("lab", "status", LAB, "--json").document["nodes"]]
    again = provision.ok("lab", "up", LAB, "--json").document

    assert states == ["stopped", "running"]
    assert again == lab
    assert shell(provision, FIRST, "cat /root/note") == "kept"
    assert shell(provision, SECOND, "hostname") == SECOND


def test_a_reconnected_node_has_its_previous_interfaces_and_routes(provision, lab):
    """A cut node does not answer; connected again, its interfaces have the same names, addresses and default route."""
    before = shell(provision, SECOND, "ip -br -4 address && ip route")
    provision.ok("lab", "link", LAB, SECOND, "off")
    cut = provision("lab", "ssh", LAB, SECOND, "--", "true")
    provision.ok("lab", "link", LAB, SECOND, "on")

    assert lab["nodes"]
    assert cut.code == 255, str(cut)
    assert shell(provision, SECOND, "ip -br -4 address && ip route") == before


def test_a_reboot_clears_the_memory_of_a_node(provision, lab):
    """reboot returns when the node is back, and what lived in memory is gone."""
    shell(provision, SECOND, "touch /run/only-until-reboot")
    provision.ok("lab", "reboot", LAB, SECOND)

    assert lab["nodes"]
    assert shell(provision, SECOND, "test -e /run/only-until-reboot || echo gone") == "gone"


def test_lab_up_with_different_options_is_refused_without_changes(provision, lab):
    """lab up with other options than the lab's is an error that says what to do."""
    done = provision("lab", "up", LAB, "--nodes", "3")

    assert lab["nodes"]
    assert done.code == 1
    assert f"provision lab down {LAB}" in done.err


def test_lab_down_removes_everything_and_can_be_repeated(provision, lab):
    """After lab down no container, network, volume, bridge, rule, process or file of the lab is left."""
    address = lab["nodes"][0]["address"]
    subnet = address.rsplit(".", 1)[0]
    folder = provision.folder / "state/provision/labs" / LAB
    host = engine_host(folder)
    label = f"label=provision.lab={LAB}"
    assert held(host, "ps", "-aq", "--filter", label)
    provision.ok("lab", "down", LAB)
    provision.ok("lab", "down", LAB)

    assert held(host, "ps", "-aq", "--filter", label) == []
    assert held(host, "network", "ls", "-q", "--filter", label) == []
    assert held(host, "volume", "ls", "-q", "--filter", label) == []
    assert list(folder.parent.iterdir()) == []
    assert processes_of(folder) == []
    assert subnet not in output("ip", "-4", "-br", "address")
    assert subnet not in output("iptables-save")
