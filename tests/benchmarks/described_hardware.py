"""The GPUs and network cards of a SIMULATED node, as nvidia-smi and sysfs show them."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from provision.facts.gpu import GpusFact
from provision.facts.rdma_counters import RdmaCountersFact
from provision.lab import machines

__all__ = ["counters", "gpu_pci", "gpus", "nvlinks", "pci_links", "pci_routing", "rdma", "topology"]

MACHINE = "hgxh100"
_STAND_IN = Path(machines.__file__).parent / "files" / "nvidia_smi.py"


@functools.cache
def smi(*words: str) -> str:
    """What the lab's stand-in of nvidia-smi prints for the machine; all nodes are alike, so it is asked once."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(machines.to_json(machine()))
        file.flush()
        environment = {**os.environ, "PROVISION_LAB_MACHINE_FILE": file.name}
        argv = [sys.executable, "-I", str(_STAND_IN), *words]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def gpus() -> str:
    """What nvidia-smi answers to the question of the fact."""
    more = re.search(r"^more=(\S+)$", GpusFact.command, re.MULTILINE)
    identity = re.search(r"^identity=(\S+)$", GpusFact.command, re.MULTILINE)
    assert more
    assert identity
    return smi(f"--query-gpu={identity[1]},{more[1]}", "--format=csv")


@functools.cache
def machine() -> machines.Machine:
    """The described machine."""
    return machines.load(MACHINE)


def rdma() -> str:
    """Its cards, as sysfs shows them."""
    lines = []
    for i, nic in enumerate(machine().nics):
        lines.append(f"device\t{nic.name}\tmlx5_core\t28.39.1002\tMT_0000000838")
        lines.append(f"netdev\tib{i}")
        lines.append(f"port\t1\tInfiniBand\t4: ACTIVE\t5: LinkUp\t{nic.rate_gbps} Gb/sec (4X NDR)")
        lines.append(f"gid\t0\tfe80:0000:0000:0000:946d:ae03:00ab:{i:04x}\t\t")
    lines += [f"uverbs\tuverbs{i}\t{nic.name}" for i, nic in enumerate(machine().nics)]
    lines += [f"node\tuverbs{i}" for i in range(len(machine().nics))]
    lines += ["node\trdma_cm", *(f"pci\t0000:{nic.bus}" for nic in machine().nics)]
    return "\n".join(lines)


def counters() -> str:
    """The few counters that are not zero."""
    assert "link_downed" in RdmaCountersFact.command
    base = "/sys/class/infiniband"
    return "\n".join(f"{base}/{nic.name}/ports/1/counters/link_downed:1" for nic in machine().nics[:2])


def pci_links() -> str:
    """All links at their full width."""
    tail = "\t16\t16\t32.0 GT/s PCIe\t32.0 GT/s PCIe\t16\t32.0 GT/s PCIe"
    rows = [f"link\t0000:{gpu.bus}\tgpu{tail}" for gpu in machine().gpus]
    return "\n".join([*rows, *(f"link\t0000:{nic.bus}\tnic{tail}" for nic in machine().nics)])


def pci_routing() -> str:
    """Cards without an IOMMU in the way, bridges without ACS."""
    cards = [*machine().gpus, *machine().nics]
    bridges = [
        f"0000:{i:02x}:01.0 PCI bridge: Broadcom PEX890xx\n\t\tACSCtl:\tSrcValid+ ReqRedir- CmpltRedir-"
        for i in range(40)
    ]
    return "\n".join([*(f"iommu 0000:{card.bus} identity" for card in cards), "lspci", *bridges])


def gpu_pci() -> str:
    """Addresses on the bus."""
    return "\n".join(f"0000:{gpu.bus}" for gpu in machine().gpus)


def nvlinks() -> str:
    """The links of each GPU."""
    return smi("nvlink", "--status")


def topology() -> str:
    """The matrix of GPUs and cards."""
    return smi("topo", "-m")
