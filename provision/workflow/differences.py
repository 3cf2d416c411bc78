"""What the steps of a plan would change in files: Ansible's check mode for just these steps, without secrets."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.components import roles_to_load
from provision.errors import Interrupted, ProvisionError
from provision.facts import Unknown
from provision.facts.managed import FOLDER
from provision.local_files import temporary_folder
from provision.model import ApplyReport, Cluster, Difference, FileDiff, NodeReport, RoleDiff, RoleStatus, Secret
from provision.workflow.bundle import known_secrets
from provision.workflow.plan import PlanResult
from provision.workflow.sources import write_fingerprints

if TYPE_CHECKING:
    from provision.engine import Event
    from provision.facts import NodeFacts
    from provision.report.redaction import Redactor

_MOST_CHARACTERS = 500_000
"""Of one file; to compare more takes longer than to run the step."""
_HIDDEN = "content is not shown, because it may contain secrets"
_OTHERS_READ = 0o004


def content_differences(
    cluster: Cluster,
    result: PlanResult,
    *,
    become_password: Secret | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> tuple[RoleDiff, ...]:
    """Return what each step of the plan would change in files, whether it waits for jobs or not.

    Nothing is changed on a node and no lock is taken; Ansible writes temporary files there. What cannot be compared
    is said in the role's note. A role is in it that is no step, where it does something for those that are: platform
    installs the packages of all.
    """
    from provision.report.redaction import Redactor

    wanted = {node.name: [step.role for step in node.steps] for node in result.plan.nodes if node.steps}
    if not wanted:
        return ()
    redactor = Redactor(known_secrets(cluster))
    try:
        report = _compare(cluster, result, wanted, become_password, on_event)
    except Interrupted:
        raise
    except ProvisionError as error:
        note = f"could not be compared: {redactor.text(error.message)}"
        return tuple(RoleDiff(name, role, note=note) for name, roles in wanted.items() for role in roles)
    files: dict[tuple[str, str], list[FileDiff]] = {}
    for each in report.differences:
        if not each.path.startswith(f"{FOLDER}/"):  # a receipt is written in any case
            private = _is_private(result.facts.get(each.node), each.path)
            shown = files.setdefault((each.node, each.role), [])
            if (difference := _shown_difference(each, redactor, private=private)) not in shown:
                shown.append(difference)
    return tuple(
        RoleDiff(
            node.name,
            role,
            tuple(files.get((node.name, role), ())),
            redactor.text(_note(node, role, wanted[node.name])),
        )
        for node in report.nodes
        for role in _in_order(wanted[node.name], [role for name, role in files if name == node.name])
    )


def _compare(
    cluster: Cluster,
    result: PlanResult,
    wanted: Mapping[str, Sequence[str]],
    become_password: Secret | None,
    on_event: Callable[[Event], None] | None,
) -> ApplyReport:
    """Run Ansible in check mode; without a log, because secrets would be in it."""
    from provision import engine
    from provision.inventory.settings import reading_environment
    from provision.planning.stack_lock import lock_variables

    planned = {role for roles in wanted.values() for role in roles}
    with temporary_folder() as folder:
        write_fingerprints(Path(folder), result, list(wanted))
        variables: dict[str, Any] = {
            "_platform_fingerprints_folder": folder,
            "_platform_steps": {name: list(roles) for name, roles in wanted.items()},
            "_platform_preserved": {name: result.preserved[name] for name in wanted if name in result.preserved},
            "_platform_lock": lock_variables(cluster),
            "_platform_disruptive": sorted(wanted),  # a role that waits for a job would refuse; here it disturbs none
        }
        return engine.run_playbook(
            cluster.inventory,
            list(wanted),
            tags=sorted(planned),
            roles=roles_to_load(planned),
            variables=variables,
            become_password=become_password,
            environment=reading_environment(),
            on_event=on_event,
            check=True,
        )


def _in_order(steps: Sequence[str], others: Sequence[str]) -> Iterator[str]:
    """The steps, and before them the roles that work for them."""
    yield from (role for role in others if role not in steps)
    yield from steps


def _note(node: NodeReport, role: str, steps: Sequence[str]) -> str:
    """Return why a role was not compared, or not to its end; empty when it was."""
    if node.error is None:
        return ""
    if node.error.role == role:
        return f"could not be compared: {node.error.task}: {node.error.message}"
    ended = {each.role for each in node.roles if each.status in (RoleStatus.CHANGED, RoleStatus.UNCHANGED)}
    if role in ended:
        return ""
    why = "" if node.error.role in steps else f": {node.error.message}"  # where it is a step, it stands there
    return f"could not be compared, because {node.error.role or 'Ansible'} failed before it{why}"


def _is_private(facts: NodeFacts | None, path: str) -> bool:
    """Return whether not everybody on the node may read the file, or might when it was written."""
    if facts is None:
        return False
    receipts = {} if isinstance(facts.receipts, Unknown) else facts.receipts
    observed = {} if isinstance(facts.managed, Unknown) else facts.managed.observed
    for document in (*(receipt.content for receipt in receipts.values()), *observed.values()):
        files = document.get("files")
        entry = files.get(path) if isinstance(files, Mapping) else None
        mode = entry.get("mode") if isinstance(entry, Mapping) else None
        if isinstance(mode, str) and entry and entry.get("type", "file") == "file" and not _open(mode):
            return True
    return False


def _open(mode: str) -> bool:
    try:
        return bool(int(mode, 8) & _OTHERS_READ)
    except ValueError:
        return False


def _shown_difference(each: Difference, redactor: Redactor, *, private: bool) -> FileDiff:
    """Return a difference as it may be shown."""
    path = _printable(redactor.text(each.path))
    if each.withheld:
        return FileDiff(path, note=f"content is not shown, because {each.withheld}")
    if private:
        return FileDiff(path, note=_HIDDEN)
    if max(len(each.before), len(each.after)) > _MOST_CHARACTERS:
        return FileDiff(path, note="content is not shown, because it is too large")
    # Secrets go before the comparison: a line of a diff alone does not show that it is part of a key.
    before, after = redactor.text(each.before), redactor.text(each.after)
    if before == after:
        return FileDiff(path, note=_HIDDEN)
    lines = list(difflib.unified_diff(_lines(before), _lines(after), lineterm=""))[2:]
    return FileDiff(path, "\n".join(_printable(line) for line in lines))


def _lines(text: str) -> list[str]:
    """Return the lines; where the last one has no end, that is a difference too."""
    lines = text.split("\n")
    if not lines[-1]:
        return lines[:-1]
    return [*lines[:-1], f"{lines[-1]}\n\\ No newline at end of file"]


def _printable(text: str) -> str:
    """Return the text with nothing in it that a terminal would obey, or that is no character at all."""
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" else sign.encode("unicode_escape").decode() for sign in text
    )
