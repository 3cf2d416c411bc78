"""Results of test runs by system and role, in docs/data/systems.json.

`pytest --record-systems` writes the file (tests/support/recorded_systems.py), and `tools.systems_page` makes a table
of it. Each result names the commit that was tested.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs/data/systems.json"
NODES = ("virtual machine", "container", "SIMULATED")
"""The nodes of a run, the best evidence first: the system with its own kernel, its own packages in a container, and the
files of another system in a container."""


@dataclass(frozen=True, order=True)
class Result:
    """A role whose tests succeeded on a system."""

    system: str
    """The name of the file of variables: ``debian_12``."""
    nodes: str
    """One of `NODES`."""
    role: str
    commit: str
    """The full hash of the tested commit."""
    date: str
    """The day of the run, as ``2026-11-29`` (UTC)."""


def read(file: Path | None = None) -> list[Result]:
    """Return the results of a file, of `FILE` unless another is given.

    Raises:
        ValueError: an entry does not have exactly the keys of a result.
    """
    keys = {field.name for field in fields(Result)}
    path = file or FILE
    rows = json.loads(path.read_text(encoding="utf-8"))
    if any(set(row) != keys for row in rows):
        raise ValueError(f"{path}: each entry has the keys {', '.join(sorted(keys))}")
    return [Result(**row) for row in rows]


def write(new: Iterable[Result], file: Path | None = None) -> None:
    """Add results, one a line; each replaces an older one of the same system, nodes and role."""
    results = {(one.system, one.nodes, one.role): one for one in [*read(file), *new]}
    lines = ",\n".join(f"  {json.dumps(asdict(one))}" for one in sorted(results.values()))
    (file or FILE).write_text(f"[\n{lines}\n]\n" if lines else "[]\n", encoding="utf-8")


def best(results: Iterable[Result], system: str, role: str) -> Result | None:
    """Return the result with the best evidence for a role on a system, None without one."""
    matching = [one for one in results if (one.system, one.role) == (system, role)]
    return min(matching, key=lambda one: NODES.index(one.nodes), default=None)
