"""Taking nodes out of their scheduler before steps that need them idle, and putting back those that we took out."""

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
from provision.workflow.idle_steps import agreeable, disturbing, for_jobs, steps_of

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
        outcomes: NodeResults,
        look: Callable[[Sequence[str], Request], PlanResult],
        request: Request,
    ) -> None:
        self._record = DrainRecord(cluster)
        self._cluster, self._results, self._look = cluster, outcomes, look
        self._disruptive = request.disruptive
        self._whole = not request.only
        """A plan of only some roles does not show whether a node has converged."""
        self._hooks: dict[str, NodeHook] = {}
        self._met: set[str] = set()
        """Whose turn has come."""
        self._own: set[str] = set()
        """Those that are drained, by us, for what this apply does."""
        self._cleared: set[str] = set()
        self._busy: dict[str, str] = {}
        """Nodes that have jobs according to their scheduler; a probe of the node may not show them."""
        self._stuck: list[str] = []
        self._spared: list[str] = []
        self._others: list[str] = []
        self._resumed: list[str] = []

    def left(self, result: PlanResult) -> dict[str, tuple[Step, ...]]:
        """Return the converged nodes, without a step, that an earlier apply left drained."""
        names = self._record.nodes if self._whole else ()
        return {name: () for name in names if name in result.facts and self._as_wanted(result, name, ())}

    def held_back(self, result: PlanResult) -> PlanResult:
        """Return the look with the steps of nodes waiting where a scheduler says that jobs run there."""
        plans = tuple(
            replace(
                plan, steps=tuple(replace(s, waits_for=s.waits_for or (self._busy[plan.name],)) for s in plan.steps)
            )
            if plan.name in self._busy
            else plan
            for plan in result.plan.nodes
        )
        return replace(result, plan=Plan(plans)) if self._busy else result

    def ready(
        self, result: PlanResult, agreed: Collection[str], later: Collection[str], request: Request
    ) -> PlanResult:
        """Drain those of the nodes that have a step that needs them idle, once each, and wait for their jobs to end.

        What is returned is a newer look where anything was drained: a job may have begun just before.
        """
        now = [
            name
            for name, steps in agreeable(result).items()
            if name in agreed and self._results.going(name) and disturbing([s for s in steps if s.role not in later])
        ]
        hooks = {name: hook for name in now if name not in self._met and (hook := self._hook(name))}
        self._met |= set(now)
        if hooks:
            waiting = {plan.name for plan in result.plan.nodes if any(step.waits_for for step in plan.steps)}
            self._drain(hooks, waiting)
            result = self._wait(hooks, agreed, request)
        full = [name for name in now if name in self._own and name not in self._cleared]
        idle = [name for name in full if self._results.going(name) and not self._waits(result, name)]
        self._cleared |= set(self._each(idle, "empty the node", NodeHook.clear))
        return result

    def resume(self, result: PlanResult, names: Collection[str], later: Collection[str] = ()) -> None:
        """Resume the nodes that we drained and that have converged according to `result`, apart from `later`."""
        self._record.read()  # as it is by now: an apply of others may have ended before this one began to change nodes
        mine = [name for name in self._record.nodes if name in names and name in result.facts]
        mine = [name for name in mine if self._results.going(name) and (self._whole or name in self._own)]
        due = [name for name in mine if self._as_wanted(result, name, later) and self._hook(name)]
        states = self._each(due, "resume the node", NodeHook.state)
        ours = [name for name, state in states.items() if state is None or (state.out and not state.others)]
        done = self._each(ours, "resume the node", NodeHook.resume)
        self._resumed += list(done)
        self._own -= set(done)
        self._forget([*done, *(name for name in states if name not in ours)])

    def tell(self, names: Collection[str]) -> None:
        """Report the drained and resumed nodes, and how to resume those that are still drained."""
        warnings = []
        if self._record.trouble:
            warnings.append(f"the nodes that earlier applies drained are unknown: {self._record.trouble}")
        if self._resumed:
            warnings.append(f"drained for this, and resumed: {', '.join(sorted(self._resumed))}")
        if self._others:
            warnings.append(f"drained by others before, and left so: {', '.join(sorted(self._others))}")
        if self._spared:
            first = ", ".join(self._stuck)
            warnings.append(f"not drained, because {first} still waits for jobs to end: {', '.join(self._spared)}")
        for name, entry in self._record.nodes.items():
            if name in names:
                where, how = KINDS.get(str(entry.get("kind")), "its scheduler"), ""
                with suppress(NodeError):
                    hook = self._made(name)
                    how = f"; to resume it by hand: {hook.resume_line()}" if hook else ""
                warnings.append(f"{name} stays drained in {where}: {self._why(name)}{how}")
        self._results.warnings += warnings

    def _why(self, name: str) -> str:
        if not self._results.going(name):
            return "something failed there"
        return "jobs run there" if name in self._stuck else "it has not converged yet"

    def _hook(self, name: str) -> NodeHook | None:
        """Return the hook of a node; one that cannot be made fails it."""
        try:
            return self._made(name)
        except NodeError as error:
            self._results.fail(name, "drain the node", error)
            return None

    def _made(self, name: str) -> NodeHook | None:
        if name not in self._hooks:
            node = self._cluster.node(name)
            hook = hook_of(name, node.variables, self._record.nodes.get(name))
            if hook is None:
                return None
            self._hooks[name] = NodeHook(node, hook)
        return self._hooks[name]

    def _drain(self, hooks: Mapping[str, NodeHook], waiting: Collection[str]) -> None:
        """Take the nodes out that are not; a node is written down before, so that no crash leaves it unknown."""
        states = self._each(list(hooks), "drain the node", NodeHook.state)
        before = set(self._record.nodes)
        wanted = []
        for name, state in states.items():
            if state and state.out:
                ours = name in before and not state.others
                (self._own.add if ours else self._others.append)(name)
            elif self._stuck and (name in waiting or self._has_jobs(name, state)):
                self._spared.append(name)
            else:
                wanted.append(name)
        self._forget([name for name in self._others if name in before])
        entries = {name: self._entry(hooks[name]) for name in wanted if name not in before}
        try:
            if entries:
                self._record.add(entries)
        except OSError as error:
            why = f"{self._record.path} cannot be written: {error.strerror}"
            text = f"it was not drained, because its resumption cannot be recorded: {why}"
            for name in entries:
                self._results.fail(name, "drain the node", NodeError(text, node=name, remedy="Make room there."))
            wanted = [name for name in wanted if name in before]
        unknown: list[str] = []

        def drain(hook: NodeHook) -> bool:
            try:
                return hook.drain(f"apply by {user()}")
            except NoAnswer:
                unknown.append(hook.node.name)
                raise

        done = self._each(wanted, "drain the node", drain)
        self._own |= {name for name, ours in done.items() if ours or name in before}
        self._others += [name for name, ours in done.items() if not ours and name not in before]
        self._forget([name for name in entries if name not in self._own and name not in unknown])

    @staticmethod
    def _entry(hook: NodeHook) -> dict[str, str]:
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return {"kind": hook.hook.kind, "name": hook.hook.name, "since": since, "user": user()}

    def _wait(self, hooks: Mapping[str, NodeHook], agreed: Collection[str], request: Request) -> PlanResult:
        """Check at once and then after pauses, until no job is left or the time limit of the inventory has passed."""
        started, pause = time.monotonic(), pauses()
        while True:
            self._ask_for_jobs([name for name in hooks if self._results.going(name)])
            result = self._look([name for name in agreed if self._results.going(name)], request)
            waiting = [name for name in hooks if self._results.going(name) and self._waits(result, name)]
            patience = max((hooks[name].hook.seconds for name in waiting if name not in self._spared), default=0)
            left = started + patience - time.monotonic()
            if not waiting or left <= 0:
                self._stuck += [name for name in waiting if name not in self._spared]
                return result
            time.sleep(min(next(pause), left))

    def _ask_for_jobs(self, names: Sequence[str]) -> None:
        states = self._each(names, "drain the node", NodeHook.state)
        self._busy = {name: job for name, job in self._busy.items() if name not in states}
        self._busy |= {
            name: f"jobs of the scheduler, which says {state.jobs}"
            for name, state in states.items()
            if state and self._has_jobs(name, state)
        }

    def _has_jobs(self, name: str, state: SchedulerState | None) -> bool:
        return bool(state and state.jobs and name not in self._disruptive)

    def _waits(self, result: PlanResult, name: str) -> bool:
        steps = steps_of(result, name)
        return name in self._busy or any(step.waits_for and for_jobs(result, name, step) for step in steps)

    def _as_wanted(self, result: PlanResult, name: str, later: Collection[str]) -> bool:
        """Return whether nothing is left to do on the node but what is kept for its owner."""
        left = [step for step in steps_of(result, name) if step.role not in later]
        return name not in self._busy and all(step.waits_for and not for_jobs(result, name, step) for step in left)

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
