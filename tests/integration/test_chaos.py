"""Whatever interrupts an apply, the next apply converges all nodes, and no file is torn."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import ENGINES
from tests.integration.faults import FAULTS, Place, ready
from tests.support.command import Provision
from tests.support.engine import engine_host

OWN = f"chaos{os.getpid()}"
SEED = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(10**6))
"""CHAOS_SEED repeats a run."""
MOST_SECONDS = 25
UNMAKE = (
    "docker rm -f provision-training >/dev/null 2>&1",
    "docker rmi -f $(docker image ls -q) >/dev/null 2>&1",
    "systemctl stop docker.socket docker.service",
    "rm -f /etc/docker/daemon.json",
    "rm -f /etc/security/limits.d/90-provision.conf /etc/systemd/logind.conf.d/90-provision.conf",
    "dpkg --purge --force-depends nvidia-container-toolkit pigz ibverbs-utils >/dev/null 2>&1; apt-get clean",
    "rm -f /var/lib/provision/container_ssh/known_hosts /var/lib/provision/container_ssh/authorized_keys",
    "rm -rf /var/lib/provision/receipts",
)
TORN = (
    "find /etc /var/lib/provision /usr/local /root -newer /root/begun -size 0 -name '*.json'; "
    "find /etc /var/lib/provision /usr/local \\( -name '.receipt-*' -o -name '*.part' -o -name '.ansible_tmp*' "
    "-o -name '.provision-*' \\)"
)
"""Files that were left half written."""


@pytest.fixture(scope="module")
def own_lab(provision: Provision) -> Iterator[dict]:
    """Two nodes for many faults; applied once."""
    try:
        provision.ok("lab", "up", OWN, "--driver", "container", "--nodes", "2", "--machine", "pair")
        ENGINES.add(engine_host(provision.folder / "state/provision/labs" / OWN))
        provision.ok("apply", "--lab", OWN, "--yes")
        yield provision.ok("lab", "status", OWN, "--json").document
    finally:
        down = provision("lab", "down", OWN)
    assert down.code == 0, str(down)


def one_round(provision: Provision, lab: dict, dice: random.Random, number: int) -> None:
    """Undo something on the nodes, let a fault come at some moment of the apply, lift it, and apply once."""
    name, names = lab["name"], [node["name"] for node in lab["nodes"]]
    node, fault = dice.choice(names), dice.choice(FAULTS)
    unmade, moment = dice.sample(UNMAKE, 3), dice.uniform(0, MOST_SECONDS)
    description = (
        f"seed {SEED}, round {number}: {fault.__name__} on {node} after {moment:.1f} s; before: {'; '.join(unmade)}"
    )
    sys.stdout.write(description + "\n")
    for each in names:
        provision.ok("lab", "ssh", name, each, "--", "touch /root/begun; " + "; ".join([*unmade, "true"]))
    with subprocess.Popen(
        provision.argv("apply", "--lab", name, "--yes"),
        cwd=provision.folder, env=provision.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    ) as apply:  # fmt: skip
        services = Path(provision.environment["XDG_STATE_HOME"]) / "provision/labs" / name / "services"
        place = Place(provision, name, node, services, apply)
        try:
            time.sleep(moment)  # the moment is what is tried
            with place.lift:
                fault(place)
                end = time.monotonic() + dice.uniform(3, 20)
                while apply.poll() is None and time.monotonic() < end:
                    time.sleep(0.2)
            ready(place)
            apply.wait(timeout=400)
        finally:
            if apply.poll() is None:
                os.killpg(apply.pid, signal.SIGKILL)
    done = provision("apply", "--lab", name, "--yes")
    assert done.code == 0, f"{description}: {done}"
    plan = provision("plan", "--lab", name, "--exit-code")
    assert plan.code == 0, f"{description}: {plan}"
    for each in names:
        torn = provision.ok("lab", "ssh", name, each, "--", TORN).out
        assert torn.strip() == "", f"{description}: {torn}"


@pytest.mark.slow
def test_nodes_converge_after_a_fault_at_a_random_moment(provision: Provision, cluster: dict) -> None:
    """The short form of the next one, on nodes that other tests go on with."""
    one_round(provision, cluster, random.Random(SEED), 0)  # noqa: S311 - to be repeated


@pytest.mark.long
def test_nodes_converge_after_many_faults_at_random_moments(provision: Provision, own_lab: dict) -> None:
    """The seed that is printed repeats a run."""
    dice = random.Random(SEED)  # noqa: S311 - to be repeated
    for number in range(25):
        one_round(provision, own_lab, dice, number)
