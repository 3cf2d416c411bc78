#!/usr/bin/python
"""Ansible module: set the default RoCE mode and type of service of the RDMA devices on the data interfaces."""

DOCUMENTATION = r"""
module: fabric_host_roce
short_description: Set RoCE mode and type of service
description:
  - Sets the defaults of the RDMA connection manager for the ports with a GID of a data interface. They apply to new connections.
  - Sets them in the running node; a script of the role sets them at boot, with what I(boot) returns.
  - Restores what is not given any more. Records the original values for a reset.
options:
  interfaces: {description: Names or PCI addresses of the data interfaces., type: list, elements: str, default: []}
  mode: {description: 'RoCE mode. Empty: unchanged.', type: str, choices: ["", v1, v2], default: ""}
  tos: {description: 'Type of service, 0 to 255. -1: unchanged.', type: int, default: -1}
author: [provision]
"""

import os

from ansible.module_utils import fabric_host_cards as cards
from ansible.module_utils import platform_links as links
from ansible.module_utils import platform_roce as roce
from ansible.module_utils.fabric_host_settings import run
from ansible.module_utils.platform_origin import mark_managed, record, record_module, records

MOST_TOS = 255


def ports_of(names):
    """Return device and port of the RoCE ports of interfaces, in order."""
    ports = []
    for device in sorted(os.listdir(cards.RDMA)) if os.path.isdir(cards.RDMA) else ():
        folder = os.path.join(cards.RDMA, device, "ports")
        for port in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            entries = os.path.join(folder, port, "gid_attrs/ndevs")
            entries = [os.path.join(entries, name) for name in os.listdir(entries)] if os.path.isdir(entries) else []
            if port.isdigit() and any(links.words(path) in names for path in entries):
                ports.append((device, int(port)))
    return ports


class Ports:
    """The desired and the current defaults of ports.

    Args:
        module: has the parameters, and runs programs.
    """

    def __init__(self, module):
        """Compare; change nothing."""
        self.module, params = module, module.params
        self.left_out, self.wanted, self.now, self.removed, self.is_unknown = [], {}, {}, [], False
        self.recorded = {(doc["device"], doc["port"], doc["file"]): doc for doc in records("roce")}
        values = {roce.MODE: roce.MODES[params["mode"]]} if params["mode"] else {}
        if params["tos"] != -1:
            if not 0 <= params["tos"] <= MOST_TOS:
                raise cards.InvalidSetting(f"fabric_host_roce_tos: {params['tos']} is not between 0 and {MOST_TOS}")
            values[roce.TOS] = str(params["tos"])
        if not (values or self.recorded):
            return
        names = cards.interface_names(params["interfaces"]) if values else []
        ports = ports_of({*names, *cards.lowest(names)})
        if values and not ports:
            self.left_out.append(f"RoCE settings skipped: no RDMA device on {', '.join(names)}")
        self.wanted = {(*port, name): value for port in ports for name, value in values.items()}
        self.removed = [key for key in self.recorded if key not in self.wanted]
        if (self.wanted or self.removed) and self._load():
            self._compare()

    def _load(self):
        """Load the connection manager; return whether its values can be read."""
        if roce.is_available():
            return True
        self.is_unknown = self.module.check_mode
        if not self.is_unknown:
            if not os.path.isdir("/sys/module/rdma_cm"):
                record_module("rdma_cm")
            code, out, err = self.module.run_command(["modprobe", "rdma_cm"])
            if code == 0 and not roce.is_available():
                code, out, err = self.module.run_command(["mount", "-t", "configfs", "none", roce.CONFIG])
            if code != 0 or not roce.is_available():
                detail = (err or out).strip()[-200:] or "no folder rdma_cm in configfs"
                raise cards.InvalidSetting(f"the RDMA connection manager is not available ({detail})")
        return not self.is_unknown

    def _compare(self):
        for key in [*self.wanted, *self.removed]:
            device, port, name = key
            self.now[key] = self._read(device, port, name)
            if self.now[key] is None and key in self.wanted:
                raise cards.InvalidSetting(f"{device}: configfs has no {name} of port {port}")
            if key in self.removed and links.is_own(self.recorded[key], self.now[key]):
                self.wanted[key] = self.recorded[key]["before"]

    @staticmethod
    def _read(device, port, name):
        try:
            with roce.Defaults(device) as defaults:
                return defaults.read(port, name)
        except OSError:  # the device does not exist any more
            return None

    def different(self):
        """Return the keys of the values that differ."""
        return [key for key, value in self.wanted.items() if self.now.get(key) != value]

    def boot(self):
        """Return what the script sets at boot: the values of the inventory."""
        return [
            {"device": device, "port": port, "file": name, "value": value}
            for (device, port, name), value in sorted(self.wanted.items())
            if (device, port, name) not in self.removed
        ]

    def change(self):
        """Set the values; a device that refuses one is an error."""
        for key in self.different():
            (device, port, name), value, label = key, self.wanted[key], "/".join(map(str, key))
            if key not in self.removed:
                record("roce", label, {"device": device, "port": port, "file": name, "before": self.now[key]})
                mark_managed("roce", label, "values", value)
            try:
                with roce.Defaults(device) as defaults:
                    defaults.write(port, name, value)
            except OSError as error:
                raise cards.InvalidSetting(f"{device}: {name} {value} is refused ({error.strerror})") from None
        for key in self.removed:
            links.forget("roce", "/".join(map(str, key)))

    def diff(self):
        """Return what an apply changes."""
        keys = self.different()
        before = "".join(f"{'/'.join(map(str, key))} {self.now.get(key)}\n" for key in keys)
        after = "".join(f"{'/'.join(map(str, key))} {self.wanted[key]}\n" for key in keys)
        return [{"before_header": "RoCE defaults", "after_header": "RoCE defaults", "before": before, "after": after}]


def main():
    """Run the module."""
    options = {
        "mode": {"type": "str", "choices": ["", "v1", "v2"], "default": ""},
        "tos": {"type": "int", "default": -1},
    }
    run(options, Ports)


if __name__ == "__main__":
    main()
