"""The parts of a job that every export needs: instances, commands, variables and volumes, independent of the target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from provision.batch import mpi
from provision.batch.code import is_here
from provision.batch.containers import program_words
from provision.batch.inference import starts_processes, starts_ranks, words_of
from provision.batch.ranks import Place, processes_per_instance
from provision.errors import UsageError
from provision.launchers import launcher_of
from provision.model.job import JobSpec, Kind
from provision.model.job_requests import Secrets
from provision.model.reason import Reason, reason
from provision.profiles import lightcc_settings

TARGETS = ("kubernetes", "slurm", "script")
MASTER_PORT = 29500
SYNC_IMAGE = "registry.k8s.io/git-sync/git-sync:v4.4.0"


@dataclass(frozen=True)
class ExportOptions:
    """The settings of the site that runs the export; a specification does not have them."""

    kind: str = ""
    """Kubernetes: ``mpijob``, ``pytorchjob``, ``trainjob`` or ``job``; empty: that of the job."""
    queue: str = ""
    """Kubernetes: a LocalQueue of Kueue; Slurm: the partition."""
    topology: str = ""
    """Kubernetes: the node label of the topology level that contains all pods."""
    rdma_resource: str = ""
    """Kubernetes: the resource of an RDMA device plugin."""
    host_network: bool = False
    sync_image: str = SYNC_IMAGE
    runtime: str = "pyxis"
    """Slurm: ``pyxis``, ``apptainer`` or ``docker``."""
    data_paths: Mapping[str, str] = field(default_factory=dict)
    """Slurm, script: volume -> its path on the nodes."""
    read_only: frozenset[str] = frozenset()
    """Volumes that are mounted read-only."""
    places: tuple[Place, ...] = ()
    """Script: the node of each worker; empty: this machine."""
    sync_secrets: tuple[str, ...] = ()
    """Names of the secret variables for fetching code."""
    pull_secrets: tuple[str, ...] = ()
    registry: str = ""
    """The registry of the images, if this machine has a credential for it."""
    cpus_per_gpu: int = 0
    """Slurm: the CPUs of each GPU; 0: the default of the site."""
    submitted: bool = False
    """Whether the job was submitted; its credentials are not stored with it."""
    secrets: Secrets | None = None
    """The values of secrets, if the export contains them."""

    @property
    def logs_in(self) -> bool:
        """Whether the pods log in to the registry of their images."""
        return bool(self.pull_secrets or self.registry)


@dataclass(frozen=True)
class Group:
    """Instances that differ only in their rank."""

    role: str
    """``launcher``, ``master`` or ``worker``."""
    count: int
    image: str
    command: tuple[str, ...]
    """Empty: sshd, by which the launcher starts ranks."""
    gpus: int = 0


@dataclass(frozen=True)
class VolumeMount:
    """A volume, and its path in the containers."""

    kind: str
    """``data`` (a name), ``path`` (of the nodes), ``file`` (of the submitter) or ``code`` (fetched)."""
    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Workload:
    """A job as groups of instances."""

    spec: JobSpec
    groups: tuple[Group, ...]
    environment: Mapping[str, str]
    """Variables of all instances without secrets; ranks and addresses are the target's."""
    volumes: tuple[VolumeMount, ...]
    processes: str = ""
    """pytorch: the number of processes that the command starts in each instance; empty if it starts none."""
    notes: tuple[Reason, ...] = ()


def build(spec: JobSpec, options: ExportOptions) -> Workload:
    """Return the parts of a job.

    Raises:
        UsageError: a command or a variable cannot be written as text.
    """
    for text in (*spec.command, *spec.env.values()):
        _check_text(text)
    notes = [*_command_notes(spec)]
    if spec.gpus and spec.workers > 1:
        notes.append(reason("export.network_variables"))
    return Workload(
        spec,
        tuple(_groups(spec)),
        environment_of(spec),
        tuple(_volumes(spec, options)),
        _processes(spec),
        tuple(notes),
    )


def environment_of(spec: JobSpec) -> dict[str, str]:
    """Return the variables of all instances without secrets; those of the user override the others."""
    preset = lightcc_settings(spec.gpus, spec.preset, lossy=False) if spec.preset and spec.gpus else ()
    return {**fixed_variables(spec), **{one.name: one.value for one in preset if one.value is not None}, **spec.env}


def fixed_variables(spec: JobSpec) -> dict[str, str]:
    """Return the variables that every job gets and that depend on no node."""
    return {"PYTHONUNBUFFERED": "1", "workers": str(spec.workers), "gpus": str(spec.gpus)}


