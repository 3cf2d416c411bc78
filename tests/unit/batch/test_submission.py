"""Command lines of ``submit``, the documents' own among them, become the job that they mean, or a refusal in words."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from provision.batch.document import as_yaml, read_document
from provision.batch.spec_checks import check
from provision.batch.submission import Here, read_words, submission
from provision.cli.job_options import is_secret
from provision.documents import convert
from provision.errors import UsageError
from provision.model.job import CodeSource, JobSpec, Kind, as_document

README = Path(__file__).resolve().parents[3] / "README.md"


def made(words, **here):
    """What a command line means, in a folder of somebody's."""
    settings = {"folder": "/home/me", "environ": {"WANDB_API_KEY": "w", "LANG": "C"}, "is_secret": is_secret, **here}
    return submission(read_words(words), Here(**settings))


def least(*words):
    """A job that lacks nothing, and more words."""
    return made(["pytorch", "--name=a", "--image=i", *words])


def spec_of(*words):
    return least(*words, "x").spec


@pytest.mark.row(10, 11, 13, 22, 23, 25, 27, 28)
def test_a_pytorch_job_in_arenas_options():
    """Three workers of one GPU each, code from git, data and TensorBoard."""
    line = "python /root/code/speech/train.py --epochs 4 --out /corpus/logs"
    words = ["--name=speech", "--gpus=1", "--workers=3", "--working-dir=/root", "--image=r.example.com/torch:2"]
    words += ["--sync-mode=git", "--sync-source=https://git.example.com/o/speech.git", "--data=corpus:/corpus"]
    result = made(["pytorch", *words, "--tensorboard", "--logdir=/corpus/logs", line])

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
def test_what_a_job_has_that_says_nothing():
    """One worker without GPUs in /root, all or none of it, placed without topology, and no TensorBoard."""
    found = spec_of()

    assert (found.workers, found.gpus, found.working_dir, found.logdir) == (1, 0, "/root", "/training_logs")
    assert (found.gang, found.gputopology, found.tensorboard) == (True, False, False)


@pytest.mark.row(6, 13, 14)
@pytest.mark.parametrize("topology", [True, False])
def test_an_mpi_job_in_arenas_options(topology):
    """Four workers, with and without topology; mpirun's own line is one word and is not changed."""
    line = "mpirun --allow-run-as-root -np 4 -bind-to none -x PATH --mca btl ^openib python /w/bench.py --model=vgg16"
    words = ["--name=vgg", "--gpus=1", "--workers=4", "--image=i", *["--gputopology=true"] * topology]
    result = made(["mpi", *words, line])

    assert (result.spec.kind, result.spec.gpus, result.spec.workers) == (Kind.MPI, 1, 4)
    assert (result.spec.gputopology, result.spec.command) == (topology, (line,))
    assert result.notes == ()


@pytest.mark.row(24)
def test_a_private_repository_as_in_the_document():
    """The login is for fetching alone: not in the spec, not in the training's variables; and how to type it better."""
    words = ["pytorch", "--name=a", "--image=i", "--sync-mode=git", "--sync-source=https://g/o/mnist-pytorch.git"]
    words += ["--env=GIT_SYNC_USERNAME=yourname", "--env=GIT_SYNC_PASSWORD=yourpwd", "--env=GIT_SYNC_BRANCH=dev"]
    found = made([*words, "--env=GIT_SYNC_DEPTH=1", "python x.py"])

    assert {name: value.reveal() for name, value in found.sync.items()} == {
        "GIT_SYNC_USERNAME": "yourname",
        "GIT_SYNC_PASSWORD": "yourpwd",
    }
    assert (dict(found.spec.env), found.env, found.spec.secret_env) == ({}, {}, ())
    assert found.spec.sync == CodeSource("git", "https://g/o/mnist-pytorch.git", "dev", {"GIT_SYNC_DEPTH": "1"})
    assert "yourpwd" not in repr(found)
    assert "yourpwd" not in as_yaml(found.spec)
    assert any("GIT_SYNC_PASSWORD can be seen" in note and "--env-file" in note for note in found.notes)


