"""Registers of PCI devices, which roles and a reset read and write by the program setpci."""

import glob
import os
import re

from ansible.module_utils import platform_links as links

DEVICES, DRIVERS = "/sys/bus/pci/devices", "/sys/bus/pci/drivers"
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
READ_REQUEST, READ_REQUEST_MASK = "CAP_EXP+8.w", 0x7000
ACS, ACS_REDIRECTS = "ECAP_ACS+6.w", 0x001C
"""ReqRedir, CmpltRedir and UpstreamFwd, which send traffic between two devices through the root complex."""


def addresses(path):
    """Return the PCI addresses in the real path of a device: its bridges, then itself."""
    return [part for part in os.path.realpath(path).split("/") if ADDRESS.fullmatch(part)]


def identity(address):
    """Return vendor and device of a PCI device, empty if there is none."""
    words = [links.words(os.path.join(DEVICES, address, key)) for key in ("vendor", "device")]
    return ":".join(words) if all(words) else ""


def read(module, address, register):
    """Return the value of a register, None if the device does not have it."""
    code, out, _ = module.run_command(["setpci", "-s", address, register])
    text = out.strip()
    return int(text, 16) if code == 0 and re.fullmatch(r"[0-9a-f]{4}", text) and text != "ffff" else None


def write(module, address, register, value, mask):
    """Write the bits of a mask in a register; return an error, empty if the register has the value afterwards."""
    code, out, err = module.run_command(["setpci", "-s", address, setting(register, value, mask)])
    if code != 0:
        return f"{address}: setpci failed ({(err or out).strip()[-200:]}); a kernel in lockdown refuses it"
    now = read(module, address, register)
    return "" if now is not None and now & mask == value else f"{address}: the device does not accept the value"


def setting(register, value, mask):
    """Return the argument of setpci that writes the bits of a mask."""
    return f"{register}={value:04x}:{mask:04x}"


def read_request_bits(size):
    """Return the bits of a read request size in bytes."""
    return (size // 128).bit_length() - 1 << 12


def read_request_size(value):
    """Return the read request size in bytes of a register's value."""
    return 128 << ((value & READ_REQUEST_MASK) >> 12)


def assigned():
    """Return the devices that are assigned to virtual machines or programs (vfio)."""
    paths = glob.glob(os.path.join(DRIVERS, "*vfio*", "*:*:*"))
    return sorted({os.path.basename(path) for path in paths if ADDRESS.fullmatch(os.path.basename(path))})
