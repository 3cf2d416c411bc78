"""Reading a placement: what ``provision place --json`` prints, or the same written by hand."""

from __future__ import annotations

import json
import re
from typing import Any

from provision.errors import UsageError
from provision.model import NodePlacement, RankPlacement

_MOST_CPUS = 1 << 16


def read_placement(text: str) -> list[NodePlacement]:
    """Return the nodes with their ranks, in the file's order: a rank for each GPU of a worker.

    A worker is ``{"node", "gpus": [index or UUID], "nics": [name]}``; instead of ``gpus`` it may list its ``ranks``
    itself, each ``{"gpus", "nics", "cpus": "0-7" or [int], "numa": int, "gid_index": int}``. Workers of one node are
    joined.

    Raises:
        UsageError: it is no placement; the message says where.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the placement is no JSON: {error}", remedy="See: provision place --json") from error
    workers = document.get("workers") if isinstance(document, dict) else None
    if not isinstance(workers, list) or not workers:
        why = document.get("reason") if isinstance(document, dict) else None
        raise UsageError(
            f"the placement has no workers{f': {why}' if why else ''}", remedy="See: provision place --json"
        )
    result: dict[str, list[RankPlacement]] = {}
    for number, worker in enumerate(workers):
        where = f"worker {number} of the placement"
        if not isinstance(worker, dict) or not isinstance(worker.get("node"), str) or not worker["node"]:
            raise _wrong(where, "names no node")
        result.setdefault(worker["node"], []).extend(_ranks(worker, where))
    return [NodePlacement(node, ranks=tuple(ranks)) for node, ranks in result.items()]


def _ranks(worker: dict[str, Any], where: str) -> list[RankPlacement]:
    nics = _names(worker.get("nics", []), where, "nics")
    ranks = worker.get("ranks")
    if ranks is None:
        return [RankPlacement((gpu,), nics) for gpu in _names(worker.get("gpus", []), where, "gpus")]
    if not isinstance(ranks, list) or not all(isinstance(rank, dict) for rank in ranks):
        raise _wrong(where, "has ranks that are no list of objects")
    return [_rank(rank, nics, f"rank {number} of {where}") for number, rank in enumerate(ranks)]


def _rank(rank: dict[str, Any], nics: tuple[str, ...], where: str) -> RankPlacement:
    return RankPlacement(
        _names(rank.get("gpus", []), where, "gpus"),
        _names(rank["nics"], where, "nics") if "nics" in rank else nics,
        _cpus(rank.get("cpus", []), where),
        _number(rank.get("numa"), where, "numa"),
        _number(rank.get("gid_index"), where, "gid_index"),
    )


def _names(value: object, where: str, key: str) -> tuple[str, ...]:
    """GPUs by index or UUID, cards by name; what a comma or a blank would break into two is no name."""
    if isinstance(value, list) and all(isinstance(v, str | int) and not isinstance(v, bool) for v in value):
        names = tuple(str(item) for item in value)
        if all(re.fullmatch(r"[A-Za-z0-9_.:/-]+", name) for name in names):
            return names
    raise _wrong(where, f"has {key} that are no list of names or numbers")


def _cpus(value: object, where: str) -> tuple[int, ...]:
    words = value.split(",") if isinstance(value, str) else [str(v) for v in value] if isinstance(value, list) else []
    result: list[int] = []
    for word in words if value else ():
        ends = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", word.strip(), re.ASCII)
        if ends is None or int(ends[2] or ends[1]) >= _MOST_CPUS:
            raise _wrong(where, f"has cpus that are none: {word[:40]!r}")
        result += range(int(ends[1]), int(ends[2] or ends[1]) + 1)
    if value and not words:
        raise _wrong(where, "has cpus that are neither text nor a list")
    return tuple(result)


def _number(value: object, where: str, key: str) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise _wrong(where, f"has a {key} that is no number")


def _wrong(where: str, what: str) -> UsageError:
    return UsageError(f"{where} {what}", remedy="See: provision place --json")
