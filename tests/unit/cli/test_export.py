"""`provision export`, `submit -f MANIFEST`, and the page docs/export.md."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest
import typer

from provision.cli.main import build_app
from provision.documents.kubernetes import problems, read_manifests
from provision.jobs.engines import ENGINES
from provision.testing import make_cluster
from provision.workflow.export import read_job_file
from tests.support import memory_engine
from tests.support.memory_engine import MemoryEngine, job_of
from tools.export_page import PAGE, commands, files, rewritten

TEXT = PAGE.read_text(encoding="utf-8")
HELP = typer.main.get_command(build_app("export")).commands["export"].help
EXAMPLES = [line.strip() for line in HELP.splitlines() if line.strip().startswith("provision export")]
PAGE_FILES = files(TEXT)


pytestmark = pytest.mark.usefixtures("page")


@pytest.fixture
def page(monkeypatch, tmp_path):
    """Be in a folder with the files of the page, and with an inventory that has a submitted job."""
    monkeypatch.chdir(tmp_path)
    for name, text in {
        **PAGE_FILES,
        "job.yaml": PAGE_FILES["mpi.yaml"].replace("kind: mpi\n", "kind: pytorch\n").replace("launcher: mpirun\n", ""),
    }.items():
        Path(name).write_text(text)
    engine = MemoryEngine((job_of("mnist", gpus=1, secret_env=("API_TOKEN",)),), gpus=None)
    monkeypatch.setitem(ENGINES, "memory", "tests.support.memory_engine")
    monkeypatch.setattr(memory_engine, "create", lambda _context: engine)
    cluster = make_cluster("gpu1", "gpu2", cluster_engine="memory")
    monkeypatch.setattr("provision.cli.job_options.cluster_from", lambda *_a, **_k: cluster)


def check_export(text):
    """Verify a manifest against its schema, or a script for the shell."""
    if text.startswith("#!"):
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        return
    documents = read_manifests(text, "output")
    assert documents
    assert [problem for one in documents for problem in problems(one.value)] == []


def test_the_outputs_on_the_page_are_current():
    """Run: make docs."""
    assert rewritten(TEXT) == TEXT


@pytest.mark.parametrize("command", [*commands(TEXT), *EXAMPLES])
def test_every_example_exports_a_valid_document(command, typed):
    """Those of the page, and those of the help."""
    words = shlex.split(command)[1:]
    code, out, err = typed(*words)

    assert code == 0, err
    check_export(Path(words[words.index("--output") + 1]).read_text() if "--output" in words else out)


def test_there_are_examples_of_all_targets():
    assert {words[words.index("--to") + 1] for words in map(str.split, commands(TEXT))} == {
        "kubernetes",
        "slurm",
        "script",
    }
    assert len(EXAMPLES) >= 3


def test_notes_are_comments_and_lines_on_stderr(typed):
    """Standard output stays a valid document."""
    code, out, err = typed("export", "-f", "pytorch.yaml", "--to", "kubernetes")

    assert code == 0
    assert "mnist-env" in err
    assert "# Note: " in out


def test_the_json_document_has_codes(typed):
    document = json.loads(typed("export", "mnist", "--to", "slurm", "--json")[1])

    assert (document["name"], document["target"]) == ("mnist", "slurm")
    assert {"export.secret_environment", "export.worker_per_node"} <= {note["code"] for note in document["notes"]}
    check_export(document["text"])


def test_values_of_secrets_are_written_only_when_asked_for(typed, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "t0k3n")
    without = typed("export", "mnist", "--to", "kubernetes")[1]
    code, _, err = typed("export", "mnist", "--to", "kubernetes", "--with-secrets", "--output", "k.yaml")

    assert "t0k3n" not in without
    assert code == 0
    assert "t0k3n" in Path("k.yaml").read_text()
    assert "t0k3n" not in err
    assert Path("k.yaml").stat().st_mode & 0o077 == 0
    monkeypatch.delenv("API_TOKEN")
    assert typed("export", "mnist", "--to", "kubernetes", "--with-secrets")[0] == 2


def test_a_job_that_has_run_keeps_its_nodes(typed):
    """As a script; --nodes chooses others."""
    assert "run_on gpu1" in typed("export", "mnist", "--to", "script")[1]
    assert "run_on other" in typed("export", "mnist", "--to", "script", "--nodes", "other")[1]


@pytest.mark.parametrize(
    "words",
    [
        ("export", "--to", "slurm"),
        ("export", "mnist", "-f", "mpi.yaml", "--to", "slurm"),
        ("export", "-f", "mpi.yaml", "--to", "swarm"),
        ("export", "-f", "mpi.yaml", "--to", "slurm", "--runtime", "rkt"),
        ("export", "-f", "mpi.yaml", "--to", "kubernetes", "--kind", "pytorchjob"),
        ("export", "-f", "missing.yaml", "--to", "slurm"),
        ("export", "-f", "mpi.yaml", "--to", "slurm", "--topology", "a/b"),
        ("export", "-f", "mpi.yaml", "--to", "script", "--queue", "gpu"),
        ("export", "-f", "pytorch.yaml", "--to", "slurm", "--data-path", "training-data=x"),
    ],
)
def test_contradictions_are_refused(typed, words):
    code, out, err = typed(*words)

    assert (code, out) == (2, "")
    assert "error: " in err


def test_a_manifest_is_submitted_as_the_job_that_it_describes(typed):
    """The spec of the dry run is that of the file from which the manifest was exported."""
    Path("k.yaml").write_text(typed("export", "-f", "mpi.yaml", "--to", "kubernetes")[1])
    manifest = json.loads(typed("submit", "-f", "k.yaml", "--dry-run", "-o", "json")[1])["spec"]
    file = json.loads(typed("submit", "-f", "mpi.yaml", "--dry-run", "-o", "json")[1])["spec"]

    assert manifest == file
    assert manifest["command"] == ["python3", "train.py"]


def test_a_mistake_in_a_manifest_is_an_error_with_its_line(typed):
    text = typed("export", "-f", "mpi.yaml", "--to", "kubernetes")[1]
    Path("k.yaml").write_text(text.replace("slotsPerWorker", "slotPerWorker"))
    code, _, err = typed("submit", "-f", "k.yaml", "--dry-run")
    line = next(number for number, text in enumerate(Path("k.yaml").read_text().splitlines(), 1) if "slotPer" in text)

    assert code == 2
    assert f"k.yaml:{line}: spec.slotPerWorker: unknown field; did you mean slotsPerWorker?" in err


def test_a_file_that_cannot_be_written_is_an_error(typed):
    for output in ("missing/k.yaml", "."):
        code, _, err = typed("export", "-f", "mpi.yaml", "--to", "kubernetes", "--output", output)

        assert code == 2
        assert "--output" in err


def test_values_of_secrets_in_a_file_are_not_printed_too(typed, monkeypatch):
    """The output of a command is often in a log."""
    monkeypatch.setenv("API_TOKEN", "t0k3n")
    words = ("export", "mnist", "--to", "kubernetes", "--with-secrets", "--json", "--output", "k.yaml")
    code, out, err = typed(*words)

    assert code == 0
    assert "t0k3n" in Path("k.yaml").read_text()
    assert "t0k3n" not in out + err
    assert json.loads(out)["notes"]


def test_a_stored_credential_of_the_registry_is_exported(typed, monkeypatch):
    """For files, and for submitted jobs."""
    credential = {"server": "registry.example.com", "username": "u", "password": "p4ss"}
    monkeypatch.setattr(
        "provision.workflow.stored_secrets.registry_credential",
        lambda image: credential if image.startswith("registry.example.com") else {},
    )
    out = typed("export", "-f", "pytorch.yaml", "--to", "kubernetes")[1]

    assert "mnist-registry" in out
    assert "p4ss" not in out


def test_a_large_file_is_refused(typed):
    Path("large.yaml").write_text("a: " + "b" * (1 << 20))
    code, _, err = typed("submit", "-f", "large.yaml", "--dry-run")

    assert code == 2
    assert "larger than 1 MiB" in err


def test_a_spec_file_that_mentions_manifests_is_a_spec_file():
    """Only a top-level apiVersion makes a file a manifest, whose limits a spec file does not have."""
    anchors = "kind: run\nname: a\ncommand: 'echo apiVersion: v1'\nenv: {A: &x b, B: *x}\n"
    text = json.dumps({"kind": "run", "name": "a", "command": '{"apiVersion": 1}', "labels": {"apiVersion": "1"}})

    assert read_job_file(anchors, "job.yaml", print)["env"] == {"A": "b", "B": "b"}
    assert read_job_file(text, "job.json", print)["labels"] == {"apiVersion": "1"}
