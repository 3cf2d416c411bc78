"""A report on benchmarks as one HTML page: runs, nodes, throughput, scaling and significant differences.

The page is self-contained, without network access and scripts. It is also well-formed XML for strict parsers.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from provision.batch.durations import elapsed
from provision.benchmarks import Comparison, Record, Run, Verdict, compare, efficiencies
from provision.benchmarks.scaling import base_runs, bases, percent
from provision.model.history import local_time
from provision.report.bench_report import (
    METHODS,
    SIMULATED,
    comparison_document,
    record_document,
    runs_document,
    verdict_text,
    with_band,
)
from provision.report.svg import COLOURS, Bar, Curve, bars, clean, curves
from provision.resources import package_path

if TYPE_CHECKING:
    from provision.report.json_documents.benchmarks import BenchmarkReport

_MAX_SIDES = 8
"""With more results of one workload and size, each is compared with the fastest only."""

_STYLE = package_path("report", "files", "bench.css")


def as_document(
    runs: Sequence[Run], records: Sequence[Record], *, generated: str, version: str, title: str
) -> BenchmarkReport:
    """Return the data of the page as JSON; keys are an interface and only ever added."""
    return {
        "title": title,
        "generated": generated,
        "version": version,
        "simulated": sorted({thing for record in records for thing in record.simulated}),
        **runs_document(runs),
        "results": [record_document(record) for record in records],
        "comparisons": [
            {"a_label": item.a.label, "b_label": item.b.label, **comparison_document(item)} for item in _pairs(runs)
        ],
    }


def as_html(runs: Sequence[Run], records: Sequence[Record], *, generated: str, version: str, title: str) -> str:
    """Return the page. `generated` is in UTC, as ``2026-11-22T10:03:11Z``."""
    runs = list(itertools.chain.from_iterable(_workloads(runs)))
    colours = {name: number for number, name in enumerate(dict.fromkeys(run.series for run in runs))}
    style = _STYLE.read_text(encoding="utf-8")
    series = "".join(f".series{number} {{ color: var(--s{number}); }} " for number in range(COLOURS))
    body = [
        f"<h1>{clean(title)}</h1>",
        _about(len(runs), generated, version),
        *_warning(runs, records),
        *_summary(runs),
        *itertools.chain.from_iterable(_workload(group, colours) for group in _workloads(runs)),
        *_verdicts(runs),
        *_results(runs, records),
        _METHOD,
    ]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html xmlns="http://www.w3.org/1999/xhtml" lang="en">',
            '<head><meta charset="utf-8"/><meta name="viewport" content="width=device-width, initial-scale=1"/>',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>",
            f"<title>{clean(title)}</title><style>{style}{series}</style></head>",
            "<body>",
            *body,
            "</body></html>",
            "",
        ]
    )


_METHOD = """<h2>How to read this</h2>
<p>Throughput is in images per second (img/s); the images are synthetic, so that only the model, the GPUs and the
network between them are measured. Error bars and &#177; are 1.96 standard deviations of the measured iterations. The
efficiency of n GPUs is T(n) / (n T(1)): T(n) is the total throughput, and T(1) that of the run on one GPU with the same
model, batch and configuration, or of the only configuration with such a run. It is truncated to two decimals. Runs of
one configuration have one colour.</p>
<p>A difference is called real if Welch's t-test rejects equal means at 99 % and the difference is at least 1 %; the
samples are the iterations, or the means of the runs if each side has three or more. Without iterations, differences of
bands that do not overlap are real. Iterations of one run share its placement and clock speeds: repeat runs to confirm
small differences.</p>"""


def _about(count: int, generated: str, version: str) -> str:
    made = f"created by provision {clean(version)} on {clean(local_time(generated))}"
    return f'<p class="soft">{count} run{"s" * (count != 1)}; {made}</p>'


def _warning(runs: Sequence[Run], records: Sequence[Record]) -> list[str]:
    if not any(run.simulated for run in runs):
        return []
    things = sorted({thing for record in records for thing in record.simulated})
    suffix = f" Components: {clean('; '.join(things))}." if things else ""
    notice = "results are not measurements of real GPUs."
    return [f'<p class="simulated"><strong>{SIMULATED}</strong> {notice}{suffix}</p>']


def _workloads(runs: Sequence[Run]) -> list[list[Run]]:
    groups: dict[tuple[str, int | None, str], list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.gpus):
        groups.setdefault(run.workload, []).append(run)
    return list(groups.values())


def _summary(runs: Sequence[Run]) -> list[str]:
    rows = [
        _row(
            clean(run.title),
            clean(_named(run)),
            run.devices,
            clean(with_band(run.img_per_sec_per_gpu, run.plus_minus)).replace("+-", "&#177;"),
            f"{run.total:.1f}",
            percent(share) if run.gpus > 1 else "-",
        )
        for run, share in zip(runs, efficiencies(runs), strict=True)
    ]
    heads = ("workload", "result", "on", "img/s each", "img/s", "efficiency")
    return ["<h2>Results</h2>", _table(heads, rows, right=3)]


def _workload(runs: Sequence[Run], colours: Mapping[str, int]) -> list[str]:
    """Return a workload's heading and charts; `colours` has the colour number of each configuration."""
    title, singles = clean(runs[0].title), bases(runs)
    rows = [
        dataclasses.replace(_throughput(run, base), series=colours[run.series])
        for run, base in zip(runs, singles, strict=True)
    ]
    dashed = " The dashed mark is linear speed-up from one." if any(singles) else ""
    whole = bars(f"Throughput of {runs[0].title}", "img/s", rows)
    parts = [f"<h2>{title}</h2>", *_key(runs, colours)]
    parts += [
        _figure(_scroll(whole), f"Throughput of all together, with error bars.{dashed}"),
        *_scaling(runs, colours),
    ]
    scaled = [
        dataclasses.replace(_efficiency(run, share, runs), series=colours[run.series])
        for run, share in zip(runs, efficiencies(runs), strict=True)
        if share and run.gpus > 1
    ]
    if scaled:
        chart = bars(f"Efficiency of {runs[0].title}", "per cent", scaled, least=100)
        parts.append(
            _figure(_scroll(chart), "Efficiency in per cent of linear speed-up, with error bars from both runs.")
        )
    return parts