def test_the_readmes_jobs_can_be_submitted_as_they_stand():
    """And nothing is to be said against them."""
    text = README.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("provision submit ")]
    found = [made(shlex.split(line, comments=True)[2:]) for line in lines]

    assert [job.spec.kind for job in found] == [Kind.PYTORCH, Kind.MPI]
    assert [job.notes for job in found] == [(), ()]


def test_secrets_are_apart_and_a_name_alone_is_not_warned_of():
    """--env NAME takes the value of here; an ordinary variable stays where everybody may see it."""
    found = least("--env", "WANDB_API_KEY", "--env", "LANG", "-e", "LR=0.1", "x")

    assert (dict(found.spec.env), found.spec.secret_env) == ({"LANG": "C", "LR": "0.1"}, ("WANDB_API_KEY",))
    assert found.env["WANDB_API_KEY"].reveal() == "w"
    assert found.notes == ()


def test_variables_from_files_give_way_to_typed_ones():
    """Lines as docker reads them; a bad line is named by its number and never shown."""
    text = "# ours\nLR=0.1\n\nAPI_TOKEN=s3cret\nLANG\n"
    found = made(["pytorch", "--name=a", "--image=i", "-e", "LR=0.2", "x"], env_files=[("f", text)])

    assert dict(found.spec.env) == {"LR": "0.2", "LANG": "C"}
    assert found.spec.secret_env == ("API_TOKEN",)
    with pytest.raises(UsageError, match="f:1") as refused:
        made(["pytorch", "--name=a", "--image=i", "x"], env_files=[("f", "s3 cret=1")])
    assert "s3 cret" not in str(refused.value)


def test_a_login_in_the_address_is_refused_and_not_repeated():
    """It would be in the list of processes; how to give it is said."""
    with pytest.raises(UsageError, match="holds a login") as refused:
        least("--sync-mode=git", "--sync-source=https://me:p%40ss@git.example.com/o/r.git", "x")

    assert "p%40ss" not in f"{refused.value.message} {refused.value.remedy}"
    assert "provision secret add git" in refused.value.remedy


def test_the_training_sees_nothing_of_how_its_code_is_fetched():
    """All of git-sync's spellings, and rsync's password; a key's file is a name, the key itself a secret."""
    words = ["GIT_SYNC_SSH_KEY_FILE=/k", "GITSYNC_TOKEN=t", "GIT_SYNC_BRANCH=dev", "RSYNC_PASSWORD=r", "GIT_PAGER=cat"]
    found = least("--sync-mode=git", "--sync-source=https://g/o/r.git", *[f"--env={word}" for word in words], "x")

    assert (dict(found.spec.env), found.spec.secret_env) == ({"GIT_PAGER": "cat"}, ())
    assert (found.spec.sync.revision, found.spec.sync.options) == ("dev", {"GIT_SYNC_SSH_KEY_FILE": "/k"})
    assert set(found.sync) == {"GITSYNC_TOKEN", "RSYNC_PASSWORD"}


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
def test_without_a_type_the_command_tells_and_it_is_said(words, kind):
    """As the newer page on topology types it: no type, and true or false without a value."""
    found = made(["--gputopology=true", "--gang", "--name", "a", "--image", "i", "--workers=4", *words])

    assert (found.spec.kind, found.spec.gputopology, found.spec.gang) == (kind, True, True)
    assert found.spec.command == tuple(words[1:] if words[0] == "--" else words)
    assert f"the type is {kind}" in " ".join(found.notes)


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
    """Old spellings, short forms, repeated ones, and several ways to say one thing."""
    assert getattr(spec_of(*words), field) == value


@pytest.mark.row(59)
def test_the_command_may_be_a_flag_too():
    """As launchers have it that are made of options alone."""
    found = made(["pytorch", "--name=a", "--image", "i", "--num_worker", "3", "--command", "python3 mnist.py"])

    assert found.spec.command == ("python3 mnist.py",)
    assert found.spec.workers == 3


