"""The check at boot: whether a node came up in its recorded state. A node that did not takes no jobs.

``verify``, ``hostfile``, ``run``, ``place``, batch jobs and ``reload`` use this verdict.
"""

from __future__ import annotations

from provision.components import MODULE_LOADER
from provision.components.check import NotKnownError, Verdict, fail, known, passed, skip
from provision.errors import ProvisionError
from provision.facts import NodeFacts, Unknown, is_container
from provision.facts.peer_status import STATUS_FILE, UNIT, PeerRecord, PeerStatus
from provision.model import CheckStatus, Node
from provision.model.reason import Reason, reason

_ROLE = MODULE_LOADER.role
_UNIT_SECONDS = 120
"""The unit's TimeoutStartSec; systemd ends a load that takes longer."""
_MARGIN_SECONDS = 30
_YOUNG_SECONDS = 300
"""Uptime within which systemd may not have started the unit yet."""


def boot_failure(node: Node, facts: NodeFacts | ProvisionError) -> Verdict | None:
    """Return why a reachable node is degraded, so that it takes no jobs; None if it is not."""
    if isinstance(facts, ProvisionError):
        return None
    verdict = boot_verdict(node, facts)
    return verdict if verdict.status is CheckStatus.FAIL else None


def recorded_provider(facts: NodeFacts) -> str:
    """Return the provider recorded in the role's configuration, else in its receipt; or empty."""
    if isinstance(facts.peer_status, Unknown):
        return ""
    if facts.peer_status.wanted or isinstance(facts.receipts, Unknown) or _ROLE not in facts.receipts:
        return facts.peer_status.wanted
    inputs = facts.receipts[_ROLE].content.get("inputs")
    return str(inputs.get("provider", "")) if isinstance(inputs, dict) else ""


def boot_verdict(node: Node, facts: NodeFacts) -> Verdict:
    """Judge whether the recorded GPUDirect RDMA path came up at boot, and is still available.

    Skips where nothing is recorded, or the inventory disables the role. A recorded path that cannot be judged fails.
    """
    if node.variables.get(f"{_ROLE}_enabled") is False:
        return skip("check.role_disabled", role=_ROLE)
    if is_container(facts):
        return skip("peer_memory.container")
    try:
        return _judge(facts, known(facts.peer_status))
    except NotKnownError as problem:
        return fail("peer_memory.boot.fact_unavailable", cause=str(problem))


def _judge(facts: NodeFacts, record: PeerRecord) -> Verdict:
    wanted = recorded_provider(facts)
    if wanted == "none" or not (wanted or record.status or record.error):
        return skip("peer_memory.boot.not_recorded")
    if record.error:
        return fail("peer_memory.boot.invalid_record", path=STATUS_FILE, cause=record.error)
    if record.status is None:
        code = "peer_memory.boot.never_checked_unit" if _is_unit_disabled(record) else "peer_memory.boot.never_checked"
        return fail(code, provider=wanted, unit=_unit(record))
    return _of_this_boot(facts, record, record.status) or _outcome(facts, record, record.status, wanted)


def _of_this_boot(facts: NodeFacts, record: PeerRecord, status: PeerStatus) -> Verdict | None:
    """Judge whether the status is of the current boot; None if it is."""
    boot, kernel = known(facts.boot), known(facts.system).kernel
    if (status.boot_id, status.kernel) == (boot.boot_id, kernel):
        return None
    return fail(
        "peer_memory.boot.not_checked_unit" if _is_unit_disabled(record) else "peer_memory.boot.not_checked",
        simulated=status.simulated,
        provider=status.provider,
        kernel=kernel,
        last_kernel=status.kernel,
        since=status.since,
        unit=_unit(record),
        uptime=boot.uptime_seconds if boot.uptime_seconds < _YOUNG_SECONDS else None,
    )


def _outcome(facts: NodeFacts, record: PeerRecord, status: PeerStatus, wanted: str) -> Verdict:
    simulated = status.simulated
    if wanted and wanted != status.provider:
        return fail("peer_memory.boot.other_provider", desired=wanted, provider=status.provider, simulated=simulated)
    if status.state == "loading":
        return _loading(record, status)
    if status.state == "failed":
        return fail(
            "peer_memory.boot.failed",
            simulated=simulated,
            provider=status.provider,
            cause=status.cause,
            explanation=status.explanation.rstrip(".") or "no reason was recorded",
            advice=_sentence(status.remedy or f"Read on the node: journalctl -b -u {UNIT}."),
        )
    peers = facts.peer_memory
    if status.module and not isinstance(peers, Unknown) and status.module not in peers.loaded:
        return fail("peer_memory.boot.unloaded", module=status.module, simulated=simulated)
    return passed(
        "peer_memory.boot.ok",
        provider=status.provider,
        kernel=status.kernel,
        since=status.since,
        simulated=simulated,
    )


def _loading(record: PeerRecord, status: PeerStatus) -> Verdict:
    """A node that is still loading the module takes no jobs yet."""
    params: dict[str, str | int | None] = {
        "module": status.module or status.provider,
        "since": status.since,
        "age": record.age_seconds,
    }
    is_active = record.unit is None or record.unit.active in {"activating", "reloading"}
    if is_active and (record.age_seconds is None or record.age_seconds <= _UNIT_SECONDS + _MARGIN_SECONDS):
        return fail("peer_memory.boot.loading", simulated=status.simulated, limit=_UNIT_SECONDS, **params)
    code = "peer_memory.boot.hangs" if is_active else "peer_memory.boot.cut_off"
    return fail(code, simulated=status.simulated, unit=_unit(record), **params)


def _unit(record: PeerRecord) -> Reason | None:
    """Return the state of the unit, where it explains something."""
    unit = record.unit
    if unit is None:
        return reason("peer_memory.boot.no_unit", unit=UNIT)
    if _is_unit_disabled(record):
        return reason("peer_memory.boot.unit_not_enabled", state=unit.enabled)
    result = "" if unit.result == "success" else unit.result
    return reason("peer_memory.boot.unit", state=unit.active, result=result) if unit.active else None


def _is_unit_disabled(record: PeerRecord) -> bool:
    """Return whether nothing starts the unit at boot: then the role has to run. Otherwise it can be started."""
    return record.unit is None or bool(record.unit.enabled and not record.unit.enabled.startswith("enabled"))


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
