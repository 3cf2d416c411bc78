"""Pre-existing configuration is preserved: docker keeps running with its own settings and is never restarted.

It has a lab of its own, because its node is not bare.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.command import Provision

LAB = f"adopt{os.getpid()}"
NODE = f"{LAB}-1"
DAEMON_JSON = '{ "log-driver": "local", "log-opts": {"max-size": "7m"},\n    "labels": ["site=own"] }'
SITE = f"""
set -eu
export DEBIAN_FRONTEND=noninteractive
mkdir -p /etc/docker
printf '%s' '{DAEMON_JSON}' > /etc/docker/daemon.json
apt-get -q update >/dev/null
apt-get -y -q --no-install-recommends install docker.io docker-cli apparmor >/dev/null
systemctl enable --now docker.service
touch /etc/docker/daemon.json
"""
DOCKER = "cat /etc/docker/daemon.json; systemctl show docker.service -p MainPID"


@pytest.fixture(scope="module")
def site(provision: Provision) -> Iterator[str]:
    """A node without GPUs, on which somebody runs docker."""
    try:
        provision.ok("lab", "up", LAB, "--driver", "container", "--distro", "debian13", "--nodes", "1")
        shell(provision, SITE)
        yield shell(provision, DOCKER)
    finally:
        down = provision("lab", "down", LAB)
    assert down.code == 0, str(down)


def shell(provision: Provision, command: str) -> str:
    return provision.ok("lab", "ssh", LAB, NODE, "--", command).out


def planned(provision: Provision) -> dict[str, Any]:
    """The node's part of a plan."""
    node: dict[str, Any] = provision.ok("plan", "--lab", LAB, "--json").document["nodes"][0]
    return node


def test_pre_existing_configuration_is_adopted_and_docker_keeps_running(provision: Provision, site: str) -> None:
    """A first plan has no disruptive step, records existing settings once, and an apply does not touch docker."""
    first = planned(provision)
    adopted = provision.ok("adopt", "--lab", LAB, "--yes", "--json").document
    again = provision.ok("adopt", "--lab", LAB, "--json").document
    second = planned(provision)

    assert {step["class"] for step in (*first["steps"], *second["steps"])} == {"safe"}
    assert adopted["nodes"][0]["record"] == first["kept"]
    assert first["kept"]["docker_engine_log_driver"] == "local"
    assert (again["files"], second["kept"]) == ([], {})

    done = provision("apply", "--lab", LAB, "--yes", "--json")
    assert done.code == 0, str(done)
    assert provision("plan", "--lab", LAB, "--exit-code").code == 0
    assert shell(provision, DOCKER) == site
