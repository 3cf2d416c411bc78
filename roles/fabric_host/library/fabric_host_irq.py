#!/usr/bin/python
"""Ansible module: let the interrupts of data cards run on the CPUs of the card's NUMA node."""

DOCUMENTATION = r"""
module: fabric_host_irq
short_description: Set the CPUs of interrupts
description:
  - Lets interrupts of the cards of the data interfaces that may run on CPUs of other NUMA nodes run on those of the card's node.
  - Sets them in the running node; a script of the role sets them at boot, with what I(boot) returns.
  - Restores what is not given any more. Records the original values of this boot for a reset.
options:
  interfaces: {description: Names or PCI addresses of the data interfaces., type: list, elements: str, default: []}
  affinity: {description: 'Empty: unchanged.', type: str, choices: ["", local], default: ""}
author: [provision]
"""

import os

from ansible.module_utils import fabric_host_cards as cards
from ansible.module_utils import platform_irq as irq
from ansible.module_utils import platform_links as links
from ansible.module_utils import platform_pci as pci
from ansible.module_utils.fabric_host_settings import run
from ansible.module_utils.platform_origin import mark_managed, record, records

KIND = "irqs"


class Interrupts:
    """The desired and the current CPUs of interrupts.

    Args:
        module: has the parameters.
    """

    is_unknown = False

    def __init__(self, module):
        """Compare; change nothing."""
        params = module.params
        self.left_out, self.wanted, self.now = [], {}, {}
        own = cards.network_cards(cards.interface_names(params["interfaces"])) if params["affinity"] else []
        self.local = {address: irq.local_cpus(address) for address in own}
        self.removed = [doc for doc in records(KIND) if doc["address"] not in own or doc["boot"] != irq.boot_id()]
        for address, local in self.local.items():
            if not local:
                self.left_out.append(f"interrupts of {address} skipped: its NUMA node is unknown")
                continue
            self.now.update({(address, number): value for number, value in irq.interrupts(address).items()})
        for key, value in self.now.items():
            local = self.local[key[0]]
            self.wanted[key] = value if irq.cpus(value) <= irq.cpus(local) else local
        for doc in self.removed:
            self._want_originals(doc)

    def _want_originals(self, doc):
        if doc["boot"] != irq.boot_id():
            return
        for number, value in irq.interrupts(doc["address"]).items():
            if number in doc["before"] and links.is_own(doc, value):
                self.now[doc["address"], number] = value
                self.wanted[doc["address"], number] = doc["before"][number]

    def different(self):
        """Return card and number of the interrupts that differ."""
        return [key for key, value in self.wanted.items() if self.now[key] != value]

    def boot(self):
        """Return the cards whose interrupts the script sets at boot, and those whose NUMA node is unknown."""
        return [
            {"address": address, "identity": pci.identity(address), "is_known": bool(local)}
            for address, local in sorted(self.local.items())
        ]

    def change(self):
        """Set the CPUs; the kernel refuses those of interrupts that it distributes itself."""
        restored = {doc["address"] for doc in self.removed}
        for address in [doc["address"] for doc in self.removed if doc["boot"] != irq.boot_id()]:
            links.forget(KIND, address)
            restored.discard(address)
        for key in self.different():
            address, number = key
            if address not in restored:
                before = {number: value for (card, number), value in self.now.items() if card == address}
                record(KIND, address, {"address": address, "boot": irq.boot_id(), "before": before})
                mark_managed(KIND, address, "values", self.wanted[key])
            try:
                links.write(irq.path(number), self.wanted[key])
            except OSError as error:
                why = (
                    f"{address}: the kernel refuses other CPUs for the interrupt {number} ({os.strerror(error.errno)})"
                )
                raise cards.InvalidSetting(why) from None
        for address in restored:
            links.forget(KIND, address)

    def diff(self):
        """Return what an apply changes."""
        keys = self.different()
        before = "".join(f"{address} interrupt {number}: CPU {self.now[address, number]}\n" for address, number in keys)
        after = "".join(
            f"{address} interrupt {number}: CPU {self.wanted[address, number]}\n" for address, number in keys
        )
        return [{"before_header": "interrupts", "after_header": "interrupts", "before": before, "after": after}]


def main():
    """Run the module."""
    run({"affinity": {"type": "str", "choices": ["", "local"], "default": ""}}, Interrupts)


if __name__ == "__main__":
    main()
