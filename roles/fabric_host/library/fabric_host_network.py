#!/usr/bin/python
"""Ansible module: set MTU and ARP of the data interfaces, and revert them if they cut off the controller."""

DOCUMENTATION = r"""
module: fabric_host_network
short_description: Set MTU and ARP of the data interfaces
description:
  - Sets the MTU now, and by a udev rule when the interface appears. Network managers are not changed.
  - Sets C(rp_filter), C(arp_ignore) and C(arp_announce) of each interface, now and in a file of sysctl.d.
  - The node reverts the change unless the controller confirms it over a new connection (I(rescue_seconds)).
  - Restores interfaces that are not given any more. Records the original values for a reset.
options:
  interfaces: {description: Names or PCI addresses of the interfaces., type: list, elements: str, required: true}
  mtu: {description: 'MTU. 0: unchanged.', type: int, default: 0}
  arp: {description: Whether to set the values for several interfaces in one subnet., type: bool, default: false}
  rules_path: {description: File of the udev rules., type: path, required: true}
  sysctl_path: {description: File in sysctl.d., type: path, required: true}
  rescue_seconds: {description: 'Time for the confirmation of the change. 0: none is required.', type: int, default: 0}
  rescue_token: {description: Token of the change; the action plugin platform_light sets it., type: str, default: ""}
author: [provision]
"""

import os

from ansible.module_utils import platform_links as links
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.fabric_host_cards import InvalidSetting, interface_names, text_of
from ansible.module_utils.platform_origin import mark_managed, record, record_file, record_files, records
from ansible.module_utils.platform_pci import addresses
from ansible.module_utils.platform_replace import replace
from ansible.module_utils.platform_rescue import OPTIONS, Rescue

HEADER = "# Managed by provision (role fabric_host).\n"
PROC = "/proc/sys/net/ipv4/conf"
ARP = {"arp_announce": "2", "arp_ignore": "1", "rp_filter": "2"}
LEAST_MTU, MOST_MTU = 1280, 65520


def rule(interface, mtu):
    """Return the udev rule that sets the MTU when an interface appears. The name of a card's interface may change."""
    folder = os.path.realpath(os.path.join(links.NET, interface))
    cards = addresses(folder)
    match = f'KERNEL=="{interface}"'
    if cards:
        port = links.words(os.path.join(folder, "dev_port"))
        match = f'SUBSYSTEMS=="pci", KERNELS=="{cards[-1]}"' + (
            f', ATTR{{dev_port}}=="{port}"' if (port or "").isdigit() else ""
        )
    return f'ACTION=="add", SUBSYSTEM=="net", {match}, ATTR{{mtu}}="{mtu}"\n'


def sysctl_key(path):
    """Return the key of a file in /proc/sys/net/ipv4/conf."""
    return "net.ipv4.conf." + ".".join(path.split("/")[-2:])


