"""The reference documents' own command lines, on two nodes that stand for a DGX-1 each (GPUs are SIMULATED).

`arena` is `provision`; image, repository and nodes are the lab's, and the programs in them are stand-ins. What is
printed has the documents' layout. `make recorded-jobs` runs these tests; without the documents they fail.
"""

from __future__ import annotations

import os
import re

import pytest

from tests.recorded.data import commands, expected, missing, shape
from tests.support.engine import engine_host, held
from tests.support.git_server import commit, git
from tests.support.jobs import Jobs

pytestmark = [pytest.mark.long, pytest.mark.recorded]

LAB = f"docs{os.getpid()}"
NODES = (f"{LAB}-1", f"{LAB}-2")
ACK, ARENA = "ack-topology-aware-scheduling-zh.txt", "arena-pytorch-distributed.txt"
QUADS = ({0, 1, 2, 3}, {4, 5, 6, 7})
BENCHMARK = """\
import os, sys, time
rank, size = (int(os.environ["OMPI_COMM_WORLD_" + name]) for name in ("RANK", "SIZE"))
options = dict(word.lstrip("-").split("=") for word in sys.argv[1:])
while not os.path.exists("/examples/go"):
    time.sleep(0.2)
if rank == 0:
    print("Model: %s" % options["model"])
    print("Batch size: %s" % options["batch-size"])
    print("Number of GPUs: %d" % size)
    print("Running warmup...")
    print("Running benchmark...")
    for number in range(10):
        print("Iter #%d: %.1f img/sec per GPU" % (number, 100 + number / 10))
    print("Img/sec per GPU: 100.5 +-0.6")
    print("Total img/sec on %d GPU(s): %.1f +-%.1f" % (size, 100.5 * size, 0.6 * size))
"""
"""Prints made-up figures, once it is let."""
MNIST = """\
import argparse, os, time
parser = argparse.ArgumentParser()
for name in ("--epochs", "--backend", "--dir", "--data"):
    parser.add_argument(name)
args = parser.parse_args()
print("WORLD_SIZE: %s, CURRENT_RANK: %s" % (os.environ["WORLD_SIZE"], os.environ["RANK"]))
while not os.path.exists(args.data + "go"):
    time.sleep(0.2)
os.makedirs(args.dir, exist_ok=True)
open(args.dir + "/events.out.tfevents.1", "w").write("loss")
for step in (57600, 58240, 58880, 59520):
    print("Train Epoch: %s [%d/60000 (%d%%)] loss=0.0026" % (args.epochs, step, step / 600))
print("\\naccuracy=0.9904\\n")
"""
SET_UP = f"""set -e
rm -rf /srv/examples /srv/nas && mkdir -p /srv/examples /srv/nas/pytorch_data
printf '#!/bin/sh\\nexec python3 "$@"\\n' >/srv/examples/python && chmod 755 /srv/examples/python
cat >/srv/examples/pytorch_synthetic_benchmark.py <<'END'
{BENCHMARK}END
"""
PYTHON = "--mount=/srv/examples/python:/usr/local/bin/python:ro"
"""The documents' images have a python, and the lab's a python3 alone."""
AS_THERE = ("--mount=/srv/examples:/examples:ro", "--env=LD_LIBRARY_PATH=/usr/local/lib")
"""What the document's image has, and its mpirun line passes on."""
BOARD = "board:1"
MAKE_BOARD = f"""set -e
printf '#!/bin/sh\\nexec python3 -m http.server --directory "$2" --bind "$4" "$6"\\n' >/root/tensorboard
chmod 755 /root/tensorboard
docker create --name board IMAGE true >/dev/null
docker cp /root/tensorboard board:/usr/local/bin/tensorboard
docker commit board {BOARD} >/dev/null
docker rm board >/dev/null
"""


@pytest.fixture(scope="module")
def jobs(provision):
    """Verbs for two nodes that are set up as the documents require: programs, and a folder for data."""
    assert missing() == [], "set RECORDED_DATA to the folder that contains data/ and reference/"
    try:
        provision.ok("lab", "up", LAB, "--driver", "container", "--nodes", "2", "--machine", "dgx1v")
        host = engine_host(provision.folder / "state/provision/labs" / LAB)
        provision.ok("apply", "--lab", LAB, "--yes")
        for node in NODES:
            provision.ok("lab", "ssh", LAB, node, "--", SET_UP)
        made = Jobs(provision, "direct", LAB)
        for node in NODES:
            provision.ok("lab", "ssh", LAB, node, "--", MAKE_BOARD.replace("IMAGE", made.image))
        yield made
    finally:
        down = provision("lab", "down", LAB)
    assert down.code == 0, str(down)
    assert held(host, "ps", "-aq", "--filter", f"name=provision-{LAB}-") == []


def submitted(jobs, words, **replaced):
    """Hand a document's line in; of its options the image and those that are named are ours."""
    ours = {"image": jobs.image, **replaced}
    for option, value in ours.items():
        words = [f"--{option}={value}" if word.startswith(f"--{option}=") else word for word in words]
    verb, kind, *rest = words
    return jobs.ok(verb, kind, PYTHON, *rest).err


