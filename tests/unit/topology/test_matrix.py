"""Matrices in the layouts of old and new drivers, rendered from descriptions, and truncated or damaged ones."""

from __future__ import annotations

import re

import pytest

from provision.errors import UsageError
from provision.topology.matrix import parse
from tests.support.matrices import LAYOUTS, REFUSED, assert_matrix, mlx
from tests.support.reasons import shown

PAIR = (
    "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV2\tPIX\t0-7,16-23\t0\t\tN/A\n"
    "GPU1\tNV2\t X \tSYS\t8-15\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \t\t\t\t\n"
    "\nLegend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
)


# Layout -> NUMA node of each GPU, CPUs of the first and the last GPU, cards, some links as "row column class".
EXPECTED = {
    "cards by device name": (
        [None] * 8, "0-19,40-59", "20-39,60-79", mlx(0, 2, 1, 3),
        "GPU0 GPU3 NV2, GPU6 GPU5 NV2, GPU1 GPU6 SYS, GPU2 mlx5_1 PIX, GPU4 mlx5_2 PIX, mlx5_2 mlx5_3 PHB"),
    "column for the NUMA node": (
        [3, 3, 1, 1, 7, 7, 5, 5], "48-63,176-191", "80-95,208-223", mlx(*range(12)),
        "GPU0 GPU7 NV12, GPU0 mlx5_1 PXB, GPU4 mlx5_6 PXB, GPU4 mlx5_4 SYS, mlx5_4 mlx5_5 PIX"),
    "cards by number": (
        [0] * 4 + [1] * 4, "0-47,96-143", "48-95,144-191", mlx(*range(8)),
        "GPU0 GPU7 NV18, GPU0 mlx5_0 PIX, GPU0 mlx5_1 NODE, GPU0 mlx5_4 SYS, GPU7 mlx5_7 PIX"),
    "pcie8": (
        [0] * 4 + [1] * 4, "0-31,64-95", "32-63,96-127", mlx(0, 1), "GPU0 GPU3 NODE, GPU3 GPU4 SYS"),
    "pcie4": ([0, 0, 1, 1], "0-63", "64-127", mlx(0), "GPU0 GPU1 PHB, GPU1 GPU2 SYS, GPU3 GPU2 PHB"),
    "pair": ([0, 0], "0-15", "0-15", [], "GPU0 GPU1 PHB"),
    "pair of an old driver": ([None] * 2, "0-15", "0-15", [], "GPU1 GPU0 PHB"),
    "SOC instead of SYS": (
        [None] * 4, "0-7", "8-15", mlx(0), "GPU0 GPU1 PIX, GPU0 GPU3 SYS, GPU3 mlx5_0 PHB, mlx5_0 GPU1 SYS"),
    "heading run together": (
        [None] * 8, "0-19,40-59", "20-39,60-79", mlx(0, 2, 1, 3), "GPU0 GPU4 NV2, GPU0 GPU5 SYS, GPU7 mlx5_3 PIX"),
    "one bridge": ([0] * 3, "0-15,32-47", "0-15,32-47", [], "GPU0 GPU1 NV4, GPU0 GPU2 NODE, GPU2 GPU1 NODE"),
    "range of NUMA nodes": ([None] * 4, "0-15", "0-15", mlx(0), "GPU0 GPU1 NV4, GPU0 mlx5_0 NODE, mlx5_0 GPU3 PHB"),
    "underlined heading without legend": (
        [0, 1], "0-15", "16-31", ["NIC0", "NIC1"], "GPU0 GPU1 NV12, GPU0 NIC0 PXB, NIC1 GPU1 SYS, NIC0 NIC1 PXB"),
    "no affinity": (
        [None] * 4, "", "", mlx(*range(14)),
        "GPU0 GPU3 NV8, GPU0 mlx5_1 PIX, GPU0 mlx5_8 PIX, GPU3 mlx5_4 PIX, GPU3 mlx5_5 SYS, mlx5_4 mlx5_11 PIX"),
    "no CPUs on one socket": (
        [0] * 4 + [1] * 4, "", "1", mlx(*range(6)),
        "GPU0 mlx5_1 PIX, GPU1 mlx5_1 NODE, GPU3 mlx5_2 PIX, GPU6 mlx5_5 PIX, GPU7 mlx5_5 NODE"),
    "padded by hand": (
        [1], "16-31", "16-31", mlx(0, 1, 2, 3), "GPU0 mlx5_0 SYS, GPU0 mlx5_2 NODE, mlx5_0 mlx5_1 PIX"),
    "card named by udev": ([1] * 4, "32-63", "32-63", ["rocep49s0"], "GPU0 GPU3 NV12, GPU2 rocep49s0 SYS"),
    "extra tabs": (
        [0] * 4 + [1] * 4, "0-47,96-143", "48-95,144-191", mlx(*range(8)), "GPU2 mlx5_2 PIX, mlx5_1 GPU6 SYS"),
}  # fmt: skip
WARNINGS = {
    "range of NUMA nodes": "topology.numa_invalid: 0-3",
    "underlined heading without legend": "topology.cards_unnamed: NIC0 NIC1",
    "heading run together": "topology.heading_not_separated",
}
REFUSALS = {
    "first rows": "more devices than it has rows; the last row is GPU3",
    "removed columns": "columns were removed",
    "topo -mp": "topo -mp",
    "topo -p2p": "'GNS' between GPU0 and GPU1",
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_matrix_of_any_layout_is_parsed_unchanged(name):
    """GPUs, cards, NUMA nodes, CPUs and links as old and new drivers print them."""
    topology = parse(LAYOUTS[name])
    assert_matrix(topology, *EXPECTED[name])
    assert [*map(shown, topology.warnings)] == ([WARNINGS[name]] if name in WARNINGS else [])


@pytest.mark.parametrize(("name", "said"), REFUSALS.items())
def test_an_incomplete_matrix_is_refused(name, said):
    """The message names the damage or the other table, and the remedy names the right input."""
    with pytest.raises(UsageError) as refused:
        parse(REFUSED[name])

    assert said in refused.value.message
    assert "nvidia-smi topo -m" in str(refused.value.remedy)


COPIES = {
    "tabs expanded": lambda text: text.expandtabs(8),
    "the line ends of Windows": lambda text: text.replace("\n", "\r\n"),
    "blank lines between": lambda text: text.replace("\n", "\n\n"),
    "blanks at line ends removed": lambda text: re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE),
    "tabs doubled": lambda text: text.replace("\t", "\t\t"),
    "underlined": lambda text: re.sub(r"^(\s*)(GPU0.*)", "\\1\x1b[4m\\2\x1b[0m", text, count=1, flags=re.MULTILINE),
    "escapes without their character": lambda text: re.sub(r"^\t(GPU0.*)", r"\t[4m\1[0m", text, flags=re.MULTILINE),
    "a shell around it": lambda text: f"$ nvidia-smi -L\nGPU 0: A (UUID: GPU-1)\n$ nvidia-smi topo -m\n{text}$ \n",
}  # fmt: skip


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("name", ["cards by device name", "cards by number", "pair"])
def test_changes_by_copying_do_not_matter(name, copy):
    """Terminals, mails and pages change line ends, tabs and blanks."""
    text = LAYOUTS[name]

    assert parse(COPIES[copy](text)) == parse(text)


