"""The training container of a node, and what runs in it."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from provision.facts.base import RawOutput, Unknown
from provision.facts.docker import as_object
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
    """Inspects the container without its environment, which may hold secrets, and looks into its /proc and /dev.

    Of the mounts only folders count, and the file of the node's names. Another file is replaced by whoever edits it,
    and a container that is made anew at every edit would be worse than one that has the older file.
    """

    name: ClassVar[str] = "container"
    label: ClassVar[str] = "docker inspect"
    limit_seconds: ClassVar[int] = 30
    command: ClassVar[str] = r"""
command -v docker >/dev/null || exit 0
answer=$(docker inspect --type container --format '{{.State.Pid}} {"status":{{json .State.Status}},
"exit_code":{{json .State.ExitCode}},
"image_id":{{json .Image}},"image":{{json .Config.Image}},"labels":{{json .Config.Labels}},
"privileged":{{json .HostConfig.Privileged}},"network":{{json .HostConfig.NetworkMode}},
"binds":{{json .HostConfig.Binds}},
"shm_size":{{json .HostConfig.ShmSize}},"restarts":{{json .RestartCount}}}' "$PROBE_CONTAINER") || exit 0
pid=${answer%% *}; echo "${answer#* }"
[ "${pid:-0}" -gt 0 ] || exit 0
echo '== limits'; cat /proc/$pid/limits
echo '== devices'
for file in /proc/$pid/root/dev/infiniband/* /proc/$pid/root/dev/nvidia*; do
  [ ! -e "$file" ] || echo "${file#/proc/$pid/root/dev/}"
done
echo '== deleted'
while read -r _ _ _ root target _; do
  case $root in *//deleted) ;; *) continue;; esac
  path=$(printf '%b.' "$(printf '%s' "$target" | sed 's/\\/\\0/g')"); path=${path%.}
  [ "$path" != /etc/hosts ] && [ ! -d "/proc/$pid/root$path" ] || printf '%s\n' "$path"
done </proc/$pid/mountinfo
echo '== processes'; space=$(readlink /proc/$pid/ns/pid) || exit 0
ls -l /proc/[0-9]*/ns/pid 2>/dev/null | while read -r line; do
  case $line in *"-> $space") ;; *) continue;; esac
  process=${line#*/proc/}; process=${process%%/*}
  { read -r name </proc/$process/comm; } 2>/dev/null && echo "$process $name"
done
exit 0
"""

    def parse(self, raw: RawOutput) -> Container | Unknown | None:
        """None means that the engine answered and has no such container."""
        head, _, rest = raw.stdout.partition("== limits")
        limits, _, rest = rest.partition("== devices")
        devices, _, processes = rest.partition("== processes")
        devices, _, deleted = devices.partition("== deleted")
        data = as_object(head)
        if not data.get("status"):
            missing = not raw.stderr.strip() or "no such container" in raw.stderr.lower()
            return None if missing else Unknown(f"docker inspect failed: {raw.said()}")
        binds = tuple(str(bind) for bind in data.get("binds") or ())
        return Container(
            status=str(data["status"]),
            exit_code=int(data.get("exit_code") or 0),
            image_id=str(data.get("image_id") or ""),
            image=str(data.get("image") or ""),
            labels={str(key): str(value) for key, value in (data.get("labels") or {}).items()},
            privileged=bool(data.get("privileged")),
            network=str(data.get("network") or ""),
            binds=binds,
            shm_size=int(data.get("shm_size") or 0),
            restarts=int(data.get("restarts") or 0),
            limits=parse_limits(limits),
            devices=tuple(devices.split()),
            processes=tuple(_processes(processes)),
            deleted=tuple(_deleted(deleted, binds)),
        )


def _processes(text: str) -> list[Process]:
    rows = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    return [Process(int(row[0]), row[1].strip()) for row in rows if len(row) > 1 and row[0].isdecimal()]


def _deleted(text: str, binds: tuple[str, ...]) -> list[DeletedMount]:
    """Read the targets of deleted mounts; those that docker or a runtime's hook made by itself are none of ours."""
    sources = {posixpath.normpath(words[1]): words[0] for bind in binds if len(words := bind.split(":")) > 1}
    targets = dict.fromkeys(text.splitlines())
    return [DeletedMount(sources[target], target) for target in targets if target in sources]
