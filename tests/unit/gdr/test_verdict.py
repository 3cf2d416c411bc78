"""Every row of the decision table and every precondition."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import pytest

from provision.gdr import Cards, Evidence, Flavor, GdrPath, Situation, Stack, assumed, verdict
from provision.gdr.base import GdrVerdict
from provision.model.reason import Reason, reason
from provision.report.reasons import remedy
from tests.support.reasons import shown

DMA_BUF, PEERMEM, OLD_MODULE, NONE = GdrPath.DMA_BUF, GdrPath.NVIDIA_PEERMEM, GdrPath.NV_PEER_MEM, GdrPath.NONE
H100 = Situation("570.133.20", "6.8.0", Stack.INBOX, Flavor.OPEN, ("hopper",), "2.27.5")
A100 = Situation("535.161.08", "5.15.0-105-generic", Stack.OFED, Flavor.PROPRIETARY, ("ampere",), "2.20.5")
V100 = Situation("450.80.02", "3.10.0-957.el7.x86_64", Stack.OFED, Flavor.PROPRIETARY, ("volta",), "2.9.9")


def like(situation: Situation, **values: object) -> Situation:
    """Return the situation with some values replaced; other names are fields of the evidence."""
    own = {key: value for key, value in values.items() if key in Situation.__dataclass_fields__}
    seen = {key: value for key, value in values.items() if key not in own}
    return dataclasses.replace(situation, **own, evidence=dataclasses.replace(situation.evidence, **seen))


def all_shown(reasons: Iterable[Reason]) -> str:
    """Return the codes and values of reasons as one text."""
    return "; ".join(shown(reason) for reason in reasons)


def lacking(result: GdrVerdict, path: GdrPath) -> list[str]:
    """Return the codes and values of the unmet preconditions of a path."""
    return [shown(item.precondition) for item in result.unmet if item.path is path]


def steps(result: GdrVerdict) -> list[str]:
    """Return the codes and values of the remaining steps."""
    return [shown(item.precondition) for item in result.to_do]


ROWS = {
    "row 1: open modules, kernel 5.12, inbox -> dma_buf": (like(H100, kernel="5.12.0"), DMA_BUF, ""),
    "row 1: driver 515 is enough": (like(H100, driver="515.43", gpus=("ampere",)), DMA_BUF, ""),
    "row 1: Turing is enough": (like(H100, gpus=("turing",)), DMA_BUF, ""),
    "row 1: NCCL 2.13 is enough": (like(H100, nccl="2.13.4"), DMA_BUF, ""),
    "row 1: with OFED too": (like(H100, stack=Stack.OFED), DMA_BUF, ""),
    "row 1: an older kernel that can (EL 8)": (like(H100, kernel="4.18.0-553", dma_buf_kernel=True), DMA_BUF, ""),
    "row 2: OFED, kernel before 6.4 -> nvidia_peermem": (A100, PEERMEM, ""),
    "row 2: driver 470 is enough": (like(A100, driver="470.57.02"), PEERMEM, ""),
    "row 2: kernel 6.4 with NCCL 2.23": (like(A100, kernel="6.4.0", nccl="2.23.4"), PEERMEM, ""),
    "row 2: open modules on a kernel too old for DMA-BUF": (
        like(A100, driver="550.54", flavor=Flavor.OPEN, kernel="5.4.0"),
        PEERMEM,
        "",
    ),
    "row 3: OFED 4.9 -> nvidia_peermem with peerdirect_support=1": (
        like(A100, stack=Stack.OFED_LEGACY, kernel="4.18.0", nccl="2.9.9"),
        PEERMEM,
        "gdr.peerdirect_needed",
    ),
    "row 3: OFED 4.9 cannot take part in DMA-BUF": (
        like(H100, stack=Stack.OFED_LEGACY, kernel="5.15.0"),
        PEERMEM,
        "gdr.peerdirect_needed",
    ),
    "row 4: kernel 6.4 with NCCL 2.22.3 -> DMA-BUF where row 1 holds": (
        like(H100, stack=Stack.OFED, kernel="6.4.0", nccl="2.22.3"),
        DMA_BUF,
        "",
    ),
    "row 4: kernel 6.4 with NCCL 2.22.3 -> none where it does not": (
        like(A100, kernel="6.4.0", nccl="2.22.3"),
        NONE,
        "gdr.nccl_misses_peermem",
    ),
    "row 5: driver before 470, OFED with peer_memory_client_ex -> nv_peer_mem 1.3": (
        like(V100, kernel="5.4.0"),
        OLD_MODULE,
        "gdr.nv_peer_mem_version: 1.3",
    ),
    "row 6: driver before 470, OFED 4.9 -> nv_peer_mem 1.1": (
        like(V100, stack=Stack.OFED_LEGACY),
        OLD_MODULE,
        "gdr.nv_peer_mem_version: 1.1",
    ),
    "row 6: driver before 470, early OFED 5 -> nv_peer_mem 1.1": (
        like(V100, extended=False),
        OLD_MODULE,
        "gdr.nv_peer_mem_version: 1.1",
    ),
    "row 7: a kernel that exports the interface itself -> nvidia_peermem": (
        like(A100, stack=Stack.INBOX, kernel="6.5.0-41-generic", peer_api=True, nccl="2.23.4"),
        PEERMEM,
        "",
    ),
    "row 7: and NCCL before 2.23": (
        like(A100, stack=Stack.INBOX, kernel="6.5.0-41-generic", peer_api=True, nccl="2.21.5"),
        NONE,
        "gdr.nccl_misses_peermem",
    ),
    "row 7: whose folder is not where NCCL before 2.23 looks, on older kernels too": (
        like(A100, stack=Stack.INBOX, peer_api=True, nccl="2.21.5"),
        NONE,
        "gdr.nccl_misses_peermem",
    ),
    "row 8: proprietary modules, inbox -> none": (
        like(A100, stack=Stack.INBOX),
        NONE,
        "gdr.inbox_without_peer_interface",
    ),
    "row 8: kernel before 5.12, inbox -> none": (
        like(H100, kernel="5.11.0"),
        NONE,
        "gdr.kernel_without_dma_buf 5.11.0 5.12",
    ),
    "row 9: no RDMA card -> none": (like(H100, cards=Cards.NONE), NONE, "gdr.no_card"),
    "only Soft-RoCE -> none": (like(H100, cards=Cards.SOFT), NONE, "gdr.only_soft_devices"),
}


@pytest.mark.parametrize(("situation", "path", "said"), ROWS.values(), ids=ROWS)
def test_the_decision_table(situation, path, said):
    result = verdict(situation)

    assert result.path is path
    assert said in all_shown(result.reasons)
    better = [DMA_BUF, PEERMEM, OLD_MODULE, NONE][: [DMA_BUF, PEERMEM, OLD_MODULE, NONE].index(path)]
    assert set(better) <= {item.path for item in result.unmet}
    assert all(remedy(item.precondition) for item in result.unmet)


NCCL_BEFORE_2_23 = like(A100, kernel="6.8.0-60-generic", nccl="2.22.3")
TRAPS = {
    "NCCL 2.22.3 or older on kernel 6.4: the module is invisible": (
        NCCL_BEFORE_2_23,
        PEERMEM,
        "gdr.nccl_misses_peermem: 2.22.3 2.23 6.8.0-60-generic",
    ),
    "a stub, and no sources to build it from": (
        like(A100, peermem_stub=True, rebuildable=False),
        PEERMEM,
        "gdr.peermem_is_stub: gdr.reinstall",
    ),
    "a stub, and an RDMA stack without the interface": (
        like(A100, stack=Stack.INBOX, peermem_stub=True, rebuildable=True),
        PEERMEM,
        "gdr.inbox_without_peer_interface",
    ),
    "a stub, and a kernel that was probed for the interface": (
        like(A100, stack=Stack.INBOX, peer_api=False),
        PEERMEM,
        "gdr.kernel_without_peer_interface",
    ),
    "a stub, and an ib_core that is not OFED's": (
        like(A100, peer_api=False, peermem_stub=True),
        PEERMEM,
        "gdr.peermem_is_stub: gdr.rebuild",
    ),
    "OFED is installed, and the kernel's own ib_core is loaded": (
        like(A100, peer_api=False, stack_title="MLNX_OFED_LINUX-5.8"),
        PEERMEM,
        "gdr.other_stack_loaded: MLNX_OFED_LINUX-5.8",
    ),
    "nv_peer_mem without OFED": (like(V100, stack=Stack.INBOX), OLD_MODULE, "gdr.mlnx_ofed_missing"),
    "no headers to build nv_peer_mem": (
        like(V100, headers=False),
        OLD_MODULE,
        "gdr.headers_missing: 3.10.0-957.el7.x86_64",
    ),
    "nv_peer_mem on kernel 6": (like(V100, kernel="6.1.0"), OLD_MODULE, "gdr.kernel_too_new: 6.1.0 6.0 470"),
    "Secure Boot and an unsigned driver": (
        like(H100, driver="", refused=frozenset({"nvidia"})),
        DMA_BUF,
        "gdr.module_unsigned: nvidia",
    ),
    "nv_peer_mem at a path that NCCL does not check": (
        like(V100, kernel="6.5.0", nccl="2.27.5"),
        OLD_MODULE,
        "gdr.nccl_misses_module: 6.5.0 6.4 2.23",
    ),
    "libibverbs before rdma-core 34": (like(H100, dma_buf_library=False), DMA_BUF, "gdr.rdma_core_without_dma_buf: 34"),
    "OFED 4.9": (like(H100, stack=Stack.OFED_LEGACY), DMA_BUF, "gdr.ofed_without_dma_buf: 4.9"),
    "a new kernel with an RDMA stack without DMA-BUF": (
        like(H100, dma_buf_kernel=False),
        DMA_BUF,
        "gdr.stack_without_dma_buf: 6.8.0 5.12",
    ),
    "a kernel without PCI_P2PDMA": (
        like(H100, missing_options=("CONFIG_PCI_P2PDMA",)),
        DMA_BUF,
        "gdr.kernel_options_missing: CONFIG_PCI_P2PDMA",
    ),
    "GeForce": (like(H100, gpus=("blackwell",), geforce=True), DMA_BUF, "gdr.geforce"),
    "NCCL before 2.13": (like(H100, nccl="2.12.12"), DMA_BUF, "gdr.nccl_without_dma_buf: 2.12.12 2.13"),
    "proprietary modules on a GPU that supports open ones": (
        like(H100, flavor=Flavor.PROPRIETARY),
        DMA_BUF,
        "gdr.open_modules_missing: proprietary",
    ),
    "a driver before the first with open modules": (
        like(H100, driver="510.47", flavor=Flavor.PROPRIETARY, gpus=("ampere",)),
        DMA_BUF,
        "gdr.open_modules_missing: proprietary 515",
    ),
}


@pytest.mark.parametrize(("situation", "path", "precondition"), TRAPS.values(), ids=TRAPS)
def test_an_unmet_precondition_closes_its_path(situation, path, precondition):
    result = verdict(situation)

    assert result.path is not path
    assert precondition in lacking(result, path)


WORK = {
    "a stub: the driver was built before OFED": (
        like(A100, peermem_stub=True),
        PEERMEM,
        "gdr.peermem_is_stub: gdr.rebuild",
    ),
    "a stub, seen on a node": (
        like(A100, peermem_stub=True, peer_api=True, rebuildable=True),
        PEERMEM,
        "gdr.peermem_is_stub: gdr.rebuild",
    ),
    "a stub beside a kernel with the interface": (
        like(A100, stack=Stack.INBOX, kernel="6.5.0-41-generic", peer_api=True, nccl="2.23.4", peermem_stub=True),
        PEERMEM,
        "gdr.peermem_is_stub: gdr.rebuild",
    ),
    "no module file for the running kernel": (
        like(A100, peermem_file=False),
        PEERMEM,
        "gdr.peermem_missing: 5.15.0-105-generic gdr.rebuild",
    ),
    "no module file, and no headers": (
        like(A100, peermem_file=False, headers=False),
        PEERMEM,
        "gdr.peermem_missing: 5.15.0-105-generic gdr.rebuild_with_headers 5.15.0-105-generic",
    ),
    "Secure Boot and an unsigned module": (
        like(A100, refused=frozenset({"nvidia_peermem"})),
        PEERMEM,
        "gdr.module_unsigned: nvidia_peermem",
    ),
    "Secure Boot and an unsigned nv_peer_mem": (
        like(V100, refused=frozenset({"nv_peer_mem"})),
        OLD_MODULE,
        "gdr.module_unsigned: nv_peer_mem",
    ),
}


@pytest.mark.parametrize(("situation", "path", "step"), WORK.values(), ids=WORK)
def test_remaining_steps_close_no_path(situation, path, step):
    """The path is the verdict, and its remaining steps come first."""
    result = verdict(situation)

    assert result.path is path
    assert shown(result.reasons[0]).startswith(f"gdr.path: {path.spelling} ")
    assert steps(result)[0] == step


def test_with_dma_buf_a_stub_is_not_reported_as_ready():
    result = verdict(like(H100, stack=Stack.OFED, peermem_stub=True))

    assert "gdr.peermem_usable_after_rebuild" in [reason.code for reason in result.reasons]


def test_the_option_of_ofed_4_9_counts_only_in_the_loaded_module():
    """The option in modprobe.d takes effect only when the module is loaded again."""
    loaded = frozenset({"nvidia_peermem"})
    node = like(A100, stack=Stack.OFED_LEGACY, kernel="4.18.0", loaded=loaded, bound=loaded, peerdirect=False)

    assert steps(verdict(like(node, peerdirect_written=True))) == ["gdr.peerdirect_not_loaded: 4.9"]
    assert steps(verdict(node)) == ["gdr.peerdirect_not_set: 4.9"]


UNDRIVEN = {
    "Maxwell with open modules": (
        "driver=570.86.15,modules=open,gpu=maxwell",
        "gdr.gpu_needs_proprietary_modules: Maxwell 570.86.15",
    ),
    "Pascal with open modules": (
        "driver=550.54,modules=open,gpu=pascal",
        "gdr.gpu_needs_proprietary_modules: Pascal 550.54",
    ),
    "Volta with open modules": (
        "driver=570.86.15,modules=open,gpu=volta",
        "gdr.gpu_needs_proprietary_modules: Volta 570.86.15",
    ),
    "Volta after branch 580": (
        "driver=590.44,modules=proprietary,gpu=volta",
        "gdr.driver_too_new: Volta 590.44 580",
    ),
    "Blackwell with proprietary modules": (
        "driver=575.51,modules=proprietary,gpu=blackwell",
        "gdr.gpu_needs_open_modules: Blackwell 575.51",
    ),
    "Grace Hopper with proprietary modules": (
        "driver=550.54,modules=proprietary,gpu=grace-hopper",
        "gdr.gpu_needs_open_modules: Grace Hopper 550.54",
    ),
    "Blackwell before 570.133.20": (
        "driver=570.86.15,modules=open,gpu=blackwell",
        "gdr.driver_too_old: Blackwell 570.86.15 570.133.20",
    ),
    "open modules before 515": (
        "driver=510.47,modules=open,gpu=ampere",
        "gdr.driver_without_open_modules: 510.47 515",
    ),
}


@pytest.mark.parametrize(("text", "precondition"), UNDRIVEN.values(), ids=UNDRIVEN)
def test_a_driver_that_does_not_support_the_gpu_leaves_no_path(text, precondition):
    result = verdict(assumed(f"{text},kernel=6.8,stack=ofed,nccl=2.27.5"))

    assert result.path is NONE
    assert shown(result.reasons[0]) == precondition
    assert all(precondition in lacking(result, path) for path in (DMA_BUF, PEERMEM, OLD_MODULE))


def test_branch_580_supports_volta_with_proprietary_modules():
    result = verdict(assumed("driver=580.105.08,modules=proprietary,gpu=volta,kernel=6.8,stack=ofed,nccl=2.27.5"))

    assert result.path is PEERMEM
    assert "gdr.gpu_without_dma_buf: Volta" in lacking(result, DMA_BUF)


def test_a_gpu_listed_by_nvidia_smi_is_supported():
    """The table has minima of data center products; a working node is not an error."""
    seen = like(H100, driver="570.86.15", gpus=("blackwell",), serves=True)

    assert verdict(seen).path is DMA_BUF


def test_both_modules_loaded_is_a_remaining_step():
    result = verdict(like(A100, loaded=frozenset({"nvidia_peermem", "nv_peer_mem"}), bound=frozenset({"nv_peer_mem"})))

    assert result.path is PEERMEM
    assert steps(result) == ["gdr.nv_peer_mem_loaded"]


def test_ofed_4_9_without_its_option_is_a_remaining_step():
    node = like(A100, stack=Stack.OFED_LEGACY, kernel="4.18.0", loaded=frozenset({"nvidia_peermem"}))

    assert steps(verdict(like(node, peerdirect=False))) == ["gdr.peerdirect_not_set: 4.9"]
    assert verdict(like(node, peerdirect=True)).to_do == ()


def test_nv_peer_mem_is_built_in_the_matching_version():
    result = verdict(like(V100, loaded=frozenset(), extended=False, zstd=True))

    assert steps(result) == ["gdr.nv_peer_mem_not_loaded: 1.1", "gdr.driver_modules_zstd"]


def test_the_main_reason_can_be_fixed():
    """A V100 never exports DMA-BUF; for nvidia-peermem it needs a newer image."""
    result = verdict(like(A100, gpus=("volta",), kernel="6.8.0", nccl="2.20.5"))

    assert result.path is NONE
    assert shown(result.reasons[0]) == "gdr.path_needs: nvidia-peermem gdr.nccl_misses_peermem 2.20.5 2.23 6.8.0"


def test_two_open_paths_are_both_reported():
    assert "gdr.peermem_usable" in [reason.code for reason in verdict(like(H100, stack=Stack.OFED)).reasons]
    assert "gdr.peermem_usable" not in [reason.code for reason in verdict(H100).reasons]


def test_a_registered_module_overrides_other_evidence():
    """Neither version nor Secure Boot matters for a module that is registered and visible to NCCL."""
    file = "/sys/kernel/mm/memory_peers/nv_mem/version"
    works = like(
        A100,
        kernel="6.8.0",
        bound=frozenset({"nvidia_peermem"}),
        clients=frozenset({file}),
        refused=frozenset({"nvidia_peermem"}),
        peermem_stub=True,
    )

    assert verdict(works).path is PEERMEM


@pytest.mark.parametrize(
    ("nccl", "file", "path"),
    [
        ("2.8.4", "/sys/kernel/mm/memory_peers/nv_mem/version", PEERMEM),
        ("2.8.4", "/sys/kernel/mm/memory_peers/nvidia-peermem/version", NONE),
        ("2.9.8", "/sys/kernel/mm/memory_peers/nvidia-peermem/version", PEERMEM),
        ("2.22.3", "/sys/kernel/mm/memory_peers/nvidia-peermem/version", NONE),
        ("2.22.3", "/sys/kernel/mm/memory_peers/nv_mem_nc/version", PEERMEM),
        ("2.22.3", "/sys/module/nvidia_peermem/version", NONE),
        ("2.23.4", "/sys/module/nvidia_peermem/version", PEERMEM),
        ("2.27.5", "/sys/memory_peers/nv_mem/version", NONE),
    ],
)
def test_each_nccl_checks_its_own_module_files(nccl, file, path):
    """With a loaded module, the existing files decide, not the kernel version."""
    node = like(A100, nccl=nccl, bound=frozenset({"nvidia_peermem"}), clients=frozenset({file}))

    assert verdict(node).path is path


ENVIRONMENTS = {
    "dma_buf": (H100, {"NCCL_DMABUF_ENABLE": "1"}),
    "nvidia_peermem, no DMA-BUF to try": (A100, {}),
    "nvidia_peermem, and the GPU's half of DMA-BUF is there": (
        like(H100, stack=Stack.OFED, kernel="5.4.0"),
        {"NCCL_DMABUF_ENABLE": "0"},
    ),
    "none": (like(A100, stack=Stack.INBOX), {"NCCL_NET_GDR_LEVEL": "LOC"}),
    "no card": (like(H100, cards=Cards.NONE), {"NCCL_IB_DISABLE": "1"}),
    "RoCE, NCCL before 2.21": (like(A100, gid_index=3), {"NCCL_IB_GID_INDEX": "3"}),
    "RoCE, NCCL 2.21": (like(A100, gid_index=3, nccl="2.21.5"), {}),
}


@pytest.mark.parametrize(("situation", "environment"), ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_the_environment_for_nccl(situation, environment):
    """Only values that differ from NCCL's defaults or must be explicit; levels are names."""
    assert verdict(situation).environment == environment


