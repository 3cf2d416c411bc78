"""The probe's output on a node: its format around outputs that a test describes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from provision.facts import ALL_FACTS
from provision.model import CommandResult
from provision.node_archive import NO_PYTHON

__all__ = ["DEBIAN", "answer", "system_answer"]

DEBIAN = """ID=debian
VERSION_ID="12"
PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"
probe_uname=6.1.0-40-amd64 x86_64
probe_python3=/usr/bin/python3
probe_package_manager=apt-get
"""
_BARE = {
    "system": DEBIAN,
    "boot": "uptime=1000.0\nboot_id=11111111-2222-3333-4444-555555555555\n",
    "managed": json.dumps({"sealed": {}, "observed": {}, "jobs": [], "hung": []}),
    "receipts": "",
    "packages": "ii |base-files|12.4+deb12u12\n",
    "time_sync": "Id=docker.service\nLoadState=not-found\nActiveState=inactive\nUnitFileState=\n",
}
"""A node on which nothing was ever done."""


def answer(outputs: Mapping[str, str] | None = None) -> Callable[[str, bytes], CommandResult]:
    """Return a function that answers the program ``probe``; facts without an output in `outputs` print nothing."""
    texts = {**_BARE, **(outputs or {})}

    def run(_script: str, stdin: bytes) -> CommandResult:
        if "probe_python3=\n" in texts["system"]:
            return CommandResult("", "there is no python3 on this node\n", NO_PYTHON)
        return _printed(json.loads(stdin)["token"], texts)

    return run


def system_answer(system: str) -> Callable[[str, bytes], CommandResult]:
    """Return a function that answers the script for nodes without python3."""

    def run(script: str, _stdin: bytes) -> CommandResult:
        token = re.search(r"provision-probe 1 ([0-9a-f]{32})", script)
        assert token, script[:200]
        return _printed(token[1], {"system": system})

    return run


def _printed(token: str, texts: Mapping[str, str]) -> CommandResult:
    lines = [f"provision-probe 1 {token}"]
    for fact in ALL_FACTS:
        lines += [f"{token} out {fact.name}", texts.get(fact.name, ""), f"{token} err {fact.name}", ""]
        lines += [f"{token} end {fact.name} 0"]
    return CommandResult("\n".join(lines) + "\n", "", 0)
