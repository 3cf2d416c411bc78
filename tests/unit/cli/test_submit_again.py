"""What ``submit --dry-run`` prints is accepted by ``submit -f`` and gives the same job."""

from __future__ import annotations

import dataclasses
import io
import re
import shlex
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from provision.batch.document import DRY_RUN_KEYS, read_document
from provision.batch.flags import FLAGS
from provision.batch.submission import Here, read_words, submission
from provision.cli.common import printable
from provision.cli.job_options import is_secret
from provision.cli.main import build_app
from provision.errors import UsageError
from provision.model.job_views import DryRun
from provision.model.reason import NO_REASON
from provision.report.job_document import written
from provision.report.job_submit import dry_run_document
from provision.testing import make_cluster
from tests.support.memory_engine import MemoryEngine

ROOT = Path(__file__).resolve().parents[3]
VOLUMES = {name: {"kind": "path", "path": f"/srv/{name}"} for name in ("training-data", "data", "imagenet", "shared")}
PLAIN = ("pytorch", "--name=a", "--image=r.example.com/i:1")
CODE = ("--sync-mode=git", "--sync-source=https://git.example.com/o/r.git")

SAMPLES = {
    "name": ["--name=b"],
    "image": ["--image=other"],
    "worker_image": ["--worker-image=w"],
    "gpus": ["--gpus=2"],
    "workers": ["--workers=3"],
    "total_gpus": ["--workers=2", "-G", "4"],
    "device": ["--device=nvidia.com/gpu=2"],
    "working_dir": ["--working-dir=/w"],
    "env": ["-e", "LR=1e-3", "-e", "EMPTY=", "-e", "API_TOKEN", "-e", "TEXT=a: b # c\n\td"],
    "env_file": ["--env-file={folder}/env"],
    "shell": ["--shell=bash"],
    "command_text": ["--command=echo 'a b' && true"],
    "data": ["--data=training-data:/data"],
    "data_dir": ["--data-dir=/srv/a", "--data-dir=/srv/b:/b"],
    "mounts": ["-v", "/a:/b:ro", "-v", "/c,d:/e"],
    "config_files": ["--config-file={folder}/env:/etc/x.conf"],
    "sync_mode": ["--sync-mode=rsync", "--sync-source=rsync://h.example.com/m"],
    "sync_source": ["--sync-mode=local", "--sync-source={folder}"],
    "sync_revision": [*CODE, "--sync-revision=v1", "-e", "GIT_SYNC_DEPTH=1", "-e", "GIT_SYNC_PASSWORD"],
    "tensorboard": ["--tensorboard", "--data=training-data:/training_logs"],
    "tensorboard_image": ["--tensorboard", "--tensorboard-image=t"],
    "logdir": ["--tensorboard", "--logdir=/l"],
    "gang": ["--gang=false"],
    "gputopology": ["--gpus=1", "--gputopology"],
    "nodes": ["-w", "gpu1,gpu2"],
    "exclude": ["-x", "gpu2"],
    "selector": ["-C", "disk=ssd"],
    "toleration": ["--toleration=all"],
    "pack": ["--pack=false"],
    "spread": ["--spread"],
    "max_per_node": ["--max-per-node=1"],
    "exclusive": ["--exclusive"],
    "gpu_ids": ["--gpus=2", "--gpu-ids=0,1"],
    "np": ["--np=auto"],
    "nproc_per_node": ["--nproc-per-node=auto"],
    "launcher": ["--launcher=torchrun"],
    "procs_per_gpu": ["--gpus=1", "--procs-per-gpu=2"],
    "mps": ["--gpus=1", "--procs-per-gpu=2", "--mps"],
    "lint": ["--no-lint"],
    "preset": ["--preset=horovod-lightcc"],
    "fabric": ["--fabric=tcp"],
    "share_memory": ["--shm-size=2Gi"],
    "ulimits": ["--ulimit=memlock=-1", "--ulimit=nofile=1024:2048"],
    "privileged": ["--privileged"],
    "rdma": ["--no-rdma"],
    "pull": ["--image-pull-policy=IfNotPresent", "--pull=always"],
    "image_pull_secret": ["--image-pull-secret=r.example.com"],
    "user": ["--user=1000:1000,44"],
    "no_container": ["--image=", "--no-container"],
    "retry": ["--retry=2"],
    "running_timeout": ["--running-timeout=90m"],
    "starting_timeout": ["--starting-timeout=1500ms"],
    "ttl_after_finished": ["--ttl-after-finished=3d"],
    "clean_task_policy": ["--clean-task-policy=None"],
    "priority": ["--priority=-3"],
    "queue": ["--queue=night"],
    "hold": ["--hold"],
    "depends": ["--depends=b,c"],
    "labels": ["-l", "team=vision", "-l", "on=true"],
    "annotations": ["-a", "why=a remark: with a colon"],
    "model_name": ["--model-name=m"],
    "model_source": ["--model-source=s3://m"],
}
"""Field of a flag -> words that set it."""


