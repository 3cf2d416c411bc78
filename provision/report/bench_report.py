"""Results and comparisons of training benchmarks as JSON and as text of at most 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from provision.benchmarks import Comparison, Record, Run, Unfinished, Verdict, efficiencies
from provision.benchmarks.record import NodeInfo
from provision.benchmarks.scaling import percent
from provision.report import layout

if TYPE_CHECKING:
    from provision.report.json_documents.benchmarks import (
        Comparison as ComparisonDocument,
    )
    from provision.report.json_documents.benchmarks import (
        Comparisons,
        MeasuredNode,
        Runs,
        StoredResult,
        StoredResults,
    )
    from provision.report.json_documents.benchmarks import (
        Run as RunDocument,
    )

_MIN_MODEL_WIDTH = 8
_MIN_LABEL_WIDTH = 14
SIMULATED = "SIMULATED"
_FOOT = "img/s: images per second; +-: 1.96 standard deviations; efficiency: T(n) / (n T(1)), cut to two decimals."
METHODS = {
    "runs": "Welch's t-test at 99 % over the runs' means",
    "iterations": "Welch's t-test at 99 % over the iterations",
    "bands": "whether the printed bands overlap",
    "none": "no criterion available",
}


def runs_document(runs: Sequence[Run], unfinished: Sequence[Unfinished] = (), empty: Sequence[str] = ()) -> Runs:
    """Return the document of ``bench parse`` and ``bench table``; keys are an interface and only ever added."""
    return {
        "runs": [run_document(run, share) for run, share in zip(runs, efficiencies(runs), strict=True)],
        "unfinished": [
            {"label": run.label, "model": run.model, "iterations": run.iterations, "reason": run.reason}
            for run in unfinished
        ],
        "empty": list(empty),
    }


def run_document(run: Run, efficiency: float | None) -> RunDocument:
    """Return one run; `efficiency` is a fraction."""
    return {
        "label": run.label,
        "configuration": run.series,
        "model": run.model,
        "batch": run.batch,
        "gpus": run.gpus,
        "device": run.device,
        "img_per_sec_per_gpu": run.img_per_sec_per_gpu,
        "plus_minus": run.plus_minus,
        "total": run.total,
        "total_plus_minus": run.total_plus_minus,
        "efficiency": efficiency,
        "iterations": list(run.iterations),
        "simulated": run.simulated,
    }


def compare_document(
    a: str, b: str, compared: Sequence[Comparison], only_a: Sequence[Run], only_b: Sequence[Run]
) -> Comparisons:
    """Return the document of ``bench compare --json``; keys are an interface and only ever added."""
    return {
        "a": a,
        "b": b,
        "comparisons": [comparison_document(item) for item in compared],
        "only_a": [run_document(run, None) for run in only_a],
        "only_b": [run_document(run, None) for run in only_b],
    }


def comparison_document(item: Comparison) -> ComparisonDocument:
    """Return one comparison; a and b are total images per second."""
    return {
        "model": item.a.model,
        "batch": item.a.batch,
        "gpus": item.a.gpus,
        "device": item.a.device,
        "a": item.a_total,
        "b": item.b_total,
        "ratio": item.ratio,
        "low": item.low,
        "high": item.high,
        "verdict": item.verdict,
        "faster": item.faster,
        "speedup": item.speedup,
        "method": item.method,
        "simulated": item.a.simulated or item.b.simulated,
    }


def stored_document(records: Sequence[Record]) -> StoredResults:
    """Return the document of ``bench list --json``; keys are an interface and only ever added."""
    return {"results": [record_document(record) for record in records]}


def record_document(record: Record) -> StoredResult:
    """Return a stored result with its runs."""
    return {
        "id": record.id,
        "name": record.name,
        "started": record.started,
        "seconds": record.seconds,
        "user": record.user,
        "host": record.host,
        "inventory": record.inventory,
        "command": record.command,
        "options": record.options,
        "environment": dict(record.environment),
        "nodes": [_node_document(node) for node in record.nodes],
        "about": dict(record.about),
        "exit_code": record.exit_code,
        "runs": [run_document(run, None) for run in record.runs],
        "simulated": list(record.simulated),
    }


def _node_document(node: NodeInfo) -> MeasuredNode:
    return {
        "name": node.name,
        "ranks": node.ranks,
        "gpus": node.gpus,
        "driver": node.driver,
        "system": node.system,
        "kernel": node.kernel,
        "fabric": list(node.fabric),
        "image": node.image,
        "image_id": node.image_id,
        "simulated": list(node.simulated),
    }


def stored_text(records: Sequence[Record]) -> str:
    """Return a table with a line for each stored result, oldest first."""
    rows = [
        [
            record.id,
            run.model or "?",
            "?" if run.batch is None else str(run.batch),
            run.devices,
            f"{run.total:.1f}",
            record.name + (f" ({SIMULATED})" if record.simulated else ""),
        ]
        for record in records
        for run in record.runs
    ]
    return "\n".join(_table(["id", "model", "batch", "on", "img/s", "name"], rows, right={2, 4}, model=1))


def runs_text(runs: Sequence[Run]) -> str:
    """Return a table with a line for each run."""
    rows = [
        [
            run.model or "?",
            "?" if run.batch is None else str(run.batch),
            run.devices,
            with_band(run.img_per_sec_per_gpu, run.plus_minus),
            f"{run.total:.1f}",
            percent(share) if run.gpus > 1 else "-",
            _label(run),
        ]
        for run, share in zip(runs, efficiencies(runs), strict=True)
    ]
    heads = ["model", "batch", "on", "img/s each", "img/s", "effic.", "run"]
    return "\n".join([*_table(heads, rows, right={1, 3, 4, 5}), "", *layout.wrapped(_FOOT, "  ")])


def compare_text(a: str, b: str, compared: Sequence[Comparison], only_a: Sequence[Run], only_b: Sequence[Run]) -> str:
    """Return a table of the comparisons, the methods, and the runs without a counterpart."""
    rows = [
        [
            item.a.model or "?",
            "?" if item.a.batch is None else str(item.a.batch),
            item.a.devices,
            f"{item.a_total:.1f}",
            f"{item.b_total:.1f}",
            _times(item.ratio),
            "-" if item.low is None or item.high is None else f"{item.low:.2f}-{item.high:.2f}",
            verdict_text(item),
        ]
        for item in compared
    ]
    heads = ["model", "batch", "on", "A img/s", "B img/s", "A/B", "band", "verdict"]
    lines = [
        *layout.wrapped(f"A: {a}", "  "),
        *layout.wrapped(f"B: {b}", "  "),
        "",
        *_table(heads, rows, right={1, 3, 4, 5, 6}),
    ]
    methods = dict.fromkeys(item.method for item in compared)
    lines += (
        ["", *layout.wrapped("Judged by " + "; ".join(METHODS[method] for method in methods) + ".", "  ")]
        if compared
        else []
    )
    for side, unmatched in (("A", only_a), ("B", only_b)):
        lines += [
            line for run in unmatched for line in layout.wrapped(f"only {side} has {run.title}, on {run.devices}", "  ")
        ]
    return "\n".join(lines)


def verdict_text(item: Comparison, a: str = "A", b: str = "B") -> str:
    """Return the verdict, e.g. ``real: A is 1.89x as fast``."""
    mark = f" ({SIMULATED})" if item.a.simulated or item.b.simulated else ""
    match item.verdict:
        case Verdict.REAL:
            return f"real: {a if item.faster == 'a' else b} is {_times(item.speedup)} as fast{mark}"
        case Verdict.NOISE:
            return f"noise: no real difference{mark}"
        case Verdict.UNKNOWN:
            return f"unknown: neither iterations nor bands{mark}"


def with_band(value: float, band: float | None) -> str:
    """Return ``205.1 +-0.6``."""
    return f"{value:.1f}" if band is None else f"{value:.1f} +-{band:.1f}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def _label(run: Run) -> str:
    return f"{run.label} ({SIMULATED})" if run.simulated else run.label


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: set[int], model: int = 0) -> list[str]:
    """Format a table: columns in `right` are right-aligned, the last one is wrapped, column `model` is truncated."""
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads) - 1)]
    width_left = layout.width() - _MIN_LABEL_WIDTH - sum(widths) - 2 * len(widths) + widths[model]
    widths[model] = min(widths[model], max(_MIN_MODEL_WIDTH, width_left))
    indent = sum(widths) + 2 * len(widths)
    lines: list[str] = []
    for row in [heads, *rows]:
        cells = [
            f"{cell:>{width}}" if column in right else f"{layout.shortened(cell, width):<{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        last = textwrap.wrap(row[-1], max(_MIN_LABEL_WIDTH, layout.width() - indent)) or [""]
        lines.append("  ".join([*cells, last[0]]).rstrip())
        lines += [" " * indent + part for part in last[1:]]
    return lines
