"""Assignment of ranks: from the nodes, the placement and the variables of a job to the plan of its ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from provision.errors import LaunchError, UsageError
from provision.facts import NodeFacts, Unknown, free_port
from provision.jobs.rank_environment import RankPlan
from provision.jobs.request import JobRequest
from provision.launchers import MASTER_PORT, MPIRUN, HostEntry, launcher_of
from provision.model import NodePlacement, RankPlacement, Setting

_FIRST_PORT, _PORTS = 20000, 10000
"""Below the ports of outgoing connections; each job starts at a different port."""


def rank_plan(request: JobRequest, used: Sequence[HostEntry], variables: Iterable[Setting]) -> RankPlan | None:
    """Return what each rank is to get beyond the command line; None when that is nothing.

    `used` are the nodes with just as many slots as they get ranks.
    """
    differing = {setting.name: setting.nodes for setting in variables if setting.nodes and setting.source != _PLACED}
    if not (differing or request.placement or request.launcher != MPIRUN):
        return None
    ranks = {node.node: node.ranks for node in request.placement}
    nodes = tuple(
        NodePlacement(
            entry.name,
            entry.address,
            ranks.get(entry.name, (RankPlacement(),) * entry.slots)[: entry.slots],
            {name: values[entry.name] for name, values in differing.items() if entry.name in values},
        )
        for entry in used
    )
    launcher = launcher_of(request.launcher)
    return RankPlan(
        nodes,
        tuple(request.environment),
        None if request.launcher == MPIRUN else _master(request, used[0]),
        "node" if launcher.per_node else "rank",
        request.visible,
        launcher.prefix() if launcher.shell_line else (),
    )


def _master(request: JobRequest, entry: HostEntry) -> tuple[str, int]:
    """Where torch's ranks meet: at the first rank's node, at a port that nothing listened on a moment ago."""
    facts = request.facts.get(entry.name)
    if facts is None:
        return entry.address, MASTER_PORT
    return entry.address, free_port(facts, _FIRST_PORT + int(request.job or "0", 16) % _PORTS)


_PLACED = "placement"


def placed_variables(variables: Iterable[Setting], placement: Sequence[NodePlacement]) -> tuple[Setting, ...]:
    """Return the variables as a placement changes them: cards and GPUs are those that it names."""
    nics, gpus = _listed(placement, "nics"), _listed(placement, "gpus")
    settings = [setting for setting in variables if not (setting.name == "NCCL_IB_HCA" and nics)]
    if nics:
        cards = {node: f"={value}" for node, value in nics.items()}
        settings.append(Setting("-x", "NCCL_IB_HCA", None, _PLACED, "the cards near the GPUs", cards))
    if gpus:
        settings.append(Setting("-x", "CUDA_VISIBLE_DEVICES", None, _PLACED, "in the order of local ranks", gpus))
    return tuple(settings)


def _listed(placement: Sequence[NodePlacement], kind: str) -> dict[str, str]:
    lists = {
        node.node: dict.fromkeys(name for rank in node.ranks for name in getattr(rank, kind)) for node in placement
    }
    return {node: ",".join(names) for node, names in lists.items() if names}


def placed_entries(entries: Sequence[HostEntry], placement: Sequence[NodePlacement]) -> list[HostEntry]:
    """Return the entries of a placement's nodes, in its order, with a slot for each of its ranks.

    Raises:
        LaunchError: a node cannot take ranks, or not so many.
    """
    known = {entry.name: entry for entry in entries}
    for node in placement:
        if node.node not in known or known[node.node].slots < len(node.ranks):
            why = f"it has {known[node.node].slots} slots" if node.node in known else "it cannot take ranks"
            raise LaunchError(
                f"the placement puts {len(node.ranks)} ranks here, but {why}",
                node=node.node,
                remedy="Make the placement anew: provision place",
            )
    placed = [replace(known[node.node], slots=len(node.ranks)) for node in placement if node.ranks]
    if not placed:
        raise LaunchError("the placement has no ranks", remedy="Make it for at least one GPU: provision place")
    return placed


def with_uuids(placement: Sequence[NodePlacement], facts: Mapping[str, NodeFacts]) -> tuple[NodePlacement, ...]:
    """Return the placement with UUIDs for indices, where the node's GPUs are known: a container may count others.

    Raises:
        UsageError: there is no such GPU, or it is in MIG mode and no instance of it is named.
    """
    return tuple(
        replace(node, ranks=tuple(replace(rank, gpus=_uuids(node.node, rank.gpus, facts)) for rank in node.ranks))
        for node in placement
    )


def _uuids(node: str, gpus: Sequence[str], facts: Mapping[str, NodeFacts]) -> tuple[str, ...]:
    node_facts = facts.get(node)
    if node_facts is None or isinstance(node_facts.gpus, Unknown) or not node_facts.gpus:
        return tuple(gpus)
    known = {str(gpu.index): gpu.uuid for gpu in node_facts.gpus}
    missing = [gpu for gpu in gpus if gpu not in known and gpu not in known.values() and not gpu.startswith("MIG-")]
    if missing:
        raise UsageError(
            f"the placement names GPU {', '.join(missing)} of {node}, which has {', '.join(known)}",
            remedy="Make the placement anew: provision place",
        )
    cut = {name for gpu in node_facts.gpus if gpu.health.mig for name in (str(gpu.index), gpu.uuid)}
    whole = [gpu for gpu in gpus if gpu in cut]
    if whole:
        raise UsageError(
            f"the placement names GPU {', '.join(whole)} of {node}, which is in MIG mode: a rank can only have one of "
            "its instances",
            remedy="Write an instance's UUID in its place (MIG-..., see `nvidia-smi -L` there), and give --own-gpus.",
        )
    return tuple(known.get(gpu, gpu) for gpu in gpus)
