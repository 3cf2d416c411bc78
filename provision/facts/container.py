"""The training container of a node and its processes."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from provision.facts.base import RawOutput, Unknown
from provision.facts.managed import COMMAND, LIMIT_SECONDS, engine_answer
from provision.facts.system import parse_limits

_HOUSEKEEPING = frozenset(
    {"docker-init", "tini", "init", "sh", "bash", "container-entrypoint", "container-entry", "sshd", "sleep", "ps"}
)


@dataclass(frozen=True)
class Process:
    """A process inside the container, with its process id on the node."""

    pid: int
    command: str


@dataclass(frozen=True)
class DeletedMount:
    """A mount of the container whose source was deleted on the node; new content never appears in it."""

    source: str
    """Its path on the node; another folder may have this path now."""
    target: str
    """Its path in the container."""


@dataclass(frozen=True)
class Container:
    """The training container, as reported by Docker and the kernel."""

    status: str
    """``running``, ``exited``, ``restarting``, ..."""
    exit_code: int
    image_id: str
    image: str
    """The reference that the container was created from."""
    labels: Mapping[str, str]
    privileged: bool
    network: str
    binds: tuple[str, ...]
    shm_size: int
    restarts: int
    limits: Mapping[str, int | None]
    """Hard limits of its first process; None means unlimited."""
    devices: tuple[str, ...]
    """Names of /dev/infiniband and /dev/nvidia* devices inside it."""
    processes: tuple[Process, ...]
    deleted: tuple[DeletedMount, ...] = ()

    @property
    def running(self) -> bool:
        """Whether its first process runs."""
        return self.status == "running"

    @property
    def busy(self) -> tuple[Process, ...]:
        """Processes other than housekeeping; most likely a job."""
        return tuple(process for process in self.processes if process.command not in _HOUSEKEEPING)


class ContainerFact:
    """Reads the container's state from Docker and the kernel, but not its environment, which may contain secrets.

    Deleted mounts are reported for folders and for the hosts file only. Editors replace other files, and recreating the
    container after every edit would be worse than an outdated file.
    """

    name: ClassVar[str] = "container"
    label: ClassVar[str] = "docker inspect"
    limit_seconds: ClassVar[int] = LIMIT_SECONDS
    command: ClassVar[str] = COMMAND

    def parse(self, raw: RawOutput) -> Container | Unknown | None:
        """Return None if Docker answered and has no such container."""
        data = engine_answer(raw, lambda engine: engine.container, self.label)
        if data is None or isinstance(data, Unknown):
            return data
        binds = tuple(map(str, data.binds or ()))
        return Container(
            status=str(data.status),
            exit_code=data.exit_code or 0,
            image_id=str(data.image_id or ""),
            image=str(data.image or ""),
            labels={str(key): str(value) for key, value in (data.labels or {}).items()},
            privileged=bool(data.privileged),
            network=str(data.network or ""),
            binds=binds,
            shm_size=data.shm_size or 0,
            restarts=data.restarts or 0,
            limits=parse_limits(data.limits or ""),
            devices=tuple(map(str, data.devices or ())),
            processes=tuple(Process(pid, str(name)) for pid, name in data.processes or ()),
            deleted=tuple(_deleted(data.deleted or (), binds)),
        )


def _deleted(paths: Iterable[object], binds: tuple[str, ...]) -> list[DeletedMount]:
    """Return the deleted mounts of `binds`; mounts that docker or a runtime hook created are ignored."""
    sources = {posixpath.normpath(words[1]): words[0] for bind in binds if len(words := bind.split(":")) > 1}
    targets = dict.fromkeys(map(str, paths))
    return [DeletedMount(sources[target], target) for target in targets if target in sources]
