"""The words of systemd-run for an instance that is a process of its node; the job supervisor and a dry run use them.

Python 3.6 or newer, because it runs on the nodes.
"""

from typing import Any, Dict, List

SETTINGS = (
    "KillMode=control-group",  # ends everything that it has started, daemons too
    "TimeoutStopSec=15",
    "TasksMax=infinity",
    "OOMScoreAdjust=-500",  # of the shim, which reports the end; the program itself has 0
    "OOMPolicy=continue",  # a program may continue without a child that was killed for its memory
)
HOME = "~"
"""Prefix of a path in the home of the instance's account, which its node knows."""


def unit_words(unit: str, config: Dict[str, Any]) -> List[str]:
    """Return the words up to ``--``; the command follows it.

    They contain no mounts: the shim creates them, because systemd would follow links of the account.
    """
    words = ["systemd-run", "--quiet", "--collect", "--unit", unit]
    settings = list(SETTINGS)
    for name, value in sorted(config["limits"].items()):
        settings.append("Limit{}={}".format(name.upper(), ":".join(map(limit, str(value).split(":")))))
    return words + ["--property=" + setting for setting in settings]


def limit(value: str) -> str:
    """Return a limit in systemd's words."""
    return "infinity" if value in ("-1", "unlimited") else value
