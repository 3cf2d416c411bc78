"""Drift: the differences between a node and a role's receipt, each with a reason.

Receipts come from nodes and may contain anything; values that are not of a receipt's form are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from provision.model.cause import Cause, CauseKind, shown
from provision.model.reason import Reason, reason
from provision.planning.package_versions import older

_ID_LETTERS = 12
_TYPES = {"file": "a file", "directory": "a directory", "link": "a link", "other": "something else"}
_TRANSIENT = frozenset({"activating", "reloading", "deactivating", "refreshing"})
"""States that end by themselves; the next state counts."""
_STOPPED = frozenset({"exited", "created", "dead", "removing"})


def differences(recorded: Mapping[str, Any], observed: Mapping[str, Any], booted: str = "") -> tuple[Cause, ...]:
    """Return the differences in the receipt's order of sections; a section that could not be probed has none.

    `booted` is when the node booted, which explains missing modules; empty if unknown.
    """
    causes: list[Cause] = []
    for section, (kind, compare) in _SECTIONS.items():
        before, now = recorded.get(section), observed.get(section)
        if not isinstance(before, dict) or not isinstance(now, dict) or before == now:
            continue
        for name in sorted(str(name) for name in before):
            if name in before and name in now and before[name] != now[name]:
                causes += [Cause(kind, name, why) for why in compare(shown(name), before[name], now[name], booted)]
    return tuple(causes)


def _file(path: str, before: Any, now: Any, _: str) -> Iterator[Reason]:
    if not isinstance(before, dict) or not isinstance(now, dict):
        return
    was, is_ = before.get("type"), now.get("type")
    if was != is_:
        yield from _other_type(path, was, is_)
        return
    for attribute in ("mode", "owner"):
        if before.get(attribute) is not None and now.get(attribute) is not None and before[attribute] != now[attribute]:
            yield reason(
                "file.attribute",
                path=path,
                attribute=attribute,
                current=shown(now[attribute]),
                recorded=shown(before[attribute]),
            )
    if isinstance(before.get("keys"), dict) and now.get("invalid") is True:
        yield reason("file.invalid_json", path=path)
    elif isinstance(before.get("keys"), dict):
        keys = now.get("keys")
        yield from _keys(path, before["keys"], keys if isinstance(keys, dict) else {})
    elif before.get("sum") is not None and before.get("sum") != now.get("sum"):
        yield _content(path, before.get("block"), now.get("sum"))


def _other_type(path: str, was: Any, is_: Any) -> Iterator[Reason]:
    if is_ == "missing":
        yield reason("file.missing", path=path)
    elif was == "missing":
        yield reason("file.added", path=path)
    elif isinstance(was, str) and isinstance(is_, str):
        yield reason("file.type", path=path, current=_TYPES.get(is_, shown(is_)), recorded=_TYPES.get(was, shown(was)))


def _content(path: str, block: Any, now: Any) -> Reason:
    if not block:
        return reason("file.edited", path=path)
    return reason("file.block_missing", path=path) if now is None else reason("file.block_edited", path=path)


def _keys(path: str, before: Mapping[Any, Any], now: Mapping[Any, Any]) -> Iterator[Reason]:
    """Compare only our own keys of a JSON file: it may have others."""
    ours = {str(name): hashed for name, hashed in before.items() if hashed is not None}
    differing = [shown(name) for name in sorted(ours) if now.get(name) not in (None, ours[name])]
    missing = [shown(name) for name in sorted(ours) if now.get(name) is None]
    parts = [reason("file.keys_differ", keys=differing)] if differing else []
    parts += [reason("file.keys_missing", keys=missing)] if missing else []
    if parts:
        yield reason("file.json_edited", path=path, keys=parts)


def _package(name: str, before: Any, now: Any, _: str) -> Iterator[Reason]:
    if now is None:
        yield reason("package.missing", name=name)
    elif before is None:
        yield reason("package.added", name=name)
    elif isinstance(before, str) and isinstance(now, str):
        code = "package.older" if older(now, before) else "package.newer"
        yield reason(code, name=name, current=shown(now), recorded=shown(before))


def _unit(name: str, before: Any, now: Any, _: str) -> Iterator[Reason]:
    if not isinstance(before, dict) or not isinstance(now, dict):
        return
    loaded, active = now.get("load"), now.get("active")
    if loaded != before.get("load") and isinstance(loaded, str):
        code = {"masked": "unit.masked", "not-found": "unit.missing", "loaded": "unit.added"}.get(loaded)
        yield reason(code, name=name) if code else reason("unit.not_loaded", name=name, state=shown(loaded))
        if loaded != "loaded":
            return
    states = {active, str(before.get("active"))}
    if active != before.get("active") and isinstance(active, str) and not states & _TRANSIENT:
        code = {"failed": "unit.failed", "inactive": "unit.stopped", "active": "unit.started"}.get(active)
        yield reason(code, name=name) if code else reason("unit.state", name=name, state=shown(active))
    enabled, was = now.get("enabled"), before.get("enabled")
    if enabled != was and isinstance(enabled, str) and isinstance(was, str):
        unknown = "of unknown state at boot"
        yield reason("unit.enabled", name=name, current=shown(enabled) or unknown, recorded=shown(was) or unknown)


def _module(name: str, before: Any, now: Any, booted: str) -> Iterator[Reason]:
    if before is True and now is False:
        yield reason("module.missing", name=name, booted=booted)
    elif before is False and now is True:
        yield reason("module.added", name=name)


def _image(name: str, before: Any, now: Any, _: str) -> Iterator[Reason]:
    if now is None:
        yield reason("image.missing", name=name)
    elif before is None:
        yield reason("image.added", name=name, current=_id(now))
    else:
        yield reason("image.differs", name=name, current=_id(now), recorded=_id(before))


def _id(value: Any) -> str:
    text = shown(value)
    head, mark, digits = text.partition(":")
    return f"{head}{mark}{digits[:_ID_LETTERS]}…" if len(digits) > _ID_LETTERS else text


def _container(name: str, before: Any, now: Any, _: str) -> Iterator[Reason]:
    if now is None:
        yield reason("container.missing", name=name)
        return
    if not isinstance(now, dict):
        return
    if not isinstance(before, dict):
        yield reason("container.added", name=name)
        return
    if now.get("id") != before.get("id"):
        yield reason("container.recreated_by_apply" if now.get("ours") is True else "container.recreated", name=name)
    status = now.get("status")
    if status != before.get("status") and isinstance(status, str):
        yield reason("container.state", name=name, state="stopped" if status in _STOPPED else shown(status))


_SECTIONS: dict[str, tuple[CauseKind, Callable[[str, Any, Any, str], Iterator[Reason]]]] = {
    "files": (CauseKind.FILE, _file),
    "packages": (CauseKind.PACKAGE, _package),
    "units": (CauseKind.UNIT, _unit),
    "modules": (CauseKind.MODULE, _module),
    "images": (CauseKind.IMAGE, _image),
    "containers": (CauseKind.CONTAINER, _container),
}
