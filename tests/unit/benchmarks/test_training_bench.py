"""Our synthetic training benchmark: its output, and its position in a job."""

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
from tests.support.benchmark import rendered

PROGRAM = Path(provision.benchmarks.__file__).parent / "files" / "provision_training_bench.py"
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
OPEN_MPI = {f"OMPI_COMM_WORLD_{name}": "1" for name in ("RANK", "LOCAL_RANK")} | {
    f"OMPI_COMM_WORLD_{name}": "2" for name in ("SIZE", "LOCAL_SIZE")
}


@pytest.fixture(scope="module")
def bench():
    """Load the program as a module; it imports torch only to train."""
    spec = importlib.util.spec_from_file_location("provision_training_bench", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def printed(bench, speeds, *words, size=4, device="GPU"):
    """Return the program's output for iterations of a given speed, and the number of steps."""
    options = bench.arguments([*words, f"--num-iters={len(speeds)}"])
    images = options.batch_size * options.num_batches_per_iter
    moments = iter([moment for speed in speeds for moment in (0.0, images / speed)])
    lines, steps = bench.header(options, size, device), []
    bench.measure(steps.append, options, size, device, lines.append, lambda: next(moments))
    return "\n".join(lines) + "\n", steps


@pytest.mark.row(19)
def test_the_output_has_the_documented_format(bench):
    text, steps = printed(bench, [330.0, 331.0, 329.0], "--model=vgg16", "--batch-size=64", "--num-warmup-batches=7")

    assert text == rendered(model="vgg16", batch=64, gpus=4, band=1.6, iterations=[330.0, 331.0, 329.0])
    assert steps == [7, 10, 10, 10]


def test_mean_and_band_are_those_of_the_iterations(bench):
    """The mean of all iterations, and 1.96 times their standard deviation."""
    (run,), _ = parse(printed(bench, [100.0, 104.0], size=4)[0])

    assert (run.img_per_sec_per_gpu, run.plus_minus, run.total) == (102.0, 3.9, 408.0)
    assert run.total_plus_minus == pytest.approx(15.7, abs=0.1)


def test_on_cpus_it_counts_cpus(bench):
    (run,), _ = parse(printed(bench, [3.0, 3.5], size=2, device="CPU")[0])

    assert (run.device, run.gpus, run.total) == ("CPU", 2, 6.5)


def test_the_rank_comes_from_the_variables_of_the_launcher(bench):
    """From torchrun's variables or Open MPI's; without them it is a single process."""
    assert bench.place(TORCHRUN) == (5, 8, 1, 4)
    assert bench.place(OPEN_MPI) == (1, 2, 1, 2)
    assert bench.place({"RANK": "1", "WORLD_SIZE": "2", **OPEN_MPI}) == (1, 2, 1, 2)
    assert bench.place({"RANK": "1", "WORLD_SIZE": "2"}) == bench.place({}) == (0, 1, 0, 1)
    for odd in ("x", "-1", "8", ""):
        with pytest.raises(bench.Unusable, match="RANK"):
            bench.place(TORCHRUN | {"RANK": odd})


def test_the_master_address_comes_from_the_environment(bench):
    several = bench.place(TORCHRUN)

    assert bench.master({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"}, several) == ("10.0.0.1", 1234)
    assert bench.master({}, bench.place(OPEN_MPI)) == ("127.0.0.1", bench.MASTER_PORT)
    with pytest.raises(bench.Unusable, match="MASTER_ADDR is not set"):
        bench.master({}, several)
    with pytest.raises(bench.Unusable, match="MASTER_PORT"):
        bench.master({"MASTER_PORT": "ssh"}, several)


def test_horovod_is_used_if_installed_and_started_by_mpirun(bench):
    assert bench.exchange("auto", OPEN_MPI, horovod=True) == "horovod"
    assert bench.exchange("auto", OPEN_MPI, horovod=False) == "ddp"
    assert bench.exchange("auto", TORCHRUN, horovod=True) == "ddp"
    assert bench.exchange("ddp", OPEN_MPI, horovod=True) == "ddp"
    with pytest.raises(bench.Unusable, match="Horovod is not in this image"):
        bench.exchange("horovod", OPEN_MPI, horovod=False)


def test_each_rank_has_its_own_gpu(bench):
    where = bench.Place(5, 8, 1, 4)

    assert bench.gpu_index(where, 4, {}) == 1
    assert bench.gpu_index(where, 1, {"CUDA_VISIBLE_DEVICES": "3"}) == 0
    for count, environ in ((1, {}), (2, {}), (0, {}), (3, {"CUDA_VISIBLE_DEVICES": "0,1,2"})):
        with pytest.raises(bench.Unusable, match=f"torch finds {count} GPUs"):
            bench.gpu_index(where, count, environ)


def test_the_interface_of_an_address_is_returned(bench):
    """gloo needs the interface's name."""
    names = {name for _, name in socket.if_nameindex()}

    assert bench.interface_of("127.0.0.1") == "lo"
    assert bench.interface_of("192.0.2.1") in {None, *names}
    assert bench.interface_of("no such host.") is None


def test_only_relevant_variables_are_printed(bench):
    environ = {"NCCL_ALGO": "Ring", "LIGHT_INTRA_SIZE": "8", "WANDB_API_KEY": "hunter2", "HOME": "/root"}

    assert bench.relevant_variables(environ) == {"LIGHT_INTRA_SIZE": "8", "NCCL_ALGO": "Ring"}


@pytest.mark.parametrize("words", [["--batch-size=0"], ["--num-iters=x"], ["--device=tpu"], ["--frobnicate"]])
def test_invalid_options_are_refused(bench, capsys, words):
    with pytest.raises(SystemExit) as stopped:
        bench.arguments(words)

    assert stopped.value.code == 2
    assert words[0].partition("=")[0] in capsys.readouterr().err


@pytest.mark.row(56)
def test_any_model_of_torchvision_is_trained(bench, monkeypatch):
    zoo = types.ModuleType("torchvision")
    zoo.__version__, zoo.__spec__ = "0.19", importlib.util.spec_from_loader("torchvision", None)
    zoo.models = types.SimpleNamespace(densenet121=lambda: "a densenet", ResNet=object)
    monkeypatch.setitem(sys.modules, "torchvision", zoo)
    torch = types.SimpleNamespace(nn=None)

    assert bench._model(torch, "densenet121", 224) == "a densenet"
    for name in ("nonsense", "ResNet"):
        with pytest.raises(bench.Unusable, match=f"no model {name}"):
            bench._model(torch, name, 224)


def test_the_program_is_valid_python_3_8():
    assert ast.parse(PROGRAM.read_text(encoding="utf-8"), feature_version=(3, 8))


def test_a_missing_torch_is_reported():
    ended = subprocess.run([sys.executable, "-I", "-S", PROGRAM], capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        "provision-training-bench: torch is not installed for this python3; use a training image with PyTorch\n"
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
    """Two CPU ranks, started as mpirun does: only the first prints the result of both."""
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
