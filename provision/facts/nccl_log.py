"""Parse NCCL's own log (``NCCL_DEBUG=INFO``) for the network in use; supports the wordings of 2.3 to 2.30.

It only collects evidence; ``provision.checks.nccl_log`` evaluates it. A log may have any size, and contain the output
of many ranks with any launcher's tags, and lines of other programs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from provision.facts.nccl_evidence import Capability, Device, NcclLog

Key = TypeVar("Key")
Value = TypeVar("Value")

_TCP = ("Socket", "FastSocket")
"""Plugins whose devices are network interfaces."""
_LINE_LIMIT = 16384
"""Only the beginning of longer lines is parsed; no relevant line of NCCL is longer."""
_MAX_ENTRIES = 20000
"""Limit of every collection, whatever a file contains."""
_WARNINGS = 3

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_MARK = re.compile(r"NCCL (INFO|WARN) ")
_PROCESS = re.compile(r"([\w.-]{1,255}):\d{1,10}:\d{1,10}$")
_BEFORE_MARK = 800
"""The prefix before the mark, ``HOST:PID:TID [GPU] FILE:LINE (FUNCTION) ``, is shorter; FILE is in warnings only."""
_TAGS = re.compile(r"(?:\[\d+,\d+\]<\w+>: ?|\[[a-z]*\d+\]:? ?|\d{1,6}: ?)*")
"""Launchers' tags before a line that NCCL wrote without its own prefix."""
_BARE = ("NET/", "via ", "Channel ", "Ring ", "CollNet ", "Using network ", "Call to ibv_", "Initialized NET plugin ")
_VERSION = re.compile(r"(?<![\w./-])NCCL version (?P<version>\d+(?:\.\d+)+)(?:\+cuda(?P<cuda>[\d.]+)|\+\w|(?=\s*$))")
"""Version statements of other programs continue after the number."""

_NETWORK_CHANNEL = re.compile(
    r"\bvia (?P<kind>(?:COLL)?NET)/(?P<plugin>.+?)/(?P<device>\d+)(?:\(\d+\))?"
    r"(?P<gdr>/GDRDMA(?:\(PCI\))?)?(?:/Shared)?$"
)
_INSIDE = re.compile(r"\bvia (P2P|SHM)\b")
_LISTED = re.compile(r"^NET/(?P<plugin>.+?) ?: Using (?P<list>\[.*)$")
_LISTED_CARD = re.compile(r"\[(\d+)\]([^\s:\[\]]+):\d+/(\w+)")
_LISTED_INTERFACE = re.compile(r"\[\d+\]([^\s:\[\]]+):")
_ONE_CARD = re.compile(r"^NET/.+? ?: ?\[(\d+)\] ([^\s:]+):uverbs\d+:\d+/(\w+)")
_VIRTUAL = re.compile(r"^NET/.+? : Made virtual device \[(\d+)\] name=(\S+)")
_NO_DEVICE = re.compile(r"^NET/.+? ?: No device found")
_NETWORK = re.compile(r"^Using network (\S.*)$")
_INITIALIZED = re.compile(r"^Initialized NET plugin (\S.*)$")
_PLUGIN = re.compile(r"^(?:P2P plugin|NET/Plugin: Loaded net plugin) (\S.*)$")
_SETTING = re.compile(
    r"^(NCCL_IB_DISABLE|NCCL_NET|NCCL_NET_GDR_LEVEL|NCCL_IB_HCA|NCCL_SOCKET_IFNAME) "
    r"set (?:by environment )?to (.*?)\.?$"
)
_OF_A_PAIR = re.compile(
    r"GPU Direct RDMA (?P<state>Enabled|Disabled) for GPU .*/ HCA \S+ \(distance (?P<distance>\d+) \S+ (?P<limit>\d+)\)"
)
_OF_A_CARD = re.compile(
    r"^NET/(?P<plugin>.+?) ?: GPU Direct RDMA (?:\((?P<path>[^)]*)\) )?(?P<state>[Ee]nabled|[Dd]isabled) for "
    r"(?:GPU .*/ )?HCA (?P<device>\w+)(?: '(?P<name>[^']*)'?)?(?: \((?P<why>[^)]*)\))?"
)
_ENABLED_FOR_SOMETHING = re.compile(r"GPU Direct RDMA Enabled for ")
_FAILED_CALL = re.compile(r"^Call to (ibv_reg_\w+) failed with error (.+)$")


