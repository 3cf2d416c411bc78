"""Probes nodes, and decides which of them can take ranks."""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from provision.errors import NodeError, ProvisionError, PythonMissing
from provision.model import Cluster, CommandResult, Node

if TYPE_CHECKING:
    from provision.components.check import Verdict
    from provision.connectors.base import Connector
    from provision.facts import Fact, NodeFacts, Outputs, Parameters
    from provision.launchers import HostEntry


PROBE_LIMIT = 32 * 1024 * 1024
"""Bytes of a probe; the names and keys of a thousand nodes are less than one megabyte."""

_NO_PROCESS = re.compile(r"cannot fork|fork: |resource temporarily unavailable|cannot allocate memory", re.IGNORECASE)
"""What shells print when the kernel gives them no process, before they can start a program of ours."""


def chosen(cluster: Cluster, limit: str | None) -> tuple[Node, ...]:
    """Return the nodes that `limit` selects, all without one."""
    from provision.inventory import select

    return select(cluster, limit)


def role_defaults() -> dict[str, Any]:
    """Return the variables of every role's defaults/main.yml, the desired state where the inventory has none."""
    from provision.inventory.role_files import defaults
    from provision.resources import roles_folder

    return defaults(roles_folder())


def supported_systems() -> dict[str, str]:
    """Return the supported systems, as ``debian 12`` -> how much of it is tested (`checks.systems.LEVELS`)."""
    from provision.inventory.role_files import systems
    from provision.resources import roles_folder

    files = sorted(systems(roles_folder()).items())
    return {name.replace("_", " ", 1): str(content.get("__platform_support")) for name, content in files}


def with_defaults(cluster: Cluster) -> Cluster:
    """Return the cluster with the roles' defaults under each node's own variables, which have the roles' types."""
    from provision.inventory.specs import as_type, read_specs
    from provision.resources import roles_folder

    defaults, known = role_defaults(), read_specs(roles_folder()).options

    def typed(variables: Mapping[str, Any]) -> dict[str, Any]:
        return {key: as_type(known[key], value) if key in known else value for key, value in variables.items()}

    nodes = tuple(replace(node, variables={**defaults, **typed(node.variables)}) for node in cluster.nodes)
    return replace(cluster, nodes=nodes)


def with_preserved(
    cluster: Cluster, complete: Cluster, facts: Mapping[str, NodeFacts | ProvisionError]
) -> tuple[Cluster, dict[str, dict[str, dict[str, Any]]]]:
    """Return the cluster with the pre-existing configuration of its nodes, and node -> role -> these variables."""
    from provision.planning import preserved_variables

    reached = {name: value for name, value in facts.items() if not isinstance(value, ProvisionError)}
    preserved = {
        name: mine for name, seen in reached.items() if (mine := preserved_variables(cluster.node(name), seen))
    }
    if not preserved:
        return complete, preserved

    def with_its_settings(node: Node) -> Node:
        ours = preserved.get(node.name, {}).values()
        more = {name: value for variables in ours for name, value in variables.items()}
        return replace(node, variables={**node.variables, **more}) if more else node

    return replace(complete, nodes=tuple(map(with_its_settings, complete.nodes))), preserved


ON_REQUEST = frozenset({"kubernetes_host"})
"""Names of facts that only some commands use."""


def probe(
    nodes: Sequence[Node],
    *,
    names: Sequence[str] | None = None,
    read_only: bool = False,
    keep: bool = False,
    took: dict[str, float] | None = None,
    topology: bool = False,
    without: Collection[str] = ON_REQUEST,
    meanwhile: Callable[[], None] | None = None,
) -> dict[str, NodeFacts | ProvisionError]:
    """Return node -> its facts, collected over one SSH connection each, or the error of a node that failed.

    Args:
        nodes: the nodes to probe.
        names: host names that every node should resolve; the names of `nodes` by default.
        read_only: store nothing on the nodes, neither our programs nor caches.
        keep: include the text of the answer in the facts, for a support bundle.
        took: receives the seconds after which each node answered.
        topology: query nvidia-smi for the links of GPUs and cards, which takes seconds. No plan depends on them.
        without: names of facts that are not collected; by default those that no plan uses.
        meanwhile: called once while the nodes answer.
    """
    from provision.connectors import each

    known = {node.name: node for node in nodes}
    resolved = tuple(names if names is not None else known)
    turn, started = threading.Lock(), time.monotonic()

    @functools.cache
    def shared() -> Outputs | None:
        from provision.workflow import fact_output_cache

        return None if keep or read_only or len(nodes) == 1 else fact_output_cache.load(resolved)

    def one(connector: Connector) -> NodeFacts:
        from provision import facts

        with turn:
            outputs = shared()
        variables = known[connector.name].variables
        parameters = facts.parameters(variables, resolved, outputs, topology=topology)
        wanted = tuple(fact for fact in facts.ALL_FACTS if fact.name not in without)
        node_facts = _collect(connector, wanted, parameters, outputs, read_only=read_only, keep=keep)
        if took is not None:
            took[connector.name] = time.monotonic() - started
        return node_facts

    def while_connecting() -> None:
        with turn:
            shared()
        if meanwhile is not None:
            meanwhile()

    results = each(nodes, one, meanwhile=while_connecting)
    if outputs := shared():
        from provision.workflow import fact_output_cache

        fact_output_cache.save(resolved, outputs)
    return results


