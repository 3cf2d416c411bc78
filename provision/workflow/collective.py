"""Runs an all-reduce over the containers of all idle nodes, as a job like those of `provision run`."""

from __future__ import annotations

import base64
import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from provision.errors import Interrupted, InventoryError, ProvisionError
from provision.model import Collective, Node
from provision.resources import package_path

if TYPE_CHECKING:
    from provision.facts import NodeFacts
    from provision.launchers import HostEntry
    from provision.model import Cluster

Say = Callable[[str], None]

_PROBE_SECONDS = 120
_LIMIT_SECONDS = 900
"""The time limit of every rank."""
_OUTPUT_BYTES = 4 << 20
_LAST_LINES = 5
_MIB = 1 << 20
_ROW = re.compile(rb"(?:\[[0-9]{1,7}\] )?\s{0,20}([0-9]{5,15})\s{1,20}[0-9]{4,15}\s")
"""The beginning of a line of the table: bytes and elements of a message."""
_MIN_RANKS = 2
"""The minimum number of ranks."""
_IMAGE = (
    "Add nccl-tests (built with MPI=1) or PyTorch to the training image; for nodes without GPUs mpi4py and NumPy, or "
    "PyTorch. Then run: provision apply"
)
_IDLE = "Run it again when the nodes are idle; to check the others, run: provision verify"


@dataclass(frozen=True)
class _Program:
    """A benchmark program for an all-reduce."""

    title: str
    memory: str
    requires: frozenset[str]
    """The programs and modules that the container needs."""
    command: tuple[str, ...]
    launcher: str = "mpirun"


def all_reduce(
    cluster: Cluster, nodes: Sequence[Node], facts: Mapping[str, NodeFacts | ProvisionError], say: Say
) -> Collective:
    """Measure over all idle nodes that can run ranks; their GPUs are leased during the measurement."""
    minimum = _minimum(nodes)
    entries, left_out = _entries(cluster, nodes, facts)
    reached = {name: known for name, known in facts.items() if not isinstance(known, ProvisionError)}
    entries, program, left_out = _program(cluster, entries, reached, left_out)
    if program is None or sum(entry.slots for entry in entries) < _MIN_RANKS:
        why = "; ".join(f"{_few(names)}: {reason}" for reason, names in _by_reason(left_out).items())
        remedy = _IDLE if program or not entries else _IMAGE
        return Collective(minimum=minimum, left_out=left_out, reason=why or "only one rank", remedy=remedy)
    ranks = sum(entry.slots for entry in entries)
    measured = Collective(
        program=program.title,
        memory=program.memory,
        nodes=tuple(entry.name for entry in entries),
        ranks=ranks,
        minimum=minimum,
        left_out=left_out,
        simulated=_simulated([reached[entry.name] for entry in entries]),
    )
    say(
        f"all-reduce: {program.title}, {ranks} ranks on {len(entries)} node{'s' * (len(entries) != 1)}, "
        f"at most {_LIMIT_SECONDS // 60} minutes"
    )
    return _result(measured, cluster, entries, program, reached, say)


def _entries(
    cluster: Cluster, nodes: Sequence[Node], facts: Mapping[str, NodeFacts | ProvisionError]
) -> tuple[list[HostEntry], dict[str, str]]:
    """Return the idle nodes that can run ranks, and the reasons why other nodes that take jobs are excluded."""
    from provision.workflow.survey import host_entries

    chosen = {node.name: facts[node.name] for node in nodes if node.name in facts}
    entries, others = host_entries(cluster, chosen)
    left_out = dict(others)
    idle = []
    for entry in entries:
        if reason := _busy(chosen[entry.name]):
            left_out[entry.name] = reason
        else:
            idle.append(entry)
    return idle, {node.name: left_out[node.name] for node in nodes if node.takes_jobs and node.name in left_out}


def _busy(facts: NodeFacts | ProvisionError) -> str:
    """Return the reason if a job may run on the node; unknown use counts as a job."""
    from provision.checks.bandwidth_plan import busy
    from provision.facts import Unknown

    if isinstance(facts, ProvisionError):
        return facts.message
    if isinstance(facts.managed, Unknown):
        return f"unknown whether a job runs on it: {facts.managed.reason}"
    return f"busy: {facts.managed.jobs[0]}" if facts.managed.jobs else busy(facts)


