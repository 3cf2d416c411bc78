"""The states of the systemd units that several facts use, queried in one call."""

from __future__ import annotations

from provision.facts.base import RawOutput

UNITS = "@units"


def units(raw: RawOutput) -> dict[str, dict[str, str]]:
    """Return unit name without ``.service`` -> its properties."""
    states: dict[str, dict[str, str]] = {}
    for block in raw.stdout.split("\n\n"):
        pairs = RawOutput(block, 0).pairs()
        states[pairs.get("Id", "").removesuffix(".service")] = pairs
    return states
