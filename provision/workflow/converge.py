"""Making the nodes what the inventory says, and telling of every node how that went."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from provision.errors import NodeError, ProvisionError, UsageError
from provision.facts import RawOutput, Unknown
from provision.facts.system import SystemFact
from provision.locks import held
from provision.model import ApplyReport, Cluster, Failure, Node, NodeReport, NodeStatus, Secret

if TYPE_CHECKING:
    from provision.connectors.base import Connector
    from provision.engine import Event

__all__ = ["alone", "apply", "chosen_roles", "local_inventory", "log_folder", "unreachable"]


def apply(
    cluster: Cluster,
    nodes: Sequence[Node],
    *,
    roles: Sequence[str] = (),
    become_password: Secret | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> ApplyReport:
    """Run the playbooks on `nodes` (only `roles` when given) and report on every node.

    Nodes that cannot be reached are found first, in one SSH session each, and reported with the exact reason;
    they never hold up or stop the others.

    Raises:
        LockedError: an apply of this inventory is under way; the message says whose.
    """
    with alone(cluster, "apply") as warnings:
        report = _apply(cluster, nodes, roles, become_password, on_event)
        return replace(report, warnings=(*warnings, *report.warnings))


def _apply(
    cluster: Cluster,
    nodes: Sequence[Node],
    roles: Sequence[str],
    become_password: Secret | None,
    on_event: Callable[[Event], None] | None,
) -> ApplyReport:
    from provision import engine
    from provision.inventory.settings import reading_environment

    started = time.monotonic()
    lost = unreachable(nodes)
    for name, error in lost.items():
        if on_event:
            on_event(engine.Event(name, None, "connect", _lost_status(error).value))
    reached = [node.name for node in nodes if node.name not in lost]
    done: dict[str, NodeReport] = {}
    tasks = 0
    warnings: tuple[str, ...] = ()
    if reached:
        report = engine.run_playbook(
            cluster.inventory,
            reached,
            tags=roles,
            become_password=become_password,
            environment=reading_environment(),
            on_event=on_event,
            log=log_folder(cluster) / f"apply-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.log",
        )
        done = {node.name: node for node in report.nodes}
        tasks, warnings = report.tasks, report.warnings
    reports = tuple(done.get(node.name) or _lost_report(node.name, lost[node.name]) for node in nodes)
    return ApplyReport(reports, round(time.monotonic() - started, 1), tasks, warnings)


def chosen_roles(words: Sequence[str]) -> tuple[str, ...]:
    """Return what ``--only`` names: roles, or single steps of them such as ``docker_engine_service``.

    Raises:
        UsageError: no role and no step is called so; Ansible would do nothing and be content.
    """
    named = tuple(part.strip() for word in words for part in word.split(",") if part.strip())
    known = _roles_and_steps()
    for name in named:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            roles = ", ".join(role for role, steps in known.items() if steps)
            raise UsageError(
                f"--only {name}: no role is called so" + (f"; did you mean {close[0]}?" if close else ""),
                remedy=f"The roles are {roles}.",
            )
    if words and not named:
        raise UsageError("--only names no role", remedy="Name one, or leave --only out.")
    return named


def _roles_and_steps() -> dict[str, bool]:
    """Return every name that ``--only`` takes, and whether it is that of a role."""
    from provision import yamltext
    from provision.inventory.specs import roles_folder

    known: dict[str, bool] = {}
    for file in sorted(roles_folder().glob("*/tasks/main.yml")):
        role = file.parent.parent.name
        known[role] = True
        for task in yamltext.safe_load(file.read_text(encoding="utf-8")) or ():
            known |= {tag: False for tag in task.get("tags", ()) if tag.startswith(f"{role}_")}
    return known


def unreachable(nodes: Sequence[Node]) -> dict[str, ProvisionError]:
    """Return the nodes that cannot be worked on, with the reason: no login, not root, no Python, unsupported system."""
    from provision.connectors import each
    from provision.workflow.survey import supported_systems

    supported = supported_systems()
    own_python = {node.name for node in nodes if node.variables.get("ansible_python_interpreter")}
    outcomes = each(nodes, lambda c: _knock(c, supported, python_needed=c.name not in own_python))
    return {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, ProvisionError)}


def local_inventory(folder: Path, name: str, *, image: str | None, variables: Path | None) -> Path:
    """Write an inventory of this machine alone into `folder` and return its path.

    `variables` is a file as an inventory's group_vars/all.yml. Where neither it nor `image` names a training image,
    the roles for images and containers are off.
    """
    host: dict[str, object] = {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"}
    if os.geteuid() != 0:
        host["ansible_become"] = True
    if image:
        host["training_image_reference"] = image
    roles = ("training_image", "training_container", "container_ssh")
    named = "{{ training_image_reference | default('') | length > 0 }}"
    groups = {"all": {"vars": {f"{role}_enabled": named for role in roles}}, "gpu_nodes": {"hosts": {name: host}}}
    (folder / "hosts.yml").write_text(json.dumps(groups, indent=2))
    if variables:
        (folder / "group_vars").mkdir()
        (folder / "group_vars/all.yml").symlink_to(variables.absolute())
    return folder


def log_folder(cluster: Cluster) -> Path:
    """Return where the logs of applies of this inventory are kept, newest 20; ``support-bundle`` takes them along."""
    return _state_folder() / "logs" / _identity(cluster)


def _state_folder() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state", "provision")


def _identity(cluster: Cluster) -> str:
    """Return a name for what is applied to: the same for an inventory's folder and for its only hosts file."""
    if all(node.connection.local for node in cluster.nodes):
        return "this-machine"
    place = cluster.inventory.resolve()
    if place.is_file() and place.stem in {"hosts", "inventory"}:
        place = place.parent
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", cluster.name).lstrip(".")
    return f"{name}-{hashlib.sha256(str(place).encode()).hexdigest()[:8]}"


