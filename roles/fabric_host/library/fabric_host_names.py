#!/usr/bin/python
"""Ansible module: name network interfaces by the PCI address of their cards."""

DOCUMENTATION = r"""
module: fabric_host_names
short_description: Name network interfaces by PCI address
description:
  - Writes a file of systemd (C(.link)) for each name. udev names the interface when it appears, at the next boot at the latest.
  - Renames an interface now only if it is down. Never renames one that is up.
  - Refuses to name an interface of the controller's connection or of a default route, and those below it.
  - Removes the files of names that are not given any more; such an interface has its name until the next boot.
options:
  names: {description: PCI address of the card by name of the interface., type: dict, default: {}}
  folder: {description: Folder of the files., type: path, required: true}
author: [provision]
"""

import os
import re

from ansible.module_utils import fabric_host_cards as cards
from ansible.module_utils import platform_links as links
from ansible.module_utils import platform_pci as pci
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_origin import record, record_file, records
from ansible.module_utils.platform_replace import replace

KIND = "link_names"
NAME = re.compile(r"[a-z][a-z0-9_-]{0,14}")
KERNEL_NAME = re.compile(r"(eth|ib|wlan|wwan|usb)[0-9]*|lo|all|default|bonding_masters")
UP = 1
PROC = "/proc"
TEXT = """# Managed by provision (role fabric_host).
[Match]
Path=*pci-{}

[Link]
Name={}
AlternativeNamesPolicy=database onboard slot path
MACAddressPolicy=persistent
"""


def link_path(folder, name):
    """Return the path of the file for a name. The first file that matches counts, so it sorts before those of netplan."""
    return os.path.join(folder, f"05-provision-{name}.link")


def is_up(name):
    """Return whether an interface is up, with or without a carrier; one that cannot be read counts as up."""
    flags = links.words(os.path.join(links.NET, name, "flags")) or ""
    return not re.fullmatch(r"0x[0-9a-f]{1,8}", flags) or bool(int(flags, 16) & UP)


def own_address():
    """Return the address of the node that the controller is connected to, empty if it is unknown.

    sudo clears the environment, so those of the processes above are read as well.
    """
    pid = os.getpid()
    while pid > 1:
        try:
            with open(f"{PROC}/{pid}/environ", encoding="utf-8", errors="replace") as stream:
                entries = stream.read().split("\0")
            with open(f"{PROC}/{pid}/stat", encoding="utf-8", errors="replace") as stream:
                parent = stream.read().rpartition(")")[2].split()[1]
        except (OSError, IndexError):
            return ""
        for entry in entries:
            words = entry.partition("SSH_CONNECTION=")[2].split() if entry.startswith("SSH_CONNECTION=") else []
            if len(words) == 4:
                return re.sub("^::ffff:|%.*", "", words[2])
        pid = int(parent)
    return ""


