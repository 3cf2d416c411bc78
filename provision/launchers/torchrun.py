"""torchrun, and torch.distributed.launch before it; each is started once on every node."""

from __future__ import annotations

from collections.abc import Sequence

from provision.launchers.base import HostEntry, Launcher


def _host_file(entries: Sequence[HostEntry]) -> str:
    """Return a line ``NAME NODE_RANK NPROC MASTER_ADDR MASTER_PORT`` for each entry; the first is the master.

    torchrun reads no file: these are the values for its options on each node.
    """
    return "".join(
        f"{entry.name} {number} {entry.slots} {entries[0].address} {entries[0].free_port}\n"
        for number, entry in enumerate(entries)
    )


_LAUNCH = (
    'python3 -m torch.distributed.launch --nproc_per_node="$PET_NPROC_PER_NODE" --nnodes="$PET_NNODES" '
    '--node_rank="$PET_NODE_RANK" --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT"'
)
"""Old versions of it do not read PET_*, as torchrun does."""

LAUNCHERS = (
    Launcher(
        "torchrun",
        order=5,
        host_file=_host_file,
        has_port=True,
        commands=("torchrun", "accelerate"),
        modules=("torch.distributed.run", "accelerate.commands.launch"),
        per_node=True,
        rendezvous=True,
        program="torchrun",
    ),
    Launcher(
        "launch",
        order=6,
        modules=("torch.distributed.launch",),
        per_node=True,
        rendezvous=True,
        equal_slots=True,
        program="python3",
        shell_line=_LAUNCH,
    ),
)
