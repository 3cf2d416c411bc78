"""The report of one command on many nodes."""

from __future__ import annotations

from provision.errors import ConnectionFailed, NodeError, NotStarted
from provision.model import CommandResult
from provision.report.command_report import LinePrefixer, command_document, command_summary, command_text, failed_nodes

OLD, NEW = CommandResult("6.1.0\n", "", 0), CommandResult("6.12.0\n", "", 0)


def test_equal_output_is_printed_once_with_a_range_of_nodes():
    """The difference between eight nodes is two lines."""
    results = {f"gpu{number}": NEW if number == 8 else OLD for number in range(1, 9)}

    assert command_text(results) == "gpu[1-7]: 6.1.0\ngpu8: 6.12.0"


def test_nodes_that_failed_come_last_with_their_exit_code_or_reason():
    """A node without an answer differs from one where the command failed."""
    results = {
        "gpu1": ConnectionFailed("no answer", node="gpu1", remedy="Check the node."),
        "gpu2": CommandResult("", "no such file\n", 2),
        "gpu3": CommandResult("one\ntwo\n", "", 0),
        "gpu4": CommandResult("", "", 0),
    }

    assert command_text(results).splitlines() == [
        "gpu3:",
        "  one",
        "  two",
        "gpu4: no output",
        "gpu2 (exit code 2): no such file",
        "gpu1:",
        "  no answer",
        "  Check the node.",
    ]
    assert failed_nodes(results) == ["gpu1", "gpu2"]


def test_a_command_that_was_not_started_is_not_counted_as_failed():
    """Text, document and summary distinguish nodes without a login from nodes on which the command failed."""
    results = {
        "gpu1": NotStarted("no answer", node="gpu1", remedy="Check the node."),
        "gpu2": CommandResult("", "no such file\n", 2),
        "gpu3": OLD,
        "gpu4": NodeError("did not end within 5 s", node="gpu4"),
    }

    assert command_text(results).splitlines()[-3:] == ["gpu1 (not started):", "  no answer", "  Check the node."]
    assert [node["started"] for node in command_document(results)["nodes"]] == [False, True, True, True]
    assert command_summary(results) == "failed on 2 of 4 nodes; not run on 1 of 4 nodes (no login)"
    assert command_summary({"gpu1": results["gpu1"]}, "copied") == "not copied on 1 of 1 nodes (no login)"
    assert command_summary({"gpu3": OLD}) == ""


def test_equal_output_with_another_exit_code_is_not_the_same():
    """Equal outputs with different exit codes are different results."""
    text = command_text({"gpu1": CommandResult("x", "", 0), "gpu2": CommandResult("x", "", 1)})

    assert text == "gpu1: x\ngpu2 (exit code 1): x"


def test_the_document_has_each_node_and_whether_all_succeeded():
    """Scripts read exit codes and errors by node."""
    document = command_document({"gpu1": OLD, "gpu2": ConnectionFailed("no answer", node="gpu2", remedy="Check it.")})

    assert document == {
        "ok": False,
        "nodes": [
            {"name": "gpu1", "started": True, "exit_code": 0, "stdout": "6.1.0\n", "stderr": "", "error": None},
            {
                "name": "gpu2",
                "started": True,
                "exit_code": None,
                "stdout": "",
                "stderr": "",
                "error": {"message": "no answer", "remedy": "Check it."},
            },
        ],
    }


def test_streamed_lines_stay_whole():
    """Pieces of a line are joined before the node's name is put in front of it."""
    lines: list[str] = []
    stream = LinePrefixer("gpu1", lines.append)
    for piece in ("on", "e\ntwo\nthr", "ee"):
        stream.write(piece)

    assert lines == ["gpu1: one", "gpu1: two"]
    stream.finish()
    assert lines[-1] == "gpu1: three"
