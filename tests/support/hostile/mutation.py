"""Turns an honest answer into a malicious one: values, structure, or the whole of it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.support.hostile.honest import Answer

__all__ = ["FORGED", "MARK", "Change", "changes", "mutated"]

MARK = "HOSTILE"
"""In every malicious word, so that it is recognized wherever it arrives."""
FORGED = "FORGED LINE"
"""What a line of the command's own output must never begin with."""


class Raw(str):
    """JSON that no value of Python stands for."""

    __slots__ = ()


VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    2**63,
    2**64,
    -(2**70),
    10**30,
    1e15,
    0.5,
    Raw("1" + "0" * 400),
    Raw("[" * 2000 + "]" * 2000),
    Raw('{"a":' * 2000 + "1" + "}" * 2000),
    Raw('{"a":1,"a":[]}'),
    "",
    " ",
    MARK,
    f"--upload-pack={MARK}",
    f"-oProxyCommand={MARK}",
    f"-e {MARK}",
    f"--{MARK}",
    "-",
    "--",
    f"../../../../../../tmp/{MARK}",
    f"/tmp/{MARK}",
    "/etc/passwd",
    "..",
    ".",
    f"~/{MARK}",
    f"file:///tmp/{MARK}",
    f"ext::sh -c {MARK}",
    f"ssh://-oProxyCommand={MARK}/x",
    "gpu0001",
    "gpu0002",
    "gpu0003",
    "localhost",
    "127.0.0.1",
    f"x\n{FORGED}: ok {MARK}",
    f"\r{FORGED} {MARK}",
    f"x\x0b{FORGED} {MARK}",
    f"x\x85{FORGED}",
    f"x\u2028{FORGED} {MARK}",
    f"\x1b[2J\x1b[31m{MARK}\x1b[0m",
    f"\x1b]0;{MARK}\x07",
    f"\x9b31m{MARK}",
    f"\u202e{MARK}",
    f"\x00{MARK}",
    "\ud800" + MARK,
    f"[bold red]{MARK}[/bold red]",
    f"[/{MARK}]",
    f"{{{{ lookup('pipe', 'touch {MARK}') }}}}",
    f"{{% {MARK} %}}",
    f"$(touch {MARK})",
    f"`touch {MARK}`",
    f"; touch {MARK};",
    f"' ; touch {MARK}; '",
    f'" {MARK}',
    f"{{{MARK}}}",
    f"%s{MARK}%d",
    "x" * 5000,
    "9" * 5000,
    "a " * 3000,
    "0x" + "f" * 50,
    "1.2.3.4.5",
    "1..2",
    "\u0661\u0662",
    "²",
    "1_000",
    "NaN",
    "inf",
    "-5",
    "1e999",
    "2026-99-99T99:99:99Z",
    "99999-01-01T00:00:00Z",
    "300.300.300.300",
    "::1%eth0",
    "fe80::1",
    "10.0.0.0/99",
    [],
    {},
    [[]],
    [{}],
    {"": ""},
    [None],
    [MARK],
    {MARK: MARK},
    ["a"] * 3000,
    {str(n): n for n in range(3000)},
    [[1, 2], [3]],
    {"message": f"x\n{FORGED} {MARK}"},
    {"error": MARK},
    {"error": {"message": [MARK]}},
)
"""Any of them stands in the place of any value of an honest answer."""

_TEXTS = tuple(value for value in VALUES if isinstance(value, str))
_WHOLE = (
    b"",
    b"\n",
    b"null",
    b"[]",
    b"{}",
    b'"x"',
    b"7",
    b"NaN",
    b"[" * 60_000,
    b'{"a":' * 60_000,
    b"\xff\xfe\x00" * 50,
    b"A" * 300_000,
    b"{}\n" * 20_000,
    b"o 99999999999\n",
    b"x -5\n{}",
    b"\xff 5\nxxxxx",
    b"x 2\n{}",
    b"x 4\nnull",
    b"o o\n",
    b"provision-probe 1 ",
    f"{FORGED} {MARK}\n".encode(),
    f"\x1b[2J{MARK}".encode(),
    b"x 24\n" + b'{"code":"x","left":[[]]}',
    b"x 30\n" + b'{"code":1,"left":{"a":[1]}}   ',
)
"""What may come instead of an answer."""


@dataclass(frozen=True)
class Change:
    """One change of one answer."""

    kind: int
    """What is done: mostly a value is replaced."""
    place: int
    """Where: taken modulo what there is."""
    value: int
    """By what."""


changes = st.lists(
    st.builds(Change, st.integers(0, 15), st.integers(0, 10_000), st.integers(0, 10_000)), min_size=1, max_size=6
)
"""What a hostile node does with its answers; an answer takes one to three of them."""


def mutated(answer: Answer, todo: Sequence[Change]) -> Answer:
    """Return the answer after the changes."""
    for change in todo:
        answer = _mutated(answer, change)
    return answer


