"""What is slow and who is to blame; who takes part and with which memory."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from provision.checks import bandwidth_plan, judge, judge_cluster
from provision.checks.bandwidth import blame, is_good
from provision.facts import Unknown
from provision.facts.container import Process
from provision.facts.peer_modules import NvidiaModules
from provision.facts.perftest import Holder, Readiness
from provision.facts.rails import Endpoint, NodeRails
from provision.model import Bandwidth, CheckStatus, Cluster, PairBandwidth, Port
from provision.model.reason import reason
from provision.report.reasons import remedy
from tests.support.reasons import shown
from tests.unit.checks.conftest import healthy, linked, make_node

CUT = "packages are lost"


def pair(a, b, gbit_s=98.0, *, device="mlx5_0", rate=100.0, memory="host"):
    """One measurement; without a bandwidth it failed."""
    reason = CUT if gbit_s is None else ""
    return PairBandwidth(Port(a, device), Port(b, device), memory, gbit_s, rate, reason)


def table(count, slow=lambda a, b: False, value=40.0):  # noqa: ARG005
    """All pairs both ways of so many nodes; where `slow` says so, with another value."""
    names = [f"gpu{number}" for number in range(1, count + 1)]
    return tuple(pair(a, b, value if slow(a, b) else 98.0) for a, b in itertools.permutations(names, 2))


def judged(pairs, count=4):
    """The cluster's verdict and each node's."""
    nodes = tuple(make_node(f"gpu{n}", f"10.77.0.{n}") for n in range(1, count + 1))
    cluster = Cluster("test", __import__("pathlib").Path("hosts.yml"), nodes)
    facts = {node.name: healthy() for node in nodes}
    of_cluster = {r.id: r for r in judge_cluster(cluster, nodes, facts, None, pairs)}
    of_nodes = {n.name: {r.id: r for r in judge(n, facts[n.name], cluster, bandwidth=pairs)} for n in nodes}
    key = "rdma_stack.bandwidth"
    return of_cluster[key], {name: results[key] for name, results in of_nodes.items()}


def measured(*pairs, **more):
    """A measurement among the nodes of `pairs`."""
    return Bandwidth(tuple(pairs), tuple(dict.fromkeys(p.a.node for p in pairs)), **more)


@pytest.mark.parametrize(
    ("value", "rate", "memory", "good"),
    [
        (92.0, 100.0, "host", True),
        (91.9, 100.0, "host", False),
        (87.5, 100.0, "gpu", True),
        (87.3, 100.0, "gpu", False),
        (0.176, None, "host", True),
        (None, None, "host", False),
        (None, 100.0, "host", False),
    ],
)
def test_bandwidth_is_compared_with_the_line_rate(value, rate, memory, good):
    """GPU memory may be a twentieth below host memory; without an honest line rate it counts that it works."""
    assert is_good(pair("gpu1", "gpu2", value, rate=rate, memory=memory)) is good


def test_a_healthy_fabric_passes():
    """With the lowest value and the memory that was used; every node passes too."""
    cluster, nodes = judged(measured(*table(4), pair("gpu1", "gpu2", 93.5)))

    assert cluster.status is CheckStatus.PASS
    assert "rdma_stack.bandwidth.ok" in shown(cluster.reason)
    assert "rdma_stack.bandwidth.ok" in shown(cluster.reason)
    assert {result.status for result in nodes.values()} == {CheckStatus.PASS}


def test_a_node_whose_pairs_all_failed_is_one_finding():
    """Its six failed measurements are one finding, and its partners are not accused."""
    cluster, nodes = judged(measured(*table(4, lambda a, b: "gpu2" in (a, b), None)))

    assert cluster.status is CheckStatus.FAIL
    (fault,) = cluster.reason.params["faults"]
    assert shown(fault) == f"rdma_stack.bandwidth.of: gpu2 rdma_stack.bandwidth.dead {CUT}"
    assert shown(nodes["gpu2"].reason) == f"rdma_stack.bandwidth.fault: rdma_stack.bandwidth.dead {CUT}"
    assert {nodes[name].status for name in ("gpu1", "gpu3", "gpu4")} == {CheckStatus.PASS}


def test_a_port_that_is_slow_with_all_partners_is_reported():
    """Node and port come first, and the pairs are not listed."""
    cluster, nodes = judged(measured(*table(4, lambda a, b: "gpu3" in (a, b))))

    assert shown(cluster.reason).startswith("rdma_stack.bandwidth.faults")
    assert "rdma_stack.bandwidth.faults" in shown(cluster.reason)
    assert "rdma_stack.bandwidth.faults" in shown(cluster.reason)
    assert {name for name, result in nodes.items() if result.status is CheckStatus.FAIL} == {"gpu3"}


@pytest.mark.parametrize(("end", "role"), [(0, "sending"), (1, "receiving")])
def test_a_port_that_is_slow_in_one_direction_is_reported(end, role):
    """The other direction works, so it is no matter of the whole link."""
    pairs = blame(table(4, lambda *names: names[end] == "gpu3"))

    assert pairs.ports == ((Port("gpu3", "mlx5_0"), role),)
    assert (pairs.dead, pairs.pairs) == ((), ())


def test_one_bad_rail_fails_neither_the_node_nor_the_other_rails():
    """The port is named by its device."""
    good = table(4)
    second = [dataclasses.replace(p, a=Port(p.a.node, "mlx5_1"), b=Port(p.b.node, "mlx5_1")) for p in good]
    bad = [dataclasses.replace(p, gbit_s=None, reason=CUT) if "gpu4" in (p.a.node, p.b.node) else p for p in second]
    pairs = blame([*good, *bad])

    assert pairs.ports == ((Port("gpu4", "mlx5_1"), ""),)
    assert pairs.dead == pairs.pairs == ()


def test_a_single_slow_path_is_reported_as_a_pair():
    """Both nodes are good with the others, so neither fails; both are named as part of it."""
    cluster, nodes = judged(measured(*table(4, lambda a, b: {a, b} == {"gpu1", "gpu4"})))

    assert cluster.status is CheckStatus.FAIL
    assert shown(cluster.reason).startswith("rdma_stack.bandwidth.faults")
    assert [result.status.value for result in nodes.values()] == ["warn", "pass", "pass", "warn"]


def test_a_slow_pair_of_two_nodes_fails_neither_node():
    """Both are named in the pair and neither is accused."""
    cluster, nodes = judged(measured(pair("gpu1", "gpu2", None)), 2)

    assert cluster.status is CheckStatus.FAIL
    assert f"rdma_stack.bandwidth.pair_failed {CUT} gpu1 (mlx5_0) gpu2 (mlx5_0)" in shown(cluster.reason)
    assert {result.status for result in nodes.values()} == {CheckStatus.WARN}


def test_no_node_fails_if_all_pairs_are_slow():
    """A switch or a setting that all share is not the fault of the first node of the list."""
    pairs = blame(table(4, lambda *_: True))

    assert (pairs.dead, pairs.ports) == ((), ())
    assert len(pairs.pairs) == 12


def test_two_bad_nodes_are_both_reported():
    """One dead, one slow, among six."""
    values = {"gpu2": None, "gpu5": 20.0}
    names = [f"gpu{number}" for number in range(1, 7)]
    pairs = [
        pair(a, b, next((values[n] for n in ("gpu2", "gpu5") if n in (a, b)), 98.0))
        for a, b in itertools.permutations(names, 2)
    ]
    pairs = blame(pairs)

    assert pairs.dead == ("gpu2",)
    assert [port.node for port, _ in pairs.ports] == ["gpu5"]
    assert pairs.pairs == ()


def test_a_node_whose_data_port_is_down_fails_without_a_measurement():
    """The cut node is named with its problem, and the other has had no partner for a measurement."""
    cluster, nodes = judged(Bandwidth(idle=("gpu1",), broken={"gpu2": "rxe0 port 1 is DOWN"}), 2)

    assert cluster.status is CheckStatus.FAIL
    assert (
        shown(cluster.reason)
        == "rdma_stack.bandwidth.faults: rdma_stack.bandwidth.of gpu2 rdma_stack.bandwidth.ports rxe0 port 1 is DOWN 0"
    )
    assert nodes["gpu2"].status is CheckStatus.FAIL
    assert nodes["gpu1"].status is CheckStatus.SKIP


def test_a_measurement_without_pairs_fails_with_the_reason():
    """As in a lab of containers: level full never passes without a measurement."""
    none = "it has no RDMA device"
    cluster, nodes = judged(Bandwidth(left_out={"gpu1": none, "gpu2": none}), 2)
    alone, _ = judged(Bandwidth(idle=("gpu1",)), 1)

    assert (cluster.status, alone.status) == (CheckStatus.FAIL, CheckStatus.FAIL)
    assert shown(cluster.reason) == f"rdma_stack.bandwidth.not_measured: rdma_stack.bandwidth.every_node {none}"
    assert shown(alone.reason) == (
        "rdma_stack.bandwidth.not_measured: rdma_stack.bandwidth.too_few rdma_stack.bandwidth.one_node"
    )
    assert {(result.status, shown(result.reason)) for result in nodes.values()} == {
        (CheckStatus.SKIP, f"rdma_stack.bandwidth.left_out: {none}")
    }


def test_a_busy_node_is_excluded_and_reported():
    """What was measured counts, and the result does not look whole."""
    cluster, nodes = judged(measured(*table(3), left_out={"gpu4": "a job runs in its training container (python3)"}))

    assert cluster.status is CheckStatus.WARN
    assert "rdma_stack.bandwidth.some_nodes" in shown(cluster.reason)
    assert nodes["gpu4"].status is CheckStatus.SKIP


def test_soft_roce_is_reported_and_not_compared():
    """It passes when it works, and says why nothing is compared and why host memory was used."""
    soft = [pair(a, b, 0.176, device="rxe0", rate=None) for a, b in itertools.permutations(("gpu1", "gpu2"))]
    cluster, _ = judged(measured(*soft, host_memory=(reason("rdma_stack.bandwidth.simulated_gpus"),)), 2)

    assert cluster.status is CheckStatus.PASS
    assert "rdma_stack.bandwidth.ok" in shown(cluster.reason)
    assert "rdma_stack.bandwidth.ok" in shown(cluster.reason)
    assert "rdma_stack.bandwidth.ok" in shown(cluster.reason)


def test_unmeasured_gpus_are_a_warning():
    """Where a way to real GPUs exists, numbers of host memory say nothing of it; the node and the remedy are named."""
    pairs = measured(
        *table(3),
        host_memory=(reason("rdma_stack.bandwidth.perftest_without_cuda", option="--use_cuda"),),
        tool_lacks=("gpu2",),
        left_out={"gpu4": "busy"},
    )
    cluster, nodes = judged(pairs)

    assert cluster.status is CheckStatus.WARN
    assert "rdma_stack.bandwidth.some_nodes_no_cuda" in shown(cluster.reason)
    assert "gpu2" in shown(cluster.reason)
    assert "perftest built with CUDA" in remedy(cluster.reason, "gpu1")
    assert "rdma_stack.bandwidth.some_nodes_no_cuda" in shown(cluster.reason)
    assert (nodes["gpu1"].status, nodes["gpu2"].status) == (CheckStatus.PASS, CheckStatus.WARN)
    assert "perftest built with CUDA" in remedy(nodes["gpu2"].reason, "gpu1")


def test_bandwidth_checks_require_a_measurement():
    """Level quick says nothing about bandwidth."""
    nodes = (make_node("gpu1", "10.77.0.1"),)
    cluster = Cluster("test", __import__("pathlib").Path("hosts.yml"), nodes)

    assert "rdma_stack.bandwidth" not in {r.id for r in judge(nodes[0], healthy(), cluster)}
    assert "rdma_stack.bandwidth" not in {r.id for r in judge_cluster(cluster, nodes, {"gpu1": healthy()})}


def test_only_idle_nodes_are_measured():
    """A job, a container that does not run, and anything that is not known keep a node out."""
    container = healthy().container
    working = dataclasses.replace(container, processes=(*container.processes, Process(99, "python3")))

    assert bandwidth_plan.busy(healthy()) == ""
    assert "python3" in bandwidth_plan.busy(dataclasses.replace(healthy(), container=working))
    assert "does not run" in bandwidth_plan.busy(dataclasses.replace(healthy(), container=None))
    assert "not known" in bandwidth_plan.busy(dataclasses.replace(healthy(), container=Unknown("docker hung")))
    assert "not known: no answer" in bandwidth_plan.not_ready(Unknown("no answer"))
    holder = Holder(7, "vllm", "/dev/nvidia0")
    assert "/dev/nvidia0 is in use by vllm (process 7)" in bandwidth_plan.not_ready(Readiness((holder,), ()))
    assert "no ib_write_bw" in bandwidth_plan.not_ready(Readiness((), ("ib_write_bw",)))
    assert bandwidth_plan.not_ready(Readiness((), ())) == ""


def end(node, device="mlx5_0", *, soft=False, rate=100.0, index=3):
    """A data port."""
    return Endpoint(node, "10.77.0.0/24 #1", device, 1, "10.77.0.1", index, soft, None if soft else rate)


ABLE = Readiness((), (), cuda=True, cuda_dmabuf=True)
UNABLE = Readiness((), ())
NO_WAY = NvidiaModules("550.90", "proprietary", "550.90", {})
"""Of a node whose RDMA stack is the kernel's own."""


