"""NVLinks of each GPU, and the service that joins them over switches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from provision.facts.base import RawOutput, Unknown

__all__ = ["FabricManager", "FabricManagerFact", "Links", "NvLinksFact"]


@dataclass(frozen=True)
class Links:
    """The links of one GPU."""

    active: int
    inactive: tuple[int, ...] = ()
    """Numbers of the links that are listed as down; a GPU whose links are all down lists none."""


class NvLinksFact:
    """Asks nvidia-smi for the links; only a speed behind a link is proof that it is up."""

    name: ClassVar[str] = "nvlinks"
    label: ClassVar[str] = "nvidia-smi nvlink --status"
    limit_seconds: ClassVar[int] = 40
    command: ClassVar[str] = """
command -v nvidia-smi >/dev/null || exit 0
nvidia-smi nvlink --status
"""

    def parse(self, raw: RawOutput) -> Mapping[int, Links] | Unknown:
        """GPU -> its links; without nvidia-smi there is none."""
        found: dict[int, Links] = {}
        gpu = None
        for line in raw.lines():
            title = re.match(r"GPU (\d+):", line)
            link = re.match(r"\s+Link (\d+): (.*)", line)
            if title:
                gpu = int(title[1])
                found[gpu] = Links(0)
            elif link and gpu is not None:
                up = re.match(r"[\d.]+ GB/s", link[2])
                before = found[gpu]
                found[gpu] = Links(before.active + bool(up), before.inactive + (() if up else (int(link[1]),)))
        if not found and raw.exit_code != 0:
            return Unknown(f"nvidia-smi nvlink failed: {raw.said()}")
        return found


@dataclass(frozen=True)
class FabricManager:
    """What joins the GPUs over NVLink switches."""

    switches: int
    """NVLink switches on the PCI bus."""
    unit: str
    """State of nvidia-fabricmanager.service: ``active``, ``inactive``, ``failed``; empty when nobody can tell."""


class FabricManagerFact:
    """Counts NVLink switches (NVIDIA's PCI bridges of class 0680), and asks for the service where there are any."""

    name: ClassVar[str] = "fabric_manager"
    label: ClassVar[str] = "systemctl is-active nvidia-fabricmanager"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = """
count=0
for card in /sys/bus/pci/devices/*; do
  { read -r vendor <"$card/vendor"; } 2>/dev/null && [ "$vendor" = 0x10de ] || continue
  read -r class <"$card/class"; case $class in 0x0680*) count=$((count + 1));; esac
done
echo "switches=$count"
[ "$count" -eq 0 ] || echo "unit=$(systemctl is-active nvidia-fabricmanager 2>/dev/null)"
exit 0
"""

    def parse(self, raw: RawOutput) -> FabricManager | Unknown:
        """Without switches nobody asks for the service."""
        pairs = raw.pairs()
        if not pairs.get("switches", "").isdecimal():
            return Unknown(f"the NVLink switches cannot be counted: {raw.said()}")
        return FabricManager(int(pairs["switches"]), pairs.get("unit", ""))
