"""Command lines of ``submit``, including those of the guides, become a job or an error."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from provision.batch.document import brief, read_document
from provision.batch.spec_checks import check
from provision.batch.submission import Here, read_words, submission
from provision.cli.job_options import is_secret
from provision.documents import convert
from provision.errors import UsageError
from provision.model.job import CodeSource, JobSpec, Kind, as_document

PAGE = Path(__file__).resolve().parents[3] / "docs/how-to/batch-jobs.md"


def submitted(words, **here):
    """Return the submission of a command line."""
    settings = {"folder": "/home/me", "environ": {"WANDB_API_KEY": "w", "LANG": "C"}, "is_secret": is_secret, **here}
    return submission(read_words(words), Here(**settings))


def minimal_job(*words):
    """Return the submission of a valid job with more arguments."""
    return submitted(["pytorch", "--name=a", "--image=i", *words])


def spec_of(*words):
    return minimal_job(*words, "x").spec


@pytest.mark.row(10, 11, 13, 22, 23, 25, 27, 28)
def test_a_pytorch_job_in_arenas_options():
    """Three workers with one GPU each, code from git, data and TensorBoard."""
    line = "python /root/code/speech/train.py --epochs 4 --out /corpus/logs"
    words = ["--name=speech", "--gpus=1", "--workers=3", "--working-dir=/root", "--image=r.example.com/torch:2"]
    words += ["--sync-mode=git", "--sync-source=https://git.example.com/o/speech.git", "--data=corpus:/corpus"]
    result = submitted(["pytorch", *words, "--tensorboard", "--logdir=/corpus/logs", line])

    assert result.spec == JobSpec(
        "speech",
        Kind.PYTORCH,
        (line,),
        image="r.example.com/torch:2",
        gpus=1,
        workers=3,
        data=(("corpus", "/corpus"),),
        sync=CodeSource("git", "https://git.example.com/o/speech.git"),
        tensorboard=True,
        logdir="/corpus/logs",
    )
    assert f"{result.spec.working_dir}/code/{result.spec.sync.name}" == "/root/code/speech"
    assert result.notes == ()


@pytest.mark.row(6, 7, 10, 11, 22, 27, 28)
def test_defaults_of_a_job():
    """One worker without GPUs in /root, gang scheduling, no topology-aware placement, no TensorBoard."""
    job = spec_of()

    assert (job.workers, job.gpus, job.working_dir, job.logdir) == (1, 0, "/root", "/training_logs")
    assert (job.gang, job.gputopology, job.tensorboard) == (True, False, False)


@pytest.mark.row(6, 13, 14)
@pytest.mark.parametrize("topology", [True, False])
def test_an_mpi_job_in_arenas_options(topology):
    """Four workers, with and without topology; the mpirun command line is unchanged."""
    line = "mpirun --allow-run-as-root -np 4 -bind-to none -x PATH --mca btl ^openib python /w/bench.py --model=vgg16"
    words = ["--name=vgg", "--gpus=1", "--workers=4", "--image=i", *["--gputopology=true"] * topology]
    result = submitted(["mpi", *words, line])

    assert (result.spec.kind, result.spec.gpus, result.spec.workers) == (Kind.MPI, 1, 4)
    assert (result.spec.gputopology, result.spec.command) == (topology, (line,))
    assert result.notes == ()


@pytest.mark.row(24)
def test_a_private_repository_as_in_the_guide():
    """The credential is neither in the spec nor in the variables of the training; a note suggests a safer way."""
    words = ["pytorch", "--name=a", "--image=i", "--sync-mode=git", "--sync-source=https://g/o/mnist-pytorch.git"]
    words += ["--env=GIT_SYNC_USERNAME=yourname", "--env=GIT_SYNC_PASSWORD=yourpwd", "--env=GIT_SYNC_BRANCH=dev"]
    job = submitted([*words, "--env=GIT_SYNC_DEPTH=1", "python x.py"])

    assert {name: value.reveal() for name, value in job.sync.items()} == {
        "GIT_SYNC_USERNAME": "yourname",
        "GIT_SYNC_PASSWORD": "yourpwd",
    }
    assert (dict(job.spec.env), job.env, job.spec.secret_env) == ({}, {}, ())
    assert job.spec.sync == CodeSource("git", "https://g/o/mnist-pytorch.git", "dev", {"GIT_SYNC_DEPTH": "1"})
    assert "yourpwd" not in repr(job)
    assert "yourpwd" not in yaml.safe_dump(brief(job.spec))
    assert any("GIT_SYNC_PASSWORD is visible" in note and "--env-file" in note for note in job.notes)


def test_the_jobs_of_the_documentation_can_be_submitted():
    """And nothing is to be expected against them."""
    text = PAGE.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("provision submit ")]
    job = [submitted(shlex.split(line, comments=True)[2:]) for line in lines]

    assert [job.spec.kind for job in job] == [Kind.PYTORCH, Kind.MPI]
    assert [job.notes for job in job] == [(), ()]


def test_secrets_are_separate_and_a_name_without_value_gets_no_warning():
    """--env NAME uses the submitter's value; other variables are visible."""
    job = minimal_job("--env", "WANDB_API_KEY", "--env", "LANG", "-e", "LR=0.1", "x")

    assert (dict(job.spec.env), job.spec.secret_env) == ({"LANG": "C", "LR": "0.1"}, ("WANDB_API_KEY",))
    assert job.env["WANDB_API_KEY"].reveal() == "w"
    assert job.notes == ()


