"""What a set of a machine's GPUs gets to other nodes, in tenths of GB/s one way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from provision.topology.candidates import Machine
from provision.topology.links import NEAR, PCIE_CLASSES
from provision.topology.products import DEFAULT_NIC

__all__ = ["Cards", "Network", "members"]

_STAGED_PERCENT = 55
"""What is left of a way to the network that leads through the host's memory."""
_PIX, _ONE_SOCKET = frozenset({"PIX"}), frozenset(PCIE_CLASSES) - {"SYS"}


def members(mask: int) -> tuple[int, ...]:
    """Return the rows that a mask stands for, ascending."""
    return tuple(row for row in range(mask.bit_length()) if mask >> row & 1)


@dataclass(frozen=True)
class Network:
    """Which network cards a job uses."""

    layer: str = ""
    """The link layer of their ports; empty where nobody knows any."""
    rails: frozenset[str] | None = None
    """The rails that every node of the job reaches; None where cards of all rails meet. Without any rail in common
    traffic changes rails in the hosts."""


class Cards:
    """The network cards of one machine; sets of GPUs are bit masks over the rows of its matrix."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._usable: dict[Network, list[int]] = {}
        self._reaches: dict[Network, tuple[list[int], list[int]]] = {}

    def outside(self, mask: int, network: Network) -> int:
        """Return what the set gets to other nodes: the cards that share a PCIe switch with one of its GPUs, summed.

        Without such a card data is staged in the host's memory, by the best card that there is. 0: the set reaches not
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
        """Return how many GPUs of the set can have a card of their own: one that is PIX to them, one that is near."""
        if network not in self._reaches:
            usable = self._of(network)
            self._reaches[network] = [self._pix[nic] for nic in usable], [self._near[nic] for nic in usable]
        pix, near = self._reaches[network]
        return _matched(mask, pix), _matched(mask, near)

    def _of(self, network: Network) -> list[int]:
        """Return the cards that can be used."""
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
        """Return for each card the GPUs that are so near to it."""
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
        if not self._machine.ports:  # the matrix names none, and a node without a network is in no cluster
            rates = [min(DEFAULT_NIC, self._machine.pcie)]
        return max(rates, default=0) * _STAGED_PERCENT // 100


def _matched(mask: int, reaches: Sequence[int]) -> int:
    """Return how many GPUs of a set can be served by a card each; `reaches` are the GPUs that each card could serve."""
    kinds = Counter(reaches)
    if any(a & b for a, b in combinations(kinds, 2)):
        return _matched_one_by_one([reach & mask for reach in reaches])
    return sum(min(count, (reach & mask).bit_count()) for reach, count in kinds.items())


def _matched_one_by_one(reach: Sequence[int]) -> int:
    """Cards below switches serve the same GPUs or others; a matrix in which some overlap needs a matching."""
    served: dict[int, int] = {}

    def serve(card: int, tried: set[int]) -> bool:
        for row in members(reach[card]):
            if row not in tried:
                tried.add(row)
                if row not in served or serve(served[row], tried):
                    served[row] = card
                    return True
        return False

    return sum(serve(card, set()) for card in range(len(reach)))