def test_gpu_memory_is_measured_if_a_path_exists():
    """The GPU nearest to the card, registered by the path of the verdict (here DMA-BUF)."""
    gpus = tuple(dataclasses.replace(healthy().gpus[0], index=n) for n in range(2))
    facts = dataclasses.replace(healthy(), gpus=gpus, topology=linked("SYS", "PXB"))
    pairs = bandwidth_plan.memory(facts, ABLE, NodeRails((end("gpu1"),)))

    assert pairs == bandwidth_plan.Memory({"mlx5_0": 1}, dmabuf=True)


@pytest.mark.parametrize(
    ("facts", "ready", "soft", "reason", "tool_lacks"),
    [
        ({"gpus": (), "gpu_pci": ()}, UNABLE, False, "rdma_stack.bandwidth.no_gpu", False),
        ({"simulated": {"nvidia-smi": "GPUs"}}, UNABLE, False, "rdma_stack.bandwidth.simulated_gpus", False),
        ({}, UNABLE, True, "rdma_stack.bandwidth.soft_device", False),
        ({"nvidia_modules": NO_WAY}, UNABLE, False, "rdma_stack.bandwidth.no_gdr_path: gdr.path_needs", False),
        ({}, UNABLE, False, "rdma_stack.bandwidth.perftest_without_cuda: --use_cuda", True),
        (
            {},
            Readiness((), (), cuda=True),
            False,
            "rdma_stack.bandwidth.perftest_without_cuda: --use_cuda_dmabuf",
            True,
        ),
        (
            {"gpus": Unknown("nvidia-smi hung")},
            UNABLE,
            False,
            "rdma_stack.bandwidth.gpus_unknown: nvidia-smi hung",
            False,
        ),
    ],
)
def test_host_memory_is_measured_without_a_path_to_gpu_memory(facts, ready, soft, reason, tool_lacks):
    """Never GPU memory of a stand-in, and never an option of perftest that it does not know; only that is a lack."""
    pairs = bandwidth_plan.memory(dataclasses.replace(healthy(), **facts), ready, NodeRails((end("gpu1", soft=soft),)))

    assert pairs.gpus is None
    assert shown(pairs.why_host).startswith(reason)
    assert pairs.tool_lacks is tool_lacks


