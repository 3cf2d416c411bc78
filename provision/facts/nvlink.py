"""NVLinks of each GPU, and the service that connects them over switches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from provision.facts.base import RawOutput, Unknown


@dataclass(frozen=True)
class Links:
    """The links of one GPU."""

    active: int
    inactive: tuple[int, ...] = ()
    """Numbers of links that are listed as down; a GPU whose links are all down lists none."""


class NvLinksFact:
    """Queries nvidia-smi; only a link with a speed is up."""

    name: ClassVar[str] = "nvlinks"
    label: ClassVar[str] = "nvidia-smi nvlink --status"
    limit_seconds: ClassVar[int] = 40
    command: ClassVar[str] = """
command -v nvidia-smi >/dev/null || exit 0
nvidia-smi nvlink --status
"""

    def parse(self, raw: RawOutput) -> Mapping[int, Links] | Unknown:
        """Return GPU -> its links; empty without nvidia-smi."""
        links: dict[int, Links] = {}
        gpu = None
        for line in raw.lines():
            title = re.match(r"GPU (\d+):", line)
            link = re.match(r"\s+Link (\d+): (.*)", line)
            if title:
                gpu = int(title[1])
                links[gpu] = Links(0)
            elif link and gpu is not None:
                up = re.match(r"[\d.]+ GB/s", link[2])
                before = links[gpu]
                links[gpu] = Links(before.active + bool(up), before.inactive + (() if up else (int(link[1]),)))
        if not links and raw.exit_code != 0:
            return Unknown(f"nvidia-smi nvlink failed: {raw.last_line()}")
        return links


@dataclass(frozen=True)
class FabricManager:
    """The service that connects the GPUs over NVLink switches."""

    switches: int
    """NVLink switches on the PCI bus."""
    unit: str
    """State of nvidia-fabricmanager.service: ``active``, ``inactive``, ``failed``; empty if unknown."""


class FabricManagerFact:
    """Counts NVLink switches (NVIDIA PCI bridges of class 0680), and queries the service if there are any."""

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
        """Leave the unit empty if there are no switches."""
        pairs = raw.pairs()
        if not pairs.get("switches", "").isdecimal():
            return Unknown(f"the NVLink switches cannot be counted: {raw.last_line()}")
        return FabricManager(int(pairs["switches"]), pairs.get("unit", ""))
