"""Problems of a node are detected on it, named in the report, and do not affect other nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import yaml

from provision.workflow import supported_systems
from tests.integration.conftest import LAB

PACKAGE = "ibverbs-utils"
HOLD_LOCK = (
    "import fcntl, time; stream = open('/var/lib/dpkg/lock-frontend', 'w'); fcntl.lockf(stream, fcntl.LOCK_EX); "
    "open('/run/held', 'w'); time.sleep(600)"
)


@pytest.fixture
def without_package(cluster, on_node) -> Iterator[tuple[str, str]]:
    """The first node lacks one of our packages; yields its name and the other's."""
    name, other = (node["name"] for node in cluster["nodes"])
    on_node(name, f"apt-get -q -y remove {PACKAGE} && apt-get clean")
    yield name, other
    on_node(name, f"dpkg -s {PACKAGE} >/dev/null 2>&1 || apt-get -q -y install {PACKAGE}")


@pytest.fixture
def apply_rdma(provision, ssh_files, tmp_path):
    """Apply the role rdma_stack alone; returns the exit code and the nodes' results by name."""
    inventory = tmp_path / "hosts.yml"
    document = yaml.safe_load((ssh_files / "inventory/hosts.yml").read_text())
    document["all"]["vars"] = {**document["all"].get("vars", {}), "platform_lock_timeout_seconds": 3}
    inventory.write_text(yaml.safe_dump(document))

    def run():
        done = provision("apply", "-i", str(inventory), "--yes", "--json", "--only", "rdma_stack")
        return done.code, {node["name"]: node for node in done.document["nodes"]}

    return run


def test_apply_waits_for_the_apt_lock_and_reports_its_holder(without_package, apply_rdma, on_node):
    """Another package program is waited for as long as the inventory says; then its process is named."""
    name, other = without_package
    on_node(name, f'nohup python3 -c "{HOLD_LOCK}" >/dev/null 2>&1 & while [ ! -e /run/held ]; do sleep 0.1; done')
    try:
        holder = on_node(name, "pgrep -f '^python3 -c import fcntl'").split()[0]
        code, nodes = apply_rdma()
    finally:
        on_node(name, "pkill -f '^python3 -c import fcntl'; rm -f /run/held")

    assert code == 1
    assert holder in nodes[name]["error"]["message"]
    assert "waited 3 seconds" in nodes[name]["error"]["message"]
    assert nodes[other]["status"] == "unchanged"


@pytest.mark.slow
def test_a_full_disk_is_reported_with_its_free_space(without_package, apply_rdma, on_node):
    """A package that does not fit ends in a sentence about the disk, and the next apply installs it."""
    name, other = without_package
    on_node(name, "mount -t tmpfs -o size=32k none /var/cache/apt/archives && mkdir /var/cache/apt/archives/partial")
    try:
        code, nodes = apply_rdma()
    finally:
        on_node(name, "umount /var/cache/apt/archives")
    again, repaired = apply_rdma()

    assert code == 1
    assert "/var/cache/apt/archives has 0 MiB free" in nodes[name]["error"]["message"]
    assert nodes[other]["status"] == "unchanged"
    assert (again, repaired[name]["status"]) == (0, "changed")


def test_an_unsupported_system_is_refused_with_the_supported_ones(cluster, apply_rdma, on_node):
    """A node with another system is refused by name, with the list, before anything is changed on it."""
    name, other = (node["name"] for node in cluster["nodes"])
    foreign = "s/^ID=.*/ID=arch/; s/^PRETTY_NAME=.*/PRETTY_NAME=Arch/"
    on_node(name, f"sed '{foreign}' /etc/os-release >/root/foreign && cp -P /etc/os-release /root/link")
    with contextlib.ExitStack() as stack:
        on_node(name, "rm /etc/os-release && mv /root/foreign /etc/os-release")
        stack.callback(on_node, name, "rm /etc/os-release && mv /root/link /etc/os-release")
        code, nodes = apply_rdma()

    assert code == 1
    error = nodes[name]["error"]
    assert error["code"] == "node.os.unsupported"
    assert "Arch" in error["message"]
    assert ", ".join(supported_systems()) in error["message"]
    assert "docs/reference/systems.md" in error["remedy"]
    assert nodes[other]["status"] == "unchanged"


@pytest.mark.slow
def test_a_removed_node_can_no_longer_log_in_to_the_other_nodes(provision, cluster, own_inventory, on_node):
    """After init --remove and apply, the nodes that stay know the removed one's keys no more."""
    stays, goes = (node["name"] for node in cluster["nodes"])
    known = "cat /var/lib/provision/container_ssh/authorized_keys /var/lib/provision/container_ssh/known_hosts"
    folder = own_inventory("fewer")
    before = on_node(stays, known)

    provision.ok("init", goes, "--remove", "--name", "fewer", "--yes")
    fewer = provision("apply", "-i", str(folder), "--yes", "--json")
    after = on_node(stays, known)
    provision.ok("apply", "--lab", LAB, "--yes")

    assert goes in before
    assert fewer.code == 0, str(fewer)
    assert goes not in after
    assert stays in after
    assert goes in on_node(stays, known)