def party(node, *endpoints, gpus=None):
    """One node that takes part."""
    return bandwidth_plan.Party(
        node,
        "box",
        endpoints,
        bandwidth_plan.Memory(gpus, why_host=None if gpus else reason("rdma_stack.bandwidth.no_gpu")),
    )


def test_each_side_of_a_measurement_has_its_own_device_gid_and_gpu():
    """The slower port is the measure; a GPU on one side only is no measurement of GPU memory."""
    a = party("gpu1", end("gpu1", rate=200.0, index=3), gpus={"mlx5_0": 0})
    b = party("gpu2", end("gpu2", "mlx5_4", index=5), gpus={"mlx5_4": 6})
    (trial,) = bandwidth_plan.trials(a, b)

    assert (trial.send.device, trial.send.gid_index, trial.send.cuda) == ("mlx5_0", 3, 0)
    assert (trial.receive.device, trial.receive.gid_index, trial.receive.cuda) == ("mlx5_4", 5, 6)
    assert (trial.memory, trial.line_rate_gbit) == ("gpu", 100.0)
    (mixed,) = bandwidth_plan.trials(a, party("gpu3", end("gpu3")))
    assert (mixed.memory, mixed.send.cuda) == ("host", None)


def test_the_estimated_time_depends_on_rounds_and_rails():
    """Two rails take twice as long as one; a soft device has a time of its own; limits are above what is expected."""
    one = {name: party(name, end(name)) for name in ("gpu1", "gpu2")}
    second = [dataclasses.replace(end(name, "mlx5_1"), rail="10.77.0.0/24 #2") for name in one]
    two = {name: party(name, end(name), other) for name, other in zip(one, second, strict=True)}
    rounds = [(("gpu1", "gpu2"),), (("gpu2", "gpu1"),)]
    (trial,) = bandwidth_plan.trials(*one.values())

    assert bandwidth_plan.expected_seconds(rounds, one) == 2 * trial.seconds
    assert bandwidth_plan.expected_seconds(rounds, two) == 4 * trial.seconds
    assert trial.limit_seconds > trial.seconds > trial.send.seconds
    (soft,) = bandwidth_plan.trials(party("gpu1", end("gpu1", soft=True)), party("gpu2", end("gpu2", soft=True)))
    assert (soft.send.seconds, soft.line_rate_gbit) == (None, None)
    assert soft.send.iterations
