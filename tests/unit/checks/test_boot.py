"""A node that is not what it was recorded to be takes no jobs, and why: one judgement for all who ask."""

from __future__ import annotations

import dataclasses

import pytest

from provision.checks import boot_failure, host_entry
from provision.checks.boot import boot_verdict
from provision.errors import ConnectionFailed
from provision.facts import Unknown
from provision.facts.peer_modules import PeerMemory
from provision.facts.peer_status import PeerRecord, PeerUnit
from provision.facts.records import Receipt
from provision.facts.system import Boot, Kind, NodeKind
from provision.launchers import HostEntry
from provision.model import CheckStatus
from provision.model.reason import reason
from provision.report.reasons import remedy
from tests.support.reasons import shown
from tests.unit.checks.conftest import healthy, make_node, peer_record, peer_status

PASS, FAIL, SKIP = CheckStatus.PASS, CheckStatus.FAIL, CheckStatus.SKIP
LOADED = PeerMemory({"nv_peer_mem": "1.3"}, frozenset({"nv_peer_mem"}), "ib_core", (), True, frozenset(), False)  # noqa: FBT003
NOT_LOADED = dataclasses.replace(LOADED, loaded={}, bound=frozenset())
NO_HEADERS = {
    "state": "failed",
    "cause": "headers_missing",
    "explanation": "the headers of kernel 6.1.0 are not installed, so nv_peer_mem cannot be built for it",
    "remedy": "Run `provision apply`, or install linux-headers-6.1.0 on the node.",
}
WORKING = PeerUnit("activating", "success", "enabled")


def receipt(provider):
    """The receipts of a node on which the role ended well."""
    return {"peer_memory": Receipt("peer_memory", {"inputs": {"provider": provider}})}


def loading(age, unit=WORKING):
    """A record of a load that began so many seconds ago."""
    return dataclasses.replace(peer_record(state="loading", unit=unit), age_seconds=age)


def verdict_on(**facts):
    """The verdict on a node with nv_peer_mem loaded, some facts replaced."""
    usual = {"peer_status": peer_record(), "peer_memory": LOADED}
    return boot_verdict(make_node("gpu1", "10.77.0.1"), healthy_with(**{**usual, **facts}))


def healthy_with(**facts):
    return dataclasses.replace(healthy(), **facts)


CASES = {
    "it came up": (PASS, "peer_memory.boot.ok: nv_peer_mem 6.1.0 2026-11-21T10:00:00Z", "", {}),
    "DMA-BUF needs no module": (
        PASS,
        "peer_memory.boot.ok: dma_buf 6.1.0 2026-11-21T10:00:00Z",
        "",
        {"peer_status": peer_record("dma_buf", provider="dma_buf", module=""), "peer_memory": NOT_LOADED},
    ),
    "the node says why it did not": (
        FAIL,
        "peer_memory.boot.failed",
        "install linux-headers-6.1.0 on the node. Afterwards: provision reload --limit gpu1",
        {"peer_status": peer_record(**NO_HEADERS)},
    ),
    "peer_memory.boot.failed": (
        FAIL,
        "peer_memory.boot.failed",
        "journalctl -b -u provision-peer-memory.service. Afterwards: provision reload",
        {"peer_status": peer_record(state="failed")},
    ),
    "another boot, the unit failed": (
        FAIL,
        "peer_memory.boot.not_checked",
        "provision reload --limit gpu1",
        {
            "peer_status": peer_record(boot_id="a", kernel="5.10.0", unit=PeerUnit("failed", "exit-code", "enabled")),
            "boot": Boot(4000, "b"),
        },
    ),
    "another boot, the same kernel": (
        FAIL,
        "peer_memory.boot.not_checked",
        "provision reload --limit gpu1",
        {"peer_status": peer_record(boot_id="a"), "boot": Boot(4000, "b")},
    ),
    "the boot is young": (
        FAIL,
        "peer_memory.boot.not_checked",
        "provision reload",
        {"peer_status": peer_record(boot_id="a"), "boot": Boot(20, "b")},
    ),
    "nothing starts it at boot": (
        FAIL,
        "peer_memory.boot.not_checked_unit",
        "Run: provision apply --limit gpu1 --only peer_memory",
        {"peer_status": peer_record(boot_id="a", unit=PeerUnit("inactive", "success", "disabled"))},
    ),
    "its unit is gone": (
        FAIL,
        "peer_memory.boot.not_checked_unit",
        "Run: provision apply --limit gpu1 --only peer_memory",
        {"peer_status": dataclasses.replace(peer_record(boot_id="a"), unit=None)},
    ),
    "it is being loaded": (
        FAIL,
        "peer_memory.boot.loading: 120 nv_peer_mem 2026-11-21T10:00:00Z 20",
        "Wait",
        {"peer_status": loading(20)},
    ),
    "it hangs": (
        FAIL,
        "peer_memory.boot.hangs: peer_memory.boot.unit activating nv_peer_mem 2026-11-21T10:00:00Z 4000",
        "state D ends only with a reboot",
        {"peer_status": loading(4000)},
    ),
    "it was cut off": (
        FAIL,
        "peer_memory.boot.cut_off",
        "provision reload --limit gpu1",
        {"peer_status": loading(5, PeerUnit("failed", "timeout", "enabled"))},
    ),
    "a clock that was set back does not make it hang": (
        FAIL,
        "peer_memory.boot.loading: 120 nv_peer_mem 2026-11-21T10:00:00Z",
        "Wait",
        {"peer_status": loading(None)},
    ),
    "somebody unloaded it since": (
        FAIL,
        "peer_memory.boot.unloaded: nv_peer_mem",
        "provision reload --limit gpu1",
        {"peer_memory": NOT_LOADED},
    ),
    "an apply stopped in the middle": (
        FAIL,
        "peer_memory.boot.other_provider: nvidia_peermem nv_peer_mem",
        "provision apply --limit gpu1 --only peer_memory",
        {"peer_status": peer_record("nvidia_peermem")},
    ),
    "the status is gone": (
        FAIL,
        "peer_memory.boot.never_checked: nv_peer_mem peer_memory.boot.unit active",
        "provision reload --limit gpu1",
        {"peer_status": PeerRecord("nv_peer_mem", unit=PeerUnit("active", "success", "enabled"))},
    ),
    "all is gone but the receipt": (
        FAIL,
        "peer_memory.boot.never_checked_unit",
        "provision apply --limit gpu1 --only peer_memory",
        {"peer_status": PeerRecord(), "receipts": receipt("nv_peer_mem")},
    ),
    "the status is garbage": (
        FAIL,
        "/var/lib/provision/peer_memory/status.json is not JSON",
        "provision reload --limit gpu1",
        {"peer_status": PeerRecord("nv_peer_mem", error="is not JSON")},
    ),
    "the probe hung": (FAIL, "hung: systemctl", "manually", {"peer_status": Unknown("hung: systemctl")}),
    "the boot cannot be told": (FAIL, "no uptime", "manually", {"boot": Unknown("no uptime")}),
    "never applied": (SKIP, "peer_memory.boot.not_recorded", "", {"peer_status": PeerRecord()}),
    "none is wanted": (
        SKIP,
        "peer_memory.boot.not_recorded",
        "",
        {"peer_status": PeerRecord(), "receipts": receipt("none")},
    ),
    "a container node": (
        SKIP,
        "peer_memory.container",
        "",
        {"kind": Kind(NodeKind.CONTAINER, "docker", sysctls_writable=False), "peer_status": peer_record(**NO_HEADERS)},
    ),
}


