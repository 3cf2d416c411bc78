"""Reboot nodes into a new kernel on trial, verify and confirm it, or return to the previous one.

What has to survive a crash of the controller is on the node: the record of the role kernel (its phases are described in
``roles/kernel/module_utils/kernel_node.py``), and the owner of the drain. Each apply completes what an earlier one
left (`settle`): a kernel on trial is verified and confirmed, and a drained node without an upgrade is resumed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from provision.components.kernel import ROLE, cause_reason
from provision.errors import ConnectionFailed, NodeError, ProvisionError
from provision.facts import Unknown
from provision.facts.kernel_upgrade import OWNER, KernelUpgrade
from provision.locks import user
from provision.model import CheckStatus, Cluster, Node, Step, StepClass
from provision.model.reason import reason
from provision.workflow.idle_steps import steps_of
from provision.workflow.kernel_reboots import BOOT_SECONDS, STOP_SECONDS, Reboots
from provision.workflow.kernel_requests import REFUSED, call, node_error

if TYPE_CHECKING:
    from provision.connectors.base import Connector
    from provision.documents.records import KernelStatus
    from provision.engine import Event
    from provision.facts import NodeFacts
    from provision.workflow.node_locks import NodeLocks
    from provision.workflow.node_results import NodeResults
    from provision.workflow.plan import PlanResult, Request

_AT_ONCE = 64
_PAUSE_SECONDS = 2.0
_DEFAULT_SECONDS = 900
_SHARE = 2 / 3
"""Part of the node's own time limit after which the controller rejects a kernel."""
_MOST_CHECKS = 200
_REBOOT_TASK, _RETURN_TASK = "reboot", "verify the kernel"
T = TypeVar("T")


@dataclass
class _Trial:
    """One node on its way into a new kernel."""

    node: Node
    target: str
    seconds: int
    checks: frozenset[str]
    """The checks that failed before."""
    boot_id: str = ""
    """The boot that runs the new kernel."""
    deadline: float = 0.0
    worse: tuple[str, ...] = ()
    """The checks that fail now and did not before; as of the last probe."""


@dataclass
class _Boots:
    """Reboots that run in threads, so that a node that does not come back uses up no other node's time."""

    running: int = 0
    _done: SimpleQueue[tuple[str, _Trial, Exception | None]] = field(default_factory=SimpleQueue)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def start(self, task: str, function: Callable[[_Trial], None], trials: Collection[_Trial]) -> None:
        """Call a function for each trial."""
        from provision.threads import outcomes

        def run(trial: _Trial) -> None:
            error: Exception | None = None
            try:
                if not self._stopped.is_set():
                    function(trial)
            except Exception as problem:  # noqa: BLE001 - the thread that judges records or raises it
                error = problem
            self._done.put((task, trial, error))

        if trials:
            self.running += len(trials)
            threading.Thread(target=lambda: outcomes(run, list(trials), limit=_AT_ONCE), daemon=True).start()

    def finished(self, *, wait: bool) -> Iterator[tuple[str, _Trial, Exception | None]]:
        """Yield task, trial and error of the calls that have ended; wait for the first one if requested."""
        while self.running:
            try:
                one = self._done.get(timeout=0.5) if wait else self._done.get_nowait()  # not None: Ctrl-C
            except Empty:
                if wait:
                    continue
                return
            wait = False
            self.running -= 1
            yield one

    def stop(self) -> None:
        """Start no further call."""
        self._stopped.set()


