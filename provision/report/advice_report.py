"""What the advisor found, as JSON and as a table."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

from provision.advisor.base import Finding, Verdict
from provision.advisor.script import RuleFinding, RuleVerdict

__all__ = ["advice_document", "advice_text", "script_document", "script_text"]

_WIDTH = 80
_RULE, _WORD = 10, 8
_CHECK = 24


def script_document(script: str, findings: Sequence[RuleFinding]) -> dict[str, Any]:
    """Return what ``advise --script --json`` prints; keys are an interface and only ever added."""
    return {
        "ok": not any(finding.verdict is RuleVerdict.BROKEN for finding in findings),
        "script": script,
        "rules": [
            {
                "rule": finding.rule,
                "verdict": finding.verdict.value,
                "file": finding.file,
                "line": finding.line,
                "evidence": finding.evidence,
                "remedy": finding.remedy,
                "framework": finding.framework,
            }
            for finding in findings
        ],
    }


def script_text(script: str, findings: Sequence[RuleFinding]) -> str:
    """Return the five rules with their verdicts for a person, at most 80 columns wide."""
    lines = [f"{'RULE':<{_RULE}}{'VERDICT':<{_WORD + 2}}EVIDENCE"]
    for finding in findings:
        word = finding.verdict.value
        shown = word.upper() if finding.verdict is RuleVerdict.BROKEN else word
        elsewhere = f"{finding.file}: " if finding.file != script else ""
        lines += row(f"{finding.rule:<{_RULE}}{shown:<{_WORD + 2}}", elsewhere + finding.evidence)
        if finding.remedy:
            lines += row(" " * (_RULE + _WORD + 2), f"-> {finding.remedy}")
    counted = Counter(finding.verdict for finding in findings)
    summary = ", ".join(f"{counted[verdict]} {verdict.value}" for verdict in RuleVerdict if counted[verdict])
    return "\n".join([*lines, "", f"{script}: {summary}"])


def advice_document(job: str, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what a job's findings are as JSON; keys are an interface and only ever added."""
    return {
        "ok": all(finding.verdict is Verdict.OK for finding in findings),
        "job": job,
        "simulated": any(finding.simulated for finding in findings),
        "findings": [
            {
                "check": finding.check,
                "verdict": finding.verdict.value,
                "evidence": finding.evidence,
                "remedy": finding.remedy,
                "confidence": finding.confidence.value if finding.confidence else None,
                "simulated": finding.simulated,
            }
            for finding in findings
        ],
    }


def advice_text(job: str, findings: Sequence[Finding]) -> str:
    """Return a job's findings for a person, at most 80 columns wide."""
    lines = [f"{'CHECK':<{_CHECK}}{'VERDICT':<{_WORD + 2}}{'CONF.':<8}EVIDENCE"]
    for finding in findings:
        shown = finding.verdict.value.upper() if finding.verdict is Verdict.FOUND else finding.verdict.value
        sure = finding.confidence.value if finding.confidence else "-"
        mark = "SIMULATED: " if finding.simulated else ""
        lines += row(f"{finding.check:<{_CHECK}}{shown:<{_WORD + 2}}{sure:<8}", mark + finding.evidence)
        if finding.remedy:
            lines += row(" " * (_CHECK + _WORD + 10), f"-> {finding.remedy}")
    counted = Counter(finding.verdict for finding in findings)
    summary = ", ".join(f"{counted[verdict]} {verdict.value}" for verdict in Verdict if counted[verdict])
    return "\n".join([*lines, "", f"{job}: {summary}"])


def row(left: str, text: str) -> list[str]:
    """Wrap a text beside what stands left of it; control characters are not let through."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return textwrap.wrap(
        shown, _WIDTH, initial_indent=left, subsequent_indent=" " * len(left), break_on_hyphens=False
    ) or [left.rstrip()]
