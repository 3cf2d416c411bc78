"""Nodes that did not answer are remembered for a short while, in a file that is believed only when it is whole."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from provision import cache_files
from provision.connectors import absent
from provision.connectors.absent import REMEMBERED_SECONDS, AbsentNodes
from provision.model import Connection, Node

GPU3 = Node("gpu3", Connection("10.0.0.3"))
GPU4 = Node("gpu4", Connection("10.0.0.4", port=2222))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_unreachable_nodes_are_remembered_across_commands(tmp_path: Path) -> None:
    """By inventory; until the node answers."""
    AbsentNodes(tmp_path / "prod").remember([(GPU3, "no route\nto host")], ["gpu4"])
    later = AbsentNodes(tmp_path / "prod")

    assert {name: entry.reason for name, entry in later.among([GPU3, GPU4]).items()} == {"gpu3": "no route to host"}
    assert AbsentNodes(tmp_path / "other").among([GPU3]) == {}
    later.remember([], ["gpu3"])
    assert AbsentNodes(tmp_path / "prod").among([GPU3]) == {}


def test_an_unreachable_node_is_forgotten_after_a_minute_or_with_another_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A corrected inventory is tried at once."""
    AbsentNodes(tmp_path).remember([(GPU3, "no route")], [])
    moved = Node("gpu3", Connection("10.0.0.33"))

    assert AbsentNodes(tmp_path).among([moved]) == {}
    now = time.time() + REMEMBERED_SECONDS + 1
    monkeypatch.setattr(absent.time, "time", lambda: now)
    assert AbsentNodes(tmp_path).among([GPU3]) == {}


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"nodes": [{"name": "gpu3"}]},
        {"nodes": [{"name": "gpu3", "address": "10.0.0.3:", "time": "now"}]},
        {"nodes": [{"name": "gpu3", "address": "10.0.0.3:", "time": 1e300}]},
        {"nodes": [], "more": 1},
    ],
)
def test_an_invalid_file_is_ignored(tmp_path: Path, document: object) -> None:
    """It is only a memory of what can be found out again."""
    memory = AbsentNodes(tmp_path)
    memory.remember([(GPU3, "no route")], [])
    (key,) = [path.stem for path in tmp_path.glob("provision/*/*.json")]
    cache_files.write("absent", key, json.dumps(document).encode())

    assert AbsentNodes(tmp_path).among([GPU3]) == {}


def test_the_number_of_entries_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest entries stay."""
    monkeypatch.setattr(absent, "_MOST_NODES", 3)
    nodes = [Node(f"n{number}", Connection(f"10.0.1.{number}")) for number in range(6)]
    memory = AbsentNodes(tmp_path)
    for node in nodes:
        memory.remember([(node, "x" * 10_000)], [])

    recent = AbsentNodes(tmp_path).among(nodes)
    assert sorted(recent) == ["n3", "n4", "n5"]
    assert all(len(entry.reason) <= 500 for entry in recent.values())
