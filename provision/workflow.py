"""The steps behind each verb, as small functions: load, probe, apply, verify, launch.

Nothing here parses a command line or prints; progress goes to the callbacks that are passed in.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.errors import NodeError, ProvisionError, UsageError
from provision.model import (
    ApplyReport,
    Cluster,
    Failure,
    Node,
    NodeChecks,
    NodeReport,
    NodeStatus,
    Secret,
    Verification,
)

if TYPE_CHECKING:
    from provision.checks import PairOutcome
    from provision.connectors.base import Connector
    from provision.engine import Event
    from provision.facts import NodeFacts
    from provision.hostfiles import HostEntry

_PROBE_MARGIN_SECONDS = 180
"""What a slow node may need beyond its slowest fact: the slack that the script gives it, and to send the outputs."""
_LOGS = 5
"""How many logs of applies a support bundle takes along."""


def chosen(cluster: Cluster, limit: str | None) -> tuple[Node, ...]:
    """Return the nodes that `limit` selects, all without one."""
    from provision.inventory import select

    return select(cluster, limit)


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

    started = time.monotonic()
    lost = unreachable(nodes)
    for name in lost:
        if on_event:
            on_event(engine.Event(name, None, "connect", "unreachable"))
    reached = [node.name for node in nodes if node.name not in lost]
    done: dict[str, NodeReport] = {}
    tasks = 0
    if reached:
        report = engine.run_playbook(
            cluster.inventory,
            reached,
            tags=roles,
            become_password=become_password,
            on_event=on_event,
            log=log_folder() / f"apply-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.log",
        )
        done = {node.name: node for node in report.nodes}
        tasks = report.tasks
    reports = tuple(done.get(node.name) or _lost_report(node.name, lost[node.name]) for node in nodes)
    return ApplyReport(reports, round(time.monotonic() - started, 1), tasks)


def unreachable(nodes: Sequence[Node]) -> dict[str, ProvisionError]:
    """Return the nodes on which not even ``true`` can be run as root, with the reason."""
    from provision.connectors import each

    outcomes = each(nodes, _knock)
    return {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, ProvisionError)}


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


def role_defaults() -> dict[str, Any]:
    """Return the variables of every role's defaults/main.yml; what the inventory does not say is wanted so."""
    import yaml

    from provision.inventory.specs import roles_folder

    merged: dict[str, Any] = {}
    for file in sorted(roles_folder().glob("*/defaults/main.yml")):
        merged.update(yaml.safe_load(file.read_text(encoding="utf-8")) or {})
    return merged


def supported_systems() -> tuple[str, ...]:
    """Return the systems that the role platform knows, as ``debian 12``."""
    from provision.inventory.specs import roles_folder

    files = sorted((roles_folder() / "platform" / "vars").glob("*_*.yml"))
    return tuple(file.stem.replace("_", " ", 1) for file in files)


def with_defaults(cluster: Cluster) -> Cluster:
    """Return the cluster with the roles' defaults filled in under each node's own variables."""
    defaults = role_defaults()
    nodes = tuple(replace(node, variables={**defaults, **node.variables}) for node in cluster.nodes)
    return replace(cluster, nodes=nodes)


def probe(nodes: Sequence[Node], *, names: Sequence[str] | None = None) -> dict[str, NodeFacts | ProvisionError]:
    """Learn all facts of `nodes`, in one SSH session each; a node that fails has its error as value.

    `names` are those that should resolve on every node; the nodes' own unless given.
    """
    from provision.connectors import each

    known = {node.name: node for node in nodes}
    resolved = tuple(names if names is not None else known)
    return each(nodes, lambda connector: _probe(connector, known[connector.name], resolved))


def _probe(connector: Connector, node: Node, names: tuple[str, ...]) -> NodeFacts:
    from provision import facts

    limit = max(fact.limit_seconds for fact in facts.ALL_FACTS) + _PROBE_MARGIN_SECONDS
    result = connector.run(facts.script(facts.ALL_FACTS, facts.parameters(node.variables, names)), timeout=limit)
    if not result.ok:
        raise NodeError(
            f"the probe ended with code {result.exit_code}",
            node=node.name,
            output=result.last_lines(),
            remedy="Check that the login user may become root without a terminal, and that /run can be written.",
        )
    return facts.parse(result.stdout)


@dataclass(frozen=True)
class Survey:
    """What a verification saw and judged."""

    cluster: Cluster
    """With the roles' defaults."""
    facts: Mapping[str, NodeFacts | ProvisionError]
    verification: Verification

    def simulated(self) -> list[tuple[str, list[str]]]:
        """Return for each node that was reached the stand-ins that it carries, as ``thing: what it stands in for``."""
        return [
            (name, [f"{thing}: {text}" for thing, text in facts.simulated.items()])
            for name, facts in self.facts.items()
            if not isinstance(facts, ProvisionError) and isinstance(facts.simulated, Mapping)
        ]


