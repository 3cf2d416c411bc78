"""Run a node's drain hook on the controller, without a shell; errors contain no secrets."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence

from provision.commands.drain import DRAINED_BEFORE, Hook, SchedulerState
from provision.errors import NodeError, ProvisionError
from provision.model import CommandResult, Node

_LIMIT_SECONDS = 60.0
"""A scheduler that does not answer in this time is taken for gone."""
_OWN_LIMIT_SECONDS = 600.0
"""Commands of the operator's own may wait for something."""
_MARGIN_SECONDS = 30.0


class NoAnswer(NodeError):
    """A hook's program did not end in time; its effect is unknown."""


class NodeHook:
    """The hook of one node; a failing program is a NodeError with the command, its exit code and its last lines."""

    def __init__(self, node: Node, hook: Hook) -> None:
        self.node, self.hook = node, hook
        self._limit = _OWN_LIMIT_SECONDS if hook.kind == "command" else _LIMIT_SECONDS

    def state(self) -> SchedulerState | None:
        """Return what the scheduler says of the node; None where it cannot be asked."""
        argv = self.hook.ask()
        if argv is None:
            return None
        answer = self._run(argv, self._limit)
        state = self.hook.read(answer.stdout) if answer.ok else None
        if state is None:
            raise self._failed("ask for the state of", argv, answer)
        return state

    def drain(self, reason: str) -> bool:
        """Keep new jobs away; return whether we did it, according to the operator's own command."""
        argv = self.hook.drain(reason)
        answer = self._run(argv, self._limit)
        if answer.exit_code == DRAINED_BEFORE and self.hook.kind == "command":
            return False
        if not answer.ok:
            raise self._failed("drain", argv, answer)
        return True

    def clear(self) -> None:
        """Take away what is left on the drained node, where the scheduler knows of such a thing."""
        argv = self.hook.clear()
        if argv is not None:
            answer = self._run(argv, self.hook.clear_seconds + _MARGIN_SECONDS)
            if not answer.ok:
                raise self._failed("empty", argv, answer)

    def resume(self) -> None:
        """Let jobs come again."""
        argv = self.hook.resume()
        answer = self._run(argv, self._limit)
        if not answer.ok:
            raise self._failed("resume", argv, answer)

    def resume_line(self) -> str:
        """Return the command that resumes the node by hand."""
        return self._clean(shlex.join(self.hook.resume()))

    def _run(self, argv: Sequence[str], limit: float) -> CommandResult:
        from provision.connectors.subprocesses import LocalProcess

        if shutil.which(argv[0]) is None:
            raise NodeError(
                f"the program {argv[0]} is not on this machine, and cluster_drain needs it",
                node=self.node.name,
                remedy=f"Install {argv[0]} here, put it on the PATH, or correct cluster_drain in the inventory.",
            )
        try:
            return LocalProcess(self.node.name, argv).result(b"", limit)
        except ProvisionError as error:
            raise NoAnswer(
                f"`{self._clean(shlex.join(argv))}` gave no result within {limit:.0f} seconds, or could not be started",
                node=self.node.name,
                output=self._clean(error.message),
                remedy="Run it by hand to see what it waits for.",
            ) from error

    def _failed(self, verb: str, argv: Sequence[str], answer: CommandResult) -> NodeError:
        return NodeError(
            f"could not {verb} the node: `{self._clean(shlex.join(argv))}` ended with code {answer.exit_code}",
            node=self.node.name,
            output=self._clean(answer.last_lines()),
            remedy="Run it by hand; cluster_drain and cluster_drain_name in the inventory say what is called.",
        )

    def _clean(self, text: str) -> str:
        from provision.report.redaction import Redactor, secrets_of

        return Redactor(secrets_of(self.node.variables)).text(text)