def test_flags_override_variables_from_files():
    """In docker's format; an error contains the number of the line, and not the line."""
    text = "# ours\nLR=0.1\n\nAPI_TOKEN=s3cret\nLANG\n"
    job = submitted(["pytorch", "--name=a", "--image=i", "-e", "LR=0.2", "x"], env_files=[("f", text)])

    assert dict(job.spec.env) == {"LR": "0.2", "LANG": "C"}
    assert job.spec.secret_env == ("API_TOKEN",)
    with pytest.raises(UsageError, match="f:1") as refused:
        submitted(["pytorch", "--name=a", "--image=i", "x"], env_files=[("f", "s3 cret=1")])
    assert "s3 cret" not in str(refused.value)


def test_a_credential_in_the_url_is_refused_and_not_printed():
    """It would be in the list of processes; how to give it is expected."""
    with pytest.raises(UsageError, match="contains a credential") as refused:
        minimal_job("--sync-mode=git", "--sync-source=https://me:p%40ss@git.example.com/o/r.git", "x")

    assert "p%40ss" not in f"{refused.value.message} {refused.value.remedy}"
    assert "provision secret add git" in refused.value.remedy


def test_the_training_gets_no_settings_for_fetching_code():
    """All prefixes of git-sync, and rsync's password; the file of a key is a name, the key is a secret."""
    words = ["GIT_SYNC_SSH_KEY_FILE=/k", "GITSYNC_TOKEN=t", "GIT_SYNC_BRANCH=dev", "RSYNC_PASSWORD=r", "GIT_PAGER=cat"]
    job = minimal_job("--sync-mode=git", "--sync-source=https://g/o/r.git", *[f"--env={word}" for word in words], "x")

    assert (dict(job.spec.env), job.spec.secret_env) == ({"GIT_PAGER": "cat"}, ())
    assert (job.spec.sync.revision, job.spec.sync.options) == ("dev", {"GIT_SYNC_SSH_KEY_FILE": "/k"})
    assert set(job.sync) == {"GITSYNC_TOKEN", "RSYNC_PASSWORD"}


@pytest.mark.row(8)
@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["mpirun -np 4 python x.py"], Kind.MPI),
        (["--", "/usr/bin/mpirun", "-np", "4", "x"], Kind.MPI),
        (["NCCL_DEBUG=INFO mpirun x"], Kind.MPI),
        (["python3 train.py"], Kind.PYTORCH),
    ],
)
def test_the_job_type_is_inferred_from_the_command(words, kind):
    """As in the newer guide on topology: no type, and switches without a value. A note has the type."""
    job = submitted(["--gputopology=true", "--gang", "--name", "a", "--image", "i", "--workers=4", *words])

    assert (job.spec.kind, job.spec.gputopology, job.spec.gang) == (kind, True, True)
    assert job.spec.command == tuple(words[1:] if words[0] == "--" else words)
    assert f"job type {kind} was inferred" in " ".join(job.notes)


