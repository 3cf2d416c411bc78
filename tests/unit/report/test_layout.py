"""Width and colours of reports: those of the terminal, and neither anywhere else."""

from __future__ import annotations

import pytest

from provision.model import CheckResult, CheckStatus, NodeChecks, Verification
from provision.report import layout
from provision.report.bundle import bundle_files
from provision.report.job_words import columns
from provision.report.redaction import Redactor
from tests.support.reasons import plain


@pytest.mark.parametrize(("columns", "width"), [(100, 100), (60, 80), (80, 80), (500, 200)])
def test_reports_are_as_wide_as_the_terminal_within_limits(columns, width):
    layout.choose(columns=columns)

    assert layout.width() == width


def test_states_are_plain_words_without_colours():
    assert layout.state("FAILED", 8) == "FAILED  "


def test_states_are_coloured_and_tables_stay_aligned():
    layout.choose(colour=True)
    rows = columns([["NAME", "STATUS", "NODE"], ["a", layout.state("FAILED"), "gpu1"], ["b", "x", "gpu2"]])
    painted = layout.painted("\n".join(rows), colour=True).split("\n")

    assert painted[1] == "a     \x1b[31mFAILED\x1b[0m  gpu1"
    assert painted[2] == "b     x       gpu2"
    assert layout.painted(rows[1], colour=False) == "a     FAILED  gpu1"


def test_colours_end_with_their_line():
    layout.choose(colour=True)
    word = layout.state("failed")[:-1]  # as a node could send it

    assert layout.painted(f"{word}\nnext", colour=True) == "\x1b[31mfailed\x1b[0m\nnext"


def test_a_report_in_a_file_has_neither_colours_nor_marks():
    """Also where the command that writes it runs on a terminal."""
    verification = Verification((NodeChecks("gpu1", (CheckResult("a.b", CheckStatus.FAIL, plain("gone")),)),))
    text = bundle_files({}, verification, {}, Redactor())["verify.txt"]
    layout.choose(colour=True)

    assert bundle_files({}, verification, {}, Redactor())["verify.txt"] == text
    assert text.isascii()


@pytest.mark.parametrize(
    ("text", "columns", "result"),
    [
        ("one two", 7, "one two"),
        ("one  two three", 12, "one  two..."),
        ("one two three", 10, "one two..."),
        ("nvidia_container", 10, "nvidia_..."),
    ],
)
def test_texts_are_truncated_between_words(text, columns, result):
    assert layout.shortened(text, columns) == result