def test_what_changes_nothing_here_or_is_spelt_as_of_old_is_said():
    """Nobody is to think that a limit holds which does not."""
    notes = " ".join(least("--memory", "4Gi", "--syncMode=local", "x").notes)

    assert "--memory changes nothing here" in notes
    assert "--syncMode is the old spelling of --sync-mode" in notes


@pytest.mark.row(11, 12, 23, 25, 54)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["x"], "no image"),
        (["--image=i", "--workers=0", "x"], "--workers 0"),
        (["--image=i", "--workers=100000", "x"], "--workers 100000: at most"),
        (["--image=i", "--retry=2000000", "x"], "--retry 2000000: at most 1000000"),
        (["--image=i", "--preset=taco", "x"], "--preset taco writes a whole mpirun line"),
        (["--image=i", "--command=y", "x"], "given twice"),
        (["--image=i", "--gpus=-1", "x"], "--gpus -1"),
        (["--image=i", "--gpus=two", "x"], "--gpus two: 'two' is not a whole number"),
        (["--image=i"], "no command"),
        (["--image=i", "--sync-mode=git", "x"], "without --sync-source"),
        (["--image=i", "--sync-source=u", "x"], "without --sync-mode"),
        (["--image=i", "--sync-mode=hdfs", "--sync-source=hdfs://x", "x"], "hdfs is not supported"),
        (["--image=i", "-d", "a:/x", "-d", "a:/y", "x"], "mounted twice"),
        (["--image=i", "-v", "/a:/b\nc", "x"], "line break"),
        (["--image=i", "-d", "a:/x", "-d", "b:/x", "x"], "two things"),
        (["--image=i", "-d", "a:x", "x"], "no absolute path"),
        (["--image=i", "-d", "a:/", "x"], "no absolute path"),
        (["--image=i", "-d", "a:/x/../..", "x"], "no absolute path"),
        (["--image=i", "-d", "a", "x"], "NAME:/path"),
        (["--image=i", "python", "x.py"], "2 words"),
        (["--image=i", "--gang", "false", "x"], "2 words"),
        (["--image=i", "--retyr=1", "x"], "did you mean --retry"),
        (["--image=i", "--running-timeout", "10", "x"], "no length of time"),
        (["--image=i", "--env", "NOT_SET", "x"], "is not set here"),
        (["--image=i", "--env", "PROVISION_JOB=1", "x"], "provision sets itself"),
        (["--image=i", "--env", "LIGHT_3D=1", "x"], "LIGHT_3D"),
        (["--image=i", "--pack", "--spread", "x"], "exclude each other"),
        (["--image=i", "-w", "a", "-x", "a", "x"], "in --nodes and in --exclude"),
        (["--image=i", "--launcher=srun", "x"], "none of mpirun, python, torchrun"),
        (["--image=i", "--np=4", "x"], "for mpi jobs"),
        (["--image=i", "--mps", "x"], "nobody to share with"),
        (["--image=i", "--procs-per-gpu=2", "x"], "each worker has 0"),
        (["--image=i", "--gpus=2", "--procs-per-gpu=2", "x"], "each worker has 2"),
        (["--image=i", "--gpus=1", "--procs-per-gpu=2", "--nproc-per-node=2", "x"], "copies of the command itself"),
        (["x"], "or --no-container"),
        (["--no-container", "--image=i", "x"], "--image is for containers"),
        (["--no-container", "--share-memory=2g", "x"], "the node's own /dev/shm"),
        (["--no-container", "--no-rdma", "x"], "--fabric tcp"),
        (["--no-container", "--tensorboard", "x"], "--tensorboard-image IMAGE"),
        (["--no-container", "--image-pull-secret=r", "x"], "takes none"),
        (["--image=i", "--config-file", "c.yml:etc/c.yml", "x"], "no absolute path"),
        (["--image=i", "--config-file", "c:/x", "-d", "a:/x", "x"], "two things"),
        (["--image=i", "--toleration", "key=v:NoSchedule", "x"], "no taints"),
        (["--image=i", "--gpus=1", "-G"], "needs a value"),
    ],
)
def test_what_cannot_be_is_refused_in_words(words, said):
    """Before anything connects, naming the flag."""
    with pytest.raises(UsageError) as refused:
        made(["pytorch", "--name=a", *words])
    assert said in f"{refused.value} {refused.value.remedy}"