class Names:
    """The desired and the current names.

    Args:
        module: has the parameters, and runs programs.
    """

    def __init__(self, module):
        """Compare; change nothing."""
        self.module, self.left_out = module, []
        self.names, folder = module.params["names"], module.params["folder"]
        self.interfaces = {name: self._interface(name, str(address)) for name, address in self.names.items()}
        self._require_distinct()
        self.texts = {link_path(folder, name): TEXT.format(address, name) for name, address in self.names.items()}
        self.removed = [doc for doc in records(KIND) if doc["path"] not in self.texts]
        self.before = {path: cards.text_of(path) for path in [*self.texts, *(doc["path"] for doc in self.removed)]}
        different = {name: now for name, now in self.interfaces.items() if now not in ("", name)}
        if different:
            self._refuse_used(different)
        free = {name: now for name, now in different.items() if not os.path.lexists(os.path.join(links.NET, name))}
        self.renamed = {name: now for name, now in free.items() if not is_up(now)}

    def _interface(self, name, address):
        if not NAME.fullmatch(name) or KERNEL_NAME.fullmatch(name):
            raise cards.InvalidSetting(f"{name}: not a name that interfaces can have (rail0 is one)")
        if not pci.ADDRESS.fullmatch(address):
            raise cards.InvalidSetting(f"{name}: {address} is not a PCI address (0000:3b:00.0 is one)")
        at = cards.interfaces_at(address)
        if len(at) > 1:
            raise cards.InvalidSetting(f"{name}: the card {address} has several interfaces ({', '.join(at)})")
        if not at:
            self.left_out.append(f"{name}: no network interface at {address}")
        return at[0] if at else ""

    def _require_distinct(self):
        addresses = [str(address) for address in self.names.values()]
        for address in addresses:
            if addresses.count(address) > 1:
                raise cards.InvalidSetting(f"{address}: it has several names")
        for name, now in self.interfaces.items():
            if now != name and name not in self.interfaces.values() and os.path.lexists(os.path.join(links.NET, name)):
                raise cards.InvalidSetting(f"{name}: another interface has this name")

    def _refuse_used(self, different):
        """Refuse another name of an interface that connects the node: after a boot its network manager may not know it."""
        used = dict.fromkeys(self._default_routes(), "default route")
        address = own_address()
        used.update(dict.fromkeys(self._with_address(address) if address else (), "controller's connection"))
        used = {lower: why for name, why in used.items() for lower in [name, *cards.lowest([name])]}
        for name, now in different.items():
            if now in used:
                raise cards.InvalidSetting(f"{name}: {now} is the interface of the {used[now]}, and is not renamed")

    def _default_routes(self):
        lines = [self._ip(version, "route", "show", "default") for version in ("-4", "-6")]
        names = {match.group(1) for match in re.finditer(r"\bdev (\S+)", "\n".join(lines))}
        return sorted(name for name in names if links.mtu(name) is not None)

    def _with_address(self, address):
        rows = [line.split() for line in self._ip("-o", "addr", "show").splitlines()]
        return [row[1].partition("@")[0] for row in rows if len(row) > 3 and row[3].partition("/")[0] == address]

    def _ip(self, *words):
        code, out, err = self.module.run_command(["ip", *words])
        if code != 0:
            raise cards.InvalidSetting(f"`ip {' '.join(words)}` failed ({(err or out).strip()[-200:]})")
        return out

    def changed_files(self):
        """Return path -> desired text of the files that differ; an empty one is removed."""
        wanted = {**dict.fromkeys((doc["path"] for doc in self.removed), ""), **self.texts}
        return {path: text for path, text in wanted.items() if text != self.before[path]}

    def change(self):
        """Write the files, and rename the interfaces that are down."""
        names = {link_path(self.module.params["folder"], name): name for name in self.names}
        for path, text in self.changed_files().items():
            record_file(path, text)
            if text:
                record(KIND, names[path], {"name": names[path], "path": path})
                replace(path, text)
            else:
                os.unlink(path)
        for doc in self.removed:
            links.forget(KIND, doc["name"])
        for name, now in self.renamed.items():
            code, out, err = self.module.run_command(["ip", "link", "set", "dev", now, "name", name])
            if code != 0:
                raise cards.InvalidSetting(f"{now}: the name {name} is refused ({(err or out).strip()[-200:]})")

    def diff(self):
        """Return what an apply changes."""
        diffs = [
            {"before_header": path, "after_header": path, "before": self.before[path], "after": text}
            for path, text in self.changed_files().items()
        ]
        if self.renamed:
            before = "".join(f"{now}\n" for now in self.renamed.values())
            after = "".join(f"{name}\n" for name in self.renamed)
            diffs.append(
                {"before_header": "interfaces", "after_header": "interfaces", "before": before, "after": after}
            )
        return diffs


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"names": {"type": "dict", "default": {}}, "folder": {"type": "path", "required": True}},
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LC_ALL": "C"}
    try:
        names = Names(module)
        is_changed = bool(names.changed_files() or names.renamed)
        result = {"changed": is_changed, "left_out": names.left_out, "files": sorted(names.texts)}
        result["diff"] = names.diff() if is_changed else []
        if not module.check_mode:
            names.change()
    except cards.InvalidSetting as error:
        module.fail_json(msg=f"{error}. Correct fabric_host_interface_names, then apply again.")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
