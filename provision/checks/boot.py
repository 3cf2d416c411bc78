"""May a node take jobs: is what its check at boot found the state that is recorded of it?

One judgement for all who ask: ``verify`` shows it, ``hostfile`` and ``run`` take no such node, ``reload`` ends by it.
"""

from __future__ import annotations

from provision.components.check import NotKnownError, Verdict, fail, known, passed, skip
from provision.errors import ProvisionError
from provision.facts import NodeFacts, Unknown, is_container
from provision.facts.peer_status import STATUS_FILE, UNIT, PeerRecord, PeerStatus
from provision.model import CheckStatus, Node

__all__ = ["boot_verdict", "held_back", "recorded_provider"]

_ROLE = "peer_memory"
_UNIT_SECONDS = 120
"""The unit's TimeoutStartSec; a load that takes longer is cut off."""
_MARGIN_SECONDS = 30
_YOUNG_SECONDS = 300
"""A boot for which a unit may simply not have had its turn yet."""
_FACT_REMEDY = "Log in to the node and run that command by hand to see where it stops."


def held_back(node: Node, facts: NodeFacts | ProvisionError) -> Verdict | None:
    """Return why a node that was reached takes no jobs, None when nothing speaks against it."""
    if isinstance(facts, ProvisionError):
        return None
    verdict = boot_verdict(node, facts)
    return verdict if verdict.status is CheckStatus.FAIL else None


def recorded_provider(facts: NodeFacts) -> str:
    """Return the provider that is recorded as wanted: by the role's configuration, else by its receipt; or empty."""
    if isinstance(facts.peer_status, Unknown):
        return ""
    if facts.peer_status.wanted or isinstance(facts.receipts, Unknown) or _ROLE not in facts.receipts:
        return facts.peer_status.wanted
    inputs = facts.receipts[_ROLE].content.get("inputs")
    return str(inputs.get("provider", "")) if isinstance(inputs, dict) else ""


def boot_verdict(node: Node, facts: NodeFacts) -> Verdict:
    """Judge whether the way for GPU memory that is recorded for the node came up when it booted, and is still there.

    Skips where nothing is recorded, or the inventory switches the role off. What is recorded and cannot be told fails.
    """
    if node.variables.get(f"{_ROLE}_enabled") is False:
        return skip(f"the role {_ROLE} is switched off for this node")
    if is_container(facts):
        return skip("a container has its host's kernel modules")
    try:
        return _judge(node, facts, known(facts.peer_status))
    except NotKnownError as problem:
        return fail(f"whether GPUDirect RDMA came up cannot be told: {problem}", _FACT_REMEDY)


def _judge(node: Node, facts: NodeFacts, record: PeerRecord) -> Verdict:
    wanted = recorded_provider(facts)
    if wanted == "none" or not (wanted or record.status or record.error):
        return skip("no way for GPU memory is recorded for this node")
    if record.error:
        return fail(f"{STATUS_FILE} {record.error}", f"Run: {_reload(node)}")
    if record.status is None:
        return fail(f"{wanted} is wanted, and no check of it was ever written down{_unit(record)}", _mend(node, record))
    return _of_this_boot(node, facts, record, record.status) or _outcome(node, facts, record, record.status, wanted)


def _of_this_boot(node: Node, facts: NodeFacts, record: PeerRecord, status: PeerStatus) -> Verdict | None:
    """Judge whether the status is of the running boot; None when it is."""
    boot, kernel = known(facts.boot), known(facts.system).kernel
    if (status.boot_id, status.kernel) == (boot.boot_id, kernel):
        return None
    other = f"kernel {status.kernel}" if status.kernel != kernel else "the same kernel"
    young = boot.uptime_seconds < _YOUNG_SECONDS
    early = f"; the node has been up for {boot.uptime_seconds} s, so its turn may be yet to come" if young else ""
    return fail(
        f"the check of {status.provider} did not run at this boot (kernel {kernel}): the last one is of an earlier "
        f"boot with {other}, {status.since}{_unit(record)}{early}",
        _mend(node, record),
        simulated=status.simulated,
    )


def _outcome(node: Node, facts: NodeFacts, record: PeerRecord, status: PeerStatus, wanted: str) -> Verdict:
    simulated = status.simulated
    if wanted and wanted != status.provider:
        return fail(
            f"{wanted} is wanted, and what was checked at this boot is {status.provider}",
            f"An apply was not finished. Run: {_apply(node)}",
            simulated=simulated,
        )
    if status.state == "loading":
        return _loading(node, record, status)
    if status.state == "failed":
        cause = f" ({status.cause})" if status.cause else ""
        reason = f"{status.provider} did not come up{cause}: {status.explanation or 'no reason was written down'}"
        remedy = status.remedy or f"Read on the node: journalctl -b -u {UNIT}."
        return fail(reason.rstrip("."), f"{_sentence(remedy)} Afterwards: {_reload(node)}", simulated=simulated)
    peers = facts.peer_memory
    if status.module and not isinstance(peers, Unknown) and status.module not in peers.loaded:
        return fail(
            f"{status.module} was loaded at this boot, and is not any more",
            f"Run: {_reload(node)}",
            simulated=simulated,
        )
    return passed(f"{status.provider} is ready on kernel {status.kernel} since {status.since}", simulated=simulated)


def _loading(node: Node, record: PeerRecord, status: PeerStatus) -> Verdict:
    """A load that is under way is no failure of anybody, and still no node for jobs."""
    what = status.module or status.provider
    since = status.since if record.age_seconds is None else f"{status.since}, {record.age_seconds} s ago"
    at_work = record.unit is None or record.unit.active in {"activating", "reloading"}
    if at_work and (record.age_seconds is None or record.age_seconds <= _UNIT_SECONDS + _MARGIN_SECONDS):
        return fail(
            f"{what} is being loaded (since {since})",
            f"Wait for its end, {_UNIT_SECONDS} s after it began at the latest, and look again.",
            simulated=status.simulated,
        )
    how = "hangs" if at_work else "was cut off and left no word"
    return fail(
        f"loading {what} {how} (begun {since}){_unit(record)}",
        "Look at what the kernel says (dmesg); a modprobe in state D goes only with a reboot. "
        f"Afterwards: {_reload(node)}",
        simulated=status.simulated,
    )


def _unit(record: PeerRecord) -> str:
    """Return what systemd adds to a reason."""
    unit = record.unit
    if unit is None:
        return f"; there is no unit {UNIT}"
    if unit.enabled and not unit.enabled.startswith("enabled"):
        return f"; its unit is {unit.enabled}, so that nothing starts it at boot"
    result = f" ({unit.result})" if unit.result not in {"", "success"} else ""
    return f"; its unit is {unit.active}{result}" if unit.active else ""


def _mend(node: Node, record: PeerRecord) -> str:
    """A unit that is to run at boot and does not needs the role; one that did not run can be started."""
    if record.unit is None or (record.unit.enabled and not record.unit.enabled.startswith("enabled")):
        return f"Run: {_apply(node)}"
    return f"Run: {_reload(node)} (why it did not run: journalctl -b -u {UNIT})"


def _apply(node: Node) -> str:
    return f"provision apply --limit {node.name} --only {_ROLE}"


def _reload(node: Node) -> str:
    return f"provision reload --limit {node.name}"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
