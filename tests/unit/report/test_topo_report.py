"""The drawings of a topology: text that fits, JSON that keeps its keys, an SVG whose labels do not meet."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree as ET

import pytest

from provision.lab.machines import load, names
from provision.model import Topology, TopologyGpu, TopologyNic
from provision.report.topo_report import as_document, as_text
from provision.report.topo_svg import as_svg
from provision.topology.machine import GpuDetails, MachineTopology, NicDetails
from provision.topology.matrix import parse
from tests.support.matrices import LAYOUTS
from tests.support.reasons import plain
from tests.unit.topology.test_tree import of

RATES = {f"mlx5_{number}": NicDetails(400.0, "InfiniBand", active=number != 2) for number in range(20)}
PRODUCTS = {number: GpuDetails("NVIDIA H100 80GB HBM3", 5, 16) for number in range(8)}
LETTER, HEIGHT = 7.3, 12
SVG = "{http://www.w3.org/2000/svg}"


def machine(topology: Topology, *chosen: int, **more: object) -> MachineTopology:
    return MachineTopology(topology, chosen=chosen, **more)


def described(name: str, *chosen: int, **more: object) -> MachineTopology:
    """Return a described machine with rates and products, as a node reports them."""
    return machine(of(load(name)), *chosen, node="gpu1", nics=RATES, gpus=PRODUCTS, **more)


@pytest.fixture(params=[*names(), *sorted(LAYOUTS.keys() - set(names()))])
def any_machine(request):
    """Every machine of the lab, and every layout of a matrix."""
    name = request.param
    return described(name, 0, 1) if name in names() else machine(parse(LAYOUTS[name]), 0, nics=RATES)


def test_every_machine_fits_into_eighty_columns(any_machine):
    """Also eight GPUs with seventeen cards: the matrix is cut into blocks of columns."""
    lines = as_text(any_machine).splitlines()

    assert max(map(len, lines)) <= 80
    assert all(line == line.rstrip() for line in lines)


def test_every_cell_is_shown_once(any_machine):
    """The blocks together contain the whole matrix."""
    count = len(any_machine.topology.links)
    blocks = [block.splitlines() for block in as_text(any_machine).split("\n\n") if block.startswith("    ")]
    skip = [1] * len(any_machine.topology.gpus) + [2] * len(any_machine.topology.nics)
    rows = [tuple(cell for block in blocks for cell in block[1 + row].split()[skip[row] :]) for row in range(count)]

    assert tuple(rows) == any_machine.topology.links


def test_a_machine_is_drawn_as_matrix_and_tree():
    """GPUs and cards with their rates, below their common group; chosen GPUs are marked without colour."""
    text = as_text(described("pcie4", 0, 2))

    assert text.splitlines()[:4] == [
        "gpu1: 4 GPUs, no NVLink, SYS at the farthest, none of the GPUs with a network",
        "  card behind the same PCIe switches",
        "  NVIDIA H100 80GB HBM3, PCIe generation 5 x16",
        "  chosen (*): GPU0, GPU2; the worst link among them is SYS (GPU0-GPU2); cards",
    ]
    assert (
        """
              GPU0* GPU1 GPU2* GPU3 NIC0
GPU0*         X     PHB  SYS   SYS  NODE
GPU1          PHB   X    SYS   SYS  NODE
GPU2*         SYS   SYS  X     PHB  SYS
GPU3          SYS   SYS  PHB   X    SYS
NIC0  mlx5_0  NODE  NODE SYS   SYS  X

NUMA node 0 (CPUs 0-63)
|-- mlx5_0 (400 Gbit/s)
`-- PHB: GPU0*, GPU1

NUMA node 1 (CPUs 64-127)
`-- PHB: GPU2*, GPU3
"""
        in text
    )


def test_an_inactive_port_and_simulated_components_are_shown():
    """A rate alone would look like a card that works, and a lab's GPU like a real one."""
    text = as_text(described("hgxh100", simulated=("gpus: HGX H100",)))

    assert "`-- PIX: GPU3, mlx5_3 (400 Gbit/s)" in text
    assert "|-- PIX: GPU2, mlx5_2 (400 Gbit/s down)" in text
    assert "  SIMULATED gpus: HGX H100" in text.splitlines()


def test_the_text_includes_warnings():
    """Repairs and faults are in the text too."""
    topology = Topology((TopologyGpu(0),), (), (("X",),), (plain("a tab is lost"),))

    assert as_text(machine(topology)).splitlines()[-1] == "WARNING  a tab is lost"


def test_the_document_has_the_keys_that_scripts_rely_on():
    """Links are square over GPUs and then cards; unknown values are null."""
    topology = Topology(
        (TopologyGpu(0, 1, ("0-7", "16-23")), TopologyGpu(5)),
        (TopologyNic("mlx5_0", 0),),
        (("X", "NV2", "PIX"), ("NV2", "X", "SYS"), ("PIX", "SYS", "X")),
        (plain("odd"),),
    )
    document = as_document(machine(topology, 5, nics={"mlx5_0": NicDetails(100.0, "Ethernet", active=True)}))
    gpu, nic = document["gpus"][0], document["nics"][0]

    assert [(one["index"], one["numa"], one["cpus"]) for one in document["gpus"]] == [
        (0, 1, ["0-7", "16-23"]),
        (5, None, []),
    ]
    assert (gpu["product"], gpu["pcie_generation"]) == (None, None)
    assert nic == {"name": "mlx5_0", "numa": 0, "rate_gbit": 100.0, "link_layer": "Ethernet", "active": True}
    assert document["links"] == [["X", "NV2", "PIX"], ["NV2", "X", "SYS"], ["PIX", "SYS", "X"]]
    assert (document["warnings"], document["chosen"], document["simulated"]) == (["odd"], [5], False)
    assert document["warning_codes"] == [plain("odd").as_document()]
    assert document["tree"][0] == {
        "numa": 1,
        "cpus": ["0-7", "16-23"],
        "devices": [],
        "groups": [{"class": "PIX", "devices": ["GPU0", "mlx5_0"], "groups": []}],
    }


