"""The data volumes of the inventory: mounted on every node, responding, readable, and the same on all nodes."""

from __future__ import annotations

from collections.abc import Sequence

from provision.batch.data import DataFinding
from provision.checks.base import check, cluster_check
from provision.components.check import ClusterScene, Scene, Verdict, fail, passed, warn
from provision.model.reason import reason


@check("node.data", data=True)
def _of_node(scene: Scene) -> Verdict:
    return _verdict([item for item in scene.data or () if item.node == scene.node.name], "node.data.ok")


@cluster_check("cluster.data", data=True)
def _of_cluster(scene: ClusterScene) -> Verdict:
    return _verdict([item for item in scene.data or () if not item.node], "cluster.data.ok")


def _verdict(findings: Sequence[DataFinding], ok: str) -> Verdict:
    if not findings:
        return passed(ok)
    judge = fail if any(item.level == "fail" for item in findings) else warn
    return judge(
        "node.data.findings",
        problems=[reason("node.data.problem", volume=item.volume, problem=item.problem) for item in findings],
        advice=next((item.remedy for item in findings if item.remedy), "") or "See: provision data check",
    )
