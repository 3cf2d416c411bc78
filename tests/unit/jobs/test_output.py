import pytest

from provision.jobs.output import RankLines


def lines(*pieces, stream="stdout", version=4):
    reader = RankLines(stream, version)
    result = [line for piece in pieces for line in reader.feed(piece)]
    return result + reader.end()


@pytest.mark.parametrize(
    ("version", "tag"), [(4, b"[1,%d]<stdout>:"), (5, b"[prterun-head-77@1,%d]<stdout>: "), (5, b"[1,%d]<stdout>: ")]
)
def test_every_line_names_its_rank(version, tag):
    """The tags of Open MPI 4 and 5 become [rank], and the text keeps its spaces."""
    out = lines(tag % 0 + b"hello\n" + tag % 13 + b"  world\n", version=version)

    assert out == [("stdout", b"[0] hello\n"), ("stdout", b"[13]   world\n")]


def test_parts_of_lines_of_two_ranks_are_separated():
    """Ranks that write half lines at the same time do not mix their output."""
    out = lines(b"[1,0]<stdout>:he[1,1]<stdout>:wo[1,0]<stdout>:llo\n[1,1]<stdout>:rld\n")

    assert out == [("stdout", b"[0] hello\n"), ("stdout", b"[1] world\n")]


def test_lines_do_not_depend_on_how_the_output_arrives():
    """The network may split the stream anywhere."""
    data = b"[1,0]<stdout>:a[b]c\n[1,12]<stdout>:x\nmpirun speaks\n[1,0]<stderr>:err\n[1,3]<stdout>:no newline"
    whole = lines(data)

    assert [lines(data[:cut], data[cut:]) for cut in range(len(data))] == [whole] * len(data)
    assert lines(*(data[i : i + 1] for i in range(len(data)))) == whole


def test_streams_stay_separate():
    """The stderr of a rank is written to stderr, and messages of mpirun to the stream on which they arrive."""
    assert lines(b"[1,2]<stderr>:bad\nmpirun: aborting\n", stream="stderr") == [
        ("stderr", b"[2] bad\n"),
        ("stderr", b"mpirun: aborting\n"),
    ]


def test_binary_output_is_unchanged():
    """Bytes that are not text."""
    junk = bytes(range(256)).replace(b"\n", b"")

    assert lines(b"[1,0]<stdout>:" + junk + b"\n") == [("stdout", b"[0] " + junk + b"\n")]


def test_output_without_newlines_cannot_fill_the_memory():
    """A line of many megabytes is written in parts."""
    reader = RankLines("stdout")
    reader.feed(b"[1,0]<stdout>:")
    pieces = [line for _ in range(40) for _, line in reader.feed(b"x" * 100_000)]

    assert pieces
    assert all(len(piece) < 1_300_000 for piece in pieces)
