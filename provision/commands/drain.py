"""What takes a node out of its scheduler and puts it back, and how answers are read; nothing is executed here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.errors import NodeError

__all__ = ["DRAINED_BEFORE", "KINDS", "Hook", "SchedulerState", "hook_of"]

KINDS: Mapping[str, str] = {"slurm": "Slurm", "kubernetes": "Kubernetes", "command": "the scheduler"}
"""Values of ``cluster_drain``, and what each is called."""
DRAINED_BEFORE = 100
"""With this code a ``cluster_drain_command`` says that others had drained the node before."""
_OURS = "provision:"
"""Begins the reason that Slurm keeps of what we drained."""
_EVICT_SECONDS = 60
"""The least that pods get to end in; kubectl takes 0 for no limit."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EVERY_NODE = "ALL"
_SLURM_STATE = re.compile(r"(?:^|\s)State=(\S+)")
_SLURM_OURS = re.compile(rf"(?:^|\s)Reason={_OURS}")
_OUT = frozenset({"DRAIN", "DRAINED", "DRAINING", "DOWN", "FAIL", "FAILING"})
"""To resume a node that is down or failing would put it back into service, too."""
_BUSY = frozenset({"ALLOCATED", "MIXED", "COMPLETING", "DRAINING", "FAILING"})


@dataclass(frozen=True)
class SchedulerState:
    """What a scheduler says of a node."""

    out: bool
    """It takes no new jobs."""
    others: bool = False
    """It was taken out by others than us, as far as the scheduler tells by whom."""
    jobs: str = ""
    """What it says of the jobs that run there; empty: none, or it does not say."""


@dataclass(frozen=True)
class Hook:
    """How one node is taken out of its scheduler and put back: command lines of the operator's machine."""

    kind: str
    name: str
    """What the scheduler calls the node."""
    seconds: int = 0
    """How long jobs may take to end once the node is drained."""
    drain_words: tuple[str, ...] = ()
    resume_words: tuple[str, ...] = ()

    def ask(self) -> list[str] | None:
        """Return what tells the node's state; None where only our own record does."""
        if self.kind == "slurm":
            return ["scontrol", "show", "node", self.name, "--oneliner"]
        if self.kind == "kubernetes":
            return ["kubectl", "get", "node", self.name, "-o", "jsonpath={.spec.unschedulable}"]
        return None

    def drain(self, reason: str) -> list[str]:
        """Return what keeps new jobs away; those that run are not disturbed."""
        if self.kind == "slurm":
            return ["scontrol", "update", f"NodeName={self.name}", "State=DRAIN", f"Reason={_OURS} {reason}"]
        if self.kind == "kubernetes":
            return ["kubectl", "cordon", self.name]
        return self._filled(self.drain_words)

    def clear(self) -> list[str] | None:
        """Return what takes the rest away once no job is left to wait for; None where nothing is."""
        if self.kind != "kubernetes":
            return None
        words = ["kubectl", "drain", self.name, "--ignore-daemonsets", "--delete-emptydir-data=false"]
        return [*words, f"--timeout={self.clear_seconds}s"]

    @property
    def clear_seconds(self) -> int:
        """How long that may take."""
        return max(self.seconds, _EVICT_SECONDS)

    def resume(self) -> list[str]:
        """Return what lets jobs come again."""
        if self.kind == "slurm":
            return ["scontrol", "update", f"NodeName={self.name}", "State=RESUME"]
        if self.kind == "kubernetes":
            return ["kubectl", "uncordon", self.name]
        return self._filled(self.resume_words)

    def read(self, answer: str) -> SchedulerState | None:
        """Return the state that `ask` told; None when that cannot be made out."""
        if self.kind == "slurm":
            return _slurm_state(answer)
        value = answer.strip().lower()
        return SchedulerState(value == "true") if value in {"", "true", "false"} else None

    def _filled(self, words: Sequence[str]) -> list[str]:
        return [word.replace("{node}", self.name) for word in words]


def _slurm_state(answer: str) -> SchedulerState | None:
    found = _SLURM_STATE.search(answer)
    if not found:
        return None
    words = set(re.findall(r"[A-Z_]+", found[1].upper()))
    out, busy = bool(words & _OUT), bool(words & _BUSY)
    return SchedulerState(out, out and not _SLURM_OURS.search(answer), found[1] if busy else "")


def hook_of(node: str, variables: Mapping[str, Any], recorded: Mapping[str, Any] | None = None) -> Hook | None:
    """Return the hook of a node; None where nobody is to be told.

    Args:
        node: its inventory name.
        variables: those of the inventory, with defaults.
        recorded: where and as what it was drained; there it is resumed, whatever the inventory says by now.

    Raises:
        NodeError: the inventory says too little, or a name that a scheduler might take for several nodes.
    """
    kind = str((recorded or {}).get("kind") or variables.get("cluster_drain") or "")
    if not kind:
        return None
    name = str((recorded or {}).get("name") or variables.get("cluster_drain_name") or node)
    if kind not in KINDS or not _NAME.fullmatch(name) or name.upper() == _EVERY_NODE:
        what = f"“{name}” is no name of one node" if kind in KINDS else f"cluster_drain: {kind} is not known"
        raise _wrong(node, what, "Correct cluster_drain or cluster_drain_name in the inventory.")
    drain, resume = (_words(variables.get(f"cluster_{verb}_command")) for verb in ("drain", "resume"))
    if kind == "command" and not (drain and resume):
        raise _wrong(
            node,
            "cluster_drain is `command`, and cluster_drain_command or cluster_resume_command says nothing",
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
