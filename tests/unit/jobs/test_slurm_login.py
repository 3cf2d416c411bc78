"""The engine `slurm-login`: an ordinary user on a login node. Slurm is a STAND-IN that runs batch scripts here.

`tests/integration/test_slurm_existing.py` runs jobs on a real Slurm.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from provision.cli.main import main
from provision.connectors.local import LocalConnector
from provision.errors import ConnectionFailed, NameTaken, NeverFits, NodeError, NotFound, ProvisionError, UsageError
from provision.inventory.load import load
from provision.jobs.engines.base import Capability, JobEngine, LogRequest, MissingCapability, Secrets, all_jobs, require
from provision.jobs.engines.slurm.login import engine as login_engine
from provision.model.job import CodeSource, JobRecord, JobSpec, JobStatus, Kind
from provision.workflow.jobs import job_engine
from tests.support.hostile.verbs import CASES
from tests.support.node.node import until

STANDIN = Path(__file__).parents[2] / "support/node/slurm_user_standin.py"
COMMANDS = ("sbatch", "squeue", "scancel", "srun", "scontrol", "sinfo", "sacct")
SETTINGS = {"cluster_engine": "slurm", "slurm_source": "present", "cluster_slurm_login": "login1"}
QUIET = [].append
ENDED = (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.STOPPED)


@dataclass
class Account:
    """The account of a user, the inventory, and the files of the STAND-IN."""

    home: Path
    slurm: Path
    inventory: Path

    @property
    def engine(self) -> JobEngine:
        """The engine of another command."""
        return job_engine(load(self.inventory))

    def write(self, **settings: Any) -> None:
        """Change the settings of the inventory."""
        path, text = self.inventory / "group_vars/all.yml", yaml.safe_dump({**SETTINGS, **settings})
        if not path.exists() or path.read_text() != text:
            path.write_text(text)

    def submit(self, name: str = "job", line: str = "true", secrets: Secrets | None = None, **more: Any) -> JobRecord:
        spec = JobSpec(name, more.pop("kind", Kind.RUN), (line,), **{"no_container": True, **more})
        return self.engine.submit(spec, secrets or Secrets(), QUIET)

    def until(self, name: str, *statuses: JobStatus) -> JobRecord:
        def reached() -> JobRecord | None:
            job = self.engine.get(name)
            return job if job.status in statuses else None

        return until(reached, f"{name} to be {statuses}", 20)

    def output(self, name: str, **request: Any) -> list[tuple[str, bytes]]:
        lines: list[tuple[str, bytes]] = []
        job = self.engine.get(name)
        self.engine.logs(job, LogRequest(**request), lambda instance, line: lines.append((instance, line)))
        return lines

    def file(self, job: int, name: str) -> Path:
        return self.slurm / f"job-{job}" / name


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Type a command; return exit code, stdout and stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stopped:
            main(list(words))
        return int(stopped.value.code or 0), *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An inventory for all tests, so that Ansible reads it once."""
    folder = tmp_path_factory.mktemp("inventory")
    (folder / "group_vars").mkdir()
    hosts = {"all": {"hosts": {"login1": {"ansible_connection": "local"}}}}
    (folder / "hosts.yml").write_text(yaml.safe_dump(hosts))
    return folder


@pytest.fixture
def account(tmp_path: Path, inventory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    """A login node on this machine. The test fails if root is requested there."""
    made = Account(tmp_path / "home", tmp_path / "slurm", inventory)
    programs = tmp_path / "bin"
    for folder in (made.home, made.slurm, programs):
        folder.mkdir(parents=True)
    for command in COMMANDS:
        (programs / command).write_text(f'#!/bin/sh\nexec {sys.executable} -I {STANDIN} {made.slurm} {command} "$@"\n')
    for path in programs.iterdir():
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(made.home))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(inventory.parent / "cache"))
    made.write()
    (made.slurm / "free").touch()
    asked_root: list[str] = []
    monkeypatch.setattr(LocalConnector, "sudo_needed", lambda one: asked_root.append(one.name) or (False, None))
    yield made
    for job in made.slurm.glob("job-*/process"):
        if not job.with_name("exit").exists():
            os.killpg(int(job.read_text()), 9)
    assert asked_root == []


