"""The verdict on an NCCL log as JSON and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.checks.nccl_log import NcclVerdict
from provision.report import layout
from provision.report.reasons import message, remedy

if TYPE_CHECKING:
    from provision.report.json_documents.launches import NcclLog

_LABEL = 11
_TCP = {"Socket", "FastSocket"}
_IN_USE = {True: "in use", False: "NOT in use", None: "unknown"}


def as_document(verdict: NcclVerdict) -> NcclLog:
    """Return the document of ``nccl-log --json``; keys are an interface and only ever added."""
    return {
        "version": verdict.version,
        "cuda": verdict.cuda,
        "transport": verdict.transport,
        "gdr": verdict.gdr,
        "hcas": list(verdict.hcas),
        "hcas_used": verdict.hcas_used,
        "reason": _reason(verdict),
        "remedy": remedy_of(verdict),
        "reason_codes": [reason.as_document() for reason in verdict.reasons],
    }


def remedy_of(verdict: NcclVerdict) -> str | None:
    """Return what to do; None when there is nothing to do."""
    return " ".join(filter(None, map(remedy, verdict.reasons))) or None


def _reason(verdict: NcclVerdict) -> str:
    """Return the reasons as sentences."""
    return " ".join(f"{message(reason)}." for reason in verdict.reasons)


def as_text(verdict: NcclVerdict) -> str:
    """Return the verdict as text, at most 80 columns wide."""
    version = verdict.version or "unknown version"
    built = f" (built for CUDA {verdict.cuda})" if verdict.cuda else ""
    rows = [
        ("NCCL", f"{version}{built}"),
        ("transport", verdict.transport or "unknown"),
        ("GPUDirect", _IN_USE[verdict.gdr]),
        ("cards", _cards(verdict)),
        ("reason", _reason(verdict)),
        ("remedy", remedy_of(verdict) or "none needed"),
    ]
    return "\n".join(line for label, text in rows for line in _row(label, text))


def _cards(verdict: NcclVerdict) -> str:
    if not verdict.hcas:
        return "none" if verdict.hcas_used or verdict.transport in _TCP else "not named in the log"
    note = "" if verdict.hcas_used else " (listed; the log does not show which were used)"
    return f"{', '.join(verdict.hcas)}{note}"


def _row(label: str, text: str) -> list[str]:
    """Wrap at blanks, break words longer than a line, and replace control characters."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return layout.wrapped(f"{label:<{_LABEL}}{shown}", " " * _LABEL)
