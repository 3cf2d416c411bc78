"""Which arguments of the kernel the role fabric_host may set, for the role and for plans.

``roles/fabric_host/filter_plugins/fabric_host_arguments.py`` is a link to this file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_FORM = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}(?:=[A-Za-z0-9_.,:=@/+-]{1,200})?")
"""No character has a meaning for GRUB, its settings file or a shell."""
_ROOT = "the node may not boot with another value"
_BOOT = frozenset(
    {"root", "rootfstype", "rootflags", "rootdelay", "rootwait", "ro", "rw", "init", "rdinit", "initrd", "noinitrd"}
    | {"resume", "nfsroot", "ip", "boot_image", "mem", "memmap", "maxcpus", "nr_cpus", "nosmp", "noapic", "nolapic"}
    | {"acpi", "single", "emergency", "rescue", "recovery", "s", "console", "nomodeset"}
)
_PAGES = "use fabric_host_hugepages_2mib or fabric_host_hugepages_1gib"
_POLICY = "it belongs to the security policy of the node"
_DRIVERS = "it belongs to the roles of drivers"
_OWNED = {
    "panic": "it belongs to the role kernel",
    **dict.fromkeys(("hugepages", "hugepagesz", "default_hugepagesz"), _PAGES),
    **dict.fromkeys(("selinux", "enforcing", "apparmor", "security", "lsm", "lockdown"), _POLICY),
    **dict.fromkeys(("modprobe.blacklist", "module_blacklist"), _DRIVERS),
    "crashkernel": "it belongs to the crash dumps of the node",
}
"""Name of an argument -> why another value is not that of this role."""
_PREFIXES = ("rd.", "systemd.", "luks.")


def argument_problem(argument: object) -> str:
    """Return why the role does not set an argument of the kernel; empty if it may."""
    text = str(argument)
    if not _FORM.fullmatch(text):
        return "it is not NAME or NAME=VALUE of letters, digits and _.,:=@/+-"
    name = text.partition("=")[0].replace("-", "_").lower()  # the kernel does not distinguish - and _
    if name in _BOOT or name.startswith(_PREFIXES):
        return _ROOT
    return _OWNED.get(name, "")


def argument_problems(arguments: Iterable[object]) -> list[str]:
    """Return each refused argument with the reason."""
    return [f"{one}: {problem}" for one in arguments if (problem := argument_problem(one))]


class FilterModule:
    """The filters of the role fabric_host for arguments of the kernel."""

    def filters(self) -> dict[str, object]:
        """Return the filters by name."""
        return {"fabric_host_argument_problems": argument_problems}
