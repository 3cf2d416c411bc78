"""What the judges of the five rules share."""

from __future__ import annotations

import ast
import dataclasses
import functools
from dataclasses import dataclass

from provision.advisor.evaluate import MANY, Process, reached
from provision.advisor.source import Place, Script, Site

__all__ = ["Judgement", "Scene", "broken", "holds", "unknown", "where"]

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
class Judgement:
    """What a judge says of a rule, and about which call."""

    verdict: str
    """``holds``, ``broken`` or ``unknown``."""
    evidence: str
    site: Site | None = None
    remedy: str | None = None
    line: int | None = None
    """Where there is no call to name."""


def holds(evidence: str, site: Site | None = None, remedy: str | None = None) -> Judgement:
    """Say that a rule holds."""
    return Judgement("holds", evidence, site, remedy)


def broken(evidence: str, site: Site | None, remedy: str, line: int | None = None) -> Judgement:
    """Say that a rule is broken, and how to mend it."""
    return Judgement("broken", evidence, site, remedy, line)


def unknown(evidence: str, site: Site | None = None, remedy: str | None = None) -> Judgement:
    """Say that a rule cannot be judged, and why."""
    return Judgement("unknown", evidence, site, remedy)


def where(site: Site) -> str:
    """Name a call's place."""
    return f"line {site.line}"


@dataclass(frozen=True)
class Scene:
    """The script, and what several rules ask of it."""

    script: Script
    name: str
    """The file of the script itself."""

    @functools.cached_property
    def inits(self) -> list[Site]:
        """The calls that make the process group."""
        return self.script.find(*INIT_CALLS)

    @functools.cached_property
    def samplers(self) -> list[Site]:
        """The distributed samplers that are made."""
        return self.script.find(*SAMPLERS)

    @functools.cached_property
    def loaders(self) -> list[Site]:
        """The DataLoaders that are made."""
        return self.script.find(*LOADERS)

    def reached(self, place: Place, process: Process) -> bool | None:
        """Return whether a process comes there; None where that cannot be told."""
        return reached(self.script, place, process)

    def in_job(self, place: Place) -> bool:
        """Whether a process of a job may come there."""
        return reached(self.script, place, self._member) is not False

    @functools.cached_property
    def _member(self) -> Process:
        """A process of a job, with its process group where the script makes one."""
        group = any(reached(self.script, site.place, MANY[1]) is not False for site in self.inits) or None
        return dataclasses.replace(MANY[1], initialized=group)

    def with_one(self, place: Place) -> bool:
        """Whether a single process surely comes there although it makes no process group."""
        groups = [reached(self.script, site.place, Process()) for site in self.inits]
        if not groups or any(group is not False for group in groups):
            return False
        return reached(self.script, place, Process(initialized=False)) is True


def mentions(node: ast.AST | None, names: set[str]) -> bool:
    """Whether an expression reads one of these names, or an attribute that is called so."""
    return node is not None and any(
        (isinstance(part, ast.Name) and part.id in names) or (isinstance(part, ast.Attribute) and part.attr in names)
        for part in ast.walk(node)
    )