def test_a_job_runs_and_its_output_and_exit_code_are_recorded_in_the_home_folder(account: Account) -> None:
    submitted = account.submit("job", 'echo "rank $RANK of $WORLD_SIZE"; pwd; exit $((RANK * 7))', workers=2)
    job = account.until("job", *ENDED)

    assert (job.id, job.status, job.exit_code, job.attempt) == (submitted.id, JobStatus.FAILED, 7, 1)
    assert (job.cause.code, job.first_failure, job.first_rank) == ("slurm.login_failed", "job-worker-1", 1)
    assert [(one.instance, one.node) for one in job.assignments] == [("job-worker-0", "n1"), ("job-worker-1", "n2")]
    here = str(account.home).encode()
    assert account.output("job", every=True) == [
        ("job-worker-0", b"rank 0 of 2\n"), ("job-worker-0", here + b"\n"),
        ("job-worker-1", b"rank 1 of 2\n"), ("job-worker-1", here + b"\n"),
    ]  # fmt: skip
    assert job.engine_details == {"slurmJob": 1, "folder": f"{account.home}/.provision/slurm/job"}
    assert [event.message.partition(" by ")[0] for event in job.events] == [
        "submitted", "attempt 1 began as job 1 on n1, n2", "job 1 ended with exit status 7",
    ]  # fmt: skip


def test_nothing_is_written_outside_of_one_folder_that_only_the_account_can_read(account: Account) -> None:
    account.submit()
    account.until("job", JobStatus.SUCCEEDED)

    names = {path.name for path in account.home.iterdir()}
    assert names - {".ansible"} == {".provision"}  # Ansible, which reads the inventory, has the same home folder here
    folder = account.home / ".provision/slurm"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sorted(path.name for path in (folder / "job/attempt-1").iterdir()) == [
        "0.log", "batch.log", "ended", "started",
    ]  # fmt: skip
    account.engine.delete("job", QUIET)
    assert list(folder.iterdir()) == []


def test_a_job_waits_with_slurms_reason_and_has_no_instance_yet(account: Account) -> None:
    (account.slurm / "free").unlink()
    job = account.submit()

    assert (job.status, job.cause.code, job.attempt, job.assignments) == (JobStatus.PENDING, "slurm.resources", 0, ())
    with pytest.raises(NotFound, match="no instance yet"):
        account.output("job")
    assert account.engine.stop("job", QUIET).status is JobStatus.STOPPED


def test_a_running_job_is_followed_and_stopped(account: Account) -> None:
    account.submit("job", "trap 'echo saved; exit 0' TERM; echo begun; while :; do sleep 0.05; done")
    account.until("job", JobStatus.RUNNING)
    until(lambda: account.output("job"), "a line of output", 10)
    stopped = account.engine.stop("job", QUIET)

    assert (stopped.status, stopped.reason) == (JobStatus.STOPPED, "")
    lines = [line for _, line in account.output("job", follow=True)]
    assert (lines[0], lines[-1]) == (b"begun\n", b"saved\n")


def test_a_job_that_was_cancelled_in_slurm_is_stopped_with_the_reason(account: Account) -> None:
    account.submit("job", "exec sleep 60")
    account.until("job", JobStatus.RUNNING)
    account.file(1, "cancelled").write_text("yes")
    os.killpg(int(account.file(1, "process").read_text()), 15)

    assert account.until("job", *ENDED).cause.code == "slurm.cancelled"


def test_the_status_is_slurms_until_it_knows_how_the_job_ended(account: Account) -> None:
    """The script of a cancelled job records a failure before Slurm records the cancellation."""
    account.submit("job", "exit 143")
    account.until("job", JobStatus.FAILED)
    account.file(1, "state").write_text("COMPLETING")
    assert account.engine.get("job").status is JobStatus.RUNNING
    account.file(1, "state").write_text("TIMEOUT")

    assert account.engine.get("job").cause.code == "slurm.ended"


