"""The words of ``docker create`` for the containers of a job: what RDMA and GPUs need, and no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from provision.batch.inference import starts_processes, words_of
from provision.batch.mpi import KEYS, MOUNT
from provision.launchers import launcher_of
from provision.model.job import Assignment, JobSpec, Kind

__all__ = ["RUN", "SHARE", "NodeHardware", "create_words", "limits_of", "own_mounts", "program_words"]

SHARE = "share.py"
"""The program of `MOUNT` that starts copies of a command."""
RUN = "/provision-run"
"""Memory of a job alone: of mpi sshd's sessions read their variables from a file there."""
CAPABILITIES = ("IPC_LOCK", "SYS_NICE", "SYS_PTRACE")
DROPPED = ("MKNOD", "NET_RAW")
"""Of a container that is root's; one with ``--user`` has none but `CAPABILITIES`, and no setuid program gives them."""
ULIMITS: Mapping[str, int] = {"memlock": -1, "nofile": 1048576, "stack": 67108864}
"""-1: none. Recommended by the card vendors: registered memory is locked, and MPI opens many files."""


@dataclass(frozen=True)
class NodeHardware:
    """What a container can be given on a node."""

    devices: tuple[str, ...] = ()
    """Device files of the RDMA cards that carry jobs' data."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """The most that the node itself has, where that is less than no limit."""


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
    """Return the words after ``docker create``, the environment aside, which goes by a file.

    Args:
        spec: the job.
        inside: the instances that live in it.
        image: its image, by digest or id.
        labels: by which the container is found again.
        hardware: what the node has.
        folder: the attempt's folder on the node.
        mounts: of data and code, ``/source:/target[:ro]``.
        entry: the command.
    """
    words = ["--name", inside[0].container, "--network", "host", "--init", "--restart", "no", "--stop-timeout", "15"]
    words += ["--log-driver", "json-file", "--log-opt", "max-size=100g"]
    words += ["--ipc", "private", "--shm-size", spec.share_memory]
    for name, value in labels.items():
        words += ["--label", f"{name}={value}"]
    words += _rights(spec, hardware)
    words += _gpus(inside)
    for mount in (*own_mounts(spec, folder), *mounts, *spec.mounts):
        words += ["--volume", mount]
    words += ["--workdir", spec.working_dir]
    account, _, groups = spec.user.partition(",")
    if spec.kind is Kind.MPI:
        # Without --user the account is the image's own, which is not known here; what is written there is masked.
        words += ["--tmpfs", f"{RUN}:rw,mode={'0700' if account else '1777'}" + _owned(account)]
    if spec.user:
        words += ["--user", account]
        for group in filter(None, groups.split(",")):
            words += ["--group-add", group]
    if entry:
        words += ["--entrypoint", entry[0]]
    return [*words, image, *entry[1:]]


def _owned(account: str) -> str:
    """Return the options of a file system that is an account's, ``UID:GID``; root's without one."""
    uid, _, gid = account.partition(":")
    return f",uid={uid},gid={gid}" if uid and gid else ""


def own_mounts(spec: JobSpec, folder: str) -> list[str]:
    """Return how an attempt's own files are mounted: first those of `MOUNT`, then keys, files of the submitter's."""
    mounts = [f"{folder}/mount:{MOUNT}:ro"]
    mounts += [f"{folder}/ssh:{KEYS}:ro"] if spec.kind is Kind.MPI else []
    for index, text in enumerate(spec.config_files):
        mounts.append(f"{folder}/config/{index}:{text.partition(':')[2]}:ro")
    return mounts


def _rights(spec: JobSpec, hardware: NodeHardware) -> list[str]:
    of_account = spec.user.partition(":")[0] not in {"", "0"}
    words = ["--security-opt", "no-new-privileges"] if of_account else []
    if spec.privileged:
        limits = {"memlock": "-1", "stack": "67108864", **spec.ulimits}
        words += ["--privileged", *(word for name, value in limits.items() for word in ("--ulimit", f"{name}={value}"))]
        return words
    for name, value in limits_of(spec, hardware).items():
        words += ["--ulimit", f"{name}={value}"]
    for name in CAPABILITIES:
        words += ["--cap-add", name]
    for name in ("ALL",) if of_account else DROPPED:
        words += ["--cap-drop", name]
    if spec.rdma:
        for device in hardware.devices:
            words += ["--device", device]
    return words


def limits_of(spec: JobSpec, hardware: NodeHardware) -> dict[str, str]:
    """Return limit -> its value, ``-1`` for none: every job's and those that were asked for, as far as can be."""
    asked = {name: int(value) if value.lstrip("-").isdecimal() else value for name, value in spec.ulimits.items()}
    limits: dict[str, str] = {}
    for name, wanted in {**ULIMITS, **asked}.items():
        most = hardware.limits.get(name)
        cut = most is not None and isinstance(wanted, int) and (wanted < 0 or wanted > most)
        limits[name] = str(most if cut else wanted)
    return limits


def _gpus(inside: Sequence[Assignment]) -> list[str]:
    uuids = [uuid for assignment in inside for uuid in assignment.uuids]
    return ["--gpus", '"device=' + ",".join(uuids) + '"'] if uuids else []


def program_words(spec: JobSpec) -> tuple[str, ...]:
    """Return the command of an instance of pytorch or run: the user's line, or the launcher around it."""
    if spec.procs_per_gpu > 1:
        return _shared(spec)
    launcher = launcher_of(spec.launcher or ("torchrun" if spec.nproc_per_node and len(spec.command) > 1 else ""))
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
    """Return what starts copies of the command that share the instance's GPU.

    Each copy gets ``--process_index I --process_num N`` behind its words, and PROCESS_INDEX and PROCESS_NUM; a line for
    the shell gets them at its end, unless it uses PROCESS_INDEX itself. The first exit code that is not 0 is the
    instance's. Each copy's output is in the instance's log, behind ``[processI]``, and alone in ``processI.file`` of
    a folder of the instance's name: in --logdir where that is on a mount, else where it goes with the instance.
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
