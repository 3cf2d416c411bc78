"""Checks of the GPUs: utilization, memory, clocks, links, and processes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from provision.advisor import thresholds as limit
from provision.advisor.base import GPUS, USERS, Answer, Confidence, advice, few, ok, percent, problem, unknown
from provision.advisor.series import NodeSeries, mean
from provision.batch.durations import elapsed
from provision.documents.sampler import GpuRecord

Job = Sequence[NodeSeries]
NO_GPUS = f"no GPU of the job was sampled often enough (nvidia-smi returned less than {limit.FEWEST_SAMPLES})"
_BITS = {0x40: "hardware thermal slowdown", 0x80: "power brake slowdown", 0x20: "software thermal slowdown"}
_GENERAL, _POWER_CAP = 0x08, 0x04
_MIG = "MIG-"
_MOST_CPUS = 1 << 16
_LANE_MB = {1: 250, 2: 500, 3: 985, 4: 1969, 5: 3938, 6: 7563}
"""MB/s of one PCIe lane, by generation."""


def gpu_samples(job: Job) -> Iterator[tuple[NodeSeries, str, list[GpuRecord]]]:
    """Yield the GPUs of the job with enough samples, and their nodes."""
    for series in job:
        for uuid, samples in series.job_gpus().items():
            if sum(sample.utilization is not None for sample in samples) >= limit.FEWEST_SAMPLES.value:
                yield series, uuid, samples


def utilization(job: Job) -> dict[str, float]:
    """Return the mean utilization of each GPU of the job, by its display name."""
    means = {series.name(uuid): mean(s.utilization for s in samples) for series, uuid, samples in gpu_samples(job)}
    return {name: value for name, value in means.items() if value is not None}


def _seconds(job: Job) -> float:
    spans = [samples[-1].t - samples[0].t for _, _, samples in gpu_samples(job)]
    return max(spans, default=0.0)


def idle_seconds(job: Job) -> float | None:
    """Return how long all GPUs of the job were idle; None if one was busy or unknown."""
    means = utilization(job)
    if not means or len(means) < sum(len(series.given()) for series in job):
        return None
    return _seconds(job) if max(means.values()) < limit.IDLE_UTILIZATION.value else None


@advice(
    "low-duty-cycle",
    "The input of the GPUs is too slow: see the findings below. A job that is idle for ten minutes can be stopped.",
    needs=GPUS,
)
def low_duty_cycle(job: Job) -> Answer:
    """The GPUs wait; the other checks explain why."""
    means = utilization(job)
    if not means:
        return unknown(NO_GPUS)
    low = {name: value for name, value in means.items() if value < limit.LOW_UTILIZATION.value}
    shown = few([f"{name} {percent(value)}" for name, value in sorted(low.items(), key=lambda item: item[1])])
    seconds = _seconds(job)
    if low and _has_no_processes(job):
        return unknown(f"no process of the job uses its GPUs: {shown}")
    if idle_seconds(job) is not None:
        long = seconds >= limit.IDLE_SECONDS.value
        more = "" if long else f"; idle if it stays so for {limit.IDLE_SECONDS}"
        return problem(f"idle for {elapsed(seconds)}: {shown}{more}", Confidence.HIGH if long else Confidence.MEDIUM)
    if low:
        return problem(f"mean utilization over {elapsed(seconds)}: {shown}", Confidence.HIGH)
    lowest = min(means, key=lambda name: means[name])
    lowest_text = f"mean utilization {percent(means[lowest])} or more ({lowest}) over {elapsed(seconds)}"
    power = _power(job)
    if power is not None and power < limit.LOW_POWER.value:
        return ok(
            f"{lowest_text}, but {percent(power)} of the power limit: kernels always run, but are small", Confidence.LOW
        )
    return ok(lowest_text, Confidence.HIGH if power is not None else Confidence.MEDIUM)


def _has_no_processes(job: Job) -> bool:
    """Return whether no GPU of the job is used by one of its processes."""
    known = all(series.users is not None and not series.ranks() for series in job)
    return known and any(series.given() for series in job)


def _power(job: Job) -> float | None:
    """Return the mean power as per cent of the limit: utilization alone does not show busy multiprocessors."""
    return mean(
        100 * sample.power / sample.power_limit
        for _, _, samples in gpu_samples(job)
        for sample in samples
        if sample.power is not None and sample.power_limit
    )


def _memory(job: Job) -> dict[str, float]:
    """Return the maximum memory use of each GPU, in per cent."""
    maxima = {}
    for series, uuid, samples in gpu_samples(job):
        shares = [100 * s.memory_used / s.memory_total for s in samples if s.memory_used is not None and s.memory_total]
        if shares:
            maxima[series.name(uuid)] = max(shares)
    return maxima


@advice(
    "batch-too-small",
    "Raise the batch size until the memory is used, then num_workers to match.",
    needs=GPUS,
)
def batch_too_small(job: Job) -> Answer:
    """Free memory on a GPU that is not busy allows a larger batch."""
    memory, means = _memory(job), utilization(job)
    if not memory:
        return unknown(NO_GPUS)
    small = [
        f"{name} {percent(value)} of memory at {percent(means[name])} utilization"
        for name, value in memory.items()
        if value < limit.LOW_MEMORY.value and means[name] < limit.BUSY_UTILIZATION.value
    ]
    if small:
        return problem(few(small))
    return ok(f"memory in use {percent(min(memory.values()))} or more, or the GPUs are busy")


@advice(
    "memory-nearly-full",
    "Lower the batch size a little: a longer sample would end the job (out of memory).",
    needs=GPUS,
)
def memory_nearly_full(job: Job) -> Answer:
    """A GPU without free memory ends the job at the next longer sample."""
    memory = _memory(job)
    if not memory:
        return unknown(NO_GPUS)
    full = [f"{name} {percent(value)}" for name, value in memory.items() if value > limit.FULL_MEMORY.value]
    if full:
        note = "; a caching allocator, as in PyTorch, also shows full memory"
        return problem(f"memory in use: {few(full)}{note}", Confidence.LOW)
    return ok(f"memory in use {percent(max(memory.values()))} or less", Confidence.HIGH)


@advice(
    "clocks-throttled",
    "Check cooling, power supplies and the power limit of the node, and its Xid and ECC counters (provision verify).",
    needs=GPUS,
)
def clocks_throttled(job: Job) -> Answer:
    """A GPU with throttled clocks slows down the whole job."""
    slow: list[str] = []
    capped, count = 0, 0
    for series, uuid, samples in gpu_samples(job):
        known = [(int(sample.clock_events), sample) for sample in samples if sample.clock_events is not None]
        count += len(known)
        capped += sum(bool(events & _POWER_CAP) for events, _ in known)
        for bit, text in {**_BITS, _GENERAL: "hardware slowdown"}.items():
            share = 100 * sum(bool(events & bit) for events, _ in known) / max(1, len(known))
            if share >= limit.THROTTLED_SHARE.value and not (bit == _GENERAL and slow):
                hottest = max((sample.temperature or 0 for _, sample in known), default=0)
                slow.append(f"{series.name(uuid)} {text} in {percent(share)} of samples, up to {hottest:.0f} C")
    if slow:
        return problem(few(slow), Confidence.HIGH)
    if not count:
        return unknown("the driver does not report why clocks are low")
    often = percent(100 * capped / count)
    text = f"clocks are limited only by load, settings or the power limit (in {often} of samples)"
    return ok(text, Confidence.HIGH)


@advice(
    "pcie-bound",
    "Use pin_memory and non_blocking copies; reseat a card whose link is below its width or speed, and check the BIOS.",
    needs=GPUS,
)
def pcie_bound(job: Job) -> Answer:
    """The PCIe link of a GPU is degraded or saturated."""
    slow, full, loaded, measured = [], [], 0, 0
    for series, uuid, samples in gpu_samples(job):
        busy = [s for s in samples if (s.utilization or 0) >= limit.WORK_UTILIZATION.value]
        known = [s for s in busy if s.pcie_gen and s.pcie_width]
        loaded += len(known)
        narrow = [
            s
            for s in known
            if (s.pcie_gen_max or 0) > (s.pcie_gen or 0) or (s.pcie_width_max or 0) > (s.pcie_width or 0)
        ]
        if known and 2 * len(narrow) > len(known):
            last = narrow[-1]
            now, most = _link(last.pcie_gen, last.pcie_width), _link(last.pcie_gen_max, last.pcie_width_max)
            slow.append(f"{series.name(uuid)} {now} of {most} under load")
        traffic = [(max(s.pcie_rx or 0, s.pcie_tx or 0), s) for s in known if s.pcie_rx is not None]
        measured += len(traffic)
        taken = mean(
            100 * rate / (_LANE_MB.get(int(s.pcie_gen or 0), 7563) * (s.pcie_width or 16)) for rate, s in traffic
        )
        if taken is not None and taken >= limit.PCIE_SHARE.value:
            full.append(f"{series.name(uuid)} {percent(taken)} of its link")
    if slow:
        return problem(few(slow + full), Confidence.HIGH)
    if full:
        return problem(few(full))
    if not loaded:
        return unknown("no PCIe link was reported while its GPU was busy; idle links sleep")
    if not measured:
        return unknown("links have their full width and speed; their traffic was not measured (nvidia-smi dmon -s t)")
    return ok("links have their full width and speed, and are not saturated")


def _link(generation: float | None, width: float | None) -> str:
    return f"gen {generation or 0:g} x{width or 0:g}"


@advice(
    "numa-mismatch",
    "Bind each rank to the CPUs of its GPU's NUMA node (provision run --placement, numactl, or taskset).",
    needs=USERS,
)
def numa_mismatch(job: Job) -> Answer:
    """A rank on the other socket reaches its GPU through the link between the sockets."""
    remote, spread, count = [], [], 0
    for series in job:
        numas = {device.numa for device in series.devices.values()}
        for user in series.users or ():
            device, process = series.devices.get(user.gpu), series.processes.get(user.pid)
            if device is None or process is None or not process.instance or not process.cpus or not device.cpus:
                continue
            near, own = _cpu_set(device.cpus), _cpu_set(process.cpus)
            if device.numa is None or not near or not own:
                continue
            count += 1
            text = f"{series.name(user.gpu)} (NUMA {device.numa:g}): pid {user.pid} may use CPUs {process.cpus}"
            if not near & own:
                remote.append(text)
            elif not own <= near and len(numas) > 1:
                spread.append(text)
    if remote:
        return problem(few(remote), Confidence.HIGH)
    if spread:
        return problem(f"not bound: {few(spread)}", Confidence.LOW)
    if not count:
        return unknown("the CPUs near the GPUs, or the processes on the GPUs, are unknown")
    return ok(f"{count} processes run on the CPUs near their GPUs", Confidence.HIGH)


@advice(
    "straggler-rank",
    "Check the clocks, CPU and storage of the node that is named (provision verify).",
    needs=GPUS,
)
def straggler_rank(job: Job) -> Answer:
    """All ranks wait for the slowest."""
    means = utilization(job)
    if not means:
        return unknown(NO_GPUS)
    if len(means) == 1:
        return unknown("one GPU: there is no other rank to compare with")
    low, *_, high = sorted(means, key=lambda name: means[name])
    extremes = f"{low} {percent(means[low])}, {high} {percent(means[high])}"
    if means[high] - means[low] > limit.SPREAD.value:
        note = "a rank that waits in NCCL looks busy, so either of them may be the slow one"
        holders = {series.name(gpu): instance for series in job for gpu, instance in series.given().items()}
        owners_text = (
            f"; {low} is of {holders[low]}, {high} of {holders[high]}" if {low, high} <= holders.keys() else ""
        )
        return problem(f"mean utilization differs: {extremes}{owners_text}; {note}", Confidence.MEDIUM)
    return ok(f"mean utilization of {len(means)} GPUs is similar: {extremes}", Confidence.LOW)


@advice(
    "wrong-device-use",
    "Correct the program if it should use the GPUs (is CUDA available in its image?), or request fewer with --gpus. "
    "Ask the owner of a foreign process.",
    needs=USERS,
)
def wrong_device_use(job: Job) -> Answer:
    """GPUs of the job without a process or with a foreign process; processes of the job on other GPUs."""
    unused, foreign_processes, misplaced_processes, known, unknown_nodes = [], [], [], 0, []
    for series in job:
        if series.users is None:
            unknown_nodes.append(series.node)
            continue
        given = series.given()
        known += len(given)
        used = {user.gpu for user in series.users}
        unused += [series.name(gpu) for gpu in given if gpu not in used]
        foreign_processes += [
            f"{series.name(user.gpu)}: pid {user.pid} ({user.comm or 'unknown program'})"
            for user in series.users
            if user.gpu in given and series.instance_of(user.pid) is None
        ]
        misplaced_processes += [
            f"{series.name(user.gpu)}: pid {user.pid} ({series.instance_of(user.pid)})"
            for user in series.users
            if given and user.gpu not in given and series.instance_of(user.pid)
        ]
    unknown_processes = [f"{series.name(gpu)}: {text}" for series in job for gpu, text in series.foreign.items()]
    unused_confidence = Confidence.HIGH if _has_no_processes(job) else Confidence.MEDIUM
    wrong: Sequence[tuple[str, list[str], Confidence]] = (
        ("a process outside the job's containers uses", foreign_processes, Confidence.HIGH),
        ("the job uses GPUs that were not assigned to it:", misplaced_processes, Confidence.HIGH),
        ("assigned to the job, but no process uses it:", unused, unused_confidence),
        ("on GPUs outside the job, a process without a known job:", unknown_processes, Confidence.LOW),
    )
    if any(gpu.startswith(_MIG) for series in job for gpu in series.given()):
        return unknown("nvidia-smi does not report which MIG instance a process uses")
    for text, texts, confidence in wrong:
        if texts:
            return problem(f"{text} {few(texts)}", confidence)
    if unknown_nodes:
        return unknown(f"the processes on the GPUs of {few(unknown_nodes)} are unknown")
    if not known:
        return unknown("the GPUs that were assigned to the job are unknown")
    return ok(f"{known} GPUs of the job are used only by its processes", Confidence.HIGH)


def _cpu_set(text: str) -> set[int]:
    """Parse ``0-3,8``; empty for an invalid list."""
    cpus: set[int] = set()
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if ends is None:
            return set()
        first, last = int(ends[1]), int(ends[2] or ends[1])
        cpus.update(range(first, min(last, _MOST_CPUS) + 1))
    return cpus
