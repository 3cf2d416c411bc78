"""What a lab leaves in its folder and in the cache of this machine, and what QEMU answers."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType, field

__all__ = [
    "AcceleratorTest",
    "BaseLayer",
    "DiskInformation",
    "EngineRecord",
    "NetworkState",
    "NodeImage",
    "QmpMessage",
    "ServicePorts",
]


class EngineRecord(Struct, frozen=True):
    """engine.json: the docker engine of a lab."""

    host: str
    private: bool
    """Whether it was started for labs alone."""


class NetworkState(Struct, frozen=True):
    """The network of this machine before a private engine was started."""

    firewall: dict[str, str]
    """Program -> what its ``-save`` prints."""
    ip_forward: str
    interfaces: list[str]


class ServicePorts(Struct, frozen=True):
    """ports.json: where the services of a lab listen."""

    registry: int
    repository: int


class AcceleratorTest(Struct, frozen=True):
    """Whether a virtual machine booted with hardware virtualization here."""

    works: bool


class NodeImage(Struct, frozen=True):
    """image.json: which file of the folder is the disk."""

    disk: str


class _Blob(Struct, frozen=True):
    digest: str
    size: int


class BaseLayer(Struct, frozen=True):
    """layer.json: the first layer of the training image."""

    blob: _Blob
    diff_id: str


class DiskInformation(Struct, frozen=True):
    """What ``qemu-img info`` prints of a disk."""

    backing: str = field(default="", name="backing-filename")


class _QmpError(Struct, frozen=True):
    desc: str = ""


class QmpMessage(Struct, frozen=True):
    """One message of QEMU's machine protocol; an event has none of these."""

    greeting: Any | UnsetType = field(default=UNSET, name="QMP")
    result: Any | UnsetType = field(default=UNSET, name="return")
    error: _QmpError | UnsetType = UNSET
