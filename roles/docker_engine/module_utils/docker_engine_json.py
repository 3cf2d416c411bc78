"""Read and merge daemon.json, and determine how dockerd has to apply a change. Does not touch processes."""

import json
import re

# Settings that dockerd applies on SIGHUP. All others require a restart. A removed key keeps its old value on SIGHUP.
# Of `features`, it applies only some.
RELOADABLE = frozenset(
    (
        "authorization-plugins",
        "debug",
        "default-runtime",
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

CONTAINERD_STORE = "containerd-snapshotter"  # the feature that chooses the image store

# Required types of settings, for a dockerd that cannot check a file. Only types that all versions require.
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
    """The file on the node does not contain a JSON object."""


def parse(text, path):
    """Return the settings in `text`. Raise BrokenFileError with line and column if they are invalid."""
    if not text.strip():
        return {}
    try:
        settings = json.loads(text)
    except ValueError as error:
        line, column = getattr(error, "lineno", 1), getattr(error, "colno", 1)
        # The line itself is not shown: it can contain a password.
        raise BrokenFileError(f"{path}: line {line}, column {column}: {getattr(error, 'msg', error)}") from None
    if not isinstance(settings, dict):
        raise BrokenFileError(f"{path}: it contains a {type(settings).__name__}, not an object")
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
            url = re.sub(r"[^/\s]*@", "", mirror)
            sentences.append(f"registry-mirrors: {url} must be http:// or https:// and a host, without a path")
    options = settings.get("log-opts")
    for key, value in sorted(options.items()) if isinstance(options, dict) else ():
        if not isinstance(value, str):
            sentences.append(f'log-opts: {key} must be a string ("{value}")')
    return sentences


def _is(kind, value):
    """Return whether a value has a type."""
    if kind == "a list of strings":
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if kind == "a whole number":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, {"true or false": bool, "an object": dict, "a string": str}[kind])


def merge(present, desired):
    """Return `present` merged with `desired`: objects are merged by key, other values are replaced."""
    result = dict(present)
    for key, value in desired.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merge(result[key], value)
        else:
            result[key] = value
    return result


def needed(present, desired):
    """Return `desired` without redundant settings: live-restore with docker's default, and runtimes that the file already has.

    A runtime whose program is given by its path, or whose empty arguments have another form, counts as the same runtime.
    """
    result = {key: value for key, value in desired.items() if key in present or (key, value) != ("live-restore", False)}
    present_runtimes, runtimes = present.get("runtimes"), desired.get("runtimes")
    if isinstance(present_runtimes, dict) and isinstance(runtimes, dict):
        result["runtimes"] = {
            name: value for name, value in runtimes.items() if not _is_same_runtime(present_runtimes.get(name), value)
        }
    return {key: value for key, value in result.items() if value != {} or desired[key] == {}}


def _is_same_runtime(present, desired):
    """Return whether a runtime in the file is the desired one in another form."""
    if (
        not isinstance(present, dict)
        or not isinstance(desired, dict)
        or present == desired
        or desired.get("runtimeArgs")
    ):
        return False
    programs = {str(runtime.get("path") or "").rsplit("/", 1)[-1] for runtime in (present, desired)}
    return len(programs) == 1 and "" not in programs


def without_obsolete(present, last, desired):
    """Return `present` without the unchanged settings of the last run that are no longer desired."""
    result = {}
    for key, value in present.items():
        before, remaining = last.get(key), value
        if key in last and key not in desired and value == before:
            continue
        if isinstance(value, dict) and isinstance(before, dict):
            desired_below = desired.get(key) if isinstance(desired.get(key), dict) else {}
            remaining = without_obsolete(value, before, desired_below)
            if not remaining and key not in desired:
                continue
        result[key] = remaining
    return result


def action_for(running, desired):
    """Return `none`, `reload` or `restart`: the action after which a dockerd with the settings `running` has `desired`."""
    different = {key for key in set(running) | set(desired) if running.get(key) != desired.get(key)}
    if not different:
        return "none"
    return "reload" if different <= RELOADABLE & set(desired) else "restart"


def storage_of(settings):
    """Return the settings that choose where dockerd has its containers; one with other values does not know them."""
    features = settings.get("features")
    store = features.get(CONTAINERD_STORE) if isinstance(features, dict) else None
    return [settings.get("data-root"), settings.get("storage-driver"), store]