@contextmanager
def alone(cluster: Cluster, purpose: str) -> Iterator[list[str]]:
    """Keep a second change of the same inventory out: the two would undo each other's steps.

    Where no lock can be written (a full disk), that is a warning.
    """
    warnings: list[str] = []
    path = _state_folder() / "locks" / f"{_identity(cluster)}.lock"
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            stack.enter_context(held(path, str(cluster.inventory), purpose))
        except OSError as error:
            warnings.append(f"no lock keeps others from changing the nodes at the same time: {path}: {error.strerror}")
        yield warnings


_LOOK = SystemFact.command + 'echo "probe_python3=$(command -v python3)"\n'


def _knock(connector: Connector, supported: Sequence[str], *, python_needed: bool) -> None:
    """Find out whether Ansible could work on the node at all; it would say less clearly why not."""
    result = connector.run(_LOOK, timeout=60)
    if not result.ok:
        raise NodeError(
            f"logged in, but a command as root exited {result.exit_code}",
            node=connector.name,
            output=result.last_lines(),
            remedy="Check ansible_become and the user's sudo rights on the node.",
        )
    said = RawOutput(result.stdout, result.exit_code)
    system = SystemFact().parse(said)
    title = "an unknown system without /etc/os-release" if isinstance(system, Unknown) else system.title
    if isinstance(system, Unknown) or f"{system.id} {system.version}" not in supported:
        raise NodeError(
            f"it runs {title}, which is not supported; supported are: {', '.join(supported)}",
            node=connector.name,
            remedy="Install a supported system, or add a file for this one under roles/platform/vars.",
        )
    if python_needed and not said.pairs().get("probe_python3"):
        raise NodeError(
            f"there is no python3 on it ({title}), and Ansible needs one",
            node=connector.name,
            remedy="Install it there (Debian: apt-get install python3), or set ansible_python_interpreter.",
        )


def _lost_report(name: str, error: ProvisionError) -> NodeReport:
    failure = Failure(None, "connect", error.message, error.output, error.remedy)
    return NodeReport(name, _lost_status(error), (), failure)


def _lost_status(error: ProvisionError) -> NodeStatus:
    return NodeStatus.FAILED if isinstance(error, NodeError) else NodeStatus.UNREACHABLE
