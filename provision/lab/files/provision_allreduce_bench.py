#!/usr/bin/python3
"""Measure all-reduce over MPI and check every result; it uses CPU memory only, no GPUs.

The columns are those that NCCL's own tests made familiar. algbw = bytes / time; busbw = algbw * 2(n-1)/n is what a
ring moves over each link, and so can be compared between job sizes and with the speed of the network.
"""

import argparse
import socket
import sys

import numpy as np  # type: ignore[import-not-found]
from mpi4py import MPI  # type: ignore[import-not-found]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def main() -> int:
    """Run all sizes; return 1 if any element is wrong on any rank."""
    options = _options()
    world = MPI.COMM_WORLD
    names = world.gather(socket.gethostname())
    if world.Get_rank() == 0:
        _header(names, options)
    wrong, speeds, size = 0, [], options.begin
    while size <= options.end:
        bad, speed = _measure(world, size, options)
        wrong += bad
        speeds.append(speed)
        size *= options.factor
    if world.Get_rank() == 0:
        say(f"# Wrong elements: {wrong} {'FAILED' if wrong else 'OK'}")
        say(f"# Average bus bandwidth: {sum(speeds) / len(speeds):.4f} GB/s")
    return 1 if wrong else 0


def say(line: str) -> None:
    """Write and flush one line."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="provision-allreduce-bench", description=__doc__.splitlines()[0])
    parser.add_argument("-b", "--begin", type=_size, default="1K", help="smallest message, such as 8 or 64K")
    parser.add_argument("-e", "--end", type=_size, default="4M", help="largest message")
    parser.add_argument("-f", "--factor", type=int, default=4, help="each size is this many times the one before")
    parser.add_argument("-n", "--iterations", type=int, default=5, help="measured rounds for each size")
    parser.add_argument("-w", "--warmup", type=int, default=1, help="rounds before the measurement")
    options = parser.parse_args()
    if options.begin > options.end or options.factor < 2 or options.iterations < 1:  # noqa: PLR2004
        parser.error("sizes must not fall, the factor must be at least 2 and the iterations at least 1")
    return options


def _size(text: str) -> int:
    number, unit = text.upper().removesuffix("B"), ""
    if number[-1:] in _UNITS and not number[-1:].isdigit():
        number, unit = number[:-1], number[-1]
    value = int(float(number) * _UNITS[unit]) // 4 * 4
    if value < 4:  # noqa: PLR2004
        raise argparse.ArgumentTypeError(f"{text} is less than one element of 4 bytes")
    return value


def _header(names: list[str], options: argparse.Namespace) -> None:
    say("# provision-allreduce-bench: MPI all-reduce of float32 in CPU memory (no GPU is used)")
    say(f"# ranks {len(names)} iterations {options.iterations} warmup {options.warmup}")
    for rank, name in enumerate(names):
        say(f"#   Rank {rank:3d} on {name}")
    say(f"#{'size':>11} {'count':>12} {'type':>8} {'redop':>6} {'time':>10} {'algbw':>8} {'busbw':>8} {'#wrong':>7}")
    say(f"#{'(B)':>11} {'(elements)':>12} {'':>8} {'':>6} {'(us)':>10} {'(GB/s)':>8} {'(GB/s)':>8} {'':>7}")


def _measure(world: MPI.Intracomm, size: int, options: argparse.Namespace) -> tuple[int, float]:
    count, ranks = size // 4, world.Get_size()
    data = np.full(count, world.Get_rank() + 1, dtype=np.float32)
    result = np.empty_like(data)
    for _ in range(options.warmup):
        world.Allreduce(data, result)
    world.Barrier()
    begin = MPI.Wtime()
    for _ in range(options.iterations):
        world.Allreduce(data, result)
    slowest = world.allreduce((MPI.Wtime() - begin) / options.iterations, op=MPI.MAX)
    expected = np.float32(ranks * (ranks + 1) // 2)
    wrong = world.allreduce(int(np.count_nonzero(result != expected)), op=MPI.SUM)
    algbw = size / slowest / 1e9
    busbw = algbw * 2 * (ranks - 1) / ranks
    if world.Get_rank() == 0:
        say(
            f" {size:>11} {count:>12} {'float':>8} {'sum':>6} {slowest * 1e6:>10.1f}"
            f" {algbw:>8.4f} {busbw:>8.4f} {wrong:>7}"
        )
    return wrong, busbw


if __name__ == "__main__":
    sys.exit(main())
