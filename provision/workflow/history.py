"""History of applies: on the controller those of an inventory, on a node those of all operators.

A line is written when an apply begins and one when it ends, so that one that was cut short leaves a trace.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from provision.documents.locks import entry_of, merged
from provision.errors import ProvisionError
from provision.local_files import state_folder, write_private
from provision.locks import user
from provision.model import Cluster, Node
from provision.model.history import Entry
from provision.workflow.inventory_state import identity

_PATIENCE_SECONDS = 5.0
"""How much longer than the others a node may take to send its records."""
_BAD = ("running", "died", "interrupted", "unlocked", "refused")
"""Results of nodes that are the result of the whole apply, the first of them that a node reports."""
_GOOD = frozenset({"unchanged", "changed", "ended", "reset", "nothing"})
"""Results of nodes on which an apply or a reset succeeded."""
MAX_ENTRIES = 200
"""As many applies of an inventory, and of a node, are remembered."""


def begin(cluster: Cluster, *, command: str, nodes: Sequence[str]) -> Entry:
    """Record the start of an apply; requires the lock `alone`. `end` reports a record that cannot be written."""
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
    entries = (entry_of(record, file) for record in merged(text.splitlines()))
    return tuple(_as_it_is(entry) for entry in entries if entry)[-MAX_ENTRIES:]


def read_nodes(nodes: Sequence[Node], *, newest: int = MAX_ENTRIES) -> Mapping[str, tuple[Entry, ...] | ProvisionError]:
    """Return the applies that each node remembers, of all operators, oldest first; one SSH session per node."""
    from provision.workflow.remote_lock import probe_locks

    probed = probe_locks(nodes, entries=newest)
    return {name: result if isinstance(result, ProvisionError) else result.entries for name, result in probed.items()}


@dataclass(frozen=True)
class Fleet:
    """The applies that this machine and the nodes have recorded."""

    entries: tuple[Entry, ...]
    """Oldest first."""
    lost: Mapping[str, ProvisionError]
    """Nodes whose records could not be read."""


def read_fleet(cluster: Cluster, nodes: Sequence[Node], *, newest: int = MAX_ENTRIES) -> Fleet:
    """Return the newest applies of `nodes`, by all operators: the records of this machine and of the nodes as one list.

    This machine's own record of an apply counts; what nodes say adds applies of others, and of nodes that it left out.
    """
    from provision.workflow.remote_lock import probe_locks

    names = {node.name for node in nodes}
    own = [entry for entry in read(cluster) if names & set(entry.nodes)]
    probed = probe_locks(nodes, entries=newest, patience=_PATIENCE_SECONDS)
    recorded = [
        (name, entry)
        for name, result in probed.items()
        if not isinstance(result, ProvisionError)
        for entry in result.entries[-newest:]
    ]
    others: dict[tuple[str, ...], list[tuple[str, Entry]]] = {}
    for name, entry in recorded:
        if not any(_is_same(mine, entry) for mine in own):
            key = (entry.id, entry.user, entry.host, entry.command)
            others.setdefault(key, []).append((name, entry))
    merged_entries = sorted([*own, *map(_of_nodes, others.values())], key=lambda entry: entry.started)
    lost = {name: result for name, result in probed.items() if isinstance(result, ProvisionError)}
    return Fleet(tuple(merged_entries[-newest:]), lost)


def _is_same(own: Entry, entry: Entry) -> bool:
    """Return whether a node's record is of an apply of this controller: the same process, at that time.

    Ids do not match: the lock of the nodes has its own.
    """
    during = own.started <= entry.started <= (own.ended or entry.started)
    return during and (own.user, own.host, own.pid) == (entry.user, entry.host, entry.pid)


def _of_nodes(entries: Sequence[tuple[str, Entry]]) -> Entry:
    """Return one apply from the records of its nodes."""
    first = min((entry for _, entry in entries), key=lambda entry: entry.started)
    statuses = [entry.status for _, entry in entries]
    bad = next((status for status in _BAD if status in statuses), "")
    good = all(status in _GOOD or status == "waiting" for status in statuses)
    waiting = "waiting" in statuses
    nodes = {
        name: {"status": entry.status, "roles": list(entry.roles), "message": entry.message} for name, entry in entries
    }
    ended = [entry.ended for _, entry in entries]
    return replace(
        first,
        status=bad or ("failed" if not good else "waiting" if waiting else "ok"),
        ended=max(filter(None, ended), default=None) if all(ended) else None,
        nodes=nodes,
        roles=(),
        notes=(),
        message="",
    )


def _file(cluster: Cluster) -> Path:
    return state_folder() / "history" / f"{identity(cluster)}.jsonl"


def _as_it_is(entry: Entry) -> Entry:
    """Return whether an apply of this controller is dead because its process is gone; others are unknown here."""
    if entry.status != "running" or entry.host != os.uname().nodename or _process(entry.pid) == entry.process:
        return entry
    return replace(entry, status="died", message="its process went without a word")


def _process(pid: int) -> str:
    """Return the start time of a process, which identifies it beside its number; empty when it is gone."""
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
    if len(lines) <= 2 * MAX_ENTRIES:
        return
    write_private(file, "".join(json.dumps(record) + "\n" for record in merged(lines)[-MAX_ENTRIES:]))