@pytest.mark.row(59)
@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["--gang=false"], "gang", False),
        (["--no-gang"], "gang", False),
        (["--tensorboard=1"], "tensorboard", True),
        (["--workingDir=/w"], "working_dir", "/w"),
        (["--working_dir", "/w"], "working_dir", "/w"),
        (["--num_worker", "3"], "workers", 3),
        (["--share-memory", "2Gi"], "share_memory", "2g"),
        (["--shm-size=32g"], "share_memory", "32g"),
        (["--running-timeout", "1h30m"], "running_timeout", 5400.0),
        (["-t", "2:00:00"], "running_timeout", 7200.0),
        (["-eA=1", "-e", "B=x=y"], "env", {"A": "1", "B": "x=y"}),
        (["-N", "2", "-G", "16"], "gpus", 8),
        (["-w", "n1,n2", "--nodes", "n3"], "nodes", ("n1", "n2", "n3")),
        (["--data-dir", "/data", "-v", "/a:/b:ro"], "mounts", ("/a:/b:ro", "/data:/data")),
        (["--config-file", "c.yml:/etc/c.yml"], "config_files", ("/home/me/c.yml:/etc/c.yml",)),
        (["--configFile", "/c.yml", "--config-file=d"], "config_files", ("/c.yml:/c.yml", "/home/me/d:/home/me/d")),
        (["--selector", "rack=r1", "-C", "gpu=v100"], "selector", {"rack": "r1", "gpu": "v100"}),
        (["--toleration", "all"], "allow_drained", True),
        (["--queue", "night"], "hold", True),
        (["--device", "nvidia.com/gpu=2"], "gpus", 2),
        (["--image-pull-policy", "IfNotPresent"], "pull", "missing"),
        (["--clean-task-policy", "all"], "clean_task_policy", "All"),
        (["--spread"], "spread", True),
        (["--gpus", "2", "--gpu-ids", "0,1"], "gpu_ids", (0, 1)),
        (["--hostNetwork", "--cpu", "4", "--retry", "3"], "retry", 3),
    ],
)
def test_flags_of_arena_docker_and_slurm(words, field, value):
    """Aliases, short forms, repeated flags and equivalent flags."""
    assert getattr(spec_of(*words), field) == value


@pytest.mark.row(59)
def test_the_command_can_be_a_flag():
    """As launchers have it that are submitted of options alone."""
    job = submitted(["pytorch", "--name=a", "--image", "i", "--num_worker", "3", "--command", "python3 mnist.py"])

    assert job.spec.command == ("python3 mnist.py",)
    assert job.spec.workers == 3


def test_flags_without_effect_and_aliases_get_a_note():
    """An ignored limit must not be taken for an active one."""
    notes = " ".join(minimal_job("--memory", "4Gi", "--syncMode=local", "x").notes)

    assert "--memory has no effect" in notes
    assert "--syncMode is an alias of --sync-mode" in notes


