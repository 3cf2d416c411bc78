#!/usr/bin/python3
"""SIMULATED nvidia-ctk: ``--version``, ``cdi generate``, ``cdi list`` and ``runtime configure``, for lab nodes."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

VERSION = "@VERSION@"
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
DAEMON = "/etc/docker/daemon.json"
RUNTIME = {"path": "nvidia-container-runtime", "args": []}
MOUNTED = ("/usr/bin/nvidia-smi", "/etc/provision-lab/machine.json")


def main(arguments: "list[str]") -> int:
    """Run one call."""
    if {"--version", "-v"} & set(arguments[:1]):
        sys.stdout.write(f"NVIDIA Container Toolkit CLI version {VERSION} (SIMULATED by a provision lab)\n")
        return 0
    options = parser().parse_args(arguments)
    sys.stderr.write("SIMULATED: this nvidia-ctk belongs to a provision lab\n")
    return int(options.action(options))


def parser() -> argparse.ArgumentParser:
    """Return the parser for the supported calls of the real tool."""
    top = argparse.ArgumentParser(prog="nvidia-ctk", description=__doc__)
    groups = verbs(top)
    cdi = verbs(groups.add_parser("cdi"))
    make = cdi.add_parser("generate")
    make.add_argument("--output", default="")
    make.set_defaults(action=generate)
    cdi.add_parser("list").set_defaults(action=list_devices)
    configure = verbs(groups.add_parser("runtime")).add_parser("configure")
    configure.add_argument("--runtime", choices=["docker"], default="docker")
    configure.add_argument("--config", default=DAEMON)
    configure.add_argument("--nvidia-set-as-default", "--set-as-default", action="store_true", dest="default")
    configure.add_argument("--dry-run", action="store_true")
    configure.set_defaults(action=configure_runtime)
    return top


def verbs(parent: argparse.ArgumentParser) -> Any:
    """Return the group of the verbs of a parser, one of which is required."""
    group = parent.add_subparsers(dest="verb")
    group.required = True  # a parameter in Python 3.7
    return group


def gpus() -> "list[list[str]]":
    """Return index and UUID of each GPU, as nvidia-smi prints them."""
    command = ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    except (OSError, subprocess.CalledProcessError):
        sys.exit("nvidia-ctk: there is no (SIMULATED) driver: nvidia-smi does not answer")
    return [line.split(", ") for line in done.stdout.decode().splitlines()]


def generate(options: argparse.Namespace) -> int:
    """Write a CDI specification with the simulated nvidia-smi; JSON is valid YAML."""
    rows = gpus()
    names = [name for row in rows for name in row] + ["all"]
    mounts = [
        {"hostPath": path, "containerPath": path, "options": ["ro", "nosuid", "nodev", "bind"]}
        for path in MOUNTED
        if Path(path).exists()
    ]
    document = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "annotations": {"simulated": "by a provision lab"},
        "devices": [{"name": name, "containerEdits": {"env": [f"PROVISION_SIMULATED_GPU={name}"]}} for name in names],
        "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"], "mounts": mounts},
    }
    text = json.dumps(document, indent=2) + "\n"
    if not options.output:
        sys.stdout.write(text)
        return 0
    target = Path(options.output)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    return 0


def list_devices(_: argparse.Namespace) -> int:
    """Print the names of the devices in all specifications that this program wrote."""
    names = []
    for folder in CDI_FOLDERS:
        for path in sorted(Path(folder).glob("*nvidia*.*")):
            try:
                document = json.loads(path.read_text())
            except (OSError, ValueError):
                continue
            names += [f"{document['kind']}={device['name']}" for device in document["devices"]]
    sys.stderr.write(f"Found {len(names)} CDI devices\n")
    sys.stdout.write("".join(f"{name}\n" for name in names))
    return 0


def configure_runtime(options: argparse.Namespace) -> int:
    """Add the runtime to docker's configuration and preserve other settings; ``--dry-run`` only prints it."""
    path = Path(options.config)
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        document = {}
    except ValueError as error:
        sys.exit(f"nvidia-ctk: {path} is not valid JSON: {error}")
    document.setdefault("runtimes", {})["nvidia"] = RUNTIME
    if options.default:
        document["default-runtime"] = "nvidia"
    text = json.dumps(document, indent=4) + "\n"
    if options.dry_run:
        sys.stdout.write(text)
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
