"""Who takes part in a measurement of bandwidth, over which ports and with which memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from provision.commands.perftest import WriteBw
from provision.facts import NodeFacts, Unknown, running_container, simulated
from provision.facts.container import Container
from provision.facts.perftest import Readiness
from provision.facts.rails import Endpoint, NodeRails
from provision.gdr import GdrPath
from provision.gdr.observed import verdict_of
from provision.model import PairBandwidth, Port
from provision.model.reason import Reason, reason
from provision.topology.links import PCIE_CLASSES, card_links

_SECONDS = 6
"""Of sending in each trial between cards."""
_SIZE_BYTES = 8 * 2**20
_SOFT_SIZE_BYTES = 65536
_SOFT_ITERATIONS = 1000
"""Devices made in software are slow by orders of magnitude, and an emulated machine more so: count, not time."""
_SETUP_SECONDS = 4
"""What a trial takes beside the sending: two programs start in two containers."""
_SOFT_TRIAL_SECONDS = 15
_LIMIT_SLACK_SECONDS = 24
_SOFT_LIMIT_SECONDS = 90


@dataclass(frozen=True)
class Memory:
    """The memory that a node sends from and receives into."""

    gpus: Mapping[str, int] | None
    """Device -> index of the GPU that is nearest to it; None for host memory."""
    dmabuf: bool = False
    why_host: Reason | None = None
    tool_lacks: bool = False
    """Host memory only because perftest cannot do better: there are real GPUs, and a way to them."""


@dataclass(frozen=True)
class Party:
    """One node that takes part."""

    node: str
    container: str
    endpoints: tuple[Endpoint, ...]
    memory: Memory


@dataclass(frozen=True)
class Trial:
    """One measurement: from a port of one node to a port of another."""

    sender: Endpoint
    receiver: Endpoint
    send: WriteBw
    receive: WriteBw
    memory: str
    line_rate_gbit: float | None

    @property
    def soft(self) -> bool:
        """True when either device is made in software."""
        return self.sender.soft or self.receiver.soft

    @property
    def limit_seconds(self) -> int:
        """After this long both ends are ended."""
        return _SOFT_LIMIT_SECONDS if self.soft else _SECONDS + _LIMIT_SLACK_SECONDS

    @property
    def seconds(self) -> int:
        """About how long it takes."""
        return _SOFT_TRIAL_SECONDS if self.soft else _SECONDS + _SETUP_SECONDS

    def outcome(self, gbit_s: float | None, reason: str = "") -> PairBandwidth:
        """Return the result in the words of the report."""
        a, b = (Port(end.node, end.device, end.port) for end in (self.sender, self.receiver))
        return PairBandwidth(a, b, self.memory, gbit_s, self.line_rate_gbit, reason)


def busy(facts: NodeFacts) -> str:
    """Return why the node's container cannot be measured in now, as far as the probe saw; empty when it can."""
    container = facts.container
    if isinstance(container, Unknown):
        return f"whether a job runs on it is not known: {container.reason}"
    if not running_container(facts) or not isinstance(container, Container):
        return "its training container does not run"
    if container.busy:
        names = ", ".join(dict.fromkeys(process.command for process in container.busy[:4]))
        return f"a job runs in its training container ({names})"
    return ""


def not_ready(readiness: Readiness | Unknown) -> str:
    """Return why a node that was idle cannot be measured according to a new probe; unknown counts as busy."""
    if isinstance(readiness, Unknown):
        return f"whether its devices are in use is not known: {readiness.reason}"
    if readiness.holders:
        first = readiness.holders[0]
        return f"{first.device} is in use by {first.command} (process {first.pid})"
    if readiness.missing:
        missing = " and no ".join(readiness.missing)
        return f"its training container has no {missing}; the image needs perftest and coreutils"
    return ""


