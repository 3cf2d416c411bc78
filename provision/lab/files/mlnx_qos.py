#!/usr/bin/python3
"""SIMULATED mlnx_qos: trust and PFC of an interface, for lab nodes. A reboot resets the values, as on a card."""

import json
import os
import sys

FOLDER = "/run/provision-lab/mlnx_qos"
PRIORITIES = range(8)
TRUSTS = ("pcp", "dscp")


def main(arguments: "list[str]") -> int:
    """Run one call."""
    sys.stderr.write("SIMULATED: this mlnx_qos belongs to a provision lab, no card has these values\n")
    options = _options(arguments)
    name = options.pop("interface", "")
    if not name or "/" in name or not os.path.isdir("/sys/class/net/" + name):
        sys.stderr.write("interface '{}' does not exist\n".format(name))
        return 1
    path = os.path.join(FOLDER, name + ".json")
    values = _values(path)
    values.update(options)
    if values["trust"] not in TRUSTS or not _is_valid(values["pfc"].split(",")):
        sys.stderr.write("invalid value\n")
        return 1
    if options:
        os.makedirs(FOLDER, exist_ok=True)
        with open(path, "w") as stream:
            json.dump(values, stream)
    sys.stdout.write(_text(values))
    return 0


def _options(arguments: "list[str]") -> "dict[str, str]":
    """Return the values of the options, which stand after = or in the next word."""
    names = {"-i": "interface", "--interface": "interface", "--trust": "trust", "-f": "pfc", "--pfc": "pfc"}
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith("--") else [word])]
    return {names[key]: value for key, value in zip(words[::2], words[1::2]) if key in names}


def _values(path: str) -> "dict[str, str]":
    try:
        with open(path) as stream:
            return dict(json.load(stream))
    except (OSError, ValueError):
        return {"trust": "pcp", "pfc": ",".join("0" for _ in PRIORITIES)}


def _is_valid(flags: "list[str]") -> bool:
    return len(flags) == len(PRIORITIES) and set(flags) <= {"0", "1"}


def _text(values: "dict[str, str]") -> str:
    """Return the configuration in the format of the real tool."""
    lines = ["DCBX mode: OS controlled", "Priority trust state: {}".format(values["trust"])]
    if values["trust"] == "dscp":
        lines.append("dscp2prio mapping:")
        for priority in PRIORITIES:
            numbers = ",".join("{:02}".format(8 * priority + number) for number in range(7, -1, -1))
            lines.append("\tprio:{} dscp:{},".format(priority, numbers))
    lines += ["Receive buffer size (bytes): 262016,0,0,0,0,0,0,0,", "Cable len: 7", "PFC configuration:"]
    rows = [("priority", PRIORITIES), ("enabled", values["pfc"].split(",")), ("buffer", "0" * len(PRIORITIES))]
    lines += ["\t{:<12}{}".format(word, "".join("{:<4}".format(number) for number in row)) for word, row in rows]
    for number, priority in enumerate((1, 0, *PRIORITIES[2:])):
        lines += ["tc: {} ratelimit: unlimited, tsa: vendor".format(number), "\t priority:  {}".format(priority)]
    return "".join(line + "\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
