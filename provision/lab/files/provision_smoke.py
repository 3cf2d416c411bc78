#!/usr/bin/python3
"""Prove that an MPI job spans its nodes: every rank adds its number, and every rank must see the same right sum.

Run it as ``mpirun ... provision-smoke``. PROVISION_NODE, when set, is the name that the rank gives its node.
"""

import os
import socket
import sys

from mpi4py import MPI  # type: ignore[import-not-found]


def main() -> int:
    """Print one line per rank and the verdict; return 1 if any rank has a wrong sum."""
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    host = socket.gethostname()
    node = os.environ.get("PROVISION_NODE") or host
    expected = size * (size + 1) // 2
    total = world.allreduce(rank + 1, op=MPI.SUM)
    # One write per line, so that lines of several ranks are not mixed.
    sys.stdout.write(f"rank {rank} of {size} on {node} (host {host}): sum {total}\n")
    sys.stdout.flush()
    wrong = world.allreduce(int(total != expected), op=MPI.SUM)
    world.Barrier()
    if rank == 0:
        formula = f"{size}*({size}+1)/2 = {expected}"
        verdict = f"{wrong} of {size} ranks saw another sum than {formula}" if wrong else f"the sum equals {formula}"
        sys.stdout.write(f"{'WRONG' if wrong else 'right'}: {verdict}\n")
        sys.stdout.flush()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
