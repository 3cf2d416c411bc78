"""What is on a node against what a role's receipt says: a reason for everything that other hands changed.

Receipts are hints and may hold anything; what is not in the form of a receipt is not compared, and nothing here fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from provision.model.cause import Cause, CauseKind, shown
from provision.planning.package_versions import older

__all__ = ["differences"]

_ID_LETTERS = 12
_KINDS = {"file": "a file", "directory": "a directory", "link": "a link", "other": "something else"}
_UNDER_WAY = frozenset({"activating", "reloading", "deactivating", "refreshing"})
"""States that pass; what they end in counts."""
_NEITHER = "without a word on whether it starts at boot"
_STOPPED = frozenset({"exited", "created", "dead", "removing"})


def differences(recorded: Mapping[str, Any], observed: Mapping[str, Any], booted: str = "") -> tuple[Cause, ...]:
    """Return what differs, in the receipt's order of sections; a section that could not be looked at says nothing.

    `booted` is when the node booted, for what a boot takes away; empty where that is not known.
    """
    causes: list[Cause] = []
    for section, (kind, told) in _SECTIONS.items():
        before, now = recorded.get(section), observed.get(section)
        if not isinstance(before, dict) or not isinstance(now, dict) or before == now:
            continue
        for name in sorted(str(name) for name in before):
            if name in before and name in now and before[name] != now[name]:
                causes += [Cause(kind, name, text) for text in told(shown(name), before[name], now[name], booted)]
    return tuple(causes)


def _file(path: str, before: Any, now: Any, _: str) -> Iterator[str]:
    if not isinstance(before, dict) or not isinstance(now, dict):
        return
    was, is_ = before.get("type"), now.get("type")
    if was != is_:
        yield from _other_type(path, was, is_)
        return
    for what in ("mode", "owner"):
        if before.get(what) is not None and now.get(what) is not None and before[what] != now[what]:
            yield f"the {what} of {path} is {shown(now[what])}, not {shown(before[what])}"
    if isinstance(before.get("keys"), dict) and now.get("invalid") is True:
        yield f"{path} is not a valid JSON object, so that none of its settings can be used"
    elif isinstance(before.get("keys"), dict):
        parts = now.get("keys")
        yield from _parts(path, before["keys"], parts if isinstance(parts, dict) else {})
    elif before.get("sum") is not None and before.get("sum") != now.get("sum"):
        yield from _content(path, before.get("block"), now.get("sum"))


def _other_type(path: str, was: Any, is_: Any) -> Iterator[str]:
    if is_ == "missing":
        yield f"{path} is gone"
    elif was == "missing":
        yield f"{path} is there, and was not when the role ended"
    elif isinstance(was, str) and isinstance(is_, str):
        yield f"{path} is {_KINDS.get(is_, shown(is_))}, not {_KINDS.get(was, shown(was))}"


def _content(path: str, block: Any, now: Any) -> Iterator[str]:
    if not block:
        yield f"{path} was edited by other hands"
    elif now is None:
        yield f"our block in {path} is gone"
    else:
        yield f"our block in {path} was edited by other hands"


def _parts(path: str, before: Mapping[Any, Any], now: Mapping[Any, Any]) -> Iterator[str]:
    """Only what is ours of a JSON file is compared: others may keep settings of their own in it."""
    ours = {str(name): hashed for name, hashed in before.items() if hashed is not None}
    other = [shown(name) for name in sorted(ours) if now.get(name) not in (None, ours[name])]
    gone = [shown(name) for name in sorted(ours) if now.get(name) is None]
    said = [f"{_list(other)} {'differs' if len(other) == 1 else 'differ'}"] if other else []
    said += [f"{_list(gone)} {'is' if len(gone) == 1 else 'are'} gone"] if gone else []
    if said:
        yield f"{path} was edited by other hands: {'; '.join(said)}"


def _list(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _package(name: str, before: Any, now: Any, _: str) -> Iterator[str]:
    if now is None:
        yield f"package {name} is not installed any more"
    elif before is None:
        yield f"package {name} is installed, and was not when the role ended"
    elif isinstance(before, str) and isinstance(now, str):
        order = "older" if older(now, before) else "newer"
        yield f"package {name} is {shown(now)}, {order} than the {shown(before)} that was recorded"


def _unit(name: str, before: Any, now: Any, _: str) -> Iterator[str]:
    if not isinstance(before, dict) or not isinstance(now, dict):
        return
    loaded, active = now.get("load"), now.get("active")
    if loaded != before.get("load") and isinstance(loaded, str):
        words = {"masked": "is masked", "not-found": "is gone", "loaded": "is there, and was not when the role ended"}
        yield f"{name} {words.get(loaded, f'cannot be used: systemd says {shown(loaded)}')}"
        if loaded != "loaded":
            return
    if (
        active != before.get("active")
        and isinstance(active, str)
        and not {active, str(before.get("active"))} & _UNDER_WAY
    ):
        words = {"failed": "has failed", "inactive": "is stopped", "active": "runs, and did not when the role ended"}
        yield f"{name} {words.get(active, f'is {shown(active)}')}"
    enabled, was = now.get("enabled"), before.get("enabled")
    if enabled != was and isinstance(enabled, str) and isinstance(was, str):
        yield f"{name} is {shown(enabled) or _NEITHER}, not {shown(was) or _NEITHER}"


def _module(name: str, before: Any, now: Any, booted: str) -> Iterator[str]:
    if before is True and now is False:
        yield f"module {name} is not loaded" + (f" since the boot of {booted}" if booted else " any more")
    elif before is False and now is True:
        yield f"module {name} is loaded, and was not when the role ended"


def _image(name: str, before: Any, now: Any, _: str) -> Iterator[str]:
    if now is None:
        yield f"image {name} is not on the node any more"
    elif before is None:
        yield f"image {name} is {_id(now)}, none was recorded"
    else:
        yield f"image {name} is {_id(now)}, recorded was {_id(before)}"


def _id(value: Any) -> str:
    text = shown(value)
    head, mark, digits = text.partition(":")
    return f"{head}{mark}{digits[:_ID_LETTERS]}…" if len(digits) > _ID_LETTERS else text


def _container(name: str, before: Any, now: Any, _: str) -> Iterator[str]:
    if now is None:
        yield f"container {name} is gone"
        return
    if not isinstance(now, dict):
        return
    if not isinstance(before, dict):
        yield f"container {name} is there, and was not when the role ended"
        return
    if now.get("id") != before.get("id"):
        if now.get("ours") is True:
            yield f"container {name} was recreated by an apply that did not finish"
        else:
            yield f"container {name} was made anew by other hands"
    status = now.get("status")
    if status != before.get("status") and isinstance(status, str):
        yield f"container {name} is {'stopped' if status in _STOPPED else shown(status)}"


_SECTIONS: dict[str, tuple[CauseKind, Callable[[str, Any, Any, str], Iterator[str]]]] = {
    "files": (CauseKind.FILE, _file),
    "packages": (CauseKind.PACKAGE, _package),
    "units": (CauseKind.UNIT, _unit),
    "modules": (CauseKind.MODULE, _module),
    "images": (CauseKind.IMAGE, _image),
    "containers": (CauseKind.CONTAINER, _container),
}
