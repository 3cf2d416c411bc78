# ruff: noqa: E501 - a table, in which a line is one thing
"""Manual changes of nodes with the tools of their own system, and the reasons that the plan reports for them."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path

from tests.integration import drifts as every_system
from tests.integration.drifts import Drift, drift
from tests.support.packages.build import Package, build_deb, build_rpm

__all__ = ["BATCHES", "drifts"]

UNIT = "/etc/systemd/system/provision-container-hosts.service"
SOURCES = "/etc/apt/sources.list.d/provision-provision-lab.sources"
REPOSITORY, KEY = (
    "/etc/yum.repos.d/provision-provision-lab.repo",
    "/etc/pki/rpm-gpg/RPM-GPG-KEY-provision-provision-lab",
)
VERBS = {"apt": "ibverbs-utils", "dnf": "libibverbs-utils"}
REMOVE = {"apt": "DEBIAN_FRONTEND=noninteractive apt-get -y -q purge {}", "dnf": "dnf -y -q remove {}"}
DOWNGRADE = {
    "apt": "DEBIAN_FRONTEND=noninteractive apt-get -y -q --allow-downgrades install {}",
    "dnf": "rpm -U --oldpackage --nodeps {}",  # dnf refuses it: the older package has no architecture
}
REPOSITORIES = {
    "apt": (
        drift("the key of a repository removed", "platform", rf"file\.edited: {SOURCES}", f"sed -i '/^Signed-By:/,$d' {SOURCES}"),
        drift("a repository disabled", "platform", rf"file\.edited: {SOURCES}", f"sed -i '1a Enabled: no' {SOURCES}"),
    ),
    "dnf": (
        drift("the key of a repository removed", "platform", rf"file\.missing: {KEY}", f"rm {KEY}"),
        drift("a repository disabled", "platform", rf"file\.edited: {REPOSITORY}",
              "dnf -q config-manager --save --setopt=provision-provision-lab.enabled=0"),
    ),
}  # fmt: skip
BATCHES = {
    "settings": (
        "a file edited",
        "a file deleted",
        "a file that everybody may write",
        "our block in a file edited",
        "a key of daemon.json edited",
        "the certificate of the registry deleted",
        "docker disabled",
        "a script of the container replaced",
        "a unit edited",
        "a file of another owner",
        "the key of a repository removed",
        "pigz removed",
        "a package downgraded",
    ),
    "services": (
        "docker masked",
        "daemon.json deleted",
        "the description of the GPUs edited",
        "the toolkit removed",
        "a repository disabled",
        "a line added to authorized_keys",
        "a line of known_hosts removed",
        "sshd's settings edited",
    ),
    "containers": ("the container removed", "the image retagged", "the private key of the container's sshd changed"),
    "image": ("the image removed",),
}
"""Drifts that can be made at once, because none hides another."""


def drifts(manager: str, batch: str) -> list[Drift]:
    """Return the drifts of a batch for the systems with a package manager, ``apt`` or ``dnf``."""
    known = [one for batch in every_system.BATCHES.values() for one in batch] + [
        *REPOSITORIES[manager],
        drift("a unit edited", "training_container", rf"file\.edited: {UNIT}", f"echo '# mine' >>{UNIT}"),
        drift("pigz removed", "docker_engine", r"package\.missing: pigz", REMOVE[manager].format("pigz")),
        drift("the toolkit removed", "nvidia_container", r"package\.missing: nvidia-container-toolkit",
              REMOVE[manager].format("nvidia-container-toolkit")),
        _downgraded(manager),
    ]  # fmt: skip
    by_name = {one.name: one for one in known}
    return [by_name[name] for name in BATCHES[batch]]


def _downgraded(manager: str) -> Drift:
    """Return the drift of a package that an older version replaced; the command contains the package."""
    name, build = VERBS[manager], build_deb if manager == "apt" else build_rpm
    with tempfile.TemporaryDirectory() as folder:
        file = build(Package(name, "1.0-1"), Path(folder))
        content, path = base64.b64encode(file.read_bytes()).decode(), f"/root/older{file.suffix}"
    make = f"echo {content} | base64 -d >{path} && {DOWNGRADE[manager].format(path)} && rm {path}"
    return drift("a package downgraded", "rdma_stack", rf"package\.older: {name} 1\.0-1 ", make)
