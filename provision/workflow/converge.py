"""Making the nodes what the inventory says, and telling of every node how that went."""

from __future__ import annotations

import difflib
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from provision.errors import NodeError, ProvisionError, UsageError
from provision.model import ApplyReport, Cluster, Failure, Node, NodeReport, NodeStatus, Secret

if TYPE_CHECKING:
    from provision.connectors.base import Connector
    from provision.engine import Event

__all__ = ["apply", "chosen_roles", "local_inventory", "log_folder", "unreachable"]


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
    """
    from provision import engine
    from provision.inventory.settings import reading_environment

    started = time.monotonic()
    lost = unreachable(nodes)
    for name in lost:
        if on_event:
            on_event(engine.Event(name, None, "connect", "unreachable"))
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
            log=log_folder() / f"apply-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.log",
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
    import yaml

    from provision.inventory.specs import roles_folder

    known: dict[str, bool] = {}
    for file in sorted(roles_folder().glob("*/tasks/main.yml")):
        role = file.parent.parent.name
        known[role] = True
        for task in yaml.safe_load(file.read_text(encoding="utf-8")) or ():
            known |= {tag: False for tag in task.get("tags", ()) if tag.startswith(f"{role}_")}
    return known


def unreachable(nodes: Sequence[Node]) -> dict[str, ProvisionError]:
    """Return the nodes on which not even ``true`` can be run as root, with the reason."""
    from provision.connectors import each

    outcomes = each(nodes, _knock)
    return {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, ProvisionError)}


def local_inventory(name: str, image: str | None) -> str:
    """Return an inventory of this machine alone; without `image` the container roles are off."""
    variables: dict[str, object] = {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"}
    if os.geteuid() != 0:
        variables["ansible_become"] = True
    if image:
        variables["training_image_reference"] = image
    else:
        roles = ("training_image", "training_container", "container_ssh")
        variables |= {f"{role}_enabled": False for role in roles}
    return json.dumps({"gpu_nodes": {"hosts": {name: variables}}}, indent=2)


def log_folder() -> Path:
    """Return where the logs of applies are kept, newest 20; ``support-bundle`` takes them along."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local/state")
    return Path(state, "provision", "logs")


def _knock(connector: Connector) -> None:
    result = connector.run("true", timeout=60)
    if not result.ok:
        raise NodeError(
            f"logged in, but a command as root exited {result.exit_code}",
            node=connector.name,
            output=result.last_lines(),
            remedy="Check ansible_become and the user's sudo rights on the node.",
        )


def _lost_report(name: str, error: ProvisionError) -> NodeReport:
    failure = Failure(None, "connect", error.message, error.output, error.remedy)
    return NodeReport(name, NodeStatus.UNREACHABLE, (), failure)
