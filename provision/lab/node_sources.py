"""The package source of lab nodes whose system's packages the lab serves itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from provision.errors import NodeError
from provision.lab.access import run_script
from provision.lab.base import LabNode
from provision.threads import outcomes

_WRITE = """\
/usr/libexec/lab-python -Ic 'import json, os, sys
for path, text in json.load(sys.stdin).items():
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(path + ".new", path)'
"""


def write_sources(folder: Path, nodes: Sequence[tuple[LabNode, Mapping[str, str]]]) -> None:
    """Write files with package sources and their keys on nodes: each node with path -> content."""

    def write(entry: tuple[LabNode, Mapping[str, str]]) -> None:
        node, files = entry
        done = run_script(folder, node, _WRITE, stdin=json.dumps(dict(files)).encode())
        if done.returncode:
            raise NodeError("writing the package sources failed", node=node.name, output=done.stderr)

    for outcome in outcomes(write, [entry for entry in nodes if entry[1]], limit=8):
        if isinstance(outcome, Exception):
            raise outcome
