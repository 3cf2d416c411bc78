"""Measure all-reduce over the ranks of a job, check every result, and print a table in the format of NCCL's tests.

It needs torch (NCCL with GPUs, gloo without), or mpi4py and NumPy.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from typing import Any


class Mpi:
    """NumPy arrays in host memory, over MPI."""

    title = "mpi4py"

    def __init__(self) -> None:
        """Join the other ranks."""
        import numpy as np  # type: ignore[import-not-found]
        from mpi4py import MPI  # type: ignore[import-not-found]

        self.numpy: Any = np
        self.mpi: Any = MPI
        self.world: Any = MPI.COMM_WORLD
        self.rank, self.size = self.world.Get_rank(), self.world.Get_size()

    def names(self) -> list[str]:
        """Return the host of each rank."""
        return list(self.world.allgather(socket.gethostname()))

    def fill(self, count: int, value: int) -> None:
        """Allocate the buffers."""
        self.data = self.numpy.full(count, value, dtype=self.numpy.float32)
        self.result = self.numpy.empty_like(self.data)

    def reduce(self) -> None:
        """Sum the buffers of all ranks."""
        self.world.Allreduce(self.data, self.result)

    def wrong(self, expected: int) -> int:
        """Return the number of wrong elements on all ranks."""
        bad = int(self.numpy.count_nonzero(self.result != self.numpy.float32(expected)))
        return int(self.world.allreduce(bad, op=self.mpi.SUM))

    def finish(self) -> None:
        """Wait for this rank's own work, which is already done."""

    def wait(self) -> None:
        """Wait for all ranks."""
        self.world.Barrier()

    def slowest(self, seconds: float) -> float:
        """Return the time of the slowest rank."""
        return float(self.world.allreduce(seconds, op=self.mpi.MAX))

    def end(self) -> None:
        """Do nothing; MPI finalizes itself."""


class Torch:
    """Tensors in the memory of the rank's GPU over NCCL, or in host memory over gloo."""

    def __init__(self) -> None:
        """Join the other ranks."""
        import torch  # type: ignore[import-not-found]
        import torch.distributed  # type: ignore[import-not-found]

        self.torch: Any = torch
        self.gpu: bool = torch.cuda.is_available()
        self.title = "torch (NCCL)" if self.gpu else "torch (gloo)"
        if self.gpu:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        self.device = "cuda" if self.gpu else "cpu"
        self.world: Any = torch.distributed
        self.world.init_process_group("nccl" if self.gpu else "gloo")
        self.rank, self.size = self.world.get_rank(), self.world.get_world_size()

    def names(self) -> list[str]:
        """Return the host of each rank."""
        name = socket.gethostname().encode()[:64].ljust(64, b"\0")
        mine = self.torch.tensor(list(name), dtype=self.torch.uint8, device=self.device)
        all_names = [self.torch.empty_like(mine) for _ in range(self.size)]
        self.world.all_gather(all_names, mine)
        return [bytes(row.tolist()).rstrip(b"\0").decode() for row in all_names]

    def fill(self, count: int, value: int) -> None:
        """Allocate the buffer."""
        self.data = self.torch.full((count,), float(value), dtype=self.torch.float32, device=self.device)

    def reduce(self) -> None:
        """Sum the buffers of all ranks."""
        self.world.all_reduce(self.data)

    def wrong(self, expected: int) -> int:
        """Return the number of wrong elements on all ranks, and zero the buffer for the measurement."""
        bad = (self.data != float(expected)).sum().to(self.torch.int64).reshape(1)
        self.world.all_reduce(bad)
        self.data.zero_()
        return int(bad.item())

    def finish(self) -> None:
        """Wait for this rank's own work."""
        if self.gpu:
            self.torch.cuda.synchronize()

    def wait(self) -> None:
        """Wait for all ranks, and for the GPU."""
        self.finish()
        self.world.barrier()

    def slowest(self, seconds: float) -> float:
        """Return the time of the slowest rank."""
        longest = self.torch.tensor([seconds], dtype=self.torch.float64, device=self.device)
        self.world.all_reduce(longest, op=self.world.ReduceOp.MAX)
        return float(longest.item())

    def end(self) -> None:
        """Destroy the process group."""
        self.world.destroy_process_group()


def print_line(line: str) -> None:
    """Print one line without buffering."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Measure all sizes; return 1 if any element is wrong."""
    parser = argparse.ArgumentParser(description="Measure all-reduce over the ranks of a job.")
    parser.add_argument("--backend", choices=["mpi", "torch"], required=True)
    parser.add_argument("--begin", type=int, required=True, help="bytes of the smallest message")
    parser.add_argument("--end", type=int, required=True, help="bytes of the largest message")
    parser.add_argument("--factor", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=5)
    options = parser.parse_args()
    world: Mpi | Torch = Torch() if options.backend == "torch" else Mpi()
    names = world.names()
    if world.rank == 0:
        print_line("# provision all-reduce: " + world.title)
        for rank, name in enumerate(names):
            print_line(f"#  Rank {rank:>5} on {name}")
        print_line(
            "#{:>12} {:>12} {:>12} {:>8} {:>8} {:>8}".format("size", "count", "time", "algbw", "busbw", "#wrong")
        )
    wrong, size = 0, options.begin
    while size <= options.end:
        wrong += measure(world, size, options.iterations)
        size *= options.factor
    if world.rank == 0:
        print_line("# Out of bounds values : {} {}".format(wrong, "FAILED" if wrong else "OK"))
    world.end()
    return 1 if wrong else 0


def measure(world: Mpi | Torch, size: int, iterations: int) -> int:
    """Measure one size; return the number of wrong elements."""
    world.fill(size // 4, world.rank + 1)
    world.reduce()
    wrong = world.wrong(world.size * (world.size + 1) // 2)
    world.reduce()
    world.wait()
    begin = time.perf_counter()
    for _ in range(iterations):
        world.reduce()
    world.finish()
    seconds = world.slowest((time.perf_counter() - begin) / iterations)
    rate = size / max(seconds, 1e-9) / 1e9
    bus = rate * 2 * (world.size - 1) / world.size
    if world.rank == 0:
        print_line(f" {size:>12} {size // 4:>12} {seconds * 1e6:>12.1f} {rate:>8.3f} {bus:>8.3f} {wrong:>8}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