def _collect(
    connector: Connector,
    wanted: Sequence[Fact[Any]],
    parameters: Parameters,
    outputs: Outputs | None,
    *,
    read_only: bool,
    keep: bool,
) -> NodeFacts:
    """Return the facts of one node; of a node without python3 only its system."""
    from provision import facts

    try:
        result = ask(connector, wanted, parameters, read_only=read_only)
    except PythonMissing as error:
        text = connector.run(facts.system_script(), timeout=facts.probe_seconds([])).stdout
        return facts.parse_system(text, error.message)
    return facts.parse(result.stdout, keep=keep, outputs=outputs)


def ask(
    connector: Connector,
    wanted: Sequence[Fact[Any]],
    parameters: Parameters,
    *,
    read_only: bool = False,
) -> CommandResult:
    """Run the commands of the wanted facts on a node.

    Raises:
        PythonMissing: the node has no usable interpreter.
        NodeError: the probe failed.
    """
    from provision import facts
    from provision.connectors.programs import run_program

    result = run_program(
        connector,
        "probe",
        stdin=facts.request(wanted, parameters, read_only=read_only),
        timeout=facts.probe_seconds(wanted),
        limit=PROBE_LIMIT,
        stored=not read_only,
    )
    return _answered(connector.name, result)


def _answered(node: str, result: CommandResult) -> CommandResult:
    """Return the result; raise the error of a probe that failed."""
    from provision.node.probe import GIVEN_UP, NO_PROCESS

    if result.ok:
        return result
    said = result.last_lines()
    if result.exit_code == NO_PROCESS or _NO_PROCESS.search(said):
        raise NodeError(
            "it cannot start another process, so it can be neither probed nor changed",
            node=node,
            output=said,
            remedy="Something has used up its processes, or its memory: on its console, end what starts so many "
            "(`ls -d /proc/[0-9]* | wc -l`; limits: kernel.pid_max, TasksMax of systemd), or reboot.",
        )
    if result.exit_code == GIVEN_UP:
        raise NodeError(
            "the probe was cut off, or cannot store outputs",
            node=node,
            output=said,
            remedy="Check memory and free space of /run, /dev/shm and /tmp on the node, then run the command again.",
        )
    raise NodeError(
        f"the probe ended with code {result.exit_code}",
        node=node,
        output=said,
        remedy="Check that the login user may become root without a terminal. A traceback is a defect: report it.",
    )


def host_entries(
    cluster: Cluster, facts: Mapping[str, NodeFacts | ProvisionError], *, allow_degraded: bool = False
) -> tuple[list[HostEntry], list[tuple[str, str]]]:
    """Return the nodes that can take ranks, and those left out with the reason, in the inventory's order.

    Only nodes that `facts` knows are considered: the others were not asked for. With `allow_degraded` those that
    `degraded` names are not left out for that reason.
    """
    from provision.checks import host_entry
    from provision.facts import refused_addresses
    from provision.report.reasons import message

    refused = refused_addresses(cluster.nodes, facts)
    entries: list[HostEntry] = []
    left_out: list[tuple[str, str]] = []
    for node in with_defaults(cluster).nodes:
        if node.name not in facts:
            continue
        entry = refused.get(node.name) or host_entry(node, facts[node.name], allow_degraded=allow_degraded)
        if isinstance(entry, str):
            left_out.append((node.name, entry))
        elif isinstance(entry, tuple):
            left_out.append((node.name, "; ".join(message(reason, node.name) for reason in entry)))
        else:
            entries.append(entry)
    return entries, left_out


def degraded(cluster: Cluster, facts: Mapping[str, NodeFacts | ProvisionError]) -> dict[str, Verdict]:
    """Return the nodes whose check at boot differs from what is recorded of them, with reason and remedy."""
    from provision.checks import boot_failure

    asked = (node for node in with_defaults(cluster).nodes if node.name in facts)
    return {node.name: verdict for node in asked if (verdict := boot_failure(node, facts[node.name])) is not None}


@dataclass(frozen=True)
class HostFile:
    """A host file, and who is not in it."""

    text: str
    left_out: list[tuple[str, str]]
    """Node and reason."""
    lost: tuple[str, ...] = ()
    """Of those left out the ones that were not reached."""
    degraded: tuple[tuple[str, str], ...] = ()
    """Nodes that are in it though they should take no jobs, and why."""
    entries: tuple[HostEntry, ...] = ()
    """Those that are in it."""


def hostfile(
    cluster: Cluster,
    launcher: str,
    limit: str | None = None,
    *,
    allow_degraded: bool = False,
    ranks: int | None = None,
    master_port: int | None = None,
) -> HostFile:
    """Probe the nodes and write the launcher's host file of those that can take ranks.

    Raises:
        UsageError: there are fewer slots, or the launcher cannot start ranks so.
    """
    from provision.launchers import LAUNCHERS, fitted
    from provision.report.reasons import message

    render = LAUNCHERS[launcher].host_file
    full = with_defaults(cluster)
    probed = probe(chosen(full, limit))
    entries, left_out = host_entries(full, probed, allow_degraded=allow_degraded)
    if entries:
        entries = fitted(entries, ranks)
    if master_port is not None:
        entries = [replace(entry, free_port=master_port) for entry in entries]
    listed = {entry.name for entry in entries}
    return HostFile(
        render(entries) if render else "",
        left_out,
        tuple(name for name, facts in probed.items() if isinstance(facts, ProvisionError)),
        tuple(
            (name, message(verdict.reason, name)) for name, verdict in degraded(full, probed).items() if name in listed
        ),
        tuple(entries),
    )
