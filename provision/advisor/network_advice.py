"""Checks of the network between the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from provision.advisor import thresholds as limit
from provision.advisor.base import GPUS, Answer, Confidence, advice, few, ok, percent, problem, unknown
from provision.advisor.gpu_advice import NO_GPUS, utilization
from provision.advisor.series import NodeSeries

Job = Sequence[NodeSeries]
_TCP = {"Socket", "FastSocket"}


@advice(
    "network-wait",
    "Fix the fabric (provision gdr, run --fabric, nccl-log), use GPUDirect RDMA, or compress gradients (LightCC).",
    needs=GPUS,
)
def network_wait(job: Job) -> Answer:
    """All ranks wait together, and the network is saturated or is not the expected one."""
    if len(job) == 1:
        return ok("the job is on one node: its ranks need no network", Confidence.HIGH)
    sockets = [series.node for series in job if series.transport in _TCP and _rdma_ports(series)]
    if sockets:
        return problem(f"NCCL uses TCP (NET/Socket) though there are RDMA ports on {few(sockets)}", Confidence.HIGH)
    means = utilization(job)
    if not means:
        return unknown(NO_GPUS)
    rates = {name: share for series in job for name, share in _shares(series)}
    if max(means.values()) >= limit.LOW_UTILIZATION.value:
        return ok("at least one GPU does not wait", Confidence.MEDIUM)
    return _full(f"all GPUs are below {limit.LOW_UTILIZATION}", rates)


def _full(low: str, rates: Mapping[str, float]) -> Answer:
    """Check the busiest link of a job whose GPUs all wait."""
    if not rates:
        return unknown(f"{low}, and no interface reports both its traffic and its rate")
    name = max(rates, key=lambda name: rates[name])
    if rates[name] >= limit.NETWORK_SHARE.value:
        return problem(f"{low}, and {name} is at {percent(rates[name])} of its line rate", Confidence.MEDIUM)
    return ok(f"{low}, but the busiest link, {name}, is at {percent(rates[name])} of its line rate", Confidence.LOW)


def _rdma_ports(series: NodeSeries) -> list[str]:
    return [name for name in series.speeds if "/" in name]


def _shares(series: NodeSeries) -> Iterator[tuple[str, float]]:
    """Yield the traffic of each interface and port, in per cent of its line rate, in its busier direction."""
    for first, last in [(series.samples[0], series.samples[-1])] if series.samples else []:
        seconds = last.t - first.t
        for now, before in ((last.net, first.net), (last.ib, first.ib)):
            for name in now.keys() & before.keys() & series.speeds.keys():
                most = max(now[name][direction] - before[name][direction] for direction in (0, 1))
                if seconds > 0 and series.speeds[name] > 0:
                    yield f"{series.node} {name}", 100 * most * 8 / seconds / (series.speeds[name] * 1e9)
