"""The training container of a node, what runs in it, and its SSH."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from provision.facts.base import RawOutput, Unknown
from provision.facts.docker import as_object
from provision.facts.system import parse_limits

__all__ = [
    "Container",
    "ContainerFact",
    "ContainerSsh",
    "ContainerSshFact",
    "ContainerTrust",
    "ContainerTrustFact",
    "DeletedMount",
    "Process",
    "fingerprint",
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
  target=$(printf '%b.' "$target"); target=${target%.}
  [ "$target" != /etc/hosts ] && [ ! -d "/proc/$pid/root$target" ] || printf '%s\n' "$target"
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
    sources = {words[1]: words[0] for bind in binds if len(words := bind.split(":")) > 1}
    targets = dict.fromkeys(text.splitlines())
    return [DeletedMount(sources[target], target) for target in targets if target in sources]


@dataclass(frozen=True)
class ContainerSsh:
    """A node's own part of the SSH that containers use among each other."""

    files: Mapping[str, str]
    """File name -> octal mode."""
    host_key: str
    """Type and base64 text of the container's host key."""
    client_key: str


@dataclass(frozen=True)
class ContainerTrust:
    """Whom the containers let in and whom they know: the same on all nodes of a cluster."""

    known_hosts: Mapping[str, tuple[str, ...]]
    """``[name]:port`` -> the keys (type and base64 text) pinned for it."""
    authorized: tuple[str, ...]
    """Client keys (type and base64 text) that may log in."""
    authorized_nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Node, by the comment of its line in authorized_keys -> its keys; a key without a comment by its fingerprint."""
    known_nodes: tuple[str, ...] = ()
    """The nodes of known_hosts, by the comments of its lines; a line without a comment by its first name."""


class ContainerSshFact:
    """Reads public halves only; of private keys just the mode.

    The folder ``keys`` belongs to the container's account: what it holds may be a link, a pipe or anything.
    """

    name: ClassVar[str] = "container_ssh"
    label: ClassVar[str] = "cat /var/lib/provision/container_ssh"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = """
cd /var/lib/provision/container_ssh 2>/dev/null || exit 0
stat -c 'mode %a %n' authorized_keys known_hosts ssh_config sshd_config 2>/dev/null
cd keys 2>/dev/null || exit 0
stat -c 'mode %a %n' ssh_host_ed25519_key id_ed25519 2>/dev/null
for file in ssh_host_ed25519_key.pub id_ed25519.pub; do
  [ -f $file ] && [ ! -h $file ] || continue
  line=$(dd if=$file iflag=nofollow,nonblock bs=1024 count=1 2>/dev/null | head -n 1 | tr -cd 'A-Za-z0-9+/=@._ -')
  echo "$file:$line"
done
exit 0
"""

    def parse(self, raw: RawOutput) -> ContainerSsh | None:
        """None means that nothing was ever made on this node."""
        files: dict[str, str] = {}
        keys: dict[str, str] = {}
        for line in raw.stdout.splitlines():
            title, mark, text = line.partition(":")
            if line.startswith("mode ") and len(words := line.split(None, 2)) == 3:  # noqa: PLR2004 - word, mode, name
                files[words[2]] = words[1]
            elif mark and title not in keys and (key := next(iter(_keys(text)), "")):
                keys[title] = key
        if not files:
            return None
        return ContainerSsh(files, keys.get("ssh_host_ed25519_key.pub", ""), keys.get("id_ed25519.pub", ""))


class ContainerTrustFact:
    """Reads the files that are the same on all nodes, a line for each node in each; their own keys are elsewhere.

    So all nodes print the same text, which is read once for a thousand nodes.
    """

    name: ClassVar[str] = "container_trust"
    label: ClassVar[str] = "cat /var/lib/provision/container_ssh/known_hosts"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = """
cd /var/lib/provision/container_ssh 2>/dev/null && grep -H '' known_hosts authorized_keys 2>/dev/null
exit 0
"""

    def parse(self, raw: RawOutput) -> ContainerTrust:
        """A file that is not there knows nobody."""
        parts: dict[str, list[str]] = {"known_hosts": [], "authorized_keys": []}
        for line in raw.stdout.splitlines():
            title, _, text = line.partition(":")
            if title in parts:
                parts[title].append(text)
        known_hosts, authorized_keys = parts["known_hosts"], parts["authorized_keys"]
        return ContainerTrust(
            known_hosts=_known_hosts(known_hosts),
            authorized=tuple(key for line in authorized_keys for key in _keys(line)),
            authorized_nodes=_owners(authorized_keys),
            known_nodes=tuple(_owners(known_hosts, named=True)),
        )


def fingerprint(key: str) -> str:
    """Return the SHA256 fingerprint of a public key as ``ssh-keygen -l`` prints it; empty for no key."""
    words = key.split()
    try:
        blob = base64.b64decode(words[-1], validate=True) if words else b""
    except (ValueError, binascii.Error):
        return ""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=") if blob else ""


def _keys(text: str) -> list[str]:
    """Type and base64 text of each key; options before it and the comment behind it are dropped."""
    found: list[str] = []
    for line in text.splitlines():
        words = line.split()
        for index, word in enumerate(words[:-1]):
            if word.startswith(("ssh-", "ecdsa-", "sk-")) and words[index + 1].startswith("AAAA"):
                found.append(f"{word} {words[index + 1]}")
                break
    return found


def _owners(lines: Sequence[str], *, named: bool = False) -> dict[str, tuple[str, ...]]:
    """Comment of each key's line -> keys; without a comment the line's first name, or else the key's fingerprint."""
    found: dict[str, tuple[str, ...]] = {}
    for line in lines:
        key = next(iter(_keys(line)), "")
        if not key or line.startswith("#"):
            continue
        comment = line.partition(key.split()[1])[2].strip()
        owner = comment or (line.split()[0].split(",")[0] if named else fingerprint(key))
        found[owner] = (*found.get(owner, ()), key)
    return found


def _known_hosts(lines: Sequence[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for line in lines:
        names, _, rest = line.strip().partition(" ")
        key = next(iter(_keys(rest)), "")
        if not key or names.startswith(("#", "@")):
            continue
        for name in names.split(","):
            found[name] = (*found.get(name, ()), key)
    return found
