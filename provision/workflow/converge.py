"""Apply the inventory to the nodes: probe, lock, run the planned roles, probe again, and report every node."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.commands.python_install import INSTALL_SECONDS, install_script
from provision.components import COMPONENTS, roles_to_load
from provision.errors import Interrupted, LockedError, NodeError, ProvisionError
from provision.local_files import temporary_folder
from provision.model import ApplyReport, Cluster, Node, Plan, Secret, Step, StepClass
from provision.model.reason import Reason
from provision.report.reasons import messages
from provision.workflow.draining import Draining
from provision.workflow.idle_steps import steps_to_confirm
from provision.workflow.inventory_state import inventory_lock, log_folder
from provision.workflow.kernel_upgrades import KernelUpgrades
from provision.workflow.node_results import NodeResults, history_entry
from provision.workflow.plan import PlanResult, Request, probe_and_plan
from provision.workflow.sources import write_fingerprints

if TYPE_CHECKING:
    from provision.connectors.base import Connector
    from provision.engine import Event
    from provision.workflow.node_locks import NodeLocks

_MOST_ROUNDS = 3
"""What one run brings to light may need another: a new image, and then a container made of it."""
_LAST = frozenset(role for role, component in COMPONENTS.items() if component.after_all_waves)
"""The roles that run once on all nodes, after the last wave."""


@dataclass(frozen=True)
class WaveOptions:
    """How many nodes are changed at once, and when to stop."""

    sizes: str | None = None
    """Sizes of the waves as ``1,10%,100%``; None: as `default_waves` returns them."""
    max_failures: int | None = None
    """How many failed nodes stop the apply. None: one in the first wave, a tenth of all nodes later."""
    keep_going: bool = False
    """Whether nodes without a problem are changed although the preflight failed on others."""
    only_planned: bool = False
    """Whether nodes without python3 get python3 and nothing else."""


def runnable(plan: Plan) -> dict[str, tuple[Step, ...]]:
    """Return for each node the steps that an apply would run: those that wait for nothing."""
    steps = {node.name: tuple(step for step in node.steps if not step.waits_for) for node in plan.nodes}
    return {name: pending for name, pending in steps.items() if pending}


def blocked(result: PlanResult) -> list[str]:
    """Return the nodes that an apply would change if their preflight had found no problem."""
    changing = steps_to_confirm(result)
    return [plan.name for plan in result.plan.nodes if plan.problems and plan.name in changing]


def apply(
    cluster: Cluster,
    nodes: Sequence[Node],
    *,
    request: Request | None = None,
    steps: Sequence[str] = (),
    waves: WaveOptions | None = None,
    result: PlanResult | None = None,
    become_password: Secret | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> ApplyReport:
    """Apply the inventory to `nodes`, and report every one of them.

    Runs the roles of the plan, or only the single `steps` of roles if these are given. `result` is the plan that was
    shown to the operator. Unreachable nodes are reported with their reason and do not affect the other nodes. If
    there is nothing to do, nothing is locked and nothing is written.

    If the plan has problems (see `preflight`), nothing is changed; with `WaveOptions.keep_going` the nodes without
    a problem are changed. The same applies to the preflight of nodes that get python3 first. With
    `WaveOptions.only_planned` these nodes get only python3, because the operator has not seen their further steps.

    Raises:
        LockedError: another apply is at work on the inventory or on one of the nodes; the message says whose.
    """
    options = _Options(request or Request(), tuple(steps), waves or WaveOptions(), become_password)
    return _Apply(cluster, nodes, options, on_event).run(result)


@dataclass(frozen=True)
class _Options:
    """What one apply is to do."""

    request: Request
    steps: tuple[str, ...]
    waves: WaveOptions
    become_password: Secret | None

    def command(self) -> str:
        """Return the command that other operators see."""
        words = [f"--only {name}" for name in (*self.request.only, *self.steps)]
        words += [f"--force {name}" for name in self.request.forced]
        words += ["--reboot"] * self.request.reboot
        return " ".join(["provision apply", *words])


class _Apply:
    """One apply."""

    def __init__(
        self, cluster: Cluster, nodes: Sequence[Node], options: _Options, on_event: Callable[[Event], None] | None
    ) -> None:
        self._cluster = cluster
        self._nodes = {node.name: node for node in nodes}
        self._options = options
        self._on_event = on_event
        self._results = NodeResults(list(self._nodes))
        self._draining = Draining(cluster, self._results, self._probe_and_record, options.request)
        self._upgrades = KernelUpgrades(cluster, self._results, self._probe, options.request, on_event)
        self._hint = f"Read the newest log in {log_folder(cluster)}; provision verify shows more."

    def run(self, result: PlanResult | None) -> ApplyReport:
        """Do it all."""
        if result:
            self._results.add_seconds(result.seconds)
        result = result or self._probe(list(self._nodes), self._options.request)
        self._record_probe(result)
        confirmed = self._steps_to_run(result)
        failed = self._refuse_blocked(result)
        if failed and not self._options.waves.keep_going:
            self._results.skip([name for name in confirmed if name not in failed], *_refused(failed))
            return self._results.report()
        confirmed = {name: steps for name, steps in confirmed.items() if name not in failed}
        if not confirmed:
            self._draining.report(self._nodes)
            return self._results.report()
        from provision.workflow import history

        command = self._options.command()
        if before := history.interrupted(self._cluster):
            self._results.warnings.append(f"{before.describe()} was cut short; this apply takes up what it left")
        with inventory_lock(self._cluster, command) as warnings:
            self._results.warnings += warnings
            entry = history.begin(self._cluster, command=command, nodes=list(confirmed))
            status = "interrupted"
            try:
                self._locked(self._install_python(result, confirmed), command)
                report = self._results.report()
                status = "ok" if report.ok else "waiting" if report.only_waits else "failed"
            except Interrupted:
                raise
            except ProvisionError as error:
                status = "refused" if isinstance(error, LockedError) else "failed"
                raise
            finally:
                nodes = {name: history_entry(self._results.of(name)) for name in confirmed}
                seconds = self._results.report().seconds
                warning = history.end(entry, status=status, seconds=seconds, nodes=nodes)
                self._results.warnings += [warning] if warning else []
        return self._results.report()

    def _probe(self, names: Sequence[str], request: Request, task: str = "probe") -> PlanResult:
        self._send_events(names, task, "start")
        result = probe_and_plan(self._cluster, [self._nodes[name] for name in names], request)
        self._send_events(names, task, "ok")
        return self._draining.with_scheduler_jobs(result)

    def _send_events(self, names: Sequence[str], task: str, status: str) -> None:
        if self._on_event:
            from provision.engine import Event

            for name in names:
                self._on_event(Event(name, None, task, status))

    def _probe_and_record(self, names: Sequence[str], request: Request, task: str = "probe") -> PlanResult:
        """Probe nodes while their roles run, and record the result."""
        result = self._probe(names, request, task)
        self._record_probe(result)
        return result

    def _record_probe(self, result: PlanResult) -> None:
        """Record a probe result, and report lost nodes at once."""
        lost = self._results.add_probe(result)
        if self._on_event and lost:
            from provision.engine import Event

            for name, status in lost.items():
                self._on_event(Event(name, None, "connect", status.value))

    def _steps_to_run(self, result: PlanResult) -> dict[str, tuple[Step, ...]]:
        """Return node -> roles to run; with single steps of roles, all usable nodes.

        A converged node that an earlier apply left drained has nothing to run: it is resumed.
        """
        if self._options.steps:
            return {plan.name: () for plan in result.plan.nodes if plan.name not in result.errors}
        left = self._draining.left_drained(result) | self._upgrades.unfinished(result)
        return left | steps_to_confirm(result)

    def _refuse_blocked(self, result: PlanResult) -> list[str]:
        """Record the nodes whose preflight found problems, and return them."""
        failed = blocked(result)
        for plan in result.plan.nodes:
            if plan.name in failed and self._results.can_continue(plan.name):
                self._results.refuse(plan)
        return failed

    def _install_python(
        self, result: PlanResult, confirmed: Mapping[str, tuple[Step, ...]]
    ) -> dict[str, tuple[Step, ...]]:
        """Install python3 on nodes without it; return the steps of all nodes that remain to be run.

        The steps of the nodes without python3 are known only afterwards. Nodes where the installation fails are left
        out. If the preflight of the new steps fails, no steps remain, except with `WaveOptions.keep_going`.
        """
        names = [name for name in confirmed if name not in result.facts and name not in result.errors]
        others = {name: steps for name, steps in confirmed.items() if name not in names}
        if not names:
            return others
        self._send_events(names, "install python3", "start")
        for name, error in _python_failures([self._nodes[name] for name in names]).items():
            self._results.fail(name, "install python3", error)
            self._send_events([name], "install python3", "failed")
        names = [name for name in names if self._results.can_continue(name)]
        self._send_events(names, "install python3", "ok")
        for name in names:
            self._results.changed(name, confirmed[name])
        if self._options.waves.only_planned:
            self._results.warnings += map(_only_python, names)
            names = []
        if not names:
            return others
        from provision.workflow.apply_preflight import preflight

        result = preflight(self._probe_and_record(names, self._options.request))
        failed = self._refuse_blocked(result)
        steps = others | self._steps_to_run(result)
        remaining = {name: mine for name, mine in steps.items() if name not in failed}
        if failed and not self._options.waves.keep_going:
            self._results.skip(remaining, *_refused(failed))
            return {}
        return remaining

    def _locked(self, confirmed: Mapping[str, tuple[Step, ...]], command: str) -> None:
        """Take the locks of the nodes, probe again (another apply may have ended just now), and run."""
        from provision.workflow import node_locks

        nodes = [self._nodes[name] for name in confirmed]
        with node_locks.acquire(nodes, command=command, on_event=self._on_event) as locks:
            node_locks.raise_refusals(locks.refused)
            for name, error in locks.failed.items():
                self._results.fail(name, "lock the node", error)
            names = [name for name in confirmed if self._results.can_continue(name)]
            result = self._probe(names, self._options.request) if names else None
            if result:
                self._record_probe(result)
                self._run(result, {name: confirmed[name] for name in names}, locks)
                self._upgrades.resume()
                self._draining.report(self._nodes)
            for name in confirmed:
                if name not in locks.failed:
                    locks.finish(name, history_entry(self._results.of(name)))
        self._results.warnings += [f"{name}: {text}" for name, text in locks.warnings.items()]

    def _run(self, result: PlanResult, confirmed: Mapping[str, tuple[Step, ...]], locks: NodeLocks) -> None:
        if self._options.steps:
            self._play(result, {name: () for name in confirmed if self._results.can_continue(name)}, locks)
            return
        from provision.planning.waves import canary_wave, too_many_failures

        if self._upgrades.settle(result, confirmed, locks):
            result = self._probe_and_record(
                [n for n in confirmed if self._results.can_continue(n)], self._options.request
            )
        self._draining.resume(result, confirmed)
        confirmed = {name: steps for name, steps in confirmed.items() if steps}
        made = self._waves(result, confirmed)
        canary = canary_wave(result.cluster, confirmed)
        last_roles = _LAST if len(made) > 1 else frozenset()
        request = self._options.request
        for number, wave in enumerate(made, 1):
            self._rounds(result, {name: confirmed[name] for name in wave}, last_roles, locks, request)
            failed = [name for name in confirmed if not self._results.can_continue(name)]
            most = self._options.waves.max_failures
            if number < len(made) and (
                too_many_failures(len(failed), len(confirmed), most, after_canary=number > canary)
                or (self._upgrades.failed and most is None)
            ):
                left = [name for names in made[number:] for name in names]
                self._results.skip(left, *_stopped(failed, number, len(made)))
                return
        if last_roles:
            names = [name for name in confirmed if self._results.can_continue(name)]
            request = replace(request, forced=())
            last = self._probe_and_record(names, request)
            self._rounds(last, runnable(last.plan), frozenset(), locks, request)

    def _waves(self, result: PlanResult, confirmed: Mapping[str, Sequence[Step]]) -> tuple[tuple[str, ...], ...]:
        """Return the nodes in waves, first those that are rebooted.

        Nodes that others depend on, such as the package cache, are a wave of their own.
        """
        from provision.planning.waves import before_others, default_waves, wave_sizes, waves

        reboots = {n for n, steps in confirmed.items() if any(s.step_class is StepClass.NEEDS_REBOOT for s in steps)}
        names = sorted(confirmed, key=lambda name: name not in reboots)
        classes = {step.step_class for steps in confirmed.values() for step in steps}
        sizes = self._options.waves.sizes or default_waves(classes, provisioned=any(map(result.provisioned, names)))
        first = {name for component in COMPONENTS.values() for name in component.first_nodes(result.cluster)}
        early = before_others(result.cluster, confirmed)
        names = sorted((name for name in names if name not in early), key=lambda name: name not in first)
        nodes = [result.cluster.node(name) for name in names]
        later = waves(nodes, wave_sizes(sizes, len(names))) if nodes else ()
        return (early, *later) if early else later

    def _rounds(
        self,
        result: PlanResult,
        confirmed: Mapping[str, tuple[Step, ...]],
        last_roles: frozenset[str],
        locks: NodeLocks,
        request: Request,
    ) -> None:
        """Run the confirmed steps that are still needed, and steps that follow from them; probe after each run."""
        tried: set[tuple[str, str, tuple[Reason, ...]]] = set()
        for number in range(_MOST_ROUNDS):
            result = self._draining.ready(result, confirmed, last_roles, request)
            wanted: dict[str, tuple[Step, ...]] = {}
            for name, steps in runnable(result.plan).items():
                roles = {step.role for step in confirmed.get(name, ())}
                left = tuple(
                    step
                    for step in steps
                    if step.role not in last_roles
                    and (name, step.role, step.reasons) not in tried
                    and (number or step.role in roles)
                )
                if left and name in confirmed and self._results.can_continue(name):
                    wanted[name] = left
            if not wanted:
                break
            wanted = self._upgrades.begin(result, wanted, request)
            if not wanted:
                break
            tried |= {(name, step.role, step.reasons) for name, steps in wanted.items() for step in steps}
            self._play(result, wanted, locks)
            self._upgrades.finish(wanted, request, locks)
            names = [name for name in confirmed if self._results.can_continue(name)]
            if not names:
                break
            request = replace(request, forced=())
            result = self._probe_and_record(names, request, "final probe")
        self._results.judge(confirmed, last_roles=last_roles, hint=self._hint)
        self._upgrades.resume()
        self._draining.resume(result, confirmed, last_roles)

    def _play(self, result: PlanResult, wanted: Mapping[str, tuple[Step, ...]], locks: NodeLocks) -> None:
        """Run Ansible once."""
        from provision import engine
        from provision.inventory.settings import reading_environment
        from provision.planning.stack_lock import lock_variables

        for name, why in locks.lost().items():
            if name in wanted and self._results.can_continue(name):
                remedy = "Apply again when the node answers."
                self._results.fail(
                    name, "hold the lock", NodeError(f"the lock was lost: {why}", remedy=remedy), lost=True
                )
        wanted = {name: steps for name, steps in wanted.items() if self._results.can_continue(name)}
        if not wanted:
            return
        roles = {name: [step.role for step in steps] for name, steps in wanted.items()}
        for name in wanted:
            locks.note(name, "run " + ", ".join(roles[name] or self._options.steps))
        log = log_folder(self._cluster) / f"apply-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.log"
        planned = {role for names in roles.values() for role in names}
        with temporary_folder() as folder:
            write_fingerprints(Path(folder), result, list(wanted))
            variables: dict[str, Any] = {
                "_platform_fingerprints_folder": folder,
                "_platform_disruptive": sorted(self._options.request.disruptive),
                "_platform_preserved": {name: result.preserved[name] for name in wanted if name in result.preserved},
                "_platform_lock": lock_variables(self._cluster),
            }
            report = engine.run_playbook(
                self._cluster.inventory,
                list(wanted),
                tags=self._options.steps or sorted(planned),
                roles=None if self._options.steps else roles_to_load(planned),
                variables=variables if self._options.steps else variables | {"_platform_steps": roles},
                become_password=self._options.become_password,
                environment=reading_environment(),
                on_event=self._on_event,
                log=log,
            )
        reasons = {
            name: {step.role: tuple(messages(step.reasons, name)) for step in steps} for name, steps in wanted.items()
        }
        self._results.ran(report, reasons)


def _only_python(name: str) -> str:
    """Return the warning that the steps after the installation of python3 are not in the saved plan."""
    return f"{name}: python3 was installed; the further steps are not in the saved plan. Create a new plan for them."


def _refused(failed: Sequence[str]) -> tuple[str, str]:
    """Return why nodes without a problem of their own are skipped, and what to do."""
    from provision.report.node_names import in_short

    why = f"not started, because the preflight failed on {in_short(failed)}"
    return why, "Fix the problems, or apply to the other nodes with --keep-going."


def _stopped(failed: Sequence[str], number: int, waves: int) -> tuple[str, str]:
    """Return why the nodes of later waves are skipped, and what to do."""
    from provision.report.node_names import in_short

    why = f"not started, because {in_short(failed)} failed and the apply stopped after wave {number} of {waves}"
    return why, f"Fix {in_short(failed)}, then apply again."


def _python_failures(nodes: Sequence[Node]) -> dict[str, ProvisionError]:
    """Install python3 on all nodes in parallel, and return the errors of those where that failed.

    The locks of the nodes need python3, so they cannot be held here. If two operators install it at the same time, the
    locks of the package manager serialize them.
    """
    from provision.connectors import each
    from provision.facts import proxies
    from provision.planning.requirements import repositories_of

    scripts: dict[str, str] = {}
    failures: dict[str, ProvisionError] = {}
    for node in nodes:
        repositories = map(asdict, repositories_of((), node.variables, {}))
        try:
            scripts[node.name] = install_script(proxies(node.variables), tuple(repositories))
        except ValueError as error:
            remedy = "Correct platform_extra_repositories in the inventory, then apply again."
            failures[node.name] = NodeError(f"python3 cannot be installed ({error})", node=node.name, remedy=remedy)
    prepared = [node for node in nodes if node.name in scripts]
    results = each(prepared, lambda connector: _install_python(connector, scripts[connector.name]))
    return failures | {name: result for name, result in results.items() if isinstance(result, ProvisionError)}


def _install_python(connector: Connector, script: str) -> None:
    result = connector.run(script, timeout=INSTALL_SECONDS)
    if not result.ok:
        raise NodeError(
            "python3 cannot be installed",
            node=connector.name,
            output=result.last_lines(),
            remedy="Correct the node's package sources, or install python3 there, then apply again. "
            "With yum, platform_extra_repositories can name a repository that has python3.",
        )
