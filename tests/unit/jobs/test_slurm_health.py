"""When the health checks of Slurm nodes drain a node, and when they resume it. sinfo and scontrol are STAND-INS."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provision.node import slurm
from provision.node.jobs import records
from provision.node.slurm import health


class Slurm:
    """A stand-in of slurmctld that knows one node."""

    def __init__(self) -> None:
        self.state, self.reason, self.changes = "idle", "none", 0

    def run(self, command: list[str], _seconds: int) -> tuple[int, str, str]:
        if command[0] == "sinfo":
            return 0, f"{self.state}|{self.reason}\n", ""
        assert command[:3] == ["scontrol", "update", "NodeName=gpu1"]
        values = dict(word.split("=", 1) for word in command[2:])
        self.changes += 1
        self.state = "drained" if values["State"] == "DRAIN" else "idle"
        self.reason = values.get("Reason", "none")
        return 0, "", ""


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Slurm:
    made = Slurm()
    monkeypatch.setattr(health, "run", made.run)
    monkeypatch.setattr(health, "RECORD", str(tmp_path / "slurm/health.json"))
    return made


def test_a_problem_drains_the_node_once_with_its_code(node: Slurm) -> None:
    for _ in range(3):
        health.act("gpu1", "gpu_missing")

    assert (node.state, node.reason, node.changes) == ("drained", "provision: health: gpu_missing", 1)


def test_the_node_is_resumed_when_it_passed_twice_in_a_row(node: Slurm) -> None:
    states = []
    for problem in ("disk_full", "", "disk_full", "", ""):
        health.act("gpu1", problem)
        states.append(node.state)

    assert states == ["drained", "drained", "drained", "drained", "idle"]


def test_a_drain_of_an_operator_stays_as_it_is(node: Slurm) -> None:
    """Neither its reason nor its state changes."""
    node.state, node.reason = "drained", "new power supply"
    for problem in ("gpu_missing", "", "", ""):
        health.act("gpu1", problem)

    assert (node.state, node.reason, node.changes) == ("drained", "new power supply", 0)


def test_another_problem_replaces_the_reason(node: Slurm) -> None:
    health.act("gpu1", "gpu_missing")
    health.act("gpu1", "disk_full")

    assert node.reason == "provision: health: disk_full"


def test_an_idle_node_without_problems_is_not_touched(node: Slurm) -> None:
    health.act("gpu1", "")

    assert node.changes == 0


def test_a_missing_device_file_and_a_full_table_are_problems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each by its own code, the device file first."""
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(health, "DEVICES", str(tmp_path))
    monkeypatch.setattr(health, "DOCKER_SOCKET", str(tmp_path / "none"))
    monkeypatch.setattr(health, "FOLDERS", ())
    answers = {"ok": (0, "0, 0\n1, 0\n"), "missing": (0, "0, 0\n"), "errors": (0, "0, 0\n1, 3\n"), "hangs": (124, "")}

    def codes(answer: str) -> list[str]:
        monkeypatch.setattr(health, "run", lambda *_: (*answers[answer], ""))
        return [*health.problems({"entry": {"gpus": [{"minor": 0}, {"minor": 1}]}})]

    assert codes("ok") == ["gpu_device_missing"]
    (tmp_path / "nvidia1").touch()
    assert codes("ok") == []
    assert codes("missing") == ["gpu_missing"]
    assert codes("errors") == ["gpu_memory_errors"]
    assert codes("hangs") == ["gpu_tool_hangs"]


def test_the_mark_of_a_job_whose_epilog_did_not_run_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """slurmd was lost, and the job ended meanwhile; the mark of a running job stays."""
    monkeypatch.setattr(slurm, "RUN", str(tmp_path / "marks"))
    monkeypatch.setattr(records, "ROOT", str(tmp_path / "jobs"))
    monkeypatch.setattr(health, "STATE", str(tmp_path / "none"))
    for number, name in ((12, "ended"), (13, "runs")):
        (tmp_path / "jobs" / name / "attempts/1").mkdir(parents=True)
        (tmp_path / "marks").mkdir(exist_ok=True)
        (tmp_path / f"marks/{number}").write_text(f'{{"name": "{name}", "id": "abc1", "attempt": 1}}')
    result = tmp_path / "jobs/ended/attempts/1/result.json"
    result.write_text("{}")
    os.utime(result, (1, 1))

    assert health.main() == 0

    assert [path.name for path in (tmp_path / "marks").iterdir()] == ["13"]
