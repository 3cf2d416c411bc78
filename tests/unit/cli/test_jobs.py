"""Verbs of batch jobs as they are typed: what goes to the engine, what is printed, and the exit code."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
import time

import pytest
import yaml

from provision.cli import following, levels
from provision.cli.main import ALIASES, GROUPS, SECTIONS, VERBS, normalise
from provision.errors import ConnectionFailed, InvalidRecord, NeverFits, NotAllowed, UsageError
from provision.jobs.engines.common.placement import no_placement
from provision.model.job import Assignment, InstanceRecord, JobEvent, JobStatus, Kind
from provision.model.job_views import DryRun, JobPage
from provision.model.reason import NO_REASON, reason
from provision.report.reasons import error_of
from provision.testing import make_cluster
from provision.workflow.job_watch import wait_for
from tests.support.memory_engine import MemoryEngine, job_of


@pytest.fixture
def engine(monkeypatch, tmp_path):
    """Jobs in memory instead of on nodes; nothing sleeps."""
    made = MemoryEngine()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("provision.cli.job_options.cluster_from", lambda *_a, **_k: make_cluster("gpu1", "gpu2"))
    monkeypatch.setattr("provision.workflow.jobs.job_engine", lambda *_: made)
    monkeypatch.setattr("time.time", lambda: 1057.0)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    monkeypatch.setitem(levels._chosen, "level", "info")
    monkeypatch.setattr(levels, "_BEGUN", time.monotonic())
    monkeypatch.setitem(wait_for.__kwdefaults__, "sleep", lambda _seconds: None)
    return made


def failed(code=7, number=None, **more):
    """A job whose second rank failed first."""
    lines = ("Traceback (most recent call last):", "RuntimeError: NaN")
    record = {
        "reason": "rank 1 failed",
        "first_failure": "pytorch-dist-worker-0",
        "first_rank": 1,
        "instances": {
            "pytorch-dist-worker-0": InstanceRecord(
                "pytorch-dist-worker-0", "Error", code, number, started=1000.0, ended=1040.0, last_lines=lines
            )
        },
        "ended": 1040.0,
        **more,
    }
    return job_of(status=JobStatus.FAILED, gpus=1, record=record)


SUBMIT = ("submit", "pytorch", "--name=pytorch-dist", "--image=i", "--gpus=1", "--workers=2")


@pytest.mark.row(13, 33)
def test_submit_prints_the_two_lines_of_arena(engine, typed):
    """On stderr; the secrets go beside the spec; nothing is on stdout unless it is asked for."""
    code, out, err = typed(*SUBMIT, "--env=API_TOKEN=t", "--", "python3", "x.py", "--help", "-o", "json")
    (_, spec, secrets) = engine.calls[0]

    assert (code, out) == (0, "")
    assert spec.command == ("python3", "x.py", "--help", "-o", "json")
    assert (dict(secrets.env), spec.secret_env) == ({"API_TOKEN": "t"}, ("API_TOKEN",))
    assert "INFO[0000] The Job pytorch-dist has been submitted successfully\n" in err
    assert "You can run `provision get pytorch-dist --type pytorchjob` to check the job status\n" in err
    assert "WARN[0000] the value of API_TOKEN is visible" in err


def test_submit_reports_why_a_job_waits(engine, typed):
    """It was submitted all the same."""
    engine.coming = [
        job_of(status=JobStatus.PENDING, assignments=False, record={"reason": "gpu1 has 0 of 1 GPUs free"})
    ]
    code, _, err = typed(*SUBMIT, "x")

    assert code == 0
    assert "It is PENDING: gpu1 has 0 of 1 GPUs free" in err


@pytest.mark.row(32)
def test_log_levels_are_accepted_before_and_after_the_verb(engine, typed):
    """As in arena's document; warn leaves out how it goes, error what may be a mistake too."""
    outputs = {}
    for level in ("debug", "info", "warn", "error"):
        outputs[level] = typed("--loglevel", level, *SUBMIT, "--env=API_TOKEN=t", "x")
        engine.known = {}
    assert {code for code, _, _ in outputs.values()} == {0}
    assert {level: ("submitted" in err, "API_TOKEN" in err) for level, (_, _, err) in outputs.items()} == {
        "debug": (True, True),
        "info": (True, True),
        "warn": (False, True),
        "error": (False, False),
    }
    assert "--loglevel" not in str(engine.calls)
    assert typed("list", "--loglevel=loud")[0] == 2


@pytest.mark.parametrize(("code", "number", "expected"), [(7, None, 7), (137, 9, 137), (0, None, 1), (None, None, 1)])
def test_wait_exits_with_the_code_of_the_first_failed_rank(engine, typed, code, number, expected):
    """128 + N for signal N, as in a shell, whatever the others ended with; it is named with its last lines."""
    engine.coming = [job_of(gpus=1), job_of(gpus=1), failed(code, number, exit_code=143 if code == 7 else None)]
    result, _, err = typed(*SUBMIT, "--wait", "x")

    assert result == expected
    assert "First failure: rank 1, pytorch-dist-worker-0 on gpu2: " in err
    assert "| RuntimeError: NaN" in err


def test_follow_prints_the_output_on_stdout(engine, typed):
    """And how it went on stderr."""
    engine.coming = [job_of(gpus=1), job_of(gpus=1, status=JobStatus.SUCCEEDED)]
    engine.lines = [("pytorch-dist-master-0", b"WORLD_SIZE: 2, CURRENT_RANK: 0\n")]
    code, out, err = typed(*SUBMIT, "--follow", "x")

    assert (code, out) == (0, "WORLD_SIZE: 2, CURRENT_RANK: 0\n")
    assert "pytorch-dist SUCCEEDED" in err