def test_the_last_lines_of_an_output(account: Account) -> None:
    account.submit("job", "for line in 1 2 3 4; do echo $line; done; printf 5")
    account.until("job", JobStatus.SUCCEEDED)

    assert [line for _, line in account.output("job", tail=2)] == [b"4\n", b"5\n"]
    assert account.output("job", tail=0) == []
    assert len(account.output("job", tail=9)) == 5


def test_an_output_of_several_answers_is_complete(account: Account) -> None:
    """An answer has 4 MiB; its last line continues in the next one."""
    account.submit("job", "seq 700000")
    account.until("job", JobStatus.SUCCEEDED)

    assert [int(line) for _, line in account.output("job")] == list(range(1, 700001))


def test_a_name_is_taken_until_its_job_is_deleted(account: Account) -> None:
    account.submit()
    with pytest.raises(NameTaken):
        account.submit()
    account.engine.delete("job", QUIET)

    account.submit()
    assert len(all_jobs(account.engine).jobs) == 1


def test_a_job_that_can_never_start_is_refused_and_not_recorded(account: Account) -> None:
    with pytest.raises(NeverFits) as caught:
        account.submit(workers=3)
    assert caught.value.code == "slurm.never_nodes"
    assert all_jobs(account.engine).jobs == ()
    assert account.engine.dry_run(JobSpec("job", Kind.RUN, ("true",), workers=3, no_container=True)).reason.code


