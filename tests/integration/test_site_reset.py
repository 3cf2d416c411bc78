"""The way there and back: what stood on a node before is there afterwards, and nothing of ours.

It has a lab of its own, because it undoes everything. One node had its own docker, settings and files before; the other
one was bare.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.support.command import Provision, with_own_state
from tests.support.node_state import differences, node_state

pytestmark = pytest.mark.long

LAB = f"back{os.getpid()}"
OWN, BARE = f"{LAB}-1", f"{LAB}-2"

# Written as a site writes it: spaces, order and the end without a newline are part of what has to come back.
DAEMON_JSON = '{ "log-driver": "local",\n    "labels": ["site=own"],  "max-concurrent-downloads": 2 }'
SITE = f"""
set -eu
export DEBIAN_FRONTEND=noninteractive
mkdir -p /etc/docker
printf '%s' '{DAEMON_JSON}' > /etc/docker/daemon.json
chmod 0640 /etc/docker/daemon.json
apt-get -q update >/dev/null
apt-get -y -q --no-install-recommends install docker.io docker-cli >/dev/null
systemctl enable --now docker.service
mkdir -p /etc/ssh/sshd_config.d
printf 'MaxAuthTries 5' > /etc/ssh/sshd_config.d/10-site.conf
printf '127.0.1.1 old-name\\n10.99.9.9 printer.example.org printer' >> /etc/hosts
docker volume create site-data >/dev/null
tar -C /etc -c hostname | docker import - site:1 >/dev/null
docker create --name site site:1 /none >/dev/null
"""


@pytest.fixture(scope="module")
def provision() -> Iterator[Provision]:
    """The command with a state folder of its own; built images are shared with every other lab."""
    with with_own_state() as command:
        yield command


@pytest.fixture(scope="module")
def lab(provision: Provision) -> Iterator[str]:
    """Two nodes with SIMULATED GPUs; the first one gets a site's own docker, settings and files."""
    try:
        provision.ok(
            "lab", "up", LAB, "--driver", "container", "--distro", "debian13", "--nodes", "2", "--machine", "pair"
        )
        shell(provision, OWN, SITE)
        yield LAB
    finally:
        down = provision("lab", "down", LAB)
    assert down.code == 0, str(down)


def shell(provision: Provision, node: str, command: str) -> str:
    """Output of a command on a node; it must succeed, so that no silence passes for an answer."""
    return provision.ok("lab", "ssh", LAB, node, "--", command).out


def look(provision: Provision, node: str) -> dict[str, Any]:
    """What there is on a node, without caches."""
    return node_state(partial(shell, provision, node))


def docker_of(provision: Provision) -> list[str]:
    """What the site's docker is and holds."""
    commands = (
        "systemctl is-active docker.service",
        "systemctl is-enabled docker.service",
        "docker info --format '{{.LoggingDriver}} {{.Labels}}'",
        "docker ps --all --format '{{.Names}} {{.Status}}'",
        "docker volume ls --quiet",
        "docker image ls --format '{{.Repository}}'",
    )
    return shell(provision, OWN, "; ".join(commands)).splitlines()


@pytest.fixture(scope="module")
def before(provision: Provision, lab: str) -> dict[str, Any]:
    """Both nodes before anything of ours was there."""
    assert lab == LAB
    return {"docker": docker_of(provision), **{node: look(provision, node) for node in (OWN, BARE)}}


@pytest.fixture(scope="module")
def applied(provision: Provision, before: dict[str, Any]) -> dict[str, Any]:
    """Both nodes after an apply."""
    done = provision("apply", "--lab", LAB, "--yes", "--json")
    assert done.code == 0, str(done)
    assert before["docker"]
    return {node: look(provision, node) for node in (OWN, BARE)}


@pytest.fixture(scope="module")
def planned(provision: Provision, applied: dict[str, Any]) -> dict[str, Any]:
    """What a reset would do, by node."""
    document = provision.ok("reset", "--lab", LAB, "--dry-run", "--json").document
    assert applied
    return {node["name"]: node for node in document["nodes"]}


@pytest.fixture(scope="module")
def back(provision: Provision, planned: dict[str, Any]) -> dict[str, Any]:
    """The reset's own document, and both nodes after it."""
    done = provision("reset", "--lab", LAB, "--yes", "--json")
    assert done.code == 0, str(done)
    assert planned
    return {"reset": done.document, **{node: look(provision, node) for node in (OWN, BARE)}}