def rank_variables(spec: JobSpec, master: str, rank: str, port: str = str(MASTER_PORT)) -> dict[str, str]:
    """Return the variables by which the instances of pytorch and run jobs meet, as the engines set them."""
    processes = str(processes_per_instance(spec))
    return {
        "MASTER_ADDR": master,
        "MASTER_PORT": port,
        "WORLD_SIZE": str(spec.workers),
        "RANK": rank,
        "PET_NNODES": str(spec.workers),
        "PET_NODE_RANK": rank,
        "PET_NPROC_PER_NODE": processes,
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": port,
    }


def fetches_code(spec: JobSpec) -> bool:
    """Return whether the exported job fetches its code: from a git server, not from the submitter's machine."""
    return spec.sync is not None and spec.sync.mode == "git" and not is_here(spec.sync)


def code_folder(spec: JobSpec) -> str:
    """Return the folder of fetched code in the containers."""
    return f"{spec.working_dir.rstrip('/')}/code"


def total_ranks(spec: JobSpec) -> int:
    """Return the number of slots of an mpi job."""
    return spec.workers * max(spec.gpus, 1)


def runs_once(spec: JobSpec) -> bool:
    """Return whether an mpi job runs its command on the first node only, without mpirun."""
    return spec.kind is Kind.MPI and not starts_ranks(launch_words(spec))


def launch_words(spec: JobSpec) -> list[str]:
    """Return the words of the command that starts the ranks of an mpi job, for inspection."""
    command = launcher_command(spec)
    is_shell = len(command) == 3 and command[:2] == (spec.shell, "-c")  # noqa: PLR2004 - SHELL -c LINE
    return words_of(command[2:] if is_shell else command)


def launcher_command(spec: JobSpec) -> tuple[str, ...]:
    """Return the command that starts the ranks of an mpi job."""
    return mpi.mpi_command(spec, (*environment_of(spec), *spec.secret_env), total_ranks(spec))


def single_process(spec: JobSpec) -> JobSpec:
    """Return a job whose instances start one process each: exports have no program that starts copies."""
    return replace(spec, procs_per_gpu=0, mps=False) if spec.procs_per_gpu > 1 else spec


def _groups(spec: JobSpec) -> Iterator[Group]:
    worker_image = spec.worker_image or spec.image
    if spec.kind is Kind.MPI:
        yield Group("launcher", 1, spec.image, launcher_command(spec))
        yield Group("worker", spec.workers, worker_image, (), spec.gpus)
        return
    command = program_words(single_process(spec))
    if spec.kind is Kind.PYTORCH:
        yield Group("master", 1, spec.image, command, spec.gpus)
        if spec.workers > 1:
            yield Group("worker", spec.workers - 1, worker_image, command, spec.gpus)
        return
    yield Group("worker", spec.workers, spec.image, command, spec.gpus)


def _processes(spec: JobSpec) -> str:
    """Return the number of processes that torchrun starts; a plain command is one process of each instance."""
    if spec.kind is Kind.MPI:
        return ""
    per_node = launcher_of(spec.launcher).per_node or starts_processes(words_of(spec.command))
    return str(processes_per_instance(spec)) if spec.nproc_per_node or per_node else ""


def _volumes(spec: JobSpec, options: ExportOptions) -> Iterator[VolumeMount]:
    for name, target in spec.data:
        yield VolumeMount("data", name, target, name in options.read_only)
    for mount in spec.mounts:
        source, target, *mode = mount.split(":")
        yield VolumeMount("path", source, target, mode == ["ro"])
    for text in spec.config_files:
        source, _, target = text.partition(":")
        yield VolumeMount("file", source, target, read_only=True)
    if fetches_code(spec) and spec.sync is not None:
        yield VolumeMount("code", spec.sync.source, code_folder(spec))


def _command_notes(spec: JobSpec) -> Iterator[Reason]:
    words = words_of(spec.command)
    named = [word for word in words if word.rpartition("_")[2] in {"include", "exclude"} or "SOCKET_IFNAME" in word]
    if named and spec.kind is Kind.MPI:
        yield reason("export.interface_names", options=list(dict.fromkeys(named)))


def dropped(spec: JobSpec, target: str, options: Mapping[str, str]) -> list[Reason]:
    """Return a note for each option of the job without a counterpart.

    Args:
        spec: the job.
        target: what is written, for the message.
        options: field -> what to do instead.
    """
    defaults = JobSpec(spec.name, spec.kind, spec.command)
    used = [name for name in options if getattr(spec, name) != getattr(defaults, name)]
    return [reason("export.no_counterpart", option=_flag(name), target=target, instead=options[name]) for name in used]


def _flag(name: str) -> str:
    return "--" + {"ulimits": "ulimit", "labels": "label", "annotations": "annotation"}.get(
        name, name.replace("_", "-")
    )


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            "the command or a variable contains bytes that are not UTF-8, which a manifest or script cannot contain",
            remedy="Move them into a file, and use --config-file.",
        ) from error
