"""RDMA ports: slow ones and bad links are found, and mixed cards and old counters do no harm."""

from __future__ import annotations

import pytest

from provision.facts import Unknown
from provision.facts.pci_links import PciLink
from provision.facts.rdma import RdmaDevice, RdmaPort, RdmaStack
from provision.facts.system import Boot, Kind, NodeKind
from provision.model import CheckStatus
from provision.report.reasons import remedy
from tests.support.reasons import shown
from tests.unit.checks.conftest import rdma_device

PASS, WARN, FAIL, SKIP = CheckStatus.PASS, CheckStatus.WARN, CheckStatus.FAIL, CheckStatus.SKIP
DAY = Boot(86400, "b")


def card(name: str, rate: str, *, board: str = "MT_1", layer: str = "InfiniBand", state: str = "ACTIVE") -> RdmaDevice:
    port = RdmaPort(1, layer, state, "LinkUp", rate)
    return RdmaDevice(name, "mlx5_core", f"uverbs{name[-1]}", (), (port,), "1", board)


def stack(*devices: RdmaDevice) -> RdmaStack:
    return RdmaStack(devices, len(devices), (), "")


NDR, NDR200, HDR = "400 Gb/sec (4X NDR)", "200 Gb/sec (2X NDR)", "200 Gb/sec (4X HDR)"


@pytest.mark.parametrize(
    ("status", "reason", "devices"),
    [
        (PASS, "rdma_stack.port_rate.ok: 2 400", (card("mlx5_0", NDR), card("mlx5_1", NDR))),
        (WARN, "mlx5_1 200 of 400 Gbit/s", (card("mlx5_0", NDR), card("mlx5_1", HDR))),
        (FAIL, "mlx5_1 100 Gb/sec (1X NDR)", (card("mlx5_0", NDR), card("mlx5_1", "100 Gb/sec (1X NDR)"))),
        (PASS, "rdma_stack.port_rate.ok: 2 200", (card("mlx5_0", NDR200), card("mlx5_1", NDR200))),
        (
            PASS,
            "rdma_stack.port_rate.ok: 2 100 400",
            (card("mlx5_0", NDR), card("mlx5_1", "100 Gb/sec (4X EDR)", board="MT_2")),
        ),
        (PASS, "rdma_stack.port_rate.ok: 2 200 400", (card("mlx5_0", NDR), card("mlx5_1", HDR, layer="Ethernet"))),
        (PASS, "rdma_stack.port_rate.ok: 1 25", (card("mlx5_0", "25 Gb/sec (1X EDR)", layer="Ethernet"),)),
        (
            PASS,
            "rdma_stack.port_rate.ok: 1 400",
            (card("mlx5_0", NDR), card("mlx5_1", "10 Gb/sec (4X SDR)", state="DOWN")),
        ),
        (SKIP, "rdma_stack.port_rate.not_reported", (rdma_device("rxe0", driver=""),)),
    ],
)
def test_rates_are_compared_with_the_same_kind_of_card(judged, status, reason, devices):
    """Other products, other networks, splitter cables and ports that are down are no slow ports."""
    result = judged(rdma=stack(*devices))["rdma_stack.port_rate"]

    assert (result.status, reason in shown(result.reason)) == (status, True), shown(result.reason)
    assert bool(remedy(result.reason, "gpu1")) is (status in (WARN, FAIL))


@pytest.mark.parametrize(
    ("status", "reason", "counters"),
    [
        (PASS, "rdma_stack.port_errors.ok: 86400.0", {}),
        (PASS, "", {"symbol_error": 120 * 24}),
        (FAIL, "rdma_stack.port_errors.errors", {"symbol_error": 120 * 24 + 1}),
        (PASS, "", {"link_downed": 10}),
        (WARN, "11 times link down", {"link_downed": 11}),
        (WARN, "1 buffer overruns", {"excessive_buffer_overrun_errors": 1}),
        (WARN, "more physical errors", {"local_link_integrity_errors": 1}),
        (WARN, "50 bad packets", {"port_rcv_errors": 50}),
        (FAIL, "symbol errors", {"symbol_error": 65535, "link_downed": 99}),
        (PASS, "out_of_sequence 90000", {"out_of_sequence": 90000, "local_ack_timeout_err": 3}),
    ],
)
def test_errors_are_rated_by_their_frequency(judged, status, reason, counters):
    """Counters run since the driver was loaded: ten errors in a day are not ten errors in an hour."""
    result = judged(boot=DAY, rdma_counters={"mlx5_0 port 1": counters})["rdma_stack.port_errors"]

    assert (result.status, reason in shown(result.reason)) == (status, True), shown(result.reason)
    assert bool(remedy(result.reason, "gpu1")) is (status in (WARN, FAIL))


def test_the_same_errors_weigh_more_after_a_recent_boot(judged):
    """Fifty times link down are much for two hours and little for a month."""
    counters = {"mlx5_0 ens1": {"carrier_down_count": 50}}

    assert judged(boot=Boot(7200, "b"), rdma_counters=counters)["rdma_stack.port_errors"].status is WARN
    assert judged(boot=Boot(30 * 86400, "b"), rdma_counters=counters)["rdma_stack.port_errors"].status is PASS


def test_a_card_whose_counters_hang_fails(judged):
    """A card with hung firmware is named by the command that hung."""
    result = judged(rdma_counters=Unknown("hung: cat /sys/class/infiniband"))["rdma_stack.port_errors"]

    assert result.status is FAIL


def test_nodes_without_a_card_are_skipped(judged):
    """Soft-RoCE has no link, no cable and no slot."""
    results = judged(rdma=stack(rdma_device("rxe0", driver="")), pci_links=())

    assert results["rdma_stack.port_errors"].status is SKIP
    assert results["rdma_stack.pcie_width"].status is SKIP


def link(width: int | None = 16, speed: float | None = 32.0, *, slot: int | None = 16, slot_speed: float | None = 32.0):
    return PciLink("0000:3b:00.0", False, width, 16, speed, 32.0, slot, slot_speed)  # noqa: FBT003


@pytest.mark.parametrize(
    ("status", "reason", "seen"),
    [
        (PASS, "rdma_stack.pcie_width.ok: 1", link()),
        (FAIL, "0000:3b:00.0 has 8 of 16 lanes", link(8)),
        (WARN, "0000:3b:00.0 has 16 of 32 GT/s", link(speed=16.0)),
        (PASS, "rdma_stack.pcie_width.ok: 1", link(8, slot=8)),
        (PASS, "rdma_stack.pcie_width.ok: 1", link(speed=16.0, slot_speed=16.0)),
        (FAIL, "8 of 16", link(8, slot=None)),
        (SKIP, "rdma_stack.pcie_width.not_reported", link(None)),
    ],
)
def test_pcie_links_of_cards_are_checked_within_their_slot(judged, status, reason, seen):
    """What the slot cannot give is not missed."""
    result = judged(pci_links=(seen,))["rdma_stack.pcie_width"]

    assert (result.status, reason in shown(result.reason)) == (status, True), shown(result.reason)


def test_links_of_a_hypervisor_are_not_checked(judged):
    """It shows what it likes."""
    vm = Kind(NodeKind.VM, "kvm", sysctls_writable=True)

    assert judged(kind=vm, pci_links=(link(1),))["rdma_stack.pcie_width"].status is SKIP
