"""Checks of a job's samples: each reports its problem, and only that."""

from __future__ import annotations

import dataclasses

import pytest

from provision.advisor.advice import advise_from
from provision.advisor.base import CHECKS, Confidence, Verdict
from provision.advisor.series import (
    Container,
    ContainerSample,
    Device,
    GpuUser,
    NodeSample,
    NodeSeries,
    Process,
    ProcessSample,
)
from provision.documents.sampler import GpuRecord
from provision.report.advice_report import advice_document, advice_text

SECONDS = 40
GIB = 1 << 30
RANK, WORKERS = 100, (101, 102)


class Node:
    """Return a node with a healthy job, whose samples a test changes."""

    def __init__(self, name="gpu1"):
        self.series = NodeSeries(name, cores=16.0, speeds={"eth0": 25.0})
        self.series.containers = {"job-0": Container("job-0", ("GPU-a",), has_log=True)}
        self.series.devices = {
            "GPU-a": Device("GPU-a", 0, "H100", 0, "0-7"),
            "GPU-b": Device("GPU-b", 1, "H100", 1, "8-15"),
        }
        self.series.users = (GpuUser(RANK, "GPU-a", "python3"),)
        self.gpu()
        self.process(RANK, 1, "python3", threads={"python3", "pt_data_pin"}, cores=0.5)
        for pid in WORKERS:
            self.process(pid, RANK, "pt_data_worker", cores=0.3)
        self.node()

    def gpu(self, uuid="GPU-a", **changes):
        """Sample a GPU; a value may be a function of the second."""
        usual = {
            "utilization": 95.0,
            "memory_used": 60_000.0,
            "memory_total": 80_000.0,
            "power": 600.0,
            "power_limit": 700.0,
            "temperature": 60.0,
            "clock_events": 0,
            "pcie_gen": 5.0,
            "pcie_gen_max": 5.0,
            "pcie_width": 16.0,
            "pcie_width_max": 16.0,
            "pcie_rx": 3000.0,
            "pcie_tx": 100.0,
        }
        values = {**usual, **changes}
        self.series.gpus[uuid] = [
            GpuRecord(uuid, float(t), **{k: v(t) if callable(v) else v for k, v in values.items()})
            for t in range(SECONDS)
        ]
        return self

    def process(self, pid, parent, comm, *, cores=0.0, threads=(), instance="job-0", cpus="0-7", state="S", **rates):
        """Sample a process that uses so many cores; a rate may be a function of the second."""

        def counter(rate, t):
            return int(sum(rate(s) for s in range(t)) if callable(rate) else rate * t)

        usual = {"blkio": 0, "rchar": 1e8, "syscr": 100, "read_bytes": 0, "write_bytes": 0}
        samples = [
            ProcessSample(
                float(t),
                state(t) if callable(state) else state,
                counter((lambda s: 100 * cores(s)) if callable(cores) else 100 * cores, t),
                **{name: counter(rate, t) for name, rate in {**usual, **rates}.items()},
            )
            for t in range(SECONDS)
        ]
        self.series.processes[pid] = Process(
            pid, comm, parent, instance, samples, frozenset(threads), [1], cpus, age=3600.0
        )
        return self

    def node(self, *, some=0.0, io=0.0, running=8.0, sent=0.0, **container):
        """Sample the node and its container; `some` and `io` are shares of the time, `sent` is bytes/s."""
        usual = {
            "log_lines": lambda t: t,
            "throttled": 0,
            "shm_size": 8.0 * GIB,
            "shm_used": 1.0 * GIB,
            "tfevents": lambda t: {"/logs/events.out.tfevents.1": 1000.0 * t},
            "checkpoints": lambda _: {"/out/1.pt": 1000.0, "/out/2.pt": 4000.0},
        }
        values = {**usual, **container}
        self.series.samples = [
            NodeSample(
                float(t),
                cpu_some_us=1e6 * some * t,
                io_some_us=1e6 * io * t,
                running=running,
                net={"eth0": (0.0, sent * t)},
                containers={"job-0": ContainerSample(**{k: v(t) if callable(v) else v for k, v in values.items()})},
            )
            for t in range(SECONDS)
        ]
        return self


def problems(*nodes):
    """Return check -> finding, for the findings with a problem."""
    return {finding.check: finding for finding in advise_from([node.series for node in nodes or [Node()]])}


def sawtooth(t):
    return 80.0 if t % 4 < 2 else 2.0


