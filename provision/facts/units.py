"""The states of systemd's units that several facts are about, asked for in one call."""

from __future__ import annotations

from provision.facts.base import RawOutput

__all__ = ["TIME_KEEPERS", "UNITS", "UNIT_PLACES", "units"]

TIME_KEEPERS = ("chrony", "chronyd", "systemd-timesyncd", "ntp", "ntpd", "ntpsec", "ptp4l", "phc2sys")
"""Services that set the clock."""

UNIT_PLACES = (
    "/etc/systemd/system", "/run/systemd/system", "/run/systemd/transient", "/run/systemd/generator",
    "/run/systemd/generator.late", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system",
)  # fmt: skip
"""Where systemd finds units. For each name of which it knows nothing it goes through them all at every question."""

UNITS = f"""
set -- docker
for unit in {" ".join(TIME_KEEPERS)}; do
  for folder in {" ".join(UNIT_PLACES)}; do
    [ ! -e "$folder/$unit.service" ] || {{ set -- "$@" "$unit"; break; }}
  done
done
states=$(systemctl show -p Id -p LoadState -p ActiveState -p UnitFileState "$@") || exit
printf '%s\\n' "$states"
! command -v docker >/dev/null || echo client=yes
others=; [ $# -eq 1 ] || others=${{states#*

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
