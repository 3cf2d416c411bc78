"""The results of one command on many nodes, grouped by identical output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.errors import ProvisionError
from provision.model import CommandResult
from provision.report.node_names import in_short

__all__ = ["LinePrefixer", "command_document", "command_text", "failed_nodes"]


def failed_nodes(results: Mapping[str, CommandResult | ProvisionError]) -> list[str]:
    """Return the nodes on which the command failed or could not be run."""
    return [name for name, result in results.items() if isinstance(result, ProvisionError) or not result.ok]


def command_document(results: Mapping[str, CommandResult | ProvisionError]) -> dict[str, Any]:
    """Return the JSON document: ``{"ok", "nodes": [{"name", "exit_code", "stdout", "stderr", "error"}]}``."""
    return {"ok": not failed_nodes(results), "nodes": [_node(name, result) for name, result in results.items()]}


def _node(name: str, result: CommandResult | ProvisionError) -> dict[str, Any]:
    if isinstance(result, ProvisionError):
        error = {"message": result.message, "remedy": result.remedy}
        return {"name": name, "exit_code": None, "stdout": "", "stderr": "", "error": error}
    return {
        "name": name,
        "exit_code": result.exit_code,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "error": None,
    }


def command_text(results: Mapping[str, CommandResult | ProvisionError]) -> str:
    """Return a block for each distinct result, headed by its nodes; nodes that failed come last.

    One line of output stands beside the nodes, several lines below them.
    """
    groups: dict[tuple[int, int, str], list[str]] = {}
    for name, result in results.items():
        groups.setdefault(_outcome(result), []).append(name)
    return "\n".join(_block(names, code, text) for (_, code, text), names in sorted(groups.items(), key=_failed_last))


def _outcome(result: CommandResult | ProvisionError) -> tuple[int, int, str]:
    """Return what makes two results the same: whether the command ran, its exit code and its output."""
    if isinstance(result, ProvisionError):
        remedy = f"\n{result.remedy}" if result.remedy else ""
        return 2, 0, f"{result.message}{remedy}"
    return (0 if result.ok else 1), result.exit_code, (result.stdout + result.stderr).rstrip("\n")


def _failed_last(group: tuple[tuple[int, int, str], list[str]]) -> int:
    return group[0][0]


def _block(names: list[str], code: int, text: str) -> str:
    head = in_short(names) + (f" (exit code {code})" if code else "")
    if not text:
        return f"{head}: no output"
    return f"{head}: {text}" if "\n" not in text else "\n".join([f"{head}:", *(f"  {x}" for x in text.splitlines())])


class LinePrefixer:
    """Writes whole lines of one node's output, each behind the node's name."""

    def __init__(self, name: str, write: Any) -> None:
        self._name, self._write, self._rest = name, write, ""

    def write(self, text: str) -> None:
        """Write the lines that are complete."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._write(f"{self._name}: {line}")

    def flush(self) -> None:
        """Do nothing: the end of a line is waited for."""

    def finish(self) -> None:
        """Write a last line without an end of line."""
        if self._rest:
            self._write(f"{self._name}: {self._rest}")
            self._rest = ""