def test_ctrl_c_does_not_stop_the_job(engine, typed, monkeypatch):
    """It outlives the shell; how to see it again, and how to end it."""

    def interrupted(*_words):
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "logs", interrupted)
    code, _, err = typed(*SUBMIT, "--follow", "x")

    assert code == 130
    assert "pytorch-dist continues" in err
    assert "to stop it: provision stop pytorch-dist" in err


@pytest.mark.row(9)
def test_an_existing_name_exits_with_4_and_an_unknown_job_with_3(engine, typed):
    """Scripts can distinguish them; JSON has the error too."""
    engine.known["pytorch-dist"] = job_of()

    assert typed(*SUBMIT, "x")[0] == 4
    assert typed("get", "none")[0] == 3
    code, out, _ = typed("-o", "json", "logs", "none")
    assert code == 2  # logs has no JSON
    assert "error" in json.loads(out)


def test_a_dry_run_shows_placement_variables_and_commands(engine, typed):
    """As text, and as YAML whose spec can be submitted."""
    assignment = Assignment(
        "pytorch-dist-master-0", "master", 0, "gpu1", "10.0.0.1", 0, is_leader=True, gpus=(0, 1), nics=("mlx5_0",)
    )
    engine.plan = DryRun(
        (assignment,),
        NO_REASON,
        {"pytorch-dist-master-0": {"RANK": "0", "API_TOKEN": "[secret]"}},
        {"pytorch-dist-master-0": ["docker", "create", "a b"]},
        {"hostfile": "gpu1 slots=2\n"},
    )
    code, out, _ = typed(*SUBMIT, "--dry-run", "x")
    _, written, _ = typed(*SUBMIT, "--dry-run", "-o", "yaml", "x")
    result = yaml.safe_load(written)

    assert code == 0
    assert "pytorch-dist-master-0  0     0,1   mlx5_0  gpu1" in out
    assert "docker create 'a b'" in out
    assert "API_TOKEN=[secret]" in out
    assert "# file hostfile\ngpu1 slots=2" in out
    assert (result["fits"], result["placement"][0]["gpus"]) == (True, [0, 1])
    assert result["spec"]["name"] == "pytorch-dist"
    assert all(call[0] == "dry_run" for call in engine.calls)


def test_a_dry_run_has_the_exit_code_of_the_submission(engine, typed, monkeypatch):
    """A job that would wait is submitted too, so that is 0; one that can never fit is refused with 5 by both."""
    engine.plan = DryRun((), no_placement(reason("placement.no_node_ready"), {}), {}, {})
    code, out, _ = typed(*SUBMIT, "--dry-run", "--json", "x")
    document = json.loads(out)
    assert (code, document["fits"], document["code"]) == (0, False, "job.insufficient_resources")
    assert document["params"]["cause"] == {"code": "placement.no_node_ready", "params": {}}

    def never(*_words):
        raise error_of(NeverFits, reason("placement.unknown_node", nodes=["x"]))

    for verb, more in (("dry_run", ["--dry-run"]), ("submit", [])):
        monkeypatch.setattr(engine, verb, never)
        code, out, _ = typed(*SUBMIT, *more, "--json", "x")
        error = json.loads(out)["error"]
        assert (code, error["code"], error["params"]) == (5, "placement.unknown_node", {"nodes": ["x"]})


def test_a_dry_run_reports_lint_warnings(engine, typed):
    """The specification from the command line and the nodes' records; in JSON the latter."""
    engine.plan = DryRun((), NO_REASON, {}, {}, {}, ("btl_tcp_if_include eth7: gpu1 has eth0",))
    words = ("submit", "mpi", "--name=a", "--image=i", "--gpus=2", "--dry-run")
    code, out, err = typed(*words, "--json", "mpirun -np 1 x")

    assert (code, json.loads(out)["warnings"]) == (0, ["btl_tcp_if_include eth7: gpu1 has eth0"])
    assert "-np 1 starts 1 ranks" in err
    assert "gpu1 has eth0" in err
    assert typed(*words, "mpirun -np 3 x")[0] == 2
    assert typed(*words, "--no-lint", "mpirun -np 3 x")[0] == 0


def test_stored_credentials_and_files_are_sent_with_the_job(engine, typed, tmp_path, monkeypatch):
    """To the engine, beside the spec; what is not kept is refused with exit 2 before anything is asked."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "c").write_text("text")
    assert typed(*SUBMIT, "--image-pull-secret=r.example.com", "x")[0] == 2
    assert engine.calls == []
    monkeypatch.setattr("sys.stdin", io.StringIO("pw\n"))
    assert typed("secret", "set", "registry", "--server", "r.example.com", "--username", "u")[0] == 0
    typed("submit", "run", "--name=b", "--image=r.example.com/i", f"--config-file={tmp_path}/c:/c", "x")
    (_, spec, secrets) = engine.calls[0]

    assert secrets.registry == {"username": "u", "password": "pw", "server": "r.example.com"}
    assert (secrets.files, spec.config_files) == ({"/c": "text"}, (f"{tmp_path}/c:/c",))


def test_a_spec_is_read_from_standard_input(engine, typed, monkeypatch):
    """-f - is not the terminal's."""
    spec = b"kind: run\nname: a\nimage: i\ncommand: hostname\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(spec)))
    code, out, _ = typed("submit", "-f", "-", "-o", "name")

    assert (code, out) == (0, "a\n")
    assert engine.calls[0][1].kind is Kind.RUN


