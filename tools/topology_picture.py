"""Draw docs/assets/topology.svg, the links of a SIMULATED DGX-1: `python -m tools.topology_picture`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE = Path(__file__).resolve().parent.parent / "docs/assets/topology.svg"
MATRIX = PICTURE.with_name("topology.txt")
"""What the lab's simulated `nvidia-smi topo -m` prints for the machine dgx1v."""


def drawn() -> str:
    """Return what `provision topo --svg` draws for the recorded matrix, with the GPUs 0 to 3 marked."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "topology.svg"
        words = ["topo", "--file", str(MATRIX), "--gpus", "0-3", "--svg", str(file)]
        subprocess.run([sys.executable, "-m", "provision", *words], capture_output=True, check=True)
        return file.read_text(encoding="utf-8")


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
