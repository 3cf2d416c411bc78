#!/usr/bin/python3
"""SIMULATED nvidia-container-cli: ``info`` and ``list`` for the machine that the lab describes."""

import subprocess
import sys

VERSION = "@VERSION@"
FIELDS = "driver_version,index,name,uuid,pci.bus_id,compute_cap"


def main(arguments: "list[str]") -> int:
    """Run one call."""
    words = [word for word in arguments if not word.startswith("-")]
    if "--version" in arguments or "-V" in arguments:
        sys.stdout.write(f"cli-version: {VERSION}\nlib-version: {VERSION}\n")
        return 0
    if words == ["info"]:
        return info()
    if words == ["list"]:
        sys.stdout.write("/usr/bin/nvidia-smi\n")
        return 0
    sys.stderr.write("SIMULATED nvidia-container-cli: only info, list and --version are there\n")
    return 1


def info() -> int:
    """Print driver and GPUs."""
    command = ["nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv,noheader"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    if done.returncode:
        sys.stderr.write("nvidia-container-cli: initialization error: no (SIMULATED) driver\n")
        return 1
    sys.stderr.write("SIMULATED: these GPUs are described by a provision lab\n")
    rows = [line.split(", ") for line in done.stdout.decode().splitlines()]
    sys.stdout.write(f"NVRM version:   {rows[0][0]}\n")
    for _, index, name, uuid, bus, architecture in rows:
        sys.stdout.write(
            f"\nDevice Index:   {index}\nDevice Minor:   {index}\nModel:          {name}\nGPU UUID:       {uuid}\n"
            f"Bus Location:   {bus}\nArchitecture:   {architecture}\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
