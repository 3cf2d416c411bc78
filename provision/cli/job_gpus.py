"""Utilization of the GPUs of nodes and jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from provision.cli.levels import warn

if TYPE_CHECKING:
    from provision.model import Cluster
    from provision.model.job import JobRecord
    from provision.report.json_documents.jobs import GpuMetrics
    from provision.workflow.job_nodes import Usage


def usage_of(cluster: Cluster, names: Sequence[str]) -> Usage:
    """Query the GPUs of nodes; nodes that do not answer are reported on stderr."""
    from provision.report.grouping import reason_lines
    from provision.workflow.job_nodes import usage

    result = usage(cluster, names)
    for line in reason_lines(result.unreachable, between=" did not report its GPUs: "):
        warn(line)
    return result


def gpu_block(job: JobRecord, used: Usage) -> list[str]:
    """Return the GPUs of a job in the format of get -g."""
    from provision.report.job_detail import gpu_lines
    from provision.report.job_nodes import memory, per_cent
    from provision.report.job_words import simulated_note

    by_uuid = {one.uuid: (per_cent(one), memory(one)) for gpus in used.gpus.values() for one in gpus}
    return [*gpu_lines(job, by_uuid), *simulated_note(used.simulated)]


def metrics(used: Usage, uuids: Sequence[str]) -> dict[str, GpuMetrics]:
    """Return arena's ``gpuMetrics`` of an instance: GPU's index -> duty cycle and memory (MiB)."""
    return {
        str(one.index): {
            "gpuDutyCycle": one.busy_percent,
            "usedGPUMemory": one.used_mib,
            "totalGPUMemory": one.total_mib,
        }
        for gpus in used.gpus.values()
        for one in gpus
        if one.uuid in uuids
    }
