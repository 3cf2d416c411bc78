"""The docker engine: its service, what it says of itself, its configuration, and the images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from provision.documents import decode
from provision.errors import InvalidDocument
from provision.facts.base import RawOutput, Unknown
from provision.facts.program import COMMAND, LIMIT_SECONDS, engine_answer
from provision.facts.units import UNITS, units

__all__ = [
    "DockerConfig",
    "DockerConfigFact",
    "DockerInfo",
    "DockerInfoFact",
    "DockerService",
    "DockerServiceFact",
    "Image",
    "ImageFact",
]


@dataclass(frozen=True)
class DockerService:
    """The engine's systemd unit."""

    loaded: bool
    """It is installed; it may be masked."""
    active: str
    """``active``, ``inactive``, ``failed``, ..."""
    enabled: str
    client: bool
    """The program ``docker`` is there."""


class DockerServiceFact:
    """Asks systemd, not docker: it answers when docker hangs."""

    name: ClassVar[str] = "docker_service"
    label: ClassVar[str] = "systemctl show docker"
    limit_seconds: ClassVar[int] = 30
    command: ClassVar[str] = UNITS

    def parse(self, raw: RawOutput) -> DockerService | Unknown:
        """A unit that systemd does not know has LoadState not-found."""
        pairs = units(raw).get("docker", {})
        if "LoadState" not in pairs:
            return Unknown(f"systemctl show docker failed: {raw.said()}")
        return DockerService(
            loaded=pairs["LoadState"] in {"loaded", "masked"},
            active=pairs.get("ActiveState", ""),
            enabled=pairs.get("UnitFileState", ""),
            client=raw.pairs().get("client") == "yes",
        )


@dataclass(frozen=True)
class DockerInfo:
    """What the running engine says of itself."""

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


class DockerInfoFact:
    """What is needed of the engine's ``/info``; proxies, which may hold passwords, are not told."""

    name: ClassVar[str] = "docker_info"
    label: ClassVar[str] = "docker info"
    limit_seconds: ClassVar[int] = LIMIT_SECONDS
    command: ClassVar[str] = COMMAND

    def parse(self, raw: RawOutput) -> DockerInfo | Unknown:
        """Absent lists are null in docker's JSON."""
        data = engine_answer(raw, lambda engine: engine.info, self.label)
        if isinstance(data, Unknown):
            return data
        if data is None or not data.version:
            return Unknown("docker info failed: the engine tells nothing of itself")
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
        )


@dataclass(frozen=True)
class DockerConfig:
    """What is configured for the engine; passwords inside addresses are taken out on the node."""

    exists: bool
    options: Mapping[str, Any] | None
    """None when the file holds no JSON object."""
    error: str
    """Why it does not, else empty."""
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
        """An empty file is as good as none for docker; anything else must be a JSON object."""
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
    """The wanted training image as the engine holds it."""

    id: str
    digests: tuple[str, ...]
    """``repository@sha256:...`` for every registry it came from."""
    tags: tuple[str, ...]


class ImageFact:
    """Looks the wanted image up under its references; the first that exists counts."""

    name: ClassVar[str] = "image"
    label: ClassVar[str] = "docker image inspect"
    limit_seconds: ClassVar[int] = LIMIT_SECONDS
    command: ClassVar[str] = COMMAND

    def parse(self, raw: RawOutput) -> Image | Unknown | None:
        """None means that the engine answered and has no such image."""
        data = engine_answer(raw, lambda engine: engine.image, self.label)
        if data is None or isinstance(data, Unknown):
            return data
        return Image(str(data.id), tuple(map(str, data.digests or ())), tuple(map(str, data.tags or ())))
