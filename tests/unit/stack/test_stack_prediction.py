"""Predictions for a kernel that is not installed: known failures, nothing known against it, or nothing known."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from provision.stack.prediction import BuildFacts, DkmsRange, Forecast, is_release, new_kernels, parse, predict, script
from tests.support.reasons import shown
from tests.unit.checks.conftest import healthy
from tests.unit.stack.conftest import facts_with

NEW = "6.1.0-50-amd64"
OUTPUT = f"""depends=linux-image-{NEW} (= 6.1.170-3)
depends=linux-image-6.1.0-28-amd64 (= 6.1.119-1), linux-base
headers={NEW} 6.1.170-3
headers=6.12.0-1-amd64 (none)
tree=nvidia-current-open 550.90
MIN=4.4
MAX=6.13
tree=mlnx-ofed-kernel 24.10
excluded={NEW}
noise
unclear=yes
"""
DRIVER = DkmsRange("nvidia-current-open", "550.90")


def forecast(build, kernel=NEW, **facts):
    """Return component -> forecast and the codes of its reasons."""
    results = predict(kernel, facts_with(**facts), build)
    return {one.component: (one.forecast, [shown(why).partition(":")[0] for why in one.reasons]) for one in results}


def test_a_conflict_that_the_lock_accepts_is_not_predicted():
    """Packages can be patched for the kernel."""
    kernel = "6.17.13-2-pve"
    build = BuildFacts(headers={kernel: "1"}, trees=(DRIVER,))
    accepted = dataclasses.replace(build, accepted=("driver-550-kernel-6.17",))

    assert forecast(build, kernel)["driver"][0] is Forecast.FAILS
    assert forecast(accepted, kernel)["driver"][0] is Forecast.NO_OBSTACLE


def test_the_answer_of_a_node_is_parsed():
    """Kernels, headers and ranges; lines of another form are ignored."""
    build = parse(OUTPUT)

    assert build.available == (NEW, "6.1.0-28-amd64")
    assert build.headers == {NEW: "6.1.170-3", "6.12.0-1-amd64": ""}
    assert build.trees == (
        DkmsRange("nvidia-current-open", "550.90", "4.4", "6.13"),
        DkmsRange("mlnx-ofed-kernel", "24.10", excluded=frozenset({NEW}), unclear=True),
    )


def test_only_kernels_that_are_not_installed_are_new():
    """The others are judged by their modules."""
    build = BuildFacts(available=("6.1.0", NEW))

    assert new_kernels(build, facts_with()) == (NEW,)


HEADERS = {NEW: "6.1.170-3"}


@pytest.mark.parametrize(
    ("trees", "headers", "kernel", "expected"),
    [
        ((DRIVER,), HEADERS, NEW, (Forecast.NO_OBSTACLE, ["stack.check.no_obstacle"])),
        ((DRIVER,), {NEW: ""}, NEW, (Forecast.FAILS, ["stack.check.no_headers"])),
        ((DRIVER,), {}, NEW, (Forecast.UNKNOWN, ["stack.check.headers_unknown"])),
        ((), HEADERS, NEW, (Forecast.UNKNOWN, ["stack.check.no_dkms"])),
        ((dataclasses.replace(DRIVER, excluded=frozenset({NEW})),), HEADERS, NEW,
         (Forecast.FAILS, ["stack.check.excluded"])),
        ((dataclasses.replace(DRIVER, first="6.6"),), HEADERS, NEW, (Forecast.FAILS, ["stack.check.excluded"])),
        ((dataclasses.replace(DRIVER, last="6.0"),), HEADERS, NEW, (Forecast.FAILS, ["stack.check.excluded"])),
        ((dataclasses.replace(DRIVER, last="6.1"),), HEADERS, NEW, (Forecast.FAILS, ["stack.check.excluded"])),
        ((dataclasses.replace(DRIVER, last="6.1.0"),), HEADERS, NEW,
         (Forecast.NO_OBSTACLE, ["stack.check.no_obstacle"])),
        ((dataclasses.replace(DRIVER, first="4.4", last="6.13"),), HEADERS, NEW,
         (Forecast.NO_OBSTACLE, ["stack.check.no_obstacle"])),
        ((dataclasses.replace(DRIVER, unclear=True),), HEADERS, NEW, (Forecast.UNKNOWN, ["stack.check.unclear"])),
        ((DRIVER,), {"6.17.13-2-pve": "1"}, "6.17.13-2-pve", (Forecast.FAILS, ["stack.conflict"])),
    ],
)  # fmt: skip
def test_the_driver_is_judged_by_headers_ranges_and_the_table(trees, headers, kernel, expected):
    """Peer memory is a module of the driver, so it has the same result."""
    results = forecast(BuildFacts(headers=headers, trees=trees), kernel)

    assert (results["driver"], results["peer_memory"]) == (expected, expected)


def test_the_inbox_stack_comes_with_the_kernel():
    """Nothing has to be built."""
    assert forecast(BuildFacts())["rdma"] == (Forecast.NO_OBSTACLE, ["stack.check.inbox"])


@pytest.mark.parametrize(
    ("ofed", "trees", "kernel", "expected"),
    [
        ("MLNX_OFED_LINUX-24.10-1", (DkmsRange("mlnx-ofed-kernel", "24.10"),), NEW, Forecast.NO_OBSTACLE),
        ("MLNX_OFED_LINUX-24.10-1", (), NEW, Forecast.UNKNOWN),
        ("MLNX_OFED_LINUX-4.9-4.1.7.0", (DkmsRange("mlnx-ofed-kernel", "4.9"),), NEW, Forecast.FAILS),
    ],
)
def test_a_vendor_stack_is_judged_by_its_own_modules(ofed, trees, kernel, expected):
    """Prebuilt modules are for one kernel, so nothing is known about another one."""
    rdma = dataclasses.replace(healthy().rdma, ofed=ofed)

    assert forecast(BuildFacts(headers=HEADERS, trees=trees), kernel, rdma=rdma)["rdma"][0] is expected


def test_nv_peer_mem_does_not_build_for_new_kernels():
    """It is a module of its own, beside an old driver."""
    build = BuildFacts(headers=HEADERS, trees=(DRIVER, DkmsRange("nvidia-peer-memory", "1.3")))

    results = forecast(build)
    assert results["peer_memory"] == (Forecast.FAILS, ["stack.check.nv_peer_mem"])
    assert results["driver"][0] is Forecast.NO_OBSTACLE


@pytest.mark.parametrize(
    ("text", "expected"),
    [("6.12.0-1-amd64", True), ("-o", False), ("6.1; reboot", False), ("", False), ("6.1\n", False)],
)
def test_only_releases_of_kernels_reach_the_node(text, expected):
    """The text becomes a word of a script."""
    assert is_release(text) is expected


def test_the_script_reads_the_ranges_of_dkms(tmp_path: Path):
    """A regular expression is evaluated on the node; one with variables is not evaluated."""
    confs = {
        "nvidia/1": 'BUILD_EXCLUSIVE_KERNEL_MIN="4.4"\nBUILD_EXCLUSIVE_KERNEL_MAX="6.13"\n',
        "older/2": 'BUILD_EXCLUSIVE_KERNEL="^5\\."\n',
        "both/3": 'BUILD_EXCLUSIVE_KERNEL="^[56]\\."\n',
        "odd/4": f'BUILD_EXCLUSIVE_KERNEL="$(touch {tmp_path}/owned)"\n',
    }  # fmt: skip
    for name, text in confs.items():
        (tmp_path / name / "source").mkdir(parents=True)
        (tmp_path / name / "source/dkms.conf").write_text(text)
    text = script(["6.12.1"], []).replace("/var/lib/dkms", str(tmp_path))
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True)

    trees = {tree.name: tree for tree in parse(done.stdout).trees}
    assert (trees["nvidia"].first, trees["nvidia"].last) == ("4.4", "6.13")
    assert trees["older"].excluded == {"6.12.1"}
    assert trees["both"] == DkmsRange("both", "3")
    assert trees["odd"].unclear
    assert not (tmp_path / "owned").exists()
