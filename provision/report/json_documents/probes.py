"""Documents of the verbs that probe nodes or the controller, or run a command on nodes."""

from __future__ import annotations

from typing import Annotated, NotRequired, TypedDict

from msgspec import Meta

from provision.gdr import GdrPath
from provision.model import CheckStatus
from provision.model.reason import ReasonDocument
from provision.report.json_documents.base import ExcludedNode, Finding, Problem


class Check(Finding):
    """The result of a check."""

    id: str
    """`<role or area>.<noun>`; stable."""
    status: CheckStatus
    """The result."""


class NodeCheck(Check):
    """The result of a check of a node or of the cluster."""

    simulated: bool
    """Whether the result is about simulated hardware."""


class CheckedNode(TypedDict):
    """The checks of a node."""

    name: str
    """Its name in the inventory."""
    checks: list[NodeCheck]
    """The checks."""


class Pair(TypedDict):
    """A measurement from the container of one node to that of another."""

    a: str
    """The sending node."""
    b: str
    """The receiving node."""
    gbit_s: float | None
    """The bandwidth in Gbit/s; null if the measurement failed."""
    device: str
    """The network card of `a`."""
    memory: str
    """`gpu` or `host`, on both nodes."""
    port: int
    """The port of `device`."""
    device_b: str
    """The network card of `b`."""
    port_b: int
    """The port of `device_b`."""
    line_rate_gbit_s: float | None
    """The line rate of the slower port; null if a port has none (Soft-RoCE)."""
    reason: str | None
    """Why the measurement failed."""


class Collective(TypedDict):
    """An all-reduce over all nodes."""

    program: str
    """`nccl-tests`, `torch (NCCL)`, `mpi4py` or `torch (gloo)`; empty if none could run."""
    memory: str
    """`gpu` or `host`."""
    nodes: list[str]
    """The measured nodes."""
    ranks: int
    """The number of ranks."""
    size_bytes: int
    """The size of the largest message, at which the bandwidth was measured."""
    bus_bandwidth_gb_s: float | None
    """The bus bandwidth in GB/s; null if nothing was measured."""
    predicted_gb_s: float | None
    """The expected bus bandwidth of these GPUs; null without a prediction."""
    fraction: float | None
    """The measured fraction of the prediction."""
    minimum_fraction: float
    """The required fraction of the prediction."""
    wrong: int
    """The number of wrong elements in the results."""
    simulated: bool
    """Whether simulated hardware took part."""
    left_out: list[ExcludedNode]
    """Nodes that were not measured."""
    reason: str | None
    """Why nothing was measured."""


class Component(TypedDict):
    """A requirement of a profile on a node."""

    component: str
    """The component."""
    found: str | None
    """The present version; null if there is none, or it is unknown."""
    required: str
    """The required version."""
    status: CheckStatus
    """The result."""
    simulated: bool
    """Whether the component is simulated."""


class ProfiledNode(TypedDict):
    """The requirements of a profile on a node."""

    name: str
    """Its name in the inventory."""
    components: list[Component]
    """The components."""


class Profile(TypedDict):
    """The requirements of a profile."""

    name: str
    """The profile."""
    nodes: list[ProfiledNode]
    """The nodes."""


class Verification(TypedDict):
    """The checks of the nodes and of the cluster."""

    ok: bool
    """Whether no check failed."""
    nodes: list[CheckedNode]
    """The nodes."""
    cluster: list[NodeCheck]
    """The checks of the cluster as a whole."""
    pairs: NotRequired[list[Pair]]
    """With `--level full`: the bandwidth between nodes."""
    collective: NotRequired[Collective]
    """With `--collective`: an all-reduce over all nodes."""
    profile: NotRequired[Profile]
    """With `--profile`: its requirements."""


class Doctor(TypedDict):
    """The checks of the controller."""

    ok: bool
    """Whether no check failed."""
    versions: dict[str, str]
    """Program or package -> version; empty for one that is not installed."""
    checks: list[Check]
    """The checks."""


class UnmetPrecondition(ReasonDocument):
    """An unmet precondition of a path."""

    path: GdrPath
    """The path. Those of the chosen path require action."""
    precondition: str
    """What is missing."""
    remedy: str
    """What to do."""


class GdrVerdict(TypedDict):
    """The path from GPU memory to the network."""

    path: GdrPath
    """The path."""
    reasons: list[str]
    """Why; the first is the main reason."""
    reason_codes: list[ReasonDocument]
    """The codes of `reasons`, in the same order."""
    unmet: list[UnmetPrecondition]
    """Unmet preconditions of all paths."""
    environment: dict[str, str]
    """Environment variables for NCCL."""


class GdrNode(GdrVerdict):
    """The path of a node."""

    name: str
    """Its name in the inventory."""
    simulated: bool
    """Whether the verdict depends on simulated components."""
    error: Problem | None
    """Why there is no verdict."""


