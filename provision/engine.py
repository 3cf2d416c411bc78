"""Run Ansible playbooks with ansible-runner and turn its events into a report.

No other module uses ansible-runner. It writes to a private folder that is removed afterwards, because its ``env/``
files and ``artifacts/*/command`` contain variables and passwords.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from provision import yamltext
from provision.commands.ssh import explain_ssh
from provision.documents import printable_line, printable_text
from provision.errors import Interrupted, ProvisionError
from provision.local_files import temporary_folder, write_private
from provision.local_processes import end_descendants
from provision.model import ApplyReport, Difference, Failure, NodeReport, NodeStatus, RoleReport, RoleStatus, Secret
from provision.report.remedies import BY_CODE, remedy_for
from provision.resources import playbooks_folder

LOCAL_ACTIONS = frozenset({
    "add_host", "assert", "debug", "fail", "group_by", "import_role", "import_tasks", "include_role",
    "include_tasks", "include_vars", "meta", "pause", "set_fact", "validate_argument_spec",
})  # fmt: skip
"""Actions that run on the controller only. They are not counted as tasks of a node."""


_EVENT_LIMIT = 262_144
"""Maximum number of characters of one event's text."""
_OUTPUT_LIMIT = 64 * 1024 * 1024
"""Maximum number of characters of a run's output in its log."""
_SHOWN_AS_CHANGED = re.compile(r"(\x1b\[[0-9;]*m)*changed: \[")

_OUTPUTS = ("stderr", "module_stderr", "stdout")
"""Fields of a task result with the output of programs, most useful first."""

_LAST_PLAY = "Nodes that came to the end"
"""Name of the last play. Ansible reports nothing about a node that it stops because another node failed (`run_once`,
or a batch that failed as a whole). A node without a result of this play was stopped."""


@dataclass(frozen=True)
class Event:
    """An event of a task on a node, reported while the playbook runs."""

    node: str
    role: str | None
    task: str
    status: str
    """``start``, ``ok``, ``changed``, ``skipped``, ``failed`` or ``unreachable``; ``waiting`` before Ansible starts."""


@dataclass
class _Seen:
    roles: dict[str, RoleStatus] = field(default_factory=dict)
    reasons: dict[str, list[str]] = field(default_factory=dict)
    changed: bool = False
    tasks: int = 0
    error: Failure | None = None
    unreachable: bool = False
    role: str | None = None
    failed_at: int = 0
    """Number of the event at which the node failed."""
    last: int = 0
    """Number of its last event, without handlers, which run on stopped nodes too."""


