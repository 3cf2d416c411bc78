"""Parse the table of an all-reduce, printed by NCCL's tests or by our program in the same format.

::

    #  Rank  0 Group  0 Pid   3174 on       gpu1 device  0 [0x07] NVIDIA H100 80GB HBM3
    #       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
    #        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
      1073741824     268435456     float     sum      -1   4560.1  235.47  441.50      0   4551.0  235.94  442.39      0
    # Out of bounds values : 0 OK
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TAG = re.compile(r"\[\d{1,7}\] ")
_RANK = re.compile(r"#\s{1,20}Rank\s{1,20}(\d{1,7})\b")
_BOUNDS = re.compile(r"# Out of bounds values\s{0,20}:\s{0,20}(\d{1,18})\b")
_NUMBER = re.compile(r"\d{1,18}(\.\d{1,9})?")


@dataclass(frozen=True)
class AllReduce:
    """The output of an all-reduce."""

    ranks: int
    """Number of distinct ranks in one table."""
    rows: tuple[tuple[int, float], ...]
    """Message size in bytes, and bus bandwidth in GB/s."""
    wrong: int | None
    """Number of wrong elements; None if it did not finish."""

    @property
    def largest(self) -> tuple[int, float] | None:
        """Return the row of the largest message, which is the result."""
        return max(self.rows, default=None)


def parse_all_reduce(text: str) -> AllReduce:
    """Parse the output of an all-reduce; other lines and the tags of `provision run` are ignored."""
    ranks: set[int] = set()
    rows: dict[int, float] = {}
    column, wrong = 0, None
    for tagged in text.splitlines():
        line = _TAG.sub("", tagged, count=1).strip() if tagged.startswith("[") else tagged.strip()
        if match := _RANK.match(line):
            ranks.add(int(match[1]))
        elif match := _BOUNDS.match(line):
            wrong = int(match[1]) + (wrong or 0)
        elif line.startswith("#"):
            words = line[1:].split()
            column = words.index("busbw") if words[:1] == ["size"] and "busbw" in words else column
        elif column:
            words = line.split()
            if len(words) > column and _NUMBER.fullmatch(words[0]) and _NUMBER.fullmatch(words[column]):
                rows[int(float(words[0]))] = float(words[column])
    return AllReduce(len(ranks), tuple(sorted(rows.items())), wrong)
