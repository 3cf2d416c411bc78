"""Checks of the input of the GPUs: the rank's own process, its data workers, and the CPUs."""

from __future__ import annotations

from collections.abc import Sequence

from provision.advisor import thresholds as limit
from provision.advisor.base import GPUS, NODE, USERS, Answer, Confidence, advice, few, ok, percent, problem, unknown
from provision.advisor.gpu_advice import NO_GPUS, gpu_samples, utilization
from provision.advisor.series import NodeSeries, Process, correlation, mean
from provision.documents.sampler import GpuRecord

Job = Sequence[NodeSeries]
WORKER, PINNING = "pt_data_worker", "pt_data_pin"
"""Names that recent versions of torch give to the processes of a DataLoader, and to its thread that pins memory."""
_NO_RANKS = "the processes of the job that use its GPUs are unknown"
_FEWEST_PAIRS = 10


def ranks(job: Job) -> list[tuple[NodeSeries, Process]]:
    """Return the processes of the job that use a GPU, and their nodes."""
    return [(series, process) for series in job for process in series.ranks()]


def _workers(series: NodeSeries, rank: Process) -> list[Process]:
    return [child for child in series.children(rank.pid) if child.comm.startswith(WORKER)]


def _name(series: NodeSeries, process: Process) -> str:
    return f"{series.node} pid {process.pid} ({process.instance})"


def _busy(job: Job) -> bool:
    """Return whether no GPU waits for input."""
    means = utilization(job)
    return bool(means) and min(means.values()) >= limit.BUSY_UTILIZATION.value


@advice(
    "cpu-bound-input",
    "Raise num_workers, move preprocessing into a task before training, or do it on the GPU (NVIDIA DALI).",
    needs=GPUS,
)
def cpu_bound_input(job: Job) -> Answer:
    """The GPU works in bursts while a core is always busy."""
    sawtooth: dict[str, float] = {}
    for series, uuid, samples in gpu_samples(job):
        values = [sample.utilization for sample in samples if sample.utilization is not None]
        dips = 100 * sum(value < limit.DIP_UTILIZATION.value for value in values) / len(values)
        if dips >= limit.DIP_SHARE.value and max(values) >= limit.WORK_UTILIZATION.value:
            sawtooth[series.name(uuid)] = dips
    if not utilization(job):
        return unknown(NO_GPUS)
    if not sawtooth:
        return ok("the GPUs' utilization is not a sawtooth", Confidence.HIGH)
    shown = few([f"{name} near 0 in {percent(dips)} of samples" for name, dips in sawtooth.items()])
    cores_of_ranks = [(series, rank, series.cores_of(rank)) for series, rank in ranks(job)]
    known = [(series, rank, cores) for series, rank, cores in cores_of_ranks if cores is not None]
    if not known:
        return unknown(f"{shown}; {_NO_RANKS}, so it is unknown whether they wait for a CPU")
    full = limit.CORE_FULL.value / 100
    hot = [(series, rank, cores) for series, rank, cores in known if cores >= full]
    loaded = [mean(map(series.cores_of, _workers(series, rank))) for series, rank, _ in known]
    saturated = [value for value in loaded if value is not None and value >= full]
    if saturated:
        return problem(f"{shown}; data workers use {percent(100 * saturated[0])} of a core each", Confidence.HIGH)
    if hot:
        series, rank, cores = hot[0]
        return problem(f"{shown}; {_name(series, rank)} uses {percent(100 * cores)} of a core")
    most = max(cores for _, _, cores in known)
    return ok(f"{shown}, but no process of the job fills a core (at most {percent(100 * most)})")


@advice(
    "no-worker-processes",
    "Set num_workers of the DataLoader to cores / ranks (tf.data: num_parallel_calls).",
    needs=USERS,
)
def no_worker_processes(job: Job) -> Answer:
    """Without workers, the training process reads the data itself."""
    job_ranks = ranks(job)
    if not job_ranks:
        return unknown(_NO_RANKS)
    without: list[str] = []
    unsure: list[str] = []
    for series, rank in job_ranks:
        children = series.children(rank.pid)
        if not _workers(series, rank):
            unnamed = [child for child in children if child.comm.startswith(("python", rank.comm or "python"))]
            (unsure if unnamed else without).append(f"{_name(series, rank)} has {len(unnamed)} Python children")
    if without and _busy(job):
        return ok(f"{len(without)} ranks have no worker processes, but their GPUs are busy", Confidence.LOW)
    if without:
        return problem(f"no process called {WORKER}: {few(without)}")
    if unsure:
        return ok(f"older torch does not name its workers: {few(unsure)}", Confidence.LOW)
    return ok(f"{len(job_ranks)} ranks have data workers", Confidence.HIGH)


