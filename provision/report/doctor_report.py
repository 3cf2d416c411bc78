"""The report of `provision doctor`: a line for each check, with the remedy, and the versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from provision.model import CheckResult, CheckStatus
from provision.report import layout
from provision.report.reasons import message, remedy

if TYPE_CHECKING:
    from provision.report.json_documents.probes import Doctor

_WIDTH = 24
_AREA = "controller."


def as_document(checks: Sequence[CheckResult], versions: Mapping[str, str]) -> Doctor:
    """Return the document of ``doctor --json``; keys are an interface and only ever added."""
    return {
        "ok": is_ok(checks),
        "versions": dict(versions),
        "checks": [
            {
                "id": check.id,
                "status": check.status,
                "reason": message(check.reason),
                "remedy": remedy(check.reason) or None,
                **check.reason.as_document(),
            }
            for check in checks
        ],
    }


def is_ok(checks: Sequence[CheckResult]) -> bool:
    """Return whether no check failed."""
    return all(check.status is not CheckStatus.FAIL for check in checks)


def as_text(checks: Sequence[CheckResult], versions: Mapping[str, str]) -> str:
    """Return the report as text."""
    lines = []
    for check in checks:
        head = f"{layout.state(check.status.value, 6)}{check.id.removeprefix(_AREA):{_WIDTH - 6}}"
        lines += _paragraph(head, message(check.reason))
        if check.status in {CheckStatus.WARN, CheckStatus.FAIL}:
            lines += _paragraph(" " * _WIDTH, f"hint: {remedy(check.reason)}")
    known = [f"{name} {version}" for name, version in versions.items() if version]
    failed = sum(check.status is CheckStatus.FAIL for check in checks)
    result = f"{failed} of {len(checks)} checks failed" if failed else "no check failed"
    return "\n".join([*lines, "", *layout.wrapped(f"versions: {', '.join(known)}", "  "), "", result])


def _paragraph(head: str, text: str) -> list[str]:
    """Return a paragraph to the right of its head, which may have colours."""
    first, *rest = layout.hanging(" " * _WIDTH, text)
    return [layout.padded(head, _WIDTH) + first[_WIDTH:], *rest]
