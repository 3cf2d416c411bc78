"""The base of the checks of the five rules."""

from __future__ import annotations

import ast
import dataclasses
import functools
from dataclasses import dataclass

from provision.advisor.evaluate import JOB, Process, is_reached
from provision.advisor.source import Place, Script, Site

__all__ = ["Analysis", "RuleResult", "broken", "holds", "unknown", "where"]

INIT_CALLS = ("init_process_group", "init_device_mesh")
WRAPPERS = (
    "DistributedDataParallel",
    "DistributedDataParallelCPU",
    "FullyShardedDataParallel",
    "fully_shard",
    "replicate",
)
SAMPLERS = ("DistributedSampler", "DistributedSamplerWrapper", "DistributedWeightedSampler", "RASampler")
LOADERS = ("DataLoader", "StatefulDataLoader", "MultiEpochsDataLoader")


@dataclass(frozen=True)
class RuleResult:
    """The result of a rule, and the call that it is about."""

    verdict: str
    """``holds``, ``broken`` or ``unknown``."""
    evidence: str
    site: Site | None = None
    remedy: str | None = None
    line: int | None = None
    """The line if there is no call."""


def holds(evidence: str, site: Site | None = None, remedy: str | None = None) -> RuleResult:
    """Return that a rule holds."""
    return RuleResult("holds", evidence, site, remedy)


def broken(evidence: str, site: Site | None, remedy: str, line: int | None = None) -> RuleResult:
    """Return that a rule is broken, with the remedy."""
    return RuleResult("broken", evidence, site, remedy, line)


def unknown(evidence: str, site: Site | None = None, remedy: str | None = None) -> RuleResult:
    """Return that a rule cannot be checked, and why."""
    return RuleResult("unknown", evidence, site, remedy)


def where(site: Site) -> str:
    """Return the position of a call."""
    return f"line {site.line}"


@dataclass(frozen=True)
class Analysis:
    """The script, with the calls that several rules need."""

    script: Script
    name: str
    """The file name of the script."""

    @functools.cached_property
    def inits(self) -> list[Site]:
        """The calls that create the process group."""
        return self.script.find(*INIT_CALLS)

    @functools.cached_property
    def samplers(self) -> list[Site]:
        """The calls that create distributed samplers."""
        return self.script.find(*SAMPLERS)

    @functools.cached_property
    def loaders(self) -> list[Site]:
        """The calls that create DataLoaders."""
        return self.script.find(*LOADERS)

    def is_reached(self, place: Place, process: Process) -> bool | None:
        """Return whether a process reaches a place; None if unknown."""
        return is_reached(self.script, place, process)

    def in_job(self, place: Place) -> bool:
        """Return whether a process of a job may reach a place."""
        return is_reached(self.script, place, self._member) is not False

    @functools.cached_property
    def _member(self) -> Process:
        """A process of a job, with its process group if the script creates one."""
        group = any(is_reached(self.script, site.place, JOB[1]) is not False for site in self.inits) or None
        return dataclasses.replace(JOB[1], initialized=group)

    def with_one(self, place: Place) -> bool:
        """Return whether a single process certainly reaches a place without creating a process group."""
        groups = [is_reached(self.script, site.place, Process()) for site in self.inits]
        if not groups or any(group is not False for group in groups):
            return False
        return is_reached(self.script, place, Process(initialized=False)) is True


def mentions(node: ast.AST | None, names: set[str]) -> bool:
    """Return whether an expression reads one of these names or attributes."""
    return node is not None and any(
        (isinstance(part, ast.Name) and part.id in names) or (isinstance(part, ast.Attribute) and part.attr in names)
        for part in ast.walk(node)
    )
