"""Commands that drain a node in its scheduler and resume it, and parsers of their output. Nothing is executed here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.errors import NodeError

KINDS: Mapping[str, str] = {"slurm": "Slurm", "kubernetes": "Kubernetes", "command": "the scheduler"}
"""Values of ``cluster_drain`` and their display names."""
DRAINED_BEFORE = 100
"""Exit code of a ``cluster_drain_command`` for a node that was already drained."""
_OURS = "provision:"
"""Prefix of the reason that marks a node in Slurm as drained by this program."""
_EVICT_SECONDS = 60
"""Minimum grace period of pods; kubectl uses 0 for no limit."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EVERY_NODE = "ALL"
_SLURM_STATE = re.compile(r"(?:^|\s)State=(\S+)")
_SLURM_OURS = re.compile(rf"(?:^|\s)Reason={_OURS}")
_OUT = frozenset({"DRAIN", "DRAINED", "DRAINING", "DOWN", "FAIL", "FAILING"})
"""States of nodes that are down or failing; a resume would put them back into service."""
_BUSY = frozenset({"ALLOCATED", "MIXED", "COMPLETING", "DRAINING", "FAILING"})


@dataclass(frozen=True)
class SchedulerState:
    """State of a node in its scheduler."""

    out: bool
    """It accepts no new jobs."""
    others: bool = False
    """It was drained by somebody else, as far as the scheduler reports it. Only Slurm does: Kubernetes stores neither
    the reason nor the owner of a cordon."""
    jobs: str = ""
    """Running jobs that the scheduler reports; empty if there are none or it does not report them."""


@dataclass(frozen=True)
class Hook:
    """Command lines on the controller that drain and resume one node."""

    kind: str
    name: str
    """Name of the node in the scheduler."""
    seconds: int = 0
    """Seconds within which jobs must end after the drain."""
    drain_words: tuple[str, ...] = ()
    resume_words: tuple[str, ...] = ()

    def ask(self) -> list[str] | None:
        """Return the command that queries the node's state; None if only our own record contains it."""
        if self.kind == "slurm":
            return ["scontrol", "show", "node", self.name, "--oneliner"]
        if self.kind == "kubernetes":
            return ["kubectl", "get", "node", self.name, "-o", "jsonpath={.spec.unschedulable}"]
        return None

    def drain(self, reason: str) -> list[str]:
        """Return the command that excludes the node from new jobs; running jobs continue."""
        if self.kind == "slurm":
            return ["scontrol", "update", f"NodeName={self.name}", "State=DRAIN", f"Reason={_OURS} {reason}"]
        if self.kind == "kubernetes":
            return ["kubectl", "cordon", self.name]
        return self._filled(self.drain_words)

    def clear(self) -> list[str] | None:
        """Return the command that evicts remaining pods when no job runs; None if nothing has to be evicted."""
        if self.kind != "kubernetes":
            return None
        words = ["kubectl", "drain", self.name, "--ignore-daemonsets", "--delete-emptydir-data=false"]
        return [*words, f"--timeout={self.clear_seconds}s"]

    @property
    def clear_seconds(self) -> int:
        """Return the time limit of the eviction."""
        return max(self.seconds, _EVICT_SECONDS)

    def resume(self) -> list[str]:
        """Return the command that allows jobs again."""
        if self.kind == "slurm":
            return ["scontrol", "update", f"NodeName={self.name}", "State=RESUME"]
        if self.kind == "kubernetes":
            return ["kubectl", "uncordon", self.name]
        return self._filled(self.resume_words)

    def read(self, answer: str) -> SchedulerState | None:
        """Return the state in the output of `ask`; None if it cannot be parsed."""
        if self.kind == "slurm":
            return _slurm_state(answer)
        value = answer.strip().lower()
        return SchedulerState(value == "true") if value in {"", "true", "false"} else None

    def _filled(self, words: Sequence[str]) -> list[str]:
        return [word.replace("{node}", self.name) for word in words]


def _slurm_state(answer: str) -> SchedulerState | None:
    match = _SLURM_STATE.search(answer)
    if not match:
        return None
    words = set(re.findall(r"[A-Z_]+", match[1].upper()))
    out, busy = bool(words & _OUT), bool(words & _BUSY)
    return SchedulerState(out, out and not _SLURM_OURS.search(answer), match[1] if busy else "")


def hook_of(node: str, variables: Mapping[str, Any], recorded: Mapping[str, Any] | None = None) -> Hook | None:
    """Return the drain hook of a node; None without a scheduler.

    Args:
        node: Its inventory name.
        variables: Variables of the inventory with defaults.
        recorded: Scheduler and name under which the node was drained. They are used to resume it, even if the inventory
            has changed.

    Raises:
        NodeError: The inventory is incomplete, or the name could match several nodes in the scheduler.
    """
    kind = str((recorded or {}).get("kind") or variables.get("cluster_drain") or "")
    if not kind:
        return None
    name = str((recorded or {}).get("name") or variables.get("cluster_drain_name") or node)
    if kind not in KINDS or not _NAME.fullmatch(name) or name.upper() == _EVERY_NODE:
        what = f"“{name}” is not the name of one node" if kind in KINDS else f"cluster_drain: unknown scheduler {kind}"
        raise _wrong(node, what, "Correct cluster_drain or cluster_drain_name in the inventory.")
    drain, resume = (_words(variables.get(f"cluster_{verb}_command")) for verb in ("drain", "resume"))
    if kind == "command" and not (drain and resume):
        raise _wrong(
            node,
            "cluster_drain is `command`, but cluster_drain_command or cluster_resume_command is empty",
            "Set both, as lists of words: [/usr/local/bin/drain, '{node}']",
        )
    return Hook(kind, name, _whole(variables.get("cluster_drain_seconds")), drain, resume)


def _wrong(node: str, text: str, remedy: str) -> NodeError:
    return NodeError(f"the node cannot be drained: {text}", node=node, remedy=remedy)


def _words(value: Any) -> tuple[str, ...]:
    return tuple(str(word) for word in value) if isinstance(value, list | tuple) else ()


def _whole(value: Any) -> int:
    text = str(value or 0).strip()
    return int(text) if text.isdecimal() else 0