class Collector:
    """Builds the report from the events of ansible-runner. It has no side effects, so recorded events can test it."""

    def __init__(
        self, nodes: Sequence[str], on_event: Callable[[Event], None] | None = None, *, compare: bool = False
    ) -> None:
        self._seen = {name: _Seen() for name in nodes}
        self._on_event = on_event or (lambda _event: None)
        self._events = 0
        self._handlers: set[str] = set()
        self._at_the_end: set[str] = set()
        self._compare = compare
        self._differences: list[Difference] = []
        self.finished = False
        self.output: list[str] = []
        self._characters = 0
        """Number of characters in `output`."""

    def handle(self, event: Mapping[str, Any]) -> bool:
        """Process one event. The return value False prevents ansible-runner from writing it to disk."""
        kind = str(event.get("event", ""))
        data = _mapping(event.get("event_data"))
        if data.get("play") == _LAST_PLAY and kind != "playbook_on_stats":
            if kind == "runner_on_ok":
                self._at_the_end.add(str(data.get("host")))
            return False
        text = str(event.get("stdout") or "")[:_EVENT_LIMIT]
        if text and self._characters < _OUTPUT_LIMIT:
            self.output.append(text)
            self._characters += len(text)
        if kind == "playbook_on_stats":
            self.finished = True
        if kind == "playbook_on_handler_task_start":
            self._handlers.add(str(data.get("task_uuid")))
        host = data.get("host")
        if host in self._seen and kind.startswith("runner_on_"):
            self._host_event(kind.removeprefix("runner_on_"), str(host), data, text)
        return False

    def _host_event(self, kind: str, host: str, data: Mapping[str, Any], shown: str) -> None:
        seen, role, task = self._seen[host], data.get("role"), str(data.get("task") or "")
        result = _mapping(data.get("res"))
        self._events += 1
        if data.get("task_uuid") not in self._handlers:
            seen.last = self._events
        if kind == "ok":
            # For a task with no_log, ansible-runner provides the line that Ansible prints, but no result.
            changed = bool(result.get("changed") or ("censored" in result and _SHOWN_AS_CHANGED.match(shown)))
            action = str(data.get("task_action", "")).rsplit(".", 1)[-1]
            seen.tasks += action not in LOCAL_ACTIONS and not result.get("on_controller")
            self._note(seen, role, task, changed=changed)
            if changed and role and self._compare:
                self._differences += _differences(host, role, task.split(" : ", 1)[-1], result)
            self._report_event(host, role, task, "changed" if changed else "ok")
        elif kind == "skipped":
            seen.roles.setdefault(role, RoleStatus.SKIPPED) if role else None
            self._report_event(host, role, task, "skipped")
        elif kind == "failed" and not data.get("ignore_errors"):
            seen.error = self._failure(role, task, result)
            seen.failed_at = self._events
            if role:
                seen.roles[role] = RoleStatus.FAILED
            self._report_event(host, role, task, "failed")
        elif kind == "unreachable":
            seen.unreachable = True
            seen.failed_at = self._events
            seen.role = role
            if role:
                seen.roles[role] = RoleStatus.FAILED
            full = _without_secrets(str(result.get("msg") or "").strip())
            message = _lost(full)
            seen.error = Failure(role, task.split(" : ", 1)[-1], message, full, remedy_for(full, message))
            self._report_event(host, role, task, "unreachable")
        elif kind == "start":
            self._report_event(host, role, task, "start")

    @staticmethod
    def _note(seen: _Seen, role: str | None, task: str, *, changed: bool) -> None:
        """Record a successful task; it replaces a failure that was rescued."""
        seen.changed |= changed
        if not role:
            return
        if changed:
            seen.reasons.setdefault(role, []).append(task.split(" : ", 1)[-1])
        if changed or seen.roles.get(role) is RoleStatus.CHANGED:
            seen.roles[role] = RoleStatus.CHANGED
        else:
            seen.roles[role] = RoleStatus.UNCHANGED

    @staticmethod
    def _failure(role: str | None, task: str, result: Mapping[str, Any]) -> Failure:
        shown = {key: _without_secrets(str(result.get(key) or "")) for key in ("msg", *_OUTPUTS)}
        message = _first_line(shown["msg"]) or "the task failed"
        details = [shown[key] for key in _OUTPUTS if shown[key]]
        full = shown["msg"].strip()
        output = "\n".join("\n".join([full, *details]).strip().splitlines()[-10:])
        code = str(result.get("reason") or "")
        remedy = remedy_for(full, *details, code=code)
        return Failure(role, task.split(" : ", 1)[-1], message, output, remedy, code if code in BY_CODE else "")

    def _report_event(self, node: str, role: str | None, task: str, status: str) -> None:
        self._on_event(Event(node, role, task.split(" : ", 1)[-1], status))

    def settle(self, failed: Mapping[str, int], unreachable: Mapping[str, int], changed: Mapping[str, int]) -> None:
        """Apply the final counts: a failure that a rescue block handled is not a failure of the node."""
        for name, seen in self._seen.items():
            seen.changed |= bool(changed.get(name))
            if seen.error and not failed.get(name) and not unreachable.get(name):
                seen.error = None
                seen.roles = {r: RoleStatus.CHANGED if s is RoleStatus.FAILED else s for r, s in seen.roles.items()}

    def mark_stopped(self) -> None:
        """Mark nodes that did not reach the last play without a failure of their own: other nodes stopped them."""
        failures = sorted((s.failed_at, name) for name, s in self._seen.items() if s.error and s.failed_at)
        stopped = [name for name, seen in self._seen.items() if not seen.error and name not in self._at_the_end]
        for seen in map(self._seen.__getitem__, stopped):
            after = [other for at, other in failures if at > seen.last] or [other for _, other in failures[-1:]]
            self._stop(seen, after[0] if after else None)

    def _stop(self, seen: _Seen, by: str | None) -> None:
        cause = self._seen[by].error if by else None
        if by is None or cause is None:
            text = "Ansible stopped before the end of this node's tasks without a reason"
            seen.error = Failure(None, "the end of the playbook", text, "", "Read the log of the run.")
            return
        if cause.role:
            seen.roles[cause.role] = RoleStatus.SKIPPED
        remedy = f"Fix {by} and apply again, or exclude it: --limit '!{by}'."
        seen.error = Failure(cause.role, cause.task, f"stopped: this failed on {by}: {cause.message}", "", remedy)

    def report(self, seconds: float) -> ApplyReport:
        """Return the report of all events so far."""
        nodes = tuple(self._node(name, seen) for name, seen in self._seen.items())
        tasks = max((s.tasks for s in self._seen.values()), default=0)
        return ApplyReport(nodes, round(seconds, 1), tasks, differences=tuple(self._differences))

    @staticmethod
    def _node(name: str, seen: _Seen) -> NodeReport:
        if seen.unreachable:
            status = NodeStatus.UNREACHABLE
        elif seen.error:
            status = NodeStatus.FAILED
        else:
            status = NodeStatus.CHANGED if seen.changed else NodeStatus.UNCHANGED
        roles = tuple(RoleReport(r, s, tuple(seen.reasons.get(r, ()))) for r, s in seen.roles.items())
        return NodeReport(name, status, roles, seen.error)


