"""The wording of the reasons of placements, and of the faults of topologies: code -> message and remedy.

`provision/report/reasons.py` describes the templates.
"""

from __future__ import annotations

from collections.abc import Mapping

from provision.model.reason import Wording

_SHORTAGE = (
    "; a job needs all its workers at once; a worker uses {gpus:times GPU} of one node"
    "[, at most {max_per_node:times worker} on a node]; free: {free}"
    "[ and {more} more on {more_nodes:times node}]; {largest}[; {excluded:;}]"
)

REASONS: Mapping[str, Wording] = {
    # Placements
    "placement.on_node": Wording("[all {workers} workers at once ]on {name}"),
    "placement.on_nodes": Wording("[all {workers} workers at once ]on {count} nodes"),
    # Jobs that do not fit now
    "placement.insufficient_gpus": Wording("insufficient GPUs for {missing} of {workers:times worker}" + _SHORTAGE),
    "placement.no_uniform_distribution": Wording(
        "no equal number of workers per node adds up to {workers}" + _SHORTAGE
    ),
    "placement.gpus_of_node": Wording("{name} {gpus}"),
    "placement.gpus_of_holder": Wording("{holder} ({gpus})"),
    "placement.none_free": Wording("nothing"),
    "placement.largest_job": Wording("the largest job that fits now has {workers:times worker}"),
    "placement.no_such_job": Wording("no job of such workers fits now"),
    "placement.mode_differs": Wording("excluded because their mode is not {mode}: {nodes}[ and {more} more]"),
    "placement.mode_of_node": Wording("{name} {mode}"),
    "placement.gpu_faulty": Wording("faulty: {nodes}"),
    "placement.mig": Wording("in MIG mode, available only to single shared GPUs: {nodes}"),
    "placement.workers_per_node": Wording(
        "{workers} workers do not fit on {nodes} nodes with {max_per_node} on each",
        "Request fewer workers, or raise --max-per-node.",
    ),
    "placement.spread": Wording("{workers} workers of {gpus} GPUs were requested, and {fit} fit"),
    "placement.no_node_ready": Wording("no node takes jobs now"),
    "placement.no_node_left": Wording("no node may take it"),
    "placement.partial": Wording(
        "it starts with {count} of {workers} workers, as the others do not fit: {cause}",
    ),
    "placement.no_ranks": Wording(
        "the job does not fit: {cause}",
        "Wait until GPUs are free, or request fewer; `provision place` shows what fits.",
    ),
    # Jobs that exceed the cluster
    "placement.exceeds_cluster": Wording(
        "it does not fit on the nodes even when they are idle: {cause}",
        "Request fewer GPUs or workers, or add nodes.",
    ),
    "placement.unknown_node": Wording("there is no node {nodes:or}", "See the names: provision node list"),
    "placement.no_node_matches": Wording(
        "no node matches the options of the job: {nodes:few}",
        "See names and labels with `provision node list`; change --nodes, --exclude or --selector.",
    ),
    "placement.no_gpus": Wording("no node that matches the job has a GPU", "Omit --gpus, or add nodes."),
    "placement.no_topology_node": Wording(
        "no node has the label gpu.schedule=topology, and a job with --gputopology runs on no other node",
        "Give a node to such jobs: provision node label NODE gpu.schedule=topology --overwrite",
    ),
    "placement.no_default_node": Wording(
        "no node has the label gpu.schedule=default, and a job without --gputopology runs on no other node",
        "Give a node to such jobs: provision node label NODE gpu.schedule=default --overwrite",
    ),
    # Nodes that are not used
    "placement.nodes": Wording("{names:short}: {cause}"),
    "placement.not_named": Wording("not among --nodes"),
    "placement.excluded": Wording("excluded by --exclude"),
    "placement.label_missing": Wording("has no label {label}={value}"),
    "placement.attempt_failed": Wording("an attempt of this job failed there"),
    "placement.node_silent": Wording("did not answer"),
    "placement.node_unreachable": Wording("{cause}"),
    "placement.no_containers": Wording("{cause}"),
    "placement.gpus_unreadable": Wording("{cause}"),
    "placement.node_drained": Wording("drained: {cause}"),
    "placement.node_problems": Wording("{problem}; {drained}"),
    "placement.node_exclusive": Wording("{job} has the node for itself (--exclusive)"),
    "placement.node_not_idle": Wording("{job} is on it, and --exclusive requires an idle node"),
    "placement.address_refused": Wording("{cause}"),
    "placement.links_unknown": Wording("how its GPUs are linked is not known: {cause}"),
    "placement.gpus_unknown": Wording("its GPUs are not known: {cause}"),
    "placement.gpus_missing": Wording("nvidia-smi does not see all GPUs that are on the PCI bus"),
    "placement.no_gpu": Wording("it has no GPU"),
    # Faults that a topology matrix shows
    "topology.no_nvlink": Wording(
        "no NVLink on {gpus}, while the other {others} have {lanes} lanes to each other",
    ),
    "topology.no_nvlink_or_bridge": Wording(
        "no NVLink on {gpus}, while the other {others} have {lanes} lanes to each other, unless a bridge joins just "
        "those",
    ),
    "topology.fewer_lanes": Wording("missing NVLink lanes: {gpus}"),
    "topology.lanes_of_gpu": Wording("{lanes} of {usual} ({gpu})"),
    "topology.no_nvlink_between": Wording(
        "no NVLink between {pairs:few}, while the others have {lanes} lanes to each other"
    ),
    "topology.pair": Wording("{a} and {b}"),
    "topology.not_symmetric": Wording("the matrix is not symmetric: {links:few}"),
    "topology.link_directions": Wording("{a}-{b} {forth}, {b}-{a} {back}"),
    "topology.contradiction": Wording("PCIe paths contradict each other: {links}[; and {more} more]"),
    "topology.three_links": Wording("{a}-{b} {ab}, {b}-{c} {bc}, {a}-{c} {ac}"),
    # Repairs of the printed matrix
    "topology.heading_not_separated": Wording(
        "the names in the heading are not separated; the names of the rows are used"
    ),
    "topology.affinity_ambiguous": Wording(
        "the affinity of {gpus} is ambiguous: a cell is empty, and the tabs are lost"
    ),
    "topology.cpus_invalid": Wording("the CPU affinity {cells} is not a list of CPUs; it is treated as unknown"),
    "topology.numa_invalid": Wording("the NUMA affinity {cells} is not a single node; it is treated as unknown"),
    "topology.numa_missing": Wording("the NUMA affinity of {gpus} is missing, but other GPUs have one"),
    "topology.cards_unnamed": Wording("the legend does not name {cards}; their RDMA devices are unknown"),
}
