"""What p2pBandwidthLatencyTest prints, in its form; the figures are made up."""

from __future__ import annotations

import pytest

from provision.errors import UsageError
from provision.topology.p2p import parse_p2p


def rows(*figures):
    lines = [f"   D\\D {'      '.join(map(str, range(len(figures))))} "]
    return "\n".join([*lines, *(f"{n:6d} {' '.join(f'{x:6.2f}' for x in row)} " for n, row in enumerate(figures))])


def output(**matrices):
    """The program's output with these matrices, by the start of their titles."""
    titles = {
        "one_way_without": "Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)",
        "one_way": "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)",
        "reads": "Unidirectional P2P=Enabled Bandwidth (P2P Reads) Matrix (GB/s)",
        "bidirectional": "Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)",
    }
    head = "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\nDevice=0 CAN Access Peer Device=1\n"
    head += "P2P Connectivity Matrix\n     D\\D     0     1\n     0\t     1     1\n     1\t     1     1\n"
    parts = [f"{titles[name]}\n{rows(*figures)}" for name, figures in matrices.items()]
    latency = f"P2P=Enabled Latency (P2P Writes) Matrix (us)\n{rows((1.33, 2.1), (2.09, 1.3))}\n"
    return head + "\n".join([*parts, latency])


WITHOUT = [(900.0, 9.9), (9.8, 901.0)]
WRITES = [(902.14, 48.37), (48.29, 903.0)]
READS = [(902.0, 30.0), (30.0, 903.0)]
BOTH = [(918.0, 96.2), (95.8, 924.0)]


def test_unidirectional_writes_count_in_the_slower_direction():
    rates = parse_p2p(output(one_way_without=WITHOUT, one_way=WRITES, reads=READS, bidirectional=BOTH), "p2p.txt")

    assert rates == ((9021, 482), (482, 9030))


def test_half_of_a_bidirectional_rate_counts():
    assert parse_p2p(output(one_way_without=WITHOUT, bidirectional=BOTH), "p2p.txt")[0][1] == 479


def test_without_peer_access_copies_through_the_host_count():
    assert parse_p2p(output(one_way_without=WITHOUT), "p2p.txt")[0][1] == 98


@pytest.mark.parametrize(
    "text",
    ["", "no matrix", output(), output(one_way=WRITES).split(" 48.29")[0]],
    ids=["empty", "other text", "only latencies", "cut"],
)
def test_a_text_without_a_complete_bandwidth_matrix_is_refused(text):
    with pytest.raises(UsageError, match=r"p2p\.txt: no bandwidths between GPUs"):
        parse_p2p(text, "p2p.txt")