def _key(runs: Sequence[Run], colours: Mapping[str, int]) -> list[str]:
    """Return the legend of the colours if there are several."""
    groups = _by_series(runs)
    if len(groups) < 2:  # noqa: PLR2004
        return []
    items = [
        f'<li class="series{number % COLOURS}"><span>{"&#9675;" if again else "&#9679;"}</span> {name}</li>'
        for number, again, name in (
            (colours[series], colours[series] >= COLOURS, clean(_configuration(group)))
            for series, group in groups.items()
        )
    ]
    return [f'<ul class="key">{"".join(items)}</ul>']


def _by_series(runs: Sequence[Run]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.series, []).append(run)
    return groups


def _configuration(runs: Sequence[Run]) -> str:
    """Return the configuration name of these runs."""
    name = runs[0].series or "unnamed"
    return f"{name} ({SIMULATED})" if any(run.simulated for run in runs) else name


def _throughput(run: Run, base: float | None) -> Bar:
    band = run.total_plus_minus
    mark = base * run.gpus if base and run.gpus > 1 else None
    figures = with_band(run.total, band).replace("+-", "\u00b1")
    return Bar(f"{run.devices}: {_named(run)}", run.total, band, figures, mark, run.simulated)


def _efficiency(run: Run, share: float, runs: Sequence[Run]) -> Bar:
    relative = math.hypot(_relative([run]), _relative(base_runs(run, runs)))
    return Bar(f"{run.devices}: {_named(run)}", 100 * share, 100 * share * relative, percent(share), 100, run.simulated)


def _relative(runs: Sequence[Run]) -> float:
    """Return the error bar of the mean of the runs, as a fraction of the mean."""
    total, band = _mean(runs)
    return band / total if total else 0.0


def _mean(runs: Sequence[Run]) -> tuple[float, float]:
    """Return the mean throughput of repeated runs and its error bar."""
    return sum(run.total for run in runs) / len(runs), math.hypot(*(run.total_plus_minus or 0 for run in runs)) / len(
        runs
    )


def _scaling(runs: Sequence[Run], colours: Mapping[str, int]) -> list[str]:
    """Return the plot over the number of devices for configurations with several numbers."""
    lines: list[Curve] = []
    for name, group in _by_series([run for run in runs if run.total > 0]).items():
        sizes: dict[int, list[Run]] = {}
        for run in group:
            sizes.setdefault(run.gpus, []).append(run)
        if len(sizes) > 1:
            points = tuple((count, *_mean(some)) for count, some in sorted(sizes.items()))
            lines.append(Curve(_configuration(group), points, colours[name], bases([group[0], *runs])[0]))
    if not lines:
        return []
    plot = curves(f"Scaling of {runs[0].title}", f"{runs[0].device}s", "img/s", lines)
    caption = "Throughput over the number of devices." + (
        " Dotted: linear speed-up." if any(line.ideal for line in lines) else ""
    )
    return [_figure("".join(_key(runs, colours)) + _scroll(plot), caption)]


def _verdicts(runs: Sequence[Run]) -> list[str]:
    comparisons = _pairs(runs)
    if not comparisons:
        return []
    rows = [
        _row(
            clean(f"{item.a.title}, {item.a.devices}"),
            clean(_named(item.a)),
            clean(_named(item.b)),
            f'<span class="badge">{item.verdict.value}</span> {clean(_words(item))}',
            _ratio(item),
            METHODS[item.method],
        )
        for item in comparisons
    ]
    return [
        "<h2>Comparisons</h2>",
        _table(("workload", "A", "B", "verdict", "A/B and its band", "judged by"), rows, right=99),
    ]


def _ratio(item: Comparison) -> str:
    ratio = "-" if item.ratio is None else f"{item.ratio:.3f}"
    return ratio if item.low is None or item.high is None else f"{ratio} ({item.low:.3f} to {item.high:.3f})"


