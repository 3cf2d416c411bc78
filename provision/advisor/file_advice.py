"""Checks of the files of a job: data, shared memory, checkpoints, TensorBoard events, its log."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from statistics import median

from provision.advisor import thresholds as limit
from provision.advisor.base import NODE, PROCESSES, Answer, Confidence, advice, few, ok, percent, problem, unknown
from provision.advisor.gpu_advice import gpu_samples, utilization
from provision.advisor.series import ContainerSample, NodeSeries
from provision.batch.durations import elapsed

Job = Sequence[NodeSeries]
_FAR = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "glusterfs", "fuse", "9p", "beegfs", "gpfs")
_MIB = float(1 << 20)


def _container_samples(job: Job) -> Iterator[tuple[str, list[tuple[float, ContainerSample]]]]:
    for series in job:
        names = dict.fromkeys(name for sample in series.samples for name in sample.containers)
        for name in names:
            yield name, [(s.t, s.containers[name]) for s in series.samples if name in s.containers]


@advice(
    "slow-storage",
    "Copy the data to storage of the cluster or to a local NVMe disk first; keep temporary data in memory (tmpfs).",
    needs=PROCESSES,
)
def slow_storage(job: Job) -> Answer:
    """Processes wait for slow or remote storage."""
    signs: list[str] = []
    normal: list[str] = []
    for series in job:
        pressed = series.share_of_time("io_some_us")
        if pressed is not None:
            text = f"{series.node}: tasks waited for storage {percent(pressed)} of the time"
            (signs if pressed >= limit.IO_PRESSURE.value else normal).append(text)
        states = [sample.state == "D" for process in series.job_processes() for sample in process.samples]
        blocked = 100 * sum(states) / len(states) if states else 0.0
        waited = _waited(series)
        if max(blocked, waited) >= limit.BLOCKED_SHARE.value:
            signs.append(
                f"{series.node}: processes of the job were blocked in {percent(max(blocked, waited))} of samples"
            )
        elif states:
            normal.append(f"{series.node}: blocked in {percent(blocked)} of samples")
        signs += _slow_nfs(series)
    reading = sum(process.rate("read_bytes") or 0 for series in job for process in series.job_processes()) / _MIB
    far = few(list(dict.fromkeys(_far_mounts(job))))
    means = utilization(job)
    busy = bool(means) and min(means.values()) >= limit.BUSY_UTILIZATION.value
    tail = f"; {reading:.0f} MiB/s are read" + (f"; {far}" if far else "")
    if signs and busy:
        return ok(f"{few(signs)}{tail}; the GPUs are busy nevertheless", Confidence.LOW)
    if signs:
        return problem(few(signs) + tail, Confidence.HIGH if len(signs) > 1 else Confidence.MEDIUM)
    if not normal:
        return unknown("the nodes report neither the pressure on storage nor the states of the job's processes")
    return ok(few(normal) + tail)


def _waited(series: NodeSeries) -> float:
    """Return the longest wait of a process for block devices, in per cent; 0 if the kernel does not count it."""
    if series.delay_counted is False:
        return 0.0
    return max((100 * (p.rate("blkio") or 0) / series.ticks for p in series.job_processes()), default=0.0)


def _slow_nfs(series: NodeSeries) -> Iterator[str]:
    for name, samples in _container_samples([series]):
        readings = [(t, sample.nfs) for t, sample in samples if sample.nfs is not None]
        if not readings or readings[-1][0] <= readings[0][0]:
            continue
        for mount, (calls, spent) in (readings[-1][1] or {}).items():
            first = (readings[0][1] or {}).get(mount)
            more = calls - first[0] if first else 0.0
            rate = more / (readings[-1][0] - readings[0][0])
            each = (spent - first[1]) / more if first and more > 0 else 0.0
            if rate >= limit.NFS_CALLS.value and each > limit.NFS_MILLISECONDS.value:
                yield f"{name}: a call to {mount} (NFS) takes {each:.1f} ms, {rate:.0f} calls/s"


def _far_mounts(job: Job) -> Iterator[str]:
    for series in job:
        for mounts in series.mounts.values():
            for place, kind, _ in mounts:
                if kind.startswith(_FAR):
                    yield f"{place} is {kind}"


@advice("many-small-files", "Pack the data into big files: tar (WebDataset), LMDB, TFRecord.", needs=PROCESSES)
def many_small_files(job: Job) -> Answer:
    """Many small reads cost more time than their bytes."""
    small: list[tuple[float, str]] = []
    normal: list[tuple[float, str]] = []
    for series in job:
        for process in series.job_processes():
            size, rate = process.rate("rchar"), process.rate("syscr")
            if size is None or rate is None:
                continue
            each = size / rate / 1024 if rate else 0.0
            text = f"{series.node} pid {process.pid}: {rate:.0f} reads/s of {each:.1f} KiB"
            many = rate >= limit.READ_RATE.value and each < limit.READ_SIZE.value
            (small if many else normal).append((rate, text))
    if small:
        return problem(few([text for _, text in sorted(small, reverse=True)]))
    if not normal:
        return unknown("the reads of the job's processes are unknown (/proc/PID/io needs root)")
    return ok(max(normal)[1] + " is the most")


@advice(
    "shm-too-small",
    "Give the containers more shared memory: --share-memory 8Gi (docker run --shm-size); with --no-container the node: "
    "mount -o remount,size=8G /dev/shm.",
    needs=NODE,
)
def shm_too_small(job: Job) -> Answer:
    """Data workers pass batches through /dev/shm, which has 64 MiB by default in Docker."""
    small: list[str] = []
    normal: list[str] = []
    for name, samples in _container_samples(job):
        known = [(s.shm_size, s.shm_used or 0.0) for _, s in samples if s.shm_size]
        if not known:
            continue
        size, used = known[-1][0], max(used for _, used in known)
        text = f"{name}: /dev/shm {(size or 0) / limit.GIB:.2f} GiB, {percent(100 * used / (size or 1))} used"
        little = (size or 0) < limit.SHM_SIZE.value * limit.GIB or 100 * used > limit.SHM_USED.value * (size or 1)
        (small if little else normal).append(text)
    if small:
        return problem(few(small), Confidence.HIGH)
    return ok(few(normal), Confidence.HIGH) if normal else unknown("no container's /dev/shm could be read")


@advice(
    "checkpoint-too-often",
    "Save checkpoints less often, from one rank, or beside the training (asynchronously).",
    needs=PROCESSES,
)
def checkpoint_too_often(job: Job) -> Answer:
    """Ranks that write checkpoints do not train."""
    times = [sorted(set(_saved(samples))) for _, samples in _container_samples(job)]
    gaps = [b - a for saved in times for a, b in itertools.pairwise(saved) if b - a > 1]
    watched = any(s.checkpoints is not None for _, samples in _container_samples(job) for _, s in samples)
    bursts, dips = _bursts(job)
    writes = f"{bursts} bursts of writing, {dips} of them while a GPU waited"
    often = bool(gaps) and median(gaps) < limit.CHECKPOINT_SECONDS.value
    if often:
        return problem(
            f"a checkpoint every {elapsed(median(gaps))}; {writes}", Confidence.HIGH if dips else Confidence.MEDIUM
        )
    if dips > 1:
        return problem(f"{writes}; the files that they wrote are unknown", Confidence.LOW)
    if gaps:
        return ok(f"a checkpoint every {elapsed(median(gaps))}; {writes}", Confidence.HIGH)
    if watched and any(times):
        return ok(f"one checkpoint; {writes}")
    if not any(process.readings("write_bytes") for series in job for process in series.job_processes()):
        return unknown("no folder of checkpoints was watched, and the writes of processes are unknown")
    return ok(f"no checkpoint was seen; {writes}", Confidence.LOW)


def _saved(samples: Sequence[tuple[float, ContainerSample]]) -> Iterator[float]:
    for _, sample in samples:
        yield from (sample.checkpoints or {}).values()


def _bursts(job: Job) -> tuple[int, int]:
    """Return the number of samples with many writes, and in how many of them a GPU of the node waited."""
    bursts, dips = 0, 0
    for series in job:
        written: dict[int, float] = {}
        for process in series.job_processes():
            for t, rate in process.steps("write_bytes"):
                written[round(t / series.interval)] = written.get(round(t / series.interval), 0.0) + rate / _MIB
        slots = {slot for slot, rate in written.items() if rate >= limit.BURST_BYTES.value}
        low = {
            round(sample.t / series.interval)
            for own, _, samples in gpu_samples([series])
            for sample in samples
            if own is series and (sample.utilization or 0.0) < limit.DIP_UTILIZATION.value
        }
        bursts, dips = bursts + len(slots), dips + len(slots & low)
    return bursts, dips


@advice(
    "tensorboard-too-often",
    "Write events less often: a longer interval between logs, and a longer flush_secs.",
    needs=NODE,
)
def tensorboard_too_often(job: Job) -> Answer:
    """Writing histograms in each step costs more than the step."""
    fast: list[str] = []
    normal: list[str] = []
    for name, samples in _container_samples(job):
        known = [(t, sum(s.tfevents.values())) for t, s in samples if s.tfevents is not None]
        if not known or known[-1][0] <= known[0][0]:
            continue
        rate = max(0.0, known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0]) / 1024
        (fast if rate > limit.EVENTS_RATE.value else normal).append(f"{name}: events grow by {rate:.1f} KiB/s")
    if fast:
        return problem(few(fast))
    return ok(few(normal)) if normal else unknown("no folder for TensorBoard was watched for long enough")


@advice(
    "no-tensorboard-events",
    "Write events more often than once in so many epochs, to the folder of --logdir.",
    needs=NODE,
)
def no_tensorboard_events(job: Job) -> Answer:
    """A job with an empty log folder shows empty graphs."""
    watched = [s.tfevents for _, samples in _container_samples(job) for _, s in samples if s.tfevents is not None]
    if not watched:
        return unknown("no folder for TensorBoard was watched")
    files = {name for events in watched for name in events}
    if files:
        return ok(f"{len(files)} files of events", Confidence.HIGH)
    ages = [process.age for series in job for process in series.job_processes() if process.age is not None]
    if not ages:
        return unknown("no events were written yet, and the age of the job is unknown")
    age = max(ages)
    if age > limit.EVENTS_SECONDS.value:
        return problem(f"no file of events after {age / 60:.0f} minutes")
    return unknown(f"no file of events yet, after {age / 60:.0f} minutes")


@advice(
    "log-too-chatty", "Print every so many iterations; each .item() or print of a tensor waits for the GPU.", needs=NODE
)
def log_too_chatty(job: Job) -> Answer:
    """Printing a loss in each iteration makes each iteration wait for the GPU."""
    ranks = {name: count for series in job for name, count in _ranks_in(series).items()}
    speakers = {name for series in job for name, item in series.containers.items() if item.speaks_for_all}
    """mpirun prints the output of all ranks."""
    chatty: list[str] = []
    normal: list[str] = []
    for name, samples in _container_samples(job):
        known = [(t, float(s.log_lines)) for t, s in samples if s.log_lines is not None]
        if not known or known[-1][0] <= known[0][0]:
            continue
        printing = sum(ranks.values()) if name in speakers else ranks.get(name, 1)
        rate = (known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0]) / max(1, printing)
        (chatty if rate > limit.LOG_RATE.value else normal).append(f"{name}: {rate:.1f} lines/s and rank")
    if chatty:
        return problem(few(chatty))
    return ok(few(normal), Confidence.HIGH) if normal else unknown("no log of the job was watched for long enough")


def _ranks_in(series: NodeSeries) -> dict[str, int]:
    counts: dict[str, int] = {}
    for process in series.ranks():
        if process.instance:
            counts[process.instance] = counts.get(process.instance, 0) + 1
    return counts
