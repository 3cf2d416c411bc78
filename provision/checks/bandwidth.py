"""Bandwidth between the containers of the nodes: slow pairs, and the node, port or path at fault."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from provision.checks.base import check, cluster_check
from provision.components.check import ClusterScene, Scene, Verdict, fail, passed, skip, warn
from provision.model import Bandwidth, PairBandwidth, Port
from provision.model.reason import Reason, reason

FRACTIONS = {"host": 0.92, "gpu": 0.92 * 0.95}
"""Of the line rate, by memory: what writes of megabytes reach at least on a healthy fabric.

Headers and line code leave 0.97 and more of it, and a card in a slot that is too narrow, a path with ACS or a link that
loses packets is far below; 0.92 is what perftest is expected to reach with host memory, and GPU memory within 5 % of
that. Operators of large fleets draw their lines near: 180 of 200, 380 of 400 Gbit/s (Azure's node health checks).
"""
_ENOUGH = 2
"""Partners; with a single one it is not known which end is at fault."""


@dataclass(frozen=True)
class Blame:
    """What explains the bad measurements."""

    dead: tuple[str, ...] = ()
    """Nodes without a successful measurement, whose partners have some."""
    ports: tuple[tuple[Port, str], ...] = ()
    """Ports that are bad with every partner, and as what: empty, ``sending`` or ``receiving``."""
    pairs: tuple[PairBandwidth, ...] = ()
    """Bad measurements that only the path between the two explains."""

    def port_of(self, node: str) -> tuple[Port, str] | None:
        """Return the first port of `node` that is to blame."""
        return next(((port, role) for port, role in self.ports if port.node == node), None)


def is_good(pair: PairBandwidth) -> bool:
    """Return whether a measurement succeeded and is near the line rate, if there is one."""
    if pair.gbit_s is None:
        return False
    return pair.line_rate_gbit_s is None or pair.gbit_s >= FRACTIONS[pair.memory] * pair.line_rate_gbit_s


def blame(pairs: Sequence[PairBandwidth]) -> Blame:
    """Return the fewest nodes and ports that explain the bad measurements; the others remain as pairs."""
    dead = tuple(name for name in _nodes(pairs) if _is_dead(name, pairs))
    left = [pair for pair in pairs if pair.a.node not in dead and pair.b.node not in dead]
    ports: list[tuple[Port, str]] = []
    while (worst := _worst(left)) is not None:
        ports.append(worst)
        left = [pair for pair in left if not _concerns(pair, *worst)]
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
def _of_node(scene: Scene) -> Verdict:  # noqa: PLR0911 - one for each result
    bandwidth, name = _measured(scene), scene.node.name
    if name in bandwidth.broken:
        return fail("rdma_stack.bandwidth.ports", cause=bandwidth.broken[name])
    mine = [pair for pair in bandwidth.pairs if name in {pair.a.node, pair.b.node}]
    if not mine and bandwidth.left_out.get(name):
        return skip("rdma_stack.bandwidth.left_out", cause=bandwidth.left_out[name])
    if not mine:
        return skip("rdma_stack.bandwidth.no_partner")
    culprits = blame(bandwidth.pairs)
    if fault := _fault(name, culprits, bandwidth.pairs):
        return fail("rdma_stack.bandwidth.fault", fault=fault)
    unexplained = [pair for pair in culprits.pairs if pair in mine]
    if unexplained:
        return warn("rdma_stack.bandwidth.bad_pair", pairs=map(_result, unexplained))
    good = [pair for pair in mine if is_good(pair)]
    if not good:
        return skip("rdma_stack.bandwidth.bad_partners")
    if name in bandwidth.tool_lacks:  # host memory says nothing about the path to a GPU
        return warn("rdma_stack.bandwidth.no_cuda", summary=_summary(good), nodes=[name])
    return passed("rdma_stack.bandwidth.ok", summary=_summary(good), notes=())


def _fault(name: str, culprits: Blame, pairs: Sequence[PairBandwidth]) -> Reason | None:
    """Return what is wrong with a node."""
    if name in culprits.dead:
        return reason("rdma_stack.bandwidth.dead", cause=_cause(name, pairs))
    port = culprits.port_of(name)
    return _of_port(*port, pairs) if port else None


def _measured(scene: Scene | ClusterScene) -> Bandwidth:
    if scene.bandwidth is None:
        raise AssertionError("judged only where bandwidth was measured")
    return scene.bandwidth


@cluster_check("rdma_stack.bandwidth", full=True)
def _of_cluster(scene: ClusterScene) -> Verdict:  # noqa: PLR0911 - one for each result
    bandwidth = _measured(scene)
    pairs, good = bandwidth.pairs, [pair for pair in bandwidth.pairs if is_good(pair)]
    faults = _faults(bandwidth)
    if faults:
        return fail("rdma_stack.bandwidth.faults", faults=faults, good=len(good) if pairs else None, count=len(pairs))
    if not pairs and scene.collective is not None and scene.collective.measured:
        return skip("rdma_stack.bandwidth.only_collective", cause=_nothing_measured(bandwidth))
    if not pairs:
        return fail("rdma_stack.bandwidth.not_measured", cause=_nothing_measured(bandwidth))
    summary, notes = _summary(good), _notes(bandwidth)
    left_out, no_cuda = _left_out(bandwidth), bandwidth.tool_lacks
    if left_out and no_cuda:
        return warn(
            "rdma_stack.bandwidth.some_nodes_no_cuda", summary=summary, notes=notes, nodes=no_cuda, left_out=left_out
        )
    if left_out:
        return warn("rdma_stack.bandwidth.some_nodes", summary=summary, notes=notes, left_out=left_out)
    if no_cuda:
        return warn("rdma_stack.bandwidth.cluster_no_cuda", summary=summary, notes=notes, nodes=no_cuda)
    return passed("rdma_stack.bandwidth.ok", summary=summary, notes=notes)


def _faults(bandwidth: Bandwidth) -> list[Reason]:
    """Return the faults of nodes, ports and pairs."""
    culprits = blame(bandwidth.pairs)
    faults = {name: reason("rdma_stack.bandwidth.ports", cause=cause) for name, cause in bandwidth.broken.items()}
    faults |= {name: reason("rdma_stack.bandwidth.dead", cause=_cause(name, bandwidth.pairs)) for name in culprits.dead}
    faults |= {str(port): _of_port(port, role, bandwidth.pairs) for port, role in culprits.ports}
    named = [reason("rdma_stack.bandwidth.of", object=name, fault=fault) for name, fault in faults.items()]
    return [*named, *map(_result, culprits.pairs)]


def _nothing_measured(bandwidth: Bandwidth) -> Reason:
    reasons = set(bandwidth.left_out.values())
    if len(reasons) == 1 and not bandwidth.idle:
        return reason("rdma_stack.bandwidth.every_node", cause=reasons.pop())
    return reason(
        "rdma_stack.bandwidth.too_few", left_out=_left_out(bandwidth) or [reason("rdma_stack.bandwidth.one_node")]
    )


def _left_out(bandwidth: Bandwidth) -> list[Reason]:
    by_cause: dict[str, list[str]] = {}
    for name, cause in bandwidth.left_out.items():
        by_cause.setdefault(cause, []).append(name)
    return [reason("rdma_stack.bandwidth.nodes", nodes=names, cause=cause) for cause, names in by_cause.items()]


def _notes(bandwidth: Bandwidth) -> list[Reason]:
    notes = []
    if bandwidth.host_memory:
        notes.append(reason("rdma_stack.bandwidth.host_memory", causes=bandwidth.host_memory))
    if any(pair.line_rate_gbit_s is None for pair in bandwidth.pairs):
        notes.append(reason("rdma_stack.bandwidth.soft_roce"))
    if bandwidth.sampled:
        notes.append(reason("rdma_stack.bandwidth.sampled"))
    return notes


def _summary(pairs: Collection[PairBandwidth]) -> Reason:
    return reason(
        "rdma_stack.bandwidth.summary",
        count=len(pairs),
        memory=sorted({pair.memory for pair in pairs}),
        highest=_amount(max(pair.gbit_s or 0.0 for pair in pairs)),
        lowest=_result(min(pairs, key=lambda pair: _share(pair) or 0.0)),
    )


def _share(pair: PairBandwidth) -> float | None:
    """Return the fraction of the line rate, or the rate itself where there is no line rate."""
    return pair.gbit_s if not pair.line_rate_gbit_s or pair.gbit_s is None else pair.gbit_s / pair.line_rate_gbit_s


def _of_port(port: Port, role: str, pairs: Sequence[PairBandwidth]) -> Reason:
    mine = [pair for pair in pairs if _concerns(pair, port, role) and not is_good(pair)]
    partners = len({end.node for pair in mine for end in (pair.a, pair.b)} - {port.node})
    worked = [pair for pair in mine if pair.gbit_s is not None]
    if not worked:
        return reason(
            "rdma_stack.bandwidth.port_failed", device=port.device, role=role, partners=partners, cause=mine[0].reason
        )
    return reason(
        "rdma_stack.bandwidth.port_slow", device=port.device, role=role, partners=partners, example=_result(worked[0])
    )


def _cause(name: str, pairs: Sequence[PairBandwidth]) -> str:
    return next(pair.reason for pair in pairs if name in {pair.a.node, pair.b.node})


def _result(pair: PairBandwidth) -> Reason:
    ports = {"sender": str(pair.a), "receiver": str(pair.b)}
    if pair.gbit_s is None:
        return reason("rdma_stack.bandwidth.pair_failed", cause=pair.reason, **ports)
    rate = _amount(pair.line_rate_gbit_s) if pair.line_rate_gbit_s else None
    return reason("rdma_stack.bandwidth.pair", gbit_s=_amount(pair.gbit_s), line_rate=rate, **ports)


def _amount(gbit_s: float) -> str:
    """Return a bandwidth with about three digits: ``0.176``, ``9.8``, ``387``."""
    return f"{gbit_s:.3g}" if gbit_s < 1000 else f"{gbit_s:.0f}"  # noqa: PLR2004 - else it would be 1e+03
