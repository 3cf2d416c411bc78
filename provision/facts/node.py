"""All facts of one node, by name and type."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from provision.documents import printable_line
from provision.documents.slurm import SlurmState
from provision.facts.base import Fact, RawOutput, Unknown
from provision.facts.clock import ClockFact
from provision.facts.container import Container, ContainerFact
from provision.facts.container_ssh import ContainerSsh, ContainerSshFact, ContainerTrust, ContainerTrustFact
from provision.facts.docker import (
    DockerConfig,
    DockerConfigFact,
    DockerInfo,
    DockerInfoFact,
    DockerService,
    DockerServiceFact,
    Image,
    ImageFact,
)
from provision.facts.fabric import Fabric, FabricFact
from provision.facts.firewall import Firewall, FirewallFact
from provision.facts.gpu import Gpu, GpuPciFact, GpusFact
from provision.facts.gpudirect import (
    DmaBuf,
    DmaBufFact,
    Nccl,
    NcclFact,
    PciRouting,
    PciRoutingFact,
    Signing,
    SigningFact,
)
from provision.facts.kernel import ModulesFact, PackagesFact, SysctlsFact, TimeSync, TimeSyncFact
from provision.facts.kernel_upgrade import KernelUpgrade, KernelUpgradeFact
from provision.facts.kubernetes import KubernetesHost, KubernetesHostFact
from provision.facts.managed import Managed, ManagedFact
from provision.facts.network import Address, AddressesFact, Listening, ListeningFact, NamesFact, Route, RoutesFact
from provision.facts.nvidia_container import NvidiaContainer, NvidiaContainerFact
from provision.facts.nvidia_driver import NvidiaDriver, NvidiaDriverFact
from provision.facts.nvlink import FabricManager, FabricManagerFact, Links, NvLinksFact
from provision.facts.outputs import Outputs
from provision.facts.package_proxy import PackageProxy, PackageProxyFact
from provision.facts.pci_links import PciLink, PciLinksFact
from provision.facts.peer_modules import (
    InstalledKernel,
    KernelsFact,
    NvidiaModules,
    NvidiaModulesFact,
    PeerMemory,
    PeerMemoryFact,
)
from provision.facts.peer_status import PeerRecord, PeerStatusFact
from provision.facts.probe_request import split
from provision.facts.rdma import RdmaFact, RdmaStack
from provision.facts.rdma_counters import RdmaCountersFact
from provision.facts.records import Receipt, ReceiptsFact, SimulatedFact
from provision.facts.rescue import Rescue, RescueFact
from provision.facts.selinux import Denial, Selinux, SelinuxDenialsFact, SelinuxFact
from provision.facts.slurm import SlurmFact
from provision.facts.system import (
    Boot,
    BootFact,
    Disk,
    DisksFact,
    Hardware,
    HardwareFact,
    Kind,
    KindFact,
    Limits,
    LimitsFact,
    System,
    SystemFact,
)
from provision.facts.topology import TopologyFact
from provision.facts.xid import XidLog, XidsFact
from provision.model import Topology

_Value = TypeVar("_Value")
_NOT_REQUESTED = Unknown("not asked for")


def _value_of(fact: Fact[_Value]) -> _Value | Unknown:
    """Return the field of a fact, which registers it; the result type lets mypy compare both."""
    field: Any = dataclasses.field(default=_NOT_REQUESTED, metadata={"fact": fact})
    return field  # type: ignore[no-any-return]


@dataclass(frozen=True)
class NodeFacts:
    """The facts of one node; an attribute is an Unknown if its command hung, failed or was not requested.

    An attribute has the name of its fact, whose command is a part of every probe that does not exclude it.
    """

    system: System | Unknown = _value_of(SystemFact())
    kind: Kind | Unknown = _value_of(KindFact())
    boot: Boot | Unknown = _value_of(BootFact())
    clock: int | Unknown = _value_of(ClockFact())
    """Seconds since 1970 at the start of the probe."""
    hardware: Hardware | Unknown = _value_of(HardwareFact())
    limits: Limits | Unknown = _value_of(LimitsFact())
    disks: tuple[Disk, ...] | Unknown = _value_of(DisksFact())
    sysctls: Mapping[str, str] | Unknown = _value_of(SysctlsFact())
    modules: frozenset[str] | Unknown = _value_of(ModulesFact())
    packages: Mapping[str, str] | Unknown = _value_of(PackagesFact())
    time_sync: TimeSync | Unknown = _value_of(TimeSyncFact())
    addresses: tuple[Address, ...] | Unknown = _value_of(AddressesFact())
    routes: tuple[Route, ...] | Unknown = _value_of(RoutesFact())
    names: Mapping[str, tuple[str, ...]] | Unknown = _value_of(NamesFact())
    listening: tuple[Listening, ...] | Unknown = _value_of(ListeningFact())
    firewall: Firewall | Unknown = _value_of(FirewallFact())
    fabric: Fabric | Unknown = _value_of(FabricFact())
    selinux: Selinux | Unknown = _value_of(SelinuxFact())
    selinux_denials: tuple[Denial, ...] | Unknown = _value_of(SelinuxDenialsFact())
    rdma: RdmaStack | Unknown = _value_of(RdmaFact())
    rdma_counters: Mapping[str, Mapping[str, int]] | Unknown = _value_of(RdmaCountersFact())
    gpus: tuple[Gpu, ...] | Unknown = _value_of(GpusFact())
    gpu_pci: tuple[str, ...] | Unknown = _value_of(GpuPciFact())
    nvlinks: Mapping[int, Links] | Unknown = _value_of(NvLinksFact())
    fabric_manager: FabricManager | Unknown = _value_of(FabricManagerFact())
    xids: XidLog | Unknown = _value_of(XidsFact())
    pci_links: tuple[PciLink, ...] | Unknown = _value_of(PciLinksFact())
    topology: Topology | Unknown = _value_of(TopologyFact())
    kernels: tuple[InstalledKernel, ...] | Unknown = _value_of(KernelsFact())
    kernel_upgrade: KernelUpgrade | Unknown = _value_of(KernelUpgradeFact())
    nvidia_modules: NvidiaModules | Unknown = _value_of(NvidiaModulesFact())
    nvidia_driver: NvidiaDriver | Unknown = _value_of(NvidiaDriverFact())
    peer_memory: PeerMemory | Unknown = _value_of(PeerMemoryFact())
    peer_status: PeerRecord | Unknown = _value_of(PeerStatusFact())
    dma_buf: DmaBuf | Unknown = _value_of(DmaBufFact())
    signing: Signing | Unknown = _value_of(SigningFact())
    pci_routing: PciRouting | Unknown = _value_of(PciRoutingFact())
    managed: Managed | Unknown = _value_of(ManagedFact())
    nccl: Nccl | Unknown = _value_of(NcclFact())
    slurm: SlurmState | Unknown = _value_of(SlurmFact())
    docker_service: DockerService | Unknown = _value_of(DockerServiceFact())
    docker_info: DockerInfo | Unknown = _value_of(DockerInfoFact())
    docker_config: DockerConfig | Unknown = _value_of(DockerConfigFact())
    nvidia_container: NvidiaContainer | Unknown = _value_of(NvidiaContainerFact())
    kubernetes_host: KubernetesHost | Unknown = _value_of(KubernetesHostFact())
    image: Image | Unknown | None = _value_of(ImageFact())
    container: Container | Unknown | None = _value_of(ContainerFact())
    container_ssh: ContainerSsh | Unknown | None = _value_of(ContainerSshFact())
    container_trust: ContainerTrust | Unknown = _value_of(ContainerTrustFact())
    receipts: Mapping[str, Receipt] | Unknown = _value_of(ReceiptsFact())
    rescue: Rescue | Unknown = _value_of(RescueFact())
    package_proxy: PackageProxy | Unknown = _value_of(PackageProxyFact())
    simulated: Mapping[str, str] | Unknown = _value_of(SimulatedFact())
    raw: str = dataclasses.field(default="", repr=False, compare=False)
    """The unmodified output of the probe, for a support bundle; empty if it was not requested."""
    read_at: float | None = dataclasses.field(default=None, repr=False, compare=False)
    """When the answer arrived, by the controller's clock."""


