"""The module files of the NVIDIA driver on a node."""

import os
import re

from ansible.module_utils.platform_dkms import text

FILE = re.compile(r"^(\S*/)?nvidia([-_](current|legacy|tesla)([-_][0-9]+(xx)?)?([-_]open)?)?\.ko(\.(xz|zst|gz))?:")


def module_file(kernel, root="/"):
    """Return the path of a module of the driver for a kernel; empty if there is none."""
    folder = f"{root.rstrip('/')}/lib/modules/{kernel}"
    names = [line.partition(":")[0] for line in text(folder + "/modules.dep").splitlines() if FILE.match(line)]
    return os.path.join(folder, names[0]) if names else ""
