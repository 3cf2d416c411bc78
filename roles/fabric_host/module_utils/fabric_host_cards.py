"""The data interfaces of a node, their cards, and the PCIe bridges above cards and GPUs."""

import os
import re

from ansible.module_utils import platform_links as links
from ansible.module_utils import platform_pci as pci

RDMA = "/sys/class/infiniband"
NAME = re.compile(r"[A-Za-z0-9_.-]{1,15}")
NVIDIA, MELLANOX = "0x10de", "0x15b3"
GPU_CLASSES, NETWORK_CLASSES = ("0x0300", "0x0302"), ("0x02",)


class InvalidSetting(Exception):
    """A setting that the node cannot have."""


def text_of(path):
    """Return the text of a configuration file; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except OSError:
        return ""


def interfaces_at(address):
    """Return the interfaces of the card at a PCI address; those of virtio are two levels below it."""
    names = sorted(os.listdir(links.NET)) if os.path.isdir(links.NET) else []
    return [name for name in names if card(os.path.join(links.NET, name, "device")) == address]


def interface_names(entries):
    """Return the names of the interfaces, in order.

    Raises:
        InvalidSetting: an interface does not exist.
    """
    names = []
    for entry in entries:
        own = interfaces_at(entry) if pci.ADDRESS.fullmatch(entry) else [entry]
        if not own or any(not NAME.fullmatch(name) or links.mtu(name) is None for name in own):
            raise InvalidSetting(f"{entry}: no such network interface on the node. Correct fabric_host_interfaces")
        names += own
    return list(dict.fromkeys(names))


def lowest(names):
    """Return the interfaces below bonds, bridges and VLANs, and the others themselves."""
    known, left = [], list(names)
    while left:
        name = left.pop(0)
        folder = os.path.join(links.NET, name)
        below = sorted(link[len("lower_") :] for link in os.listdir(folder) if link.startswith("lower_"))
        left += [one for one in below if one not in left and one not in known]
        if not below and name not in known:
            known.append(name)
    return known


def card(path):
    """Return the PCI address of a device below /sys, empty for a virtual one."""
    addresses = pci.addresses(path)
    return addresses[-1] if addresses else ""


def network_cards(names):
    """Return the PCI addresses of the cards of interfaces."""
    cards = [card(os.path.join(links.NET, name, "device")) for name in lowest(names)]
    return [address for address in dict.fromkeys(cards) if address]


def peers():
    """Return the PCI addresses of GPUs, Mellanox network cards and RDMA devices: those that exchange data directly."""
    cards = []
    for address in sorted(os.listdir(pci.DEVICES)) if os.path.isdir(pci.DEVICES) else ():
        vendor, kind = (links.words(os.path.join(pci.DEVICES, address, key)) or "" for key in ("vendor", "class"))
        if (vendor == NVIDIA and kind.startswith(GPU_CLASSES)) or (
            vendor == MELLANOX and kind.startswith(NETWORK_CLASSES)
        ):
            cards.append(address)
    for name in sorted(os.listdir(RDMA)) if os.path.isdir(RDMA) else ():
        if not os.path.exists(os.path.join(RDMA, name, "parent")):
            cards.append(card(os.path.join(RDMA, name, "device")))
    return [address for address in dict.fromkeys(cards) if address]


def bridges(cards):
    """Return the PCIe bridges above cards, each once."""
    paths = [pci.addresses(os.path.join(pci.DEVICES, address))[:-1] for address in cards]
    return list(dict.fromkeys(address for path in paths for address in path))
