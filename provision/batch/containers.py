"""The arguments of ``docker create`` for the containers of a job: only the rights that RDMA and GPUs require."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from provision.batch.inference import starts_processes, words_of
from provision.batch.mpi import KEYS, MOUNT
from provision.launchers import DEFAULT_PER_NODE, launcher_of
from provision.model.job import Assignment, JobSpec, Kind

SHARE = "share.py"
"""The program of `MOUNT` that starts copies of a command."""
RUN = "/provision-run"
"""A tmpfs of the job; sessions of sshd read their variables from a file there."""
CAPABILITIES = ("IPC_LOCK", "SYS_NICE", "SYS_PTRACE")
DROPPED = ("MKNOD", "NET_RAW")
"""Of a container that runs as root; one with ``--user`` has only `CAPABILITIES`, and setuid programs have no effect."""
ULIMITS: Mapping[str, int] = {"memlock": -1, "nofile": 1048576, "stack": 67108864}
"""-1: unlimited. Recommended by the card vendors: registered memory is locked, and MPI opens many files."""


@dataclass(frozen=True)
class NodeHardware:
    """Devices and limits that a node can give to containers."""

    devices: tuple[str, ...] = ()
    """Device files of the RDMA cards for the data of jobs."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """The node's own limits, unless they are unlimited."""


def create_words(
    spec: JobSpec,
    inside: Sequence[Assignment],
    image: str,
    *,
    labels: Mapping[str, str],
    hardware: NodeHardware,
    folder: str,
    mounts: Sequence[str] = (),
    entry: Sequence[str] = (),
) -> list[str]:
    """Return the arguments of ``docker create``, without the environment, which is passed in a file."""
    words = ["--name", inside[0].container, "--network", "host", "--init", "--restart", "no", "--stop-timeout", "15"]
    words += ["--log-driver", "json-file", "--log-opt", "max-size=100g"]
    words += ["--ipc", "private", "--shm-size", spec.share_memory]
    for name, value in labels.items():
        words += ["--label", f"{name}={value}"]
    words += rights(spec, hardware)
    words += _gpus(inside)
    for mount in (*own_mounts(spec, folder), *mounts, *spec.mounts):
        words += ["--volume", mount]
    words += ["--workdir", spec.working_dir]
    account, _, groups = spec.user.partition(",")
    if spec.kind is Kind.MPI:
        # Without --user the account is that of the image, which is unknown here; files are created with umask 077.
        words += ["--tmpfs", f"{RUN}:rw,mode={'0700' if account else '1777'}" + _owned(account)]
    if spec.user:
        words += ["--user", account]
        for group in filter(None, groups.split(",")):
            words += ["--group-add", group]
    if entry:
        words += ["--entrypoint", entry[0]]
    return [*words, image, *entry[1:]]


def _owned(account: str) -> str:
    """Return the mount options for the owner ``UID:GID``; without one, root owns the file system."""
    uid, _, gid = account.partition(":")
    return f",uid={uid},gid={gid}" if uid and gid else ""


def own_mounts(spec: JobSpec, folder: str) -> list[str]:
    """Return the mounts of an attempt's own files: first `MOUNT`, then keys, then the submitter's files."""
    mounts = [f"{folder}/mount:{MOUNT}:ro"]
    mounts += [f"{folder}/ssh:{KEYS}:ro"] if spec.kind is Kind.MPI else []
    for index, text in enumerate(spec.config_files):
        mounts.append(f"{folder}/config/{index}:{text.partition(':')[2]}:ro")
    return mounts