@pytest.fixture
def engine(monkeypatch, tmp_path):
    """Jobs in memory instead of on nodes; logins and variables of the submitter."""
    made, cluster = MemoryEngine(), make_cluster("gpu1", "gpu2")
    nodes = tuple(dataclasses.replace(node, variables={"cluster_data": VOLUMES}) for node in cluster.nodes)
    monkeypatch.setattr(
        "provision.cli.job_options.cluster_from", lambda *_a, **_k: dataclasses.replace(cluster, nodes=nodes)
    )
    monkeypatch.setattr("provision.workflow.jobs.job_engine", lambda *_: made)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("API_TOKEN", "GIT_SYNC_USERNAME", "GIT_SYNC_PASSWORD", "FILE_TOKEN"):
        monkeypatch.setenv(name, f"value of {name}")
    (tmp_path / "env").write_text("BATCH=64\nFILE_TOKEN=of the file\n")
    (tmp_path / "env").chmod(0o600)
    return made


@pytest.fixture
def both(engine, typed, tmp_path, monkeypatch):
    """Submit words, and again from the document of their dry run; return what the engine got both times."""

    def call(words, form="yaml", again=()):
        code, document, err = typed("submit", "--dry-run", "-o", form, *words)
        assert code == 0, err
        file = tmp_path / "again.yaml"
        file.write_text(document)
        results = []
        for line in (words, ("-f", str(file), *again)):
            engine.known.clear()
            for name in ("GIT_SYNC_USERNAME", "GIT_SYNC_PASSWORD"):  # submit takes them out of its own environment
                monkeypatch.setenv(name, f"value of {name}")
            code, _, err = typed("submit", *line)
            assert code == 0, err
            _, spec, secrets = engine.calls[-1]
            results.append((spec, secrets))
        return results

    return call


def test_every_flag_has_a_sample():
    """A new flag needs one, so that its round trip is tested."""
    fields = {flag.field for flag in FLAGS if flag.section != "This command"}

    assert fields - {"file"} == SAMPLES.keys()


@pytest.mark.parametrize("field", SAMPLES)
def test_each_flag_survives_the_round_trip(both, typed, tmp_path, monkeypatch, field):
    """Spec, secrets, files and logins are the same."""
    monkeypatch.setattr("sys.stdin", io.StringIO("password\n"))
    assert typed("secret", "set", "registry", "--server=r.example.com", "--username=u")[0] == 0
    kind = ("mpi", *PLAIN[1:]) if field in {"np", "lint"} else PLAIN
    command = [] if field == "command_text" else ["python3 x.py"]
    words = [word.replace("{folder}", str(tmp_path)) for word in (*kind, *SAMPLES[field])]
    env_file = [word for word in words if word.startswith("--env-file")]
    first, second = both([*words, *command], again=env_file)

    assert first == second