class Gdr(TypedDict):
    """The path from GPU memory to the network on each node."""

    nodes: list[GdrNode]
    """The nodes."""


class TopologyGpu(TypedDict):
    """A GPU of a machine."""

    index: int
    """The index of nvidia-smi."""
    numa: int | None
    """Its NUMA node."""
    cpus: list[str]
    """CPUs near it, as nvidia-smi prints them: `0-23`."""
    product: str | None
    """The name of the product."""
    pcie_generation: int | None
    """The highest PCIe generation that it supports."""
    pcie_width: int | None
    """The width of its PCIe link."""


class TopologyNic(TypedDict):
    """A network card of a machine."""

    name: str
    """The name of the RDMA device."""
    numa: int | None
    """Its NUMA node."""
    rate_gbit: float | None
    """Its rate in Gbit/s."""
    link_layer: str | None
    """`InfiniBand` or `Ethernet`."""
    active: bool | None
    """Whether a port is active; null if it is unknown."""


_LinkClass = TypedDict("_LinkClass", {"class": Annotated[str, Meta(description="The class of its links, e.g. `PIX`.")]})


class DeviceTree(TypedDict):
    """Devices, and groups of devices with nearer links."""

    devices: list[str]
    """GPUs and network cards that are in no group."""
    groups: list[DeviceGroup]
    """Groups of devices."""


class DeviceGroup(DeviceTree, _LinkClass):
    """Devices that are linked by a class or a nearer one."""


class NumaNode(DeviceTree):
    """The devices of a NUMA node."""

    numa: int | None
    """The number of the NUMA node; null if it is unknown."""
    cpus: list[str]
    """Its CPUs."""


class Topology(TypedDict):
    """How the GPUs and network cards of a machine are linked."""

    node: str | None
    """The node; null if the matrix is from a file."""
    simulated: bool
    """Whether components of the node are simulated."""
    gpus: list[TopologyGpu]
    """The GPUs."""
    nics: list[TopologyNic]
    """The network cards."""
    links: list[list[str]]
    """A square over the GPUs, then the network cards: `NV#`, `PIX`, `PXB`, `PHB`, `NODE` or `SYS`; `X` for itself."""
    tree: list[NumaNode]
    """The same devices by NUMA node and nearness."""
    chosen: list[int]
    """The indices of the GPUs of `--gpus`."""
    warnings: list[str]
    """Corrections and irregularities of the matrix."""
    warning_codes: list[ReasonDocument]
    """The codes of `warnings`, in the same order."""


class CommandError(TypedDict):
    """Why a command has no result on a node."""

    message: str
    """What is wrong."""
    remedy: str | None
    """What to do."""


class NodeCommand(TypedDict):
    """The result of a command on a node."""

    name: str
    """Its name in the inventory."""
    started: bool
    """Whether the command was started."""
    exit_code: int | None
    """Its exit code; null without a result."""
    stdout: str
    """Its standard output."""
    stderr: str
    """Its standard error."""
    error: CommandError | None
    """Why there is no result."""


class Command(TypedDict):
    """The results of one command on nodes."""

    ok: bool
    """Whether the command succeeded on all nodes."""
    nodes: list[NodeCommand]
    """The nodes."""


class NodeImage(TypedDict):
    """An image on a node."""

    name: str
    """The name of the node in the inventory."""
    error: str | None
    """Why the state is unknown."""
    remedy: str | None
    """What to do about the error."""
    error_code: str | None
    """The code of the error."""
    id: str
    """The ID of the image; empty if the node does not have it."""
    digest: str
    """`repository@sha256:...`; empty for an image of Docker's own store that is from no registry."""
    megabytes: int
    """The size of the image."""


class Image(TypedDict):
    """An image on the nodes."""

    image: str
    """The image."""
    same: bool
    """Whether all nodes have the same image."""
    nodes: list[NodeImage]
    """The nodes."""


class NodeImageCopy(NodeImage):
    """An image on a node after a copy between the nodes."""

    source: str
    """`present`, `registry`, `archive` or `peers`: where it came from; empty after an error."""
    reason: str
    """Why the node did not take part in the copy; empty if it did."""
    received_bytes: int
    """Bytes that came from other nodes."""


class ImageCopy(TypedDict):
    """An image on the nodes after a copy between them."""

    image: str
    """The image."""
    same: bool
    """Whether all nodes have the same image."""
    sender: str
    """The node that got the image and sent it; empty if no copy was necessary or possible."""
    seconds: float
    """The time of the command."""
    nodes: list[NodeImageCopy]
    """The nodes."""


class ImageContents(TypedDict):
    """The software versions in an image."""

    image: str
    """The image."""
    node: str
    """The node on which it was inspected."""
    versions: dict[str, str]
    """Component -> its version in the image."""
    host: dict[str, str]
    """Component -> its version on the node."""
    mismatch: str
    """How the RDMA libraries of the image differ from the driver of the node; empty if they match or are unknown."""
