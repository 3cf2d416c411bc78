"""The command lines of ib_write_bw, and the guard around it as a real shell with stand-ins on the PATH."""

from __future__ import annotations

import os
import socket
import subprocess
import time

import pytest

from provision.commands.perftest import END, READY, TAKEN, WriteBw, guarded_script, write_bw_argv
from tests.support.processes import marked

ROCE = WriteBw("mlx5_0", 1, 3, size_bytes=8388608, seconds=6)
GRACE = "timeout -k 2 "
"""How the guard starts the test: two seconds after it was asked to end it is killed, which is long for these tests."""
SERVER = """import socket, sys, time
port = int(sys.argv[sys.argv.index("-p") + 1])
s = socket.create_server(("127.0.0.1", port)); s.accept()[0].recv(1); print("done")"""


def test_both_sides_of_a_roce_pair_get_the_same_options():
    """Device, port, GID, size, time, units: the client's has the address besides."""
    client = write_bw_argv(ROCE, server="10.77.0.2", port=18520)
    common = "ib_write_bw -d mlx5_0 -i 1 -x 3 -s 8388608 -D 6 -f 1 -F --report_gbits"

    assert client == [*common.split(), "-p", "18520", "10.77.0.2"]
    assert write_bw_argv(ROCE) == common.split()


def test_infiniband_has_no_gid_and_soft_devices_count_instead_of_timing():
    """-x is RoCE's; -n replaces -D."""
    words = write_bw_argv(WriteBw("mlx5_1", 2, iterations=1000))

    assert words == ["ib_write_bw", "-d", "mlx5_1", "-i", "2", "-s", "65536", "-n", "1000", "-F", "--report_gbits"]


@pytest.mark.parametrize(
    ("dmabuf", "options"), [(False, ["--use_cuda=3"]), (True, ["--use_cuda=3", "--use_cuda_dmabuf"])]
)
def test_options_for_gpu_memory_depend_on_its_path(dmabuf, options):
    """A peer-memory module needs no further word, DMA-BUF does; GPUs are counted as nvidia-smi counts them."""
    test = WriteBw("mlx5_0", 1, 3, seconds=6, cuda=3, cuda_dmabuf=dmabuf)

    assert [word for word in write_bw_argv(test) if "cuda" in word] == options
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in guarded_script("box", test, limit_seconds=9)


@pytest.fixture
def start(tmp_path):
    """Start guards with a stand-in for ib_write_bw; whatever they leave is killed after the test."""
    mark = f"GUARD_TEST={os.getpid()}-{time.monotonic_ns()}"
    running = []

    def begin(program, *, limit=20, **options):
        stand_ins = {"docker": 'shift 3; exec "$@"', "ib_write_bw": program}
        for name, text in stand_ins.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / name).chmod(0o755)
        child = subprocess.Popen(
            ["sh", "-c", guarded_script("box", ROCE, limit_seconds=limit, **options).replace(GRACE, "timeout -k 0.3 ")],
            env={"PATH": f"{tmp_path}:/usr/bin:/bin", **dict([mark.split("=")])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        running.append(child)
        return child, lambda: marked(mark)

    yield begin
    for child in running:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
    for pid in marked(mark):
        os.kill(pid, 9)


def gone(left, seconds=10):
    """Wait until nothing is left; returns what still is."""
    deadline = time.monotonic() + seconds
    while left() and time.monotonic() < deadline:
        time.sleep(0.05)
    return left()


def test_output_and_exit_status_are_returned(start):
    """Both streams arrive, and the status is that of ib_write_bw."""
    child, left = start("echo out; echo err >&2; exit 3", server="10.0.0.2")
    lines = child.stdout.read().decode().splitlines()

    assert sorted(lines[:2]) == ["err", "out"]
    assert lines[-1] == f"{END} 3"
    assert gone(left) == []


@pytest.mark.parametrize("program", ["exec sleep 60", "trap '' TERM HUP INT; while :; do sleep 0.1; done"])
def test_processes_end_when_the_client_disconnects(start, program):
    """The end of its input is enough, for an end that waits and for one that ignores signals."""
    child, left = start(f"echo started; {program}", server="10.0.0.2")
    assert b"started" in child.stdout.readline()
    child.stdout.close()
    child.stdin.close()

    assert gone(left) == []


def test_a_hanging_process_is_ended_after_its_time_limit(start):
    """An end whose partner never answers is over after the limit, while we still listen."""
    child, left = start("exec sleep 60", limit=1, server="10.0.0.2")

    assert child.stdout.read().decode().splitlines()[-1] == f"{END} 124"
    assert gone(left) == []


def test_a_server_reports_when_it_listens(start, tmp_path):
    """The port that it says takes connections then."""
    (tmp_path / "server.py").write_text(SERVER)
    child, left = start(f'exec /usr/bin/env python3 {tmp_path}/server.py "$@"', port=free_port())
    word, port = child.stdout.readline().decode().split()
    socket.create_connection(("127.0.0.1", int(port)), timeout=5).close()

    assert word == READY
    assert child.stdout.read().decode().splitlines() == ["done", f"{END} 0"]
    assert gone(left) == []


def free_port():
    """A port that is free, with free ones behind it most likely."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def test_a_port_in_use_is_skipped(start):
    """The next free one is taken, whatever address the others listen on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        child, _ = start('echo "args $*"', port=port)
        said = next(line for line in child.stdout.read().decode().splitlines() if line.startswith("args"))

    assert int(said.split()[-1]) > port
    assert said.split()[-2] == "-p"


def test_missing_free_ports_are_reported(start, monkeypatch):
    """When all that are looked at are taken, nothing is started."""
    monkeypatch.setattr("provision.commands.perftest._GUARD", guard_of_one_port())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        child, left = start("echo never", port=taken.getsockname()[1])
        lines = child.stdout.read().decode().splitlines()

    assert lines == [TAKEN]
    assert gone(left) == []


def guard_of_one_port():
    """The guard, told to look at a single port."""
    from provision.commands import perftest

    return perftest._GUARD.replace(f"port + {perftest.PORTS}", "port + 1")
