#!/usr/bin/python
"""Ansible module: set hugepages, the CPU governor and the state of irqbalance on a node."""

DOCUMENTATION = r"""
module: fabric_host_kernel
short_description: Set hugepages, CPU governor and irqbalance
description:
  - Sets the values in the running kernel; a script of the role sets them at boot.
  - Refuses hugepages of more than 90 % of the memory. Restores what is not given any more. Records the original values for a reset.
  - Returns what this node does not have as I(left_out).
options:
  hugepages: {description: Number of reserved pages by their size in KiB., type: dict, default: {}}
  governor: {description: 'Governor of all CPUs. Empty: unchanged.', type: str, default: ""}
  irqbalance: {description: 'State of the service. Empty: unchanged.', type: str, choices: ["", running, stopped], default: ""}
  irqbalance_unit: {description: Its unit., type: str, required: true}
author: [provision]
"""

import os

from ansible.module_utils import platform_links as links
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_origin import mark_managed, record, record_unit, records

HUGEPAGES = "/sys/kernel/mm/hugepages"
MEMINFO = "/proc/meminfo"
MOST_PERCENT = 90


class Kernel:
    """The desired state of the kernel and the service.

    Args:
        module: has the parameters, and runs programs.
    """

    def __init__(self, module):
        """Start without differences."""
        self.module, self.params = module, module.params
        self.left_out, self.before, self.after = [], [], []

    def _differs(self, what, before, after):
        self.before.append(f"{what} {before}\n")
        self.after.append(f"{what} {after}\n")
        return not self.module.check_mode

    def _fail(self, message):
        self.module.fail_json(msg=f"{message}. Correct the settings of the role fabric_host, then apply again.")

    def require_memory(self):
        """Refuse hugepages that leave too little memory for programs: the node would not boot any more."""
        total = sum(int(size) * int(count) for size, count in self.params["hugepages"].items())
        memory = (links.words(MEMINFO) or "").split()[1:2]
        if memory and memory[0].isdigit() and total * 100 > int(memory[0]) * MOST_PERCENT:
            self._fail(
                f"hugepages: {total // 1024} MiB are more than {MOST_PERCENT} % of the memory ({int(memory[0]) // 1024} MiB)"
            )

    def set_hugepages(self):
        """Reserve the pages; the kernel reserves fewer if its memory is fragmented."""
        desired = {hugepages_path(size): str(int(count)) for size, count in self.params["hugepages"].items()}
        for doc in records("sysctls"):
            if (
                doc.get("role") == "fabric_host"
                and doc["path"].startswith(HUGEPAGES + "/")
                and doc["path"] not in desired
            ):
                if links.is_own(doc, links.words(doc["path"])) and self._differs(doc["key"], "changed", doc["before"]):
                    self._write(doc["path"], doc["before"])
                if not self.module.check_mode:
                    links.forget("sysctls", doc["key"])
        for path, count in sorted(desired.items()):
            key = os.path.basename(os.path.dirname(path))
            now = links.words(path)
            if now is None:
                self.left_out.append(f"{key} skipped: this node does not support hugepages of this size")
            elif now != count and self._differs(key, now, count):
                record("sysctls", key, {"key": key, "path": path, "before": now, "role": "fabric_host"})
                mark_managed("sysctls", key, "values", count)
                self._write(path, count)
                reserved = links.words(path)
                if reserved != count:
                    mark_managed("sysctls", key, "values", reserved)
                    text = f"{key}: the kernel reserved {reserved} of {count} pages, because its memory is fragmented; the rest needs a reboot"
                    self.left_out.append(text)

    def set_governor(self):
        """Set the governor of all CPUs."""
        now, governor = links.governors(), self.params["governor"]
        for doc in records("governors") if not governor else ():
            own = {path: value for path, value in doc["values"].items() if links.is_own(doc, now.get(path))}
            if own and self._differs("CPU governor", "changed", " ".join(sorted(set(own.values())))):
                for path, value in own.items():
                    self._write(path, value)
            if not self.module.check_mode:
                links.forget("governors", "governor")
        if not governor:
            return
        if not now:
            self.left_out.append("CPU governor skipped: the kernel of this node does not scale frequencies")
            return
        different = {path: value for path, value in now.items() if value != governor}
        if different and self._differs("CPU governor", " ".join(sorted(set(different.values()))), governor):
            record("governors", "governor", {"values": now})
            mark_managed("governors", "governor", "values", governor)
            for path in different:
                self._write(path, governor)

    def set_irqbalance(self):
        """Start or stop the service, now and at boot."""
        name, state = self.params["irqbalance_unit"], self.params["irqbalance"]
        recorded = [doc for doc in records("units") if doc["name"] == name]
        if not state and not recorded:
            return
        now = links.unit_state(self.module, name)
        if not state:
            is_active, is_enabled = recorded[0]["ActiveState"] == "active", recorded[0]["UnitFileState"] == "enabled"
        else:
            is_active = is_enabled = state == "running"
        if now["LoadState"] != "loaded" and state != "running":
            return
        commands = links.unit_commands(now, is_active=is_active, is_enabled=is_enabled)
        text = "{ActiveState} {UnitFileState}".format(**now)
        if commands and self._differs(name, text, state or "as before the role"):
            record_unit(self.module, name)
            for command in commands:
                code, out, err = self.module.run_command([*command, name])
                if code != 0:
                    self._fail(f"{name}: `{' '.join(command)}` failed ({(err or out).strip()[-200:]})")
        if not state and not self.module.check_mode:
            links.forget("units", name)

    def _write(self, path, text):
        try:
            links.write(path, text)
        except OSError as error:
            self._fail(f"{path}: the kernel refuses the value {text} ({error.strerror})")


def hugepages_path(size):
    """Return the file with the number of reserved pages of a size in KiB."""
    return f"{HUGEPAGES}/hugepages-{int(size)}kB/nr_hugepages"


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "hugepages": {"type": "dict", "default": {}},
            "governor": {"type": "str", "default": ""},
            "irqbalance": {"type": "str", "choices": ["", "running", "stopped"], "default": ""},
            "irqbalance_unit": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LC_ALL": "C"}
    kernel = Kernel(module)
    kernel.require_memory()
    kernel.set_hugepages()
    kernel.set_governor()
    kernel.set_irqbalance()
    header = {"before_header": "running kernel", "after_header": "running kernel"}
    diff = [{**header, "before": "".join(kernel.before), "after": "".join(kernel.after)}] if kernel.after else []
    module.exit_json(changed=bool(kernel.after), left_out=kernel.left_out, diff=diff)


if __name__ == "__main__":
    main()