@pytest.mark.row(11, 12, 23, 25, 54)
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["x"], "no image"),
        (["--image=i", "--workers=0", "x"], "--workers 0"),
        (["--image=i", "--workers=100000", "x"], "--workers 100000: must be at most"),
        (["--image=i", "--retry=2000000", "x"], "--retry 2000000: must be at most 1000000"),
        (["--image=i", "--preset=taco", "x"], "--preset taco generates an mpirun command line"),
        (["--image=i", "--command=y", "x"], "given twice"),
        (["--image=i", "--gpus=-1", "x"], "--gpus -1"),
        (["--image=i", "--gpus=two", "x"], "--gpus two: 'two' is not a whole number"),
        (["--image=i"], "no command"),
        (["--image=i", "--sync-mode=git", "x"], "requires --sync-source"),
        (["--image=i", "--sync-source=u", "x"], "requires --sync-mode"),
        (["--image=i", "--sync-mode=hdfs", "--sync-source=hdfs://x", "x"], "hdfs is not supported"),
        (["--image=i", "-d", "a:/x", "-d", "a:/y", "x"], "mounted twice"),
        (["--image=i", "-v", "/a:/b\nc", "x"], "line break"),
        (["--image=i", "-d", "a:/x", "-d", "b:/x", "x"], "two mounts"),
        (["--image=i", "-d", "a:x", "x"], "not an absolute path"),
        (["--image=i", "-d", "a:/", "x"], "not an absolute path"),
        (["--image=i", "-d", "a:/x/../..", "x"], "not an absolute path"),
        (["--image=i", "-d", "a", "x"], "NAME:/path"),
        (["--image=i", "python", "x.py"], "2 words"),
        (["--image=i", "--gang", "false", "x"], "2 words"),
        (["--image=i", "--retyr=1", "x"], "did you mean --retry"),
        (["--image=i", "--running-timeout", "10", "x"], "invalid duration"),
        (["--image=i", "--env", "NOT_SET", "x"], "is not set"),
        (["--image=i", "--env", "PROVISION_JOB=1", "x"], "provision sets"),
        (["--image=i", "--env", "LIGHT_3D=1", "x"], "LIGHT_3D"),
        (["--image=i", "--pack", "--spread", "x"], "exclude each other"),
        (["--image=i", "-w", "a", "-x", "a", "x"], "in --nodes and in --exclude"),
        (["--image=i", "--launcher=srun", "x"], "one of mpirun, python, torchrun"),
        (["--image=i", "--np=4", "x"], "require an mpi job"),
        (["--image=i", "--mps", "x"], "at least two processes"),
        (["--image=i", "--procs-per-gpu=2", "x"], "each worker has 0"),
        (["--image=i", "--gpus=2", "--procs-per-gpu=2", "x"], "each worker has 2"),
        (["--image=i", "--gpus=1", "--procs-per-gpu=2", "--nproc-per-node=2", "x"], "starts copies of the command"),
        (["x"], "or --no-container"),
        (["--no-container", "--image=i", "x"], "--image requires a container"),
        (["--no-container", "--share-memory=2g", "x"], "the node's /dev/shm"),
        (["--no-container", "--no-rdma", "x"], "--fabric tcp"),
        (["--no-container", "--tensorboard", "x"], "--tensorboard-image IMAGE"),
        (["--no-container", "--image-pull-secret=r", "x"], "exclude each other"),
        (["--image=i", "--config-file", "c.yml:etc/c.yml", "x"], "not an absolute path"),
        (["--image=i", "--config-file", "c:/x", "-d", "a:/x", "x"], "two mounts"),
        (["--image=i", "--toleration", "key=v:NoSchedule", "x"], "no taints"),
        (["--image=i", "--gpus=1", "-G"], "needs a value"),
    ],
)
def test_invalid_values_are_refused(words, expected):
    """Before any connection; the message contains the flag."""
    with pytest.raises(UsageError) as refused:
        submitted(["pytorch", "--name=a", *words])
    assert expected in f"{refused.value} {refused.value.remedy}"


@pytest.mark.row(9)
@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a.b", "a" * 50])
def test_a_name_consists_of_the_characters_of_host_names(name):
    """As in arena: at most 49 lower-case letters, digits and dashes."""
    with pytest.raises(UsageError):
        submitted(["pytorch", f"--name={name}", "--image=i", "x"])
    assert submitted(["pytorch", "--name=" + "a" * 49, "--image=i", "x"]).spec.name == "a" * 49


def test_unsupported_types_of_arena_have_a_remedy():
    """The remedy has the equivalent."""
    with pytest.raises(UsageError, match="tfjob") as refused:
        submitted(["tfjob", "--name=a", "--image=i", "x"])
    assert "mpi, pytorch or run" in refused.value.remedy


