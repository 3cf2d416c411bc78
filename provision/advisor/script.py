"""Check a training script against the five rules of distributed PyTorch, without running it.

The rules are those of the reference: (1) every process has its own rank, there are WORLD_SIZE of them, and the master
is rank 0; (2) the process group is created only if WORLD_SIZE is over 1; (3) the model is wrapped by
DistributedDataParallel, because only a wrapped model sums gradients; (4) the DataLoader gets a DistributedSampler, so
that each process reads its own share; (5) the script passes the epoch to that sampler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from provision.advisor.frameworks import EPOCH, INIT, RANKS, SAMPLER, WRAP, FrameworkUse, find_frameworks
from provision.advisor.script_analysis import Analysis, RuleResult, broken, holds, where
from provision.advisor.script_data import check_epoch, check_sampler
from provision.advisor.script_model import check_wrap
from provision.advisor.script_processes import check_init, check_ranks
from provision.advisor.source import read_script

__all__ = ["RULES", "RuleFinding", "RuleVerdict", "lint_script"]

RULES: Mapping[str, str] = {
    RANKS: "ranks are distinct, WORLD_SIZE many, and 0 is the master",
    INIT: "init_process_group only where WORLD_SIZE is over 1",
    WRAP: "the model is wrapped by DistributedDataParallel",
    SAMPLER: "the DataLoader gets a DistributedSampler",
    EPOCH: "the script passes the epoch to the sampler (set_epoch)",
}
"""Id -> the rule, in the order of the reference."""

_CHECKS = {RANKS: check_ranks, INIT: check_init, WRAP: check_wrap, SAMPLER: check_sampler, EPOCH: check_epoch}
_NO_TORCH = "neither torch nor a library based on it is imported in the files that were read"


class RuleVerdict(Enum):
    """The result of a rule."""

    HOLDS = "holds"
    BROKEN = "broken"
    UNKNOWN = "unknown"
    """The script does not show it; never treated as holds."""


@dataclass(frozen=True)
class RuleFinding:
    """The result of one rule."""

    rule: str
    """A key of `RULES`."""
    verdict: RuleVerdict
    file: str
    line: int | None
    """Line of the evidence, from 1; None if there is no line."""
    evidence: str
    remedy: str | None = None
    framework: str | None = None
    """The library that implements the rule."""


def lint_script(sources: Mapping[str, bytes]) -> tuple[RuleFinding, ...]:
    """Check a script against the five rules; it is never executed.

    Args:
        sources: File name -> content; the script first, then its own modules that it imports.

    Raises:
        UsageError: A file is not valid Python; the line is named.
    """
    script = read_script(sources)
    name = next(iter(sources))
    analysis = Analysis(script, name)
    frameworks = find_frameworks(script)
    if not frameworks and not any(full.partition(".")[0] in {"torch", "apex"} for full in script.imports):
        return tuple(
            RuleFinding(rule, RuleVerdict.UNKNOWN, name, None, _NO_TORCH, "Pass the script that trains.")
            for rule in RULES
        )
    return tuple(_finding(rule, analysis, frameworks) for rule in RULES)


def _finding(rule: str, analysis: Analysis, frameworks: Sequence[FrameworkUse]) -> RuleFinding:
    """Check a rule; a library that implements the rule takes precedence over the script."""
    for use in frameworks:
        if rule in use.done:
            evidence = f"{use.name} does it: {use.done[rule]} ({where(use.site)})"
            return _rule_finding(rule, holds(evidence, use.site), analysis, use.name)
    result = _CHECKS[rule](analysis)
    for use in frameworks:
        if rule in use.missing and result.verdict != RuleVerdict.HOLDS.value:
            evidence = f"{use.name} is used ({where(use.site)}), but not for this"
            return _rule_finding(
                rule, broken(evidence, use.site, f"With {use.name}: {use.missing[rule]}."), analysis, use.name
            )
    return _rule_finding(rule, result, analysis, None)


def _rule_finding(rule: str, result: RuleResult, analysis: Analysis, framework: str | None) -> RuleFinding:
    site = result.site
    return RuleFinding(
        rule,
        RuleVerdict(result.verdict),
        site.place.file if site else analysis.name,
        site.line if site else result.line,
        result.evidence,
        result.remedy,
        framework,
    )