def test_a_drawing_has_every_device_inside_its_sheet(any_machine):
    """It is well-formed; each GPU and card has a box and a label, in the box."""
    sheet = ET.fromstring(as_svg(any_machine))  # noqa: S314 - made by us
    width, height = float(sheet.get("width")), float(sheet.get("height"))
    boxes = [box for box in _boxes(sheet) if box[4].split()[0] in {"gpu", "nic"}]
    labels = [text for text in _texts(sheet) if text[4] == "device"]

    assert len(boxes) == len(any_machine.topology.links)
    assert [shape for shape in [*_boxes(sheet), *_texts(sheet)] if not _within(shape, (0, 0, width, height))] == []
    assert all(any(_within(label, box) for box in boxes) for label in labels)
    assert sum("chosen" in box[4] for box in boxes) == len(any_machine.chosen)
    assert {label[5] for label in labels} >= {
        name + "*" * any_machine.is_chosen(row) for row, name in enumerate(any_machine.names())
    }


def test_labels_and_boxes_of_a_drawing_do_not_overlap(any_machine):
    """No texts or devices overlap; boxes are nested or disjoint."""
    _assert_nothing_meets(any_machine)


def test_long_cpu_lists_below_single_gpus_do_not_overlap():
    """A box is as wide as its name, which is cut where it is endless."""
    cpus = tuple(str(number) for number in range(0, 64, 2))
    alone = tuple(TopologyGpu(index, index, cpus) for index in range(3))

    _assert_nothing_meets(machine(Topology(alone, (), (("X", "SYS", "SYS"), ("SYS", "X", "SYS"), ("SYS", "SYS", "X")))))


def _assert_nothing_meets(shown: MachineTopology) -> None:
    sheet = ET.fromstring(as_svg(shown))  # noqa: S314 - made by us
    texts, boxes = _texts(sheet), _boxes(sheet)
    devices = [box for box in boxes if box[4].split()[0] in {"gpu", "nic"}]

    assert [pair for pair in itertools.combinations(texts, 2) if _meet(*pair)] == []
    assert [pair for pair in itertools.combinations(devices, 2) if _meet(*pair)] == []
    nested = [box for box in boxes if box[4] in {"place", "group"}]
    odd = [(a, b) for a, b in itertools.combinations(nested, 2) if _meet(a, b) and not (_within(a, b) or _within(b, a))]
    assert odd == []


def test_a_drawing_shows_the_links():
    """A line to the switches for each GPU that has lanes, or an arc for each pair, as wide as it has lanes."""
    switched = parse(LAYOUTS["cards by number"])
    fallen = tuple(
        tuple("NODE" if 7 in (a, b) and cell == "NV18" else cell for b, cell in enumerate(row))
        for a, row in enumerate(switched.links)
    )
    mesh = _links(machine(of(load("dgx1v"))))

    assert len(_links(machine(switched))) == 8
    assert len(_links(machine(Topology(switched.gpus, switched.nics, fallen)))) == 7
    assert len(mesh) == 16
    assert ("GPU0-GPU3 2 lanes", "2") in mesh
    assert _links(machine(of(load("pair")))) == []


def test_special_characters_in_names_are_escaped_in_a_drawing():
    """A node's odd names are text, and characters that XML does not know are replaced."""
    nics = (TopologyNic("<b>&\x1b[31m" + "m" * 60),)
    sheet = as_svg(machine(Topology((TopologyGpu(0),), nics, (("X", "SYS"), ("SYS", "X"))), node="<i>"))

    assert [text[5] for text in _texts(ET.fromstring(sheet)) if "&" in text[5]] == ["<b>&?[31m" + "m" * 22 + "..."]  # noqa: S314


def _links(shown: MachineTopology) -> list[tuple[str, str]]:
    paths = ET.fromstring(as_svg(shown)).iter(f"{SVG}path")  # noqa: S314 - made by us
    return [(path.find(f"{SVG}title").text, path.get("stroke-width")) for path in paths]


def _boxes(sheet):
    return [
        (float(r.get("x")), float(r.get("y")), float(r.get("width")), float(r.get("height")), r.get("class"))
        for r in sheet.iter(f"{SVG}rect")
        if r.get("class") != "sheet"
    ]


def _texts(sheet):
    """Left, top, width, height, class and words of each text."""
    outlines = []
    for text in sheet.iter(f"{SVG}text"):
        width = len(text.text) * LETTER
        left = float(text.get("x")) - (width / 2 if text.get("text-anchor") == "middle" else 0)
        outlines.append((left, float(text.get("y")) - HEIGHT + 2, width, HEIGHT, text.get("class"), text.text))
    return outlines


def _meet(a, b):
    return a[0] < b[0] + b[2] and b[0] < a[0] + a[2] and a[1] < b[1] + b[3] and b[1] < a[1] + a[3]


def _within(a, b):
    return b[0] <= a[0] and a[0] + a[2] <= b[0] + b[2] and b[1] <= a[1] and a[1] + a[3] <= b[1] + b[3]
