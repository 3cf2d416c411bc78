#!/usr/bin/python3
"""SIMULATED nvidia-container-runtime-hook: installs the simulated nvidia-smi in a container.

docker calls it as ``nvidia-container-runtime-hook prestart``, with the container's state on stdin, whenever ``--gpus``
asks for GPUs. NVIDIA_VISIBLE_DEVICES in the container's environment names them. No device node is made: there is no
GPU here. Only containers that have Python can run the stand-in; others get a program that says so.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

MACHINE = Path("/etc/provision-lab/machine.json")
PROGRAM = Path("/usr/bin/nvidia-smi")
WITHOUT_PYTHON = """#!/bin/sh
echo 'SIMULATED: the stand-in for nvidia-smi needs /usr/bin/python3, and this container has none' >&2
exit 127
"""


def main(arguments: "list[str]") -> int:
    """Handle ``prestart``; other calls need no action."""
    if arguments[:1] in (["--version"], ["-version"]):
        sys.stdout.write("NVIDIA Container Runtime Hook (SIMULATED by a provision lab)\n")
        return 0
    if arguments[-1:] != ["prestart"]:
        return 0
    bundle = Path(json.load(sys.stdin)["bundle"])
    config = json.loads((bundle / "config.json").read_text())
    environment = dict(pair.partition("=")[::2] for pair in config["process"].get("env", []))
    requested = environment.get("NVIDIA_VISIBLE_DEVICES", "")
    if requested in ("", "void", "none"):
        return 0
    root = bundle / config["root"]["path"]  # joining an absolute path returns that path
    try:
        machine = json.loads(MACHINE.read_text())
    except OSError as error:
        return fail(f"initialization error: no (SIMULATED) driver: {MACHINE}: {error.strerror}")
    visible = visible_devices(requested, len(machine["gpus"]))
    if visible is None:
        return fail(f"device error: {requested}: unknown device")
    install(root, {**machine, "visible": visible, "seed": seed()})
    return 0


def visible_devices(requested: str, count: int) -> "list[int] | None":
    """Return the indices that `wanted` names: ``all``, indices or UUIDs; None when one does not exist."""
    if requested == "all":
        return list(range(count))
    uuids = [] if requested.replace(",", "").isdecimal() else own_uuids()
    visible = []
    for name in requested.split(","):
        index = int(name) if name.isdecimal() else (uuids.index(name) if name in uuids else -1)
        if not 0 <= index < count:
            return None
        visible.append(index)
    return sorted(set(visible))


def own_uuids() -> "list[str]":
    """Return the UUIDs of this node's GPUs, in the order of nvidia-smi."""
    done = subprocess.run([PROGRAM, "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return re.findall(r"GPU-[0-9a-f-]{36}", done.stdout.decode())


def seed() -> str:
    """Return the seed of the node's UUIDs, so that a container shows the same ones."""
    try:
        return Path("/etc/machine-id").read_text().strip() or os.uname().nodename
    except OSError:
        return os.uname().nodename


def install(root: Path, machine: "dict[str, Any]") -> None:
    """Write the simulated program and its description into the container's layer, never through a link out of it."""
    python = inside(root, "usr/bin/python3")
    put(inside(root, "usr/bin/nvidia-smi"), PROGRAM.read_text() if os.path.lexists(python) else WITHOUT_PYTHON, 0o755)
    put(inside(root, "etc/provision-lab/machine.json"), json.dumps(machine), 0o644)
    put(
        inside(root, "usr/share/provision/simulated/nvidia-smi"),
        f"nvidia-smi describes a machine of the lab ({machine['simulated']})\n",
        0o644,
    )


def inside(root: Path, path: str) -> Path:
    """Return `path` below `root`; refuse links that lead out of the container."""
    target = root.resolve() / path
    parent = target.parent.resolve()
    if parent != root.resolve() and root.resolve() not in parent.parents:
        sys.exit(fail(f"mount error: /{path} of the container leads out of it"))
    return parent / target.name


def put(path: Path, text: str, mode: int) -> None:
    """Replace a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(path):
        path.unlink()
    path.write_text(text)
    path.chmod(mode)


def fail(text: str) -> int:
    """Report why the container cannot start; docker shows it to the user."""
    sys.stderr.write(f"nvidia-container-cli: {text} (SIMULATED)\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
