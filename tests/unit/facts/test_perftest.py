"""Output of ib_write_bw, rendered in its own layout, and processes with open devices."""

from __future__ import annotations

import subprocess

import pytest

from provision.facts import Unknown
from provision.facts.perftest import Holder, bandwidth, explain, parse_readiness, readiness_script

RULE = "-" * 87
NO_WAY = """Couldn't connect to 10.77.0.2:18515
Unable to open file descriptor for socket connection Unable to init the socket connection
"""
LOST = """ Completion with error at client
 Failed status 12: wr_id 0 syndrom 0x81
scnt=128, ccnt=0
 Failed to complete run_iter_bw function successfully
ethernet_read_keys: Couldn't read remote address
"""


def report(*rows: str, unit: str = "Gb", warnings: str = "") -> str:
    """Return a client's complete output; a row is ``bytes iterations peak average rate`` with perftest's spacing."""
    return "\n".join(
        [
            warnings,
            RULE,
            "                    RDMA_Write BW Test",
            " Dual-port       : OFF\t\tDevice         : mlx5_0",
            " Number of qps   : 1\t\tTransport type : IB",
            " Connection type : RC\t\tUsing SRQ      : OFF",
            " PCIe relax order: ON",
            " ibv_wr* API     : ON",
            " TX depth        : 128",
            " CQ Moderation   : 1",
            " Mtu             : 4096[B]",
            " Link type       : Ethernet",
            " GID index       : 3",
            " Max inline data : 0[B]",
            " rdma_cm QPs\t : OFF",
            " Data ex. method : Ethernet",
            RULE,
            " local address: LID 0000 QPN 0x0108 PSN 0x63ad7d RKey 0x17eedf VAddr 0x007f760c947000",
            " GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:77:00:01",
            " remote address: LID 0000 QPN 0x0076 PSN 0xf3810c RKey 0x201600 VAddr 0x007fbb4c981000",
            " GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:77:00:02",
            RULE,
            f" #bytes     #iterations    BW peak[{unit}/sec]    BW average[{unit}/sec]   MsgRate[Mpps]",
            *rows,
            RULE,
            "",
        ]
    )


@pytest.mark.parametrize(
    ("text", "gbit_s"),
    [
        (report(" 8388608    7300             0.00               97.99  \t\t   0.001460"), 97.99),
        (report(" 65536      1000             0.18               0.176\t\t   0.000336"), 0.176),
        (report(" 2          5000           0.042350            0.042185            2.636533"), 0.042185),
        (report(" 65536      5000             21000.00            20000.00\t\t   0.320000", unit="MB"), 167.77216),
        (report(" 65536      5000             21000.00            20000.00\t\t   0.320000", unit="MiB"), 167.77216),
    ],
    ids=["by time, without a peak", "slow", "small messages", "MiB called MB", "MiB"],
)
def test_the_average_is_read_in_gbit(text, gbit_s):
    assert bandwidth(text) == pytest.approx(gbit_s)


@pytest.mark.parametrize(
    "text", ["", report(), report(" 8388608    0  0.00  0.00  0.000000"), " 65536 1000 96.4 96.4 0.18\n"]
)
def test_an_output_without_a_table_has_no_bandwidth(text):
    assert bandwidth(text) is None


@pytest.mark.parametrize(
    ("said", "code", "reason"),
    [
        (NO_WAY, 1, "no connection to 10.77.0.2 port 18515"),
        (
            "Failed to modify QP 279 to RTR\n Unable to Connect the HCA's through the link\n",
            1,
            "no path between the GIDs",
        ),
        (" Unable to set up socket connection\n", 1, "GID at the index in sysfs"),
        (LOST, 1, "packets are lost"),
        ("Failed status 4: wr_id 0 syndrom 0x51\n", 1, "completion status 4"),
        (" Did not detect devices \n If device exists, check if driver is up\n", 1, "not in the container"),
        ("IB device mlx5_9 not found\n Unable to find the Infiniband/RoCE device\n", 1, "not in the container"),
        (" Port number 1 state is Down\n Couldn't set the link layer\n", 1, "port 1 is Down"),
        ("Couldn't allocate MR\n Couldn't create IB resources\n", 1, "memory cannot be registered"),
        ("ib_write_bw: unrecognized option '--use_cuda=0'\n Invalid Command or flag.\n", 1, "not support --use_cuda=0"),
        ("Couldn't listen to port 18515\n", 1, "port 18515 is in use"),
        (report(), 124, "no answer within 30 s"),
        (report(), 137, "no answer within 30 s"),
        (report() + "Something new happened here\n", 1, "Something new happened here"),
        (report(), 1, "ib_write_bw exited with status 1"),
        ("", None, "without output"),
        ("Error response from daemon: No such container: box\n", None, "No such container: box"),
    ],
)
def test_failures_are_explained(said, code, reason):
    assert reason in explain(said, code, 30)


def test_open_devices_are_reported():
    """Services with open devices on an idle node do not make it busy; a job's process does."""
    readiness = parse_readiness(
        "held 900 /dev/nvidia0 nvidia-persiste\nheld 4242 /dev/infiniband/uverbs0 python3\n"
        "looked\nknows --use_cuda\nknows --use_cuda_dmabuf\nasked\n"
    )

    assert readiness.holders == (Holder(4242, "python3", "/dev/infiniband/uverbs0"),)
    assert (readiness.cuda, readiness.cuda_dmabuf, readiness.missing) == (True, True, ())


def test_perftest_support_for_gpu_memory_is_detected():
    """Debian's perftest has no --use_cuda; an image may lack perftest."""
    assert parse_readiness("looked\nasked\n").cuda is False
    assert parse_readiness("looked\nknows --use_cuda\nasked\n").cuda_dmabuf is False
    assert parse_readiness("looked\nmissing ib_write_bw\nasked\n").missing == ("ib_write_bw",)


@pytest.mark.parametrize(
    ("text", "error", "reason"),
    [
        ("", "", "no answer"),
        ("this check requires root and find\n", "", "this check requires root and find"),
        ("looked\n", "Error response from daemon: container is not running\n", "container is not running"),
    ],
)
def test_an_incomplete_readiness_output_is_unknown(text, error, reason):
    readiness = parse_readiness(text, error)

    assert isinstance(readiness, Unknown)
    assert reason in readiness.reason


def test_the_readiness_script_probes_container_and_node(tmp_path):
    programs = {
        "docker": 'shift 2; exec "$@"',
        "id": "echo 0",
        "find": "echo '/proc/1/fd/7 /dev/infiniband/uverbs1'",
        "ib_write_bw": "echo '  --use_cuda=<device id> Use CUDA specific device'; exit 1",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", readiness_script("box")],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    readiness = parse_readiness(done.stdout, done.stderr)

    assert (readiness.cuda, readiness.cuda_dmabuf, readiness.missing) == (True, False, ())
    assert [(holder.pid, holder.device) for holder in readiness.holders] == [(1, "/dev/infiniband/uverbs1")]
