"""Documents of benchmarks."""

from __future__ import annotations

from typing import Any, TypedDict

from provision.benchmarks.compare import Verdict


class Run(TypedDict):
    """A run of a benchmark; throughput in images per second."""

    label: str
    """The file, or the name of the stored result."""
    configuration: str
    """The configuration, within which the efficiency is computed."""
    model: str | None
    """The model."""
    batch: int | None
    """Images per step and GPU."""
    gpus: int
    """The number of GPUs."""
    device: str
    """`GPU` or `CPU`."""
    img_per_sec_per_gpu: float
    """The throughput of a GPU."""
    plus_minus: float | None
    """1.96 standard deviations of it."""
    total: float
    """The throughput of all GPUs."""
    total_plus_minus: float | None
    """1.96 standard deviations of it."""
    efficiency: float | None
    """The fraction of linear speed-up over the run on one GPU; null without such a run."""
    iterations: list[float]
    """The throughput of a GPU in each iteration."""
    simulated: bool
    """Whether a simulated GPU took part."""


class UnfinishedRun(TypedDict):
    """A run without a result."""

    label: str
    """The file."""
    model: str | None
    """The model."""
    iterations: int
    """The number of iterations before the output ended."""
    reason: str
    """Why it has no result."""


class Runs(TypedDict):
    """Runs of benchmarks."""

    runs: list[Run]
    """The runs."""
    unfinished: list[UnfinishedRun]
    """Runs without a result."""
    empty: list[str]
    """Files without a run."""


class StoredRuns(Runs):
    """Runs of a benchmark that was measured."""

    name: str
    """The name of the stored results."""
    kept: list[str]
    """The IDs of the stored results."""


class PlannedCommands(TypedDict):
    """The commands that a benchmark would run (`--dry-run`)."""

    commands: list[str]
    """The commands."""


class Comparison(TypedDict):
    """A comparison of two runs; throughput of all GPUs in images per second."""

    model: str | None
    """The model."""
    batch: int | None
    """Images per step and GPU."""
    gpus: int
    """The number of GPUs."""
    device: str
    """`GPU` or `CPU`."""
    a: float
    """The throughput of the first side."""
    b: float
    """The throughput of the second side."""
    ratio: float | None
    """`a` divided by `b`."""
    low: float | None
    """The lower end of the 99 % band of the ratio."""
    high: float | None
    """The upper end of the 99 % band of the ratio."""
    verdict: Verdict
    """Whether the difference is real."""
    faster: str | None
    """`a` or `b`; null unless the difference is real."""
    speedup: float | None
    """How many times faster the faster side is."""
    method: str
    """The basis of the verdict: `runs`, `iterations`, `bands` or `none`."""
    simulated: bool
    """Whether a simulated GPU took part."""


class Comparisons(TypedDict):
    """A comparison of two results."""

    a: str
    """The first side."""
    b: str
    """The second side."""
    comparisons: list[Comparison]
    """The comparisons of runs of the same model, batch and number of GPUs."""
    only_a: list[Run]
    """Runs of the first side without a counterpart."""
    only_b: list[Run]
    """Runs of the second side without a counterpart."""


class StoredComparisons(Comparisons):
    """A comparison of two settings that were measured in turns."""

    kept_a: list[str]
    """The IDs of the stored results of the first side."""
    kept_b: list[str]
    """The IDs of the stored results of the second side."""


class MeasuredNode(TypedDict):
    """A node at the time of a benchmark; unknown values are empty."""

    name: str
    """Its name in the inventory."""
    ranks: int
    """The number of ranks on it."""
    gpus: str
    """Its GPUs; `CPU` without GPUs."""
    driver: str
    """The version of its driver."""
    system: str
    """Its operating system."""
    kernel: str
    """Its kernel."""
    fabric: list[str]
    """Its active ports."""
    image: str
    """The image."""
    image_id: str
    """The ID of the image."""
    simulated: list[str]
    """Its simulated components."""


class StoredResult(TypedDict):
    """A stored result of a benchmark."""

    id: str
    """Its ID."""
    name: str
    """Its name."""
    started: str
    """Start time in UTC."""
    seconds: float
    """Duration."""
    user: str
    """The operator."""
    host: str
    """The controller."""
    inventory: str
    """The path of the inventory."""
    command: str
    """The command of each rank, without secrets."""
    options: str
    """The options of `provision run`, without secrets."""
    environment: dict[str, str | None]
    """Variables set by the user; null for a secret."""
    nodes: list[MeasuredNode]
    """The nodes."""
    about: dict[str, Any]
    """The report of the benchmark itself: versions, device, variables of its first rank."""
    exit_code: int
    """The exit code."""
    runs: list[Run]
    """The runs."""
    simulated: list[str]
    """Simulated components of all nodes."""


class StoredResults(TypedDict):
    """The stored results."""

    results: list[StoredResult]
    """The results, oldest first."""


class LabelledComparison(Comparison):
    """A comparison of two runs with their labels."""

    a_label: str
    """The label of the first run."""
    b_label: str
    """The label of the second run."""


class BenchmarkReport(Runs):
    """The figures of an HTML report."""

    title: str
    """The title of the page."""
    generated: str
    """When it was written, in UTC."""
    version: str
    """The version of provision."""
    simulated: list[str]
    """Simulated components."""
    results: list[StoredResult]
    """The stored results."""
    comparisons: list[LabelledComparison]
    """The comparisons of runs of the same model, batch and number of GPUs."""
