"""What the modules of the role nvidia_driver read on a node, and how they report an outcome."""

import glob
import os
import re

SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-*"
FILE = re.compile(r"^(\S*/)?nvidia([-_](current|legacy|tesla)([-_][0-9]+(xx)?)?([-_]open)?)?\.ko(\.(xz|zst|gz))?:")


def text(path):
    """Return the text of a file, empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def data(path):
    """Return the bytes of a file, empty if it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def requires_signature(root="/"):
    """Return whether the kernel loads only signed modules."""
    root = root.rstrip("/")
    if text(root + "/sys/module/module/parameters/sig_enforce").strip() == "Y":
        return True
    mode = re.search(r"\[(\w+)\]", text(root + "/sys/kernel/security/lockdown"))
    if mode:  # the kernel decides: after `mokutil --disable-validation` it ignores the setting of the firmware
        return mode.group(1) != "none"
    return any(data(path)[-1:] == b"\1" for path in glob.glob(root + SECURE_BOOT))


def module_file(kernel, root="/"):
    """Return the path of a module of the driver for a kernel; empty if there is none."""
    folder = f"{root.rstrip('/')}/lib/modules/{kernel}"
    names = [line.partition(":")[0] for line in text(folder + "/modules.dep").splitlines() if FILE.match(line)]
    return os.path.join(folder, names[0]) if names else ""


def result(cause="", explanation="", remedy="", evidence="", *, ok=False):
    """Return the outcome of a start."""
    lines = evidence.splitlines()
    return {
        "ok": ok,
        "cause": cause,
        "explanation": explanation.rstrip("."),
        "remedy": remedy,
        "evidence": lines[-1][:300] if lines else "",
    }
