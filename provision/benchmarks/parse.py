"""Parse the output of a synthetic training benchmark.

The format is that of Horovod's example programs, which the vendors' guides and our own benchmark use::

    Model: vgg16
    Batch size: 64
    Number of GPUs: 4
    Iter #0: 205.5 img/sec per GPU
    Img/sec per GPU: 205.1 +-0.6
    Total img/sec on 4 GPU(s): 820.5 +-2.5
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from provision.benchmarks.base import Run, Unfinished

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_TAG = re.compile(r"\[[^\[\]\s]{0,80}?(\d{1,7})\]<(?:stdout|stderr|stddiag)>: ?|^\[(\d{1,7})\] ")
"""``[1,0]<stdout>:`` of Open MPI 4, ``[job@1,0]<stdout>: `` of 5, and ``[0] `` of ``provision run``."""

_BEFORE = r"\s*(?:\[?\d{4}-\d\d-\d\d[T ]\d\d:\S*\s+|\[[^\]]{0,80}\]\s*)?"
"""A container engine's time stamp, or the name of the pod or logger."""
_NUMBER = r"(\d{1,12}(?:\.\d{1,12})?)"
_BAND = rf"{_NUMBER}(?:\s*(?:\+-|\+/-|±)\s*{_NUMBER})?"
_LINES = {
    "model": re.compile(rf"{_BEFORE}Model: *(\S+)\s*$"),
    "batch": re.compile(rf"{_BEFORE}Batch size: *(\d{{1,9}})\s*$"),
    "devices": re.compile(rf"{_BEFORE}Number of (GPU|CPU)s: *(\d{{1,7}})\s*$"),
    "iteration": re.compile(rf"{_BEFORE}Iter #(\d{{1,7}}): *{_NUMBER} img/sec per (?:GPU|CPU)"),
    "each": re.compile(rf"{_BEFORE}Img/sec per (?:GPU|CPU): *{_BAND}"),
    "total": re.compile(rf"{_BEFORE}Total img/sec on (\d{{1,7}}) (GPU|CPU)\(s\): *{_BAND}"),
}
_NO_RANK = -1
"""The rank of a line without a tag."""


def parse(text: str, label: str = "") -> tuple[list[Run], list[Unfinished]]:
    """Return the runs in `text` in order, and those that started without a result.

    Other lines, rank tags of mpirun, colours, carriage returns and time stamps of container engines are ignored. If
    several ranks print the same, the lowest counts. Nothing is raised.
    """
    by_rank: dict[int, _Reader] = {}
    for number, (rank, line) in enumerate(_lines(text)):
        for name, form in _LINES.items():
            if match := form.match(line):
                by_rank.setdefault(rank, _Reader()).add(number, name, match)
                break
    readers = [by_rank[_NO_RANK]] if _NO_RANK in by_rank else []
    if tagged := sorted(set(by_rank) - {_NO_RANK}):
        readers.append(by_rank[tagged[0]])
    drafts = sorted((draft for reader in readers for draft in reader.drafts), key=lambda draft: draft.begin)
    results = [draft.result(label) for draft in drafts]
    return (
        [result for result in results if isinstance(result, Run)],
        [result for result in results if isinstance(result, Unfinished)],
    )


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with the rank that wrote each; several ranks may share a line."""
    for line in re.split(r"[\r\n]+", _ANSI.sub("", text)):
        tags = list(_TAG.finditer(line))
        ends = [*(tag.start() for tag in tags), len(line)]
        yield _NO_RANK, line[: ends[0]]
        pieces: dict[int, str] = {}
        for tag, end in zip(tags, ends[1:], strict=True):
            rank = int(tag[1] or tag[2])
            pieces[rank] = pieces.get(rank, "") + line[tag.end() : end]
        yield from pieces.items()


@dataclass
class _Draft:
    """A run that is being parsed."""

    begin: int
    model: str | None = None
    batch: int | None = None
    gpus: int = 0
    device: str = "GPU"
    each: tuple[float, float | None] | None = None
    total: tuple[float, float | None] | None = None
    iterations: list[float] = field(default_factory=list)

    def result(self, label: str) -> Run | Unfinished | None:
        """Return the result; None if the lines are not a run."""
        if self.gpus < 1 or not (self.total or self.each):
            return Unfinished(label, self.model, len(self.iterations)) if self.iterations else None
        total, total_band = self.total or _scaled(self.each, self.gpus)
        each, band = self.each or _scaled(self.total, 1 / self.gpus)
        return Run(
            label=label,
            model=self.model,
            batch=self.batch,
            gpus=self.gpus,
            img_per_sec_per_gpu=each,
            plus_minus=band,
            total=total,
            total_plus_minus=total_band,
            iterations=tuple(self.iterations),
            device=self.device,
        )


def _scaled(value: tuple[float, float | None] | None, factor: float) -> tuple[float, float | None]:
    number, band = value or (0.0, None)
    return number * factor, None if band is None else band * factor


class _Reader:
    """Collects the lines of one rank; a repeated line starts the next run."""

    def __init__(self) -> None:
        self.drafts: list[_Draft] = []
        self._seen: set[str] = set()
        self._next_iteration = 0

    def add(self, number: int, name: str, match: re.Match[str]) -> None:
        """Add one line of the benchmark; `number` is its position in the text."""
        if not self.drafts or name in self._seen or (name == "iteration" and self._is_another(match)):
            self.drafts.append(_Draft(number))
            self._seen, self._next_iteration = set(), 0
        if name == "iteration":
            self._next_iteration = int(match[1]) + 1
        else:
            self._seen.add(name)
        _fill(self.drafts[-1], name, match)

    def _is_another(self, match: re.Match[str]) -> bool:
        return int(match[1]) < self._next_iteration or bool(self._seen & {"each", "total"})


def _fill(draft: _Draft, name: str, line: re.Match[str]) -> None:
    match name:
        case "model":
            draft.model = line[1]
        case "batch":
            draft.batch = int(line[1])
        case "devices":
            draft.device, draft.gpus = line[1], int(line[2])
        case "iteration":
            draft.iterations.append(float(line[2]))
        case "each":
            draft.each = float(line[1]), None if line[2] is None else float(line[2])
        case "total":
            draft.gpus, draft.device = int(line[1]), line[2]
            draft.total = float(line[3]), None if line[4] is None else float(line[4])
