"""GPUDirect RDMA in ``verify``: what is in use, what does nothing, and what the next boot would lose."""

from __future__ import annotations

import dataclasses

import pytest

from provision.facts import Unknown
from provision.facts.gpudirect import PciRouting
from provision.facts.peer_modules import NvidiaModules, PeerMemory
from provision.facts.peer_status import JudgedKernel, PeerRecord
from provision.facts.rdma import RdmaStack
from provision.facts.system import Kind, NodeKind
from provision.model import CheckStatus
from provision.report.reasons import remedy
from tests.support.reasons import shown
from tests.unit.checks.conftest import kernel, linked, peer_record, rdma_device

PASS, WARN, FAIL, SKIP = CheckStatus.PASS, CheckStatus.WARN, CheckStatus.FAIL, CheckStatus.SKIP
IDS = ("path", "modules", "binding", "boot", "kernels", "routing")
NOTHING = PeerMemory({}, frozenset(), "", (), False, frozenset(), False)  # noqa: FBT003
BOTH = frozenset({"nvidia_peermem", "nv_peer_mem"})
PROGRAM = "/usr/local/lib/provision/peer-memory"
OFED = {"ib_core": "updates/dkms/ib_core.ko"}
WITH_OFED = {
    "nvidia_modules": NvidiaModules("550.90", "proprietary", "550.90", {"nvidia": "", "nvidia_peermem": ""}),
    "rdma": RdmaStack((rdma_device(),), 1, ("uverbs0",), "OFED-internal-24.10-0.7.0"),
    "modules": frozenset({"ib_core"}),
    "kernels": (kernel("6.1.0", running=True, **OFED),),
}
"""A node whose path is nvidia-peermem."""


def peers(*loaded: str, bound: frozenset[str] | None = None) -> PeerMemory:
    """Peer memory of an OFED with these modules loaded, and at work unless said otherwise."""
    at_work = frozenset(loaded) if bound is None else bound
    clients = {"/sys/module/nvidia_peermem/version"} if "nvidia_peermem" in loaded else set()
    return PeerMemory(dict.fromkeys(loaded, "550.90"), at_work, "ib_core", (), True, frozenset(clients), False)  # noqa: FBT003


