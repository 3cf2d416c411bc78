"""GPU health: what is a fault is said as one, and what only looks like one is not."""

from __future__ import annotations

import pytest

from provision.checks.health_limits import XIDS
from provision.facts import Unknown
from provision.facts.nvlink import FabricManager, Links
from provision.facts.pci_links import PciLink
from provision.facts.system import Kind, NodeKind
from provision.facts.topology import NOT_REQUESTED
from provision.facts.xid import Xid, XidLog
from provision.model import CheckStatus, Topology, TopologyGpu
from provision.report.reasons import remedy
from tests.support.reasons import shown
from tests.unit.checks.conftest import gpu, pci_link

PASS, WARN, FAIL, SKIP = CheckStatus.PASS, CheckStatus.WARN, CheckStatus.FAIL, CheckStatus.SKIP
VM = {"kind": Kind(NodeKind.VM, "kvm", sysctls_writable=True)}
UNTOLD = {
    "ecc": None, "ecc_pending": None, "uncorrected": None, "uncorrected_ever": None, "sram_threshold_exceeded": None,
    "rows_correctable": None, "rows_uncorrectable": None, "rows_pending": None, "rows_failure": None,
    "pcie_generation": None, "pcie_generation_max": None, "pcie_width": None, "pcie_width_max": None,
    "clock_events": None, "recovery": "",
}  # fmt: skip


def two(**second):
    """Two GPUs on the bus and in nvidia-smi, the second with something of its own."""
    return {
        "gpus": (gpu(0), gpu(1, **second)),
        "gpu_pci": ("0000:06:00.0", "0000:07:00.0"),
        "nvlinks": {0: Links(12), 1: Links(12)},
        "pci_links": (pci_link("0000:06:00.0"), pci_link("0000:07:00.0")),
    }


