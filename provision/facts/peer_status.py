"""The GPUDirect RDMA status that a node records at boot: the status file of the role peer_memory, and its unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from provision.documents import decode, printable_line
from provision.documents.records import PeerConfiguration, PeerFormat, PeerKernelRecord, PeerStatusFile
from provision.errors import InvalidDocument
from provision.facts.base import RawOutput

UNIT = "provision-peer-memory.service"
CONFIG_FILE = "/etc/provision/peer_memory.json"
STATUS_FILE = "/var/lib/provision/peer_memory/status.json"
PROGRAM = "/usr/local/lib/provision/peer-memory"
"""The node's own program; its ``check`` evaluates every installed kernel and changes nothing."""

_FORMAT = 1
_SIZE_LIMIT = 131072
"""Bytes of the status file; a kernel needs fewer than 1000."""
_CHECK_SECONDS = 12
"""Limit of the node's own check, which reads a few files for each kernel."""


@dataclass(frozen=True)
class JudgedKernel:
    """The node program's verdict on an installed kernel; the three texts are empty if it is ready."""

    release: str
    ok: bool
    cause: str = ""
    explanation: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class PeerStatus:
    """The node's status file; it may be from an earlier boot."""

    boot_id: str
    kernel: str
    provider: str
    """``dma_buf``, ``nvidia_peermem``, ``nv_peer_mem`` or ``none``."""
    module: str
    """The module that the provider loads; empty for dma_buf and none."""
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
    """The state of the systemd unit."""

    active: str
    """``active``, ``activating``, ``failed``, ``inactive``."""
    result: str
    """``success``, ``exit-code``, ``timeout``, ..."""
    enabled: str
    """``enabled``, ``disabled``, ``masked``, ...; empty if systemd does not report it."""


@dataclass(frozen=True)
class PeerRecord:
    """The configured provider and the result of its last check; empty if the role was never applied."""

    wanted: str = ""
    """The provider in the role's configuration file; empty without one."""
    status: PeerStatus | None = None
    error: str = ""
    """Why an existing status file cannot be read; else empty."""
    age_seconds: int | None = None
    """Age of the status by the node's clock; None if the clock was set back, or cannot be read."""
    unit: PeerUnit | None = None
    """None if there is no such unit."""
    newer: tuple[str, ...] = ()
    """Kernels whose modules changed after the status was written, e.g. by an upgrade of RDMA stack or driver."""
    rechecked: tuple[JudgedKernel, ...] | None = None
    """The program's current verdict, requested if modules are newer; None if not requested or not answered."""


class _UnreadableError(Exception):
    """The problem of a status file, as the end of a sentence that begins with its name."""


class PeerStatusFact:
    """Reads a bounded part of configuration and status, and queries systemd if the files exist.

    The status is written at boot, by an apply and when a kernel is installed. If modules changed since then, the node's
    program checks them again.
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
        """Return the reason as `error` if the status file is invalid."""
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
    """Parse the file. Raise _UnreadableError if it is invalid."""
    if not text.strip():
        raise _UnreadableError("is empty or cannot be read")
    try:
        version = decode(text, PeerFormat, node="", what="", limit=_SIZE_LIMIT).format
        if version != _FORMAT:
            raise _UnreadableError(f"has format {version}; supported: {_FORMAT}")
        content = decode(text, PeerStatusFile, node="", what="", limit=_SIZE_LIMIT)
    except InvalidDocument as error:
        raise _UnreadableError(f"is not valid{error.message}") from error
    if content.ok is not (content.state == "ready"):
        raise _UnreadableError(f"contradicts itself: state is {content.state}, but ok is {content.ok}")
    return PeerStatus(
        boot_id=str(content.boot_id),
        kernel=str(content.kernel),
        provider=str(content.provider),
        module=str(content.module),
        state=content.state,
        since=str(content.since),
        simulated=content.simulated,
        **_why(content),
        kernels=tuple(JudgedKernel(str(kernel.kernel), kernel.ok, **_why(kernel)) for kernel in content.kernels),
    )


def _why(content: PeerStatusFile | PeerKernelRecord) -> dict[str, str]:
    return {name: " ".join(getattr(content, name).split()) for name in ("cause", "explanation", "remedy")}


def _rechecked(text: str) -> JudgedKernel | None:
    """Parse the program's line for a kernel: ``RELEASE: ready`` or ``RELEASE: CAUSE: explanation. remedy``."""
    release, mark, verdict = _line(text).partition(": ")
    if not mark or " " in release:
        return None
    if verdict == "ready":
        return JudgedKernel(release, ok=True)
    cause, mark, why = verdict.partition(": ")
    return JudgedKernel(release, ok=False, cause=cause, explanation=why.rstrip(".")) if mark and why else None


def _line(text: str) -> str:
    """Return a text as one line without control characters, for the operator's terminal."""
    return " ".join(printable_line(text).split())
