#!/usr/bin/env python3
"""Train a model on synthetic images and print the images per second.

Start it once for each GPU (or CPU process) with mpirun or torchrun. Gradients are exchanged by Horovod, or by
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
"""Time limit for missing ranks."""
RELEVANT_PREFIXES = ("NCCL_", "HOROVOD_", "LIGHT_", "GLOO_", "UCX_", "OMP_", "MKL_", "CUDA_", "TORCH_")
"""Prefixes of variables that affect the speed of training."""
_IMAGE_SIZES = {"inception_v3": 299}
_SIOCGIFADDR = 0x8915


class Place(NamedTuple):
    """The position of this process in the job."""

    rank: int
    size: int
    local_rank: int
    """Among the processes of the same node."""
    local_size: int


class Unusable(Exception):
    """The benchmark cannot run; the text contains cause and remedy."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    options = arguments(words)
    try:
        return _benchmark(options, place(os.environ))
    except Unusable as error:
        sys.stderr.write(f"provision-training-bench: {error}\n")
        return 1


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the options; argparse exits if they are invalid."""
    parser = argparse.ArgumentParser(
        prog="provision-training-bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", default="resnet50", help="a torchvision model, or the built-in convnet or mlp [resnet50]")
    add("--batch-size", type=_count, default=32, help="images per step and process [32]")
    add("--num-warmup-batches", type=_count, default=10, help="steps before the measurement [10]")
    add("--num-batches-per-iter", type=_count, default=10, help="steps per measured iteration [10]")
    add("--num-iters", type=_count, default=10, help="measured iterations [10]")
    add("--image-size", type=_count, help="pixels per side [224, or what the model needs]")
    add("--device", choices=("auto", "cuda", "cpu"), default="auto", help="auto: a GPU if torch finds one")
    add("--backend", choices=("auto", "horovod", "ddp"), default="auto", help="auto: Horovod if started by mpirun")
    add("--about", action="store_true", help="first print a line of JSON with versions and the device")
    return parser.parse_args(words)


def place(environ: Mapping[str, str]) -> Place:
    """Return this process's position from the variables of torchrun or Open MPI; a single process without them.

    Raises:
        Unusable: The variables are invalid.
    """
    for names in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    ):
        if all(name in environ for name in names):
            values = [environ[name] for name in names]
            if not all(text.isdigit() for text in values):
                raise Unusable(f"{', '.join(names)} must be numbers: {', '.join(values)}")
            position = Place(*map(int, values))
            if position.rank >= position.size or position.local_rank >= position.local_size:
                raise Unusable(f"{', '.join(names)} contradict each other: {', '.join(values)}")
            return position
    return Place(0, 1, 0, 1)


def master(environ: Mapping[str, str], where: Place) -> tuple[str, int]:
    """Return address and port of the first rank.

    Raises:
        Unusable: The address is not set, and the ranks are on several nodes.
    """
    port = environ.get("MASTER_PORT", str(MASTER_PORT))
    if not port.isdigit():
        raise Unusable(f"MASTER_PORT must be a number: {port}")
    if environ.get("MASTER_ADDR"):
        return environ["MASTER_ADDR"], int(port)
    if where.local_size == where.size:
        return "127.0.0.1", int(port)
    raise Unusable(
        "MASTER_ADDR is not set: pass all ranks the address of the first rank's node (mpirun -x MASTER_ADDR)"
    )


def relevant_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of this rank that affect the speed of training."""
    return {name: environ[name] for name in sorted(environ) if name.startswith(RELEVANT_PREFIXES)}


def exchange(requested: str, environ: Mapping[str, str], *, horovod: bool) -> str:
    """Return ``horovod`` or ``ddp``; `horovod` is whether it is installed.

    Raises:
        Unusable: Horovod is requested but not installed.
    """
    if requested == "horovod" and not horovod:
        raise Unusable("Horovod is not in this image; use --backend ddp")
    if requested != "auto":
        return requested
    return "horovod" if horovod and "OMPI_COMM_WORLD_RANK" in environ else "ddp"


def gpu_index(where: Place, count: int, environ: Mapping[str, str]) -> int:
    """Return this rank's index among the `count` GPUs of torch.

    Raises:
        Unusable: The node has more ranks than GPUs.
    """
    if count == 1 and "," not in environ.get("CUDA_VISIBLE_DEVICES", ","):
        return 0  # the launcher already assigned one GPU to each rank
    if where.local_size > count:
        raise Unusable(f"{where.local_size} ranks on {socket.gethostname()}, but torch finds {count} GPUs there")
    return where.local_rank