@advice("no-pin-memory", "Give the DataLoader pin_memory=True, and copy with non_blocking=True.", needs=USERS)
def no_pin_memory(job: Job) -> Answer:
    """A DataLoader that pins memory has a thread for it, which recent torch names."""
    without, count = [], 0
    for series, rank in ranks(job):
        if rank.threads is None or not _workers(series, rank):
            continue
        count += 1
        if not any(name.startswith(PINNING) for name in rank.threads):
            without.append(_name(series, rank))
    if without:
        return problem(f"no thread called {PINNING} beside data workers: {few(without)}", Confidence.HIGH)
    if not count:
        return unknown("needs the names of threads and data workers from recent torch; none was seen")
    return ok(f"{count} ranks have a thread that pins memory", Confidence.HIGH)


@advice("no-prefetch", "Raise prefetch_factor of the DataLoader (tf.data: Dataset.prefetch).", needs=USERS)
def no_prefetch(job: Job) -> Answer:
    """Workers that are idle while the GPU works do not read ahead."""
    values = []
    for series, rank in ranks(job):
        workers = _workers(series, rank)
        gpus = [user.gpu for user in series.users or () if user.pid == rank.pid]
        samples = [sample for gpu in gpus for sample in series.gpus.get(gpu, ())]
        pairs = _paired(series, workers, samples)
        value = correlation([a for a, _ in pairs], [b for _, b in pairs]) if len(pairs) >= _FEWEST_PAIRS else None
        if value is not None:
            values.append((value, _name(series, rank)))
    if not values:
        if _busy(job):
            return ok("the GPUs are always busy", Confidence.LOW)
        return unknown("no data workers of a GPU with varying load were sampled for long enough")
    value, name = min(values)
    if value <= limit.ANTI_CORRELATION.value:
        return problem(f"data workers and GPU work alternately (correlation {value:.2f}): {name}")
    return ok(f"data workers and GPU do not work alternately (correlation {value:.2f} or more)")


def _paired(series: NodeSeries, workers: Sequence[Process], samples: Sequence[GpuRecord]) -> list[tuple[float, float]]:
    """Return the workers' CPU use with the GPU's utilization at about the same time."""
    load: dict[int, float] = {}
    for worker in workers:
        for t, rate in worker.steps("cpu_ticks"):
            load[round(t / series.interval)] = load.get(round(t / series.interval), 0.0) + rate / series.ticks
    by_time = {round(s.t / series.interval): s.utilization for s in samples if s.utilization is not None}
    return [(value, by_time[slot]) for slot, value in sorted(load.items()) if slot in by_time]


@advice("too-many-workers", "Lower num_workers, and set OMP_NUM_THREADS: fewer threads than cores.", needs=NODE)
def too_many_workers(job: Job) -> Answer:
    """More runnable threads than cores must wait."""
    signs: list[str] = []
    normal: list[str] = []
    for series in job:
        running = mean(sample.running for sample in series.samples)
        if running is not None and series.cores:
            text = f"{series.node}: {running:.0f} runnable threads on {series.cores:g} cores"
            (signs if running > series.cores else normal).append(text)
        pressed = series.share_of_time("cpu_some_us")
        if pressed is not None:
            text = f"{series.node}: tasks waited for a CPU {percent(pressed)} of the time"
            (signs if pressed >= limit.CPU_PRESSURE.value else normal).append(text)
        for instance, times in _throttled(series).items():
            signs.append(f"{instance}: CPU quota used up {times} times")
    if signs:
        return problem(few(signs), (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)[min(len(signs), 3) - 1])
    if not normal:
        return unknown("the nodes report neither running threads nor the pressure on CPUs")
    return ok(few(normal))


def _throttled(series: NodeSeries) -> dict[str, int]:
    """Return how often containers exhausted their quota within the window; zeros are left out."""
    counts_of: dict[str, list[int]] = {}
    for sample in series.samples:
        for instance, container in sample.containers.items():
            if container.throttled is not None:
                counts_of.setdefault(instance, []).append(container.throttled)
    grown = {instance: counts[-1] - counts[0] for instance, counts in counts_of.items()}
    return {instance: times for instance, times in grown.items() if times > 0}
