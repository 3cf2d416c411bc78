"""Decode JSON from a node into a typed value, or raise `InvalidDocument` with the node's name."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from provision.errors import InvalidDocument

__all__ = ["DEPTH_LIMIT", "SIZE_LIMIT", "convert", "decode", "decode_last_line"]

T = TypeVar("T")

SIZE_LIMIT = 64 * 1024 * 1024
"""Bytes of one document, where the caller states no smaller limit."""
DEPTH_LIMIT = 64
"""Levels of nesting in an untyped part of a document."""
_EXCERPT = 200
_REMEDY = "Check the node: its software may be damaged, outdated or manipulated"


def decode(text: str | bytes, kind: type[T], *, node: str, what: str, limit: int = SIZE_LIMIT) -> T:
    """Return one JSON document as a value of `kind`.

    Args:
        text: what the node sent.
        kind: a `msgspec.Struct`, a dataclass, or any type that msgspec supports.
        node: the inventory name of the node that sent it.
        what: the document's name for error messages, e.g. ``answer to report``.
        limit: the largest accepted size in bytes.

    Raises:
        InvalidDocument: too large, not JSON, nested too deeply, or not of this type.
    """
    if len(text) > limit:
        raise InvalidDocument(f"{what}: {len(text)} bytes, limit {limit}", node=node, remedy=_REMEDY)
    try:
        value = msgspec.json.decode(text, type=kind)
        _check_depth(value)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _invalid(error, what, node, text) from error
    return value


def decode_last_line(text: str | bytes, kind: type[T], *, node: str, what: str, limit: int = SIZE_LIMIT) -> T:
    """Return the last non-empty line as a value of `kind`; a login shell may have printed lines before it."""
    if len(text) > limit:
        raise InvalidDocument(f"{what}: {len(text)} bytes, limit {limit}", node=node, remedy=_REMEDY)
    data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    return decode(data.rstrip().rpartition(b"\n")[2], kind, node=node, what=what, limit=limit)


def convert(value: Any, kind: type[T], *, node: str, what: str) -> T:
    """Return a part of a decoded document as a value of `kind`.

    Raises:
        InvalidDocument: the value is not of this type.
    """
    try:
        return msgspec.convert(value, type=kind)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise _invalid(error, what, node, "") from error


def _check_depth(value: Any, limit: int = DEPTH_LIMIT) -> None:
    """Look level by level at lists and mappings; ValueError when they nest deeper than `limit`."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(limit):
        if not level:
            return
        groups = (one.values() if isinstance(one, dict) else one for one in level)
        level = [item for group in groups for item in group if isinstance(item, dict | list)]
    if level:
        raise ValueError(f"more than {limit} levels of nesting")


def _invalid(error: BaseException, what: str, node: str, text: str | bytes) -> InvalidDocument:
    excerpt = text[:_EXCERPT]
    shown = excerpt.decode(errors="replace") if isinstance(excerpt, bytes) else excerpt
    return InvalidDocument(
        f"{what}: {_printable(str(error)[:_EXCERPT])}", node=node, remedy=_REMEDY, output=_printable(shown)
    )


def _printable(text: str) -> str:
    """Replace control characters: the text goes to the operator's terminal."""
    return "".join(one if one.isprintable() else "?" for one in text)
