"""What NCCL says in its own log (``NCCL_DEBUG=INFO``) of the network it uses; wordings of 2.3 to 2.30.

Only evidence is collected here; ``provision.checks.nccl_log`` judges it. A log may be of any size, hold the output of
many ranks with whatever tags a launcher puts in front, and much that is not NCCL's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from provision.facts.nccl_evidence import Capability, Device, NcclLog

__all__ = ["read"]

Key = TypeVar("Key")
Value = TypeVar("Value")

_TCP = ("Socket", "FastSocket")
"""Plugins whose devices are interfaces, not cards."""
_LINE_LIMIT = 16384
"""Of a longer line only the beginning is looked at; NCCL writes none so long that matters here."""
_KEEP = 20000
"""No collection grows beyond this, whatever a file holds."""
_WARNINGS = 3

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_MARK = re.compile(r"NCCL (INFO|WARN) ")
_PROCESS = re.compile(r"([\w.-]{1,255}):\d{1,10}:\d{1,10}$")
_BEFORE_MARK = 800
"""What stands before the mark, ``HOST:PID:TID [GPU] FILE:LINE (FUNCTION) ``, is shorter; the file only in warnings."""
_TAGS = re.compile(r"(?:\[\d+,\d+\]<\w+>: ?|\[[a-z]*\d+\]:? ?|\d{1,6}: ?)*")
"""What launchers put in front of a line that NCCL itself wrote without its prefix."""
_BARE = ("NET/", "via ", "Channel ", "Ring ", "CollNet ", "Using network ", "Call to ibv_", "Initialized NET plugin ")
_VERSION = re.compile(r"(?<![\w./-])NCCL version (?P<version>\d+(?:\.\d+)+)(?:\+cuda(?P<cuda>[\d.]+)|\+\w|(?=\s*$))")
"""Somebody else's sentence on a version goes on after the number."""

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
    """Read a log given in pieces of any size; whatever is not NCCL's is passed over.

    Memory stays bounded, and nothing in the bytes can make it fail: what is not understood leaves no evidence.
    """
    log = NcclLog()
    for line, ended in _lines(chunks):
        if b"NCCL" in line or b"NET/" in line or b"via " in line or b"Using network" in line or b"ibv_" in line:
            text = _ANSI.sub("", line.decode("utf-8", "replace")).strip()
            _take(log, text, whole=ended or not log.channels)
    return log


def _lines(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Cut into lines, at most ``_LINE_LIMIT`` of each; the flag is false for a last line without an end."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
        yield from ((line[:_LINE_LIMIT], True) for line in whole if line)
        rest = rest[:_LINE_LIMIT]
    if rest:
        yield rest, False


def _take(log: NcclLog, line: str, *, whole: bool) -> None:
    """Take one line; where ranks wrote into the same line it holds several statements, the last alone with its end."""
    version = None if line.startswith("#") else _VERSION.search(line)
    if version:
        _keep(log.versions, version["version"], version["cuda"] or "")
    marks = [(_process(line, mark.start()), mark) for mark in _MARK.finditer(line)]
    starts = [start for (start, _), _ in marks[1:]]
    for ((_, host), mark), end in zip(marks, [*starts, len(line)], strict=False):
        text = line[mark.end() : end].strip()
        if mark[1] == "WARN" and len(log.warnings) < _WARNINGS:
            log.warnings[text[:200]] = None
        _statement(log, host, text, whole=whole and end == len(line))
    bare = line[_TAGS.match(line).end() :]  # type: ignore[union-attr] # it matches nothing at all, too
    known = not marks and bare.startswith(_BARE) and _statement(log, "", bare, whole=whole)
    log.lines += bool(version or marks or known)


def _process(line: str, mark: int) -> tuple[int, str]:
    """Return where the statement begins whose mark is at `mark`, and the host that made it, empty when not named."""
    start = max(0, mark - _BEFORE_MARK)
    words = line[start:mark].split(" ")[:-1]
    for place in range(len(words) - 1, max(-1, len(words) - 5), -1):
        if words[place].startswith("[") and place > 0:
            match = _PROCESS.search(words[place - 1][-300:])
            if match:
                length = len(match[0]) + sum(len(word) + 1 for word in words[place:]) + 1
                return mark - length, match[1]
    return mark, ""


def _statement(log: NcclLog, host: str, text: str, *, whole: bool) -> bool:
    """Take one statement of NCCL; return whether it is a known one. A cut one must not count as if it ended there."""
    if "via NET/" in text or "via COLLNET/" in text:
        _channel(log, host, text, whole=whole)
        return True
    for word, pattern, take in _STATEMENTS:
        match = pattern.search(text) if word in text else None
        if match:
            take(log, host, match)
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
    if len(log.used) < _KEEP:
        log.used.add((host, plugin, int(match["device"][:9])))


def _list(log: NcclLog, host: str, match: re.Match[str]) -> None:
    shown = match["list"].partition("; OOB")[0]
    cards = _LISTED_CARD.findall(shown)
    for number, name, layer in cards:
        _device(log, host, number, name, layer)
    if not cards:
        for name in _LISTED_INTERFACE.findall(shown):
            _keep(log.interfaces, name, None)
        _keep(log.initialized, match["plugin"], None)


def _device(log: NcclLog, host: str, number: str, name: str, layer: str = "") -> None:
    if host not in log.devices and len(log.devices) >= _KEEP:
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
    if match["state"][0].isupper():  # in lower case a plugin speaks for itself; what NCCL makes of it counts
        _keep(log.capabilities, Capability(plugin, name or "", match["state"] == "Enabled", match["why"] or ""), None)


def _enabled(log: NcclLog, _host: str, _match: re.Match[str]) -> None:
    log.near += 1


def _no_device(log: NcclLog, host: str, _match: re.Match[str]) -> None:
    if len(log.without_device) < _KEEP:
        log.without_device.add(host)


def _network(log: NcclLog, _host: str, match: re.Match[str]) -> None:
    _keep(log.networks, match[1][:80], None)


def _initialized(log: NcclLog, _host: str, match: re.Match[str]) -> None:
    _keep(log.initialized, match[1][:80], None)


def _plugin(log: NcclLog, _host: str, match: re.Match[str]) -> None:
    _keep(log.plugins, match[1][:80], None)


def _setting(log: NcclLog, _host: str, match: re.Match[str]) -> None:
    log.settings.setdefault(match[1], match[2][:200])


def _failed_call(log: NcclLog, _host: str, match: re.Match[str]) -> None:
    _keep(log.failed_calls, match[1], match[2][:200])


def _keep(kept: dict[Key, Value], key: Key, value: Value) -> None:
    if len(kept) < _KEEP:
        kept.setdefault(key, value)


def _count(counts: Counter[Key], key: Key) -> None:
    if key in counts or len(counts) < _KEEP:
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
"""A word of the statement, its whole form, and who takes it; the first that matches does."""
