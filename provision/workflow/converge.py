"""Making the nodes what the inventory says, and telling of every node how that went."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from provision.errors import NodeError, ProvisionError
from provision.model import ApplyReport, Cluster, Failure, Node, NodeReport, NodeStatus, Secret

if TYPE_CHECKING:
    from provision.connectors.base import Connector
    from provision.engine import Event

__all__ = ["apply", "local_inventory", "log_folder", "unreachable"]


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
