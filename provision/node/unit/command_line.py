"""The words of systemd-run for an instance that is a process of its node; by the keeper there, and by a dry run here.

Python 3.6 or newer, as it runs on the nodes.
"""

from typing import Any, Dict, List

SETTINGS = (
    "KillMode=control-group",  # whatever it has started ends with it, be it a daemon
    "TimeoutStopSec=15",
    "TasksMax=infinity",
    "OOMScoreAdjust=-500",  # of the shim, by which the end of all else is told; the program itself has 0
    "OOMPolicy=continue",  # a program may go on without a child that was killed for its memory
)
HOME = "~"
"""Begins a path that is in the home of the instance's account, which its node knows."""


def unit_words(unit: str, told: Dict[str, Any]) -> List[str]:
    """Return the words up to ``--``; behind it comes what is started.

    They contain no mounts: the shim makes them, because systemd would follow links of the account.

    Args:
        unit: the unit's name.
        told: see "unit" in README.md of `provision/jobs`.
    """
    words = ["systemd-run", "--quiet", "--collect", "--unit", unit]
    settings = list(SETTINGS)
    for name, value in sorted(told["limits"].items()):
        settings.append("Limit{}={}".format(name.upper(), ":".join(map(limit, str(value).split(":")))))
    return words + ["--property=" + setting for setting in settings]


def limit(value: str) -> str:
    """Return a limit in systemd's words."""
    return "infinity" if value in ("-1", "unlimited") else value
