"""The request look: the resources and jobs of this node."""

import os

from provision.node.files import Record, program
from provision.node.jobs.gpus import SMI_SECONDS, Gpus
from provision.node.jobs.leases import PORT, LeaseLock, gpu_leases
from provision.node.jobs.reaping import close_unsupervised, supervised_leases, valid_leases
from provision.node.jobs.records import drain_reason
from provision.node.jobs.reports import reports, sweep_logins
from provision.node.jobs.runs import job_runs


def look(request: Record) -> Record:
    """Return the GPUs, leases, ports, CPUs and jobs of this node."""
    gpus = Gpus()
    sweep_logins()
    containers = job_runs()
    close_unsupervised(containers)
    active = supervised_leases(containers)
    with LeaseLock():
        leases = valid_leases(containers, active)
    answer = reports({"names": request.get("names"), "brief": request.get("brief", True)})
    answer.update(gpus.state(containers)._asdict())
    ports = {name[len(PORT) :]: lease for name, lease in leases.items() if name.startswith(PORT)}
    queue = {job["name"]: job["queue"] for job in answer["jobs"] if job["queue"]}
    answer.update(leases=gpu_leases(leases), ports=ports, cpus=cpus(), drained=drain_reason(), queue=queue)
    answer["docker_error"] = "" if containers is not None else "docker's engine does not answer"
    if request.get("topology"):
        answer["topology"] = program(["nvidia-smi", "topo", "-m"], SMI_SECONDS)[1]
    return answer


def cpus() -> int:
    """Return the number of CPUs that jobs can use."""
    try:
        return len(os.sched_getaffinity(0))
    except OSError:
        return os.cpu_count() or 1
