"""The topology matrix of a node, queried only on request."""

from __future__ import annotations

import os
import subprocess

import pytest

from provision.facts import Parameters, RawOutput, Unknown
from provision.facts.topology import NOT_REQUESTED, TopologyFact
from provision.model import Topology, TopologyNic

PAIR = "\tGPU0\tmlx5_0\tNIC1\tCPU Affinity\nGPU0\t X \tPIX\tSYS\t0-7\nmlx5_0\tPIX\t X \tSYS\t\nNIC1\tSYS\tSYS\t X \t\n"
LEGEND = "\nLegend:\n\nNIC Legend:\n\n  NIC1: mlx5_bond_0\n"


def read(stdout: str, code: int = 0, stderr: str = ""):
    return TopologyFact().parse(RawOutput(stdout, code, stderr))


def test_cards_get_the_numa_node_from_sysfs():
    topology = read(f"{PAIR}{LEGEND}\n== cards\nmlx5_0=1\nmlx5_bond_0=-1\nrxe0=0\n")

    assert topology.nics == (TopologyNic("mlx5_0", 1), TopologyNic("mlx5_bond_0", None))
    assert topology.links == (("X", "PIX", "SYS"), ("PIX", "X", "SYS"), ("SYS", "SYS", "X"))
    assert topology.warnings == ()


@pytest.mark.parametrize(
    ("stdout", "code", "value"),
    [
        ("not asked for\n", 0, NOT_REQUESTED),
        ("", 0, Topology(())),
        ("No devices were found\n\n== cards\n", 6, Topology(())),
        ("NVIDIA-SMI has failed\n\n== cards\n", 9, Unknown("nvidia-smi topo failed: NVIDIA-SMI has failed")),
    ],
    ids=["not asked", "no nvidia-smi", "no GPU", "no driver"],
)
def test_an_invalid_matrix_has_a_reason(stdout, code, value):
    assert read(stdout, code) == value


def test_a_truncated_matrix_is_unknown_with_the_reason():
    cut = read(PAIR.splitlines()[0] + "\n")

    assert isinstance(cut, Unknown)
    assert "no row after the heading" in cut.reason


def test_a_probe_for_a_plan_does_not_start_nvidia_smi(tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho ran >>{tmp_path}/runs\necho broken\nexit 9\n")
    program.chmod(0o755)

    def run(*, topology: bool) -> subprocess.CompletedProcess[str]:
        variables = Parameters(topology=topology).environment()
        environment = {**os.environ, **variables, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        return subprocess.run(
            ["sh", "-c", TopologyFact.command], capture_output=True, text=True, env=environment, check=False
        )

    quiet, asked = run(topology=False), run(topology=True)

    assert (quiet.stdout, quiet.returncode) == ("not asked for\n", 0)
    assert (asked.stdout.splitlines()[:3], asked.returncode) == (["broken", "", "== cards"], 9)
    assert (tmp_path / "runs").read_text() == "ran\n"