def test_the_plan_of_a_reset_lists_all_actions_and_changes_nothing(provision, before, applied, planned):
    """The plan names files, packages and the container of each node, and changes nothing."""
    own, bare = planned[OWN]["steps"], planned[BARE]["steps"]

    assert "restore /etc/docker/daemon.json" in own
    assert "restore /etc/hosts" in own
    assert all("stop and remove the container provision-training" in steps for steps in (own, bare))
    assert any("docker.io" in step for step in bare)
    assert not any("docker.io" in step for step in own)
    assert differences(applied[OWN], before[OWN])
    assert {node: differences(applied[node], look(provision, node)) for node in (OWN, BARE)} == {OWN: [], BARE: []}


def test_a_reset_without_confirmation_is_refused(provision, planned):
    """There is no terminal to ask: exit 2, and the plan stays unchanged."""
    done = provision("reset", "--lab", LAB)

    assert done.code == 2, str(done)
    assert "--yes" in done.err
    again = provision.ok("reset", "--lab", LAB, "--dry-run", "--json").document
    assert {node["name"]: node for node in again["nodes"]} == planned


def test_a_reset_of_a_node_with_a_running_job_is_refused(provision, planned):
    """The job goes on, and is named; the other node is not held up by it."""
    assert planned
    shell(provision, BARE, "docker exec --detach provision-training sleep 98766")
    try:
        document = provision.ok("reset", "--lab", LAB, "--limit", OWN, "--dry-run", "--json").document
        done = provision("reset", "--lab", LAB, "--limit", BARE, "--yes", "--json")
    finally:
        shell(provision, BARE, "pkill -f '^sleep 98766' || true")

    (refused,) = done.document["nodes"]
    assert document["nodes"][0]["result"] == "planned"
    assert (done.code, refused["result"]) == (1, "refused")
    assert "sleep" in refused["refused"][0]


def test_a_reset_restores_pre_existing_configuration(provision, before, back):
    """The site's docker, daemon.json, sshd settings, names and packages: byte for byte, and running as before."""
    assert {node["name"]: node["result"] for node in back["reset"]["nodes"]} == {OWN: "reset", BARE: "reset"}
    assert differences(before[OWN], back[OWN]) == []
    assert shell(provision, OWN, "cat /etc/docker/daemon.json") == DAEMON_JSON
    assert docker_of(provision) == before["docker"]


def test_a_reset_removes_everything_from_a_bare_node(provision, before, back):
    """No file in /etc, no package, no docker, no folder: only the node's history mentions an apply."""
    commands = (
        # /var/lib/docker is a volume on nodes of the lab. It stood there before, and so it stays as it is.
        "ls -d /var/lib/containerd /etc/provision /usr/local/lib/provision",
        "ls -A /var/lib/provision",
        "command -v docker",
        "systemctl list-units --all --no-legend 'provision-*'",
        "find /etc /usr/local /var/lib -name '*provision*' ! -path '*provision-lab*' ! -path '/var/lib/apt/*'",
    )
    lines = shell(provision, BARE, f"({'; '.join(commands)}) 2>/dev/null; true").splitlines()

    assert differences(before[BARE], back[BARE]) == []
    assert [line for line in lines if line and "provision-lab" not in line] == ["history.jsonl", "/var/lib/provision"]


def test_a_second_reset_has_no_steps(provision, back):
    """It asks no question, and changes nothing."""
    done = provision("reset", "--lab", LAB, "--json")

    assert back["reset"]["ok"]
    assert done.code == 0, str(done)
    assert [(node["result"], node["steps"]) for node in done.document["nodes"]] == [("nothing", [])] * 2


def test_an_unreachable_node_is_reported(provision, back):
    """A node without power makes exit 1, and says why."""
    assert back
    provision.ok("lab", "power", LAB, BARE, "off")
    try:
        done = provision("reset", "--lab", LAB, "--yes", "--json")
    finally:
        provision.ok("lab", "power", LAB, BARE, "on")

    result = {node["name"]: node for node in done.document["nodes"]}
    assert (done.code, result[BARE]["result"], result[OWN]["result"]) == (1, "unreachable", "nothing")
    assert result[BARE]["error"]["remedy"]
