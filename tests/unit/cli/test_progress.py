"""What an apply shows while it runs, where there is no terminal."""

import threading

import pytest

from provision.cli import live_progress, progress
from provision.engine import Event
from tests.support.command import eventually


def test_a_long_task_is_shown_only_while_it_runs(monkeypatch, capsys):
    """The log shows each node's current task, however long it takes; a finished node is not named again."""
    monkeypatch.setattr(live_progress, "LONG_SECONDS", 0.05)
    monkeypatch.setattr(live_progress, "SUMMARY_SECONDS", 0.01)
    said = []

    def long_ones():
        said.append(capsys.readouterr().err)
        return [line for line in "".join(said).splitlines() if "now" in line]

    with progress.ApplyProgress(["gpu1", "gpu2"], verbose=True) as shown:
        shown.event(Event("gpu1", "platform", "Install the packages", "start"))
        shown.event(Event("gpu2", "platform", "Install the packages", "start"))
        shown.event(Event("gpu2", "platform", "Install the packages", "ok"))
        eventually(lambda: len(long_ones()) > 1, seconds=10, what="the task is named twice")

    assert all("gpu1: platform: Install the packages: for " in line for line in long_ones())


def test_changes_and_failures_have_one_line_each(capsys):
    """Roles, changes and failures are said as they come; what did not change is not."""
    with progress.ApplyProgress(["gpu1"], verbose=True) as shown:
        shown.event(Event("gpu1", "platform", "Look", "start"))
        shown.event(Event("gpu1", "platform", "Look", "ok"))
        shown.event(Event("gpu1", "platform", "Write", "changed"))
        shown.event(Event("gpu1", "platform", "Load", "failed"))

    lines = [line.split("] ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["gpu1: platform", "gpu1: platform: Write: changed", "gpu1: platform: Load: failed"]


NAMES = [f"gpu{number}" for number in range(1, 65)]


def test_sixty_four_nodes_have_one_summary_line_in_a_pipe(monkeypatch, capsys):
    """Where the nodes are, how much changed, who failed, and the task that takes longest; no line per node."""
    monkeypatch.setattr(live_progress, "SUMMARY_SECONDS", 0.01)
    said = []

    def lines():
        said.append(capsys.readouterr().err)
        return "".join(said).splitlines()

    with progress.ApplyProgress(NAMES) as shown:
        for name in NAMES:
            shown.event(Event(name, "docker_engine", "Install", "start"))
            shown.event(Event(name, "docker_engine", "Install", "changed"))
        shown.event(Event("gpu64", "docker_engine", "Start", "failed"))
        last = "docker_engine on gpu[1-63]; 64 changes; FAILED: gpu64"
        eventually(lambda: any(line.endswith(last) for line in lines()), seconds=10, what="the summary")

    assert all(line.startswith("[") and line.count("gpu") < 8 for line in lines())


def test_a_summary_is_not_repeated_while_nothing_changes(monkeypatch, capsys):
    monkeypatch.setattr(live_progress, "SUMMARY_SECONDS", 0.001)
    waited = threading.Event()
    with progress.ApplyProgress(["gpu1"]) as shown:
        shown.event(Event("gpu1", "docker_engine", "Install", "start"))
        waits = iter(range(50))
        wait = shown._over.wait
        monkeypatch.setattr(shown._over, "wait", lambda s: (next(waits, None) is None and waited.set()) or wait(s))
        assert waited.wait(10)

    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_longest_task_is_in_the_summary(monkeypatch, capsys):
    monkeypatch.setattr(live_progress, "SUMMARY_SECONDS", 0.01)
    monkeypatch.setattr(live_progress, "LONG_SECONDS", 0.02)
    said = []

    def named():
        said.append(capsys.readouterr().err)
        return "gpu1 for over" in "".join(said)

    with progress.ApplyProgress(["gpu1", "gpu2"]) as shown:
        shown.event(Event("gpu1", "platform", "Install the packages", "start"))
        eventually(named, seconds=10, what="the long task is named")

    assert "at platform: Install the packages" in "".join(said)


@pytest.mark.parametrize(("verbose", "rows"), [(False, 2), (True, 40)])
def test_on_a_terminal_nodes_with_the_same_task_share_a_row(verbose, rows):
    """With --verbose each has its own, as far as a screen goes."""
    shown = progress.ApplyProgress(NAMES, verbose=verbose)
    for name in NAMES:
        shown.event(Event(name, "docker_engine", "Install", "start"))
    shown.event(Event("gpu64", "docker_engine", "Start", "failed"))
    lines = [line for line in shown._lines() if "docker_engine" in line]

    assert len(lines) == rows
    assert lines[0].startswith("gpu1 " if verbose else "gpu[1-63]        0      0s  docker_engine: Install")


def test_a_long_row_is_truncated_at_a_word():
    """On a terminal; the columns of the table stay where they are."""
    shown = progress.ApplyProgress(["gpu1"])
    shown.event(Event("gpu1", "nvidia_container", "Install the packages of the NVIDIA Container Toolkit on", "start"))
    row = shown._lines()[2]

    assert row == "gpu1         0      0s  nvidia_container: Install the packages of the NVIDIA..."
    assert len(row) <= 79


def test_a_finished_probe_is_not_shown_as_running():
    """A node that waits for its wave is not being probed; nor is one whose final probe has ended."""
    shown = progress.ApplyProgress(["gpu1"])
    shown.event(Event("gpu1", None, "final probe", "start"))
    assert shown._lines()[2] == "gpu1         0      0s  final probe"
    shown.event(Event("gpu1", None, "final probe", "ok"))
    assert shown._lines()[2] == "gpu1         0      0s  final probe: done"


def test_each_row_has_the_time_of_its_task(monkeypatch):
    """That of a node that failed is the time of its failure, which does not grow; times are human."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    shown = progress.ApplyProgress(["gpu1", "gpu2"])
    now[0] += 65
    shown.event(Event("gpu1", "platform", "Load", "failed"))
    shown.event(Event("gpu2", "platform", "Install", "start"))
    now[0] += 3700

    assert shown._lines() == [
        "| applying, 1h02m",
        "NODES  CHANGED    TIME  TASK",
        "gpu1         0   1m05s  FAILED at platform: Load",
        "gpu2         0   1h01m  platform: Install",
    ]


def test_a_row_of_many_nodes_leaves_room_for_the_task():
    """At 80 columns, however the nodes are distributed."""
    shown = progress.ApplyProgress(NAMES)
    for number, name in enumerate(NAMES):
        shown.event(Event(name, ("docker_engine", "training_image")[number % 2], "Install the packages", "start"))
    _, titles, *rows = shown._lines()

    assert [row[titles.index("TASK") :] for row in rows] == [
        "docker_engine: Install the...",
        "training_image: Install the...",
    ]
    assert max(map(len, rows)) <= 79
