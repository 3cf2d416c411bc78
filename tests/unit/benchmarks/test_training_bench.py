"""Our own synthetic training benchmark: what it prints, and how it finds its place in a job."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import socket
import subprocess
import sys
import types
from pathlib import Path

import pytest

import provision.benchmarks
from provision.benchmarks import parse
from tests.support.benchmark import document, outputs_in, rendered

PROGRAM = Path(provision.benchmarks.__file__).parent / "files" / "provision_training_bench.py"
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
OPEN_MPI = {f"OMPI_COMM_WORLD_{name}": "1" for name in ("RANK", "LOCAL_RANK")} | {
    f"OMPI_COMM_WORLD_{name}": "2" for name in ("SIZE", "LOCAL_SIZE")
}


@pytest.fixture(scope="module")
def bench():
    """Load the program as a module; it imports torch only when it trains."""
    spec = importlib.util.spec_from_file_location("provision_training_bench", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def printed(bench, speeds, *words, size=4, device="GPU"):
    """Return what the program prints when its iterations are as fast as said, and how many steps it trained."""
    options = bench.arguments([*words, f"--num-iters={len(speeds)}"])
    images = options.batch_size * options.num_batches_per_iter
    moments = iter([moment for speed in speeds for moment in (0.0, images / speed)])
    lines, steps = bench.header(options, size, device), []
    bench.measure(steps.append, options, size, device, lines.append, lambda: next(moments))
    return "\n".join(lines) + "\n", steps


@pytest.mark.row(19)
def test_it_prints_the_documented_form_to_the_letter(bench):
    """As scripts expect that read the outputs of the programs that vendors' guides use."""
    text, steps = printed(bench, [330.0, 331.0, 329.0], "--model=vgg16", "--batch-size=64", "--num-warmup-batches=7")

    assert text == rendered(model="vgg16", batch=64, gpus=4, band=1.6, iterations=[330.0, 331.0, 329.0])
    assert steps == [7, 10, 10, 10]


@pytest.mark.parametrize("number", range(4))
def test_its_mean_and_band_are_those_of_the_recorded_outputs(bench, number):
    """From the recorded iterations follow the recorded results, as far as these were rounded."""
    recorded = parse(outputs_in(document("ack-topology-aware-scheduling-zh.txt"))[number])[0][0]
    (mine,), _ = parse(printed(bench, recorded.iterations, size=recorded.gpus)[0])

    assert mine.img_per_sec_per_gpu == pytest.approx(recorded.img_per_sec_per_gpu, abs=0.11)
    assert mine.plus_minus == pytest.approx(recorded.plus_minus, abs=0.11)
    assert mine.total == pytest.approx(recorded.total, abs=0.41)
    assert mine.total_plus_minus == pytest.approx(recorded.total_plus_minus, abs=0.41)


def test_on_cpus_it_counts_cpus(bench):
    """No figure of a CPU is taken for a GPU's."""
    (run,), _ = parse(printed(bench, [3.0, 3.5], size=2, device="CPU")[0])

    assert (run.device, run.gpus, run.total) == ("CPU", 2, 6.5)


def test_it_finds_its_place_among_the_ranks(bench):
    """By torchrun's variables or Open MPI's; with neither it is alone, also where a node has a rank of its own."""
    assert bench.place(TORCHRUN) == (5, 8, 1, 4)
    assert bench.place(OPEN_MPI) == (1, 2, 1, 2)
    assert bench.place({"RANK": "1", "WORLD_SIZE": "2", **OPEN_MPI}) == (1, 2, 1, 2)
    assert bench.place({"RANK": "1", "WORLD_SIZE": "2"}) == bench.place({}) == (0, 1, 0, 1)
    for odd in ("x", "-1", "8", ""):
        with pytest.raises(bench.Unusable, match="RANK"):
            bench.place(TORCHRUN | {"RANK": odd})


