import queue

import pytest

from provision.connectors import connect, each, subprocesses
from provision.errors import ConnectionFailed, NodeError
from provision.model import CommandResult, Connection, Node
from provision.testing import make_node


@pytest.fixture
def connector():
    return connect(Node("here", Connection("here", local=True, become=False)))


def test_a_script_gets_its_input_and_returns_its_exit_status(connector):
    """Output, errors and exit status come back apart; a non-zero exit is a result."""
    result = connector.run("cat; echo oops >&2; exit 3", stdin=b"in")

    assert (result.stdout, result.stderr, result.exit_code) == ("in", "oops\n", 3)


def test_large_input_and_output_do_not_block_each_other(connector):
    """A megabyte each way at the same time passes."""
    result = connector.run("cat; head -c 1000000 /dev/zero >&2", stdin=b"x" * 1_000_000)

    assert (len(result.stdout), len(result.stderr)) == (1_000_000, 1_000_000)


def test_input_that_a_command_does_not_read_never_reaches_the_next_command(connector):
    for _ in range(300):
        assert connector.run("exit 3", stdin=b"x" * 500_000).exit_code == 3
        assert connector.run("cat", stdin=b"its own") == CommandResult("its own", "", 0)


def test_a_hanging_command_is_killed_after_its_time_limit(connector):
    """A time limit ends in a sentence, not in waiting."""
    with pytest.raises(ConnectionFailed, match="did not end within its time limit"):
        connector.run("sleep 30", timeout=0.2)


def test_a_signal_is_reported_as_in_shells(connector):
    """A killed command has the status 128+n."""
    assert connector.run("kill -KILL $$").exit_code == 137


def test_a_file_is_replaced_atomically_with_its_permissions(connector, tmp_path):
    """put leaves the content and mode of the source and no temporary file."""
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_bytes(b"\0" * 700_000)
    source.chmod(0o640)
    target.write_text("old")
    connector.put(source, str(target))

    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_failed_get_preserves_the_old_file(connector, tmp_path):
    """get of a missing file says so and does not touch what is there."""
    target = tmp_path / "b"
    target.write_text("old")
    with pytest.raises(NodeError, match="could not be read"):
        connector.get(str(tmp_path / "nope"), target)

    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_failed_put_reports_the_node(connector, tmp_path):
    """put into a missing folder fails with the node and the reason."""
    source = tmp_path / "a"
    source.write_text("x")
    with pytest.raises(NodeError) as caught:
        connector.put(source, str(tmp_path / "no" / "such"))

    assert caught.value.node == "here"
    assert "such" in caught.value.output


def test_an_error_of_one_node_does_not_affect_the_others():
    """Results come in the order of the nodes; an error is the value of its node."""
    nodes = [make_node("a", local=True), make_node("b", local=True), make_node("c", local=True)]

    def work(connector):
        if connector.name == "b":
            raise NodeError("broken")
        return connector.run(f"echo {connector.name}", become=False).stdout.strip()

    results = each(nodes, work)

    assert list(results) == ["a", "b", "c"]
    assert (results["a"], results["c"]) == ("a", "c")
    assert str(results["b"]) == "b: broken"


def test_without_nodes_there_are_no_results():
    """An empty selection is an empty result."""
    assert each([], lambda connector: connector.name) == {}


def test_the_last_output_is_read_although_the_command_ended_in_between(monkeypatch):
    """On a busy machine the command may end while its output is waited for, and before it has been read."""
    ended = []

    class LateQueue(queue.Queue):
        def get(self, *words, **options):
            if not ended:
                process._child.wait()
                ended.append(True)
                raise queue.Empty
            return super().get(*words, **options)

    monkeypatch.setattr(subprocesses.queue, "Queue", LateQueue)
    process = subprocesses.LocalProcess("node1", ["echo", "last"])

    assert process.result(b"", 10) == CommandResult("last\n", "", 0)
