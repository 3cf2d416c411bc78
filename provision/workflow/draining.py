"""Drain nodes in their scheduler before disruptive steps, and resume those that this program drained.

The state of a node in one apply, and how it gets there:

| state | set or record | next |
| --- | --- | --- |
| in service | none | a disruptive step is due (`ready`): drained; drained by others; or not drained |
| drained by us | `_drained`; before, the `DrainRecord` | without jobs: emptied; after the time limit: timed out |
| drained by others | `_drained_by_others` | the steps run when it is idle; it is never resumed |
| not drained | `_not_drained`: it has jobs, and another node is timed out | a later apply drains it |
| timed out | `_timed_out`: its jobs did not end in cluster_drain_seconds | it stays drained for a later apply |
| emptied | `_emptied`: remaining pods are evicted (Kubernetes only) | the steps run |
| resumed | `_resumed`, and not in the `DrainRecord` any more | none |

`resume` resumes a drained node when it has converged; a node that failed stays drained and recorded. The record of an
earlier apply counts like one of this apply: such a node is resumed, or used as drained. `_considered` has the nodes for
which `ready` has decided, so that it decides once for each node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from provision.commands.drain import KINDS, SchedulerState, hook_of
from provision.errors import NodeError
from provision.locks import user
from provision.model import Cluster, Plan, Step
from provision.workflow.drain_hooks import NoAnswer, NodeHook
from provision.workflow.drain_record import DrainRecord
from provision.workflow.idle_steps import has_disruptive_step, steps_of, steps_to_confirm, waits_only_for_jobs

if TYPE_CHECKING:
    from provision.workflow.node_results import NodeResults
    from provision.workflow.plan import PlanResult, Request

_AT_ONCE = 16
_SHORTEST_PAUSE, _LONGEST_PAUSE = 5.0, 60.0
Out = TypeVar("Out")


def pauses() -> Iterator[float]:
    """Yield the pause before each check for ended jobs: a quarter of the time waited so far."""
    waited = 0.0
    while True:
        pause = min(max(_SHORTEST_PAUSE, waited / 4), _LONGEST_PAUSE)
        yield pause
        waited += pause


class Draining:
    """The drained nodes of one apply."""

    def __init__(
        self,
        cluster: Cluster,
        results: NodeResults,
        probe: Callable[[Sequence[str], Request], PlanResult],
        request: Request,
    ) -> None:
        self._record = DrainRecord(cluster)
        self._cluster, self._results, self._probe = cluster, results, probe
        self._disruptive = request.disruptive
        self._whole = not request.only
        """A plan of only some roles does not show whether a node has converged."""
        self._hooks: dict[str, NodeHook] = {}
        self._considered: set[str] = set()
        """Nodes for which `ready` has decided whether to drain them."""
        self._drained: set[str] = set()
        """Nodes that we drained and that this apply uses."""
        self._emptied: set[str] = set()
        """Drained nodes whose remaining pods were evicted."""
        self._scheduler_jobs: dict[str, str] = {}
        """Nodes that have jobs according to their scheduler; a probe of the node may not show them."""
        self._timed_out: list[str] = []
        """Drained nodes whose jobs did not end in time."""
        self._not_drained: list[str] = []
        """Nodes with jobs that stay in service because there are nodes in `_timed_out`."""
        self._drained_by_others: list[str] = []
        self._resumed: list[str] = []

    def left_drained(self, result: PlanResult) -> dict[str, tuple[Step, ...]]:
        """Return the converged nodes that an earlier apply left drained, each without a step."""
        names = self._record.nodes if self._whole else ()
        return {name: () for name in names if name in result.facts and self._has_converged(result, name, ())}

    def with_scheduler_jobs(self, result: PlanResult) -> PlanResult:
        """Return a probe result in which steps also wait for the jobs that only the scheduler reports."""
        plans = tuple(
            replace(
                plan,
                steps=tuple(
                    replace(s, waits_for=s.waits_for or (self._scheduler_jobs[plan.name],)) for s in plan.steps
                ),
            )
            if plan.name in self._scheduler_jobs
            else plan
            for plan in result.plan.nodes
        )
        return replace(result, plan=Plan(plans)) if self._scheduler_jobs else result

    def ready(
        self, result: PlanResult, confirmed: Collection[str], last_roles: Collection[str], request: Request
    ) -> PlanResult:
        """Drain nodes with a disruptive step, each once, and wait for their jobs to end.

        Args:
            result: the newest probe result.
            confirmed: the nodes of the wave.
            last_roles: roles that run after the last wave; their steps do not count here.
            request: the options of the operator.

        Returns:
            A new probe result if a node was drained, because a job may have started just before; otherwise `result`.
        """
        now = [
            name
            for name, steps in steps_to_confirm(result).items()
            if name in confirmed
            and self._results.can_continue(name)
            and has_disruptive_step([s for s in steps if s.role not in last_roles])
        ]
        hooks = {name: hook for name in now if name not in self._considered and (hook := self._hook(name))}
        self._considered |= set(now)
        if hooks:
            waiting = {plan.name for plan in result.plan.nodes if any(step.waits_for for step in plan.steps)}
            self._drain(hooks, waiting)
            result = self._wait(hooks, confirmed, request)
        full = [name for name in now if name in self._drained and name not in self._emptied]
        idle = [name for name in full if self._results.can_continue(name) and not self._waits_for_jobs(result, name)]
        self._emptied |= set(self._each(idle, "empty the node", NodeHook.clear))
        return result

    def resume(self, result: PlanResult, names: Collection[str], last_roles: Collection[str] = ()) -> None:
        """Resume the nodes that we drained and that have converged according to `result`, apart from `last_roles`."""
        self._record.read()  # as it is by now: an apply of others may have ended before this one began to change nodes
        mine = [name for name in self._record.nodes if name in names and name in result.facts]
        mine = [name for name in mine if self._results.can_continue(name) and (self._whole or name in self._drained)]
        due = [name for name in mine if self._has_converged(result, name, last_roles) and self._hook(name)]
        states = self._each(due, "resume the node", NodeHook.state)
        ours = [name for name, state in states.items() if state is None or (state.out and not state.others)]
        done = self._each(ours, "resume the node", NodeHook.resume)
        self._resumed += list(done)
        self._drained -= set(done)
        self._forget([*done, *(name for name in states if name not in ours)])

    def report(self, names: Collection[str]) -> None:
        """Report the drained and resumed nodes, and how to resume those that are still drained."""
        warnings = []
        if self._record.trouble:
            warnings.append(f"the nodes that earlier applies drained are unknown: {self._record.trouble}")
        if self._resumed:
            warnings.append(f"drained for this, and resumed: {', '.join(sorted(self._resumed))}")
        if self._drained_by_others:
            warnings.append(f"drained by others before, and left so: {', '.join(sorted(self._drained_by_others))}")
        if self._not_drained:
            first = ", ".join(self._timed_out)
            warnings.append(f"not drained, because {first} still waits for jobs to end: {', '.join(self._not_drained)}")
        for name, entry in self._record.nodes.items():
            if name in names:
                where, how = KINDS.get(str(entry.get("kind")), "its scheduler"), ""
                with suppress(NodeError):
                    hook = self._find_hook(name)
                    how = f"; to resume it by hand: {hook.resume_line()}" if hook else ""
                warnings.append(f"{name} stays drained in {where}: {self._why(name)}{how}")
        self._results.warnings += warnings

    def _why(self, name: str) -> str:
        if not self._results.can_continue(name):
            return "something failed there"
        return "jobs run there" if name in self._timed_out else "it has not converged yet"

    def _hook(self, name: str) -> NodeHook | None:
        """Return the drain hook of a node, None without a scheduler; an invalid one fails the node."""
        try:
            return self._find_hook(name)
        except NodeError as error:
            self._results.fail(name, "drain the node", error)
            return None

    def _find_hook(self, name: str) -> NodeHook | None:
        if name not in self._hooks:
            node = self._cluster.node(name)
            hook = hook_of(name, node.variables, self._record.nodes.get(name))
            if hook is None:
                return None
            self._hooks[name] = NodeHook(node, hook)
        return self._hooks[name]

    def _drain(self, hooks: Mapping[str, NodeHook], waiting: Collection[str]) -> None:
        """Drain the nodes that are in service; record them first, so that a crash leaves no unrecorded one."""
        states = self._each(list(hooks), "drain the node", NodeHook.state)
        before = set(self._record.nodes)
        wanted = []
        for name, state in states.items():
            if state and state.out:
                ours = name in before and not state.others
                (self._drained.add if ours else self._drained_by_others.append)(name)
            elif self._timed_out and (name in waiting or self._has_jobs(name, state)):
                self._not_drained.append(name)
            else:
                wanted.append(name)
        self._forget([name for name in self._drained_by_others if name in before])
        entries = {name: self._entry(hooks[name]) for name in wanted if name not in before}
        try:
            if entries:
                self._record.add(entries)
        except OSError as error:
            why = f"{self._record.path} cannot be written: {error.strerror}"
            text = f"it was not drained, because its resumption cannot be recorded: {why}"
            for name in entries:
                self._results.fail(name, "drain the node", NodeError(text, node=name, remedy="Free disk space there."))
            wanted = [name for name in wanted if name in before]
        unknown: list[str] = []

        def drain(hook: NodeHook) -> bool:
            try:
                return hook.drain(f"apply by {user()}")
            except NoAnswer:
                unknown.append(hook.node.name)
                raise

        done = self._each(wanted, "drain the node", drain)
        self._drained |= {name for name, ours in done.items() if ours or name in before}
        self._drained_by_others += [name for name, ours in done.items() if not ours and name not in before]
        self._forget([name for name in entries if name not in self._drained and name not in unknown])

    @staticmethod
    def _entry(hook: NodeHook) -> dict[str, str]:
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return {"kind": hook.hook.kind, "name": hook.hook.name, "since": since, "user": user()}

    def _wait(self, hooks: Mapping[str, NodeHook], confirmed: Collection[str], request: Request) -> PlanResult:
        """Check at once and then after pauses, until no job is left or the time limit of the inventory has passed."""
        started, pause = time.monotonic(), pauses()
        while True:
            self._ask_for_jobs([name for name in hooks if self._results.can_continue(name)])
            result = self._probe([name for name in confirmed if self._results.can_continue(name)], request)
            waiting = [
                name for name in hooks if self._results.can_continue(name) and self._waits_for_jobs(result, name)
            ]
            patience = max((hooks[name].hook.seconds for name in waiting if name not in self._not_drained), default=0)
            left = started + patience - time.monotonic()
            if not waiting or left <= 0:
                self._timed_out += [name for name in waiting if name not in self._not_drained]
                return result
            time.sleep(min(next(pause), left))

    def _ask_for_jobs(self, names: Sequence[str]) -> None:
        states = self._each(names, "drain the node", NodeHook.state)
        self._scheduler_jobs = {name: job for name, job in self._scheduler_jobs.items() if name not in states}
        self._scheduler_jobs |= {
            name: f"jobs of the scheduler, which says {state.jobs}"
            for name, state in states.items()
            if state and self._has_jobs(name, state)
        }

    def _has_jobs(self, name: str, state: SchedulerState | None) -> bool:
        return bool(state and state.jobs and name not in self._disruptive)

    def _waits_for_jobs(self, result: PlanResult, name: str) -> bool:
        steps = steps_of(result, name)
        return name in self._scheduler_jobs or any(
            step.waits_for and waits_only_for_jobs(result, name, step) for step in steps
        )

    def _has_converged(self, result: PlanResult, name: str, last_roles: Collection[str]) -> bool:
        """Return whether all remaining steps of the node wait for owners of accepted differences."""
        left = [step for step in steps_of(result, name) if step.role not in last_roles]
        return name not in self._scheduler_jobs and all(
            step.waits_for and not waits_only_for_jobs(result, name, step) for step in left
        )

    def _each(self, names: Sequence[str], task: str, call: Callable[[NodeHook], Out]) -> dict[str, Out]:
        """Call the hooks of several nodes at once; a node whose hook fails has failed and is not in the answer."""
        from provision.threads import outcomes

        done: dict[str, Out] = {}
        for name, outcome in zip(names, outcomes(call, [self._hooks[n] for n in names], limit=_AT_ONCE), strict=True):
            if isinstance(outcome, NodeError):
                self._results.fail(name, task, outcome)
            elif isinstance(outcome, Exception):
                raise outcome
            else:
                done[name] = outcome
        return done

    def _forget(self, names: Collection[str]) -> None:
        try:
            self._record.forget(names)
        except OSError as error:
            self._results.warnings.append(f"{self._record.path} cannot be written: {error.strerror}")