def test_a_variable_file_readable_by_others_is_refused(engine, typed, tmp_path):
    """With a remedy; nothing was submitted."""
    file = tmp_path / "env"
    file.write_text("API_TOKEN=t\n")
    file.chmod(0o644)
    code, _, err = typed(*SUBMIT, "--env-file", str(file), "x")
    file.chmod(0o600)

    assert code == 2
    assert f"chmod 600 {file}" in err
    assert engine.calls == []
    assert typed(*SUBMIT, "--env-file", str(file), "x")[0] == 0
    assert dict(engine.calls[0][2].env) == {"API_TOKEN": "t"}


@pytest.mark.row(36, 42)
def test_list_has_the_formats_of_arena(engine, typed):
    """Newest first; other words for the verb; by type, label and state."""
    old = job_of("old", Kind.MPI, status=JobStatus.SUCCEEDED, submitted=100.0, gpus=1, labels={"team": "a"})
    engine.known = {"old": old, "new": job_of("new", gpus=2)}
    names = [line.split()[0] for line in typed("ps")[1].splitlines()]
    wide = typed("-o", "wide", "list")[1].splitlines()

    assert names == ["NAME", "new", "old"]
    assert wide[1].split() == ["new", "RUNNING", "PYTORCHJOB", "57s", "4", "4", "10.0.0.1", "me@here"]
    assert wide[2].split()[-3:] == ["N/A", "N/A", "me@here"]
    assert typed("list", "-T", "mpijob", "-o", "name")[1] == "old\n"
    assert typed("list", "-l", "team=b", "-o", "name")[1].strip() == ""
    assert typed("list", "--status", "running", "-A", "-oname")[1] == "new\n"
    assert [job["name"] for job in json.loads(typed("list", "-o", "json")[1])] == ["new", "old"]
    assert yaml.safe_load(typed("ls", "-o", "yaml")[1])[1]["trainer"] == "mpijob"
    assert typed("list", "-T", "tf")[0] == 2
    assert typed("list", "-o", "xml")[0] == 2


@pytest.mark.parametrize(
    ("words", "recent"),
    [
        ((), 500),
        (("-o", "wide"), 500),
        (("-o", "name"), 0),
        (("--json",), 0),
        (("--status", "failed"), 0),
        (("-T", "mpi"), 0),
        (("--limit", "0"), 0),
        (("--limit", "20", "-o", "name"), 20),
    ],
)
def test_only_tables_without_a_filter_leave_out_old_jobs(engine, typed, words, recent):
    """Scripts and searches get all jobs."""
    engine.known = {"a": job_of("a")}
    engine.page = JobPage((), older=12 if recent else 0)
    _, _, err = typed("list", *words)

    assert ("jobs", recent) in engine.calls
    assert ("12 older jobs" in err) is bool(recent)


def test_unreachable_nodes_are_reported(engine, typed):
    """What others know is shown; with nothing at all the exit code says it."""
    engine.page = JobPage((), unreachable={"gpu2": "no route to host"})
    engine.known = {"a": job_of("a")}
    code, out, err = typed("list")

    assert code == 0
    assert "a " in out
    assert "gpu2: unreachable: no route to host" in err
    engine.known = {}
    assert typed("list")[0] == 7


@pytest.mark.row(15, 42)
def test_get_with_another_type_reports_no_job(engine, typed):
    """--type is checked, not ignored."""
    engine.known = {"a": job_of("a")}

    assert typed("get", "a", "--type", "pytorchjob")[0] == 0
    assert typed("get", "a", "--type", "py", "-o", "name")[1] == "a\n"
    assert typed("get", "a", "--type", "mpijob")[0] == 3
    assert typed("get", "a", "--type", "nonsense")[0] == 2


def test_describe_is_get_with_events_and_gpus(engine, typed):
    """kubectl's word."""
    events = (JobEvent(1000.0, "queue", "Warning", "gpu1 has 0 of 1 GPUs free"),)
    engine.known = {"a": job_of("a", gpus=1, record={"events": events})}
    _, out, _ = typed("describe", "a")

    assert "queue   Warning  57s  gpu1 has 0 of 1 GPUs free" in out
    assert "Allocated/Requested GPUs of Job: 2/2" in out
    assert "gpu1 has 0" in typed("events", "a")[1]


@pytest.mark.row(40)
def test_logs_passes_its_options_to_the_engine(engine, typed):
    """The instance by -i, also with the inventory before the verb; the tail, the time, the rank."""
    engine.known = {"a": job_of("a", workers=3, record={"attempt": 2})}
    engine.lines = [("a-worker-0", b"1\n"), ("a-worker-1", b"2\n")]

    def asked(*words):
        assert typed(*words)[0] == 0
        return engine.calls[-1][2]

    assert asked("-i", "hosts.yml", "logs", "a", "-i", "a-worker-0").instances == ("a-worker-0",)
    assert asked("logs", "a", "-t", "5").tail == 5
    assert asked("logs", "a", "--rank", "2").instances == ("a-worker-1",)
    assert asked("logs", "a", "--since", "57s").since == 1000.0
    assert asked("logs", "a", "--since-time", "1970-01-01T00:10:00Z").since == 600.0
    assert asked("logs", "a", "--previous").attempt == 1
    assert typed("logs", "a", "--all")[1] == "[a-worker-0] 1\n[a-worker-1] 2\n"
    code, _, err = typed("logs", "a", "-i", "b-worker-0")
    assert code == 3
    assert "`provision get a` lists them: a-master-0, a-worker-0, a-worker-1" in err


@pytest.mark.row(18)
def test_logs_follow_exits_with_the_code_of_the_job(engine, typed):
    """As arena's, with the code of the rank that failed first."""
    engine.known = {"pytorch-dist": failed(9)}
    engine.lines = [("pytorch-dist-master-0", b"x\n")]

    assert typed("logs", "-f", "pytorch-dist")[:2] == (9, "x\n")


