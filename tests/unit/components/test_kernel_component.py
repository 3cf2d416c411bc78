"""The role kernel: which kernel a node runs, when it reboots, and what the inventory must not contain."""

from __future__ import annotations

import json

import pytest

from provision.components.check import Scene
from provision.components.kernel import COMPONENT
from provision.facts import Unknown
from provision.facts.base import RawOutput
from provision.facts.kernel_upgrade import KernelUpgrade, KernelUpgradeFact
from provision.facts.system import Kind, NodeKind, System
from provision.model import CheckStatus, StepClass
from provision.model.cause import Cause, CauseKind
from provision.model.reason import reason
from provision.planning import step_class
from provision.planning.steps import schedule_of
from tests.unit.checks.conftest import healthy
from tests.unit.planning.conftest import cluster_of, scene_of

OLD, NEW = "6.1.0-49-amd64", "6.1.0-50-amd64"
RECORD = {"format": 1, "phase": "trial", "from": OLD, "to": NEW, "boot_id": "b", "checks": ["a.b"]}


def facts(running, upgrade=None, kind=NodeKind.METAL):
    """Return what a probe of a node with this kernel reports."""
    return {
        "system": System("debian", "12", "Debian 12", running, "x86_64", "/usr/bin/python3", "apt-get"),
        "kernel_upgrade": upgrade or KernelUpgrade(),
        "kind": Kind(kind, "", sysctls_writable=True),
    }


def left(phase, cause=""):
    """Return the record of an upgrade to the new kernel."""
    return KernelUpgrade(phase, OLD, NEW, "b", cause)


CASES = [
    (OLD, None, "kernel.release.differs", True),
    (NEW, None, "kernel.release.ok", False),
    (NEW, left("confirmed"), "kernel.release.ok", False),
    (NEW, left("trial"), "kernel.release.on_trial", False),
    (NEW, left("rebooting"), "kernel.release.on_trial", False),
    (NEW, left("expired"), "kernel.release.on_trial", False),
    (OLD, left("rebooting"), "kernel.release.differs", True),
    (OLD, left("expired", "kernel.fallback.not_confirmed"), "kernel.release.fell_back", True),
    (OLD, left("fell_back", "kernel.fallback.lost"), "kernel.release.fell_back", True),
    (OLD, left("rejected", "kernel.fallback.worse"), "kernel.release.rejected", False),
    (OLD, KernelUpgrade("rejected", OLD, "6.1.0-48-amd64"), "kernel.release.differs", True),
]


@pytest.mark.parametrize(("running", "upgrade", "code", "reboots"), CASES)
def test_the_record_decides_whether_a_kernel_is_booted(running, upgrade, code, reboots):
    """A kernel on trial is only confirmed, and a rejected one is left alone."""
    cluster = cluster_of(kernel_release=NEW)
    scene = scene_of(now=cluster, **facts(running, upgrade))
    check = next(one for one in COMPONENT.checks if one.id == "kernel.release")
    verdict = check.judge(scene_of_check(scene))
    causes = (Cause(CauseKind.CHECK, "kernel.release", verdict.reason),)

    assert verdict.reason.code == code
    assert (verdict.status is CheckStatus.PASS) is (code == "kernel.release.ok")
    assert step_class("kernel", causes, scene) is (StepClass.NEEDS_REBOOT if reboots else StepClass.SAFE)
    forced = (Cause(CauseKind.FORCED, "", reason("plan.forced")),)
    again = reboots or code == "kernel.release.rejected"
    assert step_class("kernel", forced, scene) is (StepClass.NEEDS_REBOOT if again else StepClass.SAFE)


def scene_of_check(scene):
    """Return the scene of a check for that of a plan."""
    return Scene(scene.node, scene.facts, scene.cluster, scene.all_facts)


def test_a_container_is_never_rebooted():
    """It runs the kernel of its host."""
    cluster = cluster_of(kernel_release=NEW)
    scene = scene_of(now=cluster, **facts(OLD, kind=NodeKind.CONTAINER))
    assert not COMPONENT.needs_reboot((), scene)


def test_without_a_release_the_role_is_disabled():
    """Neither its checks nor its steps exist then."""
    assert not COMPONENT.serves({"kernel_release": ""})
    assert COMPONENT.serves({"kernel_release": NEW})


def test_an_invalid_window_never_opens():
    """The preflight reports it; a plan does not treat it as open."""
    cluster = cluster_of(kernel_release=NEW, cluster_window="Sat 2-6")
    scene = scene_of(now=cluster, **facts(OLD))

    assert len(schedule_of(scene)) == 1
    settings = list(COMPONENT.settings(scene.node.variables, scene.facts))
    assert [variable for _, variable, *_ in settings] == ["cluster_window"]


@pytest.mark.parametrize(
    ("variables", "wrong"),
    [
        ({"kernel_release": NEW}, []),
        ({"kernel_release": "5.14.0-503.el9.x86_64", "cluster_window": "Sat 02:00-06:00 UTC"}, []),
        ({"kernel_release": "latest"}, ["kernel_release"]),
        ({"kernel_release": "6.1 ; reboot"}, ["kernel_release"]),
        ({"kernel_release": NEW, "kernel_confirm_seconds": 5}, ["kernel_confirm_seconds"]),
        ({"kernel_release": NEW, "cluster_window": "now"}, ["cluster_window"]),
        ({"kernel_release": NEW, "cluster_engine": "slurm"}, ["cluster_drain"]),
        ({"kernel_release": NEW, "cluster_engine": "slurm", "cluster_drain": "slurm"}, []),
        ({"kernel_release": "{{ ansible_kernel }}"}, ["kernel_release"]),
        ({"kernel_release": NEW, "cluster_window": "{{ window }}"}, []),
    ],
)
def test_settings_are_checked_before_anything_changes(variables, wrong):
    """A release that needs facts of Ansible could not be booted; a window with a template stays closed."""
    assert [variable for _, variable, *_ in COMPONENT.settings(variables, healthy())] == wrong


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"phase": "done"},
        {"to": "../x"},
        {"checks": ["rm -rf"]},
        {"checks": ["a"] * 201},
        {"cause": "two words"},
    ],
)
def test_an_invalid_record_of_a_node_is_unknown(change):
    """It never counts as a finished upgrade."""
    fact = KernelUpgradeFact()
    good = fact.parse(RawOutput(f"drained\nrecord\n{json.dumps(RECORD)}", 0))
    assert good == KernelUpgrade("trial", OLD, NEW, "b", "", ("a.b",), drained=True)

    assert isinstance(fact.parse(RawOutput(f"record\n{json.dumps({**RECORD, **change})}", 0)), Unknown)
    assert fact.parse(RawOutput("", 0)) == KernelUpgrade()
