"""Answers of the probe program: checks of receipts, running jobs, and data of the Docker engine."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from provision.documents.text import PrintableLine, PrintableText


class EngineProblem(Struct):
    """The reason why the engine did not answer a request."""

    hung: float | None = None
    """The timeout in seconds after which the request was abandoned."""
    error: PrintableLine = field(default_factory=PrintableLine)


class AddressPool(Struct, rename="pascal"):
    """One of the engine's address pools."""

    base: PrintableLine = field(default_factory=PrintableLine)
    size: int = 0


class RegistrySettings(Struct, rename="pascal"):
    """The engine's registries."""

    mirrors: list[PrintableLine] | None = None


class EngineInfo(EngineProblem):
    """Parts of the engine's ``/info``, in which empty lists are null."""

    version: PrintableLine | None = field(name="ServerVersion", default=None)
    driver: PrintableLine | None = field(name="Driver", default=None)
    data_root: PrintableLine | None = field(name="DockerRootDir", default=None)
    cgroup_driver: PrintableLine | None = field(name="CgroupDriver", default=None)
    cgroup_version: PrintableLine | None = field(name="CgroupVersion", default=None)
    live_restore: bool | None = field(name="LiveRestoreEnabled", default=None)
    runtimes: dict[PrintableLine, Any] | None = field(name="Runtimes", default=None)
    default_runtime: PrintableLine | None = field(name="DefaultRuntime", default=None)
    registries: RegistrySettings | None = field(name="RegistryConfig", default=None)
    address_pools: list[AddressPool] | None = field(name="DefaultAddressPools", default=None)
    containers_running: int | None = field(name="ContainersRunning", default=None)
    driver_status: list[list[PrintableLine]] | None = field(name="DriverStatus", default=None)


class EngineImage(EngineProblem):
    """Parts of an image's description."""

    id: PrintableLine | None = field(name="Id", default=None)
    digests: list[PrintableLine] | None = field(name="RepoDigests", default=None)
    tags: list[PrintableLine] | None = field(name="RepoTags", default=None)
    config_digest: PrintableLine | None = None


class EngineContainer(EngineProblem):
    """A container as the engine and the kernel describe it."""

    pid: int | None = None
    status: PrintableLine | None = None
    exit_code: int | None = None
    image_id: PrintableLine | None = None
    image: PrintableLine | None = None
    labels: dict[PrintableLine, PrintableLine] | None = None
    privileged: bool | None = None
    network: PrintableLine | None = None
    binds: list[PrintableLine] | None = None
    shm_size: int | None = None
    restarts: int | None = None
    limits: PrintableText | None = None
    devices: list[PrintableLine] | None = None
    deleted: list[PrintableLine] | None = None
    processes: list[tuple[int, PrintableLine]] | None = None


class EngineAnswer(Struct):
    """The engine's answers; None if the object does not exist."""

    info: EngineInfo | None = None
    image: EngineImage | None = None
    container: EngineContainer | None = None


class ProbeAnswer(Struct):
    """The answer of the probe program."""

    sealed: dict[str, bool] | None = None
    """Role -> whether the seal matches its receipt."""
    observed: dict[str, dict[str, Any]] | None = None
    """Role -> section -> name -> current state, in the form of the receipt."""
    jobs: list[PrintableLine] | None = None
    hung: list[PrintableLine] | None = None
    brought: list[PrintableLine] | None = None
    engine: EngineAnswer | None = None