@pytest.mark.parametrize("name", ["no CPUs on one socket", "no affinity", "cards by device name"])
def test_an_empty_affinity_stays_empty_where_tabs_are_expanded(name):
    """The NUMA node is never parsed as a CPU."""
    text = LAYOUTS[name]

    assert parse(text.expandtabs(8)) == parse(text)


def test_an_ambiguous_affinity_is_omitted_with_a_warning():
    """A number that could be a CPU or a NUMA node is neither."""
    topology = parse(re.sub(r"\t+", " ", PAIR.replace("0-7,16-23", "").replace("8-15", "")))

    assert [(gpu.cpus, gpu.numa) for gpu in topology.gpus] == [((), None)] * 2
    assert shown(topology.warnings[0]) == "topology.affinity_ambiguous: GPU0 GPU1"


@pytest.mark.parametrize(
    ("old", "new", "said", "cpus", "numa"),
    [
        ("8-15\t1", "8-1\t1", "topology.cpus_invalid: 8-1", (), 1),
        ("8-15\t1", "near\t1", "topology.cpus_invalid: near", (), 1),
        ("8-15\t1\t\tN/A", "8-15", "topology.numa_missing: GPU1", ("8-15",), None),
        ("8-15\t1", "8-15\t0,1", "topology.numa_invalid: 0,1", ("8-15",), None),
    ],
)
def test_an_invalid_affinity_is_omitted_with_a_warning(old, new, said, cpus, numa):
    """If the affinity is truncated or overwritten, the links are valid and the affinity is unknown."""
    assert old in PAIR
    topology = parse(PAIR.replace(old, new))

    assert (topology.gpus[1].cpus, topology.gpus[1].numa) == (cpus, numa)
    assert [*map(shown, topology.warnings)] == [said]


