"""What an apply shows while it runs, where there is no terminal."""

from provision.cli import progress
from provision.engine import Event
from tests.support.command import eventually


def test_a_long_task_is_named_while_it_runs_and_not_after(monkeypatch, capsys):
    """Whoever watches a log sees what a node is at, however long a task takes; a finished one is not named again."""
    monkeypatch.setattr(progress, "_LONG_SECONDS", 0.05)
    said = []

    def long_ones():
        said.append(capsys.readouterr().err)
        return [line for line in "".join(said).splitlines() if "now" in line]

    with progress.ApplyProgress(["gpu1", "gpu2"]) as shown:
        shown.event(Event("gpu1", "platform", "Install the packages", "start"))
        shown.event(Event("gpu2", "platform", "Install the packages", "start"))
        shown.event(Event("gpu2", "platform", "Install the packages", "ok"))
        eventually(lambda: len(long_ones()) > 1, seconds=10, what="the task is named twice")

    assert all("gpu1: platform: Install the packages: for " in line for line in long_ones())


def test_a_change_and_a_failure_have_a_line_each(capsys):
    """Roles, changes and failures are said as they come; what did not change is not."""
    with progress.ApplyProgress(["gpu1"]) as shown:
        shown.event(Event("gpu1", "platform", "Look", "start"))
        shown.event(Event("gpu1", "platform", "Look", "ok"))
        shown.event(Event("gpu1", "platform", "Write", "changed"))
        shown.event(Event("gpu1", "platform", "Load", "failed"))

    lines = [line.split("] ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["gpu1: platform", "gpu1: platform: Write: changed", "gpu1: platform: Load: failed"]
