"""The request look: what this node has for jobs, beside what it knows of them."""

import os

from provision.node.files import program
from provision.node.jobs.gpus import SMI_SECONDS, Gpus
from provision.node.jobs.leases import PORT, LeaseLock, gpu_leases
from provision.node.jobs.reaping import close_unwatched, reaped, supervised_leases
from provision.node.jobs.records import drain_reason
from provision.node.jobs.reports import reports, sweep_logins
from provision.node.jobs.runs import job_runs


def look(request):
    """Return what a node has for jobs, and what it knows of them."""
    gpus = Gpus()
    sweep_logins()
    containers = job_runs()
    close_unwatched(containers)
    living = supervised_leases(containers)
    with LeaseLock():
        leases = reaped(containers, living)
    found = reports({"names": request.get("names"), "brief": request.get("brief", True)})
    found.update(gpus.state(containers)._asdict())
    ports = {name[len(PORT) :]: lease for name, lease in leases.items() if name.startswith(PORT)}
    waits = {job["name"]: job["queue"] for job in found["jobs"] if job["queue"]}
    found.update(leases=gpu_leases(leases), ports=ports, cpus=cpus(), drained=drain_reason(), queue=waits)
    found["docker_error"] = "" if containers is not None else "docker's engine does not answer"
    if request.get("topology"):
        found["topology"] = program(["nvidia-smi", "topo", "-m"], SMI_SECONDS)[1]
    return found


def cpus():
    """Return how many CPUs there are for jobs."""
    try:
        return len(os.sched_getaffinity(0))
    except OSError:
        return os.cpu_count() or 1
