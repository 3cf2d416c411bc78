"""Files that our roles write on nodes, as the probe reads them: receipts, and the GPUDirect RDMA status at boot."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from provision.documents.text import PrintableLine

ReceiptFile = dict[str, Any]
"""A role's receipt: a hint that is compared with the current state and never trusted."""


class PeerConfiguration(Struct):
    """The configuration file of the role peer_memory."""

    provider: PrintableLine = field(default_factory=PrintableLine)


class PeerFormat(Struct):
    """The part of the status file that every version has."""

    format: int


class PeerKernelRecord(Struct):
    """The result of the node's program for an installed kernel."""

    kernel: PrintableLine
    ok: bool
    cause: PrintableLine = field(default_factory=PrintableLine)
    explanation: PrintableLine = field(default_factory=PrintableLine)
    remedy: PrintableLine = field(default_factory=PrintableLine)


class PeerStatusFile(Struct):
    """The status file of the role peer_memory."""

    boot_id: PrintableLine
    kernel: PrintableLine
    provider: PrintableLine
    module: PrintableLine
    state: Literal["loading", "ready", "failed"]
    ok: bool
    since: PrintableLine
    simulated: bool = False
    cause: PrintableLine = field(default_factory=PrintableLine)
    explanation: PrintableLine = field(default_factory=PrintableLine)
    remedy: PrintableLine = field(default_factory=PrintableLine)
    kernels: Annotated[list[PeerKernelRecord], Meta(max_length=1000)] = field(default_factory=list)


KernelRelease = Annotated[str, Meta(pattern=r"^[0-9][A-Za-z0-9._+~-]{0,99}$")]
"""The release of a kernel, as ``uname -r`` prints it."""


class KernelUpgradeFile(Struct):
    """The record of a kernel upgrade, which the role kernel writes."""

    format: Literal[1]
    phase: Literal["rebooting", "trial", "expired", "fell_back", "rejected", "confirmed"]
    source: KernelRelease = field(name="from")
    target: KernelRelease = field(name="to")
    boot_id: Annotated[str, Meta(max_length=64)] = ""
    cause: Annotated[str, Meta(pattern=r"^([a-z][a-z0-9_.]{0,60})?$")] = ""
    checks: Annotated[list[Annotated[str, Meta(pattern=r"^[a-z0-9_.]{1,80}$")]], Meta(max_length=200)] = field(
        default_factory=list
    )


class KernelStatus(Struct):
    """The answer of the node's program ``kernel-upgrade``."""

    release: PrintableLine = field(default_factory=PrintableLine)
    boot_id: Annotated[str, Meta(max_length=64)] = ""
    uptime: Annotated[int, Meta(ge=0, le=10**10)] = 0
    phase: PrintableLine = field(default_factory=PrintableLine)
    cause: Annotated[str, Meta(pattern=r"^([a-z][a-z0-9_.]{0,60})?$")] = ""
    code: Annotated[str, Meta(pattern=r"^([a-z][a-z0-9_.]{0,60})?$")] = ""
    problem: PrintableLine = field(default_factory=PrintableLine)


class RescueRecord(Struct):
    """How the last change that could cut off the operator ended (``/var/lib/provision/rescue/last.json``)."""

    state: Literal["confirmed", "reverted"]
    what: PrintableLine
    cause: PrintableLine = field(default_factory=PrintableLine)
    seconds: int = 0
    files: Annotated[list[PrintableLine], Meta(max_length=100)] = field(default_factory=list)
    is_complete: bool = True