def _words(item: Comparison) -> str:
    if item.verdict is Verdict.REAL:
        return verdict_text(item).removeprefix("real: ")
    return verdict_text(item).partition(": ")[2]


def _pairs(runs: Sequence[Run]) -> list[Comparison]:
    """Compare results of the same workload and size: each with each, or, if there are many, with the fastest only."""
    groups: dict[tuple[tuple[str, int | None, str], int], dict[str, list[Run]]] = {}
    for run in runs:
        groups.setdefault((run.workload, run.gpus), {}).setdefault(run.series, []).append(run)
    comparisons: list[Comparison] = []
    for sides in groups.values():
        ordered = sorted(sides.values(), key=lambda side: -sum(run.total for run in side) / len(side))
        pairs: Iterable[tuple[list[Run], list[Run]]] = itertools.combinations(ordered, 2)
        if len(ordered) > _MAX_SIDES:
            pairs = ((ordered[0], other) for other in ordered[1:])
        comparisons += [item for a, b in pairs for item in compare(a, b)[0]]
    return comparisons


def _results(runs: Sequence[Run], records: Sequence[Record]) -> list[str]:
    parts = ["<h2>Runs and nodes</h2>"]
    parts += [_result(record) for record in records]
    record_names = {record.name for record in records}
    files = list(dict.fromkeys(run.label for run in runs if run.label not in record_names))
    if files:
        names = ", ".join(f"<code>{clean(name)}</code>" for name in files)
        parts.append(f"<p>Read from output files without data about the nodes: {names}.</p>")
    return parts


def _result(record: Record) -> str:
    sizes = ", ".join(dict.fromkeys(run.devices for run in record.runs))
    facts: list[tuple[str, str]] = [
        ("when", f"{local_time(record.started)}, {elapsed(record.seconds)}, by {record.user} on {record.host}"),
        ("command", record.command),
        ("options", record.options),
        ("variables", _variables(record.environment)),
        *((_nodes(names), _machine(about)) for about, names in _similar(record).items()),
        ("software", ", ".join(f"{name} {value}" for name, value in record.about.items() if _is_figure(value))),
        ("variables of rank 0", _variables(record.about.get("environment"))),
        ("exit code", str(record.exit_code) if record.exit_code else ""),
        (SIMULATED, "; ".join(record.simulated)),
    ]
    rows = "".join(f"<dt>{clean(name)}</dt><dd>{_code(name, text)}</dd>" for name, text in facts if text)
    head = f'{clean(record.name)} <span class="soft">{clean(sizes)}, {clean(record.id)}</span>'
    return f'<section class="result"><h3>{head}</h3><dl>{rows}</dl></section>'


def _code(name: str, text: str) -> str:
    return (
        f"<code>{clean(text)}</code>" if name == "command" or name.startswith(("options", "variables")) else clean(text)
    )


def _variables(values: Any) -> str:
    """Return ``K=V K=V``; a value that was not recorded is marked."""
    if not isinstance(values, Mapping):
        return ""
    return " ".join(f"{name}={'(not recorded)' if value is None else value}" for name, value in values.items())


def _is_figure(value: Any) -> bool:
    return isinstance(value, str | int | float) and value != ""


def _similar(record: Record) -> Mapping[tuple[str, ...], list[str]]:
    """Return the kinds of nodes, each with the names of its nodes."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for node in record.nodes:
        driver = f"driver {node.driver}" if node.driver else ""
        fabric = ", ".join(node.fabric) or "no RDMA port active"
        image = " ".join(filter(None, [node.image, node.image_id[:19]]))
        about = (
            f"{node.ranks} rank{'s' * (node.ranks != 1)}",
            node.gpus,
            driver,
            node.system,
            node.kernel,
            fabric,
            image,
        )
        kinds.setdefault(about, []).append(node.name)
    return kinds


def _machine(about: Sequence[str]) -> str:
    return "; ".join(filter(None, about))


def _nodes(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]} ({len(names)})"


def _named(run: Run) -> str:
    return f"{run.label or 'unnamed'} ({SIMULATED})" if run.simulated else run.label or "unnamed"


def _figure(chart: str, caption: str) -> str:
    return f"<figure>{chart}<figcaption>{clean(caption)}</figcaption></figure>"


def _scroll(chart: str) -> str:
    return f'<div class="scroll">{chart}</div>'


def _row(*cells: str) -> tuple[str, ...]:
    return cells


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: int) -> str:
    """Return a table; columns from `right` on contain numbers."""

    def line(kind: str, cells: Sequence[str]) -> str:
        marks = ('<{0} class="number">{1}</{0}>' if at >= right else "<{0}>{1}</{0}>" for at in range(len(cells)))
        return "<tr>" + "".join(mark.format(kind, cell) for mark, cell in zip(marks, cells, strict=True)) + "</tr>"

    body = "".join(line("td", row) for row in rows)
    return _scroll(f"<table><thead>{line('th', heads)}</thead><tbody>{body}</tbody></table>")
