"""Checks on outputs of real machines: rates of RDMA ports and logs of NCCL."""

from __future__ import annotations

import re

import pytest

from provision.facts.rdma import RdmaDevice
from provision.model import CheckStatus
from provision.report.nccl_report import remedy_of
from tests.recorded import data
from tests.support.reasons import shown
from tests.unit.checks.test_nccl_log import of
from tests.unit.checks.test_rdma_health import card, stack


@pytest.mark.parametrize(
    ("name", "active"),
    [
        ("ibstat_a100_all_active.txt", 9),
        ("ibstat_h100_all_active_b.txt", None),
        ("ibstat_h100_12hca_all_active.txt", 12),
        ("ibstat_h100_some_down.txt", None),
    ],
)
def test_rates_of_real_machines_with_mixed_cards_are_no_fault(judged, name, active):
    """400 Gbit/s InfiniBand beside 100 Gbit/s Ethernet, and ports that are down, give no warning."""
    parts = re.split(r"^CA '", data.recorded(f"rdma/{name}"), flags=re.MULTILINE)[1:]
    devices = [_device(part) for part in parts]
    result = judged(rdma=stack(*devices))["rdma_stack.port_rate"]

    assert result.status is CheckStatus.PASS, shown(result.reason)
    if active:
        assert f"rdma_stack.port_rate.ok: {active}" in shown(result.reason)


def _device(part: str) -> RdmaDevice:
    fields = dict(re.findall(r"^\s*([\w ]+): (.*)$", part, re.MULTILINE))
    state = fields["State"].upper()
    return card(part.partition("'")[0], f"{fields['Rate']} Gb/sec", board=fields["CA type"], layer=fields["Link layer"],
                state=state)  # fmt: skip


# What the recorded logs say, read by eye: version, transport, GPUDirect, cards, and a part of the reason.
RECORDED = {
    "nccl-2.10.3_IB_opa_no_gdr_4nodes": ("2.10.3", "IB", False, ["hfi1_0", "hfi1_3"], "nccl.unexplained"),
    "nccl-2.12.10_IBext_NO_gdr_2x4A100": ("2.12.10", "IB", False, ["mlx5_0", "mlx5_1"], "nccl.unexplained"),
    "nccl-2.12.10_IBext_sharp_GDRDMA_ndv4": ("2.12.10", "IB", True, ["mlx5_ib0", "mlx5_ib1"], "nccl.channels_with_gdr"),
    "nccl-2.12_or_older_GDR_disabled_no_module": (
        None,
        "IB",
        False,
        ["mlx5_1"],
        "nccl.gdr_disabled_with_cause: mlx5_1 no module",
    ),
    "nccl-2.13_dmabuf_registration_failed": (None, None, False, [], "nccl.dmabuf_failed: Operation not supported"),
    "nccl-2.14.3_no_IB_device": ("2.14.3", None, False, [], "nccl.no_device: ubuntu1-NF5588M4S"),
    "nccl-2.17.1_no_IB_device_Socket_lo_docker0": ("2.17.1", "Socket", False, [], "nccl.local_interfaces: lo docker0"),
    "nccl-2.18.3_IBext_v6_sharp_bootstrap_addr_garbage": ("2.18.3", "IB", None, ["mlx5_1", "mlx5_8"], "family 33621"),
    "nccl-2.18.5_IBext_GDRDMA_PXN_2x4H100": ("2.18.5", "IB", True, ["mlx5_0", "mlx5_1"], "nccl.channels_with_gdr"),
    "nccl-2.22.3_plugin_present_no_IB_device_Socket": ("2.22.3", "Socket", False, [], "IBext_v8"),
    "nccl-2.27.5_RoCE_8hca_GDRDMA_level_PIX": (
        "2.27.5",
        "RoCE",
        True,
        ["mlx5_0", "mlx5_2", "mlx5_5", "mlx5_7", "mlx5_11"],
        "nccl.channels_with_gdr",
    ),
    "nccl-2.27_RoCE_1hca_GDRDMA_PXN_two_nodes": (None, "IB", True, [], "nccl.channels_with_gdr"),
    "nccl-2.4.7_no_IB_device_Socket": ("2.4.7", "Socket", False, [], "nccl.no_device: ip-172-31-0-11"),
    "nccl-2.7.8_IB_opa_no_gdr_16nodes": ("2.7.8", "IB", False, ["hfi1_1"], "nccl.unexplained"),
    "nccl-2.7.8_single_node_P2P_IPC": (
        "2.7.8",
        "P2P",
        None,
        ["hfi1_2", "hfi1_0", "hfi1_3", "hfi1_1"],
        "nccl.inside_a_node",
    ),
    "nccl_AKS_GDRDMA_level_SYS": (None, "IB", True, [], "nccl.channels_with_gdr"),
    "nccl_IB_DISABLE_1_Socket_over_IPoIB": (None, "Socket", False, [], "nccl.ib_disabled"),
}


@pytest.mark.parametrize("name", RECORDED)
def test_verdicts_of_recorded_logs_match_their_annotations(name):
    """Version, transport, GPUDirect, cards and reason of each recorded log."""
    version, transport, gdr, hcas, reason = RECORDED[name]

    result = of(data.path(f"data/nccl/{name}.txt").read_bytes())

    assert (result.version, result.transport, result.gdr, list(result.hcas)) == (version, transport, gdr, hcas)
    assert any(reason in shown(item) for item in result.reasons)
    assert (remedy_of(result) is None) is (gdr is True)


def test_every_recorded_log_is_tested():
    """A log that is added to the recorded ones gets a verdict here."""
    files = data.path("data/nccl").glob("*.txt")

    assert {file.stem for file in files if not file.name.startswith("FRAGMENTS")} == set(RECORDED)


@pytest.mark.parametrize(
    ("part", "transport", "gdr", "hcas"),
    [
        ("NCCL RDMA Plugin v9/3/GDRDMA", "NCCL RDMA Plugin v9", True, ("mlx5_bond_0",)),
        ("rocep1s0f0", "NCCL RDMA Plugin v10", False, ("rocep1s0f0",)),
        ("IBext_v9/2/Shared", "IB", False, ()),
        ("rxe0", "IB", False, ("rxe0",)),
        ("NET/gIB", "gIB", True, ("mlx5_0",)),
        ("eth0", "Socket", False, ()),
        ("ibv_reg_mr_iova2", None, None, ()),
        ("NIC/0-67000", None, None, ()),
    ],
)
def test_fragments_of_real_logs_without_their_prefix(part, transport, gdr, hcas):
    """Single lines of clouds and plugins, as people paste them, mean what they mean in a log."""
    lines = data.recorded("nccl/FRAGMENTS_plugin_and_cloud_wordings.txt").splitlines()
    blocks = ["\n".join(block) for block in _blocks(lines)]

    result = of(next(block for block in blocks if part in block))

    assert (result.transport, result.gdr, result.hcas) == (transport, gdr, hcas)


def _blocks(lines: list[str]) -> list[list[str]]:
    blocks: list[list[str]] = [[]]
    for line in lines:
        if line.startswith("#"):
            blocks.append([])
        else:
            blocks[-1].append(line)
    return blocks
