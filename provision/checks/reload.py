"""Reload the peer memory module: the script for a node, and the judgement of its output.

The script restarts the unit, so that systemd ends a load that hangs, as at boot, and knows the unit's state. A restart
continues if the module cannot be unloaded, so the script unloads the module first.
"""

from __future__ import annotations

import shlex

from provision.checks.boot import boot_verdict, recorded_provider
from provision.facts import NodeFacts, RawOutput, Unknown, parse, script
from provision.facts.peer_modules import PeerMemoryFact
from provision.facts.peer_status import UNIT, PeerStatusFact
from provision.facts.records import ReceiptsFact, SimulatedFact
from provision.facts.script import MOST_SLACK_SECONDS
from provision.facts.system import BootFact, KindFact, SystemFact
from provision.model import CheckStatus, CommandResult, Node, NodeReload, ReloadResult
from provision.model.reason import Reason, reason

_PROGRAM = "/usr/local/lib/provision/peer-memory"
_FACTS = (SystemFact(), KindFact(), BootFact(), PeerMemoryFact(), PeerStatusFact(), ReceiptsFact(), SimulatedFact())
LOAD_SECONDS = 120
"""The unit's TimeoutStartSec."""
_BUSY_SECONDS, _UNLOAD_SECONDS, _RESTART_SECONDS = 60, 75, LOAD_SECONDS + 30
RELOAD_SECONDS = (
    _BUSY_SECONDS + _UNLOAD_SECONDS + _RESTART_SECONDS + max(fact.limit_seconds for fact in _FACTS) + MOST_SLACK_SECONDS
)
"""The limit for all steps on a node."""

_SCRIPT = r"""say() { printf 'reload.%s=%s\n' "$1" "$(printf '%s' "$2" | tr '\n' ' ')"; }
if [ ! -x PROGRAM ] || [ ! -e /etc/systemd/system/UNIT ]; then
  say step absent
elif ! jobs=$(timeout BUSY python3 -I -W ignore -c SOURCE 2>&1); then
  say step unknown; say said "$(printf '%s\n' "$jobs" | tail -n 1)"
elif [ -n "$jobs" ]; then
  say step busy; say said "$jobs"
elif ! said=$(timeout UNLOAD PROGRAM unload 2>&1); then
  say step refused; say said "$said"
else
  systemctl reset-failed UNIT 2>/dev/null
  said=$(timeout RESTART systemctl restart UNIT 2>&1); code=$?
  say step done; say code "$code"; say said "$(printf '%s\n' "$said" | head -n 1)"
fi
"""


def reload_script(busy: str) -> str:
    """Return the script for a node, which runs as root; `busy` is the source of platform_busy, which detects jobs."""
    source = shlex.quote(f"{busy}\n\nprint('; '.join(running_jobs()))\n")
    text = _SCRIPT
    for name, value in (
        ("PROGRAM", _PROGRAM),
        ("UNIT", UNIT),
        ("BUSY", str(_BUSY_SECONDS)),
        ("UNLOAD", str(_UNLOAD_SECONDS)),
        ("RESTART", str(_RESTART_SECONDS)),
        ("SOURCE", source),
    ):
        text = text.replace(name, value)
    return text + script(_FACTS)


def read_reload(node: Node, result: CommandResult) -> NodeReload:
    """Judge the output of a node by the check at boot."""
    head = result.stdout.partition("\nprovision-probe ")[0]
    report = {key: " ".join(value.split()) for key, value in RawOutput(head, 0).pairs().items()}
    facts, output = parse(result.stdout, _FACTS), report.get("reload.said", "")
    step = report.get("reload.step", "")
    if step == "done":
        return _done(node, facts, report.get("reload.code", ""), output)
    if step == "absent":
        return _absent(node, facts)
    if step in {"busy", "unknown", "refused"}:
        return _outcome(node, facts, ReloadResult.REFUSED, _refusal(step, output))
    why = reason("reload.script_failed", exit_code=result.exit_code, output=result.last_lines(1) or "no output")
    return _outcome(node, facts, ReloadResult.FAILED, why)


def _refusal(step: str, output: str) -> Reason:
    """Return why nothing was changed."""
    if step == "busy":
        return reason("reload.busy", jobs=output)
    if step == "unknown":
        return reason("reload.busy_unknown", cause=output or "no output of python3")
    cause, _, advice = output.removeprefix("peer memory: ").partition(". ")
    return reason(
        "reload.not_unloaded",
        cause=cause or "the module could not be unloaded within its limit",
        advice=advice or "Stop what uses it, and try again.",
    )


def _done(node: Node, facts: NodeFacts, code: str, output: str) -> NodeReload:
    """The check decides, unless the unit could not be started: then an earlier result does not count."""
    verdict = boot_verdict(node, facts)
    if verdict.status is CheckStatus.PASS and code != "0":
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
