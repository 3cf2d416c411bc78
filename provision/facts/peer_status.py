"""What a node wrote down of GPUDirect RDMA when it booted: the status file of the role peer_memory, and its unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from provision.documents import decode, printable_line
from provision.documents.records import PeerConfiguration, PeerFormat, PeerKernelRecord, PeerStatusFile
from provision.errors import InvalidDocument
from provision.facts.base import RawOutput

__all__ = [
    "CONFIG_FILE",
    "PROGRAM",
    "STATUS_FILE",
    "UNIT",
    "JudgedKernel",
    "PeerRecord",
    "PeerStatus",
    "PeerStatusFact",
    "PeerUnit",
]

UNIT = "provision-peer-memory.service"
CONFIG_FILE = "/etc/provision/peer_memory.json"
STATUS_FILE = "/var/lib/provision/peer_memory/status.json"
PROGRAM = "/usr/local/lib/provision/peer-memory"
"""The node's own; its ``check`` judges every installed kernel and changes nothing."""

_FORMAT = 1
_SIZE_LIMIT = 131072
"""Bytes of the status file; a kernel takes less than 1000."""
_CHECK_SECONDS = 12
"""For the node's own judgement, which reads a few files for each kernel."""


@dataclass(frozen=True)
class JudgedKernel:
    """What the node's own program said of an installed kernel; the three texts are empty when all is well."""

    release: str
    ok: bool
    cause: str = ""
    explanation: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class PeerStatus:
    """The status file as the node wrote it; it may be of an earlier boot."""

    boot_id: str
    kernel: str
    provider: str
    """``dma_buf``, ``nvidia_peermem``, ``nv_peer_mem`` or ``none``."""
    module: str
    """What the provider has to load; empty for dma_buf and none."""
    state: str
    """``loading``, ``ready`` or ``failed``."""
    since: str
    """When it was written, by the node's clock: ``2026-11-21T17:56:50Z``."""
    simulated: bool = False
    cause: str = ""
    explanation: str = ""
    remedy: str = ""
    kernels: tuple[JudgedKernel, ...] = ()


@dataclass(frozen=True)
class PeerUnit:
    """What systemd says of the unit."""

    active: str
    """``active``, ``activating``, ``failed``, ``inactive``."""
    result: str
    """``success``, ``exit-code``, ``timeout``, ..."""
    enabled: str
    """``enabled``, ``disabled``, ``masked``, ...; empty when systemd did not say."""


@dataclass(frozen=True)
class PeerRecord:
    """What is wanted on the node, and how its last check went; all empty where the role was never applied."""

    wanted: str = ""
    """The provider in the role's configuration file; empty without one."""
    status: PeerStatus | None = None
    error: str = ""
    """Why the status file cannot be read, though it is there; else empty."""
    age_seconds: int | None = None
    """How old the status is by the node's clock; None when the clock was set back since, or cannot be read."""
    unit: PeerUnit | None = None
    """None when there is no such unit."""
    newer: tuple[str, ...] = ()
    """Kernels whose modules changed after the status was written, as by an upgrade of RDMA stack or driver."""
    rechecked: tuple[JudgedKernel, ...] | None = None
    """What the node's program says now, asked where modules are newer; None where it was not, or gave no answer."""


class _UnreadableError(Exception):
    """What is wrong with a status file, as the end of a sentence that begins with its name."""


