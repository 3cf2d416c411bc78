"""The starter on the first node of an allocation. Slurm's commands and systemd-run are STAND-INS."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from provision.batch.containers import NodeHardware
from provision.batch.slurm.states import attempts_comment
from provision.documents.jobs import Result, Watched
from provision.documents.slurm_jobs import SlurmDevice, StepGpus
from provision.errors import LaunchError
from provision.jobs.engines.slurm import starter as module
from provision.jobs.engines.slurm.allocation import AllocatedNode, places
from provision.jobs.engines.slurm.payload import Payload, PayloadMachine, PayloadNode
from provision.jobs.engines.slurm.starter import Allocation, Starter
from provision.jobs.engines.slurm.steps import HereConnector
from provision.model.job import JobSpec, Kind


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the first programs of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(module, "RUN", str(tmp_path / "run"))
    return folder


def tool(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    (folder / name).chmod(0o755)


def starter(names: str = "abc", restarts: int = 0, **options: Any) -> Starter:
    """Return the starter of an attempt on the nodes a and b, of a job that may get all nodes `names`."""
    spec = JobSpec("mnist", Kind.RUN, ("true",), **{"image": "image", "retry": 3, "workers": 2, **options})
    nodes = tuple(PayloadNode(f"s-{name}", name, "10.0.0.1", "eth0", NodeHardware()) for name in names)
    payload = Payload(1, "mnist", "abc1", 1, "u@h", 1.0, spec, "text", "signature", nodes)
    return Starter(payload, Allocation(12, ("s-a", "s-b"), (1, 1), restarts))


SHOWN, AGAIN = "show job -d -o 12", ["show job -o 12", "requeue 12"]
SHOW = 'test "$1" = show && echo "JobId=12 Restarts=0 BatchFlag=1 ExcNodeList=login,old[1-2] NodeList=s-a"'


def failed_on(name: str) -> Result:
    document: dict[str, Any] = {"status": "FAILED", "exit_code": 1, "ended": 9.0}
    return msgspec.convert(
        {**document, "reason": "x", "code": "job.node_rebooted", "params": {"nodes": [name]}}, Result
    )


def test_a_failure_by_the_fault_of_a_node_names_it() -> None:
    assert module._nodes_at_fault(failed_on("b")) == {"b"}


def test_a_retry_keeps_the_nodes_that_are_excluded_already(programs: Path, tmp_path: Path) -> None:
    """`scontrol update ExcNodeList=` replaces the list of the submission and of earlier failures."""
    tool(programs, "scontrol", f"{SHOW}; exit 0")
    tool(programs, "systemd-run", f'printf "%s " "$@" >{tmp_path}/words')

    starter()._requeue(HereConnector("a"), ["b"])

    assert '"exclude":["login","old1","old2","s-b"]' in (tmp_path / "words").read_text()


def test_a_job_that_needs_all_nodes_is_tried_again_on_the_bad_node(programs: Path, tmp_path: Path) -> None:
    """Without it, the job could never start."""
    tool(programs, "scontrol", f"{SHOW}; exit 0")
    tool(programs, "systemd-run", f'printf "%s " "$@" >{tmp_path}/words')

    starter("ab", spread=True)._requeue(HereConnector("a"), ["b"])

    assert '"exclude":[]' in (tmp_path / "words").read_text()


@pytest.mark.parametrize(
    ("names", "expected"),
    [("abc", '"exclude":["login","old1","old2","s-b"],"any_node":true'), ("ab", '"exclude":[],"any_node":false')],
)
def test_a_retry_of_a_job_with_chosen_gpus_may_use_other_nodes(
    programs: Path, tmp_path: Path, names: str, expected: str
) -> None:
    """The job requires the nodes that were chosen at its submission: it would wait for the bad one."""
    tool(programs, "scontrol", f"{SHOW}; exit 0")
    tool(programs, "systemd-run", f'printf "%s " "$@" >{tmp_path}/words')

    starter(names, gputopology=True, gpus=1)._requeue(HereConnector("a"), ["b"])

    assert expected in (tmp_path / "words").read_text()


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"gputopology": True}, "--gres=gpu:g5:1,gpu:g7:1"),
        ({"exclusive": True}, "--gres=gpu:g5:1,gpu:g7:1"),
        ({}, "--gpus-per-node=2"),
    ],
)
def test_steps_request_the_gpus_of_the_job_by_type_where_slurm_refuses_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], asked: str
) -> None:
    """Slurm 22.05 refuses a number above one if the job has one GPU of each of several types."""
    gres = "gpu:g5:1(IDX:5),gpu:g6:0(IDX:),gpu:g7:1(IDX:7)"
    shown = f"JobId=12 Nodes=s-a,s-b CPU_IDs=0 Mem=512 GRES={gres}"
    monkeypatch.setattr(module, "RUN", str(tmp_path / "run"))
    steps: list[tuple[str, str]] = []

    def step(name: str, _slurm: str, _job: int, _certificate: str, gpus: str) -> HereConnector:
        steps.append((name, gpus))
        return HereConnector(name)

    monkeypatch.setattr(module, "StepConnector", step)
    monkeypatch.setattr(module, "ask_jobs", lambda *_, **__: StepGpus([5], [SlurmDevice("GPU-f", 5, 4)]))
    one = starter("ab", gpus=1, **options)
    allocated = one._allocated(one._own_nodes(), shown)

    assert sorted(steps) == [("a", asked), ("b", asked)]
    assert [node.indices for node in allocated] == [(4,), (4,)]


def test_nodes_of_one_leaf_switch_follow_each_other_in_the_ranks() -> None:
    """Whatever the order of slurm.conf; the node of the batch script has rank 0."""
    spec = JobSpec("mnist", Kind.RUN, ("true",), workers=5)
    leaves = {"n1": "b", "n2": "a", "n3": "b", "n4": "a", "n5": "b"}
    nodes = [
        PayloadNode(name, name, "10.0.0.1", "eth0", NodeHardware(), machine=PayloadMachine((), leaf=leaf))
        for name, leaf in leaves.items()
    ]

    order = [place.node for place in places(spec, [AllocatedNode(node, 1) for node in nodes])]
    assert order == ["n1", "n3", "n5", "n2", "n4"]


@pytest.mark.parametrize(("least", "option"), [(2, "--gpus-per-node=2"), (1, "--gpus=2")])
def test_a_node_with_more_gpus_than_others_is_asked_for_a_total(least: int, option: str) -> None:
    """Slurm 22.05 refuses the number for each node if each GPU has a type."""
    assert module._gpu_option(2, (), least) == option


class Waits(threading.Event):
    """An event that is never set, and records how long it is awaited."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout)
        return False


