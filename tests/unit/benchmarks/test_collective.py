"""Tables of an all-reduce, from NCCL's tests and from our program."""

from __future__ import annotations

from provision.benchmarks.collective import parse_all_reduce

NCCL_TESTS = """\
# nThread 1 nGpus 1 minBytes 536870912 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#  Rank  0 Group  0 Pid   3174 on       gpu1 device  0 [0x07] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   3175 on       gpu1 device  1 [0x0b] NVIDIA H100 80GB HBM3
gpu1:3174:3174 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
   536870912     134217728     float     sum      -1   2380.7  225.51  422.83      0   2379.0  225.67  423.13      0
  1073741824     268435456     float     sum      -1   4560.1  235.47  441.50      0   4551.0  235.94  442.39      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 432.463
#
"""
OLDER = """\
#   Rank  0 Pid   1 on gpu1 device  0 [0x00] Tesla V100-SXM2-16GB
#                                                       out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
    33554432       8388608   float     sum   1000.0   33.55   58.72  4e-07   1000.0   33.55   58.72  4e-07
# Out of bounds values : 3 FAILED
"""


def test_the_largest_message_is_the_result():
    table = parse_all_reduce(NCCL_TESTS)

    assert (table.ranks, table.wrong, table.largest) == (2, 0, (1073741824, 441.5))
    assert [size for size, _ in table.rows] == [536870912, 1073741824]


def test_rank_tags_are_ignored():
    tagged = "".join(f"[0] {line}\n" for line in NCCL_TESTS.splitlines())

    assert parse_all_reduce(tagged) == parse_all_reduce(NCCL_TESTS)


def test_older_tables_and_wrong_sums_are_read():
    table = parse_all_reduce(OLDER)

    assert (table.ranks, table.wrong, table.largest) == (1, 3, (33554432, 58.72))


def test_independent_ranks_count_as_one_rank():
    """nccl-tests without MPI print one table per process."""
    assert parse_all_reduce(OLDER + OLDER).ranks == 1


def test_a_truncated_output_has_no_wrong_count():
    assert parse_all_reduce(NCCL_TESTS.partition("# Out")[0]).wrong is None
    assert parse_all_reduce("all_reduce_perf: command not found\n1 2 3 4 5\n").largest is None
