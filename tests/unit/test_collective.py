"""Who takes part in an all-reduce, with which program, and what is predicted, on nodes that are this machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from provision.errors import Interrupted, InventoryError, LaunchError, NodeError
from provision.facts.managed import Managed
from provision.model import Cluster, Connection, Node
from provision.workflow import collective
from provision.workflow.collective import all_reduce
from tests.unit.checks.conftest import VARIABLES, gpu, healthy, linked

TABLE = """\
#  Rank  0 Group  0 Pid   1 on gpu1 device  0
#  Rank  1 Group  0 Pid   1 on gpu2 device  0
#       size         count      type   redop    root     time   algbw   busbw #wrong
  2147483648     536870912     float     sum      -1   9000.0    9.00    {rate}      0
# Out of bounds values : {wrong}
"""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A docker that runs its command right here, in containers with what a test gives them."""
    (tmp_path / "docker").write_text('#!/bin/sh\nshift; shift; exec "$@"\n')
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def add(*names):
        for name in names:
            (tmp_path / name).write_text("#!/bin/sh\n")
            (tmp_path / name).chmod(0o755)

    return add


class Started(list):
    """The jobs that were started; instead of them a table is printed."""

    code = 0
    text = TABLE.format(rate="9.00", wrong="0 OK")

    def run(self, _cluster, entries, program, _facts, _say):
        if isinstance(self.text, Exception):
            raise self.text
        self.append(([(entry.name, entry.slots) for entry in entries], program))
        return self.code, self.text


@pytest.fixture
def started(monkeypatch):
    """No mpirun is on this machine; the launch itself is tested on the lab."""
    jobs = Started()
    monkeypatch.setattr(collective, "_run", jobs.run)
    return jobs


def nodes(count=2, **variables):
    """Nodes that are this machine."""
    more = {"cluster_collective_fraction": 0.75, "cluster_data_networks": ["10.77.0.0/16"], **variables}
    return tuple(
        Node(f"gpu{n}", Connection(f"gpu{n}", local=True, become=False), {**VARIABLES, **more})
        for n in range(1, count + 1)
    )


def known(count=2, **changes):
    """Idle nodes with one A100 and one card of 100 Gbit/s."""
    return {f"gpu{n}": dataclasses.replace(healthy(n), managed=Managed(), **changes) for n in range(1, count + 1)}


def measured(chosen, facts):
    """Measure over these nodes."""
    return all_reduce(Cluster("test", Path("hosts.yml"), chosen), chosen, facts, lambda _: None)


def test_gpus_are_measured_by_nccl_tests_and_compared_with_the_prediction(programs, started):
    """The prediction is that of `provision place`: two GPUs over cards of 100 Gbit/s."""
    programs("all_reduce_perf")
    result = measured(nodes(), known())

    assert started[0][0] == [("gpu1", 1), ("gpu2", 1)]
    assert started[0][1].command[0] == "all_reduce_perf"
    assert (result.program, result.memory, result.ranks, result.bus_bandwidth) == ("nccl-tests", "gpu", 2, 9.0)
    assert result.predicted == pytest.approx(12.5, abs=1)
    assert result.left_out == {}


def test_busy_and_unreachable_nodes_are_excluded(programs, started):
    """Nothing runs beside a job."""
    programs("all_reduce_perf")
    facts = known(4)
    facts["gpu3"] = dataclasses.replace(facts["gpu3"], managed=Managed(jobs=("the job mnist holds GPU 0",)))
    facts["gpu4"] = NodeError("it did not answer", node="gpu4")
    result = measured(nodes(4), facts)

    assert [name for name, _ in started[0][0]] == list(result.nodes) == ["gpu1", "gpu2"]
    assert "mnist" in result.left_out["gpu3"]
    assert "did not answer" in result.left_out["gpu4"]


def test_nodes_without_gpus_are_not_measured_if_others_have_some(programs, started):
    """They are no part of what is measured."""
    programs("all_reduce_perf")
    facts = known(3)
    facts["gpu3"] = dataclasses.replace(facts["gpu3"], gpus=(), gpu_pci=())
    result = measured(nodes(3), facts)

    assert [name for name, _ in started[0][0]] == ["gpu1", "gpu2"]
    assert result.left_out == {}


def test_simulated_gpus_are_measured_in_host_memory_with_a_rank_for_each_node(programs, started, monkeypatch):
    """And never compared."""
    programs()
    monkeypatch.setattr(
        "provision.facts.collective_tools.parse_tools", lambda *_: frozenset({"python3", "timeout", "mpi4py", "numpy"})
    )
    facts = known(
        simulated={"nvidia": "nvidia-smi is a stand-in"}, gpus=(gpu(0), gpu(1)), topology=linked("PIX", "PIX")
    )
    facts = {
        name: dataclasses.replace(result, gpu_pci=("0000:06:00.0", "0000:07:00.0")) for name, result in facts.items()
    }
    result = measured(nodes(), facts)

    assert started[0][0] == [("gpu1", 1), ("gpu2", 1)]
    assert (result.program, result.memory, result.simulated, result.predicted) == ("mpi4py", "host", True, None)


def test_an_image_without_a_benchmark_program_is_reported(programs, started):
    """Nothing is started then."""
    programs()
    result = measured(nodes(), known())

    assert started == []
    assert not result.measured
    assert "no program for an all-reduce" in result.reason
    assert "nccl-tests" in result.remedy


@pytest.mark.parametrize(
    ("code", "text", "said"),
    [
        (1, "all_reduce_perf: error while loading shared libraries: libnccl.so.2\n", "libnccl.so.2"),
        (124, TABLE.partition("# Out")[0].format(rate="9.00"), "did not finish"),
        (0, TABLE.format(rate="9.00", wrong="0 OK").replace("Rank  1", "Rank  0"), "1 of 2 ranks"),
    ],
)
def test_a_run_without_bandwidth_has_a_reason(programs, started, code, text, said):
    """It is no measurement."""
    programs("all_reduce_perf")
    started.code, started.text = code, text
    result = measured(nodes(), known())

    assert not result.measured
    assert said in result.reason
    assert len(started) == 1


def test_a_gpu_leased_by_another_job_is_reported(programs, started):
    """The leases are those of `provision run`."""
    programs("all_reduce_perf")
    started.text = LaunchError("GPU-0 is held by the job mnist", node="gpu1", remedy="wait until it has ended")
    result = measured(nodes(), known())

    assert not result.measured
    assert "mnist" in result.reason
    assert result.remedy == "wait until it has ended"


def test_ctrl_c_ends_the_verification(programs, started):
    """It is not a measurement that failed."""
    programs("all_reduce_perf")
    started.text = Interrupted("interrupted; the job was ended on all its nodes")
    with pytest.raises(Interrupted):
        measured(nodes(), known())


def test_wrong_sums_are_counted(programs, started):
    """The program's exit code is not 0 then either."""
    programs("all_reduce_perf")
    started.code, started.text = 1, TABLE.format(rate="9.00", wrong="7 FAILED")
    result = measured(nodes(), known())

    assert (result.wrong, result.bus_bandwidth) == (7, 9.0)
    assert len(started) == 1


@pytest.mark.parametrize("value", ["{{ fraction }}", True, -1, 7, None])
def test_an_invalid_fraction_is_refused_before_the_measurement(programs, started, value):
    """A silent 0 would let everything pass."""
    programs("all_reduce_perf")
    with pytest.raises(InventoryError, match="cluster_collective_fraction"):
        measured(nodes(cluster_collective_fraction=value), known())
    assert started == []