def read(chunks: Iterable[bytes]) -> NcclLog:
    """Parse a log that is given in chunks of any size; lines of other programs are ignored.

    Memory use is bounded, and no input raises an error: unknown lines leave no evidence.
    """
    log = NcclLog()
    for line, ended in _lines(chunks):
        if b"NCCL" in line or b"NET/" in line or b"via " in line or b"Using network" in line or b"ibv_" in line:
            text = _ANSI.sub("", line.decode("utf-8", "replace")).strip()
            _parse_line(log, text, whole=ended or not log.channels)
    return log


def _lines(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Split into lines of at most ``_LINE_LIMIT`` bytes; the flag is false for an unterminated last line."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
        yield from ((line[:_LINE_LIMIT], True) for line in whole if line)
        rest = rest[:_LINE_LIMIT]
    if rest:
        yield rest, False


def _parse_line(log: NcclLog, line: str, *, whole: bool) -> None:
    """Parse one line. If several ranks wrote into it, it contains several statements; only the last is complete."""
    version = None if line.startswith("#") else _VERSION.search(line)
    if version:
        _add(log.versions, version["version"], version["cuda"] or "")
    marks = [(_process(line, mark.start()), mark) for mark in _MARK.finditer(line)]
    starts = [start for (start, _), _ in marks[1:]]
    for ((_, host), mark), end in zip(marks, [*starts, len(line)], strict=False):
        text = line[mark.end() : end].strip()
        if mark[1] == "WARN" and len(log.warnings) < _WARNINGS:
            log.warnings[text[:200]] = None
        _statement(log, host, text, whole=whole and end == len(line))
    bare = line[_TAGS.match(line).end() :]  # type: ignore[union-attr] # the pattern also matches the empty string
    known = not marks and bare.startswith(_BARE) and _statement(log, "", bare, whole=whole)
    log.lines += bool(version or marks or known)


def _process(line: str, mark: int) -> tuple[int, str]:
    """Return the start of the statement whose mark is at `mark`, and its host, which may be empty."""
    start = max(0, mark - _BEFORE_MARK)
    words = line[start:mark].split(" ")[:-1]
    for position in range(len(words) - 1, max(-1, len(words) - 5), -1):
        if words[position].startswith("[") and position > 0:
            match = _PROCESS.search(words[position - 1][-300:])
            if match:
                length = len(match[0]) + sum(len(word) + 1 for word in words[position:]) + 1
                return mark - length, match[1]
    return mark, ""


def _statement(log: NcclLog, host: str, text: str, *, whole: bool) -> bool:
    """Parse one statement; return whether it is known. A truncated statement must not count as complete."""
    if "via NET/" in text or "via COLLNET/" in text:
        _channel(log, host, text, whole=whole)
        return True
    for word, pattern, handler in _STATEMENTS:
        match = pattern.search(text) if word in text else None
        if match:
            handler(log, host, match)
            return True
    return False


def _channel(log: NcclLog, host: str, text: str, *, whole: bool) -> None:
    match = _NETWORK_CHANNEL.search(text)
    if not whole and not (match and match["gdr"]):
        return
    if match is None:
        log.unreadable = log.unreadable or text[:200]
        return
    plugin = match["plugin"][:80]
    _count(log.channels, (plugin if match["kind"] == "NET" else f"COLLNET/{plugin}", bool(match["gdr"])))
    if len(log.used) < _MAX_ENTRIES:
        log.used.add((host, plugin, int(match["device"][:9])))


def _list(log: NcclLog, host: str, match: re.Match[str]) -> None:
    shown = match["list"].partition("; OOB")[0]
    cards = _LISTED_CARD.findall(shown)
    for number, name, layer in cards:
        _device(log, host, number, name, layer)
    if not cards:
        for name in _LISTED_INTERFACE.findall(shown):
            _add(log.interfaces, name, None)
        _add(log.initialized, match["plugin"], None)


def _device(log: NcclLog, host: str, number: str, name: str, layer: str = "") -> None:
    if host not in log.devices and len(log.devices) >= _MAX_ENTRIES:
        return
    table = log.devices.setdefault(host, {})
    names = tuple(dict.fromkeys(name.split("+")))
    known = next((card.layer for card in table.values() if card.layer and set(card.names) & set(names)), "")
    if len(table) < 1024:  # noqa: PLR2004 - no node has so many cards
        before = table.get(int(number[:9]))
        if before is None or layer or before.names != names:
            table[int(number[:9])] = Device(names, layer if layer in {"IB", "RoCE"} else known)


def _pair(log: NcclLog, _host: str, match: re.Match[str]) -> None:
    if match["state"] == "Enabled":
        log.near += 1
    else:
        _count(log.far, (int(match["distance"][:4]), int(match["limit"][:4])))


def _card(log: NcclLog, host: str, match: re.Match[str]) -> None:
    plugin, name = match["plugin"][:80], match["name"]
    unlisted = match["device"].isdecimal() and int(match["device"][:9]) not in log.devices.get(host, {})
    if name and unlisted and plugin not in _TCP:
        _device(log, host, match["device"], name)
    if match["state"][0].isupper():  # lower case is a plugin's own statement; only NCCL's decision counts
        _add(log.capabilities, Capability(plugin, name or "", match["state"] == "Enabled", match["why"] or ""), None)


def _enabled(log: NcclLog, _host: str, _match: re.Match[str]) -> None:
    log.near += 1


def _no_device(log: NcclLog, host: str, _match: re.Match[str]) -> None:
    if len(log.without_device) < _MAX_ENTRIES:
        log.without_device.add(host)


def _network(log: NcclLog, _host: str, match: re.Match[str]) -> None:
    _add(log.networks, match[1][:80], None)


def _initialized(log: NcclLog, _host: str, match: re.Match[str]) -> None:
    _add(log.initialized, match[1][:80], None)


def _plugin(log: NcclLog, _host: str, match: re.Match[str]) -> None:
    _add(log.plugins, match[1][:80], None)


def _setting(log: NcclLog, _host: str, match: re.Match[str]) -> None:
    log.settings.setdefault(match[1], match[2][:200])


def _failed_call(log: NcclLog, _host: str, match: re.Match[str]) -> None:
    _add(log.failed_calls, match[1], match[2][:200])


def _add(entries: dict[Key, Value], key: Key, value: Value) -> None:
    if len(entries) < _MAX_ENTRIES:
        entries.setdefault(key, value)


def _count(counts: Counter[Key], key: Key) -> None:
    if key in counts or len(counts) < _MAX_ENTRIES:
        counts[key] += 1


_STATEMENTS: tuple[tuple[str, re.Pattern[str], Callable[[NcclLog, str, re.Match[str]], None]], ...] = (
    ("via ", _INSIDE, lambda log, _host, match: log.inside.add(match[1])),
    (": Using [", _LISTED, _list),
    (":uverbs", _ONE_CARD, lambda log, host, match: _device(log, host, *match.groups())),
    ("virtual device", _VIRTUAL, lambda log, host, match: _device(log, host, *match.groups())),
    ("No device found", _NO_DEVICE, _no_device),
    ("Using network", _NETWORK, _network),
    ("Initialized NET", _INITIALIZED, _initialized),
    ("lugin", _PLUGIN, _plugin),
    (" to ", _SETTING, _setting),
    ("GPU Direct RDMA", _OF_A_PAIR, _pair),
    ("GPU Direct RDMA", _OF_A_CARD, _card),
    ("GPU Direct RDMA", _ENABLED_FOR_SOMETHING, _enabled),
    ("Call to ibv_", _FAILED_CALL, _failed_call),
)
"""A word of the statement, its full pattern, and its handler; the first match counts."""
