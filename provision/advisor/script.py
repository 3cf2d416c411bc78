"""Judge a training script by the five rules of distributed PyTorch, without running it.

The rules are those of the reference: (1) every process has a rank of its own, there are WORLD_SIZE of them, and the
master is rank 0; (2) the process group is made only where WORLD_SIZE is over 1; (3) the model is wrapped by
DistributedDataParallel, which alone sums the gradients; (4) the DataLoader gets a DistributedSampler, so that each
process reads its own share; (5) that sampler is told the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from provision.advisor.frameworks import EPOCH, INIT, RANKS, SAMPLER, WRAP, FrameworkUse, find_frameworks
from provision.advisor.script_data import judge_epoch, judge_sampler
from provision.advisor.script_model import judge_wrap
from provision.advisor.script_processes import judge_init, judge_ranks
from provision.advisor.script_scene import Judgement, Scene, broken, holds, where
from provision.advisor.source import read_script

__all__ = ["RULES", "RuleFinding", "RuleVerdict", "lint_script"]

RULES: Mapping[str, str] = {
    RANKS: "ranks are distinct, WORLD_SIZE many, and 0 is the master",
    INIT: "init_process_group only where WORLD_SIZE is over 1",
    WRAP: "the model is wrapped by DistributedDataParallel",
    SAMPLER: "the DataLoader gets a DistributedSampler",
    EPOCH: "the sampler is told the epoch (set_epoch)",
}
"""Id -> the rule, in the order of the reference."""

_JUDGES = {RANKS: judge_ranks, INIT: judge_init, WRAP: judge_wrap, SAMPLER: judge_sampler, EPOCH: judge_epoch}
_NO_TORCH = "neither torch nor a library on top of it is imported in what was read"


class RuleVerdict(Enum):
    """What was found of a rule."""

    HOLDS = "holds"
    BROKEN = "broken"
    UNKNOWN = "unknown"
    """It cannot be told from the script; never taken for held."""


@dataclass(frozen=True)
class RuleFinding:
    """One rule, judged."""

    rule: str
    """A key of `RULES`."""
    verdict: RuleVerdict
    file: str
    line: int | None
    """Where the evidence stands, from 1; None where something is nowhere."""
    evidence: str
    remedy: str | None = None
    framework: str | None = None
    """The library that sees to it."""


def lint_script(sources: Mapping[str, bytes]) -> tuple[RuleFinding, ...]:
    """Judge a script by the five rules; it is never executed.

    Args:
        sources: file name -> its bytes; the script itself first, then modules of its own that it imports.

    Raises:
        UsageError: a file is no Python; the line is named.
    """
    script = read_script(sources)
    name = next(iter(sources))
    scene = Scene(script, name)
    frameworks = find_frameworks(script)
    if not frameworks and not any(full.partition(".")[0] in {"torch", "apex"} for full in script.imports):
        return tuple(
            RuleFinding(rule, RuleVerdict.UNKNOWN, name, None, _NO_TORCH, "Give the script that trains.")
            for rule in RULES
        )
    return tuple(_finding(rule, scene, frameworks) for rule in RULES)


def _finding(rule: str, scene: Scene, frameworks: Sequence[FrameworkUse]) -> RuleFinding:
    """A library that sees to a rule outweighs what the script lacks."""
    for use in frameworks:
        if rule in use.done:
            evidence = f"{use.name} does it: {use.done[rule]} ({where(use.site)})"
            return _worded(rule, holds(evidence, use.site), scene, use.name)
    judgement = _JUDGES[rule](scene)
    for use in frameworks:
        if rule in use.missing and judgement.verdict != RuleVerdict.HOLDS.value:
            evidence = f"{use.name} is used ({where(use.site)}), and is not asked for it"
            return _worded(rule, broken(evidence, use.site, f"With {use.name}: {use.missing[rule]}."), scene, use.name)
    return _worded(rule, judgement, scene, None)


def _worded(rule: str, judgement: Judgement, scene: Scene, framework: str | None) -> RuleFinding:
    site = judgement.site
    return RuleFinding(
        rule,
        RuleVerdict(judgement.verdict),
        site.place.file if site else scene.name,
        site.line if site else judgement.line,
        judgement.evidence,
        judgement.remedy,
        framework,
    )
