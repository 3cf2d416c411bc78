"""The all-reduce over all nodes, compared with the bandwidth that the topology predicts."""

from __future__ import annotations

from provision.checks.base import cluster_check
from provision.components.check import ClusterScene, Verdict, fail, passed, warn
from provision.model import Collective
from provision.model.reason import Reason, reason


@cluster_check("cluster.collective", collective=True)
def _collective(scene: ClusterScene) -> Verdict:  # noqa: PLR0911 - one for each result
    result = scene.collective
    if result is None:
        raise AssertionError("judged only where an all-reduce was measured")
    simulated = result.simulated
    if result.bus_bandwidth is None:
        if result.remedy:
            return fail(
                "cluster.collective.not_possible", cause=result.reason, advice=result.remedy, simulated=simulated
            )
        return fail("cluster.collective.not_measured", cause=result.reason, simulated=simulated)
    measured = _measured(result)
    if result.wrong:
        return fail("cluster.collective.wrong", elements=result.wrong, measured=measured, simulated=simulated)
    fraction, comparison = result.fraction, _comparison(result)
    if fraction is not None and fraction < result.minimum:
        return fail("cluster.collective.slow", measured=measured, comparison=comparison)
    if result.left_out:
        nodes = [reason("cluster.collective.node", name=n, cause=why) for n, why in result.left_out.items()]
        return warn(
            "cluster.collective.some_nodes",
            measured=measured,
            comparison=comparison,
            left_out=nodes,
            simulated=simulated,
        )
    if result.memory == "gpu" and fraction is None:
        return warn("cluster.collective.not_compared", measured=measured, comparison=comparison, simulated=simulated)
    return passed("cluster.collective.ok", measured=measured, comparison=comparison, simulated=simulated)


def _measured(result: Collective) -> Reason:
    return reason(
        "cluster.collective.measured",
        size_mib=result.size_bytes >> 20,
        ranks=result.ranks,
        nodes=result.nodes,
        program=result.program,
        memory="GPU memory" if result.memory == "gpu" else "host memory",
        gb_s=result.bus_bandwidth,
    )


def _comparison(result: Collective) -> Reason:
    if result.simulated:
        return reason("cluster.collective.simulated")
    if result.fraction is not None:
        return reason(
            "cluster.collective.fraction", fraction=result.fraction, gb_s=result.predicted, minimum=result.minimum
        )
    return reason("cluster.collective.no_prediction", cause=result.not_predicted or "the nodes have no GPU")
