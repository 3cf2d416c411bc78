#!/usr/bin/python
"""Ansible module: set PCIe read requests of data cards and ACS of the bridges above cards and GPUs."""

DOCUMENTATION = r"""
module: fabric_host_pci
short_description: Set PCIe read requests and ACS
description:
  - Sets the maximum read request of the cards of the data interfaces.
  - Clears the redirecting ACS bits of the bridges above these cards, GPUs and RDMA devices, so that two devices exchange data
    directly. Refuses this while a device is assigned to a virtual machine (vfio), because ACS separates such devices.
  - Sets the values in the running node; a script of the role sets them at boot, with what I(boot) returns.
  - Restores what is not given any more. Records the original values for a reset. Requires setpci (pciutils).
options:
  interfaces: {description: Names or PCI addresses of the data interfaces., type: list, elements: str, default: []}
  max_read_request: {description: 'Bytes. 0: unchanged.', type: int, default: 0}
  acs: {description: 'disabled: clear the bits. Empty: unchanged.', type: str, choices: ["", disabled], default: ""}
author: [provision]
"""

from ansible.module_utils import fabric_host_cards as cards
from ansible.module_utils import platform_links as links
from ansible.module_utils import platform_pci as pci
from ansible.module_utils.fabric_host_settings import run
from ansible.module_utils.platform_origin import mark_managed, record, records

SIZES = (128, 256, 512, 1024, 2048, 4096)


class Registers:
    """The desired and the current values of registers.

    Args:
        module: has the parameters, and runs programs.
    """

    def __init__(self, module):
        """Compare; change nothing."""
        self.module, params = module, module.params
        self.left_out, self.wanted, self.now, self.removed = [], {}, {}, []
        self.is_unknown = False
        self.recorded = {(doc["address"], doc["register"]): doc for doc in records("pci")}
        size, acs = params["max_read_request"], params["acs"]
        if not (size or acs or self.recorded):
            return
        if size and size not in SIZES:
            raise cards.InvalidSetting(
                f"fabric_host_pcie_max_read_request: {size} is not one of {', '.join(map(str, SIZES))}"
            )
        if not module.get_bin_path("setpci"):
            self.is_unknown = module.check_mode  # the step installs it
            if self.is_unknown:
                return
            raise cards.InvalidSetting("setpci is missing. Install pciutils")
        own = cards.network_cards(cards.interface_names(params["interfaces"]))
        if size:
            self._want_read_requests(own, pci.read_request_bits(size))
        if acs:
            self._want_acs(own)
        self._want_originals()

    def _want_read_requests(self, own, bits):
        for address in own:
            now = pci.read(self.module, address, pci.READ_REQUEST)
            if now is None:
                self.left_out.append(f"maximum read request of {address} skipped: it is no PCIe device")
            else:
                self._want(address, pci.READ_REQUEST, bits, pci.READ_REQUEST_MASK, now)

    def _want_acs(self, own):
        assigned = pci.assigned()
        if assigned:
            names = ", ".join(assigned[:5])
            why = f"fabric_host_pcie_acs: {names} may be assigned to virtual machines (vfio), which ACS separates"
            raise cards.InvalidSetting(f"{why}. Set it to an empty text")
        for address in cards.bridges([*own, *cards.peers()]):
            now = pci.read(self.module, address, pci.ACS)
            if now is not None:
                self._want(address, pci.ACS, 0, pci.ACS_REDIRECTS, now)

    def _want(self, address, register, value, mask, now):
        self.wanted[address, register] = (value, mask)
        self.now[address, register] = now & mask

    def _want_originals(self):
        """Add the original values of what the inventory does not set any more."""
        self.removed = [key for key in self.recorded if key not in self.wanted]
        for key in self.removed:
            doc, (address, register) = self.recorded[key], key
            now = pci.read(self.module, address, register) if pci.identity(address) == doc["identity"] else None
            if now is not None and links.is_own(doc, now & doc["mask"]):
                self._want(address, register, doc["before"], doc["mask"], now)

    def different(self):
        """Return address and register of the values that differ."""
        return [key for key, (value, _) in self.wanted.items() if self.now[key] != value]

    def boot(self):
        """Return what the script sets at boot: the values of the inventory."""
        rows = [(key, value) for key, value in self.wanted.items() if key not in self.removed]
        return [
            {
                "address": address,
                "identity": pci.identity(address),
                "setting": pci.setting(register, value, mask),
                "separates": register == pci.ACS,
            }
            for (address, register), (value, mask) in sorted(rows)
        ]

    def change(self):
        """Write the registers; a device that refuses a value is an error."""
        for key in self.different():
            (address, register), (value, mask) = key, self.wanted[key]
            if key not in self.removed:
                before = {"mask": mask, "before": self.now[key], "identity": pci.identity(address)}
                record("pci", " ".join(key), {"address": address, "register": register, **before})
                mark_managed("pci", " ".join(key), "values", value)
            problem = pci.write(self.module, address, register, value, mask)
            if problem:
                raise cards.InvalidSetting(problem)
        for key in self.removed:
            links.forget("pci", " ".join(key))

    def diff(self):
        """Return what an apply changes."""
        keys = self.different()
        before = "".join(f"{' '.join(key)} {self.now[key]:04x}\n" for key in keys)
        after = "".join(f"{' '.join(key)} {self.wanted[key][0]:04x}\n" for key in keys)
        return [{"before_header": "PCIe registers", "after_header": "PCIe registers", "before": before, "after": after}]


def main():
    """Run the module."""
    options = {
        "max_read_request": {"type": "int", "default": 0},
        "acs": {"type": "str", "choices": ["", "disabled"], "default": ""},
    }
    run(options, Registers)


if __name__ == "__main__":
    main()
