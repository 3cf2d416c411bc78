"""How far each network card is from each GPU, as the driver tells it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from provision.facts.base import RawOutput, Unknown

__all__ = ["GpuNicsFact"]


class GpuNicsFact:
    """Asks nvidia-smi for its matrix, where there is an RDMA device to be far from."""

    name: ClassVar[str] = "gpu_nics"
    label: ClassVar[str] = "nvidia-smi topo -m"
    limit_seconds: ClassVar[int] = 40
    command: ClassVar[str] = """
set -- /sys/class/infiniband/*
[ -e "$1" ] && command -v nvidia-smi >/dev/null || exit 0
nvidia-smi topo -m
"""

    def parse(self, raw: RawOutput) -> Mapping[str, Mapping[str, str]] | Unknown:
        """GPU -> card -> class (``PIX``, ``PXB``, ``PHB``, ``NODE``, ``SYS``).

        Rows and columns of the matrix have the same order, so the heading, which comes in many forms, is not needed.
        """
        if raw.exit_code != 0:
            return Unknown(f"nvidia-smi topo failed: {raw.said()}")
        rows = [cells for line in raw.lines() if "X" in (cells := _cells(line))[1:]]
        legend = dict(re.findall(r"^\s*(NIC\d+):\s*(\S+)", raw.stdout, re.MULTILINE))
        names = [cells[0] for cells in rows]
        return {
            cells[0]: {
                legend.get(name, name): "SYS" if kind == "SOC" else kind
                for name, kind in zip(names, cells[1:], strict=False)
                if not name.startswith("GPU")
            }
            for cells in rows
            if cells[0].startswith("GPU")
        }


def _cells(line: str) -> list[str]:
    """Tabs part the cells; where they were lost on the way, several blanks do."""
    return [cell.strip() for cell in (line.split("\t") if "\t" in line else re.split(r"\s{2,}", line))]
