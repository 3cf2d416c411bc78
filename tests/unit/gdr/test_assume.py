"""``--assume``: valid keys and values, and the errors for others."""

from __future__ import annotations

import pytest

from provision.errors import UsageError
from provision.gdr import Flavor, Situation, Stack, assumed, verdict
from provision.gdr.compare import at_least
from provision.gdr.versions import ARCHITECTURES
from provision.model.gpu_products import ARCHITECTURES as PRODUCT_ARCHITECTURES
from tests.support.reasons import shown


def test_all_keys_are_parsed():
    text = "driver=535.161.08, modules=proprietary, kernel=5.15.0-105-generic, stack=ofed-4.9, gpu=Ampere, nccl=2.20.5"

    assert assumed(text) == Situation(
        "535.161.08", "5.15.0-105-generic", Stack.OFED_LEGACY, Flavor.PROPRIETARY, ("ampere",), "2.20.5"
    )


BEYOND_VERSIONS = {
    "a kernel that exports the interface itself (row 7)": (
        "6.5,stack=inbox-peer,nccl=2.23.4",
        "nvidia_peermem",
        "gdr.headers_before_driver",
    ),
    "such a kernel, and NCCL before 2.23": (
        "6.5,stack=inbox-peer,nccl=2.21.5",
        "none",
        "gdr.path_needs: nvidia-peermem gdr.nccl_misses_peermem 2.21.5 2.23 6.5",
    ),
    "a kernel without the interface (row 8)": (
        "6.5,stack=inbox,nccl=2.23.4",
        "none",
        "gdr.path_needs: nvidia-peermem gdr.inbox_without_peer_interface",
    ),
    "no card (row 9)": ("6.5,stack=ofed,nccl=2.23.4,cards=none", "none", "gdr.no_card"),
    "Soft-RoCE alone": ("6.5,stack=ofed,nccl=2.23.4,cards=SOFT", "none", "gdr.only_soft_devices"),
    "cards, said": ("5.15,stack=ofed,cards=hard", "nvidia_peermem", "gdr.ofed_before_driver"),
    "a stub that can be rebuilt": (
        "5.15,stack=ofed,peermem=stub",
        "nvidia_peermem",
        "gdr.peermem_is_stub: gdr.rebuild",
    ),
    "no module for this kernel": (
        "5.15,stack=ofed,peermem=missing",
        "nvidia_peermem",
        "gdr.peermem_missing: 5.15 gdr.rebuild",
    ),
    "a stub, and nothing to build it against": (
        "5.15,stack=inbox,peermem=stub",
        "none",
        "gdr.path_needs: nvidia-peermem gdr.inbox_without_peer_interface",
    ),
    "a stub beside row 7": (
        "6.5,stack=inbox-peer,nccl=2.23.4,peermem=stub",
        "nvidia_peermem",
        "gdr.peermem_is_stub: gdr.rebuild",
    ),
    "both modules at once": ("5.15,stack=ofed,peermem=both", "nvidia_peermem", "gdr.nv_peer_mem_loaded"),
}


@pytest.mark.parametrize(("text", "path", "reason"), BEYOND_VERSIONS.values(), ids=BEYOND_VERSIONS)
def test_observations_can_be_assumed(text, path, reason):
    """Every row of the decision table, and every state of a module, can be described."""
    result = verdict(assumed(f"driver=550.54,modules=proprietary,gpu=ampere,kernel={text}"))

    assert result.path == path
    assert reason in map(shown, [*result.reasons, *(item.precondition for item in result.to_do)])


@pytest.mark.parametrize(
    ("text", "flavor"),
    [
        ("driver=550.54,gpu=hopper", Flavor.PROPRIETARY),
        ("driver=560.28,gpu=hopper", Flavor.OPEN),
        ("driver=570.86,gpu=volta", Flavor.PROPRIETARY),
        ("driver=550.54,gpu=grace-hopper", Flavor.OPEN),
    ],
)
def test_without_modules_the_default_of_the_installer_is_used(text, flavor):
    """Open modules since 560, unless the GPU supports only one kind."""
    assert assumed(f"{text},kernel=6.8,stack=inbox").flavor is flavor


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("driver=new", "570.133.20"),
        ("modules=gpl", "open or proprietary"),
        ("kernel=six", "6.8.0"),
        ("stack=doca", "inbox, inbox-peer, ofed, ofed-4.9"),
        ("cards=two", "hard, soft, none"),
        ("peermem=good", "stub, missing, both"),
        ("gpu=kepler", ", ".join(ARCHITECTURES)),
        ("nccl=1.3", "2.27.5"),
        ("nccl=", "2.27.5"),
        ("cuda=12", "driver=V,modules=open|proprietary"),
        ("driver", "driver=V,modules=open|proprietary"),
        ("", "driver=V,modules=open|proprietary"),
        ("driver=570,kernel=6.8", "stack=inbox|inbox-peer|ofed|ofed-4.9"),
        ("driver=570,driver=580", "driver=V"),
    ],
)
def test_invalid_values_are_refused_with_the_valid_ones(text, remedy):
    with pytest.raises(UsageError) as refused:
        assumed(text)

    assert remedy in str(refused.value.remedy)


@pytest.mark.parametrize(
    ("version", "bound", "expected"),
    [
        ("6.4.0-150600.21-default", "6.4", True),
        ("6.4", "6.4.0", True),
        ("5.15.0-105-generic", "5.12", True),
        ("5.9", "5.12", False),
        ("2.22.3", "2.23", False),
        ("", "1", False),
    ],
)
def test_versions_are_compared_by_their_numbers(version, bound, expected):
    """5.9 is older than 5.12, and a distribution's suffix does not count."""
    assert at_least(version, bound) is expected


@pytest.mark.parametrize(
    ("word", "architecture"),
    [
        ("H100", "hopper"),
        ("hopper", "hopper"),
        ("NVIDIA H100 80GB HBM3", "hopper"),
        ("GH200", "grace-hopper"),
        ("Grace Hopper", "grace-hopper"),
        ("rtx 3080", "ampere"),
        ("A10G", "ampere"),
        ("l40s", "ada"),
        ("gb200", "blackwell"),
    ],
)
def test_a_gpu_is_given_by_product_or_architecture(word, architecture):
    assert assumed(f"driver=570.86,kernel=6.8,stack=inbox,gpu={word}").gpus == (architecture,)


def test_an_unknown_gpu_is_refused_with_its_name():
    with pytest.raises(UsageError, match="invalid value 'H10000' for gpu") as refused:
        assumed("driver=570.86,kernel=6.8,stack=inbox,gpu=H10000")
    assert "H100" in refused.value.remedy
    assert "hopper" in refused.value.remedy


def test_every_architecture_of_the_product_table_has_its_drivers():
    assert list(ARCHITECTURES) == list(PRODUCT_ARCHITECTURES)