def _program(
    cluster: Cluster, entries: Sequence[HostEntry], facts: Mapping[str, NodeFacts], left_out: Mapping[str, str]
) -> tuple[list[HostEntry], _Program | None, dict[str, str]]:
    """Return the participating nodes and the program, which is the first that most of the nodes have.

    If some nodes have GPUs, the others are ignored; `cluster.skew_gpus` reports a node that has lost its GPUs.
    """
    from provision.connectors import each
    from provision.facts import Unknown
    from provision.facts.collective_tools import parse_tools, tools_script

    others = dict(left_out)
    if not entries:
        return [], None, others
    real = [e for e in entries if e.kind == "gpu" and not _simulated([facts[e.name]])]
    taking = real or list(entries)
    containers = {e.name: str(cluster.node(e.name).variables.get("training_container_name")) for e in taking}

    answers = each(
        [cluster.node(entry.name) for entry in taking],
        lambda connector: connector.run(tools_script(containers[connector.name]), timeout=_PROBE_SECONDS),
    )
    tools: dict[str, frozenset[str]] = {}
    for name, answer in answers.items():
        available = (
            Unknown(answer.message) if isinstance(answer, ProvisionError) else parse_tools(answer.stdout, answer.stderr)
        )
        if isinstance(available, Unknown):
            others[name] = f"its training container cannot be probed: {available.reason}"
        else:
            tools[name] = available
    programs = _programs(gpus=bool(real))
    able = {program: [e for e in taking if program.requires <= tools.get(e.name, frozenset())] for program in programs}
    best = max(programs, key=lambda program: len(able[program]))  # the first of equal ones
    missing_program = "the training image has no program for an all-reduce"
    others |= {e.name: missing_program for e in taking if e.name in tools and e not in able[best]}
    if not able[best]:
        return list(taking), None, others
    chosen = able[best] if real else _one_rank_each(able[best])
    return chosen, best, others


def _one_rank_each(entries: Sequence[HostEntry]) -> list[HostEntry]:
    """Reduce the slots: host memory needs one rank per node, a single node needs two."""
    slots = 1 if len(entries) >= _MIN_RANKS else _MIN_RANKS
    return [replace(entry, slots=min(entry.slots, slots)) for entry in entries]


def _programs(*, gpus: bool) -> tuple[_Program, ...]:
    from provision.facts.collective_tools import NCCL_TESTS

    torch = frozenset({"python3", "timeout", "torch"})
    if gpus:
        sizes = ("-b", "64M", "-e", "2G", "-f", "2", "-g", "1", "-c", "1", "-n", "20", "-w", "5")
        tests = [_Program("nccl-tests", "gpu", frozenset({name, "timeout"}), (name, *sizes)) for name in NCCL_TESTS]
        return (*tests, _Program("torch (NCCL)", "gpu", torch, _ours("torch", 64 * _MIB, 1024 * _MIB), "python"))
    return (
        _Program("mpi4py", "host", frozenset({"python3", "timeout", "mpi4py", "numpy"}), _ours("mpi", _MIB, 16 * _MIB)),
        _Program("torch (gloo)", "host", torch, _ours("torch", _MIB, 16 * _MIB), "python"),
    )


def _ours(backend: str, begin: int, end: int) -> tuple[str, ...]:
    """Return the command of our own program, which contains its source, so that no file remains in a container."""
    source = package_path("benchmarks", "files", "provision_allreduce.py")
    packed = base64.b64encode(zlib.compress(source.read_bytes(), 9)).decode()
    start = f"import base64,zlib;exec(zlib.decompress(base64.b64decode('{packed}')))"
    return ("python3", "-c", start, "--backend", backend, "--begin", str(begin), "--end", str(end))


