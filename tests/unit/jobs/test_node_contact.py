"""An unreachable node does not delay every command; the other nodes answer, and it is reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from provision.connectors.absent import AbsentNodes
from provision.errors import ConnectionFailed, HostNotTrusted, NodeError, NodeUnreachable, ProvisionError
from provision.jobs import node_contact
from provision.jobs.node_contact import Contact
from provision.model import Connection, Node

NODES = {name: Node(name, Connection(f"10.0.0.{number}")) for number, name in enumerate(("a", "b", "c"))}


class Network:
    """Stands in for connections: which nodes are connected to, and with which result."""

    def __init__(self) -> None:
        self.connected: list[str] = []
        self.errors: dict[str, ProvisionError] = {}
        self.takes: set[str] = set()
        """Nodes whose port takes connections."""

    def each(self, nodes: Sequence[Node], _work: Callable[[Any], Any], **_: Any) -> dict[str, Any]:
        self.connected += [node.name for node in nodes]
        return {node.name: self.errors.get(node.name, f"answer of {node.name}") for node in nodes}


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    made = Network()
    monkeypatch.setattr(node_contact, "each", made.each)
    monkeypatch.setattr(node_contact, "takes_connections", lambda node, _seconds: node.name in made.takes)
    return made


def asked(network: Network, nodes: Contact) -> tuple[list[str], dict[str, Any]]:
    """Ask all nodes; return the nodes that were connected to, and the answers."""
    network.connected.clear()
    answers = nodes.each(list(NODES.values()), lambda connector: connector)
    return network.connected, answers


def test_an_unreachable_node_is_connected_to_again_when_its_port_answers(network: Network) -> None:
    """Until then it is reported with the first reason, and the others answer."""
    nodes = Contact(NODES)
    network.errors["b"] = ConnectionFailed("no route to host", node="b")
    assert asked(network, nodes)[0] == ["a", "b", "c"]

    connected, answers = asked(network, nodes)
    assert (connected, list(answers)) == (["a", "c"], ["a", "b", "c"])
    assert (answers["a"], answers["c"]) == ("answer of a", "answer of c")
    assert isinstance(answers["b"], NodeUnreachable)
    assert answers["b"].node == "b"
    assert "no route to host" in answers["b"].message
    present, absent = nodes.present()
    assert (present, list(absent)) == (["a", "c"], ["b"])

    network.takes.add("b")
    del network.errors["b"]
    assert nodes.present() == (["a", "b", "c"], {})
    connected, answers = asked(network, nodes)
    assert (sorted(connected), answers["b"]) == (["a", "b", "c"], "answer of b")
    network.takes.clear()
    assert asked(network, nodes)[0] == ["a", "b", "c"], "it is forgotten when it has answered"


@pytest.mark.parametrize("error", [NodeError("python3 is missing", node="b"), HostNotTrusted("unknown key", node="b")])
def test_a_node_that_answers_with_an_error_is_not_recorded_as_unreachable(
    network: Network, error: ProvisionError
) -> None:
    """It delays no command, and the cause may be fixed at once."""
    nodes = Contact(NODES)
    network.errors["b"] = error

    asked(network, nodes)
    assert asked(network, nodes) == (["a", "b", "c"], {"a": "answer of a", "b": error, "c": "answer of c"})


def test_the_next_command_does_not_wait_for_an_unreachable_node(
    network: Network, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is stored on the controller, by inventory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    network.errors["b"] = ConnectionFailed("no route to host", node="b")
    asked(network, Contact(NODES, AbsentNodes(tmp_path)))

    assert asked(network, Contact(NODES, AbsentNodes(tmp_path)))[0] == ["a", "c"]
    assert asked(network, Contact(NODES, AbsentNodes(tmp_path / "other")))[0] == ["a", "b", "c"]


def test_a_request_to_one_unreachable_node_does_not_wait_again(network: Network, monkeypatch) -> None:
    """For example if only the queue host is needed, for `submit`, `queue release` and `restart`."""
    connected: list[str] = []

    def connect(node: Node) -> str:
        connected.append(node.name)
        if node.name in network.errors:
            raise network.errors[node.name]
        return f"connection to {node.name}"

    monkeypatch.setattr(node_contact, "connect", connect)
    network.errors["a"] = ConnectionFailed("no route to host", node="a")
    nodes = Contact(NODES)
    with pytest.raises(ConnectionFailed):
        nodes.connect("a")
    with pytest.raises(NodeUnreachable, match="no route to host"):
        nodes.connect("a")
    assert connected == ["a"]
    assert asked(network, nodes)[0] == ["b", "c"]

    network.takes.add("a")
    del network.errors["a"]
    assert nodes.connect("a") == "connection to a"
    network.takes.clear()
    assert nodes.connect("a") == "connection to a", "it is forgotten when it has answered"


def test_all_paths_of_an_inventory_share_the_record_of_unreachable_nodes(
    network: Network, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder, its hosts file, and links to either."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "prod"
    folder.mkdir()
    (folder / "hosts.yml").touch()
    (tmp_path / "link").symlink_to(folder)
    network.errors["b"] = ConnectionFailed("no route to host", node="b")
    asked(network, Contact(NODES, AbsentNodes(folder)))

    for same in (folder / "hosts.yml", tmp_path / "link", tmp_path / "link/hosts.yml"):
        assert asked(network, Contact(NODES, AbsentNodes(same)))[0] == ["a", "c"], same