def _differences(node: str, role: str, task: str, result: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the differences that a changing task reports: one entry or a list of entries for each item."""
    items = result.get("results")
    parts = [result, *(item for item in items if isinstance(item, Mapping))] if isinstance(items, list) else [result]
    for part in parts:
        if "censored" in part:
            yield Difference(node, role, task, withheld="it may contain secrets")
        diffs = part.get("diff") or ()
        for entry in diffs if isinstance(diffs, list) else [diffs]:
            if not isinstance(entry, Mapping) or (part is not result and not part.get("changed")):
                continue
            path = str(entry.get("after_header") or entry.get("before_header") or task)
            if "before" in entry or "after" in entry:
                before, after = _content(entry.get("before")), _content(entry.get("after"))
                if before != after:
                    yield Difference(node, role, path, before, after)
            elif entry.get("prepared"):
                yield Difference(node, role, path, "", _content(entry["prepared"]))
            elif entry:
                yield Difference(node, role, path, withheld="it is binary or too large")


def _content(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, indent=2, sort_keys=True, default=str) + "\n"


def run_playbook(  # noqa: PLR0913 - the options of a run of Ansible
    inventory: Path,
    nodes: Sequence[str],
    *,
    playbook: str = "site.yml",
    tags: Sequence[str] = (),
    roles: Collection[str] | None = None,
    variables: Mapping[str, Any] | None = None,
    become_password: Secret | None = None,
    environment: Mapping[str, str] | None = None,
    on_event: Callable[[Event], None] | None = None,
    log: Path | None = None,
    check: bool = False,
) -> ApplyReport:
    """Run a playbook on exactly `nodes` and report per node and role.

    With `roles`, `tags` are names of roles: plays without them are left out, and the other plays contain `roles` only.
    Ansible needs almost as much processor time for a task that a node skips as for one that it runs.
    `variables` are passed to Ansible in a private file. `environment` contains the variables with which Ansible reads
    the inventory as the operator's own Ansible does. Relative paths in it are relative to the current folder.
    With `check` nothing is changed, and the report contains the differences.

    Raises:
        ProvisionError: Ansible could not run.
        Interrupted: Ctrl-C was pressed.
    """
    collector = Collector(nodes, on_event, compare=check)
    started = time.monotonic()
    with temporary_folder() as private:
        limit = Path(private, "limit")
        limit.write_text("\n".join(nodes) + "\n")
        whole = _with_roll_call(Path(private), playbooks_folder() / playbook, tags, roles)
        arguments = ["--limit", f"@{limit}", *(["--tags", ",".join(tags)] if tags else [])]
        arguments += ["--check", "--diff"] if check else []
        if variables:
            given = Path(private, "variables.json")
            given.touch(mode=0o600)
            given.write_text(json.dumps(variables))
            arguments += ["--extra-vars", f"@{given}"]
        arguments += ["--ask-become-pass"] if become_password else []
        own = dict(environment or {})
        outcome = _run(private, str(whole), inventory, arguments, become_password, collector, own)
    trouble = _write_log(log, collector.output)
    if outcome.interrupted:
        done = "nothing was changed" if check else "finished tasks remain in effect; the next apply completes the rest"
        raise Interrupted(f"interrupted; {done}")
    if not collector.finished:
        raise ProvisionError(
            f"Ansible stopped before it had finished ({outcome.status}, exit code {outcome.code})",
            output="\n".join(_without_secrets("\n".join(collector.output)).splitlines()[-15:]) or outcome.text,
            remedy="Read the lines above, or run `ansible-playbook` in playbooks/ for more details.",
        )
    collector.mark_stopped()
    return replace(collector.report(time.monotonic() - started), warnings=(trouble,) if trouble else ())


def _with_roll_call(private: Path, playbook: Path, tags: Sequence[str], roles: Collection[str] | None) -> Path:
    """Write a playbook that runs `playbook`, and then one task on every node that has not failed."""
    task = {"name": "Answer", "ansible.builtin.assert": {"that": [True], "quiet": True}, "become": False}
    last = {"name": _LAST_PLAY, "hosts": "all", "gather_facts": False, "tags": ["always"], "tasks": [task]}
    whole = private / "whole.yml"
    plays = [{"import_playbook": str(playbook.resolve())}] if roles is None else _plays(playbook, tags, roles)
    whole.write_text(json.dumps([*plays, last]))
    return whole


def _plays(playbook: Path, planned: Collection[str], roles: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield the plays that have any of the planned roles, with `roles` and the roles without tags, which always run."""
    for play in yamltext.safe_load(playbook.read_text(encoding="utf-8")):
        if "import_playbook" in play:
            yield from _plays(playbook.parent / play["import_playbook"], planned, roles)
        elif any(entry["role"] in planned for entry in play["roles"]):
            entries = [entry for entry in play["roles"] if entry["role"] in roles or "tags" not in entry]
            yield {**play, "roles": entries}


@dataclass(frozen=True)
class _Outcome:
    status: str
    code: int
    text: str
    interrupted: bool


def _run(
    private: str,
    playbook: str,
    inventory: Path,
    arguments: list[str],
    become_password: Secret | None,
    collector: Collector,
    environment: dict[str, str],
) -> _Outcome:
    import ansible_runner

    cancelled, ended = threading.Event(), threading.Event()
    result: list[Any] = []

    def handle(event: Mapping[str, Any]) -> bool:
        if event.get("event") == "playbook_on_stats":
            data = event.get("event_data") or {}
            collector.settle(*(data.get(key) or {} for key in ("failures", "dark", "changed")))
        return collector.handle(event)

    def work() -> None:
        try:
            result.append(
                ansible_runner.run(
                    private_data_dir=private,
                    project_dir=str(Path.cwd()),
                    playbook=playbook,
                    inventory=str(inventory.resolve()),
                    cmdline=_join(arguments),
                    envvars=environment | _environment(playbooks_folder()),
                    passwords={r"^BECOME password.*:\s*?$": become_password.reveal()} if become_password else None,
                    event_handler=handle,
                    cancel_callback=cancelled.is_set,
                    quiet=True,
                    suppress_env_files=become_password is not None,
                )
            )
        finally:
            ended.set()

    threading.Thread(target=work, daemon=True).start()
    # Not Thread.join: after a Ctrl-C in it, Python 3.11 considers the thread finished.
    interrupted = False
    while not ended.is_set():
        try:
            ended.wait(timeout=0.5)
            if cancelled.is_set():
                end_descendants()
        except KeyboardInterrupt:
            interrupted = True
            cancelled.set()
    if not result:
        return _Outcome("failed", 1, "", interrupted)
    return _Outcome(str(result[0].status), int(result[0].rc or 0), "", interrupted)


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment for Ansible: this interpreter's installation, with the playbooks' ansible.cfg."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {
        "PATH": path,
        "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
        "ANSIBLE_FORCE_COLOR": "0",
        "ANSIBLE_NOCOLOR": "1",  # ansible-runner runs Ansible in a terminal, which would add colors to the log
        # Without this variable ansible-runner disables the check of host keys, even if ansible.cfg enables it.
        "ANSIBLE_HOST_KEY_CHECKING": "True",
    }


