"""``provision run --gputopology``: the GPUs are chosen as ``provision place`` does, and the job runs there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from provision.cli.common import say
from provision.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from provision.facts import NodeFacts
    from provision.launchers import HostEntry
    from provision.model import Cluster
    from provision.topology.placement import Placement, Places, Request
    from provision.workflow.job_requests import RankOptions

__all__ = ["Chosen", "as_document", "choose", "wanted"]

Chosen = tuple["Placement", "Places"]
"""A placement, and the places among which it was chosen."""


def wanted(
    ranks: int | None, gpus: int | None, workers: int | None, seats: RankOptions, *, gputopology: bool, offline: bool
) -> Request | None:
    """Return the GPUs that are to be chosen, None when none are; UsageError for options that mean nothing together."""
    from provision.launchers import launcher_of
    from provision.topology.candidates import Mode
    from provision.topology.placement import Request

    if not gputopology:
        if gpus is not None or workers is not None:
            raise UsageError("--gpus and --workers are for --gputopology", remedy="Add it, or give -n alone.")
        return None
    if offline:
        raise UsageError("--gputopology goes by what the nodes tell", remedy="Leave --offline out.")
    if seats.placement:
        raise UsageError("--placement and --gputopology both say where the ranks go", remedy="Give one of them.")
    if ranks is not None and (gpus is not None or workers is not None):
        raise UsageError("-n is as many workers of one GPU", remedy="Give -n, or --gpus and --workers.")
    if ranks is None and gpus is None and workers is None:
        raise UsageError("--gputopology is not told how many GPUs", remedy="Give -n, or --gpus and --workers.")
    if ranks is not None and ranks < 1:
        raise UsageError(f"{ranks} ranks were asked for", remedy="Ask for at least one.")
    return Request(
        gpus or 1,
        ranks or workers or 1,
        uniform=launcher_of(seats.launcher).equal_slots,
        mode=Mode.TOPOLOGY,
    )


def choose(
    request: Request,
    cluster: Cluster,
    entries: Sequence[HostEntry],
    facts: Mapping[str, NodeFacts],
    seats: RankOptions,
) -> tuple[RankOptions, Chosen]:
    """Return the seats that the ranks get, one for each GPU, and how they were chosen.

    The cluster has the roles' defaults; `entries` are its nodes that can take ranks.

    Raises:
        LaunchError: the job does not fit now.
    """
    from provision import workflow
    from provision.report.place_report import as_line
    from provision.topology.rank_placement import node_placements
    from provision.topology.select import place

    places = workflow.places_among(cluster, {entry.name: facts[entry.name] for entry in entries})
    placement = place(places.candidates, request)
    notes = [*(f"{name}: {reason}" for name, reason in places.left_out), *places.warnings]
    if not placement.fits:
        raise LaunchError(
            f"the job does not fit: {placement.reason}",
            remedy="Wait until GPUs are free, or ask for fewer; `provision place` shows what would fit.",
            output="\n".join(notes),
        )
    for note in notes:
        say(f"warning: {note}")
    say(as_line(placement))
    return replace(seats, placement=node_placements(placement, places)), (placement, places)


def as_document(chosen: Chosen | None) -> dict[str, Any]:
    """Return what ``run --explain --json`` adds."""
    from provision.report import place_report

    return {} if chosen is None else {"placement": place_report.as_document(*chosen)}