@pytest.mark.parametrize(("status", "said", "advice", "facts"), CASES.values(), ids=CASES)
def test_a_degraded_boot_has_a_reason_and_a_remedy(status, said, advice, facts):
    """Each way in which a boot can differ from the record has its own reason and remedy."""
    verdict = verdict_on(**facts)

    assert (verdict.status, said in shown(verdict.reason)) == (status, True), verdict
    assert advice in remedy(verdict.reason, "gpu1")
    assert bool(remedy(verdict.reason, "gpu1")) is (status is FAIL)


@pytest.mark.parametrize("facts", [case[3] for case in CASES.values()], ids=CASES)
def test_verify_hostfile_and_run_agree(judged, facts):
    """What verify fails for this reason gets no ranks, and what it does not fail gets them."""
    mine = {"peer_status": peer_record(), "peer_memory": LOADED, **facts}
    result = judged(**mine)["peer_memory.boot"]
    node = make_node("gpu1", "10.77.0.1")
    entry = host_entry(node, healthy_with(**mine))

    assert isinstance(entry, HostEntry) is (result.status is not FAIL)
    assert (boot_failure(node, healthy_with(**mine)) is not None) is (result.status is FAIL)
    if result.status is FAIL:
        assert entry == (result.reason,)


def test_a_node_with_the_role_disabled_takes_jobs(judged):
    """The inventory's word goes before what an earlier apply left behind."""
    off = {"peer_memory_enabled": False}
    facts = healthy_with(peer_status=peer_record(**NO_HEADERS))

    assert judged(off, peer_status=facts.peer_status)["peer_memory.boot"].status is SKIP
    assert isinstance(host_entry(make_node("gpu1", "10.77.0.1", **off), facts), HostEntry)


def test_allow_degraded_ignores_no_other_problem():
    """Their slots are as ever; a stopped container stays a reason, and both reasons are said without it."""
    node = make_node("gpu1", "10.77.0.1")
    bad = healthy_with(peer_status=peer_record(**NO_HEADERS))
    worse = dataclasses.replace(bad, container=None)

    assert host_entry(node, bad, allow_degraded=True) == HostEntry("gpu1", "10.77.0.1", 1, "gpu")
    assert host_entry(node, worse, allow_degraded=True) == (reason("host.no_container"),)
    assert [why.code for why in host_entry(node, worse)] == ["host.no_container", "peer_memory.boot.failed"]


def test_an_unreachable_node_is_not_degraded():
    """Its own reason is given."""
    assert boot_failure(make_node("gpu1", "10.77.0.1"), ConnectionFailed("no answer")) is None


def test_results_of_a_lab_node_are_marked_as_simulated():
    """A stand-in's failure, and its success, prove nothing about hardware."""
    verdicts = [
        verdict_on(peer_status=peer_record(simulated=True, **more)) for more in ({}, NO_HEADERS, {"boot_id": "a"})
    ]

    assert [verdict.simulated for verdict in verdicts] == [True, True, True]


def test_a_skipped_check_has_a_reason(judged):
    """On a node without GPUs that is the better reason."""
    result = judged(peer_status=PeerRecord(), gpus=(), gpu_pci=())["peer_memory.boot"]

    assert (result.status, shown(result.reason)) == (SKIP, "gpu.none")


def test_a_degraded_record_counts_after_gpus_are_lost(judged):
    """A GPU that fell off the bus does not make a failed boot a good one."""
    result = judged(peer_status=peer_record(**NO_HEADERS), gpus=(), gpu_pci=())["peer_memory.boot"]

    assert result.status is FAIL
    assert peer_status(**NO_HEADERS).explanation in shown(result.reason)
