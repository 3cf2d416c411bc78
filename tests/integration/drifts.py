# ruff: noqa: E501 - a table, in which a line is one thing
"""A catalogue of what can go wrong on a node behind our back: each made for real, each with the reason to be found."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BATCHES", "Drift"]

SSH = "/var/lib/provision/container_ssh"
RECEIPTS = "/var/lib/provision/receipts"
OLDER = """
set -e; work=$(mktemp -d); mkdir -p $work/DEBIAN
printf 'Package: %s\\nVersion: %s\\nArchitecture: all\\nMaintainer: test <test@example.org>\\nDescription: older\\n' NAME VERSION \
  >$work/DEBIAN/control
dpkg-deb --build $work $work.deb >/dev/null; dpkg -i --force-all $work.deb >/dev/null 2>&1; rm -r $work $work.deb
"""
"""Puts an older version of a package in its place."""
OTHER_IMAGE = (
    "echo other >/tmp/other; tar -C /tmp -c other | docker import - other:1 >/dev/null; docker tag other:1 IMAGE"
)


@dataclass(frozen=True)
class Drift:
    """One manual change."""

    name: str
    make: str
    """Shell on the node; IMAGE stands for the training image."""
    role: str
    reason: str
    """A regular expression that the code and values of one of the role's reasons match."""


def drift(name: str, role: str, reason: str, make: str) -> Drift:
    return Drift(name, make, role, reason)


def older(package: str, version: str) -> str:
    return OLDER.replace("NAME", package).replace("VERSION", version)


