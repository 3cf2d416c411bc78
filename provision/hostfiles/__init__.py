"""Host files: one module for each launcher's dialect, and the list of them."""

from provision.hostfiles import openmpi
from provision.hostfiles.base import HostEntry, Render

__all__ = ["LAUNCHERS", "HostEntry", "Render"]

LAUNCHERS: dict[str, Render] = {"openmpi": openmpi.render}
"""Name of a launcher -> how its host file is written."""