def slow(**changes):
    return Node().gpu(utilization=sawtooth, **changes)


def test_a_healthy_job_has_no_problems():
    """Checks that compare GPUs are unknown with a single GPU; all others are ok."""
    findings = problems()

    assert {check: one.evidence for check, one in findings.items() if one.verdict is Verdict.PROBLEM} == {}
    assert [check for check, one in findings.items() if one.verdict is Verdict.UNKNOWN] == ["straggler-rank"]


def test_all_checks_are_registered():
    ids = [check.id for check in CHECKS]

    assert len(ids) == len(set(ids)) == 21
    assert all(check.remedy for check in CHECKS)
    assert {one.check for one in advise_from([])} == set(ids)


def two_nodes(low, high, **changes):
    nodes = [Node("gpu1").gpu(utilization=low), Node("gpu2").gpu(utilization=high)]
    for node in nodes:
        node.node(**changes)
    return nodes


CASES = {
    "low-duty-cycle": ([slow()], "gpu1 GPU 0 41 %"),
    "low-duty-cycle idle": ([Node().gpu(utilization=0.0)], "idle for 39s"),
    "cpu-bound-input": ([slow().process(RANK, 1, "python3", cores=1.0)], "uses 100 % of a core"),
    "cpu-bound-input workers": ([slow().process(101, RANK, "pt_data_worker", cores=0.99)
                                 .process(102, RANK, "pt_data_worker", cores=0.99)], "data workers use 99 %"),
    "no-worker-processes": ([slow().process(101, 1, "sh").process(102, 1, "sh")], "has 0 Python children"),
    "no-pin-memory": ([Node().process(RANK, 1, "python3", threads={"python3"})], "gpu1 pid 100 (job-0)"),
    "no-prefetch": ([slow().process(101, RANK, "pt_data_worker", cores=lambda t: 1.0 if t % 4 in (1, 2) else 0.0)],
                    "work alternately (correlation -"),
    "too-many-workers": ([Node().node(running=40.0, some=0.5)], "40 runnable threads on 16 cores"),
    "too-many-workers quota": ([Node().node(throttled=lambda t: 3 * t)], "CPU quota used up 117 times"),
    "slow-storage": ([slow().node(io=0.3)], "waited for storage 30 %"),
    "slow-storage blocked": ([slow().process(101, RANK, "pt_data_worker", state="D")], "blocked in 33 %"),
    "slow-storage nfs": ([slow().node(nfs=lambda t: {"/data": (100.0 * t, 900.0 * t)})], "/data (NFS) takes 9.0 ms"),
    "many-small-files": ([Node().process(101, RANK, "pt_data_worker", rchar=4096 * 2000, syscr=2000)],
                         "2000 reads/s of 4.0 KiB"),
    "batch-too-small": ([slow(memory_used=20_000.0)], "25 % of memory at 41 % utilization"),
    "memory-nearly-full": ([Node().gpu(memory_used=78_000.0)], "98 %"),
    "shm-too-small": ([Node().node(shm_size=64.0 * (1 << 20), shm_used=1.0)], "0.06 GiB"),
    "shm-too-small full": ([Node().node(shm_used=7.9 * GIB)], "99 % used"),
    "checkpoint-too-often": ([Node().node(checkpoints={"/out/1.pt": 1000.0, "/out/2.pt": 1030.0})], "every 30s"),
    "checkpoint-too-often bursts": ([slow().node(checkpoints=None).process(
        RANK, 1, "python3", write_bytes=lambda t: 1e9 if t % 4 == 1 else 0)], "of them while a GPU waited"),
    "tensorboard-too-often": ([Node().node(tfevents=lambda t: {"/logs/e": 1e6 * t})], "976.6 KiB/s"),
    "no-tensorboard-events": ([Node().node(tfevents={})], "after 60 minutes"),
    "log-too-chatty": ([Node().node(log_lines=lambda t: 100 * t)], "100.0 lines/s and rank"),
    "pcie-bound": ([Node().gpu(pcie_gen=1.0)], "gen 1 x16 of gen 5 x16 under load"),
    "pcie-bound full": ([Node().gpu(pcie_rx=60_000.0)], "95 % of its link"),
    "numa-mismatch": ([Node().process(RANK, 1, "python3", cpus="8-15")], "GPU 0 (NUMA 0): pid 100 may use CPUs 8-15"),
    "numa-mismatch unbound": ([Node().process(RANK, 1, "python3", cpus="0-15")], "not bound"),
    "straggler-rank": (two_nodes(70.0, 95.0), "gpu1 GPU 0 70 %, gpu2 GPU 0 95 %"),
    "clocks-throttled": ([Node().gpu(clock_events=0x48, temperature=91.0)], "thermal slowdown in 100 % of samples"),
    "network-wait": (two_nodes(20.0, 20.0, sent=2.9e9), "eth0 is at 93 % of its line rate"),
}  # fmt: skip


