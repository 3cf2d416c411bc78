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
    """The tags of Open MPI 4 and 5 become [rank], and the text keeps its own blanks."""
    out = lines(tag % 0 + b"hello\n" + tag % 13 + b"  world\n", version=version)

    assert out == [("stdout", b"[0] hello\n"), ("stdout", b"[13]   world\n")]


def test_pieces_of_two_ranks_in_one_line_are_sorted_out():
    """Two ranks that write half lines at once do not end up in each other's lines."""
    out = lines(b"[1,0]<stdout>:he[1,1]<stdout>:wo[1,0]<stdout>:llo\n[1,1]<stdout>:rld\n")

    assert out == [("stdout", b"[0] hello\n"), ("stdout", b"[1] world\n")]


def test_output_cut_anywhere_gives_the_same_lines():
    """However the network cuts the stream, the lines are the same."""
    data = b"[1,0]<stdout>:a[b]c\n[1,12]<stdout>:x\nmpirun speaks\n[1,0]<stderr>:err\n[1,3]<stdout>:no newline"
    whole = lines(data)

    assert [lines(data[:cut], data[cut:]) for cut in range(len(data))] == [whole] * len(data)
    assert lines(*(data[i : i + 1] for i in range(len(data)))) == whole


def test_streams_stay_separate():
    """What a rank writes to stderr comes out on stderr, and mpirun's own words on the stream they came by."""
    assert lines(b"[1,2]<stderr>:bad\nmpirun: aborting\n", stream="stderr") == [
        ("stderr", b"[2] bad\n"),
        ("stderr", b"mpirun: aborting\n"),
    ]


def test_binary_junk_passes():
    """Bytes that are no text arrive as they were."""
    junk = bytes(range(256)).replace(b"\n", b"")

    assert lines(b"[1,0]<stdout>:" + junk + b"\n") == [("stdout", b"[0] " + junk + b"\n")]


def test_output_without_newlines_cannot_fill_the_memory():
    """A line of many megabytes comes out in pieces."""
    reader = RankLines("stdout")
    reader.feed(b"[1,0]<stdout>:")
    pieces = [line for _ in range(40) for _, line in reader.feed(b"x" * 100_000)]

    assert pieces
    assert all(len(piece) < 1_300_000 for piece in pieces)
