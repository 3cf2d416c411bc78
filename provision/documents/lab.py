"""Files in the state directory and cache of a lab, and answers of QEMU."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType, field


class EngineRecord(Struct, frozen=True):
    """engine.json: the docker engine of a lab."""

    host: str
    private: bool
    """Whether it was started for labs only."""


class NetworkState(Struct, frozen=True):
    """The network of the controller before a private engine was started."""

    firewall: dict[str, str]
    """Program -> the output of its ``-save``."""
    ip_forward: str
    interfaces: list[str]


class ServicePorts(Struct, frozen=True):
    """ports.json: the ports of a lab's services."""

    registry: int
    repository: int


class AcceleratorTest(Struct, frozen=True):
    """The result of the test whether virtual machines can use hardware virtualization."""

    works: bool


class NodeImage(Struct, frozen=True):
    """image.json: the file in the directory that is the disk."""

    disk: str


class _Blob(Struct, frozen=True):
    digest: str
    size: int


class BaseLayer(Struct, frozen=True):
    """layer.json: the first layer of the training image."""

    blob: _Blob
    diff_id: str


class DiskInformation(Struct, frozen=True):
    """The output of ``qemu-img info`` for a disk."""

    backing: str = field(default="", name="backing-filename")


class _QmpError(Struct, frozen=True):
    desc: str = ""


class QmpMessage(Struct, frozen=True):
    """One message of QEMU's machine protocol; an event has none of these fields."""

    greeting: Any | UnsetType = field(default=UNSET, name="QMP")
    result: Any | UnsetType = field(default=UNSET, name="return")
    error: _QmpError | UnsetType = UNSET
