from pathlib import Path

import pytest

from provision.errors import ConnectionFailed
from provision.model import CommandResult
from provision.testing import FakeConnector, make_cluster


def test_a_fake_connector_answers_by_the_content_of_the_script(tmp_path: Path):
    """Texts, results, functions and errors all serve as answers; files are remembered."""
    fake = FakeConnector(
        {
            "text": "out",
            "result": CommandResult("", "bad", 2),
            "function": lambda script, stdin: CommandResult(script + stdin.decode(), "", 0),
            "error": ConnectionFailed("gone"),
        }
    )
    (tmp_path / "a").write_text("x")
    fake.put(tmp_path / "a", "/b")
    fake.get("/b", tmp_path / "c")

    assert fake.run("some text").stdout == "out"
    assert fake.run("result").exit_code == 2
    assert fake.run("function ", stdin=b"in").stdout == "function in"
    assert (tmp_path / "c").read_text() == "x"
    with pytest.raises(ConnectionFailed, match="gone"):
        fake.run("error")


def test_a_script_without_an_answer_fails_the_test():
    """A forgotten answer is an error and never an empty success."""
    with pytest.raises(ConnectionFailed, match="no answer"):
        FakeConnector({}).run("anything")


def test_a_cluster_is_built_from_node_names():
    """Nodes have the names and variables that were asked for."""
    cluster = make_cluster("a", "b", cluster_slots=2)

    assert [(node.name, node.variables["cluster_slots"]) for node in cluster.nodes] == [("a", 2), ("b", 2)]
