"""Documents of nodes: typed, bounded, and printable."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from msgspec import Struct

from provision.documents import DEPTH_LIMIT, PrintableLine, PrintableText, decode, decode_last_line
from provision.documents.run import Frames
from provision.errors import InvalidDocument, NodeError

RACE = """
import sys, threading, types
from provision.documents import decode
sys.setswitchinterval(1e-6)
SOURCE = "from __future__ import annotations\\nfrom msgspec import Struct\\n"
SOURCE += "from provision.documents import PrintableLine\\n"
for part in range(8):
    SOURCE += f"class Part{part}(Struct):\\n" + "".join(f"    f{n}: PrintableLine | None = None\\n" for n in range(15))
SOURCE += "class Whole(Struct):\\n" + "".join(f"    p{part}: Part{part} | None = None\\n" for part in range(8))
for number in range(60):
    module = sys.modules[f"m{number}"] = types.ModuleType(f"m{number}")
    exec(SOURCE, module.__dict__)
    barrier = threading.Barrier(8)
    def work():
        barrier.wait()
        decode('{"p0": {"f1": "x"}}', module.Whole, node="gpu1", what="answer")
    threads = [threading.Thread(target=work) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
"""


class Document(Struct):
    """One with both kinds of text."""

    line: PrintableLine = PrintableLine("")
    text: PrintableText = PrintableText("")
    rest: Any = None


def test_documents_of_many_nodes_are_parsed_concurrently() -> None:
    """Threads that need a type for the first time at the same moment: msgspec alone crashes the process then."""
    assert subprocess.run([sys.executable, "-c", RACE], check=False, timeout=120).returncode == 0


def test_text_is_printable_when_it_is_parsed() -> None:
    """A line is one line; a text has line ends, but no other control characters."""
    document = r'{"line": "a\nb\u001b[2Jc\u2028d", "text": "a\nb\u001b[2J\r\u0085"}'
    decoded = decode(document, Document, node="gpu1", what="answer")

    assert decoded.line == "a b [2Jc d"
    assert decoded.text == "a\nb [2J  "


@pytest.mark.parametrize(
    ("text", "line"), [(r"\udcff.bin", "\ufffd.bin"), (r"\\udcff", r"\udcff"), (r"\ud83d\ude00", "😀")]
)
def test_unpaired_surrogates_do_not_invalidate_a_document(text: str, line: str) -> None:
    """Python writes the bytes of a file's or process's name so that are no text; any account may choose one."""
    assert decode(f'{{"line": "{text}"}}', Document, node="gpu1", what="answer").line == line


@pytest.mark.parametrize(
    "text",
    [
        "", "7", "[]", '{"line": 7}', '{"line": "x"', '{"line": NaN}', "[" * 200_000,
        '{"rest": ' + "[" * 100 + "]" * 100 + "}",
        '{"rest": 1e999}', '{"line": "\ud800"}', "x" * 2000, '{"rest": "' + "x" * 2000 + '"}',
    ],
)  # fmt: skip
def test_an_invalid_document_is_reported_with_its_node(text: str) -> None:
    """Wrong types, cut off, nested, too long: with the node's name, and nothing in it that moves a cursor."""
    with pytest.raises(InvalidDocument) as failed:
        decode(text, Document, node="gpu1", what="answer to look", limit=1500)

    assert isinstance(failed.value, NodeError)
    assert str(failed.value).startswith("gpu1: answer to look: ")
    assert (str(failed.value) + failed.value.output).isprintable()


def test_nesting_is_bounded_in_every_part() -> None:
    """Programs that show a document walk through it recursively."""
    inside = "[" * (DEPTH_LIMIT - 1) + "]" * (DEPTH_LIMIT - 1)

    assert decode(f'{{"rest": {inside}}}', Document, node="gpu1", what="answer").rest
    with pytest.raises(InvalidDocument, match="levels of nesting"):
        decode(f'{{"rest": [{inside}]}}', Document, node="gpu1", what="answer")


def test_output_of_a_login_shell_before_the_answer_is_ignored() -> None:
    """The last line counts."""
    assert decode_last_line('Welcome\n{"line": "x"}\n\n', Document, node="gpu1", what="answer").line == "x"


def test_frames_are_assembled_from_chunks() -> None:
    """However the bytes arrive."""
    frames = Frames("gpu1")
    whole = b"s 0\no 5\nab\ncdx 2\n{}"

    assert [frame for at in range(len(whole)) for frame in frames.feed(whole[at : at + 1])] == [
        ("s", b""),
        ("o", b"ab\ncd"),
        ("x", b"{}"),
    ]


@pytest.mark.parametrize(
    "data", [b"o -5\nxxxxx", b"o 99999999\n", b"z 1\nx", b"\xff 1\nx", b"o x\n", b"x" * 40, b"o 1 \nx"]
)
def test_an_invalid_frame_is_reported_with_its_node(data: bytes) -> None:
    """Never a loop without end, and nothing is collected for it."""
    with pytest.raises(InvalidDocument, match="an invalid frame"):
        list(Frames("gpu1").feed(data))