@pytest.mark.row(9)
@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a.b", "a" * 50])
def test_a_name_is_a_part_of_host_names(name):
    """As in arena: small letters, digits, dashes, 49 of them at most."""
    with pytest.raises(UsageError):
        made(["pytorch", f"--name={name}", "--image=i", "x"])
    assert made(["pytorch", "--name=" + "a" * 49, "--image=i", "x"]).spec.name == "a" * 49


def test_arenas_other_types_are_named():
    """Somebody who types them learns what does the same."""
    with pytest.raises(UsageError, match="tfjob") as refused:
        made(["tfjob", "--name=a", "--image=i", "x"])
    assert "mpi, pytorch and run" in refused.value.remedy


@pytest.mark.row(14)
def test_an_mpirun_line_is_made_where_it_is_asked_for():
    """--np auto or a number; without it a program that is no mpirun gets a warning."""
    mpi = ["mpi", "--name=a", "--image=i", "--gpus=2", "--workers=2"]
    auto = made([*mpi, "--np", "auto", "--", "python3", "x.py"])

    assert (auto.spec.launcher, auto.spec.ranks, auto.spec.command) == ("mpirun", 0, ("python3", "x.py"))
    assert made([*mpi, "--np", "3", "x"]).spec.ranks == 3
    assert "--np auto" in " ".join(made([*mpi, "python3 x.py"]).notes)
    assert "-np 2 starts 2 ranks" in " ".join(made([*mpi, "mpirun -np 2 x"]).notes)
    assert "--np 3 starts 3 ranks" in " ".join(made([*mpi, "--np", "3", "x"]).notes)
    assert made([*mpi, "mpirun -np 4 x"]).notes == ()
    assert made([*mpi, "--np=auto", "--", "python3", "x.py"]).notes == ()
    assert made([*mpi, "--", "python3", "x.py"]).notes == ()


def test_ranks_that_nothing_would_start_are_refused_or_said():
    """One process in place of eight is noticed too late."""
    mpi = ["mpi", "--name=a", "--image=i", "--gpus=4", "--workers=2"]
    python = {"ranks": 8, "launcher": "python", "image": "i", "name": "a", "command": ("x",), "kind": Kind.MPI}
    with pytest.raises(UsageError, match="--launcher python starts the command once"):
        submission(read_words([]), Here(), python)
    assert "--np 8 changes nothing" in " ".join(made([*mpi, "--np", "8", "--", "mpirun", "x"]).notes)
    assert made([*mpi, "--", "bash", "run.sh"]).notes == ()


def test_processes_that_nothing_would_start_are_said():
    """A quoted word is the shell's, and torchrun is put before it where that is asked for alone."""
    torch = ["pytorch", "--name=a", "--image=i", "--nproc-per-node=4"]

    assert "--launcher torchrun puts torchrun before it" in " ".join(made([*torch, "python3 x.py"]).notes)
    for more in (["torchrun x.py"], ["cd /w && torchrun x.py"], ["--launcher=torchrun", "x.py"], ["--", "python", "x"]):
        assert made([*torch, *more]).notes == ()


@pytest.mark.row(14)
@pytest.mark.parametrize("words", [["mpirun -np 8 x"], ["--", "mpirun", "-np", "8", "x"], ["--np=8", "x"]])
def test_more_ranks_than_slots_are_refused_unless_the_line_or_no_lint_wants_them(words):
    """Open MPI would refuse them when all GPUs are taken and all images pulled."""
    mpi = ["mpi", "--name=a", "--image=i", "--gpus=2", "--workers=2"]
    with pytest.raises(UsageError, match="8 is more than the 4 slots") as refused:
        made([*mpi, *words])
    assert "--no-lint" in refused.value.remedy
    found = made([*mpi, "--no-lint", *words])
    assert (found.spec.lint, "8 ranks" in " ".join(found.notes)) == (False, True)
    assert made([*mpi, "mpirun --oversubscribe -np 8 x"]).spec.lint