@pytest.mark.row(31, 61)
@pytest.mark.parametrize("case", CASES)
def test_problems_are_reported_with_numbers(case):
    nodes, said = CASES[case]
    finding = problems(*nodes)[case.partition(" ")[0]]

    assert finding.verdict is Verdict.PROBLEM, finding
    assert said in finding.evidence
    assert finding.remedy
    assert isinstance(finding.confidence, Confidence)


def test_unused_gpus_and_foreign_processes_are_reported():
    unused, stranger = Node(), Node()
    unused.series.containers = {"job-0": Container("job-0", ("GPU-a", "GPU-b"))}
    stranger.series.users += (GpuUser(999, "GPU-a", "xmrig"),)

    assert "gpu1 GPU 1" in problems(unused)["wrong-device-use"].evidence
    assert "pid 999 (xmrig)" in problems(stranger)["wrong-device-use"].evidence


def test_a_job_whose_gpus_have_no_process_is_not_diagnosed_with_slow_input():
    """The first finding is that no process uses the GPUs."""
    node = Node().gpu(utilization=0.0)
    node.series.users = ()

    first, *_ = advise_from([node.series])

    assert (first.check, first.confidence) == ("wrong-device-use", Confidence.HIGH)
    assert problems(node)["low-duty-cycle"].verdict is Verdict.UNKNOWN


def test_misplaced_processes_are_reported():
    astray, intruded, parted = Node(), Node(), Node()
    astray.series.users += (GpuUser(101, "GPU-b", "python3"),)
    intruded.series.foreign = {"GPU-b": "xmrig (pid 4711 of mallory)"}
    parted.series.containers = {"job-0": Container("job-0", ("MIG-1",))}

    assert "gpu1 GPU 1: pid 101 (job-0)" in problems(astray)["wrong-device-use"].evidence
    assert "gpu1 GPU 1: xmrig (pid 4711 of mallory)" in problems(intruded)["wrong-device-use"].evidence
    assert problems(parted)["wrong-device-use"].verdict is Verdict.UNKNOWN


def test_a_job_without_gpus_on_a_node_is_unknown_there():
    """The launcher's node has GPUs of other jobs, and needs none of this job."""
    launcher = Node("gpu2").gpu(utilization=0.0)
    launcher.series.containers = {"launcher": Container("launcher")}
    launcher.series.users = ()

    findings = problems(Node("gpu1"), launcher)

    assert findings["low-duty-cycle"].verdict is Verdict.OK
    assert "gpu2" not in findings["low-duty-cycle"].evidence


def test_an_unsampled_gpu_of_the_job_prevents_ok():
    node = Node()
    node.series.containers = {"job-0": Container("job-0", ("GPU-a", "GPU-lost"))}

    assert problems(node)["low-duty-cycle"].verdict is Verdict.UNKNOWN


def test_mpirun_output_counts_for_all_ranks():
    node = Node().node(log_lines=0).process(RANK + 5, 1, "python3")
    node.series.users += (GpuUser(RANK + 5, "GPU-b", "python3"),)
    node.series.containers["launcher"] = Container("launcher", speaks_for_all=True)
    node.series.samples = [
        dataclasses.replace(one, containers={**one.containers, "launcher": ContainerSample(log_lines=int(30 * one.t))})
        for one in node.series.samples
    ]

    finding = problems(node)["log-too-chatty"]

    assert finding.verdict is Verdict.OK
    assert "launcher: 15.0 lines/s and rank" in finding.evidence


def test_a_straggler_is_reported_with_node_and_instance():
    nodes = two_nodes(70.0, 95.0)
    nodes[1].series.containers = {"job-1": Container("job-1", ("GPU-a",))}

    assert "gpu1 GPU 0 is of job-0, gpu2 GPU 0 of job-1" in problems(*nodes)["straggler-rank"].evidence


