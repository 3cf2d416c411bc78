#!/usr/bin/env python3
"""Train a model on made-up images and print how many a second pass through.

Started once for each GPU (or CPU process), by mpirun or by torchrun; the gradients are exchanged by Horovod, or by
PyTorch's own DistributedDataParallel. It needs torch; models other than the two built-in ones need torchvision.

  mpirun -np 8 python3 provision_training_bench.py --model resnet50 --batch-size 256
  torchrun --nproc-per-node 2 provision_training_bench.py --model mlp --device cpu
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.util
import json
import os
import platform
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence  # Python 3.8 is in images of today
from typing import Any, NamedTuple

BUILT_IN = ("convnet", "mlp")
CLASSES = 1000
MASTER_PORT = 29500
GATHERING_MINUTES = 5
"""As long is waited for ranks that do not come."""
TOLD_VARIABLES = ("NCCL_", "HOROVOD_", "LIGHT_", "GLOO_", "UCX_", "OMP_", "MKL_", "CUDA_", "TORCH_")
"""Beginnings of the variables' names that change how fast training is."""
_IMAGE_SIZES = {"inception_v3": 299}
_SIOCGIFADDR = 0x8915


class Place(NamedTuple):
    """Which of the job's processes this one is."""

    rank: int
    size: int
    local_rank: int
    """Among those of the same node."""
    local_size: int


class Unusable(Exception):
    """The benchmark cannot run; the text says why and what to do."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    options = arguments(words)
    try:
        return _benchmark(options, place(os.environ))
    except Unusable as error:
        sys.stderr.write(f"provision-training-bench: {error}\n")
        return 1


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the options; argparse ends the program where they are wrong."""
    parser = argparse.ArgumentParser(
        prog="provision-training-bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", default="resnet50", help="a name of torchvision's, or convnet or mlp, which are built in [resnet50]")
    add("--batch-size", type=_count, default=32, help="images per step and process [32]")
    add("--num-warmup-batches", type=_count, default=10, help="steps before the measurement [10]")
    add("--num-batches-per-iter", type=_count, default=10, help="steps per measured iteration [10]")
    add("--num-iters", type=_count, default=10, help="measured iterations [10]")
    add("--image-size", type=_count, help="pixels of a side [224, or what the model needs]")
    add("--device", choices=("auto", "cuda", "cpu"), default="auto", help="auto: a GPU where torch sees one")
    add("--backend", choices=("auto", "horovod", "ddp"), default="auto", help="auto: Horovod where mpirun started it")
    add("--about", action="store_true", help="first print a line of JSON with versions and the device")
    return parser.parse_args(words)


def place(environ: Mapping[str, str]) -> Place:
    """Read what torchrun or Open MPI tell this process; alone without them.

    Raises:
        Unusable: what they tell makes no sense.
    """
    for names in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    ):
        if all(name in environ for name in names):
            told = [environ[name] for name in names]
            if not all(text.isdigit() for text in told):
                raise Unusable(f"{', '.join(names)} are no numbers: {', '.join(told)}")
            found = Place(*map(int, told))
            if found.rank >= found.size or found.local_rank >= found.local_size:
                raise Unusable(f"{', '.join(names)} make no sense: {', '.join(told)}")
            return found
    return Place(0, 1, 0, 1)


def master(environ: Mapping[str, str], where: Place) -> tuple[str, int]:
    """Return address and port at which the ranks meet.

    Raises:
        Unusable: nobody has said where, and the ranks are on several nodes.
    """
    port = environ.get("MASTER_PORT", str(MASTER_PORT))
    if not port.isdigit():
        raise Unusable(f"MASTER_PORT is no number: {port}")
    if environ.get("MASTER_ADDR"):
        return environ["MASTER_ADDR"], int(port)
    if where.local_size == where.size:
        return "127.0.0.1", int(port)
    raise Unusable("MASTER_ADDR is not set: give all ranks the address of the first one's node (mpirun -x MASTER_ADDR)")


def told_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that this rank was given and that change how fast it trains."""
    return {name: environ[name] for name in sorted(environ) if name.startswith(TOLD_VARIABLES)}


def exchange(wanted: str, environ: Mapping[str, str], *, horovod: bool) -> str:
    """Return ``horovod`` or ``ddp``; `horovod` says whether it is installed.

    Raises:
        Unusable: Horovod is wanted and is not there.
    """
    if wanted == "horovod" and not horovod:
        raise Unusable("there is no Horovod in this image; --backend ddp needs none")
    if wanted != "auto":
        return wanted
    return "horovod" if horovod and "OMPI_COMM_WORLD_RANK" in environ else "ddp"


def gpu_index(where: Place, count: int, environ: Mapping[str, str]) -> int:
    """Return which of the `count` GPUs that torch sees is this rank's own.

    Raises:
        Unusable: there are more ranks on the node than GPUs.
    """
    if count == 1 and "," not in environ.get("CUDA_VISIBLE_DEVICES", ","):
        return 0  # whoever started the ranks has dealt the GPUs out already
    if where.local_size > count:
        raise Unusable(f"{where.local_size} ranks on {socket.gethostname()}, but torch sees {count} GPUs there")
    return where.local_rank


def header(options: argparse.Namespace, size: int, device: str) -> list[str]:
    """Return the first lines; `device` is ``GPU`` or ``CPU``."""
    return [f"Model: {options.model}", f"Batch size: {options.batch_size}", f"Number of {device}s: {size}"]


def measure(
    train: Callable[[int], None],
    options: argparse.Namespace,
    size: int,
    device: str,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Warm up, measure, and say the result; `train` runs so many steps and returns when they are done.

    What this rank measures is taken for every rank's, as they wait for each other in each step.
    """
    say("Running warmup...")
    train(options.num_warmup_batches)
    say("Running benchmark...")
    speeds = []
    for number in range(options.num_iters):
        begin = clock()
        train(options.num_batches_per_iter)
        speeds.append(options.batch_size * options.num_batches_per_iter / (clock() - begin))
        say(f"Iter #{number}: {speeds[-1]:.1f} img/sec per {device}")
    mean = sum(speeds) / len(speeds)
    band = 1.96 * (sum((speed - mean) ** 2 for speed in speeds) / len(speeds)) ** 0.5
    say(f"Img/sec per {device}: {mean:.1f} +-{band:.1f}")
    say(f"Total img/sec on {size} {device}(s): {size * mean:.1f} +-{size * band:.1f}")


