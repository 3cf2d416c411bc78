"""The simulated hook gives a container exactly the requested GPUs, and writes only into the container."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from provision.lab.machines import load, to_json

HOOK = Path(__file__).parents[3] / "provision/lab/files/nvidia_container_runtime_hook.py"


@pytest.fixture
def prestart(tmp_path):
    """Call the hook for a container that requests devices of a dgx1v."""
    machine, program = tmp_path / "machine.json", tmp_path / "nvidia-smi"
    machine.write_text(to_json(load("dgx1v")))
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "hook.py").write_text(
        HOOK.read_text()
        .replace('"/etc/provision-lab/machine.json"', repr(str(machine)), 1)
        .replace('"/usr/bin/nvidia-smi"', repr(str(program)), 1)
    )
    root = tmp_path / "bundle/rootfs"
    (root / "usr/bin").mkdir(parents=True)

    def run(devices: str | None) -> subprocess.CompletedProcess[str]:
        environment = [] if devices is None else [f"NVIDIA_VISIBLE_DEVICES={devices}"]
        config = {"root": {"path": "rootfs"}, "process": {"env": ["PATH=/bin", *environment]}}
        (tmp_path / "bundle/config.json").write_text(json.dumps(config))
        state = json.dumps({"ociVersion": "1.0.2", "pid": 1, "bundle": str(tmp_path / "bundle")})
        argv = [sys.executable, "-I", str(tmp_path / "hook.py"), "prestart"]
        return subprocess.run(argv, input=state, capture_output=True, text=True, check=False)

    run.root = root
    return run


def visible(root: Path) -> list[int]:
    return json.loads((root / "etc/provision-lab/machine.json").read_text())["visible"]


@pytest.mark.parametrize(("asked", "seen"), [("all", list(range(8))), ("0,2", [0, 2]), ("7", [7])])
def test_a_container_gets_the_requested_devices(prestart, asked, seen):
    """`--gpus` with a list reaches the container as that list."""
    done = prestart(asked)

    assert (done.returncode, done.stderr) == (0, "")
    assert visible(prestart.root) == seen


@pytest.mark.parametrize("asked", [None, "", "void", "none"])
def test_a_container_without_requested_devices_is_unchanged(prestart, asked):
    """Without requested GPUs, no file is written to a container."""
    assert prestart(asked).returncode == 0
    assert not (prestart.root / "etc").exists()


@pytest.mark.parametrize("asked", ["8", "0,9", "GPU-11111111-2222-3333-4444-555555555555", "-1"])
def test_a_device_that_does_not_exist_stops_the_container(prestart, asked):
    """The error names the device, and nothing was written."""
    done = prestart(asked)

    assert done.returncode == 1
    assert f"device error: {asked}: unknown device" in done.stderr
    assert not (prestart.root / "etc").exists()


def test_a_container_without_python_gets_a_message(prestart):
    """Instead of a broken program the container has one that explains."""
    prestart("all")

    assert "has none" in (prestart.root / "usr/bin/nvidia-smi").read_text()


def test_a_link_out_of_the_container_is_not_followed(prestart, tmp_path):
    """An image cannot make the hook write on the node."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (prestart.root / "etc").symlink_to(outside)

    done = prestart("all")

    assert done.returncode == 1
    assert "leads out of it" in done.stderr
    assert not list(outside.iterdir())
