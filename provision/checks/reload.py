"""Judge the outcome of loading the peer memory module again (`provision.node.reload`)."""

from __future__ import annotations

from typing import Any

from provision.checks.boot import boot_verdict, recorded_provider
from provision.documents import decode_last_line
from provision.documents.reload import ReloadAnswer
from provision.errors import InvalidDocument, ProvisionError
from provision.facts import Fact, NodeFacts, Unknown
from provision.facts.peer_modules import PeerMemoryFact
from provision.facts.peer_status import UNIT, PeerStatusFact
from provision.facts.records import ReceiptsFact, SimulatedFact
from provision.facts.system import BootFact, KindFact, SystemFact
from provision.model import CheckStatus, CommandResult, Node, NodeReload, ReloadResult
from provision.model.reason import Reason, reason

FACTS: tuple[Fact[Any], ...] = (
    SystemFact(), KindFact(), BootFact(), PeerMemoryFact(), PeerStatusFact(), ReceiptsFact(), SimulatedFact()
)  # fmt: skip
"""The facts by which an outcome is judged."""
RELOAD_SECONDS = 360
"""The limit for all steps on a node."""


def read_reload(node: Node, result: CommandResult, facts: NodeFacts | ProvisionError) -> NodeReload:
    """Judge the program's answer by the check at boot.

    Args:
        node: The node.
        result: The output of the program.
        facts: Those after the reload, or the error of the probe.

    Raises:
        ProvisionError: The probe failed, and the module was not reloaded.
    """
    try:
        answer = decode_last_line(result.stdout.encode() if result.ok else b"", ReloadAnswer, node=node.name, what="")
    except InvalidDocument:
        answer = None
    if isinstance(facts, ProvisionError):
        if answer and answer.step == "done":
            why = reason("reload.result_unknown", cause=facts.message, advice=facts.remedy)
            return NodeReload(node.name, ReloadResult.FAILED, why)
        raise facts
    if answer is None:
        why = reason("reload.script_failed", exit_code=result.exit_code, output=result.last_lines(1) or "no output")
        return _outcome(node, facts, ReloadResult.FAILED, why)
    if answer.step == "done":
        return _done(node, facts, answer.exit_code, answer.output)
    if answer.step == "absent":
        return _absent(node, facts)
    return _outcome(node, facts, ReloadResult.REFUSED, _refusal(answer.step, answer.output))


def _refusal(step: str, output: str) -> Reason:
    """Return why nothing was changed."""
    if step == "busy":
        return reason("reload.busy", jobs=output)
    if step == "unknown":
        return reason("reload.busy_unknown", cause=output or "no output of python3")
    return reason(
        "reload.not_unloaded",
        cause=output or "the module could not be unloaded within its limit",
        advice="Stop what uses it, and try again.",
    )


def _done(node: Node, facts: NodeFacts, code: int, output: str) -> NodeReload:
    """The check decides, unless the unit could not be started: then an earlier result does not count."""
    verdict = boot_verdict(node, facts)
    if verdict.status is CheckStatus.PASS and code:
        why = reason("reload.not_restarted", unit=UNIT, exit_code=code, output=output or "no output of systemctl")
        return _outcome(node, facts, ReloadResult.FAILED, why)
    results = {CheckStatus.PASS: ReloadResult.READY, CheckStatus.SKIP: ReloadResult.SKIPPED}
    return _outcome(node, facts, results.get(verdict.status, ReloadResult.FAILED), verdict.reason)


def _absent(node: Node, facts: NodeFacts) -> NodeReload:
    """The role has no files on the node: the receipt shows whether that is correct."""
    verdict = boot_verdict(node, facts)
    if verdict.status is CheckStatus.FAIL:
        return _outcome(node, facts, ReloadResult.FAILED, verdict.reason)
    if recorded_provider(facts) == "none":
        return _outcome(node, facts, ReloadResult.SKIPPED, reason("reload.no_module"))
    return _outcome(node, facts, ReloadResult.SKIPPED, reason("reload.never_applied"))


def _outcome(node: Node, facts: NodeFacts, result: ReloadResult, why: Reason) -> NodeReload:
    record = facts.peer_status
    status = None if isinstance(record, Unknown) else record.status
    return NodeReload(
        node.name,
        result,
        why,
        provider=recorded_provider(facts) or (status.provider if status else ""),
        module=status.module if status else "",
        cause=status.cause if status and result is ReloadResult.FAILED else "",
        simulated=status is not None and status.simulated,
    )
