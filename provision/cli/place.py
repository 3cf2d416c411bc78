"""``provision place``: the best GPUs and nodes for a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import JsonOption, NodeOptions, print_json, say_reasons, show
from provision.cli.option_groups import with_option_groups
from provision.errors import UsageError

if TYPE_CHECKING:
    from provision.model import Topology
    from provision.topology.candidates import Candidate
    from provision.topology.placement import Places, Request

Matrix = tuple[tuple[int, ...], ...]


class Preference(StrEnum):
    """The preferred criterion."""

    BANDWIDTH = "bandwidth"
    PACK = "pack"


@dataclass(frozen=True, kw_only=True)
class PlaceOptions(NodeOptions):
    """Options of ``provision place``."""

    gpus: Annotated[int, typer.Option("--gpus", "-g", min=1, metavar="G", help="GPUs per worker.")]
    workers: Annotated[int, typer.Option("--workers", min=1, metavar="W", help="Number of workers.")] = 1
    gputopology: Annotated[
        bool, typer.Option("--gputopology", help="Use nodes of the mode topology instead of default.")
    ] = False
    share: Annotated[bool, typer.Option("--share", help="Use nodes of the mode share, whose GPUs jobs share.")] = False
    topo_file: Annotated[
        list[str] | None,
        typer.Option(
            "--topo-file",
            metavar="NAME=FILE[,KEY=VALUE]...",
            help="Node with the recorded output of `nvidia-smi topo -m`; no node is probed. Repeatable.",
        ),
    ] = None
    p2p_matrix: Annotated[
        list[str] | None,
        typer.Option(
            "--p2p-matrix",
            metavar="NAME=FILE",
            help="Output of p2pBandwidthLatencyTest on a node; replaces the product's bandwidths.",
        ),
    ] = None
    uniform: Annotated[
        bool, typer.Option("--uniform", help="Use the same number of GPUs on every node, as --nproc-per-node requires.")
    ] = False
    prefer: Annotated[
        Preference, typer.Option("--prefer", help="pack: use the fewest nodes, then leave good GPUs to other jobs.")
    ] = Preference.BANDWIDTH
    explain: Annotated[bool, typer.Option("--explain", help="Show the criteria and the next best placement.")] = False
    as_json: JsonOption = False


@with_option_groups
def place(options: PlaceOptions) -> None:
    """Choose the best GPUs and nodes for a job.

    Nothing is started or reserved.

    Either all workers are placed or none; a worker's GPUs are on one node. The criteria are, in order: bandwidth of the
    ring through all GPUs, fewer nodes, fewer hops between leaf switches, equal numbers of GPUs, network cards near the
    GPUs, few NUMA nodes, and free GPUs for other jobs. With --prefer pack, as for batch jobs, fewer nodes come
    first, then the bandwidth, and free GPUs for other jobs after the hops. The exit code is 1 when the job does not
    fit now, or a node is unreachable.

    The nodes are those of the inventory, or of --topo-file. Properties of a recorded node follow its file:
    gpu=H100 (the product or its architecture), nic_gbit=400, pcie_gen=5, cpu=icelake, busy=0-3,6, mig=7 (GPUs in MIG
    mode), mode=topology, leaf=L1, rack=R1, domain=D1 (NVLink domain). Missing properties are assumed, with a warning.

    \b
    Examples:
      provision place --gpus 8 --workers 4
      provision place --gpus 1 --workers 4 --gputopology --explain
      provision place -g 4 --topo-file n1=topo.txt,gpu=V100,busy=0-1
      provision place -g 8 --workers 2 --uniform --json \\
        --topo-file a=a.txt --topo-file b=b.txt
    """
    from provision.report.place_report import as_document, as_text
    from provision.report.reasons import message
    from provision.topology.select import place as choose

    request = _request(options)
    places = _places(options)
    placement = choose(places.candidates, request, explain=options.explain)
    say_reasons("excluded: ", ((name, message(why, name)) for name, why in places.left_out))
    if options.as_json:
        print_json(as_document(placement, places, explain=options.explain))
    else:
        show(as_text(placement, places, explain=options.explain))
    raise typer.Exit(0 if placement.fits and not places.lost else 1)


def _request(options: PlaceOptions) -> Request:
    from provision.topology.candidates import Mode
    from provision.topology.placement import Request

    if options.gputopology and options.share:
        raise UsageError("--gputopology and --share exclude each other", remedy="Use one of them.")
    mode = Mode.TOPOLOGY if options.gputopology else Mode.SHARE if options.share else Mode.DEFAULT
    return Request(options.gpus, options.workers, options.uniform, options.prefer is Preference.PACK, mode)


def _places(options: PlaceOptions) -> Places:
    """Return the nodes of the recorded files, or of the inventory."""
    measured = _measured(options.p2p_matrix or [])
    if options.topo_file:
        if options.limit is not None or options.is_given:
            raise UsageError(
                "--topo-file probes no node and excludes --inventory, --lab and --limit", remedy="Omit them."
            )
        return _recorded(options.topo_file, measured)
    from provision import workflow

    cluster = options.cluster()
    _refuse_strangers(measured, {node.name for node in cluster.nodes})
    return workflow.places_for_jobs(cluster, options.limit, measured)


def _recorded(texts: Sequence[str], measured: Mapping[str, Matrix]) -> Places:
    """Return the nodes that files describe. A file of several nodes is read once."""
    from provision.report.reasons import message
    from provision.topology.matrix import parse
    from provision.topology.placement import Places
    from provision.topology.topo_file import candidate, grouped, topo_file

    files = [topo_file(text) for text in texts]
    twice = [name for name, count in Counter(file.name for file in files).items() if count > 1]
    if twice:
        raise UsageError(f"two --topo-file describe {twice[0]}", remedy="Use a different name for each node.")
    _refuse_strangers(measured, {file.name for file in files})
    topologies: dict[str, Topology] = {}
    made: list[Candidate] = []
    notes: list[tuple[str, str]] = []
    for file in files:
        if file.path not in topologies:
            topologies[file.path] = _parsed(file.path, parse)
        node, assumptions = candidate(file, topologies[file.path], measured.get(file.name))
        made.append(node)
        notes += [(node.name, text) for text in (*assumptions, *map(message, topologies[file.path].warnings))]
    return Places(tuple(made), grouped(notes))


def _parsed(path: str, parse: Callable[[str], Topology]) -> Topology:
    try:
        return parse(_read(path))
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", remedy=error.remedy) from None


def _measured(texts: Sequence[str]) -> dict[str, Matrix]:
    """Return node -> measured bandwidths between its GPUs."""
    from provision.topology.p2p import parse_p2p

    matrices: dict[str, Matrix] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not (name and equals and path) or name in matrices:
            raise UsageError(f"--p2p-matrix {text}: not a node and a file", remedy="Use NAME=FILE, once per node.")
        matrices[name] = parse_p2p(_read(path), path)
    return matrices


def _refuse_strangers(measured: Mapping[str, Matrix], nodes: Collection[str]) -> None:
    for name in measured:
        if name not in nodes:
            raise UsageError(f"--p2p-matrix {name}: unknown node", remedy="Specify the name of a node.")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{path} cannot be read: {reason}", remedy="Specify the path of a file.") from None
