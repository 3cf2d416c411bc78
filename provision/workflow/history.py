"""What applies there were: of an inventory, on this machine; of a node, by whomever, on the node.

A line is written when an apply begins and one when it ends, so that one that was cut short leaves a trace.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from provision.documents.locks import entry_of, merged
from provision.errors import ProvisionError
from provision.locks import user
from provision.model import Cluster, Node
from provision.model.history import Entry
from provision.workflow.places import identity, state_folder

__all__ = ["KEPT", "begin", "end", "interrupted", "read", "read_nodes"]

KEPT = 200
"""As many applies of an inventory, and of a node, are remembered."""


def begin(cluster: Cluster, *, command: str, nodes: Sequence[str]) -> Entry:
    """Write down that an apply begins; whoever calls holds `alone`. That it cannot be written is told by `end`."""
    file = _file(cluster)
    began = Entry(
        id=f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(4)}",
        started=_now(),
        user=user(),
        host=os.uname().nodename,
        pid=os.getpid(),
        process=_process(os.getpid()),
        command=command,
        nodes={name: {} for name in nodes},
        file=file,
    )
    keys = ("id", "started", "user", "host", "pid", "process", "command", "status", "nodes")
    with suppress(OSError):
        _shorten(file)
        _append(file, {key: getattr(began, key) for key in keys})
    return began


def end(entry: Entry, *, status: str, seconds: float, nodes: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Write down how an apply ended; return a warning when that could not be written."""
    file = entry.file
    record = {key: getattr(entry, key) for key in ("id", "started", "user", "host", "pid", "command")}
    record |= {"status": status, "ended": _now(), "seconds": seconds, "nodes": dict(nodes)}
    try:
        if file is not None:
            _append(file, record)
    except OSError as error:
        return f"the history of applies could not be written to {file}: {error.strerror}"
    return None


def interrupted(cluster: Cluster) -> Entry | None:
    """Return the newest apply that began and never ended, and whose process is gone.

    Once a later apply has ended on all of its nodes, nothing of it is left to be said.
    """
    later: set[str] = set()
    for entry in reversed(read(cluster)):
        if entry.status == "died":
            if not set(entry.nodes) <= later or not entry.nodes:
                return entry
        elif entry.ended:
            later |= set(entry.nodes)
    return None


def read(cluster: Cluster) -> tuple[Entry, ...]:
    """Return the applies of this inventory that this machine knows of, oldest first."""
    file = _file(cluster)
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    found = (entry_of(record, file) for record in merged(text.splitlines()))
    return tuple(_as_it_is(entry) for entry in found if entry)[-KEPT:]


def read_nodes(nodes: Sequence[Node], *, newest: int = KEPT) -> Mapping[str, tuple[Entry, ...] | ProvisionError]:
    """Return the applies that each node remembers, of all operators, oldest first; one SSH session per node."""
    from provision.workflow.remote_keeper import look_at

    found = look_at(nodes, entries=newest)
    return {name: look if isinstance(look, ProvisionError) else look.entries for name, look in found.items()}


def _file(cluster: Cluster) -> Path:
    return state_folder() / "history" / f"{identity(cluster)}.jsonl"


def _as_it_is(entry: Entry) -> Entry:
    """Take an apply of this machine for dead whose process is no more; of another machine's nobody here knows."""
    if entry.status != "running" or entry.host != os.uname().nodename or _process(entry.pid) == entry.process:
        return entry
    return replace(entry, status="died", message="its process went without a word")


def _process(pid: int) -> str:
    """Return what tells a process from a later one of the same number; empty when it is gone."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
    return "" if words[0] == "Z" else f"{words[19]} {boot}"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _append(file: Path, record: Mapping[str, Any]) -> None:
    """Add a line, on a line of its own: a power cut may have left half a line before it."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, (b"\n" if torn else b"") + json.dumps(record).encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _shorten(file: Path) -> None:
    """Keep the newest applies only, once there are twice as many lines."""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []
    if len(lines) <= 2 * KEPT:
        return
    draft = file.with_suffix(".new")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(record) + "\n" for record in merged(lines)[-KEPT:])
    draft.replace(file)
