#!/usr/bin/python3
"""SIMULATED nvidia-container-runtime: runc with the simulated hook for containers that request GPUs."""

import json
import os
import sys
from pathlib import Path

HOOK = "/usr/bin/nvidia-container-runtime-hook"


def main(arguments: "list[str]") -> None:
    """Add the hook at ``create``, then execute runc, which reports invalid calls itself."""
    if "create" in arguments:
        add_hook(Path(bundle_of(arguments)) / "config.json")
    try:
        os.execvp("runc", ["runc", *arguments])  # noqa: S606 - executing runc is the purpose
    except OSError as error:
        sys.exit(f"SIMULATED nvidia-container-runtime: runc cannot be started: {error.strerror}")


def bundle_of(arguments: "list[str]") -> str:
    """Return the container's bundle: ``--bundle DIR``, ``--bundle=DIR``, or the current directory."""
    for position, word in enumerate(arguments):
        if word in ("--bundle", "-b") and position + 1 < len(arguments):
            return arguments[position + 1]
        if word.startswith("--bundle="):
            return word.partition("=")[2]
    return "."


def add_hook(path: Path) -> None:
    """Add the hook to the container's configuration if its environment requests devices."""
    config = json.loads(path.read_text())
    hooks = config.setdefault("hooks", {}).setdefault("prestart", [])
    asks = any(pair.startswith("NVIDIA_VISIBLE_DEVICES=") for pair in config["process"].get("env", []))
    if asks and not any("nvidia-container-runtime-hook" in hook["path"] for hook in hooks):
        hooks.append({"path": HOOK, "args": [HOOK, "prestart"]})
        path.write_text(json.dumps(config))


if __name__ == "__main__":
    main(sys.argv[1:])