CASES = {
    "DMA-BUF needs no module": ("path", PASS, "DMA-BUF", {}),
    "nvidia-peermem is at work": (
        "path",
        PASS,
        "nvidia-peermem",
        {**WITH_OFED, "peer_memory": peers("nvidia_peermem")},
    ),
    "nvidia-peermem is not loaded": ("path", FAIL, "gdr.peermem_not_loaded", {**WITH_OFED, "peer_memory": peers()}),
    "nvidia-peermem was built before OFED": (
        "path",
        FAIL,
        "peer_memory.path.not_used",
        {
            **WITH_OFED,
            "peer_memory": peers(),
            "kernels": (kernel("6.1.0", running=True),),
        },
    ),
    "nvidia-peermem was built before OFED, and not by DKMS": (
        "path",
        WARN,
        "peer_memory.path.blocked",
        {
            **WITH_OFED,
            "peer_memory": peers(),
            "kernels": (kernel("6.1.0", running=True),),
            "nvidia_modules": dataclasses.replace(WITH_OFED["nvidia_modules"], dkms=False),
        },
    ),
    "OFED 4.9's option came after the module was loaded": (
        "path",
        FAIL,
        "gdr.peerdirect_not_loaded",
        {
            **WITH_OFED,
            "rdma": RdmaStack((rdma_device(),), 1, ("uverbs0",), "MLNX_OFED_LINUX-4.9-4.1.7.0"),
            "peer_memory": dataclasses.replace(peers("nvidia_peermem"), peerdirect_written=True),
        },
    ),
    "nv_peer_mem has taken its place": (
        "path",
        FAIL,
        "peer_memory.path.not_used",
        {**WITH_OFED, "peer_memory": peers("nv_peer_mem")},
    ),
    "proprietary modules without OFED": (
        "path",
        WARN,
        "peer_memory.path.blocked",
        {"nvidia_modules": NvidiaModules("550.90", "proprietary", "550.90", {})},
    ),
    "peer memory cannot be told": ("path", FAIL, "hung: grep", {"peer_memory": Unknown("hung: grep")}),
    "peer_memory.no_card": ("path", SKIP, "peer_memory.no_card", {"rdma": RdmaStack((), 0, (), "")}),
    "Soft-RoCE alone": (
        "path",
        SKIP,
        "peer_memory.soft_devices",
        {"rdma": RdmaStack((rdma_device(driver=""),), 0, (), "")},
    ),
    "both modules at once": (
        "modules",
        FAIL,
        "peer_memory.modules.conflict: nv_peer_mem 550.90 nvidia_peermem 550.90",
        {**WITH_OFED, "peer_memory": peers("nvidia_peermem", "nv_peer_mem")},
    ),
    "another build on the disk": (
        "modules",
        WARN,
        "peer_memory.modules.replaced: nv_peer_mem /usr/local/lib/provision/peer-memory",
        {
            "nvidia_modules": NvidiaModules("550.90", "open", "550.90", {}, {"nv_peer_mem": "BB"}),
            "peer_memory": dataclasses.replace(peers("nv_peer_mem"), sources={"nv_peer_mem": "AA"}),
        },
    ),
    "one module": ("modules", PASS, "nvidia_peermem 550.90", {"peer_memory": peers("nvidia_peermem")}),
    "a stub where it is needed": (
        "binding",
        FAIL,
        "peer_memory.binding.stub: nvidia_peermem",
        {**WITH_OFED, "peer_memory": peers("nvidia_peermem", bound=frozenset())},
    ),
    "a stub beside DMA-BUF": (
        "binding",
        WARN,
        "peer_memory.binding.stub: nvidia_peermem",
        {"peer_memory": dataclasses.replace(NOTHING, loaded={"nvidia_peermem": "550.90"})},
    ),
    "a module at work": (
        "binding",
        PASS,
        "peer_memory.binding.ok: nvidia_peermem",
        {"peer_memory": peers("nvidia_peermem")},
    ),
    "every kernel has the modules": (
        "kernels",
        PASS,
        "peer_memory.kernels.ok: nvidia nvidia_peermem 6.1.0 6.8.0",
        {"kernels": (kernel("6.1.0", running=True), kernel("6.8.0"))},
    ),
    "the next kernel has no driver": (
        "kernels",
        WARN,
        "peer_memory.kernels.incomplete",
        {
            "kernels": (
                kernel("6.1.0", running=True),
                kernel("6.8.0", nvidia="", nvidia_peermem=""),
            )
        },
    ),
    "the next kernel has no OFED": (
        "kernels",
        WARN,
        "peer_memory.kernels.incomplete",
        {**WITH_OFED, "kernels": (*WITH_OFED["kernels"], kernel("6.8.0"))},
    ),
    "a stub that is not loaded, beside nv_peer_mem": (
        "kernels",
        WARN,
        "peer_memory.kernels.incomplete_running",
        {
            **WITH_OFED,
            "kernels": (*WITH_OFED["kernels"], kernel("6.8.0")),
            "peer_memory": peers("nv_peer_mem"),
        },
    ),
    "loaded by insmod, and gone after a reboot": (
        "kernels",
        WARN,
        "peer_memory.kernels.incomplete_running: peer_memory.kernels.kernel 6.1.0 nv_peer_mem",
        {"peer_memory": peers("nv_peer_mem")},
    ),
    "peer_memory.kernels.no_modules": (
        "kernels",
        SKIP,
        "peer_memory.kernels.no_modules",
        {"kernels": (kernel("6.1.0", running=True, nvidia="", nvidia_peermem=""),)},
    ),
    "ACS is on": ("routing", WARN, "0000:17:00.0", {"pci_routing": PciRouting({}, ("0000:17:00.0",))}),
    "the IOMMU translates": (
        "routing",
        WARN,
        "gdr.iommu_translates 0000:06:00.0",
        {"pci_routing": PciRouting({"0000:06:00.0": "DMA"}, ())},
    ),
    "no card near a GPU": ("routing", WARN, "gdr.card_far NODE", {"topology": linked("NODE")}),
    "no lspci": ("routing", PASS, "peer_memory.routing.acs_unknown", {"pci_routing": PciRouting({}, None)}),
    "a virtual machine": (
        "routing",
        SKIP,
        "peer_memory.routing.virtual_machine",
        {"kind": Kind(NodeKind.VM, "kvm", sysctls_writable=True)},
    ),
}