def _join(arguments: Sequence[str]) -> str:
    import shlex

    return shlex.join(arguments)


def _write_log(log: Path | None, lines: Sequence[str]) -> str:
    """Write the log and return the warnings. A failure is only a warning, because the report matters more."""
    if log is None:
        return ""
    try:
        _keep_log(log, _without_secrets("\n".join(lines)))
    except OSError as error:
        return f"the log of this run could not be written to {log}: {error.strerror}"
    return ""


def _keep_log(log: Path, text: str) -> None:
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(log, text + "\n")
    for old in sorted(log.parent.glob("apply-*.log"))[:-20]:
        old.unlink(missing_ok=True)


def _lost(text: str) -> str:
    """Return why Ansible's ssh has no connection to a node: it was refused or lost."""
    problem = explain_ssh(text)
    if problem.kind in {"login", "unknown-key", "changed-key", "resolve"}:
        return f"Ansible could not log in: {problem.last_line}"
    return f"the connection to the node was lost: {_first_line(text)}"


def _without_secrets(text: str) -> str:
    from provision.report.redaction import Redactor

    return Redactor().text(text)


def _mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping in an event, whose content modules on nodes provide."""
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    """Return a text from a module on a node, limited to a readable length."""
    return printable_text(str(value or "")[-_EVENT_LIMIT:])


def _first_line(message: Any) -> str:
    lines = (line.strip() for line in str(message or "")[:_EVENT_LIMIT].splitlines())
    return printable_line(next(filter(None, lines), ""))