def test_pcie_settings_are_remaining_steps():
    """ACS, a translating IOMMU and distance close no path, but transfers may hang or be slow."""
    result = verdict(like(H100, redirecting=("0000:17:00.0",), translated=("0000:19:00.0",), nearest="NODE"))

    assert result.path is DMA_BUF
    assert steps(result) == [
        "gdr.acs_enabled: 0000:17:00.0",
        "gdr.iommu_translates: 0000:19:00.0",
        "gdr.card_far: NODE PXB",
    ]
    assert verdict(like(H100, nearest="PXB")).to_do == ()


def test_assumptions_are_reported():
    silent = verdict(assumed("driver=570.133.20,modules=open,kernel=6.8,stack=inbox"))

    assert silent.path is DMA_BUF
    assert {"gdr.nccl_assumed", "gdr.gpu_unknown"} <= {reason.code for reason in silent.reasons}


def test_a_missing_driver_is_the_first_reason():
    result = verdict(Situation("", "6.8.0", Stack.INBOX, evidence=Evidence()))

    assert result.path is NONE
    assert result.reasons == (reason("gdr.no_driver"),)


def test_nodes_in_the_same_situation_share_the_verdict():
    first, second = (like(H100) for _ in range(2))

    assert first is not second
    assert verdict(first) is verdict(second)
