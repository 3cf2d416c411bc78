"""horovodrun, which starts the same number of ranks on every host."""

from __future__ import annotations

from collections.abc import Sequence

from provision.errors import UsageError
from provision.launchers import openmpi
from provision.launchers.base import HostEntry, Launcher, slot_table


def _host_file(entries: Sequence[HostEntry]) -> str:
    """Return a line ``NAME slots=N`` for each entry; UsageError when N is not the same for all."""
    if len({entry.slots for entry in entries}) > 1:
        fewest = min(entry.slots for entry in entries)
        raise UsageError(
            "horovodrun starts the same number of ranks on each host, and these have different numbers of slots",
            remedy=f"Choose nodes that are alike (--limit), or {fewest * len(entries)} ranks by mpirun "
            "(--launcher openmpi).",
            output=slot_table(entries),
        )
    return openmpi.host_file(entries)


LAUNCHERS = (
    Launcher(
        "horovod",
        order=7,
        host_file=_host_file,
        commands=("horovodrun",),
        equal_slots=True,
        instead="Start Horovod by mpirun: provision submit mpi",
    ),
)
