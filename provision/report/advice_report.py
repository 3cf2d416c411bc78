"""What the advisor found, as JSON and as a table."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

from provision.advisor.script import RuleFinding, RuleVerdict

__all__ = ["script_document", "script_text"]

_WIDTH = 80
_RULE, _WORD = 10, 8


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


def row(left: str, text: str) -> list[str]:
    """Wrap a text beside what stands left of it; control characters are not let through."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return textwrap.wrap(
        shown, _WIDTH, initial_indent=left, subsequent_indent=" " * len(left), break_on_hyphens=False
    ) or [left.rstrip()]