@pytest.mark.parametrize(("noun", "status", "said", "facts"), CASES.values(), ids=CASES)
def test_gpudirect_results_have_a_reason_and_a_remedy(judged, noun, status, said, facts):
    """Each finding says what is so; what is wrong comes with what to do."""
    result = judged(**facts)[f"peer_memory.{noun}"]

    assert (result.status, said in shown(result.reason)) == (status, True), result
    assert bool(remedy(result.reason, "gpu1")) is (status in (WARN, FAIL))


def lacking(release: str, cause: str, explanation: str, remedy: str) -> JudgedKernel:
    """What the node's program says of a kernel that is not ready."""
    return JudgedKernel(release, ok=False, cause=cause, explanation=explanation, remedy=remedy)


MANAGED = {
    **WITH_OFED,
    "peer_memory": peers("nv_peer_mem"),
    "kernels": (
        kernel("6.1.0", running=True, nv_peer_mem="updates/nv_peer_mem.ko", **OFED),
        kernel("6.8.0", nv_peer_mem="updates/nv_peer_mem.ko", **OFED),
        kernel("6.12.0", headers=False, **OFED),
        kernel("5.10.0", nvidia="", nvidia_peermem=""),
    ),
    "peer_status": peer_record(
        kernels=(
            JudgedKernel("6.1.0", ok=True),
            lacking("6.8.0", "symbol_mismatch", "built against another stack", f"Build it: {PROGRAM} build"),
            lacking("6.12.0", "headers_missing", "no headers", "Install linux-headers-6.12.0."),
            lacking("4.19.0", "not_built", "a kernel that is gone", "Build it."),
        )
    ),
}
"""nv_peer_mem by the role: one kernel is well, the next mismatched, one without headers, one installed since."""


def test_kernels_without_the_module_are_reported_with_the_reason_of_the_node(judged):
    """What only the node's program sees (a mismatch), what it has not seen (a kernel since), and none that is gone."""
    result = judged(**MANAGED)["peer_memory.kernels"]

    assert result.status is WARN
    assert result.reason.code == "peer_memory.kernels.not_built"
    assert [shown(part) for part in result.reason.params["kernels"]] == [
        "peer_memory.kernels.kernel: 6.8.0 nv_peer_mem built against another stack",
        "peer_memory.kernels.kernel: 6.12.0 nv_peer_mem no headers",
        "peer_memory.kernels.kernel: 5.10.0 nv_peer_mem nvidia nvidia_peermem peer_memory.kernels.ofed",
    ]
    assert "4.19.0" not in shown(result.reason)


def test_the_remedy_uses_the_commands_of_the_role_instead_of_dkms(judged):
    """The role's own commands are named, what headers are wanted too, and which kernels could go instead."""
    advice = remedy(judged(**MANAGED)["peer_memory.kernels"].reason, "gpu1")

    assert "provision apply --limit gpu1 --only peer_memory" in advice
    assert f"{PROGRAM} build" in advice
    assert "linux-headers-6.12.0" in advice
    assert "6.8.0, 6.12.0, 5.10.0" in advice
    assert "dkms" not in advice


def test_other_kernels_are_checked_if_the_running_one_has_no_module(judged):
    """After a reboot into a kernel without modules the others count, and it itself."""
    bare = {"nvidia": "", "nvidia_peermem": ""}
    facts = {
        **MANAGED,
        "nvidia_modules": NvidiaModules("", "", "", {}),
        "simulated": {"nvidia-smi": "GPUs"},
        "kernels": (kernel("6.1.0", running=True, **bare),),
        "peer_status": peer_record(state="failed", kernels=()),
        "peer_memory": peers(),
    }
    result = judged(**facts)["peer_memory.kernels"]

    assert (result.status, "peer_memory.kernels.kernel 6.1.0 nv_peer_mem" in shown(result.reason)) == (WARN, True)