def test_logs_of_a_job_that_never_ran_report_the_reason(engine, typed):
    """Silence would look like a job without output."""
    engine.known = {
        "a": job_of("a", status=JobStatus.PENDING, assignments=False, record={"reason": "insufficient resources"})
    }

    assert "a is PENDING and has no output yet: insufficient resources" in typed("logs", "a")[2]


def test_wait_has_exit_codes_for_success_failure_and_timeout(engine, typed):
    """0, the job's code, 6, and 3 for no job."""
    waiting = job_of("a", status=JobStatus.PENDING, assignments=False, record={"reason": "insufficient resources"})
    engine.known = {"a": waiting}
    code, _, err = typed("wait", "a", "--for", "running", "--timeout", "20ms")

    assert code == 6
    assert "a is PENDING after 0.02 s, not RUNNING: insufficient resources" in err
    engine.coming = [waiting, waiting, job_of("a")]
    assert typed("wait", "a", "--for", "running")[0] == 0
    engine.coming = [job_of("a"), dataclasses.replace(failed(5), spec=job_of("a").spec)]
    assert typed("wait", "a")[0] == 5
    engine.known["a"] = job_of("a", status=JobStatus.STOPPED)
    assert typed("wait", "a", "--for", "running")[0] == 1
    assert typed("wait", "none")[0] == 3
    assert typed("wait", "a", "--for", "nothing")[0] == 2


def test_wait_reports_the_current_reason_and_each_change(engine, typed):
    """Not what a try of an hour ago had found: the command has just tried itself."""
    old, new, last = (
        job_of("a", status=JobStatus.PENDING, assignments=False, record={"reason": reason})
        for reason in ("old", "new", "last")
    )
    engine.known = {"a": old}
    engine.coming = [old, old, new, new, new, new, last, job_of("a")]
    code, _, err = typed("wait", "a", "--for", "running")

    assert code == 0
    assert [line.partition("a is ")[2] for line in err.splitlines() if "a is " in line] == [
        "PENDING: new",
        "PENDING: last",
        "RUNNING",
    ]


def test_wait_starts_the_next_attempt_of_a_job(engine, typed):
    """Its last attempt's instances are still listed; a job whose containers are being created is not started again."""
    coming = job_of("a", status=JobStatus.PENDING, record={"reason": "a-master-0 is ContainerCreating"})
    waiting = dataclasses.replace(coming, retrying=True, reason="insufficient resources")
    for first, pushes in ((waiting, 1), (coming, 0)):
        engine.calls, engine.known, engine.coming = [], {"a": first}, [first, first, job_of("a")]

        assert typed("wait", "a", "--for", "running")[0] == 0
        assert [call[0] for call in engine.calls].count("maintenance") == pushes


def test_follow_ends_if_the_leader_node_is_unreachable(engine, typed, monkeypatch):
    """Its output has ended, and the node of its rank 0 does not answer any more."""
    monkeypatch.setattr(following, "SILENT_SECONDS", -1.0)
    engine.known["a"] = job_of("a", record={"unreachable": ("gpu1",)})
    engine.lines = [("a-master-0", b"x\n")]
    code, out, err = typed("logs", "-f", "a")

    assert (code, out) == (7, "x\n")
    assert "no answer from gpu1" in err
    assert "provision get a" in err


def test_follow_starts_before_the_containers_are_created(engine, typed):
    """The node shows the first line as soon as there is one; the job's status is not waited for."""
    coming = job_of("a", status=JobStatus.PENDING, record={"reason": "a-master-0 is ContainerCreating"})
    engine.known, engine.coming = {"a": coming}, [coming, job_of("a", status=JobStatus.SUCCEEDED)]
    engine.lines = [("a-master-0", b"begun\n")]
    code, out, err = typed("logs", "-f", "a")

    assert (code, out) == (0, "begun\n")
    assert "a is RUNNING" not in err


def test_stop_delete_and_prune_accept_several_jobs(engine, typed):
    """Several at once; what waits or runs is never pruned."""
    over = {"status": JobStatus.FAILED, "record": {"ended": 1000.0}}
    engine.known = {"a": job_of("a"), "b": job_of("b", **over), "p": job_of("p", status=JobStatus.PENDING)}
    engine.known["s"] = job_of("s", status=JobStatus.SUCCEEDED, record={"ended": 990.0})

    assert typed("stop", "a", "--grace", "1m")[:2] == (0, "a STOPPED\n")
    assert ("stop", "a", 60.0) in engine.calls
    assert typed("prune", "-s", "1h")[1] == ""
    engine.known["r"] = job_of("r")
    assert json.loads(typed("prune", "-s", "10s", "--dry-run", "--json")[1])["found"] == ["a", "b", "s"]
    del engine.known["r"]
    assert typed("prune", "-s", "10s", "--dry-run", "--status", "failed")[1] == "b would be deleted\n"
    assert set(engine.known) == {"a", "b", "p", "s"}
    assert typed("prune", "-s", "10s", "--status", "running")[0] == 2
    assert typed("prune", "-s", "10s", "--status", "failed,succeeded")[1] == "b deleted\ns deleted\n"
    assert typed("rm", "a")[:2] == (0, "a deleted\n")
    assert typed("delete", "p", "-T", "mpijob")[0] == 3
    assert set(engine.known) == {"p"}


