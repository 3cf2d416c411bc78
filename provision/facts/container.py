"""The training container of a node, and what runs in it."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from provision.facts.base import RawOutput, Unknown
from provision.facts.program import COMMAND, LIMIT_SECONDS, engine_answer
from provision.facts.system import parse_limits

__all__ = [
    "Container",
    "ContainerFact",
    "DeletedMount",
    "Process",
]

_HOUSEKEEPING = frozenset(
    {"docker-init", "tini", "init", "sh", "bash", "container-entrypoint", "container-entry", "sshd", "sleep", "ps"}
)


@dataclass(frozen=True)
class Process:
    """A process inside the container, by the node's process id."""

    pid: int
    command: str


@dataclass(frozen=True)
class DeletedMount:
    """What the container still has mounted though it was deleted on the node: nothing new ever gets there."""

    source: str
    """Its path on the node, where by now there may be another one of the name."""
    target: str
    """Its path in the container."""


@dataclass(frozen=True)
class Container:
    """The training container as the engine and the kernel show it."""

    status: str
    """``running``, ``exited``, ``restarting``, ..."""
    exit_code: int
    image_id: str
    image: str
    """The reference it was made from."""
    labels: Mapping[str, str]
    privileged: bool
    network: str
    binds: tuple[str, ...]
    shm_size: int
    restarts: int
    limits: Mapping[str, int | None]
    """Hard limits of its first process; None means unlimited."""
    devices: tuple[str, ...]
    """Names under /dev/infiniband and /dev/nvidia* inside it."""
    processes: tuple[Process, ...]
    deleted: tuple[DeletedMount, ...] = ()

    @property
    def running(self) -> bool:
        """True while its first process lives."""
        return self.status == "running"

    @property
    def busy(self) -> tuple[Process, ...]:
        """Processes that are not its own housekeeping: a job, most likely."""
        return tuple(process for process in self.processes if process.command not in _HOUSEKEEPING)


class ContainerFact:
    """What the engine and the kernel tell of the container; not its environment, which may hold secrets.

    Of the mounts only folders count, and the file of the node's names. Another file is replaced by whoever edits it,
    and a container that is made anew at every edit would be worse than one that has the older file.
    """

    name: ClassVar[str] = "container"
    label: ClassVar[str] = "docker inspect"
    limit_seconds: ClassVar[int] = LIMIT_SECONDS
    command: ClassVar[str] = COMMAND

    def parse(self, raw: RawOutput) -> Container | Unknown | None:
        """None means that the engine answered and has no such container."""
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
    """Read the targets of deleted mounts; those that docker or a runtime's hook made by itself are none of ours."""
    sources = {posixpath.normpath(words[1]): words[0] for bind in binds if len(words := bind.split(":")) > 1}
    targets = dict.fromkeys(map(str, paths))
    return [DeletedMount(sources[target], target) for target in targets if target in sources]
