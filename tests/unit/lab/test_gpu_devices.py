"""Device files of SIMULATED GPUs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from provision.connectors.container import NODE_DEVICE_RULES
from provision.lab.machines import load, names, to_json

PROGRAM = Path(__file__).parents[3] / "provision/lab/files/make_gpu_devices.py"


@pytest.mark.parametrize("machine", names())
def test_each_gpu_of_a_machine_has_a_file_that_nodes_may_use(
    machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Container nodes may use these numbers one by one, so that Slurm can take single ones from a job."""
    description = tmp_path / "machine.json"
    description.write_text(to_json(load(machine)))
    monkeypatch.setenv("PROVISION_LAB_MACHINE_FILE", str(description))
    spec = importlib.util.spec_from_file_location("make_gpu_devices", PROGRAM)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    files = module.device_files()

    assert len(files) == len(json.loads(description.read_text())["gpus"]) + 1
    assert {f"c 195:{minor} rwm" for minor in files.values()} <= set(NODE_DEVICE_RULES)
