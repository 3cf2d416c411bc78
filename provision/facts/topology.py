"""The links between GPUs and network cards, as reported by the driver."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import ClassVar

from provision.errors import UsageError
from provision.facts.base import RawOutput, Unknown
from provision.model import Topology
from provision.topology.matrix import parse

NOT_REQUESTED = Unknown("not requested in this probe")
_NOT_ASKED = "not asked for"
_CARDS = "\n== cards\n"


class TopologyFact:
    """Queries nvidia-smi for its matrix if the probe requests it, and sysfs for the NUMA nodes of the RDMA devices."""

    name: ClassVar[str] = "topology"
    label: ClassVar[str] = "nvidia-smi topo -m"
    limit_seconds: ClassVar[int] = 40
    command: ClassVar[str] = """
[ -n "$PROBE_TOPOLOGY" ] || { echo 'not asked for'; exit 0; }
command -v nvidia-smi >/dev/null || exit 0
nvidia-smi topo -m; code=$?
echo; echo '== cards'
for card in /sys/class/infiniband/*; do
  { read -r numa <"$card/device/numa_node"; } 2>/dev/null && echo "${card##*/}=$numa"
done
exit $code
"""

    def parse(self, raw: RawOutput) -> Topology | Unknown:
        """Return an empty topology without nvidia-smi or without a GPU."""
        if raw.stdout.strip() == _NOT_ASKED:
            return NOT_REQUESTED
        matrix, _, cards = raw.stdout.partition(_CARDS)
        if "No devices were found" in matrix or (raw.exit_code == 0 and not matrix.strip()):
            return Topology(())
        if raw.exit_code != 0:
            return Unknown(f"nvidia-smi topo failed: {RawOutput(matrix, raw.exit_code, raw.stderr).last_line()}")
        try:
            topology = parse(matrix)
        except UsageError as error:
            return Unknown(error.message)
        numa = RawOutput(cards, 0).pairs()
        nics = tuple(replace(nic, numa=_numa(numa.get(nic.name, ""))) for nic in topology.nics)
        return replace(topology, nics=nics)


def _numa(text: str) -> int | None:
    """Parse a NUMA node; the kernel writes -1 if it is unknown."""
    return int(text) if re.fullmatch("[0-9]{1,4}", text) else None