class Network:
    """The desired and the current state of the data interfaces.

    Args:
        module: has the parameters, and runs programs.
    """

    def __init__(self, module):
        """Compare; change nothing."""
        self.module, params = module, module.params
        self.names = interface_names(params["interfaces"])
        if params["mtu"] and not LEAST_MTU <= params["mtu"] <= MOST_MTU:
            raise InvalidSetting(f"fabric_host_mtu: {params['mtu']} is not between {LEAST_MTU} and {MOST_MTU}")
        self.left_out = []
        self.mtus = dict.fromkeys(self.names, params["mtu"]) if params["mtu"] else {}
        self.values = self._arp_values() if params["arp"] else {}
        self.texts = {
            params["rules_path"]: "".join(rule(name, value) for name, value in self.mtus.items()),
            params["sysctl_path"]: "".join(
                "net/ipv4/conf/{}/{} = {}\n".format(*path.split("/")[-2:], value) for path, value in self.values.items()
            ),
        }
        self.texts = {path: HEADER + text if text else "" for path, text in self.texts.items()}
        self._restore_removed()
        self.mtus_now = {name: links.mtu(name) for name in self.mtus}
        self.values_now = {path: links.words(path) for path in self.values}

    def _arp_values(self):
        values = {}
        for name in self.names:
            paths = {os.path.join(PROC, name, key): value for key, value in ARP.items()}
            if all(os.access(path, os.W_OK) for path in paths):
                values.update(paths)
            else:
                self.left_out.append(f"ARP settings of {name} skipped: read-only on this node")
        return values

    def _restore_removed(self):
        """Add the original values of what the inventory does not set any more."""
        self.removed = []
        for doc in records("mtus"):
            if doc["interface"] not in self.mtus:
                self.removed.append(("mtus", doc["interface"]))
                if links.is_own(doc, links.mtu(doc["interface"])):
                    self.mtus[doc["interface"]] = doc["before"]
        for doc in records("sysctls"):
            if (
                doc["path"].startswith(PROC + "/")
                and doc["path"] not in self.values
                and doc.get("role") == "fabric_host"
            ):
                self.removed.append(("sysctls", doc["key"]))
                if links.is_own(doc, links.words(doc["path"])):
                    self.values[doc["path"]] = doc["before"]

    def changed_files(self):
        """Return path -> current text of the files that differ."""
        texts = {path: text_of(path) for path in self.texts}
        return {path: text for path, text in texts.items() if text != self.texts[path]}

    def different_mtus(self):
        """Return interface -> current MTU of those that differ."""
        return {name: now for name, now in self.mtus_now.items() if now != self.mtus[name]}

    def different_values(self):
        """Return path -> current value of those that differ."""
        return {path: now for path, now in self.values_now.items() if now != self.values[path]}

    def undo_commands(self):
        """Return the commands that restore the current values."""
        commands = [links.mtu_command(name, now) for name, now in self.different_mtus().items()]
        assignments = [f"{path[len('/proc/sys/') :]}={now}" for path, now in self.different_values().items()]
        return commands + ([["sysctl", "-q", "-w", *assignments]] if assignments else [])

    def record_paths(self):
        """Return the paths of the records that the change writes or removes."""
        names = dict.fromkeys([("mtus", name) for name in self.different_mtus()] + self.removed)
        names.update({("sysctls", sysctl_key(path)): None for path in self.different_values()})
        return [path for kind, name in names for path in record_files(kind, name)]

    def change(self):
        """Write the files and set the values.

        Raises:
            InvalidSetting: the kernel or the driver refuses a value.
        """
        for path in self.changed_files():
            record_file(path, self.texts[path])
            if self.texts[path]:
                replace(path, self.texts[path])
            else:
                os.unlink(path)
        wanted = {name for kind, name in self.removed if kind == "mtus"}
        for name, now in self.different_mtus().items():
            if name not in wanted:
                record("mtus", name, {"interface": name, "before": now})
                mark_managed("mtus", name, "values", self.mtus[name])
            code, out, err = self.module.run_command(links.mtu_command(name, self.mtus[name]))
            if code != 0:
                raise InvalidSetting(f"{name}: the MTU {self.mtus[name]} is refused ({(err or out).strip()[-200:]})")
        self._set_values()
        for kind, name in self.removed:
            links.forget(kind, name)

    def _set_values(self):
        removed = {name for kind, name in self.removed if kind == "sysctls"}
        for path, now in self.different_values().items():
            key = sysctl_key(path)
            if key not in removed:
                record("sysctls", key, {"key": key, "path": path, "before": now, "role": "fabric_host"})
                mark_managed("sysctls", key, "values", self.values[path])
            try:
                links.write(path, self.values[path])
            except OSError as error:
                raise InvalidSetting(f"{path}: the value {self.values[path]} is refused ({error.strerror})") from None

    def diff(self):
        """Return the differences of files and values."""
        diffs = [
            {"before_header": path, "after_header": path, "before": text, "after": self.texts[path]}
            for path, text in self.changed_files().items()
        ]
        before = [f"{name} mtu {now}\n" for name, now in self.different_mtus().items()]
        before += [f"{path} {now}\n" for path, now in self.different_values().items()]
        after = [f"{name} mtu {self.mtus[name]}\n" for name in self.different_mtus()]
        after += [f"{path} {self.values[path]}\n" for path in self.different_values()]
        texts = {"before": "".join(before), "after": "".join(after)}
        return [*diffs, {"before_header": "running kernel", "after_header": "running kernel", **texts}]


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "interfaces": {"type": "list", "elements": "str", "required": True},
            "mtu": {"type": "int", "default": 0},
            "arp": {"type": "bool", "default": False},
            "rules_path": {"type": "path", "required": True},
            "sysctl_path": {"type": "path", "required": True},
            **OPTIONS,
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LC_ALL": "C"}
    rescue = Rescue(module, "fabric_host", "network settings at boot")
    rescue.begin()
    try:
        network = Network(module)
    except InvalidSetting as error:
        module.fail_json(msg=f"{error}, then apply again.")
    is_changed = bool(network.changed_files() or network.different_mtus() or network.different_values())
    result = {
        "changed": is_changed,
        "left_out": network.left_out,
        "files": sorted(path for path, text in network.texts.items() if text),
        "diff": network.diff() if is_changed else [],
    }
    values = sorted(path.split("/")[-2] for path in network.different_values())
    names = ", ".join(dict.fromkeys([*network.different_mtus(), *values]))
    if names:
        rescue.what = f"network settings of {names}"
    if not is_changed:
        rescue.unchanged()
    if not is_changed or module.check_mode:
        module.exit_json(**result)
    commands = network.undo_commands()
    boot_commands = [["udevadm", "settle", "--timeout=20"], *commands]
    rescue.arm(sorted(network.texts), commands, boot_commands, records=network.record_paths())
    try:
        network.change()
    except (InvalidSetting, OSError) as error:
        rescue.revert()
        module.fail_json(msg=f"{error}. Correct the settings of the role fabric_host, then apply again.")
    module.exit_json(**rescue.changed(result))


if __name__ == "__main__":
    main()