def _mutated(answer: Answer, change: Change) -> Answer:
    if change.kind == 0:
        whole = _WHOLE[change.value % len(_WHOLE)]
        return Answer((whole,), answer.errors, answer.code)
    if change.kind == 1:
        errors = _TEXTS[change.value % len(_TEXTS)].encode(errors="surrogatepass") * (1 + change.place % 2)
        return Answer(answer.chunks, errors, (1, 255, 127, 0, 2**31)[change.place % 5])
    if change.kind == 2:
        chunks = list(answer.chunks)
        at = change.place % len(chunks) if chunks else 0
        chunks[at : at + 1] = [_WHOLE[change.value % len(_WHOLE)] + b"\n"] * (1 + change.value % 2)
        return Answer(tuple(chunks), answer.errors, answer.code)
    if not answer.chunks:
        return Answer((_TEXTS[change.value % len(_TEXTS)].encode(errors="surrogatepass"),), b"", answer.code)
    chunks = list(answer.chunks)
    at = change.place % len(chunks)
    chunks[at] = _chunk(chunks[at], change)
    return Answer(tuple(chunks), answer.errors, answer.code)


def _chunk(data: bytes, change: Change) -> bytes:
    text = data.decode(errors="surrogateescape")
    if text.lstrip().startswith(("{", "[")):
        changed = _json(text, change)
        if changed is not None:
            return changed.encode(errors="surrogatepass")
    if token := re.match(r"(?s).{0,200}?provision-probe 1 ([0-9a-f]{32})", text):
        return _probe(text, token[1], change).encode(errors="surrogateescape")
    frame = re.match(r"(?s)([a-z]) (\d+)\n(.*)$", text)
    if frame and frame[3].startswith("{") and (changed := _json(frame[3], change)) is not None:
        inner = changed.encode(errors="surrogatepass")
        return b"%s %d\n%s" % (frame[1].encode(), len(inner), inner)
    return _plain(text, change).encode(errors="surrogatepass" if "\ud800" in text else "replace")


def _probe(text: str, token: str, change: Change) -> str:
    """Change the output of one fact; each has the same chance, however long it is."""
    parts = re.split(rf"(^{token} (?:out|same) \w+\n)", text, flags=re.MULTILINE)
    titles = range(1, len(parts), 2)
    if not titles:
        return _plain(text, change)
    at = titles[change.place % len(titles)] + 1
    body, mark, tail = parts[at].partition(f"\n{token} err ")
    rest = Change(change.kind, change.place // len(titles), change.value)
    changed = _json(body, rest) if body.lstrip().startswith("{") else None
    parts[at] = (changed if changed is not None else _plain(body, rest)) + mark + tail
    return "".join(parts).encode(errors="replace").decode()


def _plain(text: str, change: Change) -> str:
    """Change a word or a line."""
    value = _TEXTS[change.value % len(_TEXTS)]
    lines = text.split("\n")
    at = change.place % len(lines)
    match change.kind % 6:
        case 0:
            return text[: change.place % (len(text) + 1)]
        case 1:
            lines[at : at + 1] = [lines[at]] * (2 + change.value % 40)
            return "\n".join(lines)
        case 2:
            lines.insert(at, value)
            return "\n".join(lines)
    words = list(re.finditer(r"[^\s=:,;|()\[\]\"]+", text))
    if not words:
        return value
    word = words[change.place % len(words)]
    return text[: word.start()] + value + text[word.end() :]


def _json(text: str, change: Change) -> str | None:
    """Change a document; None where the text is none, or one that was nested deeply before."""
    if "[" * 100 in text or '{"a":' * 100 in text:
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    places = _places(document)
    if not places:
        return _dumped(VALUES[change.value % len(VALUES)])
    holder, key = places[change.place % len(places)]
    value = VALUES[change.value % len(VALUES)]
    if change.kind == 3:
        del holder[key]
    elif change.kind == 4 and isinstance(holder, dict):
        holder[value if isinstance(value, str) else str(value)] = holder.pop(key)
    elif change.kind == 5:
        holder[key] = [holder[key], value]
    else:
        holder[key] = value
    return _dumped(document) + ("\n" if text.endswith("\n") else "")


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Return all places of values: in a document of many alike (a list of files) each kind once, then the rest."""
    first: list[tuple[Any, Any]] = []
    later: list[tuple[Any, Any]] = []
    todo = [document]
    while todo:
        holder = todo.pop()
        items = list(holder.items() if isinstance(holder, dict) else enumerate(holder))
        for number, (key, value) in enumerate(items):
            (first if number < 12 else later).append((holder, key))
            if isinstance(value, dict | list) and value and number < 40:
                todo.append(value)
    return first + later[:100]


def _dumped(document: Any) -> str:
    raws: list[str] = []

    def marked(value: Any) -> Any:
        if isinstance(value, Raw):
            raws.append(value)
            return f"@@RAW{len(raws) - 1}@@"
        if isinstance(value, dict):
            return {str(marked(key)): marked(item) for key, item in value.items()}
        return [marked(item) for item in value] if isinstance(value, list) else value

    text = json.dumps(marked(document))
    for number, raw in enumerate(raws):
        text = text.replace(f'"@@RAW{number}@@"', raw)
    return text
