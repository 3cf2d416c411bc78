"""Nodes on which every role has ended well and nothing has changed since; tests change one thing at a time."""

from __future__ import annotations

import copy
import dataclasses

from provision.components import ROLES
from provision.facts import NodeFacts
from provision.facts.managed import Managed
from provision.facts.records import Receipt
from provision.model import Cluster
from provision.planning import PlanScene, RoleSource, fingerprint
from tests.unit.checks.conftest import healthy, make_cluster, make_node

JOB = "process 4711 (python3 of root) holds /dev/nvidia0"
WORDS = {
    "platform": "platform_extra_repositories hostvars groups",
    "base_system": "base_system_sysctls hostvars platform_data_addresses",
    "rdma_stack": "rdma_stack_soft_roce_enabled data_interface",
    "peer_memory": "peer_memory_provider",
    "nvidia_container": "nvidia_container_flavor nvidia_container_cdi_enabled",
    "docker_engine": "docker_engine_log_max_size docker_engine_registry_ca docker_engine_data_root ansible_play_hosts",
    "training_image": "training_image_reference training_image_digest training_image_retries hostvars",
    "training_container": "training_container_name training_image_reference training_container_env",
    "container_ssh": "container_ssh_port hostvars data_address",
}
SOURCES = {role: RoleSource(f"code of {role}", frozenset(WORDS.get(role, "").split())) for role in ROLES}
FILE = {"type": "file", "mode": "0644", "owner": "root:root", "sum": "aa"}
UNIT = {"load": "loaded", "active": "active", "enabled": "enabled"}
CONTAINER = {"id": "c1", "image": "sha256:11", "status": "running"}
MANAGED = {
    "base_system": {"files": {"/etc/hosts": {"type": "file", "block": "provision", "sum": "bb"}}},
    "rdma_stack": {
        "files": {"/usr/local/lib/provision/rdma-setup": {**FILE, "mode": "0755"}},
        "packages": {"rdma-core": "44"},
        "units": {"provision-rdma.service": UNIT},
        "modules": {"ib_uverbs": True},
    },
    "nvidia_container": {"packages": {"nvidia-container-toolkit": "1.17.8-1"}},
    "docker_engine": {
        "files": {
            "/etc/docker/daemon.json": {
                "type": "file", "mode": "0644", "owner": "root:root", "keys": {"log-opts": "11", "runtimes": "22"},
            },
            "/etc/docker/certs.d/r:5000/ca.crt": FILE,
        },
        "packages": {"docker.io": "20.10.24"},
        "units": {"docker.service": UNIT},
    },
    "training_image": {"images": {"r:5000/t:1": "sha256:11"}},
    "training_container": {
        "files": {"/usr/local/lib/provision/container-hosts": {**FILE, "mode": "0755"}},
        "units": {"provision-container-hosts.path": UNIT},
        "containers": {"provision-training": CONTAINER},
    },
    "container_ssh": {
        "files": {f"/var/lib/provision/container_ssh/{name}": FILE for name in ("known_hosts", "ssh_config")},
        "containers": {"provision-training": CONTAINER},
    },
}  # fmt: skip


def cluster_of(count: int = 2, **variables: object) -> Cluster:
    """Nodes gpu1, gpu2, ... as the checks' healthy ones."""
    nodes = tuple(make_node(f"gpu{n}", f"10.77.0.{n}", **variables) for n in range(1, count + 1))
    return Cluster("test", make_cluster().inventory, nodes)


def receipts_of(cluster: Cluster, name: str = "gpu1") -> dict[str, Receipt]:
    """What the roles left when they ended well with these variables."""
    node = cluster.node(name)
    made = {}
    for role in ROLES:
        mark = fingerprint(role, node, cluster, SOURCES, f"salt{role}")
        made[role] = Receipt(role, {"role": role, "fingerprint": mark, **copy.deepcopy(MANAGED.get(role, {}))})
    return made


def facts_of(cluster: Cluster, name: str = "gpu1") -> NodeFacts:
    """Everything is as the receipts say."""
    number = int(name.removeprefix("gpu"))
    seen = Managed(dict.fromkeys(ROLES, True), {role: copy.deepcopy(MANAGED.get(role, {})) for role in ROLES})
    return dataclasses.replace(healthy(number), receipts=receipts_of(cluster, name), managed=seen)


def scene_of(
    name: str = "gpu1",
    *,
    before: Cluster | None = None,
    now: Cluster | None = None,
    disruptive: tuple[str, ...] = (),
    **facts: object,
) -> PlanScene:
    """A node that was applied with the inventory `before`; some facts replaced."""
    was, cluster = before or now or cluster_of(), now or cluster_of()
    everything = {node.name: facts_of(was, node.name) for node in was.nodes}
    mine = dataclasses.replace(everything[name], **facts)
    everything[name] = mine
    return PlanScene(
        cluster.node(name), mine, cluster, everything, {"debian 12": "tested"}, SOURCES, frozenset(disruptive)
    )


def changed(role: str, section: str, name: str, value: object, *, jobs: tuple[str, ...] = ()) -> Managed:
    """What is seen when one thing is not as the role's receipt says."""
    seen = {key: copy.deepcopy(MANAGED.get(key, {})) for key in ROLES}
    seen[role][section][name] = value
    return Managed(dict.fromkeys(ROLES, True), seen, jobs)


def busy(managed: Managed | None = None) -> Managed:
    """The same on a node with a job."""
    usual = managed or facts_of(cluster_of()).managed
    return dataclasses.replace(usual, jobs=(JOB,))
