"""The CPUs that the interrupts of PCI devices may run on."""

import os

from ansible.module_utils import platform_links as links
from ansible.module_utils import platform_pci as pci

PROC = "/proc/irq"
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def local_cpus(address):
    """Return the list of the CPUs on the NUMA node of a device, empty if its node is unknown."""
    node, cpus = (links.words(os.path.join(pci.DEVICES, address, key)) or "" for key in ("numa_node", "local_cpulist"))
    return cpus if node.isdigit() else ""


def interrupts(address):
    """Return the list of CPUs of each interrupt of a device by its number."""
    folder = os.path.join(pci.DEVICES, address, "msi_irqs")
    numbers = sorted(filter(str.isdigit, os.listdir(folder)), key=int) if os.path.isdir(folder) else []
    values = {number: links.words(path(number)) for number in numbers}
    return {number: value for number, value in values.items() if value}


def path(number):
    """Return the file with the CPUs of an interrupt."""
    return os.path.join(PROC, str(number), "smp_affinity_list")


def cpus(text):
    """Return the CPUs of a list such as ``0-3,8``."""
    ranges = [part.partition("-") for part in text.split(",") if part]
    return {number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)}


def boot_id():
    """Return the identity of this boot: numbers of interrupts are valid until the next one."""
    return links.words(BOOT_ID) or ""
