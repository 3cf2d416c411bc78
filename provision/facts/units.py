"""The states of systemd's units that several facts are about, asked for in one call."""

from __future__ import annotations

from provision.facts.base import RawOutput

__all__ = ["TIME_KEEPERS", "UNITS", "units"]

TIME_KEEPERS = ("chrony", "chronyd", "systemd-timesyncd", "ntp", "ntpd", "ntpsec", "ptp4l", "phc2sys")
"""Services that set the clock."""

UNITS = f"""
states=$(systemctl show -p Id -p LoadState -p ActiveState -p UnitFileState docker {" ".join(TIME_KEEPERS)}) || exit
printf '%s\\n' "$states"
! command -v docker >/dev/null || echo client=yes
others=${{states#*

}}
case $others in *ActiveState=active*) timedatectl show -p NTPSynchronized 2>/dev/null;; esac
exit 0
"""
"""Of timedatectl it is asked whether the clock is right only where a service sets it: the question starts another."""


def units(raw: RawOutput) -> dict[str, dict[str, str]]:
    """Return the unit's name without ``.service`` -> its properties, as systemd gives them."""
    found: dict[str, dict[str, str]] = {}
    for block in raw.stdout.split("\n\n"):
        pairs = RawOutput(block, 0).pairs()
        found[pairs.get("Id", "").removesuffix(".service")] = pairs
    return found
