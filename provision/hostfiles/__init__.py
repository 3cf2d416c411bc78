"""Host files: one module for each launcher's dialect, and the list of them."""

from provision.hostfiles import horovod, hydra, openmpi, slurm, torchrun
from provision.hostfiles.base import MASTER_PORT, HostEntry, Render, fitted, slot_table

__all__ = ["LAUNCHERS", "MASTER_PORT", "HostEntry", "Render", "fitted", "slot_table"]

LAUNCHERS: dict[str, Render] = {
    "openmpi": openmpi.render,
    "openmpi5": openmpi.render,
    "mpich": hydra.render,
    "intelmpi": hydra.render,
    "deepspeed": openmpi.render,
    "torchrun": torchrun.render,
    "horovod": horovod.render,
    "slurm": slurm.render,
}
"""Name of a launcher -> how its host file is written."""
