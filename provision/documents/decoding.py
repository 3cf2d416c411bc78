"""Decode JSON from a node into a typed value, or raise `InvalidDocument` with the node's name."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from provision.documents.text import PrintableLine, PrintableText, printable_line, printable_text
from provision.errors import InvalidDocument

T = TypeVar("T")

SIZE_LIMIT = 64 * 1024 * 1024
"""Bytes of one document, unless the caller sets a smaller limit."""
DEPTH_LIMIT = 64
"""Levels of nesting in an untyped part of a document."""
_EXCERPT = 200
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPES = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\\."
)
_ESCAPE_LENGTH = 6
_HOLDERS = (dict, list, tuple, msgspec.Struct)
_LEAVES = frozenset({str, int, float, bool, type(None), PrintableLine, PrintableText})
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_making = threading.Lock()
_REMEDY = "Check the node: its software may be damaged, outdated or manipulated"


def decode(text: str | bytes, kind: type[T], *, node: str, what: str, limit: int = SIZE_LIMIT) -> T:
    """Return one JSON document as a value of `kind`.

    Args:
        text: the text that the node sent.
        kind: a `msgspec.Struct`, a dataclass, or any type that msgspec supports.
        node: the inventory name of the node that sent it.
        what: the document's name for error messages, e.g. ``answer to report``.
        limit: the largest accepted size in bytes; of a `str`, in characters.

    Raises:
        InvalidDocument: too large, not JSON, nested too deeply, or not of this type.
    """
    if len(text) > limit:
        raise InvalidDocument(f"{what}: {len(text)} bytes, limit {limit}", node=node, remedy=_REMEDY)
    try:
        value = _decoded(text, kind)
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
    _decoder(kind)  # analyses the type
    try:
        return msgspec.convert(value, type=kind, dec_hook=_as_type)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise _invalid(error, what, node, "") from error


def _decoded(text: str | bytes, kind: type[T]) -> T:
    """Decode, also if the text has unpaired surrogates, as Python writes for undecodable bytes in file names."""
    decoder = _decoder(kind)
    try:
        return decoder.decode(text)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        data = text.encode(errors="replace") if isinstance(text, str) else text
        if _SURROGATE.search(data) is None:
            raise
    whole = _ESCAPES.sub(_without_half_characters, data)
    return decoder.decode(whole)


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return the decoder of a type, built by one thread at a time: msgspec crashes if two analyse the same type."""
    decoder = _decoders.get(kind)
    if decoder is None:
        with _making:
            decoder = _decoders.setdefault(kind, msgspec.json.Decoder(kind, dec_hook=_as_type))
    return decoder


def _without_half_characters(escape: re.Match[bytes]) -> bytes:
    sequence = escape[0]
    return b"\\ufffd" if len(sequence) == _ESCAPE_LENGTH else sequence


def _as_type(kind: type, value: Any) -> Any:
    """Make the texts of nodes printable as they are parsed."""
    if not isinstance(value, str):
        raise TypeError(f"Expected `str`, got `{type(value).__name__}`")
    if kind is PrintableLine:
        return PrintableLine(printable_line(value))
    if kind is PrintableText:
        return PrintableText(printable_text(value))
    raise NotImplementedError(kind)


def _check_depth(value: Any, limit: int = DEPTH_LIMIT) -> None:
    """Raise ValueError if lists and mappings nest deeper than `limit`; checked level by level."""
    level = [value] if isinstance(value, _HOLDERS) else []
    for _ in range(limit):
        if not level:
            return
        # Most items are leaves; each class is looked up once.
        level = [item for holder in level for item in _parts(holder) if item.__class__ not in _LEAVES]
    if any(isinstance(item, _HOLDERS) for item in level):
        raise ValueError(f"more than {limit} levels of nesting")


def _parts(holder: Any) -> Iterable[Any]:
    if isinstance(holder, dict):
        return holder.values()
    if isinstance(holder, msgspec.Struct):
        return msgspec.structs.astuple(holder)
    return holder if isinstance(holder, list | tuple) else ()


def _invalid(error: BaseException, what: str, node: str, text: str | bytes) -> InvalidDocument:
    excerpt = text[:_EXCERPT]
    shown = excerpt.decode(errors="replace") if isinstance(excerpt, bytes) else excerpt
    return InvalidDocument(
        f"{what}: {printable_line(str(error)[:_EXCERPT])}", node=node, remedy=_REMEDY, output=printable_line(shown)
    )