def test_two_gpus_with_the_same_utilization_are_both_named():
    assert "gpu1 GPU 0 0 %, gpu2 GPU 0 0 %" in problems(*two_nodes(0.0, 0.0))["straggler-rank"].evidence


def test_tcp_despite_rdma_is_detected_from_the_nccl_log():
    nodes = two_nodes(95.0, 95.0)
    for node in nodes:
        node.series.speeds = {"mlx5_0/1": 200.0}
        node.series.transport = "Socket"

    finding = problems(*nodes)["network-wait"]

    assert (finding.verdict, finding.confidence) == (Verdict.PROBLEM, Confidence.HIGH)


def test_a_busy_gpu_is_not_reported_for_storage_or_workers():
    """Storage and workers are reported only if they slow the GPU down."""
    node = Node().node(io=0.3).process(101, 1, "sh").process(102, 1, "sh")

    findings = problems(node)

    assert findings["slow-storage"].verdict is Verdict.OK
    assert findings["no-worker-processes"].verdict is Verdict.OK


def test_full_utilization_at_low_power_has_low_confidence():
    """Utilization shows that a kernel ran, not that all multiprocessors were busy."""
    finding = problems(Node().gpu(power=150.0))["low-duty-cycle"]

    assert (finding.verdict, finding.confidence) == (Verdict.OK, Confidence.LOW)
    assert "21 % of the power limit" in finding.evidence


def test_older_torch_is_not_reported():
    """Older torch names neither its workers nor the thread that pins memory."""
    node = (
        slow()
        .process(101, RANK, "python3")
        .process(102, RANK, "python3")
        .process(RANK, 1, "python3", threads={"python3"})
    )

    findings = problems(node)

    assert findings["no-worker-processes"].verdict is Verdict.OK
    assert findings["no-pin-memory"].verdict is Verdict.UNKNOWN


EMPTY = {
    "gpus": {},
    "users": None,
    "processes": {},
    "samples": [],
}


@pytest.mark.parametrize("name", EMPTY)
def test_missing_data_is_never_ok(name):
    whole, lacking = two_nodes(95.0, 95.0)
    setattr(lacking.series, name, EMPTY[name])
    rests = {
        "gpus": {"low-duty-cycle", "batch-too-small", "memory-nearly-full", "clocks-throttled", "pcie-bound"},
        "users": {"no-worker-processes", "no-pin-memory", "no-prefetch", "numa-mismatch", "wrong-device-use"},
        "processes": {"slow-storage", "many-small-files", "checkpoint-too-often"},
        "samples": {"too-many-workers", "shm-too-small", "tensorboard-too-often", "log-too-chatty"},
    }  # fmt: skip

    findings = problems(whole, lacking)

    assert {findings[check].verdict for check in rests[name]} == {Verdict.UNKNOWN}
    assert all("gpu2" in findings[check].evidence for check in rests[name])


def test_nodes_without_data_give_unknown():
    findings = advise_from([NodeSeries("gpu1"), NodeSeries("gpu2")])

    assert {one.verdict for one in findings} == {Verdict.UNKNOWN}
    assert all(one.evidence and one.remedy is None and one.confidence is None for one in findings)


def test_too_few_samples_give_unknown():
    node = Node()
    node.series.gpus["GPU-a"] = node.series.gpus["GPU-a"][:9]

    assert problems(node)["low-duty-cycle"].verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("field", [name for name in GpuRecord.__struct_fields__ if name not in {"uuid", "t"}])
def test_any_value_may_be_missing(field):
    findings = problems(Node().gpu(**{field: None}))

    assert all(one.evidence for one in findings.values())
    if field == "clock_events":
        assert findings["clocks-throttled"].verdict is Verdict.UNKNOWN
    if field == "pcie_rx":
        assert findings["pcie-bound"].verdict is Verdict.UNKNOWN


def test_problems_come_first_and_fit_80_columns():
    node = slow(memory_used=20_000.0)
    node.series.notes = ("SIMULATED: this nvidia-smi belongs to a lab",)
    findings = advise_from([node.series])
    text, document = advice_text("job", findings), advice_document("job", findings)

    verdicts = [one["verdict"] for one in document["findings"]]
    assert verdicts == sorted(verdicts, key=["found", "unknown", "ok"].index)
    assert max(map(len, text.splitlines())) <= 80
    assert "SIMULATED" in text
    assert (document["ok"], document["simulated"]) == (False, True)
    assert set(document["findings"][0]) == {"check", "verdict", "evidence", "remedy", "confidence", "simulated"}
