"""GPUs: what nvidia-smi says, and what the PCI bus says, which cannot hang or lie."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import ClassVar

from provision.facts.base import RawOutput, Unknown

__all__ = ["Gpu", "GpuPciFact", "GpusFact"]

_NO_TOOL = 127


@dataclass(frozen=True)
class Gpu:
    """One GPU as its driver sees it; what the driver does not tell is empty."""

    index: int
    name: str
    uuid: str
    driver: str
    memory_mib: int
    bus_id: str
    compute_capability: str = ""
    """As ``9.0``; drivers older than 510 do not tell it."""


class GpusFact:
    """Asks nvidia-smi, which hangs when a GPU is broken and takes many seconds without persistence."""

    name: ClassVar[str] = "gpus"
    label: ClassVar[str] = "nvidia-smi"
    limit_seconds: ClassVar[int] = 40
    command: ClassVar[str] = r"""
command -v nvidia-smi >/dev/null || { echo 'there is no nvidia-smi' >&2; exit 127; }
fields=index,name,uuid,driver_version,memory.total,pci.bus_id
answer=$(nvidia-smi --query-gpu=$fields,compute_cap --format=csv); code=$?
case $answer in
  *'not a valid field'*) answer=$(nvidia-smi --query-gpu=$fields --format=csv); code=$?;;
esac
printf '%s\n' "$answer"
exit $code
"""

    def parse(self, raw: RawOutput) -> tuple[Gpu, ...] | Unknown:
        """No nvidia-smi at all means no driver: then there are no GPUs to be used, and the PCI bus tells the rest."""
        if raw.exit_code == _NO_TOOL:
            return ()
        if "No devices were found" in raw.stdout:
            return ()
        if raw.exit_code != 0:
            return Unknown(f"nvidia-smi failed: {raw.said()}")
        lines = [line for line in raw.lines() if not line.startswith("#")]
        start = next((i for i, line in enumerate(lines) if line.startswith("index")), None)
        if start is None:
            return Unknown(f"nvidia-smi printed no table: {raw.said()}")
        rows = csv.DictReader(lines[start:], skipinitialspace=True)
        return tuple(gpu for gpu in map(_gpu, rows) if gpu is not None)


def _gpu(row: dict[str | None, str | None]) -> Gpu | None:
    """Column titles may carry a unit in brackets, and values the unit: ``memory.total [MiB]``, ``81920 MiB``."""
    cells = {str(key).partition(" [")[0]: str(value or "").strip() for key, value in row.items() if key is not None}
    if not cells.get("index", "").isdecimal():
        return None
    memory = cells.get("memory.total", "").split()
    return Gpu(
        index=int(cells["index"]),
        name=cells.get("name", ""),
        uuid=cells.get("uuid", ""),
        driver=cells.get("driver_version", ""),
        memory_mib=int(memory[0]) if memory and memory[0].isdecimal() else 0,
        bus_id=cells.get("pci.bus_id", ""),
        compute_capability=cells.get("compute_cap", ""),
    )


class GpuPciFact:
    """Lists the PCI addresses of NVIDIA's display and 3D controllers, with a driver or without."""

    name: ClassVar[str] = "gpu_pci"
    label: ClassVar[str] = "cat /sys/bus/pci/devices"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = """
for card in $(grep -l 0x10de /sys/bus/pci/devices/*/vendor 2>/dev/null); do
  card=${card%/vendor}
  read -r class <"$card/class"; case $class in 0x0300*|0x0302*) echo "${card##*/}";; esac
done
exit 0
"""

    def parse(self, raw: RawOutput) -> tuple[str, ...]:
        """One address a line."""
        return tuple(line.strip() for line in raw.lines())
