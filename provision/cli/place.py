"""``provision place``: which GPUs of which nodes a job should get."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import (
    AskBecomePassOption,
    InventoryOption,
    JsonOption,
    LabOption,
    LimitOption,
    ask_become_password,
    cluster_from,
    print_json,
    say_reasons,
    show,
)
from provision.cli.option_groups import with_option_groups
from provision.errors import UsageError

if TYPE_CHECKING:
    from provision.model import Topology
    from provision.topology.placement import Places, Request

__all__ = ["place"]

Matrix = tuple[tuple[int, ...], ...]


class Preference(StrEnum):
    """What weighs most."""

    BANDWIDTH = "bandwidth"
    PACK = "pack"


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """Options of ``provision place``."""

    gpus: Annotated[int, typer.Option("--gpus", "-g", min=1, metavar="G", help="GPUs of each worker.")]
    workers: Annotated[int, typer.Option("--workers", min=1, metavar="W", help="How many workers.")] = 1
    gputopology: Annotated[
        bool, typer.Option("--gputopology", help="Take nodes of the mode topology instead of default.")
    ] = False
    share: Annotated[bool, typer.Option("--share", help="Take nodes of the mode share, whose GPUs jobs share.")] = False
    topo_file: Annotated[
        list[str] | None,
        typer.Option(
            "--topo-file",
            metavar="NAME=FILE[,KEY=VALUE]...",
            help="A node by the recorded output of `nvidia-smi topo -m`; no node is asked. May be repeated.",
        ),
    ] = None
    p2p_matrix: Annotated[
        list[str] | None,
        typer.Option(
            "--p2p-matrix",
            metavar="NAME=FILE",
            help="What p2pBandwidthLatencyTest measured on a node; it replaces the figures of the product.",
        ),
    ] = None
    uniform: Annotated[
        bool, typer.Option("--uniform", help="The same number of GPUs on every node, as one --nproc-per-node wants it.")
    ] = False
    prefer: Annotated[
        Preference, typer.Option("--prefer", help="pack: use the fewest nodes, then leave good GPUs to other jobs.")
    ] = Preference.BANDWIDTH
    explain: Annotated[bool, typer.Option("--explain", help="Show what counted, and the next best placement.")] = False
    inventory: InventoryOption = None
    lab: LabOption = None
    limit: LimitOption = None
    ask_become_pass: AskBecomePassOption = False
    as_json: JsonOption = False


@with_option_groups
def place(options: PlaceOptions) -> None:
    """Choose the best GPUs and nodes for a job.

    Nothing is started or reserved.

    All workers are placed at once, or none; a worker's GPUs are on one node. What counts first is the bandwidth of the
    ring through all GPUs, then fewer nodes, fewer hops between leaf switches, equal numbers of GPUs, cards near the
    GPUs, few NUMA nodes, and what stays free for others. With --prefer pack, as for batch jobs, fewer nodes count
    first, then the bandwidth, and what stays free for others after the hops. The exit code is 1 when the job does not
    fit now, or a node could not be reached.

    The nodes are those of the inventory, or of --topo-file alone. What is known of a recorded node follows its file:
    gpu=H100 (the product or its architecture), nic_gbit=400, pcie_gen=5, cpu=icelake, busy=0-3,6, mig=7 (GPUs in MIG
    mode), mode=topology, leaf=L1, rack=R1, domain=D1 (NVLink domain). What is not said is assumed, and named in the
    warnings.

    \b
    Examples:
      provision place --gpus 8 --workers 4
      provision place --gpus 1 --workers 4 --gputopology --explain
      provision place -g 4 --topo-file n1=topo.txt,gpu=V100,busy=0-1
      provision place -g 8 --workers 2 --uniform --json \\
        --topo-file a=a.txt --topo-file b=b.txt
    """
    from provision.report.place_report import as_document, as_text
    from provision.topology.select import place as choose

    request = _request(options)
    places = _places(options)
    placement = choose(places.candidates, request, explain=options.explain)
    say_reasons("left out: ", places.left_out)
    if options.as_json:
        print_json(as_document(placement, places, explain=options.explain))
    else:
        show(as_text(placement, places, explain=options.explain))
    raise typer.Exit(0 if placement.fits and not places.lost else 1)


def _request(options: PlaceOptions) -> Request:
    from provision.topology.candidates import Mode
    from provision.topology.placement import Request

    if options.gputopology and options.share:
        raise UsageError("--gputopology and --share exclude each other", remedy="Give one of them.")
    mode = Mode.TOPOLOGY if options.gputopology else Mode.SHARE if options.share else Mode.DEFAULT
    return Request(options.gpus, options.workers, options.uniform, options.prefer is Preference.PACK, mode)


def _places(options: PlaceOptions) -> Places:
    """Return the nodes of the recorded files, or those of the inventory."""
    measured = _measured(options.p2p_matrix or [])
    if options.topo_file:
        if options.limit is not None or options.lab is not None or _given(options.inventory):
            raise UsageError(
                "--topo-file asks no node, so --inventory, --lab and --limit mean nothing", remedy="Leave them out."
            )
        return _recorded(options.topo_file, measured)
    from provision import workflow

    password = ask_become_password(ask=options.ask_become_pass)
    cluster = cluster_from(options.inventory, options.lab, become_password=password)
    _refuse_strangers(measured, {node.name for node in cluster.nodes})
    return workflow.places_for_jobs(cluster, options.limit, measured)


def _given(inventory: str | None) -> bool:
    """Whether an inventory stands on the command line, not in the environment alone."""
    return inventory is not None and os.environ.get("PROVISION_INVENTORY") != inventory


def _recorded(texts: Sequence[str], measured: Mapping[str, Matrix]) -> Places:
    """Return the nodes that files describe; a file that describes several is read once."""
    from provision.topology.matrix import parse
    from provision.topology.placement import Places
    from provision.topology.topo_file import candidate, grouped, topo_file

    files = [topo_file(text) for text in texts]
    twice = [name for name, count in Counter(file.name for file in files).items() if count > 1]
    if twice:
        raise UsageError(f"two --topo-file describe {twice[0]}", remedy="Give every node a name of its own.")
    _refuse_strangers(measured, {file.name for file in files})
    topologies: dict[str, Topology] = {}
    made = []
    for file in files:
        if file.path not in topologies:
            topologies[file.path] = _parsed(file.path, parse)
        made.append(candidate(file, topologies[file.path], measured.get(file.name)))
    warnings = grouped((node.name, text) for node, texts in made for text in texts)
    return Places(tuple(node for node, _ in made), warnings)


def _parsed(path: str, parse: Callable[[str], Topology]) -> Topology:
    try:
        return parse(_read(path))
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", remedy=error.remedy) from None


def _measured(texts: Sequence[str]) -> dict[str, Matrix]:
    """Return by node what was measured between its GPUs."""
    from provision.topology.p2p import parse_p2p

    matrices: dict[str, Matrix] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not (name and equals and path) or name in matrices:
            raise UsageError(f"--p2p-matrix {text}: no node and its file", remedy="Give NAME=FILE, once for a node.")
        matrices[name] = parse_p2p(_read(path), path)
    return matrices


def _refuse_strangers(measured: Mapping[str, Matrix], nodes: Collection[str]) -> None:
    for name in measured:
        if name not in nodes:
            raise UsageError(f"--p2p-matrix {name}: unknown node", remedy="Give the name of a node.")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{path} cannot be read: {reason}", remedy="Give the path of a file.") from None