def interface_of(address: str) -> str | None:
    """Return the interface by which `address` is reached; None where that cannot be told."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(address, 9, socket.AF_INET, socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as way:
            way.connect(target)  # of a datagram socket: nothing is sent
            own = way.getsockname()[0]
            return next((name for _, name in socket.if_nameindex() if _address(way, name) == own), None)
    except OSError:
        return None


def _address(way: socket.socket, interface: str) -> str | None:
    import fcntl

    try:
        told = fcntl.ioctl(way.fileno(), _SIOCGIFADDR, struct.pack("256s", interface[:15].encode()))
    except OSError:
        return None
    return socket.inet_ntoa(told[20:24])


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _benchmark(options: argparse.Namespace, where: Place) -> int:
    if importlib.util.find_spec("torch") is None:
        raise Unusable("there is no torch for this python3; use a training image with PyTorch")
    try:
        import torch  # type: ignore[import-not-found]
    except (ImportError, OSError) as error:
        raise Unusable(f"torch is there, but cannot be loaded: {error}") from error

    by = exchange(options.backend, os.environ, horovod=importlib.util.find_spec("horovod") is not None)
    hvd = _horovod() if by == "horovod" else None
    where = Place(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) if hvd else where
    device = _device(torch, options.device, where)
    if not hvd and where.size > 1:
        _gather(torch, device, where)
    train = _trainer(torch, options, device, hvd, where)
    say = _say if where.rank == 0 else _nothing
    kind = "GPU" if device.type == "cuda" else "CPU"
    if options.about:
        say("About: " + json.dumps(_about(torch, device, by if where.size > 1 or hvd else "none")))
    for line in header(options, where.size, kind):
        say(line)
    measure(train, options, where.size, kind, say)
    if not hvd and where.size > 1:
        torch.distributed.destroy_process_group()
    return 0


def _nothing(_line: str) -> None:
    """Say nothing: the first rank speaks for all."""


def _horovod() -> Any:
    import horovod.torch as hvd  # type: ignore[import-not-found]

    hvd.init()
    return hvd


def _device(torch: Any, wanted: str, where: Place) -> Any:
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise Unusable("torch sees no GPU; --device cpu measures without")
    device = torch.device("cuda", gpu_index(where, torch.cuda.device_count(), os.environ))
    torch.cuda.set_device(device)
    return device


def _gather(torch: Any, device: Any, where: Place) -> None:
    address, port = master(os.environ, where)
    if device.type == "cpu" and "GLOO_SOCKET_IFNAME" not in os.environ:
        interface = interface_of(address)  # else gloo takes the host name's, on Debian 127.0.1.1
        if interface:
            os.environ["GLOO_SOCKET_IFNAME"] = interface
    torch.distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"tcp://{address}:{port}",
        rank=where.rank,
        world_size=where.size,
        timeout=dt.timedelta(minutes=GATHERING_MINUTES),
    )


def _trainer(torch: Any, options: argparse.Namespace, device: Any, hvd: Any, where: Place) -> Callable[[int], None]:
    side = options.image_size or _IMAGE_SIZES.get(options.model, 224)
    model = _model(torch, options.model, side).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if hvd:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    elif where.size > 1:
        ids = [device.index] if device.type == "cuda" else None
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=ids)
    images = torch.randn(options.batch_size, 3, side, side, device=device)
    labels = torch.randint(0, CLASSES, (options.batch_size,), device=device)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            told = model(images)
            told = getattr(told, "logits", told)  # some models also return their side branches'
            torch.nn.functional.cross_entropy(told, labels).backward()
            optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return train


def _model(torch: Any, name: str, side: int) -> Any:
    nn = torch.nn
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * side * side, 512), nn.ReLU(), nn.Linear(512, CLASSES))
    if name == "convnet":
        layers: list[Any] = []
        for before, after in ((3, 32), (32, 64), (64, 128)):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES))
    if importlib.util.find_spec("torchvision") is None:
        raise Unusable(f"{name} needs torchvision, which is not in this image; built in are {', '.join(BUILT_IN)}")
    import torchvision  # type: ignore[import-not-found]

    make = getattr(torchvision.models, name, None)
    if not callable(make) or not name.islower():
        raise Unusable(f"torchvision {torchvision.__version__} has no model {name}; resnet50 and vgg16 are two of its")
    return make()


def _about(torch: Any, device: Any, by: str) -> dict[str, Any]:
    gpu = device.type == "cuda"
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "exchange": by,
        "device": torch.cuda.get_device_name(device) if gpu else platform.machine(),
        "cuda": torch.version.cuda if gpu else None,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if gpu else None,
        "threads": torch.get_num_threads(),
        "environment": told_variables(os.environ),
    }


if __name__ == "__main__":
    sys.exit(main())
