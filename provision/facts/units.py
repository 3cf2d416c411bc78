"""The states of the systemd units that several facts use, queried in one call."""

from __future__ import annotations

from provision.facts.base import RawOutput
from provision.node.probe.units import TIME_SERVICES, UNIT_SEARCH_PATH

UNITS = f"""
set -- docker
for unit in {" ".join(TIME_SERVICES)}; do
  for folder in {" ".join(UNIT_SEARCH_PATH)}; do
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
"""timedatectl is queried only if a service sets the clock, because the query starts a service."""


def units(raw: RawOutput) -> dict[str, dict[str, str]]:
    """Return unit name without ``.service`` -> its properties."""
    states: dict[str, dict[str, str]] = {}
    for block in raw.stdout.split("\n\n"):
        pairs = RawOutput(block, 0).pairs()
        states[pairs.get("Id", "").removesuffix(".service")] = pairs
    return states
