"""Undoing on nodes what the roles did there: each node says what it would do, and then does it."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from provision.documents import decode
from provision.documents.state import ResetAnswer
from provision.errors import ConnectionFailed, NodeError, ProvisionError
from provision.local_files import temporary_folder
from provision.model import ApplyReport, Cluster, Failure, Node, NodeReport, NodeReset, NodeStatus, ResetResult, Secret
from provision.workflow.inventory_state import inventory_lock, log_folder

if TYPE_CHECKING:
    from provision.connectors.base import Connector
    from provision.engine import Event
    from provision.workflow.node_locks import NodeLocks

_PLAYBOOK = "reset.yml"
_COMMAND = "provision reset"
_ANSWER_LIMIT = 16 * 1024 * 1024


def plan_reset(
    cluster: Cluster,
    nodes: Sequence[Node],
    *,
    disruptive: Collection[str] = (),
    become_password: Secret | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> tuple[NodeReset, ...]:
    """Ask each node what a reset would do there; nothing is changed.

    On the nodes that `disruptive` names neither running jobs nor containers of others are in the way.
    """
    lost = _lost(nodes)
    for name in lost:
        if on_event:
            from provision.engine import Event

            on_event(Event(name, None, "connect", _status(lost[name]).value))
    reached = [node.name for node in nodes if node.name not in lost]
    resets = _play(cluster, reached, disruptive, become_password, on_event, plan=True)
    resets |= {name: NodeReset(name, _status(error), error=_failure(error)) for name, error in lost.items()}
    return tuple(resets[node.name] for node in nodes)


def reset(
    cluster: Cluster,
    planned: Sequence[NodeReset],
    *,
    disruptive: Collection[str] = (),
    become_password: Secret | None = None,
    on_event: Callable[[Event], None] | None = None,
    on_warning: Callable[[str], None] | None = None,
) -> tuple[NodeReset, ...]:
    """Do what was `planned`; nodes with nothing to do, and those that refused or were not reached, stay as they are.

    Raises:
        LockedError: somebody else changes the inventory's nodes, or one of these; the message says who.
    """
    names = [node.name for node in planned if node.result is ResetResult.PLANNED]
    with inventory_lock(cluster, _COMMAND) as warnings, _locked(cluster, names, on_event) as locks:
        failed = {name: NodeReset(name, _status(error), error=_failure(error)) for name, error in locks.failed.items()}
        going = [name for name in names if name not in failed]
        done = _play(cluster, going, disruptive, become_password, on_event, plan=False) | failed
        for name in going:
            error = done[name].error
            message = error.message if error else ""
            locks.finish(name, {"status": done[name].result.value, "roles": [], "message": message})
        if on_warning:
            for warning in warnings:
                on_warning(warning)
    return tuple(done.get(node.name, node) for node in planned)


@contextmanager
def _locked(cluster: Cluster, names: Sequence[str], on_event: Callable[[Event], None] | None) -> Iterator[NodeLocks]:
    """Hold the locks of all these nodes, or change none of them."""
    from provision.workflow import node_locks

    with node_locks.acquire([cluster.node(name) for name in names], command=_COMMAND, on_event=on_event) as locks:
        node_locks.raise_refusals(locks.refused)
        yield locks


def _play(
    cluster: Cluster,
    names: Sequence[str],
    disruptive: Collection[str],
    become_password: Secret | None,
    on_event: Callable[[Event], None] | None,
    *,
    plan: bool,
) -> dict[str, NodeReset]:
    """Run the playbook once; each node's answer comes back as a file of the controller."""
    from provision import engine
    from provision.inventory.settings import reading_environment

    if not names:
        return {}
    log = log_folder(cluster) / f"apply-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}-reset.log"
    with temporary_folder() as folder:
        report = engine.run_playbook(
            cluster.inventory,
            names,
            playbook=_PLAYBOOK,
            variables={
                "_platform_reset": {"folder": folder, "plan": plan},
                "_platform_disruptive": sorted(disruptive),
            },
            become_password=become_password,
            environment=reading_environment(),
            on_event=on_event,
            log=None if plan else log,
        )
        return _resets(report, Path(folder), plan=plan)


def _resets(report: ApplyReport, folder: Path, *, plan: bool) -> dict[str, NodeReset]:
    """Put together what Ansible reported and what the nodes said."""
    return {node.name: _node(node, folder / f"{node.name}.json", plan=plan) for node in report.nodes}


def _node(node: NodeReport, file: Path, *, plan: bool) -> NodeReset:
    failed = ResetResult(node.status.value) if node.status in {NodeStatus.FAILED, NodeStatus.UNREACHABLE} else None
    try:
        answer = _answer(node.name, file)
    except NodeError as error:
        return NodeReset(node.name, failed or ResetResult.FAILED, error=node.error or _failure(error))
    steps, left, refused = (tuple(map(str, lines)) for lines in (answer.steps, answer.left, answer.refused))
    if failed:
        result = failed
    elif refused:
        result = ResetResult.REFUSED
    elif not steps:
        result = ResetResult.NOTHING
    else:
        result = ResetResult.PLANNED if plan else ResetResult.RESET
    return NodeReset(node.name, result, steps, left, refused, node.error)


def _answer(node: str, file: Path) -> ResetAnswer:
    """Return what the node's module said, which Ansible left in a file.

    Raises:
        NodeError: there is no file, or it holds no valid answer.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(_ANSWER_LIMIT + 1)
    except OSError as error:
        raise NodeError(f"it gave no answer: {error.strerror}", node=node) from error
    return decode(data, ResetAnswer, node=node, what="answer to a reset", limit=_ANSWER_LIMIT)


def _lost(nodes: Sequence[Node]) -> dict[str, ProvisionError]:
    """Return the nodes that cannot be worked on, with the reason, which Ansible would say less clearly."""
    from provision.connectors import each

    outcomes = each(nodes, _knock)
    return {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, ProvisionError)}


def _knock(connector: Connector) -> None:
    result = connector.run(f"command -v {shlex.quote(connector.python)} || true", timeout=60)
    if not result.ok:
        raise NodeError(
            f"logged in, but a command as root exited {result.exit_code}",
            node=connector.name,
            output=result.last_lines(),
            remedy="Check ansible_become and the user's sudo rights on the node.",
        )
    if not result.stdout.strip():
        raise NodeError(
            f"there is no {connector.python} on it, and Ansible needs one",
            node=connector.name,
            remedy="Install the package python3 there with apt-get or dnf, or set ansible_python_interpreter.",
        )


def _status(error: ProvisionError) -> ResetResult:
    return ResetResult.UNREACHABLE if isinstance(error, ConnectionFailed) else ResetResult.FAILED


def _failure(error: ProvisionError) -> Failure:
    return Failure(None, "connect", error.message, error.output, error.remedy, error.code)