def test_prune_deletes_jobs_of_other_users_only_on_request(engine, typed):
    """By default only one's own; with --all-users after a confirmation, which --yes gives without a terminal."""
    over = {"ended": 990.0}
    engine.known = {
        "mine": job_of("mine", status=JobStatus.FAILED, record=over),
        "hers": job_of("hers", status=JobStatus.FAILED, record={**over, "owner": "eve@elsewhere"}),
    }
    code, out, err = typed("prune", "-s", "10s", "--dry-run")
    assert (code, out) == (0, "mine would be deleted\n")
    assert "1 job of other users preserved; to delete them too, add --all-users" in err
    assert json.loads(typed("prune", "-s", "10s", "--dry-run", "--json")[1])["ofOthers"] == ["hers"]
    assert "hers would be deleted" in typed("prune", "-s", "10s", "--dry-run", "--all-users")[1]

    code, out, err = typed("prune", "-s", "10s", "--all-users")
    assert (code, out, len(engine.known)) == (2, "", 2)
    assert "1 of these jobs is owned by other users (eve@elsewhere). Delete it?" in err
    assert "To confirm, add --yes" in err
    assert typed("prune", "-s", "10s")[1] == "mine deleted\n"
    assert typed("prune", "-s", "10s", "--all-users", "--yes")[1] == "hers deleted\n"


def test_times_without_a_unit_are_seconds_if_unambiguous(engine, typed):
    """As with docker's and kubectl's options of these names; times of `submit` need a unit, as Slurm's are minutes."""
    engine.known = {"a": job_of("a", status=JobStatus.PENDING, assignments=False)}
    code, _, err = typed("wait", "a", "--timeout", "0.02")
    assert code == 6
    assert "after 0.02 s" in err
    engine.known = {"a": job_of("a")}
    assert typed("stop", "a", "--grace", "5")[0] == 0
    assert ("stop", "a", 5.0) in engine.calls
    assert typed("wait", "a", "--timeout", "soon")[0] == 2
    assert typed(*SUBMIT, "--running-timeout=60", "x")[0] == 2


@pytest.mark.parametrize(
    "words",
    [
        ["list", "--status", "nonsense"],
        ["list", "-T", "nonsense"],
        ["top", "job", "-T", "nonsense"],
        ["get", "a", "-T", "nonsense"],
        ["delete", "a", "-T", "nonsense"],
        ["attach", "a", "-T", "nonsense"],
        ["prune", "-s1h", "--status", "nonsense"],
        ["wait", "a", "--timeout", "nonsense"],
        ["stop", "a", "--grace", "nonsense"],
    ],
)
def test_invalid_values_are_refused_before_connecting(engine, typed, monkeypatch, words):
    asked = []
    monkeypatch.setattr(engine, "jobs", lambda **_: asked.append("jobs"))
    monkeypatch.setattr(engine, "get", lambda name, **_: asked.append(name))

    assert typed(*words)[0] == 2
    assert asked == []


def test_attach_opens_a_shell_in_an_instance(engine, typed):
    """The first one, or the one that is named; the code is the command's."""
    engine.known = {"a": job_of("a")}

    assert typed("exec", "a", "--", "nvidia-smi", "-L")[0] == 3
    assert engine.calls[-1] == ("exec", "a", "a-master-0", ("nvidia-smi", "-L"), False)
    typed("attach", "a", "-i", "a-worker-0")
    assert engine.calls[-1][2:3] == ("a-worker-0",)
    assert typed("attach", "a", "-i", "b")[0] == 3
    engine.known = {"over": job_of("over", status=JobStatus.SUCCEEDED)}
    code, _, err = typed("attach", "over")
    assert code == 3
    assert "over is SUCCEEDED" in err
    assert "provision logs over" in err


@pytest.mark.row(30)
@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("9090:tensorboard", (9090, "tensorboard")),
        ("8888", (8888, "8888")),
        ("1:2", (1, "2")),
        (None, (6006, "tensorboard")),
    ],
)
def test_port_forward_accepts_local_and_remote_ports(engine, typed, target, expected):
    """Here and there."""
    assert typed("port-forward", "a", *([target] if target else []))[0] == 0
    assert engine.calls[-1] == ("forward", "a", *expected)


@pytest.mark.parametrize("target", ["0", "70000", "a:b", "9090:"])
def test_an_invalid_port_is_refused(engine, typed, target):
    """Refused before anything connects."""
    assert typed("port-forward", "a", target)[0] == 2
    assert engine.calls == []


def test_the_queue_is_listed_in_order_and_started(engine, typed, tmp_path, monkeypatch):
    """By priority, then age; each with its reason. A unit file starts them without anybody."""
    waiting = {"status": JobStatus.PENDING, "assignments": False}
    engine.known = {
        "late": job_of("late", submitted=1010.0, **waiting),
        "first": job_of("first", submitted=1020.0, priority=5, record={"reason": "insufficient resources"}, **waiting),
        "early": job_of("early", submitted=1000.0, **waiting),
        "going": job_of("going"),
    }
    _, out, _ = typed("queue")

    assert [line.split()[0] for line in out.splitlines()[1:4]] == ["first", "early", "late"]
    assert "first: insufficient resources" in out
    assert set(typed("queue", "run")[1].split()) == {"late", "first", "early", "started"}
    assert json.loads(typed("queue", "run", "--json")[1]) == {"started": ["late", "first", "early"]}
    inventory = tmp_path / "a b"
    inventory.mkdir()
    unit = typed("queue", "unit", "-i", str(inventory))[1]
    assert f"queue run --daemon -i '{inventory}'\n" in unit
    assert "WantedBy=multi-user.target" in unit
    monkeypatch.setenv("XDG_STATE_HOME", '/srv/my "50%"')
    assert '\nEnvironment="XDG_STATE_HOME=/srv/my \\"50%%\\""\n' in typed("queue", "unit", "-i", str(inventory))[1]


def test_a_held_job_is_released_without_a_restart(engine, typed):
    """Its attempts count from one; a job that is not held stays as it is."""
    engine.known = {
        "held": job_of("held", status=JobStatus.QUEUING, assignments=False),
        "going": job_of("going"),
    }
    assert typed("queue", "release", "held", "going")[0] == 0
    assert engine.calls == [("release", "held")]
    code, out, _ = typed("queue", "release", "none", "going")
    assert (code, out) == (3, "going RUNNING\n")


