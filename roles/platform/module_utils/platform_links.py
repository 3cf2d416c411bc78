"""MTU of network interfaces, governors of CPUs, and units of other software: their state, and how a reset restores it."""

import glob
import os

from ansible.module_utils.platform_origin import load_json, record_files

NET = "/sys/class/net"
GOVERNORS = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"


def words(path):
    """Return the words of a small file joined by single spaces, None if it cannot be read."""
    try:
        with open(path, encoding="utf-8") as stream:
            return " ".join(stream.read().split())
    except (OSError, ValueError):
        return None


def mtu(interface):
    """Return the MTU of an interface, None if there is no such interface."""
    text = words(os.path.join(NET, interface, "mtu"))
    return int(text) if text is not None and text.isdigit() else None


def mtu_command(interface, value):
    """Return the command that sets an MTU."""
    return ["ip", "link", "set", "dev", interface, "mtu", str(value)]


def governors():
    """Return the governor of each CPU by the path of its file."""
    values = {path: words(path) for path in sorted(glob.glob(GOVERNORS))}
    return {path: value for path, value in values.items() if value}


def write(path, text):
    """Write a value of the kernel."""
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)


def unit_state(module, name):
    """Return load state, active state and unit file state of a unit."""
    keys = ["LoadState", "ActiveState", "UnitFileState"]
    out = module.run_command(["systemctl", "show", name, "--property=" + ",".join(keys)])[1]
    state = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
    return {key: state.get(key, "") for key in keys}


def unit_commands(now, *, is_active, is_enabled):
    """Return the commands that start or stop a unit and enable or disable it, without its name."""
    commands = []
    if (now["UnitFileState"] == "enabled") != is_enabled:
        commands.append(["systemctl", "--no-reload", "enable" if is_enabled else "disable"])
    if (now["ActiveState"] in ("active", "activating")) != is_active:
        commands.append(["systemctl", "start" if is_active else "stop"])
    return commands


def is_own(doc, value):
    """Return whether a value is one that the role has set."""
    return value in doc["managed"].get("values", [])


def forget(kind, name):
    """Remove the record of an object whose original state is restored."""
    for path in record_files(kind, name):
        if load_json(path):
            os.unlink(path)