FILES = (
    drift("a file edited", "base_system", r"file\.edited: .*limits\.d/90-provision\.conf",
          "echo '# mine' >>/etc/security/limits.d/90-provision.conf"),
    drift("a file deleted", "base_system", r"file\.missing: .*system\.conf\.d/90-provision\.conf",
          "rm /etc/systemd/system.conf.d/90-provision.conf"),
    drift("a file that everybody may write", "base_system", r"file\.attribute: .*logind\.conf\.d/90-provision\.conf mode 0666 0644",
          "chmod 666 /etc/systemd/logind.conf.d/90-provision.conf"),
    drift("our block in a file edited", "base_system", r"/etc/hosts",
          "sed '/^# BEGIN provision/,/^# END provision/s/^\\(10[.].*\\)$/\\1 other/' /etc/hosts >/tmp/hosts; "
          "cat /tmp/hosts >/etc/hosts"),
    drift("a repository's file edited", "platform", r"file\.edited: .*sources\.list\.d/provision-",
          "echo '# mine' >>/etc/apt/sources.list.d/provision-provision-lab.sources"),
    drift("a file of another owner", "container_ssh", r"file\.attribute: .*/ssh_config owner daemon:root root:root",
          f"chown daemon {SSH}/ssh_config"),
    drift("a script of the container replaced", "training_container", r"file\.edited: .*container-entrypoint",
          "printf '#!/bin/sh\\nexec sleep infinity\\n' >/tmp/new; chmod 755 /tmp/new; "
          "mv /tmp/new /usr/local/lib/provision/container-entrypoint"),
)  # fmt: skip
DOCKER = (
    drift("a key of daemon.json edited", "docker_engine", r"file\.json_edited: /etc/docker/daemon\.json file\.keys_differ log-opts",
          "sed -i 's/\"max-file\": \"[0-9]*\"/\"max-file\": \"9\"/' /etc/docker/daemon.json"),
    drift("the certificate of the registry deleted", "docker_engine", r"file\.missing: /etc/docker/certs\.d/.*/ca\.crt",
          "rm /etc/docker/certs.d/*/ca.crt"),
    drift("docker stopped", "docker_engine", r"unit\.stopped: docker\.service|docker_engine\.service\.not_active",
          "systemctl stop docker.socket docker.service"),
    drift("docker disabled", "docker_engine", r"unit\.enabled: docker\.service disabled",
          "systemctl disable docker.service 2>/dev/null"),
    drift("a package of docker's removed", "docker_engine", r"package\.missing: pigz",
          "dpkg --purge --force-depends pigz >/dev/null"),
)  # fmt: skip
MASKED = (
    drift("docker masked", "docker_engine", r"unit\.masked: docker\.service",
          "systemctl mask docker.service 2>/dev/null"),
    drift("daemon.json deleted", "docker_engine", r"file\.missing: /etc/docker/daemon\.json", "rm /etc/docker/daemon.json"),
    drift("the description of the GPUs edited", "nvidia_container", r"file\.edited: /etc/cdi/nvidia\.yaml",
          "echo '# mine' >>/etc/cdi/nvidia.yaml"),
    drift("a package removed", "nvidia_container", r"package\.missing: nvidia-container-toolkit",
          "dpkg --purge --force-depends nvidia-container-toolkit >/dev/null"),
    drift("a package older than it was", "rdma_stack", r"package\.older: ibverbs-utils 1\.0 ",
          older("ibverbs-utils", "1.0")),
)  # fmt: skip
CONTAINERS = (
    drift("the container stopped", "training_container", r"container\.state: provision-training stopped",
          "docker stop -t 1 provision-training >/dev/null"),
    drift("the units beside the container disabled", "training_container", r"unit\.enabled: provision-container-hosts\.path disabled",
          "systemctl disable --now provision-container-hosts.path 2>/dev/null"),
    drift("a line added to authorized_keys", "container_ssh", r"file\.edited: .*authorized_keys",
          f"echo 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ5w1cCm4Wb0ThT5YlWn0YmPdR2m5z8m1yU0c3Q0S8hX eve' >>{SSH}/authorized_keys"),
    drift("a line of known_hosts removed", "container_ssh", r"file\.edited: .*known_hosts",
          f"sed -i 1d {SSH}/known_hosts"),
    drift("sshd's settings edited", "container_ssh", r"file\.edited: .*sshd_config",
          f"echo 'PasswordAuthentication yes' >>{SSH}/sshd_config"),
)  # fmt: skip
REMADE = (
    drift("the container removed", "training_container", r"container\.missing: provision-training",
          "docker rm -f provision-training >/dev/null"),
    drift("the image retagged", "training_image", r"image\.differs: IMAGE sha256:[0-9a-f]+.* sha256:", OTHER_IMAGE),
)  # fmt: skip
OTHER_FLAGS = (
    drift("the container made anew with other flags", "training_container", r"container\.recreated: provision-training",
          "docker rm -f provision-training >/dev/null; docker run -d --name provision-training --shm-size 64m "
          "--network host --entrypoint sleep IMAGE infinity >/dev/null"),
    drift("the private key of the container's sshd changed", "container_ssh", r"host_.*key|known_hosts|sshd",
          f"rm {SSH}/keys/ssh_host_ed25519_key*; ssh-keygen -q -t ed25519 -N '' -f {SSH}/keys/ssh_host_ed25519_key; "
          f"chown --reference={SSH}/keys {SSH}/keys/*"),
)  # fmt: skip
FOLDER_GONE = (
    drift("the folder of the container's SSH deleted", "training_container",
          rf"mounts\.deleted\b.* training_container\.mounts\.mount {SSH} /etc/provision/ssh", f"rm -rf {SSH}"),
    drift("the file of the nodes' names deleted", "training_container",
          r"mounts\.deleted\b.* /var/lib/provision/container_hosts /etc/hosts", "rm /var/lib/provision/container_hosts"),
)  # fmt: skip
IMAGE_GONE = (
    drift("the image removed", "training_image", r"image\.missing: IMAGE",
          "docker rm -f provision-training >/dev/null; docker rmi -f IMAGE >/dev/null"),
)  # fmt: skip
RECORDS = (
    drift("a receipt deleted", "base_system", r"plan\.never_applied", f"rm {RECEIPTS}/base_system.json"),
    drift("a receipt cut short", "rdma_stack", r"plan\.receipt_(unreadable|edited)",
          f"truncate -s 100 {RECEIPTS}/rdma_stack.json"),
    drift("a receipt forged", "training_image", r"plan\.receipt_edited",
          f"sed -i 's/\"source\": \"registry\"/\"source\": \"elsewhere\"/' {RECEIPTS}/training_image.json"),
    drift("a seal deleted", "container_ssh", r"plan\.receipt_edited",
          f"rm {RECEIPTS}/container_ssh.seal"),
)  # fmt: skip

BATCHES: dict[str, tuple[Drift, ...]] = {
    "files": FILES,
    "docker": DOCKER,
    "masked": MASKED,
    "containers": CONTAINERS,
    "remade": REMADE,
    "other-flags": OTHER_FLAGS,
    "folder-gone": FOLDER_GONE,
    "image-gone": IMAGE_GONE,
    "records": RECORDS,
}
"""Drifts that can be made at once, because none hides another."""
