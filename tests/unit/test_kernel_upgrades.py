"""Kernel upgrades by an apply: drain, reboot, trial, confirmation and the way back, also after a crash at any moment.

The nodes run the program of the role kernel; their boots are played (`tests/support/kernel_machines.py`).
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

import pytest

from provision.model import NodeStatus, RoleStatus
from provision.model.stack import Stack, StackPart
from provision.planning import steps
from provision.workflow import kernel_reboots
from provision.workflow.kernel_reboots import await_reboots
from tests.support.kernel_machines import ENTRIES, NEW, OLD, CrashError, KernelWorld

JOB = "process 4711 (python3 of alice) holds /dev/nvidia0"


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = KernelWorld(tmp_path, monkeypatch)
    made.add("a", "b", "c")
    return made


def status(report):
    """Return the status of each node."""
    return {node.name: node.status for node in report.nodes}


def error(report, name):
    """Return the failure of a node."""
    return next(node.error for node in report.nodes if node.name == name)


def is_upgraded(node):
    """Return whether the new kernel runs, confirmed, and the node takes jobs."""
    return (
        node.release == NEW
        and node.phase == "confirmed"
        and node.environment == {"saved_entry": ENTRIES[NEW]}
        and not node.drain
    )


def test_a_lock_of_the_previous_kernel_does_not_reject_the_new_one(world):
    """The check of the lock passes before the upgrade, and fails after it in any case."""
    world.stack_lock = Stack("debian_12", "x86_64", {"kernel": StackPart(OLD)})

    assert world.apply().ok
    assert all(map(is_upgraded, world.nodes.values()))


def test_an_apply_upgrades_a_canary_first_and_then_the_others(world):
    """Each node is drained, rebooted once, confirmed and resumed."""
    report = world.apply()

    assert report.ok, report
    assert world.ran == [["a"], ["b"], ["c"]]
    assert all(map(is_upgraded, world.nodes.values()))
    assert {node.boots for node in world.nodes.values()} == {2}
    own = [line for line in world.log if line.startswith("a after")]
    assert own == [f"a after {action}" for action in ("drain", "status", "reboot", "status", "confirm", "resume")]
    assert world.log.index("a after resume") < world.log.index("b before drain")
    assert world.apply().ok
    assert len(world.ran) == 3


def test_a_node_with_a_job_waits_and_the_canary_is_an_idle_one(world):
    """The job is untouched; its node is upgraded when the job has ended."""
    world.nodes["a"].jobs = [JOB]
    report = world.apply()

    assert report.exit_code == 6
    assert world.ran == [["b"], ["c"]]
    node = world.nodes["a"]
    assert (node.release, node.boots, node.drain) == (OLD, 1, "")
    [role] = [role for role in report.nodes[0].roles if role.status is RoleStatus.WAITING]
    assert f"waits for: {JOB}" in role.reasons
    node.jobs = []
    assert world.apply().ok
    assert is_upgraded(node)


def test_a_reboot_is_reported_as_a_change_if_the_kernel_was_installed_before(world):
    """For example by an apply that was interrupted."""
    world.nodes["a"].installed = True

    assert status(world.apply())["a"] is NodeStatus.CHANGED


def test_a_job_that_starts_before_the_drain_keeps_the_node(world):
    """The node is resumed, and waits."""
    node = world.nodes["a"]
    real = node.ask_jobs

    def drain(request):
        node.jobs = [JOB]
        real(request)

    node.ask_jobs = drain
    report = world.apply()

    assert report.exit_code == 6
    assert (node.release, node.boots, node.drain) == (OLD, 1, "")
    assert world.ran == [["b"], ["c"]]


def test_a_job_that_starts_during_the_installation_keeps_the_node(world):
    """For example one that a person starts by hand. The node is resumed, and upgraded when the job has ended."""
    node = world.nodes["a"]
    world.during_play = lambda: node.jobs.append(JOB)
    report = world.apply()

    assert report.exit_code == 6
    assert (node.installed, node.release, node.boots, node.drain) == (True, OLD, 1, "")
    node.jobs.clear()
    world.during_play = lambda: None
    assert world.apply().ok
    assert is_upgraded(node)


def test_a_node_that_returns_during_its_trial_is_reported_at_once(world):
    """The apply does not wait for the time limit of the trial."""
    node = world.nodes["a"]
    node.fault = "reset"
    report = world.apply()

    assert error(report, "a").code == "kernel.upgrade.fell_back"
    assert "it stopped during its trial" in error(report, "a").message
    assert (node.release, node.phase) == (OLD, "rejected")
    assert world.clock < 60


def test_a_node_without_confirmation_takes_no_jobs(world):
    """It would reboot under them. The next apply confirms its kernel and resumes it."""
    world.lose = "a confirm"
    report = world.apply()
    node = world.nodes["a"]

    assert status(report)["a"] is NodeStatus.UNREACHABLE
    assert (node.release, node.phase) == (NEW, "trial")
    assert node.drain
    assert any("stays drained" in warning for warning in report.warnings)
    world.lose = ""
    assert world.apply().ok
    assert is_upgraded(node)


def test_the_answer_of_a_node_that_stops_may_be_lost(world):
    """The node is upgraded as if it had answered."""
    world.cut_off = "a reboot"

    assert world.apply().ok
    assert is_upgraded(world.nodes["a"])


def test_a_node_that_an_interrupted_apply_drained_is_resumed_while_its_step_waits(world):
    """Without --reboot, the next apply does not reboot it."""
    world.crash_on = "a after drain"
    with pytest.raises(CrashError):
        world.apply()
    assert world.nodes["a"].drain

    assert world.apply(reboot=False).exit_code == 6
    assert (world.nodes["a"].boots, world.nodes["a"].drain) == (1, "")


def test_without_the_option_and_outside_the_window_the_step_waits(world, monkeypatch):
    """It names the option, or when the window opens; inside it the nodes are rebooted without the option."""

    def now(day):
        class Clock(datetime):
            @classmethod
            def now(cls, tz=None):
                del tz
                return datetime(2026, 12, day, 1, 30, tzinfo=UTC)

        monkeypatch.setattr(steps, "datetime", Clock)

    report = world.apply(reboot=False)
    assert report.exit_code == 6
    assert "waits for: --reboot" in "\n".join(report.nodes[0].roles[-1].reasons + _waits(report))
    now(4)
    report = world.apply(reboot=False, cluster_window="Sat 02:00-06:00 Europe/Berlin")
    assert "which opens at Sat 2026-12-05 02:00 CET" in "\n".join(_waits(report))
    assert not world.ran
    now(5)
    assert world.apply(reboot=False, cluster_window="Sat 02:00-06:00 Europe/Berlin").ok
    assert all(map(is_upgraded, world.nodes.values()))


def _waits(report):
    return tuple(why for role in report.nodes[0].roles if role.status is RoleStatus.WAITING for why in role.reasons)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("panic", "kernel.upgrade.fell_back"),
        ("lost", "kernel.upgrade.fell_back"),
        ("worse", "kernel.upgrade.worse"),
    ],
)
def test_a_node_with_a_bad_kernel_returns_and_no_further_wave_starts(world, fault, code):
    """It is resumed with the previous kernel; the release is not tried again, except with --force."""
    node = world.nodes["a"]
    node.fault = fault
    report = world.apply()

    assert status(report) == {"a": NodeStatus.FAILED, "b": NodeStatus.SKIPPED, "c": NodeStatus.SKIPPED}
    assert error(report, "a").code == code
    assert (node.release, node.phase, node.drain) == (OLD, "rejected", "")
    assert node.environment == {"saved_entry": ENTRIES[OLD]}
    assert node.orders == [NEW, OLD]
    assert [world.nodes[name].boots for name in "bc"] == [1, 1]
    node.fault = ""
    again = world.apply()
    assert (node.boots, again.nodes[0].status) == (3, NodeStatus.UNCHANGED)  # the others continue
    assert world.apply(forced=("kernel",)).ok
    assert is_upgraded(node)


def test_a_node_that_does_not_come_back_uses_up_no_other_nodes_time(world):
    """The others of its wave are confirmed meanwhile; else their watchdogs would reboot them."""
    world.nodes["a"].fault = "lost"
    confirmed, given_up = {"b after confirm", "c after confirm"}, []

    def wait():
        """Let no time pass for the lost node before the others are confirmed, or the test gives up."""
        if threading.current_thread() is not threading.main_thread():
            until = time.monotonic() + 20
            while not confirmed <= set(world.log) and not given_up:
                time.sleep(0.05)
                given_up.extend([True] * (time.monotonic() > until))

    world.before_sleep = wait
    report = world.apply(waves="100%")

    assert status(report) == {"a": NodeStatus.FAILED, "b": NodeStatus.CHANGED, "c": NodeStatus.CHANGED}
    assert all(is_upgraded(world.nodes[name]) for name in "bc")
    assert [world.nodes[name].boots for name in "bc"] == [2, 2]


def test_a_kernel_that_is_refused_leaves_the_node_in_service(world):
    """Nothing was rebooted; the next waves do not start."""
    world.failing = {"a"}
    report = world.apply()

    assert status(report)["a"] is NodeStatus.FAILED
    assert error(report, "a").code == "kernel.module.not_built"
    assert (world.nodes["a"].boots, world.nodes["a"].drain) == (1, "")
    assert world.ran == [["a"]]


def test_a_node_drained_by_others_stays_drained(world):
    """It is upgraded, because no job runs there."""
    world.nodes["a"].drain = "bad fan\n"
    assert world.apply().ok

    assert world.nodes["a"].drain == "bad fan\n"
    assert world.nodes["a"].release == NEW


def test_an_apply_waits_for_a_node_that_an_interrupted_one_rebooted(world, monkeypatch):
    """Until it answers after the reboot; without an interrupted apply nothing is asked."""
    cluster = world.cluster()
    waited = []
    await_reboots(cluster, cluster.nodes, waited.append)
    assert (waited, world.log) == ([], [])
    world.crash_on = "a after reboot"
    with pytest.raises(CrashError):
        world.apply()
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        world.nodes["a"].fault = ""

    monkeypatch.setattr(kernel_reboots.time, "sleep", sleep)
    world.nodes["a"].fault = "lost"
    await_reboots(cluster, cluster.nodes, waited.append)

    assert (waited, len(pauses)) == ([["a"]], 1)
    assert world.apply().ok
    await_reboots(cluster, cluster.nodes, waited.append)
    assert len(waited) == 1


def _crashes(world):
    """Return how many actions an upgrade of all nodes has."""
    world.apply()
    return world.calls


@pytest.mark.parametrize(
    ("nodes", "late", "fault"),
    [("ab", False, ""), ("a", True, ""), ("a", False, "panic")],
    ids=["at once", "after the time limit", "panic"],
)
def test_the_next_apply_finishes_wherever_the_controller_was_killed(tmp_path_factory, monkeypatch, nodes, late, fault):
    """At each action on a node, before and after it: no node is left drained or with an unconfirmed kernel."""

    def make():
        made = KernelWorld(tmp_path_factory.mktemp("world"), monkeypatch)
        made.add(*nodes)
        made.nodes["a"].fault = fault
        return made

    total = _crashes(make())
    assert total > 8
    for moment in range(1, total + 1):
        world = make()
        world.crash_at = moment
        with pytest.raises(CrashError) as crash:
            world.apply()
        if late:
            for node in world.nodes.values():
                node.pass_time(400)
        world.nodes["a"].fault = ""
        report = world.apply()
        where = f"killed at {moment}: {crash.value}"
        names = [name for name in world.nodes if not (fault and world.nodes[name].phase == "rejected")]
        assert report.ok or fault, where
        assert all(is_upgraded(world.nodes[name]) for name in names), where
        assert not any(node.drain for node in world.nodes.values()), where
