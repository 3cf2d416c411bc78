"""Arguments of the kernel in the boot menu: those of all entries, and how roles and a reset change them.

Debian and Ubuntu have a settings file that GRUB's generator reads; Enterprise Linux has grubby, which edits every entry and
the settings for new kernels.
"""

import os
import re

from ansible.module_utils.platform_origin import load_json

BOOT = "/boot"
PROGRAMS = "/usr/sbin"
KERNEL_UPGRADE = "/var/lib/provision/kernel/upgrade.json"
RECOVERY = frozenset({"single", "recovery", "systemd.unit=rescue.target"})
_LINUX = re.compile(r"^\s*linux(?:16|efi)?\s+\S*vmlinu[xz]-\S+\s+(.*)$", re.MULTILINE)
_INFO = re.compile(r'^args="(.*)"$', re.MULTILINE)


def boot_tool():
    """Return the program that changes the boot menu: `grubby`, `grub-mkconfig`, or empty for another boot loader."""
    if os.access(os.path.join(PROGRAMS, "grubby"), os.X_OK):
        return "grubby"
    has_menu = os.path.isfile(menu_path()) and os.access(os.path.join(PROGRAMS, "grub-mkconfig"), os.X_OK)
    return "grub-mkconfig" if has_menu else ""


def menu_path():
    """Return the path of GRUB's menu on Debian and Ubuntu."""
    return os.path.join(BOOT, "grub/grub.cfg")


def menu_arguments(text):
    """Return the arguments of each kernel in a menu of GRUB, without recovery entries."""
    entries = [frozenset(match.split()) for match in _LINUX.findall(text)]
    return [words for words in entries if not words & RECOVERY]


def info_arguments(text, options=""):
    """Return the arguments of each entry from the output of `grubby --info=ALL`; `options` are those of $kernelopts."""
    return [frozenset(match.replace("$kernelopts", options).split()) for match in _INFO.findall(text)]


def entries(module, tool):
    """Return the arguments of each entry of the boot menu."""
    if tool == "grubby":
        code, out, _ = module.run_command(["grubby", "--info=ALL"])
        return info_arguments(out, _kernel_options()) if code == 0 else []
    try:
        with open(menu_path(), encoding="utf-8", errors="replace") as stream:
            return menu_arguments(stream.read())
    except OSError:
        return []


def _kernel_options():
    """Return the variable kernelopts of GRUB's environment, which the entries of Enterprise Linux 8 use."""
    try:
        with open(os.path.join(BOOT, "grub2/grubenv"), encoding="utf-8", errors="replace") as stream:
            lines = stream.read().splitlines()
    except OSError:
        return ""
    return next((line.partition("=")[2] for line in lines if line.startswith("kernelopts=")), "")


def write_menu(module):
    """Write GRUB's menu anew; return an error, empty if there is none."""
    code, out, err = module.run_command(["grub-mkconfig", "-o", menu_path()])
    return f"`grub-mkconfig` failed ({(err or out).strip()[-200:]})" if code != 0 else ""


def edit_entries(module, add, remove):
    """Add arguments to all entries and remove others, with grubby; return an error, empty if there is none."""
    words = [f"--remove-args={' '.join(remove)}"] * bool(remove) + [f"--args={' '.join(add)}"] * bool(add)
    code, out, err = module.run_command(["grubby", "--update-kernel=ALL", *words])
    return f"`grubby` failed ({(err or out).strip()[-200:]})" if code != 0 else ""


def kernel_on_trial():
    """Return the kernel that an upgrade boots on trial, empty if there is none."""
    upgrade = load_json(KERNEL_UPGRADE)
    is_on_trial = isinstance(upgrade, dict) and upgrade.get("phase") in ("rebooting", "trial")
    return str(upgrade.get("to")) if is_on_trial else ""
