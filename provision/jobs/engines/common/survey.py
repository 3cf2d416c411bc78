"""Lists of jobs and nodes from the answers of the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from provision.batch.records import Report, contradictions, records
from provision.documents.jobs import Lease, LookAnswer, ReportAnswer
from provision.errors import ProvisionError
from provision.jobs.engines.common.node_probe import NodeProbe
from provision.model import Cluster
from provision.model.cluster import NO_JOBS
from provision.model.job_views import GpuView, JobPage, NodeView
from provision.model.reason import NO_REASON, reason
from provision.report.job_reasons import with_message


def job_list(head: str, answers: Mapping[str, ReportAnswer | ProvisionError]) -> JobPage:
    """Return all jobs of which the nodes report, the newest first."""
    reports = [Report.of(name, one) for name, one in answers.items() if not isinstance(one, ProvisionError)]
    lost = {name: one.message for name, one in answers.items() if isinstance(one, ProvisionError)}
    described = map(with_message, records(reports, lost, head).values())
    jobs = sorted(described, key=lambda record: (-record.submitted, record.spec.name))
    incomplete = f"{head}, which has the records of jobs, does not answer: {lost[head]}" if head in lost else ""
    of_head = answers.get(head)
    older = of_head.older if isinstance(of_head, ReportAnswer) else 0
    return JobPage(tuple(jobs), "", lost, tuple(contradictions(reports, head)), incomplete, older)


def node_views(cluster: Cluster, head: str, answers: Mapping[str, LookAnswer | ProvisionError]) -> tuple[NodeView, ...]:
    """Return the nodes with their GPUs."""
    return tuple(_node_view(cluster, head, name, one) for name, one in answers.items())


def _node_view(cluster: Cluster, head: str, name: str, answer: LookAnswer | ProvisionError) -> NodeView:
    node = cluster.node(name)
    labels = node.variables.get("cluster_labels")
    address = str(node.variables.get("cluster_data_address") or node.connection.host)
    shared = {
        "head": name == head,
        "mode": str(node.variables.get("cluster_gpu_schedule") or "default"),
        "labels": {str(key): str(value) for key, value in labels.items()} if isinstance(labels, Mapping) else {},
    }
    if isinstance(answer, ProvisionError):
        silent = reason("placement.node_unreachable", cause=answer.message)
        return NodeView(name, address, ready=False, reason=silent, **shared)  # type: ignore[arg-type]
    probe = NodeProbe(name, answer)
    problem = probe.gpu_problem if node.takes_jobs else NO_JOBS
    return NodeView(
        name,
        address,
        ready=not problem,
        reason=reason("placement.node_problems", problem=problem, drained=probe.drained)
        if problem and probe.drained
        else problem or probe.drained or NO_REASON,
        drained=bool(probe.drained),
        gpus=tuple(_gpu_views(probe)),
        simulated=answer.simulated,
        **shared,  # type: ignore[arg-type]
    )


def _gpu_views(probe: NodeProbe) -> Iterator[GpuView]:
    for gpu in probe.gpus:
        lease = probe.leases.get(gpu.uuid, Lease())
        yield GpuView(gpu.index, gpu.uuid, gpu.name, lease.job, lease.instance, probe.foreign.get(gpu.uuid, ""))
