"""What runs of jobs on this node, be it in docker's containers or in units of systemd; both in the form of the former.

Where docker's engine does not answer nothing is known, of units neither: nothing is closed or given back then.
"""

import time

from provision.node import docker as node_docker
from provision.node.files import Refused
from provision.node.jobs import mountpoints as node_mountpoints
from provision.node.jobs import units as node_units


def job_runs(key="", value=None):
    """Return the containers and units of jobs; None when docker's engine does not answer.

    Args:
        key: ``job`` or ``id``; those of which it is `value`; all without it.
        value: see `key`.
    """
    label = "provision.{}={}".format(key, value) if key else "provision.job"
    containers = node_docker.job_containers(label)
    return None if containers is None else containers + node_units.job_units(key, value)


def is_unit(item):
    """Return whether this is a unit, and not a container."""
    return bool(node_units.UNIT.match(str(item["Id"])))


def is_running(item):
    """Return whether it still runs; OSError when docker's engine does not answer."""
    return (node_units if is_unit(item) else node_docker).is_running(item["Id"])


def end_runs(job, token, attempt, grace):
    """End what runs of an attempt of a job: SIGTERM, the grace time, SIGKILL.

    The submitter chooses the id, so the name of the job is compared too.
    """
    found = job_runs("id", token)
    if found is None:
        raise Refused("docker's engine does not answer", "systemctl status docker")
    of_attempt = [item for item in found if node_docker.labels_of(item) == (str(job), str(token), str(attempt))]
    running = [item for item in of_attempt if item.get("State") != "exited"]
    for item in running:
        (node_units if is_unit(item) else node_docker).terminate(item["Id"])
    deadline = time.monotonic() + grace
    while running and time.monotonic() < deadline:
        running = [item for item in running if is_running(item)]
        time.sleep(0.1)
    for item in running:
        if is_unit(item):
            node_units.kill(item["Id"])
        else:
            node_docker.engine("POST", "/containers/{}/kill?signal=KILL".format(item["Id"]))


def remove_run(item):
    """Take away a container with its volumes, or a unit; one that runs is ended. OSError when the engine is away."""
    if is_unit(item):
        node_mountpoints.forget(item["Id"])
    else:
        node_docker.engine("DELETE", "/containers/{}?force=1&v=1".format(item["Id"]))