def header(options: argparse.Namespace, size: int, device: str) -> list[str]:
    """Return the first lines; `device` is ``GPU`` or ``CPU``."""
    return [f"Model: {options.model}", f"Batch size: {options.batch_size}", f"Number of {device}s: {size}"]


def measure(
    train: Callable[[int], None],
    options: argparse.Namespace,
    size: int,
    device: str,
    print_line: Callable[[str], None],
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Warm up, measure, and print the result; `train` runs a number of steps and returns when they are done.

    The measurement of this rank stands for all, because they wait for each other in each step.
    """
    print_line("Running warmup...")
    train(options.num_warmup_batches)
    print_line("Running benchmark...")
    speeds = []
    for number in range(options.num_iters):
        begin = clock()
        train(options.num_batches_per_iter)
        speeds.append(options.batch_size * options.num_batches_per_iter / (clock() - begin))
        print_line(f"Iter #{number}: {speeds[-1]:.1f} img/sec per {device}")
    mean = sum(speeds) / len(speeds)
    band = 1.96 * (sum((speed - mean) ** 2 for speed in speeds) / len(speeds)) ** 0.5
    print_line(f"Img/sec per {device}: {mean:.1f} +-{band:.1f}")
    print_line(f"Total img/sec on {size} {device}(s): {size * mean:.1f} +-{size * band:.1f}")


def interface_of(address: str) -> str | None:
    """Return the interface of the route to `address`; None if unknown."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(address, 9, socket.AF_INET, socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)  # a datagram socket: nothing is sent
            own = probe.getsockname()[0]
            return next((name for _, name in socket.if_nameindex() if _address(probe, name) == own), None)
    except OSError:
        return None


def _address(probe: socket.socket, interface: str) -> str | None:
    import fcntl

    try:
        reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface[:15].encode()))
    except OSError:
        return None
    return socket.inet_ntoa(reply[20:24])


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _benchmark(options: argparse.Namespace, where: Place) -> int:
    if importlib.util.find_spec("torch") is None:
        raise Unusable("torch is not installed for this python3; use a training image with PyTorch")
    try:
        import torch  # type: ignore[import-not-found]
    except (ImportError, OSError) as error:
        raise Unusable(f"torch cannot be loaded: {error}") from error

    by = exchange(options.backend, os.environ, horovod=importlib.util.find_spec("horovod") is not None)
    hvd = _horovod() if by == "horovod" else None
    where = Place(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) if hvd else where
    device = _device(torch, options.device, where)
    if not hvd and where.size > 1:
        _gather(torch, device, where)
    train = _trainer(torch, options, device, hvd, where)
    print_line = _print_line if where.rank == 0 else _nothing
    kind = "GPU" if device.type == "cuda" else "CPU"
    if options.about:
        print_line("About: " + json.dumps(_about(torch, device, by if where.size > 1 or hvd else "none")))
    for line in header(options, where.size, kind):
        print_line(line)
    measure(train, options, where.size, kind, print_line)
    if not hvd and where.size > 1:
        torch.distributed.destroy_process_group()
    return 0


def _nothing(_line: str) -> None:
    """Print nothing: only the first rank prints."""


def _horovod() -> Any:
    import horovod.torch as hvd  # type: ignore[import-not-found]

    hvd.init()
    return hvd


def _device(torch: Any, requested: str, where: Place) -> Any:
    if requested == "cpu" or (requested == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise Unusable("torch finds no GPU; use --device cpu")
    device = torch.device("cuda", gpu_index(where, torch.cuda.device_count(), os.environ))
    torch.cuda.set_device(device)
    return device


def _gather(torch: Any, device: Any, where: Place) -> None:
    address, port = master(os.environ, where)
    if device.type == "cpu" and "GLOO_SOCKET_IFNAME" not in os.environ:
        interface = interface_of(address)  # else gloo uses the host name's interface, on Debian 127.0.1.1
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
            output = model(images)
            output = getattr(output, "logits", output)  # some models also return auxiliary outputs
            torch.nn.functional.cross_entropy(output, labels).backward()
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
        raise Unusable(f"{name} needs torchvision, which is not in this image; built in: {', '.join(BUILT_IN)}")
    import torchvision  # type: ignore[import-not-found]

    make = getattr(torchvision.models, name, None)
    if not callable(make) or not name.islower():
        raise Unusable(f"torchvision {torchvision.__version__} has no model {name}; use for example resnet50 or vgg16")
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
        "environment": relevant_variables(os.environ),
    }


if __name__ == "__main__":
    sys.exit(main())