def verify(cluster: Cluster, limit: str | None = None, *, pairs: bool = True) -> Survey:
    """Probe the nodes and judge them by all checks; `pairs` tries all logins between containers too."""
    from provision import checks

    full = with_defaults(cluster)
    nodes = chosen(full, limit)
    facts = probe(nodes, names=[node.name for node in full.nodes])
    reached = {name: value for name, value in facts.items() if not isinstance(value, ProvisionError)}
    supported = supported_systems()
    judged = tuple(
        NodeChecks(
            node.name,
            checks.unreachable(found)
            if isinstance(found := facts[node.name], ProvisionError)
            else checks.judge(node, found, full, all_facts=reached, supported=supported),
        )
        for node in nodes
    )
    outcomes = try_pairs([node for node in nodes if node.name in reached], reached) if pairs else None
    return Survey(full, facts, Verification(judged, checks.judge_cluster(full, nodes, reached, outcomes)))


def try_pairs(nodes: Sequence[Node], facts: Mapping[str, NodeFacts]) -> list[PairOutcome] | None:
    """Log in from every running training container to every other and itself; None when no container runs."""
    from provision.checks import PAIR_SECONDS, pairs_script, parse_pairs
    from provision.connectors import each
    from provision.facts import running_container

    ready = [node for node in nodes if running_container(facts[node.name])]
    names = [node.name for node in ready]
    containers = {node.name: str(node.variables.get("training_container_name")) for node in ready}

    def login(connector: Connector) -> list[PairOutcome]:
        script = pairs_script(containers[connector.name], names)
        result = connector.run(script, timeout=PAIR_SECONDS * (2 + len(names) // 8))
        return parse_pairs(connector.name, names, result.stdout, result.stderr)

    outcomes: list[PairOutcome] = []
    for source, value in each(ready, login).items():
        lost = parse_pairs(source, names, "", value.message) if isinstance(value, ProvisionError) else value
        outcomes.extend(lost)
    return outcomes or None


def host_entries(
    cluster: Cluster, facts: Mapping[str, NodeFacts | ProvisionError]
) -> tuple[list[HostEntry], list[tuple[str, str]]]:
    """Return the nodes that can take ranks, and those left out with the reason, in the inventory's order.

    Only nodes that `facts` knows are considered: the others were not asked for.
    """
    from provision.checks import host_entry

    entries: list[HostEntry] = []
    left_out: list[tuple[str, str]] = []
    for node in with_defaults(cluster).nodes:
        if node.name not in facts:
            continue
        entry = host_entry(node, facts[node.name])
        if isinstance(entry, str):
            left_out.append((node.name, entry))
        else:
            entries.append(entry)
    return entries, left_out


def hostfile(cluster: Cluster, launcher: str, limit: str | None = None) -> tuple[str, list[tuple[str, str]]]:
    """Probe the nodes and return the text of the launcher's host file, and who is left out and why."""
    from provision.hostfiles import LAUNCHERS

    full = with_defaults(cluster)
    entries, left_out = host_entries(full, probe(chosen(full, limit)))
    return LAUNCHERS[launcher](entries), left_out


def support_bundle(cluster: Cluster, target: Path, limit: str | None = None) -> list[str]:
    """Write facts, checks, raw probe outputs, logs and versions, secrets removed, to a file that only we can read.

    Returns the names of the files inside. The file must not exist: nothing is overwritten.
    """
    from provision.report.bundle import archive, bundle_files
    from provision.report.redaction import Redactor

    if target.exists():
        raise UsageError(f"{target} exists already", remedy="Give another name with --output.")
    if not target.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {target.absolute().parent}", remedy="Give another place with --output.")
    survey = verify(cluster, limit)
    logs = sorted(log_folder().glob("*.log"))[-_LOGS:]
    files = bundle_files(
        survey.facts,
        survey.verification,
        {log.name: log.read_text(encoding="utf-8", errors="replace") for log in logs},
        Redactor(known_secrets(cluster)),
        simulated=survey.simulated(),
    )
    _write_private(target, archive(files, target.name.partition(".tar")[0].removesuffix(".tgz")))
    return list(files)


def known_secrets(cluster: Cluster) -> set[str]:
    """Return every value that the inventory or the operator gave as a secret."""
    from provision.report.redaction import secrets_of

    known: set[str] = set()
    for node in cluster.nodes:
        connection = node.connection
        known |= secrets_of(node.variables)
        known |= secrets_of((connection.become_password, connection.password, connection.ssh_args))
    return known


def _write_private(target: Path, data: bytes) -> None:
    """Write beside the target first, so that an interruption leaves no half file under its name."""
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(data)
        draft.replace(target)
    except OSError as error:
        raise ProvisionError(
            f"{target} cannot be written: {error.strerror}", remedy="Give another place with --output."
        ) from error
    finally:
        draft.unlink(missing_ok=True)
