"""Outputs of ``nvidia-smi topo -m`` in the layouts of old and new drivers, rendered from descriptions of machines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations

from provision.lab.machines import Machine
from provision.model import Topology
from tests.support.nvidia_smi import described, run

__all__ = ["LAYOUTS", "REFUSED", "assert_matrix", "mlx", "rendered"]

NAMED_BY_DEVICE, NUMA_COLUMN, NUMBERED_NICS = "418.126.02", "450.51.06", "550.90.07"
"""Drivers that name cards by device, have a column for the NUMA node, and number the cards above a legend."""
K80 = described(["0/0/a", "0/0/a", "1/0/a", "1/0/a"], {"mlx5_0": "1/0"}, numa={0: "0-7", 1: "8-15"})
"""Two boards of two GPUs, one on each socket, and a card on the second socket."""
BRIDGED = described(["0/0/a", "0/1/a", "0/2/a"], direct=[(0, 1, 4)], numa={0: "0-15,32-47"})
"""Three GPUs on one socket, two of them with an NVLink bridge."""
HALF = described(
    ["0/0/a", "0/1/a", "0/2/a", "0/3/a"],
    {f"mlx5_{number}": at for number, at in enumerate(["1/0", *(f"0/{n}/a" for n in range(4)), "1/1", "1/2"] * 2)},
    switched=8,
)
"""Four of eight GPUs, with two ports next to each GPU and more cards on the other socket."""
CROWDED = described(
    [f"{node}/{slot}/a" for node in (0, 1) for slot in range(4)],
    {f"mlx5_{number}": at for number, at in enumerate(["0/0/a", "0/0/a", "0/3/a", "1/0/a", "1/0/a", "1/2/a"])},
    numa={0: "0", 1: "1"},
    switched=18,
)
"""Eight GPUs, some of them with one or two cards below the same switch."""
SINGLE = described(["1/0"], {f"mlx5_{n}": at for n, at in enumerate(["0/0/a", "0/0/a", "1/1/a", "1/1/a"])})
"""One GPU, and two cards of two ports, one of them on its socket."""
QUAD = described(
    ["0/0", "0/1", "0/2", "0/3"], {"mlx5_0": "0/3"}, direct=[(a, b, 4) for a in range(4) for b in range(a)]
)
"""Four GPUs with NVLink between each two, and a card next to the last one."""
FAR = described([f"1/{slot}/a" for slot in range(4)], {"rocep49s0": "0/0"}, numa={0: "0-31", 1: "32-63"}, switched=12)
"""Four GPUs, and on the other socket a card that udev has named."""
SWITCHES = described(["0/0/a/x", "1/0"], {"mlx5_0": "0/0/a/y", "mlx5_1": "0/0/a/z"}, switched=12)
"""Two GPUs, and two cards near the first."""


def rendered(machine: str | Machine, driver: str = NUMBERED_NICS) -> str:
    """Return the matrix of a machine as a driver prints it."""
    return run(machine, "topo", "-m", driver_version=driver).stdout


def _old(machine: str | Machine) -> str:
    """Return the matrix of an old driver, which calls SYS SOC and has no NODE."""
    text = rendered(machine, NAMED_BY_DEVICE).replace("SYS", "SOC")
    return re.sub(r"^  NODE .*\n", "", text, flags=re.MULTILINE)


def _no_affinity(text: str, gpus: str = r"GPU\d+", *, numa: bool = True) -> str:
    """Remove the CPU affinity of GPUs, and the NUMA affinity as well."""
    cells = r"\t[\d,-]+\t\d+\t\tN/A$" if numa else r"\t[\d,-]+(?=\t\d+\t\tN/A$)"
    return re.sub(rf"^({gpus}\t.*?){cells}", r"\1\t\t\t\tN/A" if numa else r"\1\t", text, flags=re.MULTILINE)


def _padded(text: str) -> str:
    """Align cells with spaces, and keep the tabs."""
    return re.sub(r"(?<=\t)(NODE|SYS|PIX|NIC\d)(?=\t)", r"  \1 ", text)


def _run_together(text: str) -> str:
    """Remove the tabs between the names of GPUs in the heading."""
    heading, rest = text.split("\n", 1)
    return re.sub(r"\t(?=GPU)", "", heading) + "\n" + rest


def _underlined(text: str) -> str:
    """Underline the heading, as on a terminal, and cut the text after the matrix."""
    heading, rest = text.split("\nGPU0", 1)
    return f"\t\x1b[4m{heading[1:]}\x1b[0m\nGPU0{rest}".partition("\nLegend:")[0]


def _without_nvlink(machine: str) -> str:
    """Return what ``topo -mp`` prints: PCIe classes alone."""
    text = run(machine, "topo", "-m", driver_version=NUMA_COLUMN).stdout
    return re.sub(r"^  NV#.*\n", "", re.sub(r"\bNV\d+\b", "PHB", text), flags=re.MULTILINE)


LAYOUTS = {
    "cards by device name": rendered("dgx1v", NAMED_BY_DEVICE),
    "column for the NUMA node": rendered("dgxa100", NUMA_COLUMN),
    "cards by number": rendered("hgxh100"),
    "pcie8": rendered("pcie8"),
    "pcie4": rendered("pcie4"),
    "pair": rendered("pair"),
    "pair of an old driver": rendered("pair", NAMED_BY_DEVICE),
    "SOC instead of SYS": _old(K80).expandtabs(8),
    "heading run together": _run_together(_old("dgx1v")),
    "one bridge": rendered(BRIDGED, NUMA_COLUMN),
    "range of NUMA nodes": re.sub(r"\b0-15\t0\t\tN/A", "0-15\t0-3\t\tN/A", rendered(QUAD)),
    "underlined heading without legend": _underlined(rendered(SWITCHES)),
    "no affinity": _no_affinity(rendered(HALF)),
    "no CPUs on one socket": _no_affinity(rendered(CROWDED), "GPU[0-3]", numa=False),
    "padded by hand": _padded(rendered(SINGLE)),
    "card named by udev": rendered(FAR),
    "extra tabs": rendered("hgxh100").replace("\t", "\t\t"),
}
"""Complete matrices by what is special about their layout."""
REFUSED = {
    "first rows": "\n".join(rendered("dgx1v").splitlines()[:5]) + "\n",
    "removed columns": re.sub(r"GPU7\t|\bGPU7\b.*\n", ". . .\t", rendered("dgx1v", NAMED_BY_DEVICE), count=1),
    "topo -mp": _without_nvlink("dgx1v"),
    "topo -p2p": "\tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tGNS\tX\t\n\nLegend:\n\n  GNS  = no peer access\n",
}
"""Incomplete matrices, and the tables of other commands."""


def mlx(*numbers: int) -> list[str]:
    """Return names of network cards."""
    return [f"mlx5_{number}" for number in numbers]


def assert_matrix(
    topology: Topology, numa: Sequence[int | None], first: str, last: str, cards: Sequence[str], links: str
) -> None:
    """Compare a parsed matrix with what it is to have.

    Args:
        topology: the parsed matrix.
        numa: NUMA node of each GPU.
        first: CPUs of the first GPU.
        last: CPUs of the last GPU.
        cards: names of the network cards.
        links: some links as "row column class", separated by commas.
    """
    names = [*(f"GPU{gpu.index}" for gpu in topology.gpus), *(nic.name for nic in topology.nics)]
    read = {
        (a, b): cell for a, row in zip(names, topology.links, strict=True) for b, cell in zip(names, row, strict=True)
    }

    assert names == [*(f"GPU{index}" for index in range(len(numa))), *cards]
    assert [gpu.numa for gpu in topology.gpus] == numa
    assert [",".join(gpu.cpus) for gpu in (topology.gpus[0], topology.gpus[-1])] == [first, last]
    assert [f"{a} {b} {read[a, b]}" for a, b, _ in map(str.split, links.split(", "))] == links.split(", ")
    assert {cell for (a, b), cell in read.items() if a == b} == {"X"}
    assert all(read[a, b] == read[b, a] for a, b in combinations(names, 2))