def test_gpus_may_have_gaps_in_their_numbers():
    """The index is the tool's own, not the row's number."""
    topology = parse(PAIR.replace("GPU1", "GPU5"))

    assert [(gpu.index, gpu.numa, gpu.cpus) for gpu in topology.gpus] == [
        (0, 0, ("0-7", "16-23")),
        (5, 1, ("8-15",)),
    ]
    assert topology.links == (("X", "NV2", "PIX"), ("NV2", "X", "SYS"), ("PIX", "SYS", "X"))
    assert topology.nics[0].name == "mlx5_0"
    assert topology.warnings == ()


DAMAGED = [
    ("", "no heading"),
    ("nothing of the kind\n", "no heading"),
    ("No devices were found\n", "no heading"),
    (PAIR.split("\n", 1)[0] + "\n", "no row"),
    (PAIR.split("\n", 1)[1], "no heading"),
    (PAIR.replace("NIC0\tPIX\tSYS\t X \t\t\t\t\n", ""), "more devices than it has rows"),
    (PAIR.split("\tSYS\t X", maxsplit=1)[0], "row NIC0 has 1 cells"),
    (PAIR.split("\tNV2\t X", maxsplit=1)[0], "row GPU1 is truncated"),
    (PAIR.replace("GPU1\tNV2\t X \tSYS", "GPU1\t X \tSYS"), "fewer cells"),
    (PAIR.replace("GPU1\tNV2\t X ", "GPU1\t X \tNV2"), "does not have its X in its own column"),
    (PAIR.replace("GPU0\t X \tNV2", "GPU0\tNV2\tNV2"), "does not have its X in its own column"),
    (PAIR.replace("NV2", "OK"), "'OK' between GPU0 and GPU1"),
    (PAIR.replace("NV2", "NV0"), "'NV0' between GPU0 and GPU1"),
    (PAIR.replace("NV2", "NV123"), "'NV123' between GPU0 and GPU1"),
    (PAIR.replace("\nGPU1\t", "\nGPU0\t"), "duplicate row names"),
    (PAIR.replace("\tGPU0\tGPU1\tNIC0\tCPU", "\tGPU0\tNIC0\tGPU1\tCPU"), "name different devices"),
    (PAIR + PAIR, "more than one matrix"),
    (PAIR.replace("GPU", "DEV"), "no heading"),
    (PAIR.replace("\tNIC0\tCPU", "\n\tNIC0\tCPU"), "name different devices"),
    (
        PAIR.replace("\tNIC0\t", "\tNIC0\tNIC1\t").replace("NIC0\tPIX", "NIC1\tPIX\tX\tX\nNIC0\tPIX"),
        "name different devices",
    ),
]


@pytest.mark.parametrize(("text", "said"), DAMAGED, ids=[said for _, said in DAMAGED])
def test_a_damaged_matrix_is_refused_with_the_location_of_the_damage(text, said):
    """A matrix that could be misread is refused."""
    with pytest.raises(UsageError) as refused:
        parse(text)

    assert said in refused.value.message
    assert refused.value.remedy


def test_duplicate_card_names_are_refused():
    """Only an edited legend names a device twice."""
    text = PAIR.replace("GPU1", "NIC1").replace("\tNIC1\tNIC0\t", "\tNIC1\tNIC0\t") + "  NIC1: mlx5_0\n"

    with pytest.raises(UsageError, match="the same name"):
        parse(text)


def test_a_truncated_matrix_never_parses_as_another_one():
    """A text truncated at any line is refused or parsed completely."""
    text = LAYOUTS["column for the NUMA node"]
    whole = parse(text)
    for end in range(0, len(text), 7):
        try:
            read = parse(text[:end])
        except UsageError:
            continue
        assert (read.gpus, read.nics, read.links) == (whole.gpus, whole.nics, whole.links), text[:end][-80:]