@pytest.mark.row(14)
def test_an_mpirun_command_line_is_generated_on_request():
    """--np auto or a number; without it, a program other than mpirun gets a warning."""
    mpi = ["mpi", "--name=a", "--image=i", "--gpus=2", "--workers=2"]
    auto = submitted([*mpi, "--np", "auto", "--", "python3", "x.py"])

    assert (auto.spec.launcher, auto.spec.ranks, auto.spec.command) == ("mpirun", 0, ("python3", "x.py"))
    assert submitted([*mpi, "--np", "3", "x"]).spec.ranks == 3
    assert "--np auto" in " ".join(submitted([*mpi, "python3 x.py"]).notes)
    assert "-np 2 starts 2 ranks" in " ".join(submitted([*mpi, "mpirun -np 2 x"]).notes)
    assert "--np 3 starts 3 ranks" in " ".join(submitted([*mpi, "--np", "3", "x"]).notes)
    assert submitted([*mpi, "mpirun -np 4 x"]).notes == ()
    assert submitted([*mpi, "--np=auto", "--", "python3", "x.py"]).notes == ()
    assert submitted([*mpi, "--", "python3", "x.py"]).notes == ()


def test_ranks_that_would_not_start_are_refused_or_get_a_warning():
    """One process instead of eight would be noticed late."""
    mpi = ["mpi", "--name=a", "--image=i", "--gpus=4", "--workers=2"]
    python = {"ranks": 8, "launcher": "python", "image": "i", "name": "a", "command": ("x",), "kind": Kind.MPI}
    with pytest.raises(UsageError, match="--launcher python starts the command once"):
        submission(read_words([]), Here(), python)
    assert "--np 8 has no effect" in " ".join(submitted([*mpi, "--np", "8", "--", "mpirun", "x"]).notes)
    assert submitted([*mpi, "--", "bash", "run.sh"]).notes == ()


def test_processes_that_would_not_start_get_a_warning():
    """A command in quotes runs in a shell; only --launcher torchrun starts it with torchrun."""
    torch = ["pytorch", "--name=a", "--image=i", "--nproc-per-node=4"]

    assert "Use --launcher torchrun" in " ".join(submitted([*torch, "python3 x.py"]).notes)
    for more in (["torchrun x.py"], ["cd /w && torchrun x.py"], ["--launcher=torchrun", "x.py"], ["--", "python", "x"]):
        assert submitted([*torch, *more]).notes == ()


@pytest.mark.row(14)
@pytest.mark.parametrize("words", [["mpirun -np 8 x"], ["--", "mpirun", "-np", "8", "x"], ["--np=8", "x"]])
def test_more_ranks_than_slots_require_oversubscribe_or_no_lint(words):
    """Open MPI would refuse them after GPUs are allocated and images are pulled."""
    mpi = ["mpi", "--name=a", "--image=i", "--gpus=2", "--workers=2"]
    with pytest.raises(UsageError, match="8 is more than the 4 slots") as refused:
        submitted([*mpi, *words])
    assert "--no-lint" in refused.value.remedy
    job = submitted([*mpi, "--no-lint", *words])
    assert (job.spec.lint, "8 ranks" in " ".join(job.notes)) == (False, True)
    assert submitted([*mpi, "mpirun --oversubscribe -np 8 x"]).spec.lint


def test_a_spec_is_preserved_in_its_file_and_its_record():
    """The output of --dry-run -o yaml can be submitted; the record on nodes is equivalent."""
    words = ["--gpus=2", "--workers=2", "-d", "data:/d", "-e", "LR=1e-3", "-e", "ON=true", "-e", "GIT_SYNC_DEPTH=1"]
    words += ["--sync-mode=git", "--sync-source=https://g/o/r.git", "--sync-revision=v1", "--running-timeout=90s"]
    words += [
        "--config-file=c.yml:/etc/c.yml",
        "--no-lint",
        "-l",
        "team=vision",
        "--gpu-ids=0,1",
        "--ulimit=memlock=-1",
        "-v",
        "/a:/b",
        "--no-rdma",
        "--",
        "a b",
        "c",
    ]
    spec = minimal_job(*words).spec
    again = submission(read_words([]), Here(), read_document(yaml.safe_dump(brief(spec)), "job.yaml")).spec

    assert again == spec
    assert convert(as_document(spec), JobSpec, node="a", what="spec") == spec


