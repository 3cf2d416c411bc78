"""Measuring for real between two nodes that are this machine, with stand-ins for docker and ib_write_bw."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from provision.facts import Unknown
from provision.facts.container import Process
from provision.facts.rdma import Gid, RdmaDevice, RdmaPort, RdmaStack
from provision.model import Connection, Node
from provision.workflow.bandwidth import measure
from tests.support import processes
from tests.support.command import eventually
from tests.unit.checks.conftest import healthy

PERFTEST = f"""#!{sys.executable} -S
import socket, sys, time
words = sys.argv[1:]
if words == ["--help"]:
    sys.exit(1)
port = int(words[words.index("-p") + 1])
if words[-2] == "-p":
    listening = socket.create_server(("127.0.0.1", port))
    link = listening.accept()[0]
    link.sendall(b"x"); link.recv(1)
else:
    try:
        link = socket.create_connection((words[-1], port), timeout=5)
    except OSError:
        sys.exit(f"Couldn't connect to {{words[-1]}}:{{port}}")
    link.recv(1)
    print(" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]")
    print(" 65536      1000             0.20               0.18               0.000340")
"""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Stand-ins on the PATH; docker runs its command right here, and no process has a device open."""
    texts = {
        "docker": '#!/bin/sh\nshift; [ "$1" != -i ] || shift; shift; exec "$@"\n',
        "id": "#!/bin/sh\necho 0\n",
        "find": "#!/bin/sh\n",
        "ib_write_bw": PERFTEST,
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def node(name):
    """A node that is this machine."""
    variables = {"cluster_data_networks": ["127.0.0.0/8"], "training_container_name": "box"}
    return Node(name, Connection(name, local=True, become=False), variables)


def facts(address="127.0.0.1", state="ACTIVE", *, index=1, **more):
    """A node with a Soft-RoCE device on 127.0.0.0/8 and without GPUs."""
    last = int(address.rpartition(".")[2])
    gid = Gid(index, f"0000:0000:0000:0000:0000:ffff:7f00:{last:04x}", "RoCE v2", "lo")
    port = RdmaPort(1, "Ethernet", state, "LinkUp", "2.5 Gb/sec (1X SDR)", (gid,))
    stack = RdmaStack((RdmaDevice("rxe0", "", "uverbs0", ("lo",), (port,)),), 0, ("uverbs0",), "")
    return dataclasses.replace(healthy(), rdma=stack, gpus=(), gpu_pci=(), **more)


def test_two_nodes_are_measured_in_both_directions(programs):  # noqa: ARG001
    """Rounds and time are said first, then each round; nothing is left running."""
    said = []
    result = measure([node("gpu1"), node("gpu2")], {"gpu1": facts(), "gpu2": facts()}, said.append)

    assert [(p.a.node, p.b.node, p.gbit_s, p.memory, p.reason) for p in result.pairs] == [
        ("gpu1", "gpu2", 0.18, "host", ""),
        ("gpu2", "gpu1", 0.18, "host", ""),
    ]
    assert said[0] == "bandwidth: 2 nodes, all pairs: 2 rounds, about 30s"
    assert said[1:] == ["bandwidth: round 1 of 2: gpu1 -> gpu2", "bandwidth: round 2 of 2: gpu2 -> gpu1"]
    assert [why.code for why in result.host_memory] == ["rdma_stack.bandwidth.no_gpu"]
    assert (result.left_out, result.broken) == ({}, {})


def test_nodes_with_unmeasured_gpus_are_reported(programs):  # noqa: ARG001
    """A card, real GPUs and a way between them: that the image's perftest knows no GPU memory is said of that node."""
    port = facts().rdma.devices[0].ports[0]
    card = RdmaStack((RdmaDevice("mlx5_0", "mlx5_core", "uverbs0", ("lo",), (port,)),), 1, ("uverbs0",), "")
    able = dataclasses.replace(healthy(), rdma=card)
    without = dataclasses.replace(able, gpus=(), gpu_pci=())
    result = measure([node("gpu1"), node("gpu2")], {"gpu1": able, "gpu2": without}, lambda _: None)

    assert {pair.memory for pair in result.pairs} == {"host"}
    assert result.tool_lacks == ("gpu1",)


def test_an_unreachable_address_is_the_reason(programs):  # noqa: ARG001
    """The receiving end listens on 127.0.0.1 only, so 127.0.0.9 is unreachable; its end is not left behind."""
    result = measure([node("gpu1"), node("gpu2")], {"gpu1": facts(), "gpu2": facts("127.0.0.9")}, lambda _: None)
    results = {p.a.node: p for p in result.pairs}

    assert results["gpu1"].gbit_s is None
    assert "no connection to 127.0.0.9" in results["gpu1"].reason
    assert results["gpu2"].gbit_s == 0.18


def test_excluded_and_broken_nodes_are_reported_separately(programs):  # noqa: ARG001
    """Broken, busy, unknown, without a device, not reached: each with its own reason, and nothing is measured."""
    container = healthy().container
    working = dataclasses.replace(container, processes=(*container.processes, Process(9, "python3")))
    known = {
        "cut": facts(state="DOWN"),
        "busy": facts(container=working),
        "unknown": facts(container=Unknown("docker inspect hung")),
        "plain": dataclasses.replace(facts(), rdma=RdmaStack((), 0, (), "")),
        "idle": facts(),
    }
    said = []
    result = measure([node(name) for name in (*known, "gone")], known, said.append)

    assert result.idle == ("idle",)
    assert result.broken == {"cut": "rxe0 port 1 is DOWN"}
    assert "python3" in result.left_out["busy"]
    assert "hung" in result.left_out["unknown"]
    assert result.left_out["plain"] == "it has no RDMA device"
    assert result.left_out["gone"] == "unreachable"
    assert result.pairs == ()
    assert said == ["bandwidth: nothing to measure"]


def test_a_node_with_devices_in_use_is_excluded(programs):
    """The fresh look counts, not only what the probe saw; a service that holds devices does not matter."""
    (programs / "find").write_text(f"#!/bin/sh\necho '/proc/{os.getpid()}/fd/3 /dev/infiniband/uverbs0'\n")
    result = measure([node("gpu1"), node("gpu2")], {"gpu1": facts(), "gpu2": facts()}, lambda _: None)

    assert result.pairs == ()
    assert f"process {os.getpid()}" in result.left_out["gpu1"]


def test_devices_off_the_data_network_are_broken_only_if_others_are_on_it(programs):  # noqa: ARG001
    """A lost address is the node's fault; a network that no card is on is the inventory's."""
    away = dataclasses.replace(facts("127.0.0.1"), addresses=())
    lost = dataclasses.replace(
        away,
        rdma=RdmaStack(
            (dataclasses.replace(away.rdma.devices[0], ports=(RdmaPort(1, "Ethernet", "ACTIVE", "LinkUp", ""),)),),
            0,
            (),
            "",
        ),
    )
    both = measure([node("gpu1"), node("gpu2")], {"gpu1": lost, "gpu2": lost}, lambda _: None)
    one = measure([node("gpu1"), node("gpu2")], {"gpu1": lost, "gpu2": facts()}, lambda _: None)

    assert (list(both.broken), list(both.left_out)) == ([], ["gpu1", "gpu2"])
    assert list(one.broken) == ["gpu1"]
    assert "(rxe0) is on the data network (127.0.0.0/8)" in one.broken["gpu1"]


def test_a_node_that_fails_with_three_partners_is_skipped(programs, monkeypatch):
    """After three partners the rest of its pairs is spared, and all others are measured.

    One pair at a time, for here all nodes share one machine's ports.
    """
    monkeypatch.setattr("provision.workflow.bandwidth._AT_ONCE", 1)
    deaf = (
        "if '-x' in words and words[words.index('-x') + 1] == '7': sys.exit(\" Unable to set up socket connection\")\n"
    )
    (programs / "ib_write_bw").write_text(PERFTEST.replace("port = int", f"{deaf}port = int", 1))
    names = [f"gpu{number}" for number in range(1, 5)]
    known = {name: facts(index=7 if name == "gpu4" else 1) for name in names}
    result = measure([node(name) for name in names], known, lambda _: None)
    mine = [p for p in result.pairs if "gpu4" in {p.a.node, p.b.node}]

    assert {(p.gbit_s, "GID at the index" in p.reason) for p in mine} == {(None, True)}
    assert len(mine) == 3
    assert [p.gbit_s for p in result.pairs if p not in mine] == [0.18] * 6


INTERRUPTED = """
import sys
from provision.workflow.bandwidth import measure
from tests.unit.test_bandwidth import facts, node

measure([node("gpu1"), node("gpu2")], {"gpu1": facts(), "gpu2": facts()}, lambda line: print(line, flush=True))
"""


@pytest.mark.parametrize("signal_name", ["SIGINT", pytest.param("SIGTERM", marks=pytest.mark.long), "SIGKILL"])
def test_an_interrupted_measurement_leaves_no_processes(programs, signal_name):
    """However this process ends, both ends on the nodes end too.

    Of SIGTERM it dies as of SIGKILL here; the command takes it as it takes Ctrl-C.
    """
    hang = "import signal, time\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(300)\n"
    marked = f"GUARD={os.getpid()}-{time.monotonic_ns()}"
    script = PERFTEST.replace(
        "    link.recv(1)\n    print", f"    {hang.replace(chr(10), chr(10) + '    ')}\n    print", 1
    )
    (programs / "ib_write_bw").write_text(script)
    root = Path(__file__).resolve().parents[2]
    child = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        env={**os.environ, **dict([marked.split("=")]), "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        while "round 1" not in child.stdout.readline():
            assert child.poll() is None
        eventually(
            lambda: len([pid for pid in processes.marked(marked) if "ib_write_bw" in command(pid)]) >= 2,
            seconds=15,
            what="two processes of ib_write_bw",
        )
        child.send_signal(getattr(signal, signal_name))
        child.wait(20)

        eventually(lambda: not processes.marked(marked), seconds=15, what="the end of all processes")
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        for pid in processes.marked(marked):
            os.kill(pid, 9)


def command(pid):
    """A process's command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