XIDS_LOGGED = [
    ("gpu.state", FAIL, "gpu.state.errors", two(complaints=("GPU requires reset",))),
    ("gpu.state", FAIL, "Drain and Reset (GPU 1)", two(recovery="Drain and Reset")),
    ("gpu.state", FAIL, "Reboot (GPU 1)", two(recovery="Reboot")),
    ("gpu.ecc", FAIL, "2 (GPU 1)", two(uncorrected=2, uncorrected_ever=2)),
    ("gpu.ecc", FAIL, "gpu.ecc.sram_worn: 1", two(sram_threshold_exceeded=True)),
    ("gpu.ecc", WARN, "gpu.ecc.disabled: 1", two(ecc=False)),
    ("gpu.ecc", WARN, "gpu.ecc.disabled: 1", two(ecc_pending=False)),
    ("gpu.row_remap", FAIL, "gpu.row_remap.failed: 1", two(rows_failure=True, rows_pending=True)),
    ("gpu.row_remap", FAIL, "gpu.row_remap.pending: 1", two(rows_pending=True)),
    ("gpu.row_remap", FAIL, "gpu.row_remap.pending: 1", two(rows_pending=None, pages_pending=True)),
    ("gpu.nvlink", FAIL, "gpu.nvlink.down", {**two(), "nvlinks": {0: Links(12), 1: Links(11, (4,))}}),
    ("gpu.nvlink", FAIL, "gpu.nvlink.down: gpu.nvlink.links 1 0 12", {**two(), "nvlinks": {0: Links(12), 1: Links(0)}}),
    ("gpu.nvlink", WARN, "gpu.nvlink.down_virtual", {**two(), **VM, "nvlinks": {0: Links(12), 1: Links(11, (4,))}}),
    ("gpu.nvlink", WARN, "gpu.nvlink.alike: 1 12", {**two(), "nvlinks": {0: Links(11, (4,)), 1: Links(11, (4,))}}),
    ("gpu.nvlink", WARN, "gpu.nvlink.all_down", {**two(), "nvlinks": {0: Links(0), 1: Links(0)}}),
    ("gpu.nvlink", FAIL, "hung", {**two(), "nvlinks": Unknown("hung: nvidia-smi nvlink")}),
    ("gpu.fabric", FAIL, "gpu.fabric.not_joined: gpu.fabric.state 1 Not Started", two(fabric_state="Not Started")),
    ("gpu.fabric", FAIL, "gpu.fabric.not_joined", two(fabric_state="Completed", fabric_status="Failure")),
    ("gpu.fabric", WARN, "gpu.fabric.joining: 1", two(fabric_state="In Progress")),
    ("gpu.fabric", FAIL, "gpu.fabric.manager_not_active: 6 failed", {"fabric_manager": FabricManager(6, "failed")}),
    (
        "gpu.fabric",
        FAIL,
        "gpu.fabric.manager_version: 550.54.15 550.90",
        {"packages": {"nvidia-fabricmanager-550": "550.54.15-1"}},
    ),
    ("gpu.pcie_width", FAIL, "narrow: gpu.pcie_width.lanes", {**two(), "pci_links": (pci_link("0000:07:00.0", 8),)}),
    ("gpu.pcie_width", FAIL, "gpu.pcie_width.narrow", {**two(pcie_width=4), "pci_links": ()}),
    ("gpu.pcie_width", WARN, "maybe_narrow: ", {**two(), **VM, "pci_links": (pci_link("0000:07:00.0", 8),)}),
    ("gpu.throttle", FAIL, "the hardware slows it down for heat 1", two(clock_events=0x48)),
    ("gpu.throttle", FAIL, "the hardware brakes it for power 1", two(clock_events=0x88)),
    ("gpu.throttle", FAIL, "the hardware slows it down 1", two(clock_events=0x8)),
    ("gpu.throttle", WARN, "the driver slows it down for heat 1", two(clock_events=0x21)),
    ("gpu.count", FAIL, "gpu.count.missing: 1 2 0000:07:00.0", {"gpu_pci": ("0000:06:00.0", "0000:07:00.0")}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "status", "reason", "facts"), XIDS_LOGGED, ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_fault_is_reported_with_the_gpu_and_a_remedy(judged, name, status, reason, facts):
    """Which GPU, what is wrong with it, what to do."""
    result = judged(**facts)[name]

    assert (result.status, reason in shown(result.reason)) == (status, True), shown(result.reason)
    assert remedy(result.reason, "gpu1")


def test_the_general_throttle_reason_is_hidden_by_its_cause(judged):
    """Hardware slowdown comes along with its cause; two sentences would look like two faults."""
    reason = judged(**two(clock_events=0x48))["gpu.throttle"].reason

    assert [shown(cause) for cause in reason.params["causes"]] == [
        "gpu.throttle.cause: the hardware slows it down for heat 1"
    ]


HARMLESS = [
    ("gpu.ecc", PASS, "gpu.ecc.ok: 5 (GPU 1)", two(uncorrected_ever=5)),
    ("gpu.row_remap", PASS, "3 (GPU 1)", two(rows_uncorrectable=3)),
    ("gpu.pcie_width", PASS, "gpu.pcie_width.ok: 16", two(pcie_generation=1)),
    ("gpu.pcie_width", PASS, "gpu.pcie_width.ok: 8", {**two(), "pci_links": tuple(
        PciLink(address, True, 8, 16, 2.5, 16.0, 8, 16.0) for address in ("0000:06:00.0", "0000:07:00.0")  # noqa: FBT003
    )}),
    ("gpu.throttle", PASS, "gpu.throttle.ok", two(clock_events=0x1 | 0x2 | 0x4 | 0x10 | 0x100)),
    ("gpu.nvlink", PASS, "gpu.nvlink.ok: 12", {**two(mig=True), "nvlinks": {0: Links(12), 1: Links(0)}}),
    ("gpu.nvlink", PASS, "gpu.nvlink.ok: 4", {
        "gpus": tuple(gpu(n, name="NVIDIA RTX A6000") for n in range(3)), "gpu_pci": ("a", "b", "c"),
        "nvlinks": {0: Links(4), 1: Links(4), 2: Links(0)},
    }),
    ("gpu.nvlink", SKIP, "gpu.nvlink.none", {
        "gpus": (gpu(0, name="NVIDIA L4"), gpu(1, name="NVIDIA L4")), "gpu_pci": ("a", "b"),
        "nvlinks": {0: Links(0, (0, 1)), 1: Links(0, (0, 1))},
    }),
    ("gpu.nvlink", PASS, "gpu.nvlink.ok: 4", {
        **two(), **VM, "nvlinks": {0: Links(4, (4, 5)), 1: Links(4, (4, 5))},
    }),
    ("gpu.fabric", PASS, "gpu.fabric.ok: 2", {
        "gpus": tuple(gpu(n, fabric_state="Completed", fabric_status="Success") for n in range(2)),
        "gpu_pci": ("a", "b"),
    }),
    ("gpu.fabric", SKIP, "gpu.fabric.none", {"fabric_manager": FabricManager(0, "")}),
    ("gpu.fabric", PASS, "gpu.fabric.manager_ok: 6", {
        "packages": {"nvidia-fabricmanager": "550.90-1", "nvidia-fabricmanager-dev": "1"},
    }),
]  # fmt: skip


@pytest.mark.parametrize(("name", "status", "reason", "facts"), HARMLESS, ids=lambda v: v if isinstance(v, str) else "")
def test_harmless_states_are_not_faults(judged, name, status, reason, facts):
    """Idle links, errors fixed long ago, power caps, cards without a bridge, narrow slots, MIG, virtual machines."""
    result = judged(**facts)[name]

    assert (result.status, reason in shown(result.reason)) == (status, True), shown(result.reason)


def test_fewer_lanes_than_supported_are_a_warning(judged):
    """A cloud's A10G has 8 of the 16 lanes that it could have: worth a warning, not a failure."""
    facts = {**two(pcie_width=8), "pci_links": ()}
    facts["gpus"] = (gpu(0, pcie_width=8), facts["gpus"][1])

    assert judged(**facts)["gpu.pcie_width"].status is WARN


def test_missing_values_are_skipped(judged):
    """A virtual GPU or a consumer card gives skips with a reason, never a failure."""
    results = judged(gpus=(gpu(0, name="GRID A100-8C", **UNTOLD),), pci_links=(), nvlinks={0: Links(0)},
                     fabric_manager=FabricManager(0, ""))  # fmt: skip

    assert {results[name].status for name in ("gpu.ecc", "gpu.row_remap", "gpu.pcie_width", "gpu.throttle")} == {SKIP}
    assert {results[name].status for name in ("gpu.nvlink", "gpu.fabric")} == {SKIP}
    assert results["gpu.state"].status is PASS
    assert "gpu.state.not_reported: 1" in shown(results["gpu.state"].reason)


def test_a_hung_nvidia_smi_is_one_failure(judged):
    """The output of nvidia-smi is missing; the kernel's log is read all the same."""
    results = judged(gpus=Unknown("hung: nvidia-smi (no end within 40 s)"), xids=log(xid(79)))
    failed = {name for name, result in results.items() if result.status is FAIL and name.startswith("gpu.")}

    assert failed == {"gpu.driver", "gpu.xid"}
    assert shown(results["gpu.ecc"].reason) == "check.waits: gpu.driver"


def xid(number: int, text: str = "", *, count: int = 1, seconds: float | None = 3600.0, switch: bool = False) -> Xid:
    return Xid(number, "PCI:0000:06:00", count, seconds, text, switch)


def log(*xids: Xid, since: float = 0.0) -> XidLog:
    return XidLog(7200.0, since, xids)


OLD_DRIVER = {"gpus": (gpu(0, recovery=""),)}


@pytest.mark.parametrize(
    ("status", "reason", "events", "facts"),
    [
        (PASS, "gpu.xid.ok: gpu.xid.since_boot", (), {}),
        (PASS, "gpu.xid.harmless", (xid(13, count=40),), {}),
        (PASS, "gpu.xid.harmless", (xid(31), xid(43), xid(45), xid(63)), {}),
        (FAIL, "gpu.xid.errors", (xid(13), xid(79)), OLD_DRIVER),
        (FAIL, "gpu.xid.errors", (xid(94), xid(48)), OLD_DRIVER),
        (FAIL, "gpu.xid.errors", (xid(119, seconds=None),), OLD_DRIVER),
        (FAIL, "NVLink", (xid(74),), OLD_DRIVER),
        (WARN, "asks for no recovery now", (xid(119),), {}),
        (WARN, "contained", (xid(94), xid(13)), {}),
        (WARN, "gpu.xid.errors", (xid(999),), {}),
        (FAIL, "asks for action: Node Reboot Required", (
            xid(154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"),), OLD_DRIVER),
        (PASS, "needs no action any more", (
            xid(154, "GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)"),), OLD_DRIVER),
        (FAIL, "SXid 20034", (xid(20034, "Fatal, Link 30 LTSSM Fault Up", switch=True),), {}),
        (PASS, "gpu.xid.ok: gpu.xid.since_boot", (xid(28006, "Non-fatal, Link 46 MC TS crumbstore", switch=True),), {}),
    ],
)  # fmt: skip
def test_xids_are_rated_by_severity(judged, status, reason, events, facts):
    """A program's error is none of the node's; an error that the driver has corrected weighs less."""
    result = judged(xids=log(*events), **facts)["gpu.xid"]

    assert (result.status, reason in shown(result.reason)) == (status, True), shown(result.reason)
    assert bool(remedy(result.reason, "gpu1")) is (status in (WARN, FAIL))


def test_a_recovered_gpu_does_not_clear_another_gpu(judged):
    """The driver's word counts for the GPU of which it was said."""
    facts = two(recovery="")
    lost = Xid(119, "PCI:0000:07:00", 1, 10.0, "")

    assert judged(xids=log(lost), **facts)["gpu.xid"].status is FAIL


def test_a_log_that_does_not_reach_back_to_the_boot_is_reported(judged):
    """Two hours of silence do not count as silence since boot."""
    assert "gpu.xid.ok: gpu.xid.since_log 3600.0" in shown(judged(xids=log(since=3600.0))["gpu.xid"].reason)


def test_an_unreadable_log_is_a_warning(judged):
    """It is neither a fault of the GPUs nor a clean bill."""
    result = judged(xids=Unknown("the kernel's log cannot be read"))["gpu.xid"]

    assert (result.status, bool(remedy(result.reason, "gpu1"))) == (WARN, True)


def test_the_kernel_log_is_not_checked_in_a_container(judged):
    """The kernel's log there belongs to another machine, or to none."""
    container = Kind(NodeKind.CONTAINER, "docker", sysctls_writable=False)

    assert judged(kind=container, xids=log(xid(79)))["gpu.xid"].status is SKIP


# facts of NVIDIA's catalogue: what to do at once.
RESTART_PROGRAM = (13, 31, 68, 94)
RESET = (62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158)
IGNORE = (63, 43, 121, 137, 157)
WORKFLOW = (48, 74, 144, 145, 146, 147, 148, 149, 150)


@pytest.mark.parametrize("number", [*RESET, *WORKFLOW, 79])
def test_xids_that_require_immediate_action_fail(judged, number):
    """Reset, restart of the node, or a field engineer's procedure."""
    assert judged(xids=log(xid(number)), **OLD_DRIVER)["gpu.xid"].status is FAIL


@pytest.mark.parametrize("number", [*RESTART_PROGRAM, *IGNORE, 45, 92])
def test_xids_of_programs_never_fail(judged, number):
    """The node stays in use."""
    assert judged(xids=log(xid(number)), **OLD_DRIVER)["gpu.xid"].status in (PASS, WARN)


def test_every_reported_xid_has_a_remedy():
    """No warning or failure without a remedy."""
    assert [number for number, meaning in XIDS.items() if meaning.weight.value != "job" and not meaning.remedy] == []


def wired(*rows: str) -> Topology:
    """GPUs without cards; each row has the classes of one."""
    links = tuple(tuple(row.split()) for row in rows)
    return Topology(tuple(TopologyGpu(index, 0) for index in range(len(links))), (), links)


def four(name: str = "NVIDIA A100-SXM4-80GB", **first: object) -> dict[str, object]:
    """Four GPUs whose own links are all up."""
    return {
        "gpus": (gpu(0, name=name, **first), *(gpu(number, name=name) for number in range(1, 4))),
        "gpu_pci": tuple(f"0000:{number + 6:02x}:00.0" for number in range(4)),
        "nvlinks": {number: Links(12) for number in range(4)},
    }


SOUND = wired("X NV12 NV12 NV12", "NV12 X NV12 NV12", "NV12 NV12 X NV12", "NV12 NV12 NV12 X")
ALONE = wired("X SYS SYS SYS", "SYS X NV12 NV12", "SYS NV12 X NV12", "SYS NV12 NV12 X")
ONE_WAY = wired("X NV12 NV12 NV12", "NODE X NV12 NV12", "NV12 NV12 X NV12", "NV12 NV12 NV12 X")
PAIRS = wired("X NV4 SYS SYS", "NV4 X SYS SYS", "SYS SYS X NV4", "SYS SYS NV4 X")
BRIDGED = wired("X SYS SYS SYS", "SYS X NV6 NV6", "SYS NV6 X NV6", "SYS NV6 NV6 X")


@pytest.mark.parametrize(
    ("status", "reason", "facts"),
    [
        (PASS, "4 GPUs, connected by NVLink switches, 12 lanes each", {**four(), "topology": SOUND}),
        (PASS, "NVLinks of 4 lanes between 2 of 6 pairs", {**four("NVIDIA RTX A6000"), "topology": PAIRS}),
        (FAIL, "topology.no_nvlink GPU0 3 12", {**four(), "topology": ALONE}),
        (FAIL, "topology.link_directions GPU0 GPU1 NV12 NODE", {**four(), "topology": ONE_WAY}),
        (WARN, "topology.no_nvlink_or_bridge GPU0 3 6", {**four("NVIDIA H200 NVL"), "topology": BRIDGED}),
        (WARN, "gpu.topology.faults_virtual", {**four(), **VM, "topology": ALONE}),
        (PASS, "4 GPUs", {**four(mig=True), "topology": ALONE}),
        (
            WARN,
            "gpu.topology.unreadable: hung: nvidia-smi topo -m",
            {**four(), "topology": Unknown("hung: nvidia-smi topo -m")},
        ),
        (SKIP, "gpu.topology.not_requested", {**four(), "topology": NOT_REQUESTED}),
        (SKIP, "gpu.none", {"gpus": (), "gpu_pci": (), "topology": Topology(())}),
        (SKIP, "check.waits: gpu.nvlink", {**four(), "nvlinks": {0: Links(0), 1: Links(12)}, "topology": ALONE}),
    ],
)
def test_links_are_checked_as_a_whole(judged, status, reason, facts):
    """A GPU off the fabric and a matrix that is not symmetric are faults; bridges, MIG and hypervisors explain some."""
    result = judged(**facts)["gpu.topology"]

    assert (result.status, reason in shown(result.reason)) == (status, True), shown(result.reason)
    assert bool(remedy(result.reason, "gpu1")) is (status in (WARN, FAIL))


def test_the_remedy_for_a_gpu_off_the_fabric_excludes_it_from_jobs(judged):
    """The remedy says which to leave out."""
    assert "Until then give jobs no GPU 0." in remedy(judged(**four(), topology=ALONE)["gpu.topology"].reason, "gpu1")
