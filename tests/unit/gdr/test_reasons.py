"""The wording of the verdict: a remedy contains the command or setting that helps."""

from __future__ import annotations

import pytest

from provision.gdr import assumed, verdict
from provision.model.reason import Reason, reason
from provision.report.reasons import message, remedy

REMEDIES = {
    "module_unsigned": (reason("gdr.module_unsigned", module="nvidia"), "mokutil --import"),
    "nccl": (reason("gdr.nccl_misses_peermem", nccl="2.22.3", oldest="2.23", kernel="6.8"), "NCCL 2.23"),
    "nv_peer_mem and NCCL": (
        reason("gdr.nccl_misses_module", kernel="6.5", first_kernel="6.4", oldest="2.23"),
        "Boot a kernel older than 6.4",
    ),
    "a stub": (reason("gdr.peermem_is_stub", fix=reason("gdr.rebuild")), "unload it and load it again."),
    "no module": (
        reason("gdr.peermem_missing", kernel="5.15", fix=reason("gdr.rebuild_with_headers", kernel="5.15")),
        "Install the headers of kernel 5.15. Rebuild",
    ),
    "to rebuild": (reason("gdr.peermem_missing", kernel="5.15", fix=reason("gdr.rebuild")), "dkms install --force"),
    "to reinstall": (reason("gdr.peermem_missing", kernel="5.15", fix=reason("gdr.reinstall")), "Reinstall the driver"),
    "OFED": (reason("gdr.inbox_without_peer_interface"), "Install DOCA-OFED"),
    "the option is missing": (reason("gdr.peerdirect_not_set", ofed="4.9"), "/etc/modprobe.d/nvidia-peermem.conf"),
    "the option is not loaded": (reason("gdr.peerdirect_not_loaded", ofed="4.9"), "modprobe -r nvidia_peermem"),
    "open modules": (
        reason("gdr.open_modules_missing", modules="proprietary", oldest="515"),
        "open kernel modules of driver 515 or newer.",
    ),
    "ACS": (reason("gdr.acs_enabled", bridges=["0000:17:00.0"]), "ECAP_ACS"),
    "the IOMMU": (reason("gdr.iommu_translates", devices=["0000:19:00.0"]), "iommu=pt"),
    "distance": (reason("gdr.card_far", nearest="NODE", farthest="PXB"), "NCCL_NET_GDR_LEVEL=SYS"),
    "the precondition's remedy": (
        reason("gdr.path_needs", path="DMA-BUF", precondition=reason("gdr.geforce")),
        "Use other GPUs.",
    ),
}


@pytest.mark.parametrize(("precondition", "part"), REMEDIES.values(), ids=REMEDIES)
def test_a_remedy_names_what_helps(precondition: Reason, part: str):
    assert part in remedy(precondition)


def test_openibd_is_restarted_by_systemd():
    """The unit's PartOf unloads nvidia_peermem first; the init script does not."""
    assert "then: systemctl restart openibd" in remedy(reason("gdr.other_stack_loaded", stack="OFED"))


def test_the_main_reason_names_driver_kernel_stack_and_nccl():
    """It is one line that a person can compare with another node's."""
    node = verdict(assumed("driver=550.90,modules=open,kernel=6.1.0,stack=inbox,gpu=H100,nccl=2.27.5"))

    assert message(node.reasons[0]) == (
        "DMA-BUF: driver 550.90 with open modules, kernel 6.1.0, the kernel's own RDMA stack, NCCL 2.27.5"
    )


def test_a_closed_path_is_reported_with_what_it_needs():
    """Path and precondition are one sentence."""
    node = verdict(assumed("driver=550.90,modules=proprietary,kernel=6.1.0,stack=inbox,gpu=H100,nccl=2.27.5"))

    assert [message(part) for part in node.reasons] == [
        "DMA-BUF needs open kernel modules (these are proprietary)",
        "nvidia-peermem needs an RDMA stack with ib_register_peer_memory_client; the kernel's own has none",
    ]