def rights(spec: JobSpec, hardware: NodeHardware) -> list[str]:
    """Return the options for limits, capabilities and devices of a container."""
    has_account = spec.user.partition(":")[0] not in {"", "0"}
    words = ["--security-opt", "no-new-privileges"] if has_account else []
    if spec.privileged:
        limits = {"memlock": "-1", "stack": "67108864", **spec.ulimits}
        words += ["--privileged", *(word for name, value in limits.items() for word in ("--ulimit", f"{name}={value}"))]
        return words
    for name, value in limits_of(spec, hardware).items():
        words += ["--ulimit", f"{name}={value}"]
    for name in CAPABILITIES:
        words += ["--cap-add", name]
    for name in ("ALL",) if has_account else DROPPED:
        words += ["--cap-drop", name]
    if spec.rdma:
        for device in hardware.devices:
            words += ["--device", device]
    return words


def limits_of(spec: JobSpec, hardware: NodeHardware) -> dict[str, str]:
    """Return limit -> value, ``-1`` for unlimited: the default and requested ones, reduced to the node's limits."""
    requested = {name: int(value) if value.lstrip("-").isdecimal() else value for name, value in spec.ulimits.items()}
    limits: dict[str, str] = {}
    for name, value in {**ULIMITS, **requested}.items():
        most = hardware.limits.get(name)
        is_reduced = most is not None and isinstance(value, int) and (value < 0 or value > most)
        limits[name] = str(most if is_reduced else value)
    return limits


def _gpus(inside: Sequence[Assignment]) -> list[str]:
    uuids = [uuid for assignment in inside for uuid in assignment.uuids]
    return ["--gpus", '"device=' + ",".join(uuids) + '"'] if uuids else []


def program_words(spec: JobSpec) -> tuple[str, ...]:
    """Return the command of a pytorch or run instance: the user's command, or a launcher with it."""
    if spec.procs_per_gpu > 1:
        return _shared(spec)
    launcher = launcher_of(spec.launcher or (DEFAULT_PER_NODE if spec.nproc_per_node and len(spec.command) > 1 else ""))
    if launcher.per_node and not starts_processes(words_of(spec.command)):
        return launcher.node_words(spec.shell, spec.command)
    return _plain(spec)


def _plain(spec: JobSpec) -> tuple[str, ...]:
    return (spec.shell, "-c", spec.command[0]) if len(spec.command) == 1 else spec.command


_SHARE = (
    "command -v python3 >/dev/null 2>&1 || "
    '{ echo "provision: --procs-per-gpu needs python3 in the image" >&2; exit 127; }; '
    f'logs=$1; shift; exec python3 {MOUNT}/{SHARE} --logs "$logs/$PROVISION_INSTANCE" "$@"'
)


def _shared(spec: JobSpec) -> tuple[str, ...]:
    """Return the command that starts copies of the command, which share the GPU of the instance.

    Each copy gets the arguments ``--process_index I --process_num N``, and the variables PROCESS_INDEX and PROCESS_NUM.
    A shell command line gets the arguments at its end, unless it contains PROCESS_INDEX. The exit code of the instance
    is the first one that is not 0. The log of the instance contains the output of each copy, prefixed by
    ``[processI]``. The file ``processI.file`` contains it too, in a folder with the name of the instance: below
    --logdir if that is on a mount, otherwise in a folder that is removed with the instance.
    """
    command = _plain(spec)
    if len(spec.command) == 1 and "PROCESS_INDEX" not in spec.command[0]:
        command = (spec.shell, "-c", spec.command[0].rstrip() + ' "$@"', spec.shell)
    options = ["--procs", str(spec.procs_per_gpu), *(["--mps"] if spec.mps else [])]
    return ("sh", "-c", _SHARE, "sh", _log_folder(spec), *options, "--", *command)


def _log_folder(spec: JobSpec) -> str:
    targets = [target for _, target in spec.data] + [mount.split(":")[1] for mount in spec.mounts]
    is_on_a_volume = any(PurePosixPath(spec.logdir).is_relative_to(target) for target in targets)
    own = RUN if spec.no_container else "/tmp"  # noqa: S108 # nosec B108 # in the job's own container
    return spec.logdir.rstrip("/") if is_on_a_volume else own
