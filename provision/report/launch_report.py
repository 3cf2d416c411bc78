"""The source of each part of a job's command line, as JSON and as a table."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from provision.model import Setting
from provision.report import layout

if TYPE_CHECKING:
    from provision.report.json_documents.launches import Launch

_NAME, _SOURCE = 26, 14


def as_document(argv: Sequence[str], settings: Sequence[Setting], node_command: Sequence[str] = ()) -> Launch:
    """Return the document of ``run --explain --json``; keys are an interface and only ever added."""
    return {
        "command": list(argv),
        "node_command": list(node_command) or None,
        "settings": [
            {
                "flag": setting.flag,
                "name": setting.name or None,
                "value": setting.value,
                "nodes": dict(setting.nodes),
                "from": setting.source,
                "reason": setting.reason,
            }
            for setting in settings
        ],
    }


def as_text(argv: Sequence[str], settings: Sequence[Setting], node_command: Sequence[str] = ()) -> str:
    """Return the command line, and a table of its settings at most 80 columns wide.

    `node_command` is what is started on each node, if the command line does not contain it.
    """
    name = min(max([len(setting.title) for setting in settings] + [7]), _NAME)
    source = min(max([len(setting.source) for setting in settings] + [4]), _SOURCE)
    each = [f"starts on each node: {shlex.join(node_command)}"] if node_command else []
    lines = [shlex.join(argv), *each, "", f"{'setting':<{name}}  {'from':<{source}}  value and why"]
    for setting in settings:
        lines += _row(setting, name, source)
    return "\n".join(lines)


def _row(setting: Setting, name: int, source: int) -> list[str]:
    """Return the lines of a setting; a name or source longer than its column gets a line of its own."""
    left = f"{setting.title:<{name}}  {setting.source:<{source}}  "
    before = []
    if len(left) > name + source + 4:
        before, left = [f"{setting.title}  {setting.source}"], " " * (name + source + 4)
    text = "; ".join(part for part in (*_values(setting), setting.reason) if part)
    indent = " " * (name + source + 4)
    return [
        *before,
        *(textwrap.wrap(text, layout.width(), initial_indent=left, subsequent_indent=indent) or [left.rstrip()]),
    ]


def _values(setting: Setting) -> list[str]:
    if setting.nodes:
        return [f"{node}: {value}" for node, value in setting.nodes.items()]
    return [] if setting.value is None else [setting.value]
