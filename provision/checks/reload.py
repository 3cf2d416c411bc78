"""Loading the peer-memory module by hand: what is run on a node, and how its outcome is read.

The unit is restarted, and not the node's program started: so systemd ends a load that hangs at its limit, as at boot,
says so in the status file, and knows afterwards that the unit is up. But a restart goes on when the module cannot be
unloaded, so that a node in use would be told to be ready while nothing happened: unloading is therefore done first.
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

__all__ = ["LOAD_SECONDS", "RELOAD_SECONDS", "read_reload", "reload_script"]

_PROGRAM = "/usr/local/lib/provision/peer-memory"
_FACTS = (SystemFact(), KindFact(), BootFact(), PeerMemoryFact(), PeerStatusFact(), ReceiptsFact(), SimulatedFact())
LOAD_SECONDS = 120
"""The unit's TimeoutStartSec."""
_BUSY_SECONDS, _UNLOAD_SECONDS, _RESTART_SECONDS = 60, 75, LOAD_SECONDS + 30
RELOAD_SECONDS = (
    _BUSY_SECONDS + _UNLOAD_SECONDS + _RESTART_SECONDS + max(fact.limit_seconds for fact in _FACTS) + MOST_SLACK_SECONDS
)
"""The most that all of it takes on a node."""

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
    """Return what is run on a node as root; `busy` is the source of the roles' platform_busy, which knows jobs."""
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
    """Judge what a node printed, by the same judgement that keeps jobs off it."""
    head = result.stdout.partition("\nprovision-probe ")[0]
    told = {key: " ".join(value.split()) for key, value in RawOutput(head, 0).pairs().items()}
    facts, said = parse(result.stdout, _FACTS), told.get("reload.said", "")
    step = told.get("reload.step", "")
    if step == "done":
        return _done(node, facts, told.get("reload.code", ""), said)
    if step == "absent":
        return _absent(node, facts)
    if step in {"busy", "unknown", "refused"}:
        return _outcome(node, facts, ReloadResult.REFUSED, *_refusal(step, said))
    return _outcome(
        node,
        facts,
        ReloadResult.FAILED,
        f"the script on the node ended with code {result.exit_code}: {result.last_lines(1) or 'it said nothing'}",
        "Check that the login user may become root without a terminal, and that /run can be written.",
    )


def _refusal(step: str, said: str) -> tuple[str, str]:
    """Return why nothing was changed, and what to do; the node's program has words of its own for both."""
    if step == "busy":
        return f"a job is running: {said}", "Wait until it has ended, or end it, and try again."
    if step == "unknown":
        why = said or "python3 said nothing"
        return (
            f"whether a job is running cannot be told: {why}",
            "Log in to the node and see why python3 does not run there.",
        )
    reason, _, remedy = said.removeprefix("peer memory: ").partition(". ")
    return (
        reason or "the module could not be unloaded within its limit",
        remedy or "Stop what uses it, and try again.",
    )


def _done(node: Node, facts: NodeFacts, code: str, said: str) -> NodeReload:
    """The check counts; a unit that could not be started has failed whatever an earlier check left behind."""
    verdict = boot_verdict(node, facts)
    if verdict.status is CheckStatus.PASS and code != "0":
        return _outcome(
            node,
            facts,
            ReloadResult.FAILED,
            f"{UNIT} could not be restarted (exit {code}): {said or 'systemctl said nothing'}",
            f"Read on the node: journalctl -b -u {UNIT}",
        )
    results = {CheckStatus.PASS: ReloadResult.READY, CheckStatus.SKIP: ReloadResult.SKIPPED}
    return _outcome(node, facts, results.get(verdict.status, ReloadResult.FAILED), verdict.reason, verdict.remedy)


def _absent(node: Node, facts: NodeFacts) -> NodeReload:
    """Nothing of the role's is there: the receipt says whether that is how it should be."""
    verdict = boot_verdict(node, facts)
    if verdict.status is CheckStatus.FAIL:
        return _outcome(node, facts, ReloadResult.FAILED, verdict.reason, verdict.remedy)
    if recorded_provider(facts) == "none":
        return _outcome(node, facts, ReloadResult.SKIPPED, "nothing is to be loaded: the provider is none")
    return _outcome(
        node,
        facts,
        ReloadResult.SKIPPED,
        "the role peer_memory was never applied",
        f"Run: provision apply --limit {node.name} --only peer_memory",
    )


def _outcome(node: Node, facts: NodeFacts, result: ReloadResult, reason: str, remedy: str | None = None) -> NodeReload:
    record = facts.peer_status
    status = None if isinstance(record, Unknown) else record.status
    return NodeReload(
        node.name,
        result,
        reason,
        remedy,
        provider=recorded_provider(facts) or (status.provider if status else ""),
        module=status.module if status else "",
        cause=status.cause if status and result is ReloadResult.FAILED else "",
        simulated=status is not None and status.simulated,
    )
