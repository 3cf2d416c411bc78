"""Defaults of the RDMA connection manager for a RoCE port, which configfs shows while a folder for the device exists."""

import os

from ansible.module_utils import platform_links as links

CONFIG = "/sys/kernel/config"
MODES = {"v1": "IB/RoCE v1", "v2": "RoCE v2"}
MODE, TOS = "default_roce_mode", "default_roce_tos"


class Defaults:
    """The defaults of a device. The folder is removed afterwards: the module rdma_cm cannot be unloaded while it exists.

    Args:
        device: its name.
    """

    def __init__(self, device):
        """Remember the device."""
        self.folder, self.is_new = os.path.join(CONFIG, "rdma_cm", device), False

    def __enter__(self):
        """Create the folder, unless another program did."""
        self.is_new = not os.path.isdir(self.folder)
        if self.is_new:
            os.mkdir(self.folder)
        return self

    def __exit__(self, *_error):
        """Remove a folder that was created."""
        if self.is_new:
            os.rmdir(self.folder)

    def read(self, port, name):
        """Return a value, None if it is unknown."""
        return links.words(self._path(port, name))

    def write(self, port, name, value):
        """Set a value.

        Raises:
            OSError: the device does not support it.
        """
        links.write(self._path(port, name), value)

    def _path(self, port, name):
        return os.path.join(self.folder, "ports", str(port), name)


def is_available():
    """Return whether the module rdma_cm is loaded and configfs is mounted."""
    return os.path.isdir(os.path.join(CONFIG, "rdma_cm"))
