"""What the reference documents measure, as they measure it, on two nodes with two SIMULATED GPUs each.

The program is a stand-in that prints made-up figures in the documents' form: torch is in no image of the lab.
"""

from __future__ import annotations

import pytest

from tests.integration.conftest import LAB

PROGRAM = """
import os, sys
rank, size = (int(os.environ["OMPI_COMM_WORLD_" + name]) for name in ("RANK", "SIZE"))
speed = {"vgg16": 100.0, "resnet50": 300.0}[sys.argv[1]]
near = len({os.environ.get("PROVISION_NODE", ""), *os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")}) > 2
speed *= 1.9 if near else 1.0
speed *= 1.0 if size == 1 else 0.95 if os.environ.get("LIGHT_2D_ALLREDUCE") == "1" else 0.9
if rank == 0:
    values = [speed + step / 10 for step in range(-5, 5)]
    print(f"Model: {sys.argv[1]}\\nBatch size: 64\\nNumber of GPUs: {size}\\nRunning warmup...\\nRunning benchmark...")
    for number, value in enumerate(values):
        print(f"Iter #{number}: {value:.1f} img/sec per GPU")
    mean = sum(values) / 10
    print(f"Img/sec per GPU: {mean:.1f} +-0.6\\nTotal img/sec on {size} GPU(s): {mean * size:.1f} +-{0.6 * size:.1f}")
"""
"""Two GPUs that were chosen by their links make it faster, and so does LightCC."""
COMMAND = ("--", "python3", "-c", PROGRAM)


@pytest.mark.slow
@pytest.mark.row(19, 20, 56)
def test_topology_aware_and_default_placement_are_compared_for_each_model(provision, cluster):
    """One command runs each model both ways, and says how much faster which is."""
    assert cluster["nodes"]
    words = ("--lab", LAB, "--json", "--a", "--gputopology", "-n", "2")
    comparison = provision.ok("bench", "ab", *words, *COMMAND, "{model}")

    pairs = comparison.document["comparisons"]
    assert [(pair["model"], pair["gpus"], pair["verdict"]) for pair in pairs] == [
        ("vgg16", 2, "real"),
        ("resnet50", 2, "real"),
    ]
    assert all(pair["ratio"] == pytest.approx(1.9, rel=0.01) for pair in pairs)
    assert "Iter #9: " in comparison.err


@pytest.mark.slow
@pytest.mark.row(19, 50, 55)
def test_one_gpu_one_node_and_two_nodes_are_measured_with_and_without_lightcc(provision, cluster):
    """The documents' three sizes; the efficiency is T(n) / (n T(1)), and the two are compared size by size."""
    assert cluster["nodes"]
    scale = ("bench", "scale", "--lab", LAB, "--json")
    plain = provision.ok(*scale, "--name", "plain", *COMMAND, "resnet50").document["runs"]
    words = ("--name", "light", "--sizes", "1,2,4", "--preset", "horovod-lightcc")
    light = provision.ok(*scale, *words, *COMMAND, "resnet50").document["runs"]

    assert [(run["gpus"], round(run["efficiency"], 2)) for run in plain] == [(1, 1.0), (2, 0.9), (4, 0.9)]
    assert [(run["gpus"], round(run["efficiency"], 2)) for run in light] == [(1, 1.0), (2, 0.95), (4, 0.95)]
    compared = provision.ok("bench", "compare", "light", "plain", "--json").document["comparisons"]
    assert [(pair["gpus"], pair["verdict"]) for pair in compared] == [(1, "noise"), (2, "real"), (4, "real")]