def memory(facts: NodeFacts, ready: Readiness, rails: NodeRails) -> Memory:
    """Return which memory can be used on a node: the nearest GPU's where there is a real one and a way to it."""
    gpus = () if isinstance(facts.gpus, Unknown) else facts.gpus
    why = _why_host(facts, rails)
    if why:
        return Memory(None, why_host=why)
    dmabuf = verdict_of(facts).path is GdrPath.DMA_BUF
    if not ready.cuda or (dmabuf and not ready.cuda_dmabuf):
        option = "--use_cuda_dmabuf" if ready.cuda else "--use_cuda"
        why = reason("rdma_stack.bandwidth.perftest_without_cuda", option=option)
        return Memory(None, why_host=why, tool_lacks=True)
    return Memory(
        {end.device: _nearest(facts, end.device, [gpu.index for gpu in gpus]) for end in rails.endpoints}, dmabuf
    )


def _why_host(facts: NodeFacts, rails: NodeRails) -> Reason | None:
    """Return why no GPU memory can be used on a node, with any perftest."""
    verdict = verdict_of(facts)
    if isinstance(facts.gpus, Unknown):
        return reason("rdma_stack.bandwidth.gpus_unknown", cause=facts.gpus.reason)
    if not facts.gpus:
        return reason("rdma_stack.bandwidth.no_gpu")
    if simulated(facts, "nvidia"):
        return reason("rdma_stack.bandwidth.simulated_gpus")
    if any(endpoint.soft for endpoint in rails.endpoints):
        return reason("rdma_stack.bandwidth.soft_device")
    return (
        reason("rdma_stack.bandwidth.no_gdr_path", cause=verdict.reasons[0]) if verdict.path is GdrPath.NONE else None
    )


def _nearest(facts: NodeFacts, device: str, gpus: Sequence[int]) -> int:
    """Return the GPU nearest to a card; the first where the distances are not known."""
    links = {} if isinstance(facts.topology, Unknown) else card_links(facts.topology)

    def rank(gpu: int) -> tuple[int, int]:
        kind = links.get(gpu, {}).get(device, "")
        return (PCIE_CLASSES.index(kind) if kind in PCIE_CLASSES else len(PCIE_CLASSES), gpu)

    return min(gpus, key=rank)


def trials(sender: Party, receiver: Party) -> tuple[Trial, ...]:
    """Return one trial for each rail that both nodes are on."""
    others = {endpoint.rail: endpoint for endpoint in receiver.endpoints}
    return tuple(
        _trial(endpoint, others[endpoint.rail], sender.memory, receiver.memory)
        for endpoint in sender.endpoints
        if endpoint.rail in others
    )


def _trial(a: Endpoint, b: Endpoint, from_: Memory, to: Memory) -> Trial:
    soft, gpu = a.soft or b.soft, from_.gpus is not None and to.gpus is not None
    rates = (a.line_rate_gbit, b.line_rate_gbit)
    rate = None if soft or rates[0] is None or rates[1] is None else min(rates[0], rates[1])

    def end(endpoint: Endpoint, memory: Memory) -> WriteBw:
        base = WriteBw(endpoint.device, endpoint.port, endpoint.gid_index)
        if soft:
            base = replace(base, size_bytes=_SOFT_SIZE_BYTES, iterations=_SOFT_ITERATIONS)
        else:
            base = replace(base, size_bytes=_SIZE_BYTES, seconds=_SECONDS)
        if gpu and memory.gpus is not None:
            base = replace(base, cuda=memory.gpus[endpoint.device], cuda_dmabuf=memory.dmabuf)
        return base

    return Trial(a, b, end(a, from_), end(b, to), "gpu" if gpu else "host", rate)


def expected_seconds(rounds: Sequence[Sequence[tuple[str, str]]], parties: Mapping[str, Party]) -> int:
    """Return about how long the rounds take: each as long as its longest pair, whose rails follow one another."""
    longest = (
        max((sum(t.seconds for t in trials(parties[a], parties[b])) for a, b in round_), default=0) for round_ in rounds
    )
    return sum(longest)
