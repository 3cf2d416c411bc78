"""The data volumes that the inventory names: mounted on every node, alive, readable and the same everywhere."""

from __future__ import annotations

from collections.abc import Sequence

from provision.batch.data import DataFinding
from provision.checks.base import check, cluster_check
from provision.components.check import ClusterScene, Scene, Verdict, fail, passed, warn

__all__: list[str] = []

_SHOWN = 6


@check("node.data", data=True)
def _of_node(scene: Scene) -> Verdict:
    found = [item for item in scene.data or () if item.node == scene.node.name]
    return _verdict(found, "all data volumes of the inventory are mounted and can be used")


@cluster_check("cluster.data", data=True)
def _of_cluster(scene: ClusterScene) -> Verdict:
    found = [item for item in scene.data or () if not item.node]
    return _verdict(found, "all nodes have the same data volumes")


def _verdict(found: Sequence[DataFinding], good: str) -> Verdict:
    if not found:
        return passed(good)
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    reason = "; ".join(f"{item.volume}: {item.problem}" for item in found[:_SHOWN]) + more
    remedy = next((item.remedy for item in found if item.remedy), "") or "See: provision data check"
    return (fail if any(item.level == "fail" for item in found) else warn)(reason, remedy)