def _documented():
    """Yield every `provision submit` line of the help and the documentation that does not read a file."""
    texts = [build_app("submit").registered_commands[0].callback.__doc__]
    texts += [file.read_text(encoding="utf-8") for file in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))]
    for text in texts:
        for line in re.sub(r"\\\n\s*", "", text).splitlines():
            at = line.find("provision submit ")
            words = shlex.split(line[at:], comments=True)[2:] if at >= 0 and line[:at].strip() == "" else []
            if words and not {"-f", "--help"} & set(words):
                yield words


@pytest.mark.parametrize("words", [pytest.param(words, id=words[1]) for words in _documented()])
@pytest.mark.parametrize("form", ["yaml", "json"])
def test_each_documented_example_survives_the_round_trip(both, typed, words, form, tmp_path, monkeypatch):
    """As YAML and as JSON, with the folders, variables and logins that the pages have before."""
    monkeypatch.chdir(tmp_path)
    for folder in ("total", "train"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("WANDB_API_KEY", "w")
    monkeypatch.setattr("sys.stdin", io.StringIO("password\n"))
    assert typed("secret", "set", "registry", "--server=registry.example.com:5000", "--username=robot")[0] == 0
    left_out = {"--wait", "--dry-run"}  # no job ends here, and the test adds its own dry run
    words = [re.sub(r"IMAGE|\$image", "r.example.com/i", word) for word in words if word not in left_out]
    first, second = both(words, form)

    assert first == second


def test_logins_on_the_command_line_survive_the_round_trip():
    """The document names them, and the environment has their values."""
    words = [*PLAIN, *CODE, "--env=GIT_SYNC_USERNAME=me", "--env=GIT_SYNC_PASSWORD=secret", "python x.py"]
    environ = {"GIT_SYNC_USERNAME": "me", "GIT_SYNC_PASSWORD": "secret"}
    first = submission(read_words(words), Here(is_secret=is_secret))
    second = submission(read_words([]), Here(environ=environ, is_secret=is_secret), reread(first))

    assert second.spec == first.spec
    assert dict(second.sync) == dict(first.sync)


def reread(results, form="yaml"):
    """Return the fields of the document that a dry run prints, as a terminal gets it."""
    text = printable(written(dry_run_document(results, DryRun((), NO_REASON, {}, {})), form))
    return read_document(text, "job.yaml")


TEXT = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=40)


@settings(max_examples=150, deadline=None)
@given(command=st.lists(TEXT.filter(bool), min_size=1, max_size=3), value=TEXT, remark=TEXT)
def test_any_text_survives_the_round_trip(command, value, remark):
    """Also what a terminal must not get, and what YAML would take for a number or a date."""
    words = ["run", "--name=a", "--image=i", f"--env=V={value}", f"--annotation=r={remark}", "--", *command]
    first = submission(read_words(words), Here())
    second = submission(read_words([]), Here(), reread(first))

    assert second.spec == first.spec


def test_the_document_of_a_dry_run_has_known_keys():
    """The reader distinguishes it from a spec file by them."""
    results = submission(read_words([*PLAIN, "x"]), Here())

    assert dry_run_document(results, DryRun((), NO_REASON, {}, {})).keys() == DRY_RUN_KEYS


def test_a_document_of_another_tool_is_refused_by_its_first_key():
    """A Kubernetes manifest has a part `spec` too."""
    manifest = yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "spec": {"name": "a"}}, sort_keys=False)
    with pytest.raises(UsageError, match="apiVersion"):
        read_document(manifest, "pod.yaml")


def test_a_secret_of_the_document_can_be_read_from_a_file(engine, typed, tmp_path, monkeypatch):
    """It need not be in the environment too."""
    file = tmp_path / "job.yaml"
    file.write_text("name: a\nimage: i\ncommand: x\nsecret_env: [FILE_TOKEN]\n")
    monkeypatch.delenv("FILE_TOKEN")

    assert typed("submit", "-f", str(file))[0] == 2
    assert typed("submit", "-f", str(file), f"--env-file={tmp_path}/env")[0] == 0
    assert dict(engine.calls[-1][2].env) == {"FILE_TOKEN": "of the file"}