def test_flags_override_a_file_and_merge_variables():
    """Values of a file are text and need no quotes."""
    text = "type: pytorchjob\nname: a\nimage: i\nworkers: 4\nrunning-timeout: 3600\nenv: {LR: 0.10, ON: yes}\n"
    text += "labels: {a: 1}\ndata:\n  - d:/d\ncommand: python3 x.py\n"
    base = read_document(text, "job.yaml")
    job = submission(read_words(["--workers=2", "-e", "LR=0.2", "-l", "b=2", "--name=b"]), Here(), base).spec

    assert (job.kind, job.name, job.workers, job.running_timeout) == (Kind.PYTORCH, "b", 2, 3600.0)
    assert dict(job.env) == {"LR": "0.2", "ON": "yes"}
    assert (job.data, dict(job.labels)) == ((("d", "/d"),), {"a": "1", "b": "2"})
    with pytest.raises(UsageError, match="pytorch"):
        submission(read_words(["mpi"]), Here(), base)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: a\nworkres: 2\n", "job.yaml:2: unknown key workres; did you mean workers?"),
        ("gpus: many\n", "job.yaml:1: gpus: 'many' is not a whole number"),
        ("gang: perhaps\n", "neither true nor false"),
        ("env: [A]\n", "job.yaml:1: env: 'A' is not NAME=VALUE"),
        ("env: {A: {B: 1}}\n", "env.A: expected text or a number"),
        ("kind: tf\n", "choose mpi, pytorch or run"),
        ("sync: {mode: git, branch: x}\n", "unknown key 'branch'"),
        ("a: [\n", "invalid YAML"),
        ("- a\n", "key: value"),
        ("", "key: value"),
        ("name: a\nname: b\n", "given twice"),
        ("workers: [1, 2]\n", "expected one value"),
    ],
)
def test_errors_in_a_file_contain_the_line(text, expected):
    """The message has the valid values."""
    with pytest.raises(UsageError, match=re.escape(expected)):
        read_document(text, "job.yaml")


def test_secrets_of_a_file_are_secrets():
    """Also those without a value, which come from the submitter's environment."""
    base = read_document("env: {API_TOKEN: t}\nsecret_env: [LANG]\n", "job.yaml")
    here = Here(environ={"LANG": "C"}, is_secret=is_secret)
    job = submission(read_words(["pytorch", "--name=a", "--image=i", "x"]), here, base)

    assert {name: value.reveal() for name, value in job.env.items()} == {"API_TOKEN": "t", "LANG": "C"}
    assert dict(job.spec.env) == {}


@pytest.mark.parametrize(
    "words",
    [
        ["--gputopology", "x"],
        ["--launcher=torchrun", "torchrun train.py"],
        ["--launcher=launch", "--", "accelerate", "launch", "train.py"],
        ["--tensorboard-image=t", "x"],
        ["--privileged", "--no-rdma", "x"],
        ["--shell=bash", "--", "x", "y"],
        ["--sync-revision=v1", "x"],
    ],
)
def test_a_flag_without_effect_on_the_job_gets_a_warning(words):
    """An option without effect must not be taken for an active one."""
    flag = next(word for word in reversed(words) if word.startswith("--") and word != "--").partition("=")[0]

    assert flag in " ".join(submitted(["pytorch", "--name=a", "--image=i", *words]).notes)


def test_a_lone_surrogate_is_refused():
    """A spec file can contain one, but it cannot be an argument of a program."""
    with pytest.raises(UsageError, match="lone surrogate"):
        check(JobSpec(name="a", kind=Kind.RUN, image="i", command=("\ud800",)))


@pytest.mark.parametrize("number", [10**400, -(10**400)])
def test_a_number_of_a_record_that_is_too_large_to_print_is_refused(number):
    """Records of nodes can contain any number."""
    with pytest.raises(UsageError, match="--gpus"):
        check(JobSpec("a", Kind.RUN, ("x",), image="i", gpus=number))
