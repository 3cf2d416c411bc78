"""The examples in the help of verbs that need no nodes, run as they are; those of the other verbs run on the lab."""

from __future__ import annotations

import io
import re
import shlex

import pytest

from tests.support.benchmark import rendered
from tests.support.command import ROOT
from tests.support.help_examples import OF_LABS, ON_NODES, WITHOUT_NODES, verbs
from tests.support.matrices import CROWDED, NUMA_COLUMN
from tests.support.matrices import rendered as matrix

NCCL = "gpu1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA\n"
JOB = (
    "name: mnist\nkind: pytorch\nimage: registry.example.com/train:1\ngpus: 1\nworkers: 2\ncommand: python3 train.py\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The working folder of somebody who types the examples: an inventory, logs, a script and a job."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "inventories/prod").mkdir(parents=True)
    hosts = "".join(f"    gpu{number}: {{ansible_host: 127.0.0.{number}, ansible_port: 1}}\n" for number in (1, 2))
    (folder / "inventories/prod/hosts.yml").write_text(f"gpu_nodes:\n  hosts:\n{hosts}")
    (folder / "topo.txt").write_text(matrix(CROWDED, NUMA_COLUMN))
    (folder / "job.yaml").write_text(JOB)
    (folder / "job.log").write_text(NCCL + rendered(batch=256, gpus=8, total=6469))
    tutorial = (ROOT / "docs/tutorial/pytorch-job.md").read_text(encoding="utf-8")
    (folder / "train.py").write_text(
        re.search(r"^```python title=.*?\n(.*?)^```$", tutorial, re.MULTILINE | re.DOTALL)[1]
    )
    for gpus, total in ((1, 819), (8, 6469), (16, 12299)):
        (folder / f"{gpus}gpu.log").write_text(rendered(batch=256, gpus=gpus, total=total))
    for name, total in (("topology", 6469), ("default", 3000)):
        (folder / f"{name}.log").write_text(rendered(batch=256, gpus=8, total=total))
    return folder


@pytest.fixture
def run(folder, typed, monkeypatch):
    """Type a command line there; what follows it in a pipe is left out."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PROVISION_INVENTORY", raising=False)
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(folder / name.lower()))
    monkeypatch.setattr("sys.stdin", io.StringIO("the token\n"))
    return lambda line: typed(*shlex.split(re.sub(r"\\\n", "", line).partition(" | ")[0])[1:])


@pytest.mark.parametrize("example", WITHOUT_NODES, ids=lambda example: example.verb)
def test_the_example_of_a_verb_works_without_nodes(run, example):
    code, out, err = run(example.line)

    assert code in example.codes, f"{example.line}\n{out}\n{err}"
    assert re.search(example.shows, out + err, re.MULTILINE), f"{example.line}\n{out}\n{err}"


def test_one_example_of_each_verb_is_run():
    """Add a new verb to one of the lists, with the example that a test can run."""
    assert sorted(example.verb for example in (*WITHOUT_NODES, *OF_LABS, *ON_NODES)) == sorted(verbs())
    assert all(example.line.startswith(f"provision {example.verb}") for example in (*OF_LABS, *ON_NODES))
