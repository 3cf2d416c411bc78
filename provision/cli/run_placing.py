"""``provision run --gputopology``: choose GPUs as ``provision place`` does, and run the job there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from provision.cli.common import say
from provision.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from provision.facts import NodeFacts
    from provision.launchers import HostEntry
    from provision.model import Cluster
    from provision.topology.placement import Placement, Places, Request
    from provision.workflow.job_requests import RankOptions

Chosen = tuple["Placement", "Places"]
"""A placement and its candidates."""


def wanted(
    ranks: int | None,
    gpus: int | None,
    workers: int | None,
    rank_options: RankOptions,
    *,
    gputopology: bool,
    offline: bool,
) -> Request | None:
    """Return the GPU request, None without --gputopology; UsageError for options that exclude each other."""
    from provision.launchers import launcher_of
    from provision.topology.candidates import Mode
    from provision.topology.placement import Request

    if not gputopology:
        if gpus is not None or workers is not None:
            raise UsageError("--gpus and --workers require --gputopology", remedy="Add it, or use -n alone.")
        return None
    if offline:
        raise UsageError("--gputopology requires a probe of the nodes", remedy="Omit --offline.")
    if rank_options.placement:
        raise UsageError("--placement and --gputopology exclude each other", remedy="Use one of them.")
    if ranks is not None and (gpus is not None or workers is not None):
        raise UsageError(
            "-n sets the number of workers with one GPU, and excludes --gpus and --workers",
            remedy="Use -n, or --gpus and --workers.",
        )
    if ranks is None and gpus is None and workers is None:
        raise UsageError("--gputopology requires a number of GPUs", remedy="Use -n, or --gpus and --workers.")
    if ranks is not None and ranks < 1:
        raise UsageError(f"{ranks} ranks requested", remedy="Request at least one.")
    return Request(
        gpus or 1,
        ranks or workers or 1,
        uniform=launcher_of(rank_options.launcher).equal_slots,
        mode=Mode.TOPOLOGY,
    )


def choose(
    request: Request,
    cluster: Cluster,
    entries: Sequence[HostEntry],
    facts: Mapping[str, NodeFacts],
    rank_options: RankOptions,
) -> tuple[RankOptions, Chosen]:
    """Return the rank options with the chosen GPUs, one per rank, and the placement.

    The cluster has the roles' defaults; `entries` are its nodes that can run ranks.

    Raises:
        LaunchError: The job does not fit now.
    """
    from provision import workflow
    from provision.model.reason import reason
    from provision.report.place_report import as_line
    from provision.report.reasons import error_of, message
    from provision.topology.rank_placement import node_placements
    from provision.topology.select import place

    places = workflow.places_among(cluster, {entry.name: facts[entry.name] for entry in entries})
    placement = place(places.candidates, request)
    notes = [*(f"{name}: {message(why, name)}" for name, why in places.left_out), *places.warnings]
    if not placement.fits:
        why = reason("placement.no_ranks", cause=placement.reason)
        raise error_of(LaunchError, why, output="\n".join(notes))
    for note in notes:
        say(f"warning: {note}")
    say(as_line(placement))
    return replace(rank_options, placement=node_placements(placement, places)), (placement, places)
