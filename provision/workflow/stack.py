"""Lock, compare and predict the stacks of nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from provision.errors import NodeError, NotFound, ProvisionError, UsageError
from provision.model import CheckResult, CheckStatus, Cluster
from provision.model.reason import Reason, reason

if TYPE_CHECKING:
    from provision.connectors.base import Connector
    from provision.facts import NodeFacts
    from provision.model.stack import Stack
    from provision.stack.prediction import BuildFacts, Prediction

_BANDWIDTH = "rdma_stack.bandwidth"


Forecasts = Mapping[str, Sequence["Prediction"]]
"""The predictions for one node: kernel -> components; empty if no new kernel is available."""


def lock_stack(
    cluster: Cluster,
    name: str,
    full: Callable[[str], None],
    limit: str | None = None,
    accepted: Sequence[str] = (),
) -> Stack:
    """Verify all nodes on level full, and return the stack of one that passes.

    An existing lock is not a reason to fail: a new one replaces it.

    Args:
        cluster: all nodes.
        name: the node to lock.
        full: reports the steps of the verification.
        limit: the nodes to verify.
        accepted: names of known conflicts that do not apply to its packages.

    Raises:
        UsageError: `limit` leaves the node out, or there is no such conflict.
        NodeError: the node does not pass, or its combination is known not to work.
        ProvisionError: the node cannot be reached.
    """
    from provision import workflow
    from provision.facts import Unknown
    from provision.report.reasons import error_of
    from provision.stack.conflicts import CONFLICTS, conflicts_of
    from provision.stack.observed import stack_of
    from provision.workflow.survey import chosen

    names = [row.name for row in CONFLICTS]
    unknown = next((one for one in accepted if one not in names), None)
    if unknown is not None:
        raise UsageError(f"--accept {unknown}: there is no such conflict", remedy=f"Use one of: {', '.join(names)}")
    if name not in {node.name for node in chosen(cluster, limit)}:
        raise UsageError(
            f"--limit {limit}: does not select {name}",
            remedy=f"Write --limit '{limit},{name}', or omit --limit.",
        )
    survey = workflow.verify(replace(cluster, stack_lock=None), limit, full=full)
    facts = survey.facts[name]
    if isinstance(facts, ProvisionError):
        raise facts
    checks = next(node.checks for node in survey.verification.nodes if node.name == name)
    why = refusal(checks, facts)
    if why is not None:
        raise error_of(NodeError, why, node=name)
    stack = stack_of(facts, name)
    if isinstance(stack, Unknown):
        raise error_of(NodeError, reason("stack.lock.no_facts", cause=stack.reason), node=name)
    stack = replace(stack, accepted=tuple(accepted))
    conflict = next(conflicts_of(stack), None)
    if conflict is not None:
        raise error_of(NodeError, conflict, node=name)
    return stack


def refusal(checks: Sequence[CheckResult], facts: NodeFacts) -> Reason | None:
    """Return why the stack of a node is not locked; None if it passes."""
    from provision.facts import Unknown

    failed = [one for one in checks if one.status is CheckStatus.FAIL]
    if failed:
        parts = [reason("stack.lock.check", check=one.id, cause=one.reason) for one in failed]
        return reason("stack.lock.failed", checks=parts)
    measured = next((one for one in checks if one.id == _BANDWIDTH), None)
    has_devices = isinstance(facts.rdma, Unknown) or any(device.active for device in facts.rdma.devices)
    if has_devices and measured is not None and measured.status is CheckStatus.SKIP:
        return reason("stack.lock.not_measured", cause=measured.reason)
    return None


def stack_named(cluster: Cluster, word: str) -> Stack:
    """Return the stack of a node of the inventory, or of a lock file.

    Raises:
        NotFound: there is neither a node nor a file of this name.
        ProvisionError: the node cannot be reached, or the file is not a lock file.
    """
    from provision.inventory.stack_lock import read_stack_lock

    if word in {node.name for node in cluster.nodes}:
        return _of_node(cluster, word)
    stack = read_stack_lock(Path(word))
    if stack is None:
        raise NotFound(
            f"there is neither a node nor a file {word}", remedy="Name a node of the inventory, or a stack.lock.yml."
        )
    return stack


def _of_node(cluster: Cluster, name: str) -> Stack:
    from provision.facts import Unknown
    from provision.report.reasons import error_of
    from provision.stack.observed import stack_of
    from provision.workflow.survey import probe, with_defaults

    facts = probe([with_defaults(cluster).node(name)])[name]
    if isinstance(facts, ProvisionError):
        raise facts
    stack = stack_of(facts, name)
    if isinstance(stack, Unknown):
        raise error_of(NodeError, reason("stack.lock.no_facts", cause=stack.reason), node=name)
    return stack


def forecasts(cluster: Cluster, limit: str | None, kernels: Sequence[str]) -> dict[str, Forecasts | ProvisionError]:
    """Return node -> what is known about builds for these kernels, or else for the available ones."""
    from provision.connectors import each
    from provision.stack.prediction import new_kernels, predict
    from provision.workflow.survey import chosen, probe, with_defaults

    complete = with_defaults(cluster)
    nodes = chosen(complete, limit)
    facts = probe(nodes, names=[node.name for node in complete.nodes])
    reached = {name: value for name, value in facts.items() if not isinstance(value, ProvisionError)}

    def ask(connector: Connector) -> tuple[tuple[str, ...], BuildFacts]:
        own, asked = reached[connector.name], tuple(kernels)
        build = _ask(connector, own, asked)
        asked = asked or new_kernels(build, own)
        return asked, build if kernels or not asked else _ask(connector, own, asked)

    answers = each([node for node in nodes if node.name in reached], ask)
    result: dict[str, Forecasts | ProvisionError] = {}
    for node in nodes:
        probed, answer = facts[node.name], answers.get(node.name)
        if isinstance(probed, ProvisionError):
            result[node.name] = probed
        elif isinstance(answer, ProvisionError):
            result[node.name] = answer
        elif answer is not None:
            asked, build = answer
            build = replace(build, accepted=cluster.stack_lock.accepted if cluster.stack_lock else ())
            result[node.name] = {kernel: predict(kernel, probed, build) for kernel in asked}
    return result


def _ask(connector: Connector, facts: NodeFacts, kernels: Sequence[str]) -> BuildFacts:
    from provision.documents import printable_text
    from provision.stack.prediction import SECONDS, parse, script
    from provision.workflow.apply_preflight import system_of

    metapackages = [str(name) for name in system_of(facts).get("__platform_headers_follow", {})]
    answer = connector.run(script(kernels, metapackages), timeout=SECONDS)
    if not answer.ok:
        raise NodeError(
            f"its package sources cannot be read (exit code {answer.exit_code})",
            node=connector.name,
            output=answer.last_lines(),
            remedy=f"Log in to {connector.name} and run: apt-cache policy linux-headers-amd64",
        )
    return parse(printable_text(answer.stdout))
