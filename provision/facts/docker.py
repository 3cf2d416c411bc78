"""Docker: its service, its state, its configuration, and the training image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from provision.documents import decode
from provision.errors import InvalidDocument
from provision.facts.base import RawOutput, Unknown
from provision.facts.managed import COMMAND, LIMIT_SECONDS, engine_answer
from provision.facts.units import UNITS, units
from provision.node.probe.images import is_containerd_store


@dataclass(frozen=True)
class DockerService:
    """The systemd unit of Docker."""

    loaded: bool
    """Whether it is installed; it may be masked."""
    active: str
    """``active``, ``inactive``, ``failed``, ..."""
    enabled: str
    client: bool
    """Whether the program ``docker`` exists."""
    snap: bool = False
    """Whether Docker is installed as a snap, with other units and paths."""
    podman: bool = False
    """Whether the program ``docker`` runs podman (podman-docker)."""


class DockerServiceFact:
    """Queries systemd, which answers even when Docker hangs."""

    name: ClassVar[str] = "docker_service"
    label: ClassVar[str] = "systemctl show docker"
    limit_seconds: ClassVar[int] = 30
    command: ClassVar[str] = UNITS

    def parse(self, raw: RawOutput) -> DockerService | Unknown:
        """Treat a unit with LoadState not-found as not installed."""
        pairs = units(raw).get("docker", {})
        if "LoadState" not in pairs:
            return Unknown(f"systemctl show docker failed: {raw.last_line()}")
        return DockerService(
            loaded=pairs["LoadState"] in {"loaded", "masked"},
            active=pairs.get("ActiveState", ""),
            enabled=pairs.get("UnitFileState", ""),
            client=raw.pairs().get("client") == "yes",
            snap=raw.pairs().get("snap") == "yes",
            podman=raw.pairs().get("podman") == "yes",
        )


@dataclass(frozen=True)
class DockerInfo:
    """The running engine's own report."""

    version: str
    storage_driver: str
    data_root: str
    cgroup_driver: str
    cgroup_version: str
    live_restore: bool
    runtimes: tuple[str, ...]
    default_runtime: str
    mirrors: tuple[str, ...]
    address_pools: tuple[tuple[str, int], ...]
    containers_running: int
    containerd_store: bool = False
    """Whether images and their layers are stored by containerd, below its own root folder."""


class DockerInfoFact:
    """Reads the engine's ``/info`` without its proxies, which may contain passwords."""

    name: ClassVar[str] = "docker_info"
    label: ClassVar[str] = "docker info"
    limit_seconds: ClassVar[int] = LIMIT_SECONDS
    command: ClassVar[str] = COMMAND

    def parse(self, raw: RawOutput) -> DockerInfo | Unknown:
        """Treat null lists in docker's JSON as empty."""
        data = engine_answer(raw, lambda engine: engine.info, self.label)
        if isinstance(data, Unknown):
            return data
        if data is None or not data.version:
            return Unknown("docker info failed: the engine reported no version")
        mirrors = (data.registries.mirrors if data.registries else None) or []
        return DockerInfo(
            version=str(data.version),
            storage_driver=str(data.driver or ""),
            data_root=str(data.data_root or ""),
            cgroup_driver=str(data.cgroup_driver or ""),
            cgroup_version=str(data.cgroup_version or ""),
            live_restore=bool(data.live_restore),
            runtimes=tuple(sorted(map(str, data.runtimes or ()))),
            default_runtime=str(data.default_runtime or ""),
            mirrors=tuple(mirror.rstrip("/") for mirror in mirrors),
            address_pools=tuple((str(pool.base), pool.size) for pool in data.address_pools or ()),
            containers_running=data.containers_running or 0,
            containerd_store=is_containerd_store(data.driver_status),
        )


@dataclass(frozen=True)
class DockerConfig:
    """The engine's configuration; passwords in addresses are removed on the node."""

    exists: bool
    options: Mapping[str, Any] | None
    """None if the file contains no JSON object."""
    error: str
    """Why the file cannot be read, else empty."""
    certificates: Mapping[str, str] = field(default_factory=dict)
    """Registry -> text of its CA certificates under /etc/docker/certs.d."""


class DockerConfigFact:
    """Reads daemon.json and the CA certificates of registries."""

    name: ClassVar[str] = "docker_config"
    label: ClassVar[str] = "cat /etc/docker/daemon.json"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = r"""
file=/etc/docker/daemon.json
if [ -e $file ]; then
  echo exists=yes
  sed -E 's,://([^" \\]|\\.)*@,://[removed]@,g' $file; echo
fi
for file in /etc/docker/certs.d/*/*.crt; do
  [ ! -r "$file" ] || { folder=${file%/*}; echo "== certificate ${folder##*/}"; cat "$file"; echo; }
done
exit 0
"""

    def parse(self, raw: RawOutput) -> DockerConfig:
        """Treat an empty file as no options, as docker does; otherwise it must contain a JSON object."""
        head, *parts = raw.stdout.split("== certificate ")
        certificates: dict[str, str] = {}
        for part in parts:
            registry, _, text = part.partition("\n")
            certificates[registry.strip()] = certificates.get(registry.strip(), "") + text
        first, _, text = head.partition("\n")
        if first != "exists=yes":
            return DockerConfig(exists=False, options={}, error="", certificates=certificates)
        options: Mapping[str, Any] | None = None
        error = ""
        try:
            options = decode(text, dict[str, Any], node="", what="it is not a JSON object") if text.strip() else {}
        except InvalidDocument as problem:
            error = problem.message
        return DockerConfig(
            exists=True,
            options=options,
            error=error,
            certificates=certificates,
        )


@dataclass(frozen=True)
class Image:
    """The requested training image, as stored by Docker."""

    id: str
    """The digest of its configuration; in containerd's store that of its manifest or index."""
    digests: tuple[str, ...]
    """``repository@sha256:...`` for every registry that it came from; in containerd's store for every name."""
    tags: tuple[str, ...]
    config_digest: str = ""
    """The digest of its configuration, the same in both stores; empty if it is unknown."""


class ImageFact:
    """Searches the requested image by its references; the first match counts."""

    name: ClassVar[str] = "image"
    label: ClassVar[str] = "docker image inspect"
    limit_seconds: ClassVar[int] = LIMIT_SECONDS
    command: ClassVar[str] = COMMAND

    def parse(self, raw: RawOutput) -> Image | Unknown | None:
        """Return None if Docker answered and has no such image."""
        data = engine_answer(raw, lambda engine: engine.image, self.label)
        if data is None or isinstance(data, Unknown):
            return data
        return Image(
            str(data.id),
            tuple(map(str, data.digests or ())),
            tuple(map(str, data.tags or ())),
            str(data.config_digest or ""),
        )
