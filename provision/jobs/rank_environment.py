"""The plan for the ranks of a job, and how it reaches them: in their environment, with the program that reads it."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from provision.errors import LaunchError
from provision.model import NodePlacement, RankPlacement
from provision.node_archive import source

# Isolated (-I): else a file such as json.py in the program's folder would be imported.
LAUNCHER_WORDS = (
    "python3",
    "-I",
    "-c",
    'import base64,os,zlib;exec(zlib.decompress(base64.b64decode(os.environ["PROVISION_LAUNCHER"])))',
)
"""What stands on the command line in front of the program."""
VARIABLES = ("PROVISION_LAUNCHER", "PROVISION_RANKS")

_LONGEST = 128 * 1024 - 64
"""What the kernel takes for one variable."""


@dataclass(frozen=True)
class RankPlan:
    """What each rank of a job gets."""

    nodes: tuple[NodePlacement, ...]
    keep: tuple[str, ...] = ()
    """Variables that are the user's, and are not set."""
    master: tuple[str, int] | None = None
    """Address and port at which torch's ranks meet."""
    mode: str = "rank"
    """``rank``; ``node`` with one process on each node, which starts the ranks."""
    visible: str = "node"
    """Which GPUs a rank sees: those of its ``node``'s ranks, in their order, or of the ``rank`` alone."""
    prefix: tuple[str, ...] = ()
    """Words that are put in front of the program on each node."""


def rank_variables(plan: RankPlan) -> dict[str, str]:
    """Return the two variables that the ranks need; LaunchError when the plan is longer than a variable can be."""
    text = _packed(json.dumps(_document(plan), separators=(",", ":")).encode())
    if len(text) > _LONGEST:
        raise LaunchError(
            f"the plan for {len(plan.nodes)} nodes is too long for one variable ({len(text)} bytes)",
            remedy="Leave --placement out, or start fewer ranks.",
        )
    return {"PROVISION_LAUNCHER": _launcher(), "PROVISION_RANKS": text}


@lru_cache(maxsize=1)
def _launcher() -> str:
    return _packed(source("run/rank_launcher").encode())


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode()


def _document(plan: RankPlan) -> dict[str, Any]:
    return {
        "nodes": [
            {
                "name": node.node,
                "address": node.address,
                "environment": dict(node.environment),
                "ranks": _ranks(node.ranks),
            }
            for node in plan.nodes
        ],
        "keep": list(plan.keep),
        "master": {"address": plan.master[0], "port": plan.master[1]} if plan.master else None,
        "mode": plan.mode,
        "visible": plan.visible,
        "prefix": list(plan.prefix),
    }


def _ranks(ranks: Sequence[RankPlacement]) -> list[dict[str, Any]]:
    """Only what a rank has, so that a thousand nodes fit."""
    documents = []
    for rank in ranks:
        lists = {"gpus": rank.gpus, "nics": rank.nics, "cpus": rank.cpus}
        numbers = {"numa": rank.numa, "gid_index": rank.gid_index}
        given: dict[str, Any] = {name: list(value) for name, value in lists.items() if value}
        documents.append(given | {name: value for name, value in numbers.items() if value is not None})
    return documents
