"""Nodes and GPUs as batch jobs use them: ``top node``, ``top gpu`` and ``node list``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from provision.facts.gpu_usage import GpuUsage
from provision.model.job_views import GpuView, NodeView
from provision.report import layout
from provision.report.grouping import reason_lines
from provision.report.job_words import NOT_APPLICABLE, columns, ruled, simulated_note
from provision.report.reasons import message

if TYPE_CHECKING:
    from provision.report.json_documents.jobs import GpuState, JobNode, TopGpu, TopNode

_RULE = 89
"""The length in arena."""


def top_node_text(nodes: Sequence[NodeView], *, detail: bool = False) -> str:
    """Return arena's table of nodes with its footer; with `detail` also the instances and GPUs of each node."""
    modes = len({node.mode for node in nodes}) > 1
    sick = any(_unhealthy(node) for node in nodes)
    header = ["NAME", "IPADDRESS", "ROLE", "STATUS", "GPU(Total)", "GPU(Allocated)"]
    header += (["GPU(Mode)"] if modes else []) + (["UNHEALTHY"] if sick else [])
    rows = []
    for node in nodes:
        row = [
            node.name,
            node.address,
            role(node),
            layout.state(status(node)),
            str(len(node.gpus)),
            str(_allocated(node)),
        ]
        rows.append(row + ([node.mode] if modes else []) + ([str(_unhealthy(node))] if sick else []))
    lines = columns([header, *rows])
    lines += ["-" * min(_RULE, layout.width()), "Allocated/Total GPUs In Cluster:", _share(nodes)]
    lines += [line for node in nodes for line in _detail(node)] if detail else []
    lines += [] if detail else reason_lines((node.name, message(node.reason)) for node in nodes if node.reason.code)
    return "\n".join(lines + simulated_note([node.name for node in nodes if node.simulated]))


def status(node: NodeView) -> str:
    """Return ``Ready`` or ``NotReady``, and whether scheduling is disabled."""
    return ("Ready" if node.ready else "NotReady") + (",SchedulingDisabled" if node.drained else "")


def role(node: NodeView) -> str:
    """Return ``master`` for the queue host."""
    return "master" if node.head else "<none>"


def node_list_text(nodes: Sequence[NodeView]) -> str:
    """Return nodes with their labels, and the reasons why some accept no jobs."""
    rows = [
        [node.name, layout.state(status(node)), role(node), str(len(node.gpus)), node.mode, _labels(node) or "<none>"]
        for node in nodes
    ]
    lines = columns([["NAME", "STATUS", "ROLE", "GPUS", "GPU.SCHEDULE", "LABELS"], *rows])
    lines += reason_lines((node.name, message(node.reason)) for node in nodes if node.reason.code)
    return "\n".join(lines + simulated_note([node.name for node in nodes if node.simulated]))


def top_node_document(nodes: Sequence[NodeView]) -> TopNode:
    """Return the document of ``top node -o json``."""
    return {
        "nodes": node_documents(nodes),
        "totalGPUs": sum(len(node.gpus) for node in nodes),
        "allocatedGPUs": sum(map(_allocated, nodes)),
    }


def node_documents(nodes: Sequence[NodeView]) -> list[JobNode]:
    """Return nodes and their GPUs as JSON."""
    return [
        {
            "name": node.name,
            "ip": node.address,
            "role": role(node),
            "status": status(node),
            "reason": message(node.reason),
            **node.reason.as_document(),
            "drained": node.drained,
            "type": node.mode,
            "labels": dict(node.labels),
            "totalGPUs": len(node.gpus),
            "allocatedGPUs": _allocated(node),
            "unhealthyGPUs": _unhealthy(node),
            "simulated": node.simulated,
            "gpus": [
                {
                    "id": gpu.index,
                    "uuid": gpu.uuid,
                    "name": gpu.name,
                    "status": gpu_state(gpu),
                    "job": gpu.job,
                    "instance": gpu.instance,
                    "foreign": gpu.foreign,
                }
                for gpu in node.gpus
            ],
        }
        for node in nodes
    ]


def gpu_state(gpu: GpuView) -> GpuState:
    """Return ``using``, ``busy (unmanaged)`` or ``idle``."""
    return "using" if gpu.job else "busy (unmanaged)" if gpu.foreign else "idle"


