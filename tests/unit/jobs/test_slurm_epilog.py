"""The epilog of Slurm jobs: which job it ends, and that it never fails."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.node import slurm
from provision.node.slurm import epilog
from tests.support.interpreters import NODE_PYTHON
from tests.support.node.archive import ARCHIVE
from tests.support.node.node import Engine, FakeNode, run, until


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(slurm, "RUN", str(tmp_path))
    for name in ("SLURM_JOB_COMMENT", "SLURM_JOB_UID", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def mark(folder: Path) -> None:
    (folder / "7").write_text(json.dumps({"name": "train", "id": "ab12", "attempt": 3}))
    (folder / "7").chmod(0o600)


def test_the_file_of_a_job_names_its_attempt(folder: Path) -> None:
    (folder / "7").write_text(json.dumps({"name": "train", "id": "ab12", "attempt": 3}))
    (folder / "7").chmod(0o600)

    assert epilog.jobs_of("7") == [("train", "ab12", 3)]


@pytest.mark.parametrize(
    "document",
    [
        {"name": "../etc", "id": "a", "attempt": 1},
        {"name": "train", "id": "a/../b", "attempt": 1},
        {"name": "train", "id": "a\n", "attempt": 1},
        {"name": ["train"], "id": "a", "attempt": 1},
        {"id": "a", "attempt": 1},
        {"name": "train", "id": "a"},
        {"name": "train", "id": "a", "attempt": "../1"},
        ["train"],
    ],
)
def test_an_invalid_record_ends_nothing(folder: Path, document: object) -> None:
    (folder / "7").write_text(json.dumps(document))
    (folder / "7").chmod(0o600)

    assert epilog.jobs_of("7") == []


def test_a_record_that_others_can_write_ends_nothing(folder: Path) -> None:
    (folder / "7").write_text(json.dumps({"name": "train", "id": "ab12", "attempt": 3}))
    (folder / "7").chmod(0o666)

    assert epilog.jobs_of("7") == []


@pytest.mark.parametrize("number", ["", "../7", "7 8", "x"])
def test_a_job_number_is_digits(number: str) -> None:
    assert epilog.jobs_of(number) == []


def test_the_files_of_a_killed_starter_are_removed(folder: Path) -> None:
    """They are certificates, encrypted secrets and code; those of other Slurm jobs stay."""
    for name in ("starter-7-ab_c1", "starter-7-x", "starter-70-x"):
        (folder / name).mkdir()
        (folder / name / "sealed").write_text("text")

    epilog.close_jobs("7")

    assert [path.name for path in folder.iterdir()] == ["starter-70-x"]


@pytest.mark.parametrize("problem", [OSError("docker broke off"), RuntimeError("a defect")])
def test_the_epilog_never_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], problem: Exception
) -> None:
    """A failing epilog would drain the node."""

    def broken(_job: epilog.SlurmJob) -> None:
        raise problem

    mark(folder)
    monkeypatch.setattr(epilog, "close", broken)
    monkeypatch.setenv("SLURM_JOB_ID", "7")

    assert epilog.main() == 0
    assert str(problem) in capsys.readouterr().err


def test_no_handler_of_errors_extends_the_time_of_the_epilog(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Helpers continue after an OSError, which TimeoutError is."""

    def patient(_job: epilog.SlurmJob) -> None:
        for _ in range(3):
            with contextlib.suppress(Exception):
                signal.raise_signal(signal.SIGALRM)
        pytest.fail("the epilog goes on after the end of its time")

    mark(folder)
    monkeypatch.setattr(epilog, "close", patient)
    monkeypatch.setenv("SLURM_JOB_ID", "7")

    assert epilog.main() == 0
    assert "no end within" in capsys.readouterr().err


# On a node


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine(tmp_path_factory.mktemp("engine") / "socket")
    yield made
    made.end()


@pytest.fixture
def node(tmp_path: Path, engine: Engine) -> Iterator[FakeNode]:
    """A node with an attempt, number 1 of job ``j`` with ID ``t1``. Docker and systemd are STAND-INS."""
    with FakeNode(tmp_path / "node") as made:
        made.environment |= {"PROVISION_SLURM_RUN": str(tmp_path / "marks"), "PROVISION_CGROUP": str(tmp_path)}
        yield made.with_docker(engine)
    engine.reset()


def run_epilog(node: FakeNode, number: int) -> None:
    """Run the epilog as slurmd does, for a job of root whose comment names job ``j``."""
    variables = {"SLURM_JOB_ID": str(number), "SLURM_JOB_UID": "0", "SLURM_JOB_COMMENT": "provision:j@t1"}
    command = [NODE_PYTHON, "-I", "-S", str(ARCHIVE), "slurm-epilog"]
    subprocess.run(command, env={**node.environment, **variables}, check=True, timeout=60)


def start_attempt(node: FakeNode, tmp_path: Path, slurm_job: int) -> None:
    """Start an attempt with a lease that waits for the file ``stop``."""
    leases = {"leases": {"GPU-a": "j-worker-0"}, "slurm": slurm_job}
    assert node.ok("lease", job="j", id="t1", attempt=1, **leases) == {"taken": {}}
    run(node, "sh", "-c", f"until [ -e {tmp_path}/stop ]; do sleep 0.1; done", leases=["GPU-a"])
    until(lambda: node.record("j-worker-0").get("status") == "Running", "a running container")


def has_lease(node: FakeNode) -> bool:
    return (node.run / "leases/GPU-a").exists()


def test_the_epilog_ends_the_attempt_of_its_mark(node: FakeNode, tmp_path: Path) -> None:
    start_attempt(node, tmp_path, 12)
    node.ok("slurm_mark", job=12, name="j", id="t1", attempt=1)
    run_epilog(node, 12)

    assert node.result()["reason"] == epilog.REASON
    assert not has_lease(node)
    assert not (tmp_path / "marks/12").exists()


def test_without_a_mark_the_epilog_ends_the_attempt_whose_leases_name_the_slurm_job(
    node: FakeNode, tmp_path: Path
) -> None:
    start_attempt(node, tmp_path, 12)
    run_epilog(node, 12)

    assert node.result()["reason"] == epilog.REASON
    assert not has_lease(node)


@pytest.mark.parametrize("marked", [None, 2])
def test_the_epilog_of_an_old_slurm_job_does_not_end_a_later_attempt(
    node: FakeNode, tmp_path: Path, marked: int | None
) -> None:
    """After `restart`, Slurm job 13 runs on the node while Slurm still ends job 12 of the same job."""
    start_attempt(node, tmp_path, 13)
    if marked is not None:
        node.ok("slurm_mark", job=12, name="j", id="t1", attempt=marked)
    run_epilog(node, 12)
    assert has_lease(node)

    (tmp_path / "stop").touch()
    assert node.result()["status"] == "SUCCEEDED"


@pytest.mark.parametrize("policy", ["None", "All"])
def test_the_epilog_keeps_ended_containers_as_the_policy_of_the_job_says(
    node: FakeNode, engine: Engine, tmp_path: Path, policy: str
) -> None:
    start_attempt(node, tmp_path, 12)
    config = {**node.record("keeper"), "clean": policy}
    os.kill(node.supervisor(), signal.SIGKILL)
    (node.attempt() / "keeper.json").write_text(json.dumps(config))
    (tmp_path / "stop").touch()
    until(lambda: json.loads(engine.ask("GET", "/containers/json?all=1")[1])[0]["State"] == "exited", "its end")
    run_epilog(node, 12)

    assert len(json.loads(engine.ask("GET", "/containers/json?all=1")[1])) == (policy == "None")
