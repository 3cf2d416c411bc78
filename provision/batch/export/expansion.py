"""The references ``$(NAME)`` in commands, arguments and values of variables of a pod, and literal dollar signs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_LITERAL = re.compile(r"\$+(?=\()|\${2,}")


def literal(text: str) -> str:
    """Return a text that Kubernetes expands to exactly `text`: dollar signs that it would interpret are doubled."""
    return _LITERAL.sub(lambda match: match[0] * 2, text)


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Return what Kubernetes makes of a text; unknown references stay as they are."""
    return "".join(part if name is None else variables.get(name, f"$({name})") for part, name in _parts(text))


def references(text: str) -> list[str]:
    """Return the names to which a text refers."""
    return [name for _, name in _parts(text) if name is not None]


def _parts(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield the parts of a text, each with the name to which it refers; None for literal text, without doubling."""
    at, last = 0, text.rfind(")")
    while at < len(text):
        dollar = text.find("$", at)
        if dollar < 0 or dollar + 1 == len(text):
            yield text[at:], None
            return
        yield text[at:dollar], None
        after = text[dollar + 1]
        if after == "(" and dollar < last:
            end = text.index(")", dollar)
            yield "", text[dollar + 2 : end]
            at = end + 1
            continue
        yield "$" if after == "$" else "$" + after, None
        at = dollar + 2