def test_kernels_with_the_configured_module_pass(judged):
    """Also when the kernel that runs does not use all of them."""
    fine = kernel("6.1.0", running=True, nv_peer_mem="updates/nv_peer_mem.ko", **OFED)
    facts = {**MANAGED, "kernels": (fine,)}

    assert judged(**facts)["peer_memory.kernels"].status is PASS


FINE = {
    **MANAGED,
    "kernels": (kernel("6.1.0", running=True, nv_peer_mem="updates/nv_peer_mem.ko", **OFED),),
    "peer_status": dataclasses.replace(
        peer_record(kernels=(JudgedKernel("6.1.0", ok=True),)),
        newer=("6.1.0",),
    ),
}
"""A node whose record says that all is well, and whose modules are newer than it."""


def test_a_module_broken_by_an_upgrade_is_reported(judged):
    """The RDMA stack was upgraded: the file is there, and its checksums are another's."""
    now = (lacking("6.1.0", "symbol_mismatch", "built against another stack. Build it anew", ""),)
    facts = {**FINE, "peer_status": dataclasses.replace(FINE["peer_status"], rechecked=now)}
    result = judged(**facts)["peer_memory.kernels"]

    assert result.status is WARN
    assert "peer_memory.kernels.not_built" in shown(result.reason)


def test_a_module_fixed_since_the_record_passes(judged):
    """What the node says now counts, not what it wrote down before."""
    before = peer_record(kernels=(lacking("6.1.0", "symbol_mismatch", "built against another stack", "Build it."),))
    now = (JudgedKernel("6.1.0", ok=True),)
    facts = {
        **FINE,
        "peer_status": dataclasses.replace(before, newer=("6.1.0",), rechecked=now),
    }

    assert judged(**facts)["peer_memory.kernels"].status is PASS


def test_a_record_older_than_the_modules_is_not_used(judged):
    """Where the node's program gives no answer, that is said, with how to ask it."""
    result = judged(**FINE)["peer_memory.kernels"]

    assert result.status is WARN
    assert "peer_memory.kernels.not_judged: 6.1.0 nv_peer_mem /usr/local/lib/provision/peer-memory" in shown(
        result.reason
    )
    assert f"{PROGRAM} check" in remedy(result.reason, "gpu1")


def test_a_kernel_without_headers_requires_them_first(judged):
    """DKMS builds nothing without headers, and says so nowhere that one would look."""
    bare = kernel("6.8.0", headers=False, nvidia="")
    advice = remedy(
        judged(kernels=(kernel("6.1.0", running=True), bare))["peer_memory.kernels"].reason,
        "gpu1",
    )

    assert "install the headers of 6.8.0, then dkms autoinstall -k 6.8.0" in advice


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"gpus": (), "gpu_pci": ()}, "gpu.none"),
        ({"kind": Kind(NodeKind.CONTAINER, "docker", sysctls_writable=False)}, "container"),
    ],
)
def test_nodes_without_gpus_or_kernel_are_skipped(judged, facts, said):
    """A node without GPUs, and one whose kernel is its host's, skip all of it with the reason."""
    results = judged(peer_status=PeerRecord(), **facts)

    for noun in IDS:
        assert results[f"peer_memory.{noun}"].status is SKIP
        assert said in shown(results[f"peer_memory.{noun}"].reason)


def test_simulated_gpus_are_skipped(judged):
    """The lab's nvidia-smi is no driver, and its skip says SIMULATED."""
    nothing = {"nvidia_modules": NvidiaModules("", "", "", {}), "peer_status": PeerRecord()}
    results = judged(simulated={"nvidia-smi": "GPUs"}, **nothing)

    assert {results[f"peer_memory.{noun}"].status for noun in IDS} == {SKIP}
    assert all(results[f"peer_memory.{noun}"].simulated for noun in IDS)
    assert "peer_memory.simulated" in shown(results["peer_memory.path"].reason)
