"""Output of the lab's simulated nvidia-smi for described machines, without starting the program."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from provision.lab.machines import Machine, load, parse, to_json

__all__ = ["Done", "described", "run", "run_file"]

FILE = Path(__file__).parents[2] / "provision/lab/files/nvidia_smi.py"
PROGRAM = runpy.run_path(str(FILE))
"""The program as a node runs it, but in this process: starting Python for each call would take most of the time."""


@dataclass
class Done:
    """The result of a call."""

    returncode: int
    stdout: str
    stderr: str


def run_file(path: Path, *arguments: str) -> Done:
    """Run the program with a machine's file."""
    main = PROGRAM["main"]
    before = main.__globals__["MACHINE"]
    main.__globals__["MACHINE"] = str(path)
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(list(arguments))
    finally:
        main.__globals__["MACHINE"] = before
    return Done(code, out.getvalue(), err.getvalue())


def run(machine: str | Machine, *arguments: str, **changes: Any) -> Done:
    """Run the program for a machine, with changed keys of its file, e.g. `driver_version`."""
    document = json.loads(to_json(load(machine) if isinstance(machine, str) else machine))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "machine.json"
        path.write_text(json.dumps({**document, "seed": "node 1", **changes}), encoding="utf-8")
        return run_file(path, *arguments)


def described(
    gpus: Sequence[str],
    nics: Mapping[str, str] | None = None,
    *,
    numa: Mapping[int, str] | None = None,
    direct: Sequence[tuple[int, int, int]] = (),
    switched: int = 0,
) -> Machine:
    """Return a machine from the positions of its devices in the PCIe tree.

    Args:
        gpus: the position of each GPU, e.g. ``0/0/a``.
        nics: the position of each network card by name.
        numa: the CPUs of each NUMA node.
        direct: NVLinks between two GPUs: GPU, GPU, number of links.
        switched: NVLinks from each GPU to the switches.
    """
    product = {"model": "A", "architecture": "B", "compute_capability": "8.6"}
    product |= {"memory_mib": 10, "power_limit_watts": 5, "pcie_generation": 4}
    links = {"switched": switched} if switched else {"direct": [list(link) for link in direct]}
    document = {
        "name": "described",
        "description": "a machine of a test",
        "driver_version": "550.90.07",
        "cuda_version": "12.4",
        "gpu": product,
        "numa": dict(numa or {0: "0-15", 1: "16-31"}),
        "gpus": [{"bus": f"{16 + number:02x}:00.0", "at": at} for number, at in enumerate(gpus)],
        "nics": [
            {"name": name, "bus": f"{128 + number:02x}:00.0", "at": at, "rate_gbps": 100, "link": "InfiniBand"}
            for number, (name, at) in enumerate((nics or {}).items())
        ],
        **({"nvlink": links} if direct or switched else {}),
    }
    return parse(yaml.safe_dump(document), source="described.yml")
