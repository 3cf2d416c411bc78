"""Bandwidth between the nodes' containers: what is slow, and which node, port or way is to blame."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from provision.checks.base import check, cluster_check
from provision.components.check import ClusterScene, Scene, Verdict, fail, passed, skip, warn
from provision.model import Bandwidth, PairBandwidth, Port

__all__ = ["Blame", "blame", "is_good"]

FRACTIONS = {"host": 0.92, "gpu": 0.92 * 0.95}
"""Of the line rate, by memory: what writes of megabytes reach at least on a healthy fabric.

Headers and line code leave 0.97 and more of it, and a card in a slot that is too narrow, a path with ACS or a link that
loses packets is far below; 0.92 is what perftest is expected to reach with host memory, and GPU memory within 5 % of
that. Operators of large fleets draw their lines near: 180 of 200, 380 of 400 Gbit/s (Azure's node health checks).
"""
_SHOWN = 6
_ENOUGH = 2
"""Partners; with a single one nobody can tell whose fault it is."""
_WITH_CUDA = (
    "Put a perftest built with CUDA into the training image (./configure CUDA_H_PATH=/usr/local/cuda/include/cuda.h), "
    "one that knows --use_cuda and, for DMA-BUF, --use_cuda_dmabuf; then measure again."
)
_LOOK = (
    "Compare its link with that of a good node: rdma link; ethtool -S (or perfquery) for errors and discards; "
    "MTU; cable and switch port; PCIe width and ACS (lspci -vv)."
)

_TAKE_PART = (
    "Measure with two or more idle nodes that have an RDMA device and a running training container, or verify without "
    "--level full."
)


@dataclass(frozen=True)
class Blame:
    """Whose fault the bad measurements are."""

    dead: tuple[str, ...] = ()
    """Nodes of which no measurement worked, while their partners' did."""
    ports: tuple[tuple[Port, str], ...] = ()
    """Ports that are bad with every partner, and as what: empty, ``sending`` or ``receiving``."""
    pairs: tuple[PairBandwidth, ...] = ()
    """Bad measurements that nothing explains but the way between the two."""

    def port_of(self, node: str) -> tuple[Port, str] | None:
        """Return the first port of `node` that is to blame."""
        return next(((port, role) for port, role in self.ports if port.node == node), None)


def is_good(pair: PairBandwidth) -> bool:
    """Return whether a measurement worked and, where a comparison means anything, is near the line rate."""
    if pair.gbit_s is None:
        return False
    return pair.line_rate_gbit_s is None or pair.gbit_s >= FRACTIONS[pair.memory] * pair.line_rate_gbit_s


def blame(pairs: Sequence[PairBandwidth]) -> Blame:
    """Find the fewest nodes and ports that explain what is bad; what is left are single pairs."""
    dead = tuple(name for name in _nodes(pairs) if _is_dead(name, pairs))
    left = [pair for pair in pairs if pair.a.node not in dead and pair.b.node not in dead]
    ports: list[tuple[Port, str]] = []
    while (found := _worst(left)) is not None:
        ports.append(found)
        left = [pair for pair in left if not _concerns(pair, *found)]
    return Blame(dead, tuple(ports), tuple(pair for pair in left if not is_good(pair)))


def _nodes(pairs: Iterable[PairBandwidth]) -> list[str]:
    return list(dict.fromkeys(port.node for pair in pairs for port in (pair.a, pair.b)))


def _is_dead(name: str, pairs: Sequence[PairBandwidth]) -> bool:
    mine = [pair for pair in pairs if name in {pair.a.node, pair.b.node}]
    partners = set(_nodes(mine)) - {name}
    if len(partners) < _ENOUGH or any(pair.gbit_s is not None for pair in mine):
        return False
    return any(pair.gbit_s is not None for pair in pairs if {pair.a.node, pair.b.node} & partners)


def _concerns(pair: PairBandwidth, port: Port, role: str) -> bool:
    return (role != "receiving" and pair.a == port) or (role != "sending" and pair.b == port)


def _worst(pairs: Sequence[PairBandwidth]) -> tuple[Port, str] | None:
    """Return the port that is bad with the most partners, of those that are bad with all of them."""
    best: tuple[int, tuple[Port, str]] | None = None
    for port in dict.fromkeys(port for pair in pairs for port in (pair.a, pair.b)):
        for role in ("", "receiving", "sending"):
            count = _guilt(port, role, pairs)
            if count and (best is None or count > best[0]):
                best = (count, (port, role))
    return best[1] if best else None


def _guilt(port: Port, role: str, pairs: Sequence[PairBandwidth]) -> int:
    """Return the number of bad measurements of a port, 0 unless all are bad and its partners are good with others."""
    mine = [pair for pair in pairs if _concerns(pair, port, role)]
    partners = {end for pair in mine for end in (pair.a, pair.b)} - {port}
    if len(partners) < _ENOUGH or any(is_good(pair) for pair in mine):
        return 0
    others = [pair for pair in pairs if pair not in mine and is_good(pair)]
    return len(mine) if any({pair.a, pair.b} & partners for pair in others) else 0


@check("rdma_stack.bandwidth", full=True)
def _of_node(scene: Scene) -> Verdict:
    found, name = _measured(scene), scene.node.name
    if name in found.broken:
        return fail(found.broken[name], _LOOK)
    mine = [pair for pair in found.pairs if name in {pair.a.node, pair.b.node}]
    if not mine:
        return skip(found.left_out.get(name) or "there was no other node to measure with")
    culprits = blame(found.pairs)
    if fault := _fault(name, culprits, found.pairs):
        return fail(fault, _LOOK)
    unexplained = [pair for pair in culprits.pairs if pair in mine]
    if unexplained:
        return warn(f"part of a bad pair, and nothing tells which end is at fault: {_some(unexplained)}", _LOOK)
    good = [pair for pair in mine if is_good(pair)]
    return _of_good(name, good, found) if good else skip("all its partners are at fault; see the cluster's results")


def _of_good(name: str, good: Sequence[PairBandwidth], found: Bandwidth) -> Verdict:
    """Host memory that is fast says nothing of the way to a GPU, where there is one."""
    if name in found.tool_lacks:
        return warn(f"{_summary(good)}; the way from card to GPU was not measured: {_no_tool([name])}", _WITH_CUDA)
    return passed(_summary(good))


def _fault(name: str, culprits: Blame, pairs: Sequence[PairBandwidth]) -> str:
    """Return what is wrong with a node; empty when nothing is."""
    if name in culprits.dead:
        return f"no pair with it worked: {_reason(name, pairs)}"
    port = culprits.port_of(name)
    return _of_port(*port, pairs) if port else ""


def _measured(scene: Scene | ClusterScene) -> Bandwidth:
    if scene.bandwidth is None:
        raise AssertionError("judged only where bandwidth was measured")
    return scene.bandwidth


@cluster_check("rdma_stack.bandwidth", full=True)
def _of_cluster(scene: ClusterScene) -> Verdict:
    found = _measured(scene)
    culprits = blame(found.pairs)
    said = [f"{name}: {reason}" for name, reason in found.broken.items()]
    said += [f"{name}: no pair with it worked ({_reason(name, found.pairs)})" for name in culprits.dead]
    said += [f"{port}: {_of_port(port, role, found.pairs)}" for port, role in culprits.ports]
    said += [_some(culprits.pairs)] if culprits.pairs else []
    good = [pair for pair in found.pairs if is_good(pair)]
    if said:
        count = f"{len(good)} of {len(found.pairs)} measurements are as they should be" if found.pairs else ""
        return fail("; ".join(filter(None, [*said, count])), _LOOK)
    if not found.pairs and scene.collective is not None and scene.collective.measured:
        return skip(f"no pair was measured ({_nothing_measured(found)}); see cluster.collective")
    if not found.pairs:
        return fail(f"nothing was measured: {_nothing_measured(found)}", _TAKE_PART)
    reason = _summary(good) + _notes(found)
    notes, remedies = [], []
    if found.tool_lacks:
        notes.append(f"the way from card to GPU was not measured: {_no_tool(found.tool_lacks)}")
        remedies.append(_WITH_CUDA)
    if found.left_out:
        notes.append(f"left out: {_left_out(found)}")
        remedies.append("Run it again when these nodes are idle and sound.")
    return warn("; ".join([reason, *notes]), " ".join(remedies)) if notes else passed(reason)


def _no_tool(names: Sequence[str]) -> str:
    return f"the perftest of the training image has no CUDA on {_few(names, ', ')}"


def _nothing_measured(found: Bandwidth) -> str:
    reasons = set(found.left_out.values())
    if len(reasons) == 1 and not found.idle:
        return f"on every node: {reasons.pop()}"
    return f"fewer than two nodes could take part: {_left_out(found) or 'there is one node'}"


def _left_out(found: Bandwidth) -> str:
    by_reason: dict[str, list[str]] = {}
    for name, reason in found.left_out.items():
        by_reason.setdefault(reason, []).append(name)
    return _few([f"{_few(names, ', ')} ({reason})" for reason, names in by_reason.items()])


def _notes(found: Bandwidth) -> str:
    notes = [f"in host memory: {found.host_memory}"] if found.host_memory else []
    if any(pair.line_rate_gbit_s is None for pair in found.pairs):
        notes.append("Soft-RoCE has no line rate to compare with, and what it reaches says nothing of a card")
    if found.sampled:
        notes.append("a sample, for there are too many nodes for all pairs")
    return "".join(f"; {note}" for note in notes)


def _summary(pairs: Collection[PairBandwidth]) -> str:
    low = min(pairs, key=lambda pair: _share(pair) or 0.0)
    count = f"{len(pairs)} measurement{'s' * (len(pairs) != 1)}"
    high = max(pair.gbit_s or 0.0 for pair in pairs)
    memory = " and ".join(sorted({pair.memory for pair in pairs}))
    return f"{count} between containers, {memory} memory, up to {amount(high)} Gb/s; the lowest is {_told(low)}"


def _share(pair: PairBandwidth) -> float | None:
    """Return the part of the line rate, or the plain rate where there is none."""
    return pair.gbit_s if not pair.line_rate_gbit_s or pair.gbit_s is None else pair.gbit_s / pair.line_rate_gbit_s


def _of_port(port: Port, role: str, pairs: Sequence[PairBandwidth]) -> str:
    mine = [pair for pair in pairs if _concerns(pair, port, role) and not is_good(pair)]
    partners = {end.node for pair in mine for end in (pair.a, pair.b)} - {port.node}
    how = f" when {role}" if role else ""
    worked = [pair for pair in mine if pair.gbit_s is not None]
    if not worked:
        return f"nothing worked over {port.device}{how} with any of {len(partners)} partners: {mine[0].reason}"
    return f"slow over {port.device}{how} with each of {len(partners)} partners, e.g. {_told(worked[0])}"


def _reason(name: str, pairs: Sequence[PairBandwidth]) -> str:
    return next(pair.reason for pair in pairs if name in {pair.a.node, pair.b.node})


def _some(pairs: Sequence[PairBandwidth]) -> str:
    return _few([_told(pair) for pair in pairs])


def _told(pair: PairBandwidth) -> str:
    if pair.gbit_s is None:
        return f"{pair.a} -> {pair.b} failed: {pair.reason}"
    rate = f" of {amount(pair.line_rate_gbit_s)}" if pair.line_rate_gbit_s else ""
    return f"{pair.a} -> {pair.b} {amount(pair.gbit_s)}{rate} Gb/s"


def amount(gbit_s: float) -> str:
    """Return a bandwidth with three digits or so: ``0.176``, ``9.8``, ``387``."""
    return f"{gbit_s:.3g}" if gbit_s < 1000 else f"{gbit_s:.0f}"  # noqa: PLR2004 - else it would be 1e+03


def _few(texts: Sequence[str], separator: str = "; ") -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return separator.join(texts[:_SHOWN]) + more
