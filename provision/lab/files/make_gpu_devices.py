#!/usr/bin/python3 -IS
"""SIMULATED: makes the device files of the GPUs that /etc/provision-lab/machine.json describes; `remove` removes them.

No driver is behind the numbers, so that nothing can open the files.
"""

import json
import os
import stat
import sys

MACHINE = os.environ.get("PROVISION_LAB_MACHINE_FILE", "/etc/provision-lab/machine.json")
FOLDER = os.environ.get("PROVISION_LAB_DEVICES", "/dev")
NVIDIA, CONTROL = 195, 255


def device_files() -> "dict[str, int]":
    """Return the paths of the machine's device files and their minor numbers."""
    with open(MACHINE, encoding="utf-8") as stream:
        count = len(json.load(stream)["gpus"])
    return {f"{FOLDER}/nvidia{minor}": minor for minor in range(count)} | {f"{FOLDER}/nvidiactl": CONTROL}


def main() -> None:
    """Make the files, or remove them."""
    os.umask(0)
    for path, minor in device_files().items():
        if sys.argv[1:] == ["remove"]:
            if os.path.lexists(path):
                os.unlink(path)
        elif not os.path.lexists(path):
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(NVIDIA, minor))


if __name__ == "__main__":
    main()