def test_restart_reports_the_attempt(engine, typed):
    """And follows it where that is asked for."""
    engine.known = {"a": job_of("a", record={"attempt": 2})}
    code, out, err = typed("restart", "a")

    assert (code, out) == (0, "a RUNNING\n")
    assert "attempt 2" in err


def test_restart_supplies_the_secrets_of_a_job_again(engine, typed, tmp_path, monkeypatch):
    """By the options of submit, the environment of the shell and stored logins; all else is refused."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("API_TOKEN", "exported")
    monkeypatch.setattr("sys.stdin", io.StringIO("pw\n"))
    typed("secret", "add", "registry", "--server", "r.example.com", "--username", "u")
    job = job_of("a", status=JobStatus.SUCCEEDED, secret_env=("API_TOKEN",))
    engine.known = {"a": dataclasses.replace(job, spec=dataclasses.replace(job.spec, image="r.example.com/i"))}

    def supplied(*words):
        assert typed("restart", "a", *words)[0] == 0
        return engine.calls[-1][2]

    assert dict(supplied("--env", "API_TOKEN").env) == {"API_TOKEN": "exported"}
    assert dict(supplied("--env=API_TOKEN=typed").env) == {"API_TOKEN": "typed"}
    login = {"username": "u", "password": "pw", "server": "r.example.com"}
    assert supplied("--image-pull-secret", "r.example.com").registry == login
    code, _, err = typed("restart", "a", "--env", "LR=1")
    assert code == 2
    assert "a has no secret variable of this name" in err
    monkeypatch.delenv("API_TOKEN")
    code, _, err = typed("restart", "a", "--image-pull-secret", "r.example.com")
    assert code == 2
    assert "a needs API_TOKEN" in err
    assert "restart with --env API_TOKEN" in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-i", "inv", "logs", "a", "-i", "a-0"], ["logs", "--inventory", "inv", "a", "-i", "a-0"]),
        (["-o", "wide", "ls"], ["list", "--output=wide"]),
        (["get", "a", "-ojson"], ["get", "a", "--json"]),
        (["get", "a", "-o=yaml"], ["get", "a", "--output=yaml"]),
        (["describe", "a"], ["get", "--events", "--gpus", "a"]),
        (["exec", "a", "--", "ls", "-o", "json"], ["attach", "a", "--", "ls", "-o", "json"]),
        (["submit", "--name", "a", "--", "x", "-o", "xml"], ["submit", "--name", "a", "--", "x", "-o", "xml"]),
    ],
)
def test_options_and_aliases_of_job_verbs_are_parsed(words, expected):
    """Forms of output, other words for verbs, and the program's own words."""
    assert normalise(words) == expected


def test_output_formats_of_jobs_are_refused_for_other_verbs():
    """wide is for jobs."""
    with pytest.raises(UsageError):
        normalise(["verify", "-o", "wide"])


def test_every_alias_refers_to_a_verb():
    """And every group of verbs is in a section of the help."""
    assert set(" ".join(SECTIONS.values()).split()) >= GROUPS
    assert set(ALIASES.values()) <= set(VERBS)


def test_an_unknown_name_does_not_prevent_stopping_other_jobs(engine, typed):
    """Each is tried; the exit code is of the first that failed, and JSON has those that are done."""
    engine.known = {"a": job_of("a"), "b": job_of("b")}

    code, out, err = typed("stop", "none", "a", "b")
    assert (code, out) == (3, "a STOPPED\nb STOPPED\n")
    assert "error: none: there is no job none" in err
    assert typed("delete", "a", "b", "-T", "mpijob")[0] == 3
    code, out, _ = typed("stop", "none", "a", "--json")
    assert (code, [job["name"] for job in json.loads(out)]) == (3, ["a"])
    assert json.loads(typed("stop", "none", "--json")[1])["ok"] is False


def test_an_unconfirmed_end_is_a_failure(engine, typed, monkeypatch):
    """A node that answers and has not ended it is a 6, one that does not answer a 7; JSON has the job all the same."""
    stopping = {"unconfirmed": ("gpu1", "gpu2"), "silent": ("gpu2",)}
    engine.known = {"a": job_of("a", status=JobStatus.STOPPING, record=stopping), "b": job_of("b")}
    engine.known["c"] = job_of("c", status=JobStatus.STOPPING, record={"unconfirmed": ("gpu1",)})
    monkeypatch.setattr(engine, "stop", lambda name, _say, **_more: engine.known[name])
    code, out, err = typed("stop", "a")

    assert (code, out) == (7, "a STOPPING\n")
    assert "gpu2 does not answer and has not confirmed the end" in err
    assert typed("stop", "c")[0] == 6
    assert typed("stop", "b")[0] == 6
    code, out, _ = typed("stop", "a", "--json")
    (document,) = json.loads(out)
    assert code == 7
    assert (document["status"], document["unconfirmedNodes"]) == ("STOPPING", ["gpu1", "gpu2"])


def test_a_failed_job_with_an_unconfirmed_deletion_is_not_reported_as_deleted(engine, typed):
    """It keeps its exit code for those who wait; `stop` and `get` name the node."""
    flags = {"unconfirmed": ("gpu2",), "silent": ("gpu2",), "deleting": True}
    job = failed(5, **flags)
    engine.known = {"a": dataclasses.replace(job, spec=job_of("a").spec)}

    code, _, err = typed("wait", "a")
    assert code == 5
    assert "a is being deleted: gpu2 has not confirmed; the name stays taken" in err
    engine.known["a"] = dataclasses.replace(engine.known["a"], status=JobStatus.SUCCEEDED)
    assert typed("wait", "a")[0] == 0
    assert "Unconfirmed: gpu2" in typed("get", "a")[1]


