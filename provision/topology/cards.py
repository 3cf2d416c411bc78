"""Bandwidth from a set of GPUs to other nodes, in tenths of GB/s in one direction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from provision.topology.candidates import Machine
from provision.topology.links import NEAR, PCIE_CLASSES
from provision.topology.products import DEFAULT_NIC

_STAGED_PERCENT = 55
"""The share of the bandwidth that remains when data is staged in host memory."""
_PIX, _ONE_SOCKET = frozenset({"PIX"}), frozenset(PCIE_CLASSES) - {"SYS"}


def members(mask: int) -> tuple[int, ...]:
    """Return the rows of a bit mask, ascending."""
    return tuple(row for row in range(mask.bit_length()) if mask >> row & 1)


@dataclass(frozen=True)
class Network:
    """The network cards that a job uses."""

    layer: str = ""
    """The link layer of their ports; empty if unknown."""
    rails: frozenset[str] | None = None
    """The rails that every node of the job reaches; None if all rails are connected. Without a common rail, traffic
    between rails passes through the hosts."""


class Cards:
    """The network cards of one machine; GPU sets are bit masks over the rows of its matrix."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._usable: dict[Network, list[int]] = {}
        self._reaches: dict[Network, tuple[list[int], list[int]]] = {}

    def outside(self, mask: int, network: Network) -> int:
        """Return the bandwidth to other nodes: the sum of the cards that share a PCIe switch with a GPU of the set.

        Without such a card, data is staged in host memory through the best card. 0 means that the set does not reach
        all rails of the network.
        """
        near = self.near(mask, network)
        if network.rails and not network.rails <= {self._machine.ports[nic].rail for nic in near}:
            return 0
        if near and network.rails != frozenset():
            return sum(self._rate(nic) for nic in near)
        return self._staged(mask, network)

    def near(self, mask: int, network: Network) -> tuple[int, ...]:
        """Return the usable cards of the network that are PIX or PXB to a GPU of the set."""
        rails, ports = network.rails, self._machine.ports
        usable = self._of(network)
        return tuple(nic for nic in usable if self._near[nic] & mask and (not rails or ports[nic].rail in rails))

    def own(self, mask: int, network: Network) -> tuple[int, int]:
        """Return how many GPUs of the set can have a card of their own at PIX, and at PIX or PXB."""
        if network not in self._reaches:
            usable = self._of(network)
            self._reaches[network] = [self._pix[nic] for nic in usable], [self._near[nic] for nic in usable]
        pix, near = self._reaches[network]
        return _matched(mask, pix), _matched(mask, near)

    def _of(self, network: Network) -> list[int]:
        """Return the usable cards of the network."""
        if network not in self._usable:
            layers = {"", network.layer}
            ports = enumerate(self._machine.ports)
            self._usable[network] = [
                n for n, port in ports if port.rate and (not network.layer or port.layer in layers)
            ]
        return self._usable[network]

    @cached_property
    def _near(self) -> tuple[int, ...]:
        return self._at(NEAR)

    @cached_property
    def _pix(self) -> tuple[int, ...]:
        return self._at(_PIX)

    @cached_property
    def _same_socket(self) -> tuple[int, ...]:
        return self._at(_ONE_SOCKET)

    def _at(self, classes: frozenset[str]) -> tuple[int, ...]:
        """Return for each card the mask of the GPUs that are linked to it by one of these classes."""
        links, count = self._machine.topology.links, len(self._machine.topology.gpus)
        cards = range(len(self._machine.ports))
        return tuple(sum(1 << row for row in range(count) if links[row][count + nic] in classes) for nic in cards)

    def _rate(self, nic: int) -> int:
        return min(self._machine.ports[nic].rate, self._machine.pcie)

    def _staged(self, mask: int, network: Network) -> int:
        crossing = self._machine.inter_cpu
        rates = [
            rate if crossing is None or self._same_socket[nic] & mask else min(rate, crossing)
            for nic in self._of(network)
            if (rate := self._rate(nic))
        ]
        if not self._machine.ports:  # the matrix lists no card, but every cluster node has a network
            rates = [min(DEFAULT_NIC, self._machine.pcie)]
        return max(rates, default=0) * _STAGED_PERCENT // 100


def _matched(mask: int, reaches: Sequence[int]) -> int:
    """Return how many GPUs of a set can be served by a card each; `reaches` has the GPUs that each card can serve."""
    kinds = Counter(reaches)
    if any(a & b for a, b in combinations(kinds, 2)):
        return _matched_one_by_one([reach & mask for reach in reaches])
    return sum(min(count, (reach & mask).bit_count()) for reach, count in kinds.items())


def _matched_one_by_one(reach: Sequence[int]) -> int:
    """Return the size of a maximum matching of GPUs and cards, for a matrix in which the cards' GPUs overlap."""
    served: dict[int, int] = {}

    def serve(card: int, visited: set[int]) -> bool:
        for row in members(reach[card]):
            if row not in visited:
                visited.add(row)
                if row not in served or serve(served[row], visited):
                    served[row] = card
                    return True
        return False

    return sum(serve(card, set()) for card in range(len(reach)))