class KernelUpgrades:
    """The kernel upgrades of one apply."""

    def __init__(
        self,
        cluster: Cluster,
        results: NodeResults,
        probe: Callable[[Sequence[str], Request, str], PlanResult],
        request: Request,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self._cluster, self._results, self._probe, self._request = cluster, results, probe, request
        self._on_event = on_event
        self._concerned = not request.only or ROLE in request.only
        self._before: dict[str, frozenset[str]] = {}
        self._drained: set[str] = set()
        """Nodes that an upgrade drained, and that are to be resumed."""
        self._unended: set[str] = set()
        """Nodes that may still reboot: neither confirmed nor back in the previous kernel. They stay drained."""
        self.failed: set[str] = set()
        """Nodes whose upgrade failed; no further wave starts."""

    def unfinished(self, result: PlanResult) -> dict[str, tuple[Step, ...]]:
        """Return the nodes with an upgrade that an earlier apply has not finished, each without a step."""
        return {name: () for name, facts in result.facts.items() if self._concerned and _is_unfinished(facts)}

    def settle(self, result: PlanResult, names: Collection[str], locks: NodeLocks) -> bool:
        """Finish what earlier applies left on these nodes; return whether anything was to be done."""
        Reboots(self._cluster).forget(name for name in names if name in result.facts)
        mine = [name for name in names if name in self.unfinished(result) and self._results.can_continue(name)]
        trials: dict[str, _Trial] = {}
        for name in mine:
            upgrade, running = _upgrade(result.facts[name]), _running(result.facts[name])
            if upgrade.drained:
                self._drained.add(name)
            if upgrade.is_on_trial(running):
                trials[name] = self._trial(result.cluster.node(name), running, frozenset(upgrade.checks))
                self._unended.add(name)
                self._enter(trials[name], upgrade.boot_id, _uptime(result.facts[name]))
                self._results.changed(name, [step for step in steps_of(result, name) if step.role == ROLE])
        self._judge(trials, locks)
        self.resume([name for name in mine if not _may_reboot(result, name)])
        return bool(mine)

    def begin(
        self, result: PlanResult, wanted: Mapping[str, tuple[Step, ...]], request: Request
    ) -> dict[str, tuple[Step, ...]]:
        """Drain the nodes that will be rebooted; return `wanted` without those on which a job has started."""
        names = [name for name, steps in wanted.items() if _reboots(steps)]
        if not names:
            return dict(wanted)
        why = f"kernel upgrade (apply by {user()})"
        done = self._on_nodes(names, "drain the node", lambda connector: _ask_jobs(connector, "drain", reason=why))
        self._drained |= set(done)
        fresh = result
        if done:
            fresh = self._probe(list(done), request, "probe")
            self._results.add_probe(fresh)
        idle = [name for name in done if _may_reboot(fresh, name)]
        self._before |= {name: failing(fresh, name) for name in idle}
        self.resume([name for name in done if name not in idle])
        return {name: steps for name, steps in wanted.items() if name in idle or name not in names}

    def finish(self, wanted: Mapping[str, tuple[Step, ...]], request: Request, locks: NodeLocks) -> None:
        """Reboot the nodes whose new kernel is installed, and confirm or reject it.

        The installation takes minutes: a node where a job has started, or whose window has closed, waits.
        """
        names = [name for name, steps in wanted.items() if _reboots(steps) and self._results.can_continue(name)]
        if not names:
            return
        result = self._probe(names, request, "probe")
        self._results.add_probe(result)
        names = [name for name in names if _may_reboot(result, name)]
        trials = {}
        for name in names:
            node = result.cluster.node(name)
            trials[name] = self._trial(node, str(node.variables.get("kernel_release")), self._before[name])
            locks.note(name, f"reboot into the kernel {trials[name].target}")
        self._events(names, "reboot", "start")
        reboots = Reboots(self._cluster)
        reboots.add({name: trial.seconds + STOP_SECONDS + BOOT_SECONDS for name, trial in trials.items()})

        def came_up(names: Sequence[str]) -> None:
            reboots.forget(names)
            for name in names:  # also if the kernel was installed before
                self._results.changed(name, [step for step in wanted[name] if step.role == ROLE])

        self._judge({}, locks, trials, came_up)
        reboots.forget(trials)

    def resume(self, names: Collection[str] | None = None) -> None:
        """Resume the nodes that an upgrade drained; without `names`, all of them."""
        mine = [name for name in self._drained if names is None or name in names]
        lost = [name for name in mine if name in self._unended]
        answers = _each([self._cluster.node(name) for name in mine if name not in lost], _resume)
        for name, answer in answers.items():
            if isinstance(answer, ProvisionError):
                lost.append(name)
            else:
                self._drained.discard(name)
        self._drained -= set(lost)
        self._results.warnings += [
            f"{name}: stays drained, because its kernel upgrade has not ended; an apply resumes it" for name in lost
        ]

    def _trial(self, node: Node, target: str, checks: frozenset[str]) -> _Trial:
        seconds = node.variables.get("kernel_confirm_seconds")
        return _Trial(node, target, seconds if isinstance(seconds, int) else _DEFAULT_SECONDS, checks)

    @staticmethod
    def _enter(trial: _Trial, boot_id: str, uptime: int) -> None:
        trial.boot_id, trial.deadline = boot_id, time.monotonic() + max(0.0, trial.seconds * _SHARE - uptime)

    def _reboot(self, trial: _Trial) -> None:
        """Reboot into the new kernel, and wait until the node answers; NodeError if it runs the previous one."""
        checks = sorted(trial.checks)[:_MOST_CHECKS]
        request = {"to": trial.target, "seconds": trial.seconds, "checks": checks}
        before = call(trial.node, "status").boot_id
        self._unended.add(trial.node.name)
        try:
            call(trial.node, "reboot", **request)
        except (ConnectionFailed, NodeError) as error:  # the answer may be lost, or cut off, when the node stops
            if error.code == REFUSED:
                self._unended.discard(trial.node.name)
                raise
        status = self._await_boot(trial, before)
        if status.release != trial.target:
            raise self._fell_back(trial, status)
        self._enter(trial, status.boot_id, status.uptime)

    def _await_boot(self, trial: _Trial, boot_id: str) -> KernelStatus:
        """Return the answer of the node's next boot."""
        end = time.monotonic() + trial.seconds + STOP_SECONDS + BOOT_SECONDS
        while True:
            try:
                status = call(trial.node, "status")
                if status.boot_id and status.boot_id != boot_id:
                    return status
            except ProvisionError:
                if time.monotonic() >= end:
                    raise
            if time.monotonic() >= end:
                raise node_error(trial.node, reason("kernel.upgrade.no_reboot"))
            time.sleep(_PAUSE_SECONDS)

    def _judge(
        self,
        trials: Mapping[str, _Trial],
        locks: NodeLocks,
        to_reboot: Mapping[str, _Trial] = MappingProxyType({}),
        came_up: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        """Probe the nodes on trial until each is confirmed or rejected.

        Nodes of `to_reboot` are rebooted first. Each is judged as soon as it answers; `came_up` gets its name.
        """
        left, boots = dict(trials), _Boots()
        boots.start(_REBOOT_TASK, self._reboot, to_reboot.values())
        try:
            while left or boots.running:
                ended = list(boots.finished(wait=not left))
                good = {
                    trial.node.name: trial
                    for task, trial, error in ended
                    if self._recorded(trial.node.name, task, error) and task == _REBOOT_TASK
                }
                came_up(list(good))
                self._events(good, _REBOOT_TASK, "changed")
                self._renew([*good, *(trial.node.name for task, trial, _ in ended if task == _RETURN_TASK)], locks)
                left |= {name: trial for name, trial in good.items() if self._results.can_continue(name)}
                if left:
                    left = self._judge_once(left, boots)
                if left:
                    time.sleep(_PAUSE_SECONDS)
        finally:
            boots.stop()

    def _judge_once(self, trials: Mapping[str, _Trial], boots: _Boots) -> dict[str, _Trial]:
        """Probe nodes once; confirm the good ones, start the return of the late ones, and return the others."""
        result = self._probe(list(trials), self._request, "verify the kernel")
        good = [name for name, trial in trials.items() if self._is_good(result, trial)]
        self._parallel({name: trials[name] for name in good}, "confirm the kernel", self._confirm)
        late = [name for name, trial in trials.items() if name not in good and _is_late(result, trial)]
        self._events(late, "return to the previous kernel", "start")
        boots.start(_RETURN_TASK, self._reject, [trials[name] for name in late])
        return {name: trial for name, trial in trials.items() if name not in good and name not in late}

    def _renew(self, names: Iterable[str], locks: NodeLocks) -> None:
        """Take the locks of rebooted nodes again."""
        nodes = [self._cluster.node(name) for name in names]
        for name, error in (locks.renew(nodes) if nodes else {}).items():
            if self._results.can_continue(name):
                self._results.fail(name, "lock the node", error)

    @staticmethod
    def _is_good(result: PlanResult, trial: _Trial) -> bool:
        name = trial.node.name
        facts = result.facts.get(name)
        if facts is None or not _upgrade(facts).is_on_trial(trial.target):
            trial.worse = ("node.reachable",) if facts is None else ()
            return False
        trial.worse = tuple(sorted(failing(result, name) - trial.checks))
        return not trial.worse

    def _confirm(self, trial: _Trial) -> None:
        call(trial.node, "confirm")
        self._unended.discard(trial.node.name)

    def _reject(self, trial: _Trial) -> None:
        """Return to the previous kernel: by the controller, or by the node itself if it does not answer."""
        name, worse = trial.node.name, trial.worse
        lost = worse == ("node.reachable",)
        cause = "kernel.fallback.no_contact" if lost else "kernel.fallback.worse"
        with suppress(ConnectionFailed):
            status = call(trial.node, "status")
            if status.release != trial.target:
                raise self._fell_back(trial, status)
            call(trial.node, "reject", cause=cause)
        status = self._await_boot(trial, trial.boot_id)
        if status.release == trial.target:
            raise node_error(trial.node, reason("kernel.upgrade.stuck", release=trial.target))
        self._unended.discard(name)
        call(trial.node, "reject", cause=cause)
        if worse and not lost:
            raise node_error(
                trial.node,
                reason("kernel.upgrade.worse", release=trial.target, running=status.release, checks=worse),
            )
        why = cause_reason(cause)
        raise node_error(
            trial.node, reason("kernel.upgrade.fell_back", release=trial.target, running=status.release, cause=why)
        )

    def _fell_back(self, trial: _Trial, status: KernelStatus) -> NodeError:
        """Return the error of a node that came back with the previous kernel; the new one is recorded as rejected."""
        self._unended.discard(trial.node.name)
        cause = status.cause or "kernel.fallback.unknown"
        if cause == "kernel.fallback.not_confirmed":  # it ran until its limit, and was not reached
            cause = "kernel.fallback.no_contact"
        call(trial.node, "reject", cause=cause)
        why = reason(
            "kernel.upgrade.fell_back", release=trial.target, running=status.release, cause=cause_reason(cause)
        )
        return node_error(trial.node, why)

    def _on_nodes(self, names: Iterable[str], task: str, function: Callable[[Connector], T]) -> dict[str, T]:
        """Run a function on several nodes; a node where it fails has failed and is not in the result."""
        done: dict[str, T] = {}
        for name, answer in _each([self._cluster.node(name) for name in names], function).items():
            if isinstance(answer, ProvisionError):
                self._results.fail(name, task, answer, lost=isinstance(answer, ConnectionFailed))
            else:
                done[name] = answer
        return done

    def _parallel(self, trials: Mapping[str, _Trial], task: str, function: Callable[[_Trial], None]) -> list[str]:
        """Run a function for several trials; return the nodes where it succeeded."""
        from provision.threads import outcomes

        results = outcomes(function, list(trials.values()), limit=_AT_ONCE)
        errors = [one if isinstance(one, Exception) else None for one in results]
        return [name for name, error in zip(trials, errors, strict=True) if self._recorded(name, task, error)]

    def _recorded(self, name: str, task: str, error: Exception | None) -> bool:
        """Record the failure of a node, and return whether there is none; raise the error of a defect."""
        if error is not None and not isinstance(error, ProvisionError):
            raise error
        if error is not None:
            lost = isinstance(error, ConnectionFailed)
            self.failed.add(name)
            self._results.fail(name, task, error, role=ROLE, lost=lost)
            self._events([name], task, "unreachable" if lost else "failed")
        return error is None

    def _events(self, names: Iterable[str], task: str, status: str) -> None:
        if self._on_event:
            from provision.engine import Event

            for name in names:
                self._on_event(Event(name, ROLE, task, status))


def failing(result: PlanResult, name: str) -> frozenset[str]:
    """Return the checks that fail on a node according to a probe, without those that the upgrade itself changes.

    These are the checks of the kernel, and the comparison with a stack lock, which can have the previous kernel.
    """
    from provision.checks import judge
    from provision.planning.stack_lock import LOCK_CHECK
    from provision.workflow.survey import supported_systems

    if name not in result.facts:
        return frozenset()
    checks = judge(
        result.cluster.node(name),
        result.facts[name],
        result.cluster,
        all_facts=result.facts,
        supported=supported_systems(),
    )
    failed = {one.id for one in checks if one.status is CheckStatus.FAIL and not one.id.startswith(f"{ROLE}.")}
    return frozenset(failed - {LOCK_CHECK})


def _reboots(steps: Iterable[Step]) -> bool:
    return any(step.step_class is StepClass.NEEDS_REBOOT for step in steps)


def _may_reboot(result: PlanResult, name: str) -> bool:
    """Return whether the node has a step that reboots it, and that waits for nothing."""
    return _reboots(step for step in steps_of(result, name) if not step.waits_for)


def _is_late(result: PlanResult, trial: _Trial) -> bool:
    """Return whether the trial has ended: its time has passed, or the node runs another kernel again."""
    facts = result.facts.get(trial.node.name)
    running = _running(facts) if facts else ""
    return time.monotonic() >= trial.deadline or bool(running and running != trial.target)


def _upgrade(facts: NodeFacts) -> KernelUpgrade:
    return KernelUpgrade() if isinstance(facts.kernel_upgrade, Unknown) else facts.kernel_upgrade


def _running(facts: NodeFacts) -> str:
    return "" if isinstance(facts.system, Unknown) else facts.system.kernel


def _uptime(facts: NodeFacts) -> int:
    return 0 if isinstance(facts.boot, Unknown) else facts.boot.uptime_seconds


def _is_unfinished(facts: NodeFacts) -> bool:
    upgrade = _upgrade(facts)
    return upgrade.drained or upgrade.is_on_trial(_running(facts))


def _each(nodes: list[Node], function: Callable[[Connector], T]) -> dict[str, T | ProvisionError]:
    from provision.connectors import each

    return each(nodes, function) if nodes else {}


def _ask_jobs(connector: Connector, do: str, **request: Any) -> None:
    from provision.documents.jobs import Done
    from provision.jobs.node_ask import ask_jobs

    ask_jobs(connector, do, Done, owner=OWNER, **request)


def _resume(connector: Connector) -> None:
    _ask_jobs(connector, "resume")