def test_a_stopping_job_is_listed_with_the_nodes_that_have_not_confirmed(engine, typed):
    """In `get`, `list -o wide` and JSON; other tables are as before."""
    stopping = {"unconfirmed": ("gpu2",), "deleting": True, "reason": "deleted by me@here; not confirmed by gpu2"}
    engine.known = {"a": job_of("a", status=JobStatus.STOPPING, record=stopping), "b": job_of("b", submitted=900.0)}

    _, out, _ = typed("list", "-o", "wide")
    assert out.splitlines()[-2:] == ["", "a: not confirmed by gpu2"]
    assert "confirmed" not in typed("list")[1]
    _, out, _ = typed("get", "a")
    assert "Unconfirmed: gpu2" in out
    assert "deleted by me@here" in out
    assert json.loads(typed("get", "a", "--json")[1])["deleteRequested"] is True
    del engine.known["a"]
    assert "confirmed" not in typed("list", "-o", "wide")[1]


def test_a_job_that_does_not_exist_cannot_be_deleted(engine, typed):
    """Scripts that do not mind say so."""
    engine.known = {"a": job_of("a")}
    code, out, err = typed("delete", "nosuch")

    assert (code, out) == (3, "")
    assert "there is no job nosuch" in err
    assert "provision list" in err
    assert "--ignore-not-found" in err
    assert typed("delete", "nosuch", "a")[:2] == (3, "a deleted\n")
    assert typed("delete", "nosuch", "--ignore-not-found", "--json")[:2] == (0, '{\n  "deleted": []\n}\n')
    engine.known = {"a": job_of("a")}
    assert typed("delete", "a", "--lost", "gpu3")[0] == 0
    assert engine.calls[-1] == ("delete", "a", "gpu3")


@pytest.mark.parametrize(("owner", "expected"), [("", 0), ("eve@elsewhere", 2)])
def test_a_job_without_a_valid_record_is_deleted(engine, typed, monkeypatch, owner, expected):
    """There is no signature, so the recorded owner decides whether a confirmation is required."""
    problem = InvalidRecord("a is not valid")
    problem.other_owner = owner
    engine.known = {"a": job_of("a")}
    get = engine.get
    monkeypatch.setattr(engine, "get", lambda name, **more: (_ for _ in ()).throw(problem) if more else get(name))

    code, _, err = typed("delete", "a")
    assert code == expected
    assert "the record of a is not valid, and its owner is eve@elsewhere" in err.lower() or not owner
    assert typed("stop", "a")[0] == 1
    engine.known = {"a": job_of("a")}
    for flag in ("--yes", "--force"):
        engine.known = {"a": job_of("a")}
        assert typed("delete", "a", flag)[:2] == (0, "a deleted\n")


def test_prune_requires_a_time_and_the_queue_host(engine, typed):
    """An empty variable of a script is no time, and the head alone knows what waits."""
    engine.known = {"a": job_of("a", status=JobStatus.FAILED, record={"ended": 10.0})}

    assert typed("prune", "--since", "")[0] == 2
    engine.page = JobPage((), unreachable={"gpu1": "no route to host"}, incomplete="gpu1 does not answer")
    code, _, err = typed("prune", "--since", "1s")
    assert code == 7
    assert "no route to host" in err
    assert set(engine.known) == {"a"}


@pytest.mark.parametrize("words", [["restart", "a"], ["rm", "a"], ["logs", "a"], ["-i", "inv", "get", "a"]])
def test_an_unreachable_node_has_its_own_exit_code(engine, typed, monkeypatch, words):
    """Whichever verb of batch jobs found it so."""

    def away(*_words, **_more):
        raise ConnectionFailed("no route to host", node="gpu1")

    for verb in ("get", "delete", "restart", "logs"):
        monkeypatch.setattr(engine, verb, away)
    assert typed(*words)[0] == 7


def test_a_list_omits_fields_that_brief_reports_lack(engine, typed):
    """An empty image is no image that a job could have."""
    engine.known = {"a": job_of("a")}
    (result,) = json.loads(typed("list", "-o", "json")[1])

    assert not {"image", "command", "workingDir", "env", "secretEnv", "annotations", "events"} & set(result)
    assert {"name", "labels", "placement"} <= set(result)
    assert json.loads(typed("get", "a", "-o", "json")[1])["image"] == "i"


def test_instances_of_an_earlier_attempt_are_read_from_the_nodes(engine, typed):
    """Their names are not those of the last attempt."""
    engine.known = {"vgg": job_of("vgg", Kind.MPI, record={"attempt": 2})}

    assert typed("logs", "vgg", "--attempt", "1", "-i", "vgg-launcher-fghij")[0] == 0
    assert engine.calls[-1][2].instances == ("vgg-launcher-fghij",)
    assert typed("logs", "vgg", "-p", "--rank", "1")[0] == 0
    assert (engine.calls[-1][2].instances, engine.calls[-1][2].attempt) == (("worker-1",), 1)
    assert typed("logs", "vgg", "-i", "vgg-launcher-fghij")[0] == 3


@pytest.mark.row(25)
@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_unknown_data_is_refused_before_the_reservation(engine, typed, more):
    """The names that there are stand in the refusal."""
    code, _, err = typed(*SUBMIT, "--data=nowhere:/data", *more, "x")

    assert (code, engine.calls) == (2, [])
    assert "--data nowhere: unknown volume" in err


OTHERS = {"record": {"owner": "eve@elsewhere"}}


