"""Files that mark what is SIMULATED on nodes of the lab."""

from __future__ import annotations

_SIMULATED = "/usr/share/provision/simulated"


def mark(thing: str, stands_for: str) -> dict[str, str]:
    """Return the file that marks `thing` as SIMULATED for `verify`: path -> its line."""
    return {f"{_SIMULATED}/{thing}": f"{stands_for}\n"}
