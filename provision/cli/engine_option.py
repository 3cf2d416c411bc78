"""The option ``--engine``, which all commands for jobs accept before or after the verb."""

from __future__ import annotations

from collections.abc import Sequence

from provision.errors import UsageError

OPTION = "--engine"
_chosen = {"name": ""}


def requested_engine() -> str:
    """Return the engine of the command line; empty if none was given."""
    return _chosen["name"]


def take_engine_option(words: Sequence[str]) -> list[str]:
    """Store the value of ``--engine`` and return the other words.

    Raises:
        UsageError: the option has no value.
    """
    _chosen["name"] = ""
    rest: list[str] = []
    items = iter(words)
    for word in items:
        option, equals, value = word.partition("=")
        if option != OPTION:
            rest.append(word)
            continue
        _chosen["name"] = value if equals else next(items, "")
        if not _chosen["name"]:
            from provision.jobs.engines import ENGINES

            raise UsageError("--engine: the name is missing", remedy=f"Choose one of {', '.join(sorted(ENGINES))}.")
    return rest
