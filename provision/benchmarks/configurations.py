"""Group results by configuration: runs that repeat each other, or differ only in the number of devices."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from provision.benchmarks.record import Record

_ENDINGS = re.compile(r"\.(?:gz|log|txt|out)$", re.IGNORECASE)
_UNITS = r"(?:gpus?|cpus?|ranks?|devices?|cards?|g)"
_NODES = re.compile(r"(?<![^\W_])[0-9]+[-_]?nodes?(?![^\W_])", re.IGNORECASE)
_ITERATIONS = re.compile(r" --num-iters[= ][0-9]+")


def of_file(label: str, counts: Collection[int]) -> str:
    """Return the configuration of a file's runs: its name without ending and number of devices or nodes.

    ``tcp-1.log`` and ``tcp_16gpus.log.gz`` are ``tcp``. A file with different numbers of devices is its own
    configuration.
    """
    stem = label
    while _ENDINGS.search(stem):
        stem = _ENDINGS.sub("", stem)
    if len(set(counts)) != 1:
        return stem
    # The number must be a separate word: the 16 of vgg16 belongs to the model.
    number = rf"(?<![^\W_])(?:np?)?{next(iter(counts))}(?:[-_]?{_UNITS})?(?![^\W_])"
    words = list(re.finditer(number, stem, re.IGNORECASE))
    if words:
        stem = stem[: words[-1].start()] + stem[words[-1].end() :]
    stem = _NODES.sub("", stem)
    return re.sub(r"([-_. ])[-_. ]+", r"\1", stem).strip("-_. ")


def of_records(records: Sequence[Record]) -> list[str]:
    """Return the configuration of each record: its name, with its settings if records of that name differ."""
    by_name: dict[str, list[Record]] = {}
    for record in records:
        by_name.setdefault(record.name, []).append(record)
    return [_configuration(record, by_name[record.name]) for record in records]


def _configuration(record: Record, others: Sequence[Record]) -> str:
    words = [record.options, *_variables(record)] if len({_setting(other) for other in others}) > 1 else []
    if len({_command(other) for other in others}) > 1:
        words.append(_command(record))
    text = " ".join(filter(None, words))
    return f"{record.name} ({text})" if text else record.name


def _setting(record: Record) -> tuple[str, ...]:
    return record.options, *_variables(record)


def _command(record: Record) -> str:
    return _ITERATIONS.sub("", record.command)


def _variables(record: Record) -> list[str]:
    return [f"{name}={'...' if value is None else value}" for name, value in sorted(record.environment.items())]