ALL_FACTS: tuple[Fact[Any], ...] = tuple(
    field.metadata["fact"] for field in dataclasses.fields(NodeFacts) if "fact" in field.metadata
)
"""Every fact, in the order of NodeFacts."""


def parse(
    text: str, facts: Sequence[Fact[Any]] = ALL_FACTS, *, keep: bool = True, outputs: Outputs | None = None
) -> NodeFacts:
    """Parse the program's output for ``request(facts)``; never raises. With `keep` the result includes the text.

    Call it as soon as the text has arrived, because the node's clock is compared with the controller's. `outputs` are
    those whose hashes were in the request. Equal outputs of several nodes are parsed once, and the nodes
    share the value.
    """
    raws = split(text, facts, outputs)
    values = {fact.name: _cached_value(fact, raws[fact.name]) for fact in facts}
    return NodeFacts(raw=text if keep else "", read_at=time.time(), **values)


def parse_system(text: str, reason: str) -> NodeFacts:
    """Parse the output of ``system_script()``; `reason` says why all other facts are unknown.

    A python3 without parts of the standard library, such as that of python3-minimal, counts as missing.
    """
    values: dict[str, Any] = {fact.name: Unknown(reason) for fact in ALL_FACTS}
    system = parse(text, [SystemFact()], keep=False).system
    values["system"] = system if isinstance(system, Unknown) else dataclasses.replace(system, python3="")
    return NodeFacts(**values, read_at=time.time())


def _value(fact: Fact[Any], raw: RawOutput | Unknown) -> Any:
    if isinstance(raw, Unknown):
        return raw
    try:
        return fact.parse(_printable(raw))
    except Exception as problem:  # noqa: BLE001 - one unexpected output must not hide the other facts
        why = printable_line(f"{type(problem).__name__}: {problem}")
        return Unknown(f"the output of {fact.label} cannot be read: {why}")


def _printable(raw: RawOutput) -> RawOutput:
    """Replace control characters, which could affect a terminal."""
    out, errors = _without_controls(raw.stdout), _without_controls(raw.stderr)
    return raw if out is raw.stdout and errors is raw.stderr else RawOutput(out, raw.exit_code, errors)


def _without_controls(text: str) -> str:
    if not text or text.replace("\n", "").isprintable():
        return text
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)


_cached_value: Callable[..., Any] = functools.lru_cache(maxsize=512)(_value)


def as_data(facts: NodeFacts) -> dict[str, Any]:
    """Return the facts as JSON data, without the raw text; an Unknown becomes ``{"unknown": reason}``."""
    return {
        field.name: _plain(getattr(facts, field.name)) for field in dataclasses.fields(facts) if field.name != "raw"
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Unknown):
        return {"unknown": value.reason}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(_plain(item) for item in value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
