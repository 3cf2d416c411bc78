"""daemon.json: reading it, merging into it, and what dockerd needs to notice a change. Touches no process."""

from __future__ import annotations

import json

# What dockerd takes over on SIGHUP; everything else needs a restart. A key that is gone keeps its old value over a SIGHUP.
RELOADABLE = frozenset(
    (
        "authorization-plugins",
        "debug",
        "default-runtime",
        "features",
        "insecure-registries",
        "labels",
        "live-restore",
        "max-concurrent-downloads",
        "max-concurrent-uploads",
        "max-download-attempts",
        "registry-mirrors",
        "runtimes",
        "shutdown-timeout",
    )
)


class BrokenFileError(Exception):
    """The file on the node is no JSON object."""


def parse(text, path):
    """Return the settings in `text`; BrokenFileError says where it is broken."""
    if not text.strip():
        return {}
    try:
        settings = json.loads(text)
    except ValueError as error:
        line, column = getattr(error, "lineno", 1), getattr(error, "colno", 1)
        line_text = (text.splitlines() or [""])[min(line, len(text.splitlines())) - 1].strip()
        raise BrokenFileError(
            "{}: line {}, column {}: {} (the line is: {})".format(
                path, line, column, getattr(error, "msg", error), line_text
            )
        ) from error
    if not isinstance(settings, dict):
        raise BrokenFileError(f"{path}: it holds a {type(settings).__name__}, not an object")
    return settings


def merge(present, wanted):
    """Return `present` with `wanted` laid over it; objects are merged key by key, everything else is replaced."""
    result = dict(present)
    for key, value in wanted.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merge(result[key], value)
        else:
            result[key] = value
    return result


def without(present, written_before, wanted):
    """Return `present` without what we once wrote, nobody changed since, and is wanted no more."""
    result = {}
    for key, value in present.items():
        before, kept = written_before.get(key), value
        if key in written_before and key not in wanted and value == before:
            continue
        if isinstance(value, dict) and isinstance(before, dict):
            wanted_below = wanted.get(key) if isinstance(wanted.get(key), dict) else {}
            kept = without(value, before, wanted_below)
            if not kept and key not in wanted:
                continue
        result[key] = kept
    return result


def action_for(running, wanted):
    """Return `none`, `reload` or `restart`: what brings a dockerd that runs with `running` to `wanted`."""
    different = {key for key in set(running) | set(wanted) if running.get(key) != wanted.get(key)}
    if not different:
        return "none"
    return "reload" if different <= RELOADABLE & set(wanted) else "restart"
