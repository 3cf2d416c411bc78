"""Outputs recorded on real machines, and the reference documents. They are not part of this repository."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

__all__ = ["commands", "document", "expected", "missing", "outputs_in", "path", "recorded", "shape"]

FOLDER = Path(os.environ.get("RECORDED_DATA") or Path(__file__).resolve().parents[3] / "shared")
PARTS = ("data/topo", "data/rdma", "data/nccl", "data/gpuallocator_cases.json", "reference")
_EXPECTED = "预期输出"
_PROSE = re.compile(r"[\u3000-\u9fff]|^\s*\d+\. |^```$")


def missing() -> list[Path]:
    """Return the parts of the recorded data that do not exist."""
    return [path(part) for part in PARTS if not path(part).exists()]


def path(name: str) -> Path:
    """Return the path of a recorded file or folder, e.g. ``data/topo``."""
    return FOLDER / name


def recorded(name: str) -> str:
    """Return a recorded output, e.g. ``topo/rtx5090_2gpu_PHB.txt``."""
    return path(f"data/{name}").read_text(encoding="utf-8")


def document(name: str) -> str:
    """Return the text of a reference document."""
    return path(f"reference/{name}").read_text(encoding="utf-8")


def outputs_in(text: str) -> list[str]:
    """Return a document's benchmark outputs, each from its line ``Model:`` to its total."""
    outputs: list[str] = []
    for line in text.splitlines():
        if line.strip().startswith("Model: "):
            outputs.append("")
        if outputs and not outputs[-1].rstrip().rpartition("\n")[2].strip().startswith("Total "):
            outputs[-1] += line + "\n"
    return outputs


def commands(name: str, verb: str = "submit") -> list[list[str]]:
    """Return a document's commands that end with a quoted line, without `arena`."""
    text = document(name).replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    starts = (f"arena {verb} ", f"arena --loglevel info {verb} ")
    return [shlex.split(line)[1:] for line in lines if line.startswith(starts) and line.count('"') > 1]


def expected(name: str, command: str) -> list[str]:
    """Return the lines that a document shows below a command, without empty ones."""
    lines = [line.strip() for line in document(name).splitlines()]
    at = lines.index(command)
    begin = next(number for number in range(at, len(lines)) if lines[number].startswith(_EXPECTED)) + 1
    output: list[str] = []
    for line in lines[begin:]:
        if output and _PROSE.search(line):
            break
        if line and not _PROSE.search(line):
            output.append(line)
    return output


_SHAPES = (
    (r"\b\d[\dx]*(\.[\dx]+){3}\b", "ADDRESS"),
    (r"\bcn-[a-z]+\.ADDRESS\b", "NODE"),
    (r"\bready\b", "Ready"),
    (r"-launcher-[a-z0-9]{5}\b", "-launcher-*"),
    (r"\b\d+[smhd]\b", "AGE"),
    (r"\b\d+\.\d+\b", "N.N"),
    (r"-{2,}", "--"),
    (r"\s+", " "),
)


def shape(lines: list[str]) -> list[str]:
    """Return lines of output without what differs from run to run: addresses, ages, figures, widths of columns."""
    shaped = [line for line in lines if line.strip()]
    for pattern, mark in _SHAPES:
        shaped = [re.sub(pattern, mark, line) for line in shaped]
    return [line.strip() for line in shaped]
