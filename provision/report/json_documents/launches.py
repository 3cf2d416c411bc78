"""Documents of the verbs of foreground jobs."""

from __future__ import annotations

from typing import Annotated, NotRequired, TypedDict

from msgspec import Meta

from provision.model.reason import ReasonDocument
from provision.report.json_documents.base import ExcludedNode


class Rank(TypedDict):
    """The resources of a rank."""

    gpus: list[int]
    """The indices of its GPUs."""
    cpus: str
    """Its CPUs: `0-3,8`."""
    numa: int | None
    """The NUMA node from which its memory is allocated."""


class Worker(TypedDict):
    """The GPUs and network cards of a worker."""

    node: str
    """The node."""
    gpus: list[int]
    """The indices of its GPUs, ascending."""
    nics: list[str]
    """The network cards near its GPUs."""
    order: list[int]
    """Its GPUs along their best ring."""
    mig: list[int]
    """Its GPUs in MIG mode."""
    mig_instances: dict[str, list[str]]
    """Index of a GPU in MIG mode -> the UUIDs of its instances; empty if they are unknown."""
    ranks: list[Rank]
    """Its ranks, in the order of their local ranks."""


class RunnerUp(TypedDict):
    """The next best placement."""

    workers: list[Worker]
    """The workers, in rank order."""
    score: dict[str, float | None]
    """Criterion -> value."""
    decided_by: str
    """The first criterion in which the placements differ."""


class LeafNode(TypedDict):
    """A node of a placement."""

    name: str
    """Its name in the inventory."""
    leaf: str
    """Its leaf switch; empty if it is unknown."""


class UnusableNode(ExcludedNode, ReasonDocument):
    """A node that cannot take a worker."""


class Placement(ReasonDocument):
    """The nodes and GPUs of a job."""

    fits: bool
    """Whether all workers can be placed at once."""
    reason: str
    """Why the job has these GPUs, or does not fit."""
    workers: list[Worker]
    """The workers, in rank order."""
    bus_bandwidth_gb_s: float | None
    """The expected bus bandwidth in GB/s; null for one GPU."""
    score: dict[str, float | None]
    """Criterion -> value; empty if the job does not fit."""
    nodes: list[LeafNode]
    """The nodes, in rank order."""
    left_out: list[UnusableNode]
    """Nodes that cannot take a worker."""
    simulated: list[str]
    """Nodes with simulated components."""
    warnings: list[str]
    """Assumptions and other warnings."""
    runner_up: NotRequired[RunnerUp | None]
    """With `--explain`: the next best placement."""


class HostFile(TypedDict):
    """A host file."""

    ok: bool
    """Whether all nodes answered."""
    launcher: str
    """The launcher whose format it has."""
    hostfile: str
    """The text of the file."""
    left_out: list[ExcludedNode]
    """Nodes that are not in it."""
    degraded: list[ExcludedNode]
    """Degraded nodes that are in it because of `--allow-degraded`."""
    slots: dict[str, int]
    """Node -> its slots."""


_From = TypedDict("_From", {"from": Annotated[str, Meta(description="Its origin, e.g. `inventory` or `--env`.")]})


class Setting(_From):
    """A variable, parameter or flag of a command line."""

    flag: str
    """The option of the launcher: `-x` for a variable, `--mca` for a parameter, else the flag itself."""
    name: str | None
    """The name of the variable or parameter; null for a flag."""
    value: str | None
    """Null for a variable that is forwarded by name, and for a flag without a value."""
    nodes: dict[str, str]
    """Node -> value, if the values differ."""
    reason: str
    """Why it is set."""


class Launch(TypedDict):
    """The command line of a job (`--explain`)."""

    command: list[str]
    """The command line."""
    node_command: list[str] | None
    """The command that is started on each node, if the command line does not contain it."""
    settings: list[Setting]
    """The parts of the command line, with their reasons."""
    placement: NotRequired[Placement]
    """With `--gputopology`: the placement."""


class NcclLog(TypedDict):
    """The transport that NCCL used."""

    version: str | None
    """The version of NCCL."""
    cuda: str | None
    """The CUDA version for which it was built."""
    transport: str | None
    """`IB`, `RoCE`, `Socket`, `P2P`, `SHM` or the name of a plugin, joined by `+`; null if it is unknown."""
    gdr: bool | None
    """Whether every network channel used GPUDirect RDMA; null if the log does not show it."""
    hcas: list[str]
    """The network cards that channels used, or those that the log lists."""
    hcas_used: bool
    """Whether `hcas` are those that channels used."""
    reason: str
    """What the log shows."""
    remedy: str | None
    """What to do."""
    reason_codes: list[ReasonDocument]
    """The codes of `reason`, in the same order."""
