"""Reports about recent jobs: nodes leave out jobs that ended, each by its own count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from provision.documents.jobs import ReportAnswer
from provision.errors import ProvisionError

Answer = TypeVar("Answer", bound=ReportAnswer)


class _Queue(msgspec.Struct):
    nodes: list[str] = msgspec.field(default_factory=list)


class _Entry(msgspec.Struct):
    """The fields of an entry that decide whether a node is asked again."""

    name: str = ""
    queue: _Queue = msgspec.field(default_factory=_Queue)
    result: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    supervisor: str = msgspec.field(default="", name="keeper")


_entry = msgspec.json.Decoder(_Entry)


def left_out(reports: Mapping[str, Answer | ProvisionError], head: str) -> dict[str, list[str]]:
    """Return node -> names of jobs that the queue host reports, and which this node may have left out."""
    names: dict[str, list[str]] = {}
    for entry in _entries(reports.get(head)):
        for node in entry.queue.nodes:
            names.setdefault(node, []).append(entry.name)
    missing: dict[str, list[str]] = {}
    for node, wanted in names.items():
        answer = reports.get(node)
        if answer is None or isinstance(answer, ProvisionError) or not answer.older or node == head:
            continue
        reported = {entry.name for entry in _entries(answer)}
        absent = [name for name in wanted if name not in reported]
        if absent:
            missing[node] = absent
    return missing


def only_recent(
    reports: Mapping[str, Answer | ProvisionError], more: Mapping[str, Answer | ProvisionError], head: str
) -> dict[str, Answer | ProvisionError]:
    """Return the reports with further ones, without jobs that ended and that the queue host leaves out."""
    of_head = reports.get(head)
    names = {entry.name for entry in _entries(of_head)}
    is_part = isinstance(of_head, ReportAnswer) and of_head.older > 0
    combined: dict[str, Answer | ProvisionError] = {}
    for node, answer in reports.items():
        second = more.get(node)
        if isinstance(answer, ProvisionError) or isinstance(second, ProvisionError):
            combined[node] = second if isinstance(second, ProvisionError) else answer
            continue
        jobs = [*answer.jobs, *(second.jobs if second is not None else ())]
        if is_part and node != head:
            jobs = [raw for raw in jobs if (entry := _of(raw)).name in names or not _has_ended(entry)]
        combined[node] = msgspec.structs.replace(answer, jobs=jobs)
    return combined


def _has_ended(entry: _Entry) -> bool:
    return bytes(entry.result) not in {b"", b"null"} and entry.supervisor != "active"


def _entries(answer: Answer | ProvisionError | None) -> Iterator[_Entry]:
    if answer is not None and not isinstance(answer, ProvisionError):
        yield from map(_of, answer.jobs)


def _of(raw: msgspec.Raw) -> _Entry:
    try:
        return _entry.decode(bytes(raw))
    except (msgspec.MsgspecError, ValueError):
        return _Entry()  # the reader of the answers reports it
