"""Lines of a job's output on the reader's terminal."""

import pytest

from provision.cli.following import for_terminal


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"50%|##  |\r51%\tok \x1b[1;31mred\x1b[0m \xc3\xa4\n", None),
        (b"\x1b]0;title\x07\x1b[6n\x1b[2J\n", b"?]0;title??[6n?[2J\n"),
        (b"\xc2\x9b6n \x7f\x08\n", b"?6n ??\n"),
    ],
)
def test_control_characters_in_job_output_are_replaced(line: bytes, shown: bytes | None) -> None:
    """Colours and progress bars stay; all else that controls a terminal is replaced."""
    assert for_terminal(line) == (line if shown is None else shown)