def test_the_ranks_use_the_given_rendezvous_address(bench):
    """On one node nobody needs to tell; on several it is refused with what to do."""
    several = bench.place(TORCHRUN)

    assert bench.master({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"}, several) == ("10.0.0.1", 1234)
    assert bench.master({}, bench.place(OPEN_MPI)) == ("127.0.0.1", bench.MASTER_PORT)
    with pytest.raises(bench.Unusable, match="MASTER_ADDR is not set"):
        bench.master({}, several)
    with pytest.raises(bench.Unusable, match="MASTER_PORT"):
        bench.master({"MASTER_PORT": "ssh"}, several)


def test_horovod_is_taken_where_mpirun_started_it_and_it_is_there(bench):
    """Else PyTorch's own exchange; what was asked for by name and is not there is refused."""
    assert bench.exchange("auto", OPEN_MPI, horovod=True) == "horovod"
    assert bench.exchange("auto", OPEN_MPI, horovod=False) == "ddp"
    assert bench.exchange("auto", TORCHRUN, horovod=True) == "ddp"
    assert bench.exchange("ddp", OPEN_MPI, horovod=True) == "ddp"
    with pytest.raises(bench.Unusable, match="no Horovod"):
        bench.exchange("horovod", OPEN_MPI, horovod=False)


def test_each_rank_has_a_gpu_of_its_own(bench):
    """Two ranks on one GPU would measure something else."""
    where = bench.Place(5, 8, 1, 4)

    assert bench.gpu_index(where, 4, {}) == 1
    assert bench.gpu_index(where, 1, {"CUDA_VISIBLE_DEVICES": "3"}) == 0
    for count, environ in ((1, {}), (2, {}), (0, {}), (3, {"CUDA_VISIBLE_DEVICES": "0,1,2"})):
        with pytest.raises(bench.Unusable, match=f"torch sees {count} GPUs"):
            bench.gpu_index(where, count, environ)


def test_the_interface_of_an_address_is_detected(bench):
    """By name, as gloo wants it; nothing is guessed for what has none."""
    names = {name for _, name in socket.if_nameindex()}

    assert bench.interface_of("127.0.0.1") == "lo"
    assert bench.interface_of("192.0.2.1") in {None, *names}
    assert bench.interface_of("no such host.") is None


def test_it_tells_the_variables_that_count_and_no_others(bench):
    """What a preset or an image set is seen where it acts; nothing that may be a secret is told."""
    environ = {"NCCL_ALGO": "Ring", "LIGHT_INTRA_SIZE": "8", "WANDB_API_KEY": "hunter2", "HOME": "/root"}

    assert bench.told_variables(environ) == {"LIGHT_INTRA_SIZE": "8", "NCCL_ALGO": "Ring"}


@pytest.mark.parametrize("words", [["--batch-size=0"], ["--num-iters=x"], ["--device=tpu"], ["--frobnicate"]])
def test_wrong_options_are_refused(bench, capsys, words):
    """Before anything is trained."""
    with pytest.raises(SystemExit) as stopped:
        bench.arguments(words)

    assert stopped.value.code == 2
    assert words[0].partition("=")[0] in capsys.readouterr().err


@pytest.mark.row(56)
def test_any_model_of_torchvision_is_trained(bench, monkeypatch):
    """By its name there; what is no model is refused with names that are."""
    zoo = types.ModuleType("torchvision")
    zoo.__version__, zoo.__spec__ = "0.19", importlib.util.spec_from_loader("torchvision", None)
    zoo.models = types.SimpleNamespace(densenet121=lambda: "a densenet", ResNet=object)
    monkeypatch.setitem(sys.modules, "torchvision", zoo)
    torch = types.SimpleNamespace(nn=None)

    assert bench._model(torch, "densenet121", 224) == "a densenet"
    for name in ("nonsense", "ResNet"):
        with pytest.raises(bench.Unusable, match=f"no model {name}"):
            bench._model(torch, name, 224)


def test_pythons_of_older_images_read_it():
    """An image of the reference has Python 3.8."""
    assert ast.parse(PROGRAM.read_text(encoding="utf-8"), feature_version=(3, 8))


def test_without_torch_it_says_what_is_missing():
    """One sentence, no traceback."""
    ended = subprocess.run([sys.executable, "-I", "-S", PROGRAM], capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        "provision-training-bench: there is no torch for this python3; use a training image with PyTorch\n"
    )


@pytest.fixture(scope="module")
def torch_python():
    """Return a Python that has torch."""
    look = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
    for python in (sys.executable, "/usr/bin/python3"):
        if Path(python).exists() and subprocess.run([python, "-c", look], check=False).returncode == 0:
            return python
    return pytest.skip("no Python on this machine has torch")


def test_two_ranks_train_together(torch_python):
    """On CPUs, started as mpirun would: the first rank alone prints, and what it prints is a result of two."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = ["--model=mlp", "--image-size=8", "--batch-size=4", "--num-iters=3", "--device=cpu", "--about"]
    ranks = [
        subprocess.Popen(
            [torch_python, PROGRAM, *words],
            env={
                **os.environ,
                **OPEN_MPI,
                "OMPI_COMM_WORLD_RANK": rank,
                "OMPI_COMM_WORLD_LOCAL_RANK": rank,
                "MASTER_PORT": port,
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    said = [rank.communicate(timeout=120) for rank in ranks]

    assert [rank.returncode for rank in ranks] == [0, 0], said
    (run,), _ = parse(said[0][0])
    assert (run.model, run.batch, run.gpus, run.device, len(run.iterations)) == ("mlp", 4, 2, "CPU", 3)
    assert json.loads(said[0][0].splitlines()[0].removeprefix("About: "))["exchange"] == "ddp"
    assert said[1][0] == ""
