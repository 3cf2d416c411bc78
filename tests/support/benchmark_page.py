"""Results for a report page: two that scale, one of them SIMULATED, and one that was read from a file."""

from __future__ import annotations

from provision.benchmarks import NodeInfo, Record, Run

__all__ = ["ABOUT", "page_results"]

ABOUT = {"generated": "2026-11-22T10:03:11Z", "version": "0.1.0", "title": "Two <nodes> & \x1b more"}
_STAND_IN = "nvidia-smi: eight described cards"


def page_results() -> tuple[list[Run], list[Record]]:
    """Return runs, and the records that some of them are of."""
    records = [
        _record(name, gpus, speed, simulated=name == "stand-ins")
        for name, speeds in (("plain", (100.0, 98.0, 95.0)), ("stand-ins", (50.0, 30.0, 20.0)))
        for gpus, speed in zip((1, 8, 16), speeds, strict=True)
    ]
    runs = [run for record in records for run in record.runs]
    runs.append(Run("a file <of> mine.log", None, None, 16, 12.5, None, 200.0))
    runs.append(Run("nothing.log", "vgg16", 64, 8, 0.0, 0.0, 0.0, 0.0))
    return runs, records


def _record(name: str, gpus: int, speed: float, *, simulated: bool) -> Record:
    stand_ins = (_STAND_IN,) if simulated else ()
    nodes = tuple(
        NodeInfo(f"gpu{number}", min(gpus, 8), "8x NVIDIA A100", "535.1", fabric=("mlx5_0 200 Gb/sec",), image="r/t:1")
        for number in range((gpus + 7) // 8)
    )
    nodes = tuple(NodeInfo(**{**vars(node), "simulated": stand_ins}) for node in nodes)
    iterations = tuple(speed + wobble for wobble in (-0.4, 0.0, 0.4, 0.1, -0.1))
    run = Run(name, "resnet50", 64, gpus, speed, 0.6, speed * gpus, 0.6 * gpus, iterations, simulated=simulated)
    return Record(
        id=f"20261122-10031112{gpus}-{name[:2]}",
        name=name,
        started="2026-11-22T10:03:11Z",
        seconds=61.5,
        user="alice",
        host="ops1",
        command="python3 bench.py --model '<resnet50>'",
        options="--preset taco --gdr",
        environment={"NCCL_ALGO": "Ring", "WANDB_API_KEY": None},
        nodes=nodes,
        about={"torch": "2.4.0", "cuda": None, "environment": {"NCCL_NET_GDR_LEVEL": "2"}},
        runs=(run,),
    )