def _result(
    measured: Collective,
    cluster: Cluster,
    entries: list[HostEntry],
    program: _Program,
    facts: Mapping[str, NodeFacts],
    say: Say,
) -> Collective:
    from provision.benchmarks.collective import parse_all_reduce

    measured = _with_prediction(measured, cluster, facts) if program.memory == "gpu" else measured
    try:
        code, text = _run(cluster, entries, program, facts, say)
    except Interrupted:
        raise
    except ProvisionError as error:
        return replace(measured, reason=str(error), remedy=error.remedy or _IDLE)
    table = parse_all_reduce(text)
    largest = table.largest
    if largest is None:
        last = [line.strip()[:200] for line in text.splitlines() if line.strip()][-_LAST_LINES:]
        reason = f"the program ended with code {code}: {' | '.join(last) or 'it printed nothing'}"
        return replace(measured, reason=reason, remedy="Run it manually: provision run -- " + program.command[0])
    if table.ranks != measured.ranks:
        return replace(
            measured,
            reason=f"{table.ranks} of {measured.ranks} ranks took part in the table of {program.command[0]}",
            remedy="Build nccl-tests with MPI=1, so that all ranks form one communicator.",
        )
    size, rate = largest
    if table.wrong is None or (code and not table.wrong):
        return replace(measured, reason=f"the program did not finish (code {code})", remedy=_IDLE)
    return replace(measured, size_bytes=size, bus_bandwidth=rate, wrong=table.wrong)


def _run(
    cluster: Cluster, entries: list[HostEntry], program: _Program, facts: Mapping[str, NodeFacts], say: Say
) -> tuple[int, str]:
    """Start the job as `provision run` does, and return its exit code and the end of its output."""
    from provision import jobs
    from provision.errors import LaunchError
    from provision.jobs.engines.base import Capability, require
    from provision.profiles import ProfileOptions
    from provision.workflow.job_requests import LaunchOptions, RankOptions, job_request
    from provision.workflow.jobs import job_engine
    from provision.workflow.launch_inputs import node_networks

    command = ("timeout", "-k", "10", str(_LIMIT_SECONDS), *program.command)
    options = LaunchOptions(ProfileOptions(), RankOptions(program.launcher))
    request = job_request(cluster, entries, command, options, node_networks(cluster, facts), facts)
    plan = jobs.prepare(request)
    failing = next((finding for finding in plan.findings if finding.fails), None)
    if failing:
        raise LaunchError(f"the job would fail: {failing}", remedy=failing.remedy)
    output = bytearray()

    def keep(_stream: str, line: bytes) -> None:
        output.extend(line)
        if len(output) > 2 * _OUTPUT_BYTES:
            del output[:-_OUTPUT_BYTES]
        if match := _ROW.match(line):
            say(f"all-reduce: measured messages of {int(match[1]) >> 20} MiB")

    engine = job_engine(cluster)
    require(engine, Capability.GPU_RESERVATION, "cluster.collective")
    return jobs.run(plan, keep, engine.reserve_gpus), output.decode(errors="replace")


def _with_prediction(measured: Collective, cluster: Cluster, facts: Mapping[str, NodeFacts]) -> Collective:
    """Add the bus bandwidth that `provision place` predicts for all GPUs of these nodes."""
    from provision.report.reasons import message
    from provision.topology.placement import Request
    from provision.topology.select import place
    from provision.workflow.placement_candidates import places_among

    places = places_among(cluster, {name: facts[name] for name in measured.nodes})
    if places.left_out:
        name, why = places.left_out[0]
        return replace(measured, not_predicted=f"{name}: {message(why, name)}")
    candidates = [replace(candidate, mode=None) for candidate in places.candidates]
    counts = [len(candidate.machine.topology.gpus) for candidate in candidates]
    each = math.gcd(*counts)
    placement = place(candidates, Request(each, sum(counts) // each))
    if placement.bandwidth is None:
        return replace(measured, not_predicted=message(placement.reason))
    return replace(measured, predicted=placement.bandwidth / 10)


def _minimum(nodes: Sequence[Node]) -> float:
    """Return the required fraction of the prediction.

    Raises:
        InventoryError: it is not a number.
    """
    value = nodes[0].variables.get("cluster_collective_fraction", 0) if nodes else 0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InventoryError(
            f"cluster_collective_fraction: {value!r} is not a number from 0 to 1",
            remedy="Write the fraction of the predicted bus bandwidth, such as 0.75.",
        )
    return float(value)


def _simulated(facts: Sequence[NodeFacts]) -> bool:
    from provision.facts import simulated

    return any(simulated(node_facts, "nvidia") for node_facts in facts)


def _by_reason(left_out: Mapping[str, str]) -> dict[str, list[str]]:
    names_by_reason: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        names_by_reason.setdefault(reason, []).append(name)
    return names_by_reason


def _few(names: Sequence[str]) -> str:
    few = 6
    return ", ".join(names[:few]) + (f" and {len(names) - few} more" if len(names) > few else "")
