"""Quality of service of network cards: trust and PFC by the program mlnx_qos, ECN of priorities in sysfs."""

import os
import re
import shlex

from ansible.module_utils import platform_links as links

TRUST, PFC, ECN = "trust", "pfc", ("roce_np", "roce_rp")
PRIORITIES = 8
_TRUST_LINE = re.compile(r"^Priority trust state: (pcp|dscp)\s*$", re.MULTILINE)
_PFC_LINES = re.compile(
    r"^PFC configuration:\s*\n\s*priority(?:\s+[0-7]){8}\s*\n\s*enabled((?:\s+[01]){8})\s*$", re.MULTILINE
)


def parse(text):
    """Return the values of trust and PFC in the output of mlnx_qos."""
    trust, pfc = _TRUST_LINE.search(text), _PFC_LINES.search(text)
    values = {TRUST: trust.group(1)} if trust else {}
    return {**values, PFC: ",".join(pfc.group(1).split())} if pfc else values


def read(module, interface, setting):
    """Return a value, None if it is unknown: the program is missing, or the card does not have the setting."""
    if setting in ECN:
        values = [links.words(path) for path in ecn_paths(interface, setting)]
        return ",".join(values) if all(value in ("0", "1") for value in values) else None
    if not module.get_bin_path("mlnx_qos"):
        return None
    code, out, _ = module.run_command(["mlnx_qos", "-i", interface])
    return parse(out).get(setting) if code == 0 else None


def ecn_paths(interface, setting):
    """Return the file of each priority: notification point (`roce_np`) or reaction point (`roce_rp`)."""
    folder = os.path.join(links.NET, interface, "ecn", setting, "enable")
    return [os.path.join(folder, str(priority)) for priority in range(PRIORITIES)]


def command(interface, setting, value):
    """Return the command that sets a value."""
    if setting not in ECN:
        return ["mlnx_qos", "-i", interface, f"--{setting}={value}"]
    paths = ecn_paths(interface, setting)
    lines = [f"echo {number} >{shlex.quote(path)}" for number, path in zip(value.split(","), paths)]
    return ["sh", "-ec", "\n".join(lines)]


def write(module, interface, setting, value):
    """Set a value; return an error, empty if the card has the value afterwards."""
    code, out, err = module.run_command(command(interface, setting, value))
    if code != 0:
        return f"{interface}: {setting} {value} is refused ({(err or out).strip()[-200:]})"
    now = read(module, interface, setting)
    return "" if now == value else f"{interface}: {setting} is {now} after it was set to {value}"
