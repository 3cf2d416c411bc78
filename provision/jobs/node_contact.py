"""Parallel requests to nodes, which do not wait for nodes that did not answer a short time ago."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from provision.connectors import Connector, connect, each
from provision.connectors.absent import AbsentNode, AbsentNodes
from provision.connectors.knock import takes_connections
from provision.errors import ConnectionFailed, HostNotTrusted, NodeUnreachable, ProvisionError
from provision.model import Node
from provision.threads import outcomes, within

T = TypeVar("T")

KNOCK_SECONDS = 1.0
"""The time in which a node that was silent must accept a connection; otherwise it still counts as silent."""
_AT_ONCE = 64


def is_silent(answer: object) -> bool:
    """Return whether a node's answer is that it could not be reached."""
    return isinstance(answer, ConnectionFailed | NodeUnreachable)


class Contact:
    """Sends requests to the nodes of a cluster."""

    def __init__(self, nodes: Mapping[str, Node], absent: AbsentNodes | None = None) -> None:
        self.nodes = nodes
        self._absent = absent or AbsentNodes()

    def each(
        self,
        nodes: Sequence[Node],
        work: Callable[[Connector], T],
        *,
        patience: float | None = None,
        answered: float = 0.0,
        time_limit: float | None = None,
    ) -> dict[str, T | ProvisionError]:
        """Run `work` on all nodes in parallel, as `provision.connectors.each` does.

        Nodes that did not answer a short time ago are connected to only if they accept connections now. With
        `time_limit`, nodes that have not answered after so many seconds count as unreachable.
        """
        if time_limit is not None:
            return self._each_within(time_limit, nodes, work, patience, answered)
        absent = self._absent.among(nodes)
        back: list[Node] = []
        knocking = threading.Thread(target=lambda: back.extend(self._back(nodes, absent)), daemon=True)
        knocking.start()
        asked = [node for node in nodes if node.name not in absent]
        answers: dict[str, T | ProvisionError] = (
            dict(each(asked, work, patience=patience, answered=answered)) if asked else {}
        )
        knocking.join()
        if back:
            answers |= each(back, work)
        self._remember(nodes, answers)
        late = {name: _still_silent(entry) for name, entry in absent.items() if name not in answers}
        return {node.name: answers[node.name] if node.name in answers else late[node.name] for node in nodes}

    def _each_within(
        self,
        time_limit: float,
        nodes: Sequence[Node],
        work: Callable[[Connector], T],
        patience: float | None,
        answered: float,
    ) -> dict[str, T | ProvisionError]:
        results: dict[str, T | ProvisionError] = {}

        def work_and_store(connector: Connector) -> T:
            result = work(connector)
            results[connector.name] = result
            return result

        complete = within(time_limit, lambda: self.each(nodes, work_and_store, patience=patience, answered=answered))
        if complete is not None:
            return complete
        late = f"no answer within {time_limit:g} s"
        return {node.name: results.get(node.name) or NodeUnreachable(late, node=node.name) for node in nodes}

    def connect(self, name: str) -> Connector:
        """Return a connection to one node; the caller closes it.

        Raises:
            NodeUnreachable: the node did not answer a short time ago, and accepts no connections now.
            ConnectionFailed: it cannot be reached.
        """
        node = self.nodes[name]
        absent = self._absent.among([node])
        if absent and not self._back([node], absent):
            raise _still_silent(absent[name])
        try:
            connector = connect(node)
        except ConnectionFailed as error:
            self._remember([node], {name: error})
            raise
        if absent:
            self._absent.remember((), [name])
        return connector

    def present(self) -> tuple[list[str], dict[str, str]]:
        """Return the nodes that are expected to answer, and the reason of each other node."""
        nodes = list(self.nodes.values())
        absent = self._absent.among(nodes)
        back = {node.name for node in self._back(nodes, absent)}
        gone = {name: _still_silent(entry).message for name, entry in absent.items() if name not in back}
        return [node.name for node in nodes if node.name not in gone], gone

    def _back(self, nodes: Sequence[Node], absent: Mapping[str, AbsentNode]) -> list[Node]:
        silent = [node for node in nodes if node.name in absent]
        knocks = outcomes(lambda node: takes_connections(node, KNOCK_SECONDS), silent, limit=_AT_ONCE)
        return [node for node, took in zip(silent, knocks, strict=True) if took is True]

    def _remember(self, nodes: Sequence[Node], answers: Mapping[str, object]) -> None:
        silent = [
            (node, answer.message)
            for node in nodes
            for answer in [answers.get(node.name)]
            if isinstance(answer, ConnectionFailed | NodeUnreachable) and not isinstance(answer, HostNotTrusted)
        ]
        quiet = {node.name for node, _ in silent}
        self._absent.remember(silent, [name for name in answers if name not in quiet])


def _still_silent(entry: AbsentNode) -> NodeUnreachable:
    seconds = max(time.time() - entry.time, 0.0)
    reason = entry.reason or "no answer in time"
    return NodeUnreachable(f"{reason}; still unreachable after {seconds:.0f} s", node=entry.name)