def test_a_spec_survives_its_file_and_its_record():
    """What --dry-run -o yaml shows can be submitted; what the nodes keep means the same."""
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
    spec = least(*words).spec
    again = submission(read_words([]), Here(), read_document(as_yaml(spec), "job.yaml")).spec

    assert again == spec
    assert convert(as_document(spec), JobSpec, node="a", what="spec") == spec


def test_flags_override_a_file_and_join_its_variables():
    """Values of a file are taken as they are written; no quotes are needed."""
    text = "type: pytorchjob\nname: a\nimage: i\nworkers: 4\nrunning-timeout: 3600\nenv: {LR: 0.10, ON: yes}\n"
    text += "labels: {a: 1}\ndata:\n  - d:/d\ncommand: python3 x.py\n"
    base = read_document(text, "job.yaml")
    found = submission(read_words(["--workers=2", "-e", "LR=0.2", "-l", "b=2", "--name=b"]), Here(), base).spec

    assert (found.kind, found.name, found.workers, found.running_timeout) == (Kind.PYTORCH, "b", 2, 3600.0)
    assert dict(found.env) == {"LR": "0.2", "ON": "yes"}
    assert (found.data, dict(found.labels)) == ((("d", "/d"),), {"a": "1", "b": "2"})
    with pytest.raises(UsageError, match="pytorch"):
        submission(read_words(["mpi"]), Here(), base)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: a\nworkres: 2\n", "job.yaml:2: there is no key workres; did you mean workers?"),
        ("gpus: many\n", "job.yaml:1: gpus: 'many' is not a whole number"),
        ("gang: perhaps\n", "neither true nor false"),
        ("env: [A]\n", "job.yaml:1: env: 'A' is not NAME=VALUE"),
        ("env: {A: {B: 1}}\n", "env.A: text or a number"),
        ("kind: tf\n", "kinds are mpi, pytorch and run"),
        ("sync: {mode: git, branch: x}\n", "'branch' is none of"),
        ("a: [\n", "this is no YAML"),
        ("- a\n", "key: value"),
        ("", "key: value"),
        ("name: a\nname: b\n", "given twice"),
        ("workers: [1, 2]\n", "one value is wanted"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_line(text, said):
    """And with what could stand there."""
    with pytest.raises(UsageError, match=re.escape(said)):
        read_document(text, "job.yaml")


def test_secrets_of_a_file_are_secrets():
    """Also those that it only names, which come from here."""
    base = read_document("env: {API_TOKEN: t}\nsecret_env: [LANG]\n", "job.yaml")
    here = Here(environ={"LANG": "C"}, is_secret=is_secret)
    found = submission(read_words(["pytorch", "--name=a", "--image=i", "x"]), here, base)

    assert {name: value.reveal() for name, value in found.env.items()} == {"API_TOKEN": "t", "LANG": "C"}
    assert dict(found.spec.env) == {}


@pytest.mark.parametrize(
    "words",
    [
        ["--gputopology", "x"],
        ["--tensorboard-image=t", "x"],
        ["--privileged", "--no-rdma", "x"],
        ["--shell=bash", "--", "x", "y"],
        ["--sync-revision=v1", "x"],
    ],
)
def test_a_flag_that_changes_nothing_for_this_job_is_said(words):
    """Nobody is to think that it does."""
    flag = next(word for word in reversed(words) if word.startswith("--") and word != "--").partition("=")[0]

    assert flag in " ".join(made(["pytorch", "--name=a", "--image=i", *words]).notes)


def test_half_a_character_is_refused():
    """A specification file can name one, and no program gets it as an argument."""
    with pytest.raises(UsageError, match="lone surrogate"):
        check(JobSpec(name="a", kind=Kind.RUN, image="i", command=("\ud800",)))