def test_a_job_whose_submission_got_no_answer_is_shown_and_not_submitted_again(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = login_engine.ask_login

    def ask(connector: Any, do: str, kind: Any, **request: Any) -> Any:
        answer = real(connector, do, kind, **request)
        if do == "submit":
            folder = account.home / ".provision/slurm/job/job.json"
            folder.write_text(json.dumps({**json.loads(folder.read_text()), "number": 0}))
            raise ConnectionFailed("the connection ended", node="login1")
        return answer

    monkeypatch.setattr(login_engine, "ask_login", ask)
    with pytest.raises(NodeError) as caught:
        account.submit("job", "echo once")
    assert caught.value.code == "slurm.uncertain"
    job = account.until("job", JobStatus.SUCCEEDED)

    assert (job.engine_details["slurmJob"], account.output("job")) == (1, [("job-worker-0", b"once\n")])


def test_a_job_that_ends_while_it_is_listed_has_its_exit_code(account: Account, tmp_path: Path) -> None:
    account.submit("job", "until test -e go; do sleep 0.05; done; exit 3")
    account.until("job", JobStatus.RUNNING)
    squeue = tmp_path / "bin/squeue"
    wait = f"touch {account.home}/go; until test -e {account.slurm}/job-1/exit; do sleep 0.05; done"
    squeue.write_text(squeue.read_text().replace("exec", f"{wait}\nexec", 1))

    job = account.engine.get("job")

    assert (job.status, job.exit_code, job.cause.code) == (JobStatus.FAILED, 3, "slurm.login_failed")


def test_a_restart_is_the_next_attempt(account: Account) -> None:
    account.submit("job", "test -e again || exit 3; echo second")
    assert account.until("job", *ENDED).exit_code == 3
    (account.home / "again").touch()
    account.engine.restart("job", QUIET)
    job = account.until("job", JobStatus.SUCCEEDED)

    assert (job.attempt, job.engine_details["slurmJob"]) == (2, 2)
    assert account.output("job") == [("job-worker-0", b"second\n")]
    assert account.output("job", attempt=1) == []


def test_a_held_job_is_released_and_a_dependent_one_waits_for_it(account: Account) -> None:
    assert account.submit("first", hold=True).status is JobStatus.QUEUING
    assert account.submit("second", depends=("first",), priority=5).cause.code == "slurm.dependency"
    assert {"--dependency=afterok:1", "--nice=-5"} <= set(account.file(2, "options").read_text().splitlines())
    account.engine.release("first", QUIET)

    account.until("first", JobStatus.SUCCEEDED)


def test_secrets_are_in_no_script_and_are_deleted_at_the_end(account: Account) -> None:
    secrets = Secrets({"TOKEN": "s3cr$t 'x'"})
    account.submit("job", 'echo "$TOKEN"', secrets, secret_env=("TOKEN",))
    account.until("job", JobStatus.SUCCEEDED)

    assert account.output("job") == [("job-worker-0", b"s3cr$t 'x'\n")]
    for name in ("script", "options", "comment"):
        assert "s3cr" not in account.file(1, name).read_text()
    assert not list(account.home.rglob("secrets"))
    with pytest.raises(UsageError) as caught:
        account.engine.restart("job", QUIET, supply=lambda _spec: Secrets())
    assert caught.value.code == "slurm.login_secrets"
    account.engine.restart("job", QUIET, supply=lambda _spec: secrets)
    assert account.until("job", JobStatus.SUCCEEDED).attempt == 2


def test_a_job_that_slurm_has_forgotten_has_the_end_that_it_recorded(account: Account) -> None:
    account.submit("job", "exit 4")
    account.until("job", *ENDED)
    account.file(1, "forgotten").write_text("yes")

    job = account.engine.get("job")
    assert (job.status, job.exit_code, job.cause.code) == (JobStatus.FAILED, 4, "slurm.login_failed")


@pytest.mark.parametrize(
    ("accounting", "status", "code"),
    [
        ("", JobStatus.FAILED, "slurm.login_forgotten"),
        ("1|OUT_OF_MEMORY|0:9", JobStatus.FAILED, "slurm.ended"),
        ("1|CANCELLED by 1000|0:15", JobStatus.STOPPED, "slurm.cancelled"),
        ("1|COMPLETED|0:0", JobStatus.SUCCEEDED, ""),
    ],
)
def test_a_job_that_recorded_no_end_has_that_of_the_accounting(
    account: Account, accounting: str, status: JobStatus, code: str
) -> None:
    (account.slurm / "free").unlink()
    account.submit()
    account.file(1, "forgotten").write_text("yes")
    if accounting:
        (account.slurm / "accounting").write_text(accounting)

    job = account.engine.get("job")
    assert (job.status, job.cause.code) == (status, code)


def test_jobs_of_other_programs_in_the_same_account_are_not_shown(account: Account) -> None:
    account.submit()
    account.until("job", JobStatus.SUCCEEDED)
    account.file(1, "comment").write_text("provision:job@another")

    assert [job.number for job in all_jobs(account.engine).jobs] == [1]


def test_nodes_have_the_gpus_that_slurm_counts(account: Account) -> None:
    nodes = account.engine.nodes().nodes

    assert [(node.name, [gpu.foreign for gpu in node.gpus]) for node in nodes] == [
        (name, ["a job in Slurm", ""]) for name in ("n1", "n2")
    ]


def test_a_slurm_that_does_not_answer_is_an_error_with_its_words(account: Account) -> None:
    (account.slurm / "silent").touch()
    with pytest.raises(NodeError, match="Unable to contact slurm controller") as caught:
        all_jobs(account.engine)
    assert (caught.value.node, bool(caught.value.remedy)) == ("login1", True)


def test_a_login_without_slurms_commands_is_an_error(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(NodeError, match="there is no squeue in the PATH of this login"):
        all_jobs(account.engine)


@pytest.mark.parametrize(
    ("more", "option"),
    [
        ({"config_files": ("/a:/b",)}, "--config-file"),
        ({"data": (("shared", "/data"),)}, "--data without a container"),
        ({"mounts": ("/a:/b",)}, "--mount without a container"),
        ({"sync": CodeSource("local", "/code")}, "--sync-mode local"),
        ({"gang": False, "workers": 2}, "--gang=false"),
        ({"tensorboard": True}, "--tensorboard"),
        ({"gpu_ids": (1,)}, "--gpu-ids"),
        ({"ttl_after_finished": 60.0}, "--ttl-after-finished"),
        ({"user": "1000:1000"}, "--user"),
    ],
)
def test_an_option_that_needs_more_is_refused_before_anything_is_recorded(
    account: Account, more: dict[str, Any], option: str
) -> None:
    with pytest.raises(UsageError) as caught:
        account.submit(**more)
    assert (caught.value.code, caught.value.reason and caught.value.reason.params["option"]) == (
        "slurm.login_option", option,
    )  # fmt: skip
    assert not (account.home / ".provision").exists()


def test_containers_are_refused_unless_the_inventory_names_how_they_start(account: Account) -> None:
    with pytest.raises(UsageError) as caught:
        account.submit(no_container=False, image="image")
    assert caught.value.code == "slurm.login_no_containers"
    account.write(cluster_slurm_containers="apptainer")
    account.submit(no_container=False, image="image:1")

    assert "docker://image:1" in account.file(1, "script").read_text()


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"slurm_source": "distribution"}, "slurm.login_source"),
        ({"cluster_slurm_login": "none"}, "slurm.login_unknown"),
    ],
)
def test_settings_that_contradict_are_refused(account: Account, settings: dict[str, Any], code: str) -> None:
    account.write(**settings)
    with pytest.raises(ProvisionError) as caught:
        _ = account.engine
    assert (caught.value.code, caught.value.exit_code) == (code, 2)


