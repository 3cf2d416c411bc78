"""Test doubles of the package: a connector that answers from a table, and clusters made of names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from provision.errors import ConnectionFailed
from provision.model import Cluster, CommandResult, Connection, Node

Answer = CommandResult | str | Callable[[str, bytes], CommandResult] | Exception


class FakeProcess:
    """A process whose output is complete from the start and which records its input."""

    def __init__(self, result: CommandResult) -> None:
        self.result = result
        self.deadline: float | None = None
        self.stdin = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        """Record `data`."""
        self.stdin += data

    def close_stdin(self) -> None:
        """Do nothing."""

    def output(self) -> Iterator[tuple[str, bytes]]:
        """Yield all of stdout, then all of stderr."""
        for name, text in (("stdout", self.result.stdout), ("stderr", self.result.stderr)):
            if text:
                yield name, text.encode()

    def ended(self) -> bool:
        """Return True: the process has already ended."""
        return True

    def wait(self) -> int:
        """Return the exit status."""
        return self.result.exit_code

    def close(self) -> None:
        """Record that it was closed."""
        self.closed = True


class FakeConnector:
    """Connector that answers scripts from a table: the first key that the script contains selects the answer.

    An answer is a result, a text (stdout with exit code 0), a function of script and input, or an error to raise.
    A script without a matching key raises ConnectionFailed, so that a test cannot pass by accident.
    """

    reason = "a test double"
    agent = False

    def __init__(self, answers: Mapping[str, Answer] | None = None, name: str = "node1") -> None:
        self.name = name
        self.python = "python3"
        self.answers = dict(answers or {})
        self.scripts: list[str] = []
        self.inputs: list[bytes] = []
        self.files: dict[str, bytes] = {}
        self.closed = False

    def run(
        self, script: str, *, stdin: bytes = b"", timeout: float | None = None, become: bool = True, limit: int = 0
    ) -> CommandResult:
        """Return the answer to `script`."""
        del timeout, become, limit
        self.scripts.append(script)
        self.inputs.append(stdin)
        for key, answer in self.answers.items():
            if key in script:
                return self._result(answer, script, stdin)
        raise ConnectionFailed(f"the test has no answer to: {script[:200]}", node=self.name)

    def start(self, script: str, *, become: bool = True, limit: int | None = None) -> FakeProcess:
        """Return a process with the answer to `script`."""
        del limit
        return FakeProcess(self.run(script, become=become))

    def put(self, local: Path, remote: str) -> None:
        """Store the file's content in `files`."""
        self.files[remote] = local.read_bytes()

    def get(self, remote: str, local: Path) -> None:
        """Write the content from `files`."""
        local.write_bytes(self.files[remote])

    def close(self) -> None:
        """Record that it was closed."""
        self.closed = True

    @staticmethod
    def _result(answer: Answer, script: str, stdin: bytes) -> CommandResult:
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            return CommandResult(answer, "", 0)
        return answer(script, stdin) if callable(answer) else answer


def make_node(name: str = "node1", *, local: bool = False, **variables: Any) -> Node:
    """Return a node with the given variables, whose host is its name."""
    python = variables.get("ansible_python_interpreter", "python3")
    return Node(name, Connection(host=name, user="root", local=local, python=python), variables)


def make_cluster(*names: str, **variables: Any) -> Cluster:
    """Return a cluster of nodes that all have the same variables; without names, of two nodes."""
    nodes = tuple(make_node(name, **variables) for name in (names or ("node1", "node2")))
    return Cluster(name="test", inventory=Path("inventories/test"), nodes=nodes)