class PeerStatusFact:
    """Reads configuration and status, no more than is sensible of each, and asks systemd where there is any.

    The status is written at boot, by an apply and when a kernel is installed. Where modules changed since, the node's
    program is asked to judge them as they are.
    """

    name: ClassVar[str] = "peer_status"
    label: ClassVar[str] = f"systemctl show {UNIT}"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = rf"""
config={CONFIG_FILE}
status={STATUS_FILE}
[ -e "$config" ] || [ -e "$status" ] || [ -e /etc/systemd/system/{UNIT} ] || exit 0
echo "now=$(date -u +%s)"
systemctl show {UNIT} -p LoadState -p ActiveState -p Result -p UnitFileState 2>/dev/null
if [ -f "$status" ]; then
  newer=
  for file in /lib/modules/*/modules.dep; do
    [ "$file" -nt "$status" ] || continue
    file=${{file%/modules.dep}}; newer=${{file##*/}}; printf 'newer\t%s\n' "$newer"
  done
  [ -z "$newer" ] || timeout -k 1 {_CHECK_SECONDS} {PROGRAM} check 2>/dev/null | head -c {_SIZE_LIMIT} |
    while IFS= read -r line; do printf 'checked\t%s\n' "$line"; done
fi
echo config
[ ! -f "$config" ] || head -c 4096 "$config"
[ ! -e "$status" ] || printf '\nstatus\n'
[ ! -f "$status" ] || head -c {_SIZE_LIMIT + 1} "$status"
exit 0
"""

    def parse(self, raw: RawOutput) -> PeerRecord:
        """A status file that says nothing sensible is kept as the reason for which it does not."""
        head, _, rest = f"\n{raw.stdout}".partition("\nconfig\n")
        config, there, text = rest.partition("\nstatus\n")
        pairs = RawOutput(head, 0).pairs()
        status, error = None, ""
        if there:
            try:
                status = _status(text)
            except _UnreadableError as problem:
                error = str(problem)
        rows = [line.split("\t", 1) for line in head.splitlines() if "\t" in line]
        newer = tuple(_line(row[1]) for row in rows if row[0] == "newer")
        rechecked = tuple(filter(None, (_rechecked(row[1]) for row in rows if row[0] == "checked")))
        age = _age(status, pairs.get("now", ""))
        return PeerRecord(_wanted(config), status, error, age, _unit(pairs), newer, rechecked or None)


def _wanted(text: str) -> str:
    try:
        return str(decode(text, PeerConfiguration, node="", what=CONFIG_FILE).provider)
    except InvalidDocument:
        return ""


def _unit(pairs: Mapping[str, str]) -> PeerUnit | None:
    if pairs.get("LoadState", "not-found") == "not-found":
        return None
    return PeerUnit(pairs.get("ActiveState", ""), pairs.get("Result", ""), pairs.get("UnitFileState", ""))


def _age(status: PeerStatus | None, now: str) -> int | None:
    if status is None or not now.isdecimal():
        return None
    try:
        age = int(now) - int(datetime.fromisoformat(status.since).timestamp())
    except ValueError:
        return None
    return age if age >= 0 else None


def _status(text: str) -> PeerStatus:
    """Read the file. Raises _UnreadableError with what is wrong with it."""
    if not text.strip():
        raise _UnreadableError("is empty or cannot be read")
    try:
        version = decode(text, PeerFormat, node="", what="", limit=_SIZE_LIMIT).format
        if version != _FORMAT:
            raise _UnreadableError(f"has format {version}, and this version knows {_FORMAT}")
        found = decode(text, PeerStatusFile, node="", what="", limit=_SIZE_LIMIT)
    except InvalidDocument as error:
        raise _UnreadableError(f"is not valid{error.message}") from error
    if found.ok is not (found.state == "ready"):
        raise _UnreadableError(f"contradicts itself: its state is {found.state}, and ok is {found.ok}")
    return PeerStatus(
        boot_id=str(found.boot_id),
        kernel=str(found.kernel),
        provider=str(found.provider),
        module=str(found.module),
        state=found.state,
        since=str(found.since),
        simulated=found.simulated,
        **_why(found),
        kernels=tuple(JudgedKernel(str(one.kernel), one.ok, **_why(one)) for one in found.kernels),
    )


def _why(found: PeerStatusFile | PeerKernelRecord) -> dict[str, str]:
    return {name: " ".join(getattr(found, name).split()) for name in ("cause", "explanation", "remedy")}


def _rechecked(text: str) -> JudgedKernel | None:
    """Read what the program prints of a kernel: ``RELEASE: ready`` or ``RELEASE: CAUSE: what is wrong. What to do``."""
    release, mark, said = _line(text).partition(": ")
    if not mark or " " in release:
        return None
    if said == "ready":
        return JudgedKernel(release, ok=True)
    cause, mark, why = said.partition(": ")
    return JudgedKernel(release, ok=False, cause=cause, explanation=why.rstrip(".")) if mark and why else None


def _line(text: str) -> str:
    """Return a text as one line without control characters: it is shown on the operator's terminal."""
    return " ".join(printable_line(text).split())