def test_every_missing_capability_has_a_remedy_of_its_own(account: Account) -> None:
    engine = account.engine
    for capability in set(Capability) - set(engine.capabilities):
        with pytest.raises(MissingCapability) as caught:
            require(engine, capability, "it")
        assert caught.value.code == capability.code
        assert "Choose an engine" not in str(caught.value.remedy)


def test_commands_about_jobs_work(account: Account, typed: Any) -> None:
    account.submit("job", "echo one; echo two")
    account.until("job", JobStatus.SUCCEEDED)
    account.submit("held", hold=True)
    lines = {
        "list -o name": "job\n",
        "get job -o name": "job\n",
        "events job": "attempt 1 began as job 1 on n1",
        "logs job": "one\ntwo\n",
        "logs job --all --tail 1": "two\n",
        "wait job": "",
        "top job job": "job",
        "top node": "n1",
        "node list": "n2",
        "queue list": "held",
        "queue run": "",
        "queue release held": "",
        "export job --to slurm": "echo one",
        "stop held": "",
        "prune --since 100d": "",
        "delete job": "",
    }
    for line, part in lines.items():
        code, out, err = typed(*line.split(), "--inventory", str(account.inventory))
        assert (line, code) == (line, 0), out + err
        assert part in out, line


WORKS = {
    "submit", "list", "get", "export", "logs", "wait", "stop", "restart", "delete", "prune", "events", "node list",
    "top node", "top job", "queue", "queue list", "queue run", "queue release", "history", "init", "support-bundle",
    "data list", "bootstrap",
}  # fmt: skip
"""Verbs that do not need root on nodes; `bootstrap` sets up this machine, whatever the inventory says."""


@pytest.mark.parametrize("verb", sorted(set(CASES) - WORKS))
def test_a_verb_that_needs_root_is_one_error(account: Account, verb: str, typed: Any, tmp_path: Path) -> None:
    words = CASES[verb].lines[0].format(folder=tmp_path, fingerprint="SHA256:x").split()
    others = {"gpu0002", "gpu0003"} if verb != "stack diff" else set()
    words = [word.replace("gpu0001", "login1") for word in words if word not in others]
    at = words.index("--") if "--" in words else len(words)
    code, out, err = typed(*words[:at], "--inventory", str(account.inventory), *words[at:])

    assert code == (125 if verb == "run" else 2), out + err
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, err
    assert "root on the nodes" in err or "does not support" in err, err
    assert not (account.home / ".provision").exists()
