"""Machines for placement tests, and scores of their GPU sets computed from the definitions."""

from __future__ import annotations

from dataclasses import dataclass

from provision.model import Topology, TopologyGpu, TopologyNic
from provision.topology.candidates import Candidate, Machine, Port

CUBE_MESH = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]
"""Pairs of a DGX-1 with V100 that have two lanes."""
MESH = [*CUBE_MESH, (0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)]
"""Pairs of a DGX-1 that have lanes at all."""


@dataclass(frozen=True)
class Card:
    """A network card: by GPU how near it is, its rate, and on which rail it is."""

    near: tuple[str, ...]
    rate: int = 125
    rail: str = ""
    layer: str = ""


@dataclass(frozen=True)
class Box:
    """A machine: lanes and PCIe classes between its GPUs, both known, whatever nvidia-smi shows of them."""

    lanes: tuple[tuple[int, ...], ...]
    pcie: tuple[tuple[str | None, ...], ...]
    numa: tuple[int, ...] | None = None
    cards: tuple[Card, ...] = ()
    lane: int = 200
    slot: int = 120
    switched: bool = False

    @property
    def count(self) -> int:
        return len(self.lanes)

    def machine(self) -> Machine:
        """The machine as the product sees it."""
        gpus = range(self.count)
        rows = [
            [
                *("X" if a == b else f"NV{self.lanes[a][b]}" if self.lanes[a][b] else self.pcie[a][b] for b in gpus),
                *(card.near[a] for card in self.cards),
            ]
            for a in gpus
        ]
        rows += [[*card.near, *("X" if card is other else "SYS" for other in self.cards)] for card in self.cards]
        topology = Topology(
            tuple(TopologyGpu(gpu, None if self.numa is None else self.numa[gpu]) for gpu in gpus),
            tuple(TopologyNic(f"mlx5_{number}") for number in range(len(self.cards))),
            tuple(tuple(row) for row in rows),
        )
        ports = tuple(Port(card.rate, card.layer, card.rail) for card in self.cards)
        return Machine(topology, lane=self.lane, pcie=self.slot, ports=ports)

    def candidate(self, name: str, free: int | None = None, **more: object) -> Candidate:
        """A node of this kind; `free` is a mask, all GPUs without it."""
        busy = frozenset(gpu for gpu in range(self.count) if free is not None and not free >> gpu & 1)
        return Candidate(name, self.machine(), busy=busy, **more)


def matrix(count, value, pairs=()):
    """A symmetric matrix: `value` everywhere but for the `pairs`, which are ((a, b), value)."""
    rows = [[value] * count for _ in range(count)]
    for (a, b), other in pairs:
        rows[a][b] = rows[b][a] = other
    return tuple(map(tuple, rows))


def _two_sockets(count, near="", *, rail=False):
    """Classes of a machine whose GPUs sit in pairs below a switch, half of them on each socket."""
    half = count // 2

    def kind(a, b):
        return "SYS" if a // half != b // half else "PIX" if a // 2 == b // 2 else "PHB"

    pcie = tuple(tuple(kind(a, b) for b in range(count)) for a in range(count))
    cards = tuple(
        Card(
            tuple(near if gpu == at or gpu == at + 1 else kind(gpu, at) for gpu in range(count)),
            rail=f"rail{number}" if rail else "",
        )
        for number, at in enumerate(range(0, count, 2))
        if near
    )
    return pcie, tuple(gpu // half for gpu in range(count)), cards


def _mesh(doubled, lane):
    pcie, numa, cards = _two_sockets(8, "PIX")
    return Box(matrix(8, 0, [(pair, 1 + (pair in doubled)) for pair in MESH]), pcie, numa, cards, lane=lane)


def _switched(count, lanes, lane):
    pcie = tuple(tuple("NODE" if a // 4 == b // 4 else "SYS" for b in range(count)) for a in range(count))
    cards = tuple(
        Card(tuple("PIX" if gpu == own else pcie[gpu][own] for gpu in range(count)), 500) for own in range(count)
    )
    numa = tuple(gpu // 4 for gpu in range(count))
    own = tuple(tuple(0 if a == b else lanes for b in range(count)) for a in range(count))
    return Box(own, pcie, numa, cards, lane=lane, slot=480, switched=True)


def _pcie(count):
    pcie, numa, cards = _two_sockets(count, "PXB")
    return Box(matrix(count, 0), pcie, numa, cards)


def _quad(**more):
    """Four V100 of which each two have lanes, with a card for each pair."""
    pcie, numa, cards = _two_sockets(4, "PIX", **more)
    lanes = matrix(4, 1, [((0, 3), 2), ((1, 2), 2), ((2, 3), 2), *(((gpu, gpu), 0) for gpu in range(4))])
    return Box(lanes, pcie, numa, cards)


def _uneven_cards():
    """Four GPUs on one socket: the first has a card and the second is near it, the others have two less near ones."""
    near = [("PIX", "PXB", "NODE", "NODE"), ("NODE", "NODE", "PXB", "PXB"), ("NODE", "NODE", "PXB", "PXB")]
    return Box(matrix(4, 0), matrix(4, "NODE"), (0,) * 4, tuple(map(Card, near)))


BOXES = {
    "DGX-1V": _mesh(CUBE_MESH, 200),
    "DGX-1P": _mesh([], 180),
    "HGX H100": _switched(8, 18, 206),
    "eight on PCIe": _pcie(8),
}
"""Machines of eight GPUs."""
SMALL = {
    "quad": _quad(),
    "rails": _quad(rail=True),
    "PCIe": _pcie(4),
    "uneven cards": _uneven_cards(),
    "bridges": Box(matrix(4, 0, [((0, 1), 4), ((2, 3), 4)]), _two_sockets(4)[0], (0, 0, 1, 1), lane=120),
}
"""Machines of four GPUs."""
