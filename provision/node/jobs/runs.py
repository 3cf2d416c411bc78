"""Containers and systemd units of jobs on this node, both in the form in which the Docker engine lists containers.

If the engine does not answer, the units are unknown too, so that nothing is closed or released then.
"""

import time
from typing import List, Optional

from provision.node import docker as node_docker
from provision.node.files import Record, Refused
from provision.node.jobs import mountpoints as node_mountpoints
from provision.node.jobs import units as node_units


def job_runs(key: str = "", value: str = "") -> Optional[List[Record]]:
    """Return the containers and units of jobs, or of one ``job`` or ``id``; None if the engine does not answer."""
    label = "provision.{}={}".format(key, value) if key else "provision.job"
    containers = node_docker.job_containers(label)
    return None if containers is None else containers + node_units.job_units(key, value)


def is_unit(item: Record) -> bool:
    """Return whether a run is a unit instead of a container."""
    return bool(node_units.UNIT.match(str(item["Id"])))


def is_running(item: Record) -> bool:
    """Return whether a run has not ended; OSError if the engine does not answer."""
    return node_units.is_running(item["Id"]) if is_unit(item) else node_docker.is_running(item["Id"])


def end_runs(job: str, token: str, attempt: int, grace: float) -> None:
    """End the runs of an attempt: SIGTERM, the grace time, SIGKILL.

    The submitter chooses the ID, so the name of the job is compared too.
    """
    runs = job_runs("id", token)
    if runs is None:
        raise Refused("docker's engine does not answer", "systemctl status docker")
    of_attempt = [item for item in runs if node_docker.labels_of(item) == (job, token, str(attempt))]
    running = [item for item in of_attempt if item.get("State") != "exited"]
    for item in running:
        terminate = node_units.terminate if is_unit(item) else node_docker.terminate
        terminate(item["Id"])
    deadline = time.monotonic() + grace
    while running and time.monotonic() < deadline:
        running = [item for item in running if is_running(item)]
        time.sleep(0.1)
    for item in running:
        if is_unit(item):
            node_units.kill(item["Id"])
        else:
            node_docker.engine("POST", "/containers/{}/kill?signal=KILL".format(item["Id"]))


def remove_run(item: Record) -> None:
    """Remove a unit or a container with its volumes, also a running one; OSError if the engine does not answer."""
    if is_unit(item):
        node_mountpoints.forget(item["Id"])
    else:
        node_docker.engine("DELETE", "/containers/{}?force=1&v=1".format(item["Id"]))
