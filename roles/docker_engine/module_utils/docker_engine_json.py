"""daemon.json: reading it, merging into it, and what dockerd needs to notice a change. Touches no process."""

import json
import re

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


# What a setting must be, for a dockerd that cannot check a file itself. Only what no version takes in another form.
KINDS = {
    "a list of strings": ("authorization-plugins", "dns", "insecure-registries", "labels", "registry-mirrors"),
    "true or false": ("debug", "experimental", "icc", "iptables", "ipv6", "live-restore", "userland-proxy"),
    "a whole number": (
        "max-concurrent-downloads",
        "max-concurrent-uploads",
        "max-download-attempts",
        "shutdown-timeout",
    ),
    "an object": ("default-ulimits", "log-opts", "runtimes"),
    "a string": ("data-root", "default-runtime", "exec-root", "log-driver", "log-level", "storage-driver"),
}
MIRROR = re.compile(r"https?://[^/?#@\s]+/?\Z", re.IGNORECASE)


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
        # The line itself is not shown: it can hold a password.
        raise BrokenFileError(f"{path}: line {line}, column {column}: {getattr(error, 'msg', error)}") from None
    if not isinstance(settings, dict):
        raise BrokenFileError(f"{path}: it holds a {type(settings).__name__}, not an object")
    return settings


def problems(settings):
    """Return a sentence for each setting that every dockerd refuses."""
    sentences = []
    for kind, keys in KINDS.items():
        sentences += [
            f"{key} must be {kind}" for key in keys if settings.get(key) is not None and not _is(kind, settings[key])
        ]
    mirrors = settings.get("registry-mirrors")
    for mirror in mirrors if isinstance(mirrors, list) else []:
        if isinstance(mirror, str) and not MIRROR.match(mirror):
            shown = re.sub(r"[^/\s]*@", "", mirror)
            sentences.append(f"registry-mirrors: {shown} must be http:// or https:// and a host, with nothing after it")
    options = settings.get("log-opts")
    for key, value in sorted(options.items()) if isinstance(options, dict) else ():
        if not isinstance(value, str):
            sentences.append(f'log-opts: {key} must be a string ("{value}")')
    return sentences


def _is(kind, value):
    """Return whether a value is of a kind."""
    if kind == "a list of strings":
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if kind == "a whole number":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, {"true or false": bool, "an object": dict, "a string": str}[kind])


def merge(present, wanted):
    """Return `present` with `wanted` laid over it; objects are merged key by key, everything else is replaced."""
    result = dict(present)
    for key, value in wanted.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merge(result[key], value)
        else:
            result[key] = value
    return result


def needed(present, wanted):
    """Return `wanted` without what the file need not say: live-restore as docker has it anyway, and a runtime that it has.

    Others name a runtime's program by its path, or give it no arguments in another form; that is the same runtime.
    """
    result = {key: value for key, value in wanted.items() if key in present or (key, value) != ("live-restore", False)}
    there, runtimes = present.get("runtimes"), wanted.get("runtimes")
    if isinstance(there, dict) and isinstance(runtimes, dict):
        result["runtimes"] = {name: value for name, value in runtimes.items() if not _same(there.get(name), value)}
    return {key: value for key, value in result.items() if value != {} or wanted[key] == {}}


def _same(there, wanted):
    """Return whether what the file has of a runtime is the one that is wanted, in other words."""
    if not isinstance(there, dict) or not isinstance(wanted, dict) or there == wanted or wanted.get("runtimeArgs"):
        return False
    programs = {str(one.get("path") or "").rsplit("/", 1)[-1] for one in (there, wanted)}
    return len(programs) == 1 and "" not in programs


def without(present, written_before, wanted):
    """Return `present` without what we once wrote, nobody changed since, and is wanted no more."""
    result = {}
    for key, value in present.items():
        before, remaining = written_before.get(key), value
        if key in written_before and key not in wanted and value == before:
            continue
        if isinstance(value, dict) and isinstance(before, dict):
            wanted_below = wanted.get(key) if isinstance(wanted.get(key), dict) else {}
            remaining = without(value, before, wanted_below)
            if not remaining and key not in wanted:
                continue
        result[key] = remaining
    return result


def action_for(running, wanted):
    """Return `none`, `reload` or `restart`: what brings a dockerd that runs with `running` to `wanted`."""
    different = {key for key in set(running) | set(wanted) if running.get(key) != wanted.get(key)}
    if not different:
        return "none"
    return "reload" if different <= RELOADABLE & set(wanted) else "restart"