def on_both(jobs, command):
    """Run a shell command on both nodes."""
    for node in NODES:
        jobs.provision.ok("lab", "ssh", LAB, node, "--", command)


@pytest.mark.row(2, 4, 5, 6, 10, 11, 13, 14, 15, 16, 17, 18, 19, 20, 38)
@pytest.mark.parametrize("model", ["vgg16", "resnet50"])
def test_topology_aware_and_default_training_match_the_reference_document(jobs, model):
    """Each model's two jobs by their own lines; `get` and `logs -f` print what the document shows."""
    label = ("node label", NODES[1])
    jobs.ok(*label, "ack.node.gpu.schedule=topology", *(["--overwrite"] if model != "vgg16" else []))
    on_both(jobs, "rm -f /srv/examples/go")
    aware, plain = (
        next(words for words in commands(ACK) if f"--name={name}" in words)
        for name in (f"pytorch-topo-4-{model}", f"pytorch-4-{model}")
    )
    for words in (aware, plain):
        submitted(jobs, [*words[:2], *AS_THERE, *words[2:]])
    for name, node in ((f"pytorch-topo-4-{model}", NODES[1]), (f"pytorch-4-{model}", NODES[0])):
        jobs.until(name, "RUNNING")
        shown = jobs.ok("get", name, "--type", "mpijob").out.replace(node, "NODE").splitlines()
        assert shape(shown) == shape(expected(ACK, f"arena get {name} --type mpijob"))
    chosen = {gpu for place in jobs.get(f"pytorch-topo-4-{model}")["placement"] for gpu in place["gpus"]}
    assert chosen in QUADS

    on_both(jobs, "touch /srv/examples/go")
    for name in (f"pytorch-topo-4-{model}", f"pytorch-4-{model}"):
        assert shape(jobs.ok("logs", "-f", name).out.splitlines()) == shape(expected(ACK, f"arena logs -f {name}"))
    jobs.ok(*label, "ack.node.gpu.schedule=default", "--overwrite")


@pytest.mark.row(11, 13, 21, 22, 23, 25, 26, 27, 28, 29, 33, 34, 36, 37, 39, 40, 43)
def test_distributed_pytorch_matches_the_reference_document(jobs, tmp_path):
    """Each command of the page, from `top node` to `logs -t 5`, with the page's layout."""
    repository = tmp_path / "mnist-pytorch.git"
    repository.mkdir()
    git(repository, "init", "-q")
    commit(repository, "mnist.py", MNIST)
    jobs.ok("data add", "training-data", "--path", "/srv/nas")
    head, volume = shape(jobs.ok("data list").out.splitlines())
    assert head == "NAME ACCESSMODE DESCRIPTION OWNER AGE"
    assert re.fullmatch(r"training-data ReadWriteOnce \S+ AGE", volume)
    alike(jobs, "top node", footer=("--", "Allocated/Total GPUs In Cluster:", "0/16 (0%)"))

    words = next(words for words in commands(ARENA) if "--name=pytorch-dist" in words)
    said = submitted(jobs, [*words[:2], f"--tensorboard-image={BOARD}", *words[2:]], **{"sync-source": repository})
    assert re.search(r"^INFO\[\d{4}\] The Job pytorch-dist has been submitted successfully$", said, re.MULTILINE)
    assert f"You can run `provision get pytorch-dist --type pytorchjob --lab {LAB}` to check the job status" in said
    jobs.until("pytorch-dist", "RUNNING")
    alike(jobs, "list")
    alike(jobs, "top job", footer=("Total Requested GPUs of Training Job:", None))
    alike(jobs, "top node", footer=("Allocated/Total GPUs In Cluster:", "3/16 (18%)"))

    on_both(jobs, "touch /srv/nas/pytorch_data/go")
    documented = shape(expected(ARENA, "arena logs pytorch-dist"))
    followed = jobs.ok("logs", "-f", "pytorch-dist").out.splitlines()
    assert shape(followed) == [documented[0], *documented[-5:]]
    assert jobs.logs("pytorch-dist", "pytorch-dist-worker-0")[0] == "WORLD_SIZE: 3, CURRENT_RANK: 1"
    last = jobs.ok("logs", "pytorch-dist", "-t", "5").out.splitlines()
    assert len(last) == 5
    assert shape(last) == shape(expected(ARENA, "arena logs pytorch-dist -t 5"))
    shown = shape(jobs.ok("get", "pytorch-dist").out.splitlines())
    assert shown[-2] == shape(expected(ARENA, "arena get pytorch-dist"))[-2]
    assert re.fullmatch(r"http://ADDRESS:\d+", shown[-1])


def alike(jobs, command, *, footer=()):
    """The document's header, its row of the job, and what stands below; None stands for any figure."""
    shown = shape(jobs.ok(command).out.splitlines())
    documented = shape(expected(ARENA, f"arena {command}"))

    assert shown[0] == documented[0]
    assert [line for line in shown if line.startswith("pytorch-dist ")] == [
        line for line in documented if line.startswith("pytorch-dist ")
    ]
    if footer:
        below = shown[-len(footer) :]
        assert [line if wanted else None for line, wanted in zip(below, footer, strict=True)] == list(footer)
        assert [line for line in documented if line in footer] == [line for line in footer if line in documented]
