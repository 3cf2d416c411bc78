"""One change of an inventory at a time on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from provision.local_files import state_folder
from provision.locks import held
from provision.model import Cluster
from provision.workflow.places import identity

__all__ = ["alone"]


@contextmanager
def alone(cluster: Cluster, purpose: str) -> Iterator[list[str]]:
    """Keep a second change of the same inventory out: the two would undo each other's steps.

    Where no lock can be written (a full disk), that is a warning.
    """
    warnings: list[str] = []
    path = state_folder() / "locks" / f"{identity(cluster)}.lock"
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            stack.enter_context(held(path, str(cluster.inventory), purpose))
        except OSError as error:
            warnings.append(f"no lock keeps others from changing the nodes at the same time: {path}: {error.strerror}")
        yield warnings
