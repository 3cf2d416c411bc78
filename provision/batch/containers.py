"""The words of ``docker create`` for the containers of a job: what RDMA and GPUs need, and no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from provision.batch.mpi import KEYS, MOUNT
from provision.model.job import JobSpec, Kind, Seat

__all__ = ["NodeHardware", "create_words", "program_words"]

CAPABILITIES = ("IPC_LOCK", "SYS_NICE", "SYS_PTRACE")
DROPPED = ("MKNOD", "NET_RAW")
ULIMITS: Mapping[str, int] = {"memlock": -1, "nofile": 1048576, "stack": 67108864}
"""-1: none. facts of the cards' makers: registered memory is locked, and MPI opens many files."""


@dataclass(frozen=True)
class NodeHardware:
    """What a container can be given on a node."""

    devices: tuple[str, ...] = ()
    """Device files of the RDMA cards that carry jobs' data."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """The most that the node itself has, where that is less than no limit."""


def create_words(  # noqa: PLR0913 - docker's options are many
    spec: JobSpec,
    inside: Sequence[Seat],
    image: str,
    *,
    labels: Mapping[str, str],
    hardware: NodeHardware,
    folder: str,
    mounts: Sequence[str] = (),
    ipc_of: str = "",
    entry: Sequence[str] = (),
) -> list[str]:
    """Return the words after ``docker create``, the environment aside, which goes by a file.

    Args:
        spec: the job.
        inside: the instances that live in it.
        image: its image, by digest or id.
        labels: by which the container is found again.
        hardware: what the node has.
        folder: the attempt's folder on the node.
        mounts: of data and code, ``/source:/target[:ro]``.
        ipc_of: a container of the same job on the node, whose shared memory it uses.
        entry: the command.
    """
    words = ["--name", inside[0].container, "--network", "host", "--init", "--restart", "no", "--stop-timeout", "15"]
    words += ["--log-driver", "json-file", "--log-opt", "max-size=100g"]
    words += ["--ipc", f"container:{ipc_of}"] if ipc_of else ["--ipc", "shareable", "--shm-size", spec.share_memory]
    for name, value in labels.items():
        words += ["--label", f"{name}={value}"]
    words += _rights(spec, hardware)
    words += _gpus(inside)
    for mount in (f"{folder}/mount:{MOUNT}:ro", *_keys(spec, folder), *mounts, *spec.mounts):
        words += ["--volume", mount]
    words += ["--workdir", spec.working_dir]
    if spec.user:
        account, _, groups = spec.user.partition(",")
        words += ["--user", account]
        for group in filter(None, groups.split(",")):
            words += ["--group-add", group]
    if entry:
        words += ["--entrypoint", entry[0]]
    return [*words, image, *entry[1:]]


def _keys(spec: JobSpec, folder: str) -> list[str]:
    return [f"{folder}/ssh:{KEYS}:ro"] if spec.kind is Kind.MPI else []


def _rights(spec: JobSpec, hardware: NodeHardware) -> list[str]:
    if spec.privileged:
        return ["--privileged", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]
    words: list[str] = []
    asked = {name: int(value) if value.lstrip("-").isdecimal() else value for name, value in spec.ulimits.items()}
    for name, wanted in {**ULIMITS, **asked}.items():
        most = hardware.limits.get(name)
        cut = most is not None and isinstance(wanted, int) and (wanted < 0 or wanted > most)
        words += ["--ulimit", f"{name}={most if cut else wanted}"]
    for name in CAPABILITIES:
        words += ["--cap-add", name]
    for name in DROPPED:
        words += ["--cap-drop", name]
    if spec.rdma:
        for device in hardware.devices:
            words += ["--device", device]
    return words


def _gpus(inside: Sequence[Seat]) -> list[str]:
    uuids = [uuid for seat in inside for uuid in seat.uuids]
    return ["--gpus", '"device=' + ",".join(uuids) + '"'] if uuids else []


def program_words(spec: JobSpec) -> tuple[str, ...]:
    """Return the command of an instance of pytorch or run: the user's line, or the launcher around it."""
    shell = (spec.shell, "-c")
    if spec.launcher == "torchrun" or (not spec.launcher and spec.nproc_per_node and len(spec.command) > 1):
        return ("torchrun", *spec.command) if len(spec.command) > 1 else (*shell, f"torchrun {spec.command[0]}")
    if spec.launcher == "launch":
        line = (
            'python3 -m torch.distributed.launch --nproc_per_node="$PET_NPROC_PER_NODE" --nnodes="$PET_NNODES" '
            '--node_rank="$PET_NODE_RANK" --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" '
        )
        if len(spec.command) == 1:
            return (*shell, line + spec.command[0])
        return (*shell, line + '"$@"', spec.shell, *spec.command)
    return (*shell, spec.command[0]) if len(spec.command) == 1 else spec.command
