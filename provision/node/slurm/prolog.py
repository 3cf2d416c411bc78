"""Prolog of Slurm jobs: creates the folder in which a job of ours records itself.

It never fails, because that would drain the node.
"""

import os

from provision.node import slurm


def main() -> int:
    """Create the folder; only root can use it."""
    try:
        os.makedirs(slurm.RUN, mode=0o700, exist_ok=True)
    except OSError:
        pass
    return 0