def test_a_job_without_its_gpus_is_started_again(programs: Path, tmp_path: Path) -> None:
    """Slurm 22.05 starts jobs without GPUs, such as before the nodes have registered with a new slurmctld."""
    tool(programs, "scontrol", f'echo "$@" >>{tmp_path}/called; {SHOW}; exit 0')
    tool(programs, "systemd-run", "exit 0")
    one, waits = starter(gpus=1, retry=0), Waits()
    one._stop = waits

    assert one._run() == module.FAILED

    assert (tmp_path / "called").read_text().splitlines() == [SHOWN, "update JobId=12 Requeue=1", *AGAIN]
    assert waits.seconds == [module.SETTLE_SECONDS]


def test_a_job_without_its_gpus_fails_in_the_end(programs: Path, tmp_path: Path) -> None:
    tool(programs, "scontrol", f'echo "$1" >>{tmp_path}/called; {SHOW}')

    with pytest.raises(LaunchError) as error:
        starter(gpus=1, retry=0, restarts=module.MOST_LOST_STARTS)._run()

    assert error.value.code == "slurm.gpus_missing"
    assert (tmp_path / "called").read_text().split() == ["show"]


def run_to_its_start(one: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all of a starter that comes before the start of its attempt."""
    attempt = SimpleNamespace(leader=SimpleNamespace(node="a"), nodes=["a"])
    replaced = {"_allocated": lambda *_: [], "_attempt": lambda *_: attempt, "_wait": lambda *_: 0}
    for name in ("_guard", "_start"):
        replaced[name] = lambda *_: None
    for name, method in replaced.items():
        monkeypatch.setattr(one, name, method)
    assert one._run() == 0


@pytest.mark.parametrize(("retry", "restarts", "begun"), [(1, 0, 0), (1, 2, 1), (0, 1, 0)])
def test_the_begin_of_an_attempt_that_may_have_another_is_recorded(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retry: int, restarts: int, begun: int
) -> None:
    """A start that Slurm could not launch is no attempt, although Slurm counts it."""
    comment = f" AdminComment={attempts_comment(begun)}" if begun else ""
    tool(programs, "scontrol", f'echo "$@" >>{tmp_path}/called; echo "JobId=12 Restarts={restarts}{comment} End"')

    run_to_its_start(starter(retry=retry, restarts=restarts), monkeypatch)

    written = (tmp_path / "called").read_text().splitlines()[-1]
    assert written == f"update JobId=12 AdminComment={attempts_comment(begun + 1)}"


def test_the_only_attempt_of_a_job_is_not_recorded(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(programs, "scontrol", f"touch {tmp_path}/called; exit 1")
    run_to_its_start(starter(retry=0), monkeypatch)
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(("restarts", "called"), [(0, ["show", "update"]), (1, ["show"])])
def test_a_failed_start_leaves_the_number_of_attempts_to_the_next_one(
    programs: Path, tmp_path: Path, restarts: int, called: list[str]
) -> None:
    """Slurm may have requeued the job meanwhile; the number and the failure are in one field of Slurm."""
    tool(programs, "scontrol", f'echo "$1" >>{tmp_path}/called; echo "JobId=12 Restarts={restarts} BatchFlag=1"')

    starter()._record_failure(LaunchError("no disk space", node="a"))

    assert (tmp_path / "called").read_text().split() == called


def test_a_job_that_has_had_its_attempts_is_not_started_again(programs: Path) -> None:
    tool(programs, "scontrol", f'echo "JobId=12 Restarts=2 AdminComment={attempts_comment(2)} End"')
    with pytest.raises(LaunchError) as error:
        starter(retry=1, restarts=2)._run()
    assert error.value.code == "slurm.too_many_attempts"


def test_a_retry_waits_for_slurmctld(programs: Path, tmp_path: Path) -> None:
    """The attempt fails while slurmctld is away, which comes back after it was asked three times."""
    tool(programs, "squeue", f"echo x >>{tmp_path}/asked; test $(wc -l <{tmp_path}/asked) -ge 3")
    tool(programs, "scontrol", f'echo "$1" >>{tmp_path}/called; test -s {tmp_path}/asked || exit 1; {SHOW}; exit 0')
    tool(programs, "systemd-run", "exit 0")

    one, waits = starter(), Waits()
    one._stop = waits

    one._requeue(HereConnector("a"), ["b"])

    assert (tmp_path / "called").read_text().split() == ["show", "show", "requeue"]
    assert waits.seconds == [1, 1, module.SETTLE_SECONDS]


def test_a_retry_waits_after_a_command_that_waited_for_slurmctld(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm's commands wait some seconds for slurmctld themselves."""
    monkeypatch.setattr(module, "SLOW_SECONDS", 0.0)
    tool(programs, "scontrol", f"{SHOW}; exit 0")
    tool(programs, "systemd-run", "exit 0")
    one, waits = starter(), Waits()
    one._stop = waits

    one._requeue(HereConnector("a"), ["b"])

    assert waits.seconds[0] == module.SETTLE_SECONDS


def test_a_job_that_is_cancelled_while_slurmctld_is_away_is_not_requeued(programs: Path, tmp_path: Path) -> None:
    """`scontrol requeue` also starts jobs again that Slurm has cancelled."""
    one = starter()
    tool(programs, "scontrol", f'echo "$1" >>{tmp_path}/called; test "$1" = requeue && exit 1; {SHOW}; exit 0')
    tool(programs, "squeue", f"touch {tmp_path}/cancelled")
    tool(programs, "systemd-run", "exit 0")

    class Cancels(threading.Event):
        """Set by the signal of the cancellation, which arrives after slurmctld is back."""

        def is_set(self) -> bool:
            return (tmp_path / "cancelled").exists()

        def wait(self, timeout: float | None = None) -> bool:
            del timeout
            return self.is_set()

    one._stop = Cancels()
    one._requeue(HereConnector("a"), ["b"])

    assert (tmp_path / "called").read_text().split() == ["show", "requeue"]


@pytest.mark.parametrize("shown", ["Restarts=1", "", "Restarts=x"])
def test_a_later_attempt_is_not_requeued(programs: Path, tmp_path: Path, shown: str) -> None:
    """Slurm lost the node of this attempt, and runs the next one elsewhere under the same number."""
    tool(programs, "scontrol", f'echo "$1" >>{tmp_path}/called; echo "JobId=12 {shown} BatchFlag=1"')

    starter()._requeue(HereConnector("a"), ["b"])

    assert (tmp_path / "called").read_text().split() == ["show"]


def test_a_failing_systemd_run_is_an_error(programs: Path) -> None:
    """Without the guard, an attempt whose starter is killed would run on."""
    tool(programs, "systemd-run", "echo 'Failed to connect to bus' >&2; exit 1")

    with pytest.raises(LaunchError) as caught:
        starter()._detach(HereConnector("a"), "guard", pid=1)
    assert caught.value.code == "slurm.not_detached"


@pytest.mark.usefixtures("programs")
def test_the_files_of_a_starter_are_in_a_folder_of_root(tmp_path: Path) -> None:
    """/tmp is a folder of all users, and remains after the starter was killed."""
    assert starter()._folder.parent == tmp_path / "run"
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("programs")
def test_all_files_of_a_starter_are_in_the_folder_that_the_epilog_removes(tmp_path: Path) -> None:
    """The name of the folder has the number of the Slurm job."""
    one = starter()
    about: Any = SimpleNamespace()
    one._payload = msgspec.structs.replace(one._payload, about=about, code=b"packed")

    with one._code() as archive:
        assert archive is not None
        assert archive.path.read_bytes() == b"packed"
        assert [path.name.rpartition("-")[0] for path in (tmp_path / "run").iterdir()] == ["starter-12"]

    assert list(one._folder.iterdir()) == []


@pytest.mark.usefixtures("programs")
def test_the_starter_of_a_running_job_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes remove starters that were unused for 30 days; the end of the job and its next attempt need this one."""
    folder = tmp_path / "starter"
    folder.mkdir()
    os.utime(folder, (1.0, 1.0))
    monkeypatch.setattr(module, "_FOLDER", str(folder))
    monkeypatch.setattr(module, "begin", lambda *_, **__: io.BytesIO())
    monkeypatch.setattr(module, "first_line", lambda *_: Watched(changed=True))
    one: Any = starter()
    one._result = lambda *_: msgspec.convert({"status": "SUCCEEDED", "ended": 9.0}, Result)
    connections: Any = SimpleNamespace(to=HereConnector)
    attempt: Any = SimpleNamespace(leader=SimpleNamespace(node="a"), spec=one._spec, number=1)

    assert one._wait(connections, attempt) == 0
    assert folder.stat().st_mtime > 1.0
