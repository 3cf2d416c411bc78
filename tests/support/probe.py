"""What a node prints when it is probed: the probe's own format around outputs that a test describes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from provision.facts import ALL_FACTS
from provision.model import CommandResult

__all__ = ["DEBIAN", "answer"]

DEBIAN = """ID=debian
VERSION_ID="12"
PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"
probe_uname=6.1.0-40-amd64 x86_64
probe_python3=/usr/bin/python3
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


def answer(outputs: Mapping[str, str] | None = None):
    """Return a function that answers the probe's script: fact -> output; facts that are not named print nothing."""
    said = {**_BARE, **(outputs or {})}

    def run(script: str, _stdin: bytes) -> CommandResult:
        token = re.search(r"provision-probe 1 ([0-9a-f]{32})", script)
        assert token, script[:200]
        lines = [f"provision-probe 1 {token[1]}"]
        for fact in ALL_FACTS:
            lines += [f"{token[1]} out {fact.name}", said.get(fact.name, ""), f"{token[1]} err {fact.name}", ""]
            lines += [f"{token[1]} end {fact.name} 0"]
        return CommandResult("\n".join(lines) + "\n", "", 0)

    return run
