"""The results of one command on many nodes, grouped by identical output."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

from provision.errors import NotStarted, ProvisionError
from provision.model import CommandResult
from provision.report.grouping import Group, grouped, outline
from provision.report.node_names import in_short

if TYPE_CHECKING:
    from provision.report.json_documents.probes import Command, CommandError, NodeCommand

_OK, _FAILED, _ERROR, _NOT_STARTED = range(4)


def failed_nodes(results: Mapping[str, CommandResult | ProvisionError]) -> list[str]:
    """Return the nodes on which the command failed or could not be run."""
    return [name for name, result in results.items() if isinstance(result, ProvisionError) or not result.ok]


def command_document(results: Mapping[str, CommandResult | ProvisionError]) -> Command:
    """Return the document: ``{"ok", "nodes": [{"name", "started", "exit_code", "stdout", "stderr", "error"}]}``."""
    return {"ok": not failed_nodes(results), "nodes": [_node(name, result) for name, result in results.items()]}


def _node(name: str, result: CommandResult | ProvisionError) -> NodeCommand:
    if isinstance(result, ProvisionError):
        error: CommandError = {"message": result.message, "remedy": result.remedy}
        started = not isinstance(result, NotStarted)
        return {"name": name, "started": started, "exit_code": None, "stdout": "", "stderr": "", "error": error}
    return {
        "name": name,
        "started": True,
        "exit_code": result.exit_code,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "error": None,
    }


def command_summary(results: Mapping[str, CommandResult | ProvisionError], done: str = "run") -> str:
    """Return on how many nodes it failed, and on how many it was never started; empty where it succeeded everywhere.

    `done` is the participle for what was to be done: ``run``, ``copied``.
    """
    failed = failed_nodes(results)
    not_started = [name for name in failed if isinstance(results[name], NotStarted)]
    parts = []
    if len(failed) > len(not_started):
        parts.append(f"failed on {len(failed) - len(not_started)} of {len(results)} nodes")
    if not_started:
        parts.append(f"not {done} on {len(not_started)} of {len(results)} nodes (no login)")
    return "; ".join(parts)


def command_text(results: Mapping[str, CommandResult | ProvisionError]) -> str:
    """Return a block for each distinct result, headed by its nodes; failed nodes come last.

    A single line of output follows the node names, several lines are below them.
    """
    groups = grouped(((name, _outcome(result)) for name, result in results.items()), lambda _, own: own, _outline)
    return "\n".join(_block(group) for group in sorted(groups, key=lambda group: group.value[0]))


def _outcome(result: CommandResult | ProvisionError) -> tuple[int, int, str]:
    """Return the key for equal results: whether the command ran, its exit code and its output."""
    if isinstance(result, ProvisionError):
        remedy = f"\n{result.remedy}" if result.remedy else ""
        return (_NOT_STARTED if isinstance(result, NotStarted) else _ERROR), 0, f"{result.message}{remedy}"
    return (_OK if result.ok else _FAILED), result.exit_code, (result.stdout + result.stderr).rstrip("\n")


def _outline(name: str, outcome: tuple[int, int, str]) -> Hashable:
    """Return the grouping key of similar connection errors; output of commands is never merged."""
    return (*outcome[:2], outline(outcome[2], name) if outcome[0] >= _ERROR else outcome[2])


def _block(group: Group[tuple[int, int, str]]) -> str:
    kind, code, text = group.value
    text += f"\n{group.note}" if group.varied else ""
    head = in_short(group.names) + (f" (exit code {code})" if code else "") + " (not started)" * (kind == _NOT_STARTED)
    if not text:
        return f"{head}: no output"
    return f"{head}: {text}" if "\n" not in text else "\n".join([f"{head}:", *(f"  {x}" for x in text.splitlines())])


class LinePrefixer:
    """Writes complete lines of one node's output, prefixed with the node's name."""

    def __init__(self, name: str, write: Any) -> None:
        self._name, self._write, self._rest = name, write, ""

    def write(self, text: str) -> None:
        """Write the complete lines."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._write(f"{self._name}: {line}")

    def flush(self) -> None:
        """Do nothing, because incomplete lines are held back."""

    def finish(self) -> None:
        """Write a last line without a line end."""
        if self._rest:
            self._write(f"{self._name}: {self._rest}")
            self._rest = ""
