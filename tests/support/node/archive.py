"""The archive of the programs that run on nodes, as a file, for tests that start them directly."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

from provision.node_archive import archive

__all__ = ["ARCHIVE", "NODE"]

NODE = Path(__file__).parents[3] / "provision/node"
"""The sources of the programs."""


def _write() -> Path:
    folder = tempfile.mkdtemp(prefix="provision-archive-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, "node.pyz")
    path.write_bytes(archive())
    return path


ARCHIVE = _write()