def gpu_text(
    nodes: Sequence[NodeView], usage: Mapping[str, Sequence[GpuUsage]], simulated: Sequence[str], *, wide: bool = False
) -> str:
    """Return a line for each GPU: utilization, memory and user."""
    header = ["NODE", "GPU", "DUTY", "MEMORY(MiB)", "TEMP", "POWER", "WHOSE"] + (["NAME", "UUID"] if wide else [])
    rows = []
    for node in nodes:
        views = {gpu.uuid: gpu for gpu in node.gpus}
        for gpu in usage.get(node.name, ()):
            row = [node.name, str(gpu.index), per_cent(gpu), _mib(gpu), _unit(gpu.celsius, "C"), _power(gpu)]
            rows.append([*row, _user_text(views.get(gpu.uuid), gpu), *([gpu.name, gpu.uuid] if wide else [])])
    return "\n".join(columns([header, *rows]) + simulated_note(simulated))


def gpu_document(
    nodes: Sequence[NodeView], usage: Mapping[str, Sequence[GpuUsage]], simulated: Sequence[str]
) -> list[TopGpu]:
    """Return the document of ``top gpu -o json``."""
    views = {gpu.uuid: gpu for node in nodes for gpu in node.gpus}
    return [
        {
            "node": name,
            "id": gpu.index,
            "uuid": gpu.uuid,
            "name": gpu.name,
            "gpuDutyCycle": gpu.busy_percent,
            "usedGPUMemory": gpu.used_mib,
            "totalGPUMemory": gpu.total_mib,
            "celsius": gpu.celsius,
            "watts": gpu.watts,
            "job": views[gpu.uuid].job if gpu.uuid in views else "",
            "instance": views[gpu.uuid].instance if gpu.uuid in views else "",
            "processes": [{"pid": one.pid, "name": one.name, "user": one.user} for one in gpu.processes],
            "simulated": name in simulated,
        }
        for name, gpus in usage.items()
        for gpu in gpus
    ]


def per_cent(gpu: GpuUsage) -> str:
    """Return a GPU's duty cycle."""
    return _unit(gpu.busy_percent, "%")


def memory(gpu: GpuUsage) -> str:
    """Return used and total memory as in arena, without fractions: ``1024MiB / 32768MiB``."""
    return NOT_APPLICABLE if gpu.used_mib is None else f"{gpu.used_mib}MiB / {gpu.total_mib}MiB"


def _allocated(node: NodeView) -> int:
    return sum(1 for gpu in node.gpus if gpu.job)


def _unhealthy(node: NodeView) -> int:
    """Return the number of GPUs that are unavailable because processes without a job use them."""
    return sum(1 for gpu in node.gpus if gpu.foreign and not gpu.job)


def _share(nodes: Sequence[NodeView]) -> str:
    total, allocated = sum(len(node.gpus) for node in nodes), sum(map(_allocated, nodes))
    return f"{allocated}/{total} ({100 * allocated // total if total else 0}%)"


def _labels(node: NodeView) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(node.labels.items()))


def _detail(node: NodeView) -> list[str]:
    lines = ["", f"Name:    {node.name}", f"Status:  {status(node)}", f"Role:    {role(node)}", f"Mode:    {node.mode}"]
    lines += [f"Address: {node.address}"]
    lines += [f"Labels:  {_labels(node)}"] if node.labels else []
    lines += [f"Reason:  {message(node.reason, node.name)}"] if node.reason.code else []
    rows = [[str(gpu.index), gpu_state(gpu), gpu.name or "-", _user(gpu)] for gpu in node.gpus]
    lines += ["GPUs:", *ruled(["ID", "STATUS", "NAME", "INSTANCE"], rows)] if rows else ["GPUs:    none"]
    return [*lines, f"Allocated/Total GPUs In Node: {_allocated(node)}/{len(node.gpus)}"]


def _user(gpu: GpuView) -> str:
    return gpu.instance or gpu.job or gpu.foreign or "-"


def _mib(gpu: GpuUsage) -> str:
    return NOT_APPLICABLE if gpu.used_mib is None else f"{gpu.used_mib}/{gpu.total_mib}"


def _power(gpu: GpuUsage) -> str:
    if gpu.watts is None:
        return NOT_APPLICABLE
    return f"{gpu.watts:.0f}W" + (f"/{gpu.limit_watts:.0f}W" if gpu.limit_watts else "")


def _unit(number: float | None, unit: str) -> str:
    return NOT_APPLICABLE if number is None else f"{number:g}{unit}"


def _user_text(view: GpuView | None, gpu: GpuUsage) -> str:
    """Return the instance that leases a GPU, and the processes on it."""
    running = " ".join(f"{one.user or '?'}:{one.name}/{one.pid}" for one in gpu.processes[:3])
    owner = (view.instance or view.job) if view else ""
    return " ".join(filter(None, [owner, running])) or "-"
