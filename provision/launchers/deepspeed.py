"""DeepSpeed's launcher, which reads host files in the format of Open MPI."""

from provision.launchers.base import Launcher
from provision.launchers.openmpi import host_file

LAUNCHERS = (
    Launcher(
        "deepspeed",
        order=4,
        host_file=host_file,
        commands=("deepspeed",),
        per_node=True,
        instead="Start DeepSpeed by torchrun: provision submit pytorch --launcher torchrun",
    ),
)
