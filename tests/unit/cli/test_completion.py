"""Shell completion through the mechanism that shells use: names of nodes, jobs, labs and roles; no node is asked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from provision.workflow.job_names import add_job_name, known_job_names, remove_job_name, store_job_names
from tests.support.command import ROOT, eventually
from tests.support.memory_engine import MemoryEngine, job_of

UNROUTABLE = "192.0.2.1"
"""There is no answer and no refusal: a connection would take until its limit."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with one inventory, whose nodes cannot be reached, and folders of its own for state and cache."""
    folder = tmp_path / "inventories" / "prod"
    folder.mkdir(parents=True)
    hosts = "".join(f"    gpu{n}:\n      ansible_host: {UNROUTABLE}\n" for n in range(1, 13))
    (folder / "hosts.yml").write_text(f"gpu_nodes:\n  hosts:\n{hosts}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PROVISION_INVENTORY", raising=False)
    return tmp_path


CALL = """import sys; sys.argv[0] = 'provision'
from provision.cli import completion
completion._SECONDS = {limit}
from provision.cli.main import main
main()
"""


def completed(place, line, shell="bash", limit=120):
    """Return what a shell is offered behind `line`, whose last word is completed; the limit suits a busy machine."""
    environment = {**os.environ, "_PROVISION_COMPLETE": f"complete_{shell}", "PYTHONPATH": str(ROOT)}
    if shell == "bash":
        environment |= {"COMP_WORDS": line, "COMP_CWORD": str(len(f"{line}|".split()) - 1)}
    else:
        environment |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    argv = [sys.executable, "-c", CALL.format(limit=limit)]
    done = subprocess.run(argv, cwd=place, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return re.findall(r'"([^"]+)"', done.stdout) if shell == "zsh" else done.stdout.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("provision topo gpu1", ["gpu1", "gpu10", "gpu11", "gpu12"]),
        ("provision node drain gpu11", ["gpu11"]),
        ("provision verify --limit gpu12", ["gpu12"]),
        ("provision verify --limit gpu1,gpu12", ["gpu1,gpu12"]),
        ("provision verify --limit gpu_", ["gpu_nodes"]),
        ("provision -i inventories/prod topo gpu12", ["gpu12"]),
        ("provision topo -i inventories/none gpu", []),
        ("provision apply --only docker", ["docker_engine"]),
        ("provision plan --force peer", ["peer_memory"]),
        ("provision delete mnist --lost gpu12", ["gpu12"]),
        ("provision lab power demo demo-1 o", ["on", "off"]),
        ("provision lab link demo demo-1 of", ["off"]),
        ("provision submit --tensorb", ["--tensorboard", "--tensorboard-image"]),
        ("provision submit mpi --launcher mpi", ["mpirun"]),
        ("provision submit --launcher torchrun tor", []),
        ("provision run --launcher tor", ["torchrun"]),
        ("provision hostfile --launcher mpi", ["mpich"]),
        ("provision lab up demo --distro debian13", ["debian13"]),
    ],
)
def test_nodes_groups_and_roles_are_completed(place, line, words):
    """No node is asked."""
    assert completed(place, line) == words


@pytest.mark.parametrize(
    ("verb", "shell"),
    [("get", "fish"), ("rm", "fish"), *((v, "bash") for v in ("describe", "logs", "stop", "rm", "top job"))],
)
def test_jobs_are_completed_from_stored_names(place, verb, shell):
    """The nodes of the inventory do not answer, and are not asked."""
    store_job_names(place / "inventories" / "prod", ["mnist", "mnist-2", "vgg"])

    assert completed(place, f"provision {verb} mn", shell) == ["mnist", "mnist-2"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_complete_nodes_labs_jobs_and_roles(place, shell):
    """The variables and the output are those of the script that `--show-completion` prints for the shell."""
    store_job_names(place / "inventories" / "prod", ["mnist", "vgg"])
    (Path(os.environ["XDG_STATE_HOME"]) / "provision/labs/demo").mkdir(parents=True)

    assert completed(place, "provision topo gpu11", shell) == ["gpu11"]
    assert completed(place, "provision lab down d", shell) == ["demo"]
    assert completed(place, "provision logs m", shell) == ["mnist"]
    assert completed(place, "provision apply --only docker", shell) == ["docker_engine"]


def test_jobs_of_the_last_list_are_completed(place, typed, monkeypatch):
    """No node is asked for them."""
    engine = MemoryEngine((job_of("mnist"), job_of("vgg")))
    monkeypatch.setattr("provision.workflow.jobs.job_engine", lambda *_: engine)
    inventory = place / "inventories" / "prod"
    (inventory / "hosts.yml").write_text(f"gpu_nodes:\n  hosts:\n    gpu1: {{ansible_host: {UNROUTABLE}}}\n")
    assert typed("list", "-i", str(inventory))[0] == 0

    assert completed(place, "provision stop m") == ["mnist"]


def test_without_stored_names_nothing_is_completed(place):
    assert completed(place, "provision get m") == []


def test_labs_are_completed(place):
    labs = Path(os.environ["XDG_STATE_HOME"]) / "provision" / "labs"
    for name in ("demo", "small"):
        (labs / name).mkdir(parents=True)

    assert completed(place, "provision lab down d") == ["demo"]
    assert completed(place, "provision verify --lab s") == ["small"]


@pytest.mark.parametrize("content", [b"", b"{}", b'{"names": ["; rm -rf /", "$(x)"]}', b"\xff"])
def test_a_damaged_file_of_names_gives_no_completions(place, content):
    """What is offered ends on a command line: names that no job can have are not."""
    inventory = place / "inventories" / "prod"
    store_job_names(inventory, ["mnist"])
    (file,) = (place / "cache" / "provision" / "job-names").iterdir()
    file.write_bytes(content)

    assert known_job_names(inventory) == []


def test_submitted_jobs_are_added_and_deleted_ones_removed(place):
    inventory = place / "inventories" / "prod"
    add_job_name(inventory, "a")
    add_job_name(inventory / "hosts.yml", "b")
    remove_job_name(inventory, "a")

    assert known_job_names(inventory) == ["b"]


def test_a_hanging_inventory_script_is_killed(place):
    """It is given up, and ended."""
    script = place / "inventories" / "prod" / "slow.py"
    lines = [f"#!{sys.executable}", "import os, time", f"open({str(place / 'pid')!r}, 'w').write(str(os.getpid()))"]
    script.write_text("\n".join([*lines, "time.sleep(600)", ""]))
    script.chmod(0o755)

    assert completed(place, "provision topo gpu", limit=4) == []
    if (place / "pid").exists():  # it was begun in time
        pid = int((place / "pid").read_text())
        eventually(lambda: not Path(f"/proc/{pid}").exists(), seconds=20, what="the script has ended")


def test_completion_works_in_bash(place):
    """In a real bash, with the script that the command prints for the shell it is started from."""
    store_job_names(place / "inventories" / "prod", ["mnist", "vgg"])
    (place / "provision").write_text(f"#!{sys.executable}\n{CALL.format(limit=120)}")
    (place / "provision").chmod(0o755)
    lines = [
        "provision --show-completion > completion; source completion",
        "COMP_WORDS=(provision get m); COMP_CWORD=2; _provision_completion provision",
        'echo "${COMPREPLY[@]}"',
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{place}:{os.environ['PATH']}"}
    argv = ["bash", "--norc", "-c", "\n".join(lines)]
    done = subprocess.run(argv, cwd=place, capture_output=True, text=True, check=False, env=environment, timeout=300)

    assert done.stdout.split() == ["mnist"], done
