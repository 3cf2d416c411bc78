"""Utilization of GPUs, from the output of nvidia-smi."""

from provision.facts.gpu_usage import GpuProcess, GpuUsage, gpu_usage

TEXT = """\
0, GPU-a, Tesla V100-SXM2-32GB, 87, 1024, 32768, 45, 250.41, 300.00
1, GPU-b, Tesla V100-SXM2-32GB, [N/A], [N/A], 32768, 44, [Not Supported], 300.00
== processes
GPU-a, 4711, /usr/bin/python3, 1020
GPU-a, 4712, [Not Found], [N/A]
== users
 4711 alice
"""


def test_reported_and_missing_values_are_read():
    first, second = gpu_usage(TEXT)

    assert first == GpuUsage(
        0,
        "GPU-a",
        "Tesla V100-SXM2-32GB",
        87,
        1024,
        32768,
        45,
        250.41,
        300.0,
        (GpuProcess(4711, "python3", "alice", 1020), GpuProcess(4712, "[Not Found]")),
    )
    assert (second.busy_percent, second.used_mib, second.watts, second.processes) == (None, None, None, ())


def test_invalid_output_is_ignored():
    assert gpu_usage("") == ()
    assert gpu_usage("No devices were found\n") == ()
    assert gpu_usage("nan, a, b, 1, 1, 1, 1, 1, 1\n1e400,a,b,1,1,1,1,1,1\n== processes\n== users\n") == ()
