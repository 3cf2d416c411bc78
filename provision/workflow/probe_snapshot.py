"""How the engine of batch jobs sees the nodes: by the probe that everything else uses too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from provision.errors import ProvisionError
from provision.model.cluster import NO_JOBS
from provision.model.reason import Reason, reason
from provision.workflow.survey import degraded, probe

if TYPE_CHECKING:
    from provision.batch.containers import NodeHardware
    from provision.facts import NodeFacts
    from provision.jobs.cluster_snapshot import ClusterSnapshot
    from provision.model import Cluster

# Every other fact, also a new one, is collected for each placement. The check at boot, the networks of the nodes and
# the check of a job's command use facts too, and a missing one can exclude a node. None of them needs these facts, and
# Docker is most of the cost of a probe. Containers of jobs have nothing to do with the training container.
_UNUSED = (
    "container", "container_ssh", "container_trust", "docker_config", "docker_info", "docker_service", "fabric",
    "firewall", "image", "kubernetes_host", "nvidia_container", "nvidia_driver", "nvlinks", "package_proxy",
    "packages", "rescue", "selinux", "selinux_denials", "slurm", "sysctls", "time_sync", "xids",
)  # fmt: skip


class ProbeSnapshot:
    """Sees nodes by the same probe as everything else does, and by its rules of what takes jobs."""

    def probe(self, cluster: Cluster, names: Sequence[str]) -> ClusterSnapshot:
        """Probe the nodes, one SSH session each; a node that does not answer is left out, with the reason."""
        from provision.facts import Unknown, data_address, data_interface, refused_addresses, simulated
        from provision.jobs.cluster_snapshot import ClusterSnapshot
        from provision.workflow.launch_inputs import node_networks
        from provision.workflow.placement_candidates import candidate_of, unusable

        nodes = [cluster.node(name) for name in names]
        probed = probe(nodes, names=[node.name for node in cluster.nodes], topology=True, without=_UNUSED)
        left_out = {name: verdict.reason for name, verdict in degraded(cluster, probed).items()}
        left_out |= {node.name: NO_JOBS for node in nodes if not node.takes_jobs}
        left_out |= {
            name: reason("placement.node_unreachable", cause=one.message)
            for name, one in probed.items()
            if isinstance(one, ProvisionError)
        }
        reached = {name: one for name, one in probed.items() if not isinstance(one, ProvisionError)}
        left_out |= {
            name: reason("placement.address_refused", cause=text)
            for name, text in refused_addresses(cluster.nodes, reached).items()
        }
        places, gpus_out = {}, dict[str, Reason]()
        for name, facts in reached.items():
            why = unusable(facts)
            if why is None:
                places[name], _ = candidate_of(cluster.node(name), facts)
            elif _has_gpus(facts):
                gpus_out[name] = why
        return ClusterSnapshot(
            candidates=places,
            left_out=left_out,
            gpus_out=gpus_out,
            addresses={
                name: data_address(cluster.node(name).variables, facts) or cluster.node(name).connection.host
                for name, facts in reached.items()
            },
            interfaces={
                name: data_interface(cluster.node(name).variables, facts) or "" for name, facts in reached.items()
            },
            networks=node_networks(cluster, probed),
            facts=reached,
            hardware={name: _hardware(facts) for name, facts in reached.items()},
            cpus={
                name: facts.hardware.cpus for name, facts in reached.items() if not isinstance(facts.hardware, Unknown)
            },
            simulated=tuple(name for name, facts in reached.items() if simulated(facts, "nvidia")),
        )


def _has_gpus(facts: NodeFacts) -> bool:
    """Whether there are GPUs on the PCI bus, or may be."""
    from provision.facts import Unknown

    return isinstance(facts.gpu_pci, Unknown) or bool(facts.gpu_pci)


_LIMITS = {"memlock": "Max locked memory", "nofile": "Max open files", "stack": "Max stack size"}


def _hardware(facts: NodeFacts) -> NodeHardware:
    """Return what a container may be given: a node that is one itself can give no more than its own PID 1 has."""
    from provision.batch.containers import NodeHardware
    from provision.facts import Unknown, is_container

    # Anywhere else docker's engine is root of the whole machine and may raise what PID 1 has, an eighth of the memory.
    limits: Mapping[str, int | None] = {}
    if is_container(facts) and not isinstance(facts.limits, Unknown):
        limits = facts.limits.init
    most = {name: value for name, kernel in _LIMITS.items() if (value := limits.get(kernel)) is not None}
    return NodeHardware(tuple(_devices(facts)), most)


def _devices(facts: NodeFacts) -> Iterator[str]:
    from provision.facts import Unknown

    if isinstance(facts.rdma, Unknown):
        return
    usable = [device.uverbs for device in facts.rdma.devices if device.uverbs in facts.rdma.nodes]
    yield from (f"/dev/infiniband/{name}" for name in usable)
    if usable and "rdma_cm" in facts.rdma.nodes:
        yield "/dev/infiniband/rdma_cm"
