"""Lock every node that is changed: one SSH session each, in which a lock holder on the node has the lock."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from provision.commands import node_lock
from provision.documents import PrintableLine
from provision.documents.locks import LockAnswer, ReleaseAnswer
from provision.errors import Interrupted, LockedError, NodeError, ProvisionError
from provision.locks import user
from provision.model import Node
from provision.threads import outcomes
from provision.workflow.remote_lock import ANSWER_SECONDS, RemoteLock

if TYPE_CHECKING:
    from provision.engine import Event

_AT_ONCE = 64
_FILES_PER_NODE = 8
_FILES_BESIDE = 512
_ASK_SECONDS, _LAST_SECONDS = 2.0, 30.0
"""How often a lock is asked for that is about to go, and how long after its last moment on the node."""


@contextmanager
def acquire(
    nodes: Sequence[Node], *, command: str, on_event: Callable[[Event], None] | None = None
) -> Iterator[NodeLocks]:
    """Lock all `nodes` that are free. Other operators who need a lock meanwhile see `command` and its operator.

    `command` must contain no secret. When the block is left by an exception, or this process dies, a lock stays until
    Ansible's tasks on its node have ended. Tasks that a dead process left running are awaited and reported to
    `on_event`; a lock of a live process is not awaited.
    """
    locks = NodeLocks(command, on_event)
    failure: BaseException | None = None
    try:
        locks.take(nodes)
        yield locks
    except BaseException as error:
        failure = error
        raise
    finally:
        locks.release(failure)


def raise_refusals(refused: Mapping[str, LockedError]) -> None:
    """Raise LockedError, with all that hold a node, where any node is held by others: then none is changed."""
    if refused:
        (name, first), *more = refused.items()
        others = "\n".join(f"{other}: {error.message}" for other, error in more)
        raise LockedError(first.message, node=name, remedy=first.remedy, output=others)


class NodeLocks:
    """The locks of nodes that this command holds, and the nodes that it could not lock."""

    def __init__(self, command: str, on_event: Callable[[Event], None] | None = None) -> None:
        self._on_event = on_event
        self.refused: dict[str, LockedError] = {}
        """Node -> error that another process holds its lock."""
        self.failed: dict[str, ProvisionError] = {}
        """Node -> other error while the lock was acquired."""
        self.warnings: dict[str, str] = {}
        """Node -> warning, for example that the lock has an unusual path or the history could not be written."""
        self._holder = {
            "id": f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(4)}",
            "user": user(),
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "command": command[:500],
            "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        self._remote_locks: dict[str, RemoteLock] = {}
        self._lost: dict[str, str] = {}
        self._finished: set[str] = set()
        self._over = threading.Event()

    def take(self, nodes: Sequence[Node]) -> None:
        """Take the lock of each node, all at once."""
        _make_room(len(nodes))
        threading.Thread(target=self._beat, daemon=True, name="beat").start()
        for node, error in zip(nodes, outcomes(self._take_in_time, nodes, limit=_AT_ONCE), strict=True):
            if isinstance(error, LockedError):
                self.refused[node.name] = error
            elif isinstance(error, ProvisionError):
                self.failed[node.name] = error
            elif error is not None:
                raise error

    def lost(self) -> Mapping[str, str]:
        """Return the nodes whose lock was lost while it was held, with the reason."""
        for name, remote in list(self._remote_locks.items()):
            if name not in self._lost and (reason := remote.end()):
                self._lost[name] = reason
        return dict(self._lost)

    def renew(self, nodes: Sequence[Node]) -> dict[str, ProvisionError]:
        """Take the locks of rebooted nodes again, whose lock holders ended; return the nodes where that failed."""
        for node in nodes:
            remote = self._remote_locks.pop(node.name, None)
            if remote is not None:
                remote.close()
            self._lost.pop(node.name, None)
        errors = zip(nodes, outcomes(self._take_in_time, nodes, limit=_AT_ONCE), strict=True)
        failed: dict[str, ProvisionError] = {}
        for node, error in errors:
            if isinstance(error, ProvisionError):
                failed[node.name] = error
            elif error is not None:
                raise error
        return failed

    def note(self, node: str, text: str) -> None:
        """Keep one step of what is done in the node's history."""
        self._send(node, {"note": text})

    def finish(self, node: str, outcome: Mapping[str, Any]) -> None:
        """Keep in the node's history how it ended there: ``status``, ``roles`` and ``message``."""
        self._finished.add(node)
        self._send(node, {"finish": dict(outcome)})

    def release(self, failure: BaseException | None) -> None:
        """Give up all locks; with a `failure` that stopped the work, once nothing of it is at work on the node."""
        self._over.set()
        self.lost()
        stopped = failure is not None and not isinstance(failure, LockedError)
        for name in list(self._remote_locks):
            if name not in self._finished:
                self.finish(name, _unfinished(failure))
        outcomes(lambda name: self._release(name, stopped=stopped), list(self._remote_locks), limit=_AT_ONCE)

    def _take_in_time(self, node: Node) -> ProvisionError | None:
        """Lock a node; wait for running tasks of a command that is lost."""
        end, reported = time.monotonic() + node_lock.TIMES["linger"] + _LAST_SECONDS, False
        while True:
            error = self._take(node)
            if not isinstance(error, LockedError) or not error.passing or time.monotonic() >= end:
                return error
            if self._on_event and not reported:
                from provision.engine import Event

                text = f"wait for running tasks of a lost command: {error.message}"
                self._on_event(Event(node.name, None, text, "waiting"))
                reported = True
            if self._over.wait(_ASK_SECONDS):
                return error

    def _take(self, node: Node) -> ProvisionError | None:
        from provision.connectors import connect

        try:
            with ExitStack() as closing:
                connector = connect(node)
                closing.callback(connector.close)
                remote = RemoteLock(connector)
                closing.callback(remote.close)
                remote.begin(node_lock.keep_request({**self._holder, "node": node.name}))
                answer = remote.answer(LockAnswer, ANSWER_SECONDS)
                error, warning = node_lock.read_lock(node.name, answer, str(self._holder["id"]))
                if warning:
                    self.warnings[node.name] = warning
                if error is None and not self._over.is_set():
                    self._remote_locks[node.name] = remote
                    closing.pop_all()
                return error
        except ProvisionError as error:
            error.node = error.node or node.name
            return error
        except OSError as error:
            what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            return NodeError(f"local error on the controller: {what}", node=node.name)

    def _send(self, node: str, document: Mapping[str, Any]) -> None:
        remote = self._remote_locks.get(node)
        if remote is None or node in self._lost:
            return
        try:
            remote.send(document)
        except ProvisionError as error:
            self._lost[node] = error.message

    def _beat(self) -> None:
        """Send heartbeats to the lock holders; one thread for all nodes."""
        while not self._over.wait(node_lock.BEAT_SECONDS):
            self.lost()
            for name in list(self._remote_locks):
                self._send(name, {})

    def _release(self, node: str, *, stopped: bool) -> None:
        remote = self._remote_locks[node]
        if node in self._lost:
            remote.close()
            return
        try:
            remote.send({"release": stopped})
            answer = remote.answer(ReleaseAnswer, ANSWER_SECONDS / 4)
        except ProvisionError as error:
            answer = ReleaseAnswer(trouble=PrintableLine(error.message))
        if answer.trouble:
            self.warnings[node] = f"the node's history is not complete: {answer.trouble}"
        if answer.working:
            self.warnings[node] = f"its lock stays until this has ended there: {', '.join(answer.working)}"
            remote.leave()
        else:
            remote.close()


def _unfinished(failure: BaseException | None) -> dict[str, Any]:
    """Return the ending of a node without a reported one."""
    if failure is None:
        return {"status": "ended", "roles": [], "message": ""}
    if isinstance(failure, LockedError):
        return {"status": "refused", "roles": [], "message": "another node was in use"}
    status = "failed" if isinstance(failure, ProvisionError) and not isinstance(failure, Interrupted) else "interrupted"
    return {"status": status, "roles": [], "message": str(failure)}


def _make_room(nodes: int) -> None:
    """Let this process have as many open files as so many connections need, as far as the system allows it."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_BESIDE + _FILES_PER_NODE * nodes
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