@pytest.mark.parametrize("verb", ["stop", "delete", "restart"])
@pytest.mark.parametrize("status", [JobStatus.RUNNING, JobStatus.PENDING])
def test_ending_a_job_of_another_owner_requires_confirmation(engine, typed, verb, status):
    """Without a terminal it is refused, with exit 2, the owner and the flag that does it; nothing has happened."""
    engine.known = {"a": job_of("a", status=status, **OTHERS)}
    code, out, err = typed(verb, "a")

    assert (code, out) == (2, "")
    assert f"a is {status} and owned by eve@elsewhere" in err
    assert "Not confirmed: there is no terminal for the question" in err
    assert "add --yes" in err
    assert engine.calls == []
    assert typed(verb, "a", "--yes")[0] == 0
    assert engine.calls[0][0] == verb


@pytest.mark.parametrize(("answer", "code", "calls"), [("y\n", 0, 1), ("n\n", 2, 0), ("\n", 2, 0)])
def test_on_a_terminal_ending_a_job_of_another_owner_prompts(engine, typed, monkeypatch, answer, code, calls):
    engine.known = {"a": job_of("a", **OTHERS)}
    monkeypatch.setattr("provision.cli.common.interactive", lambda: True)
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    result, _, err = typed("stop", "a")

    assert (result, len(engine.calls)) == (code, calls)
    assert "a is RUNNING and owned by eve@elsewhere. Stop it? [y/N]" in err


def test_json_has_the_code_of_an_error(engine, typed, monkeypatch):
    """A script compares the code, and never the message; every error has one."""

    def refuse(*_words, **_more):
        raise NotAllowed("the job a belongs to another user", "job.not_owner", node="gpu1")

    engine.known = {"a": job_of("a")}
    monkeypatch.setattr(engine, "stop", refuse)
    code, out, _ = typed("stop", "a", "--json")
    assert (code, json.loads(out)["error"]["code"]) == (2, "job.not_owner")
    assert json.loads(typed("get", "none", "--json")[1])["error"]["code"] == "job.not_found"


@pytest.mark.parametrize("verb", ["stop", "delete"])
def test_a_refused_confirmation_does_not_affect_other_jobs(engine, typed, verb):
    engine.known = {"a": job_of("a", **OTHERS), "b": job_of("b")}
    code, out, err = typed(verb, "a", "b")

    assert code == 2
    assert out.startswith("b ")
    assert "error: a: " in err


def test_finished_jobs_and_own_jobs_need_no_confirmation(engine, typed):
    engine.known = {"a": job_of("a", status=JobStatus.FAILED, **OTHERS), "b": job_of("b")}

    assert typed("delete", "a", "b")[0] == 0


def test_the_default_table_has_the_owner(engine, typed):
    """As its last column, cut where the table would be wider than 80 columns."""
    engine.known = {"a": job_of("a"), "b": job_of("b", record={"owner": "eve@" + "x" * 90})}
    code, out, _ = typed("list")
    lines = out.splitlines()

    assert code == 0
    assert lines[0].split()[-1] == "OWNER"
    assert {line.split()[0]: line.split()[-1][:7] for line in lines[1:]} == {"a": "me@here", "b": "eve@xxx"}
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(("form", "width"), [("table", 80), ("wide", 120)])
def test_a_list_with_owners_fits_its_width(engine, typed, form, width):
    """With names of up to 24 letters, the longest words of the other columns, and any owner; names are never cut."""
    engine.known = {
        name: job_of(
            name,
            status=JobStatus.STOPPING,
            gpus=1000,
            submitted=1057.0 - 364 * 86400,
            record={"owner": f"{name}@{'host' * 20}", "started": 1057.0 - 364 * 86400},
        )
        for name in ("a", "n" * 24)
    }
    for job in list(engine.known.values()):
        assignments = tuple(
            dataclasses.replace(assignment, address="100.100.100.100") for assignment in job.assignments
        )
        engine.known[job.spec.name] = dataclasses.replace(job, assignments=assignments)
    code, out, _ = typed("list", "-o", form)
    lines = out.splitlines()

    assert code == 0
    assert max(map(len, lines)) <= width
    assert {line.split()[0] for line in lines[1:]} >= {"a", "n" * 24}
    assert all(line.endswith("...") for line in lines[1:])


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_states_are_coloured_only_on_a_terminal(engine, typed, monkeypatch, environment, coloured):
    engine.known = {"a": job_of("a", status=JobStatus.FAILED)}
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b" not in typed("list")[1]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    assert ("\x1b[31mFAILED\x1b[0m" in typed("list")[1]) is coloured
    assert "\x1b" not in typed("list", "--json")[1]


def test_list_and_submit_store_the_names_for_completion(engine, typed):
    from provision.workflow.job_names import known_job_names

    inventory = make_cluster("gpu1", "gpu2").inventory
    engine.known = {"a": job_of("a"), "b": job_of("b", submitted=2000.0)}
    typed("list")
    assert known_job_names(inventory) == ["b", "a"]
    typed(*SUBMIT, "true")
    typed("delete", "a")
    assert known_job_names(inventory) == ["pytorch-dist", "b"]


@pytest.mark.parametrize(
    ("words", "verb"),
    [
        (["exec", "--", "uptime"], "exec"),
        (["exec", "--limit", "gpu1", "--timeout", "5", "--json", "--", "uptime", "-p"], "exec"),
        (["--lab", "demo", "exec", "--", "uptime"], "exec"),
        (["exec", "mnist", "--", "env"], "attach"),
        (["exec", "-i", "mnist-worker-0", "mnist"], "attach"),
    ],
)
def test_exec_runs_on_nodes_unless_a_job_is_given(words, verb):
    """A name in front of the command is that of a job, as with docker and kubectl."""
    assert normalise(words)[0] == verb
