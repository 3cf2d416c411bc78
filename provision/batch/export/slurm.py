"""A batch script for a Slurm cluster that has nothing of this project."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from provision.batch.containers import NodeHardware, program_words, rights
from provision.batch.export.shell import code_lines, data_source, image_uri, secret_lines
from provision.batch.export.workload import (
    ExportOptions,
    VolumeMount,
    Workload,
    build,
    dropped,
    fetches_code,
    launch_words,
    single_process,
    total_ranks,
)
from provision.batch.inference import starts_ranks, words_of
from provision.batch.ranks import processes_per_instance
from provision.commands.mpirun_words import is_launcher, parse_line
from provision.errors import UsageError
from provision.launchers import MPIRUN, launcher_of
from provision.model.job import JobSpec, Kind
from provision.model.reason import Reason, reason

RUNTIMES = ("pyxis", "apptainer", "docker")
_WORD = re.compile(r"[A-Za-z0-9._,\[\]-]+")
_META = re.compile(r"[\[\]$`;&|<>()*?~#\n\\!{}]")
"""Characters by which a shell would change the words of a command line."""
_DROPPED = {
    "gputopology": "Slurm chooses the GPUs of a node.",
    "gpu_ids": "Slurm chooses the GPUs of a node.",
    "selector": "Add --constraint with the features of the site.",
    "allow_drained": "",
    "max_per_node": "",
    "procs_per_gpu": "Each GPU gets one process.",
    "mps": "Ask the site for --gres=mps.",
    "fabric": "Set the variables of NCCL by --env.",
    "tensorboard": "Start TensorBoard on the login node.",
    "starting_timeout": "",
    "ttl_after_finished": "",
    "clean_task_policy": "",
    "priority": "Use the QOS of the site, or --nice.",
    "depends": "Submit with --dependency=afterok:JOBID.",
    "retry": "Submit with --requeue, or again.",
    "pull": "",
    "worker_image": "All tasks use one image.",
}
_OF_RUNTIME = {
    "share_memory": "The size of /dev/shm is that of the node.",
    "ulimits": "The limits are those of Slurm.",
    "privileged": "The containers have the rights of the account.",
    "user": "The containers run as the account that submits.",
}
"""Options that only docker has."""


@dataclass(frozen=True)
class _Step:
    """The processes of a job as tasks of a job step."""

    command: tuple[str, ...]
    nodes: int
    tasks: int
    mpi: bool = False
    variables: tuple[tuple[str, str], ...] = ()


def slurm_script(spec: JobSpec, options: ExportOptions) -> tuple[str, list[Reason]]:
    """Return a script for ``sbatch`` without its first line, and what has no counterpart.

    Raises:
        UsageError: a part of the job cannot be written for Slurm.
    """
    if options.runtime not in RUNTIMES:
        raise UsageError(f"--runtime {options.runtime}: unknown", remedy=f"Choose {', '.join(RUNTIMES)}.")
    workload = build(spec, options)
    notes = [*workload.notes]
    step = _mpi_step(spec, notes) if spec.kind is Kind.MPI else _Step(_program(spec), spec.workers, spec.workers)
    names = dict(_DROPPED)
    if options.runtime != "docker" or spec.no_container:
        names |= _OF_RUNTIME
    if not fetches_code(spec):
        names["sync"] = "Copy the code into the working directory."
    notes += dropped(spec, "a Slurm script", names)
    if spec.workers > 1:
        notes.append(reason("export.worker_per_node"))
    if not (options.cpus_per_gpu and spec.gpus) and not spec.exclusive:
        notes.append(reason("export.cpus"))
    if spec.no_container and (spec.data or spec.mounts):
        notes.append(reason("export.no_mounts"))
    if spec.secret_env:
        notes.append(_secret_note(spec, options))
        notes += [] if options.secrets is not None else [reason("export.stored_environment")]
    if spec.config_files or spec.mounts:
        paths = [text.partition(":")[0] for text in (*spec.mounts, *spec.config_files)]
        notes.append(reason("export.paths_of_nodes", paths=paths))
    lines = [*_directives(spec, options), "", "set -euo pipefail", *secret_lines(spec, options)]
    lines += [*_rendezvous(spec), *code_lines(spec, "${SLURM_SUBMIT_DIR:-$PWD}", spec.name)]
    lines += ["", *_run_lines(workload, step, options)]
    return "\n".join(lines) + "\n", notes


def _program(spec: JobSpec) -> tuple[str, ...]:
    return program_words(single_process(spec))


def _secret_note(spec: JobSpec, options: ExportOptions) -> Reason:
    if options.secrets is not None:
        return reason("export.secret_values", names=spec.secret_env)
    return reason("export.secret_environment", names=spec.secret_env)


def _directives(spec: JobSpec, options: ExportOptions) -> Iterator[str]:
    """Yield the lines ``#SBATCH``; sbatch does not remove quotes in them as a shell does."""
    for text in (*spec.nodes, *spec.exclude, *filter(None, [options.queue])):
        if not _WORD.fullmatch(text):
            raise UsageError(
                f"{text!r}: invalid name of a node or partition", remedy="Use letters, digits, '-' and '.'."
            )
    given = {
        "job-name": spec.name,
        "output": "%x-%j.out",
        "nodes": str(spec.workers),
        "ntasks-per-node": str(max(spec.gpus, 1) if spec.kind is Kind.MPI else 1),
        "gpus-per-node": str(spec.gpus) if spec.gpus else "",
        "cpus-per-gpu": str(options.cpus_per_gpu) if options.cpus_per_gpu and spec.gpus else "",
        "partition": options.queue,
        "nodelist": ",".join(spec.nodes),
        "exclude": ",".join(spec.exclude),
        "time": str(math.ceil(spec.running_timeout / 60)) if spec.running_timeout else "",
    }
    yield from (f"#SBATCH --{name}={value}" for name, value in given.items() if value)
    if spec.exclusive:
        yield "#SBATCH --exclusive"
    if spec.hold:
        yield "#SBATCH --hold"


def _rendezvous(spec: JobSpec) -> Iterator[str]:
    if spec.kind is Kind.MPI:
        return
    yield 'hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")'
    yield "MASTER_ADDR=${hosts%%$'\\n'*}"
    yield "MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))"
    yield "export MASTER_ADDR MASTER_PORT PET_MASTER_ADDR=$MASTER_ADDR PET_MASTER_PORT=$MASTER_PORT"
    count = str(spec.workers)
    yield f"export WORLD_SIZE={count} PET_NNODES={count} PET_NPROC_PER_NODE={processes_per_instance(spec)}"


def _mpi_step(spec: JobSpec, notes: list[Reason]) -> _Step:
    """Return the ranks of an mpi job: srun starts them instead of mpirun."""
    total = total_ranks(spec)
    launcher = launcher_of(spec.launcher)
    if launcher.rendezvous:
        raise UsageError(
            f"--launcher {spec.launcher}: an mpi job with this launcher cannot be written for Slurm",
            remedy=f"Use --launcher {MPIRUN}, or submit pytorch.",
        )
    words = launch_words(spec)
    if not starts_ranks(words):
        notes.append(reason("export.first_node_only"))
        return _Step(_plain(spec), 1, 1)
    if spec.launcher == MPIRUN or (len(spec.command) > 1 and not starts_ranks(words_of(spec.command))):
        return _Step(_plain(spec), spec.workers, spec.ranks or total, mpi=True)
    if not is_launcher(words) or (len(spec.command) == 1 and _META.search(spec.command[0])):
        raise UsageError(
            f"the command line {words[0]} cannot be translated to srun",
            remedy="Write the program alone: provision submit mpi --np N -- PROGRAM.",
        )
    line = parse_line(words)
    notes.append(reason("export.mpirun_flags", flags=[one.flag for one in line.settings if not one.is_variable]))
    given = tuple((name, value) for name, value in line.variables.items() if value is not None)
    return _Step(line.command, spec.workers, line.ranks or total, mpi=True, variables=given)


def _plain(spec: JobSpec) -> tuple[str, ...]:
    return (spec.shell, "-c", spec.command[0]) if len(spec.command) == 1 else spec.command


_RANK = 'export RANK="$SLURM_PROCID" PET_NODE_RANK="$SLURM_NODEID"; exec "$@"'
_DOCKER_TASK = """task=$(cat <<'END_OF_TASK'
# Slurm does not end containers of docker: each task ends its own.
export RANK="$SLURM_PROCID" PET_NODE_RANK="$SLURM_NODEID"
name="$0-$SLURM_JOB_ID-$SLURM_PROCID"
gpus="${SLURM_STEP_GPUS:-${SLURM_JOB_GPUS:-}}"
if [ -n "$gpus" ]; then set -- --gpus "\\"device=$gpus\\"" "$@"; fi
for device in /dev/infiniband/uverbs* /dev/infiniband/rdma_cm; do
    if [ -e "$device" ]; then set -- --device "$device" "$@"; fi
done
trap 'docker stop --time 10 "$name" >/dev/null 2>&1' TERM INT
docker run --rm --name "$name" "$@" &
wait "$!"
code=$?
if [ "$code" -gt 128 ]; then wait "$!"; code=$?; fi
exit "$code"
END_OF_TASK
)"""


def _run_lines(workload: Workload, step: _Step, options: ExportOptions) -> Iterator[str]:
    """Yield the arrays of words, and the line that starts the step.

    Variables of the job are set by env within the step, so that a PATH of the job does not change the script.
    """
    spec = workload.spec
    runtime = "" if spec.no_container else options.runtime
    if runtime == "docker" and step.mpi:
        raise UsageError(
            "--runtime docker: ranks of srun in containers of docker do not reach PMIx",
            remedy="Use --runtime pyxis or --runtime apptainer.",
        )
    given = {**workload.environment, **dict(step.variables)}
    yield from _array("environment", ["env", *(f"{name}={value}" for name, value in given.items())])
    yield from _array("command", step.command)
    flags = ["--kill-on-bad-exit=1", f"--nodes={step.nodes}", f"--ntasks={step.tasks}"]
    flags += ["--gpu-bind=none"] if spec.gpus else []
    flags += ["--mpi=pmix"] if step.mpi else []
    line = "srun " + " ".join(flags)
    rank = "" if spec.kind is Kind.MPI else f"sh -c {shlex.quote(_RANK)} sh "
    program = '"${environment[@]}" "${command[@]}"'
    if runtime == "docker":
        yield from _array("container", list(_docker(workload, given, options)))
        yield _DOCKER_TASK
        yield f'{line} bash -c "$task" {spec.name} "${{container[@]}}" "${{command[@]:1}}"'
    elif runtime:
        yield from _array(
            "container", _pyxis(workload, options) if runtime == "pyxis" else _apptainer(workload, options)
        )
        words = '"${container[@]}"'
        yield f"{line} {words} {rank}{program}" if runtime == "pyxis" else f"{line} {rank}{words} {program}"
    else:
        yield f"cd {shlex.quote(spec.working_dir)}"
        yield f"{line} {rank}{program}"


class _Raw(str):
    """Words that the shell interprets."""

    __slots__ = ()


def _quoted(word: str) -> str:
    return str(word) if isinstance(word, _Raw) else shlex.quote(word)


def _array(name: str, words: Sequence[str]) -> Iterator[str]:
    """Yield a bash array, one word a line; paths of shell variables are interpreted."""
    yield f"{name}=("
    yield from (f"    {_quoted(word)}" for word in words)
    yield ")"


def _source(mount: VolumeMount, options: ExportOptions) -> str:
    if mount.kind == "code":
        return _Raw('"$code"')
    return data_source(mount, options) if mount.kind == "data" else mount.source


def _mounts(workload: Workload, options: ExportOptions, separators: str) -> Iterator[str]:
    """Yield ``SOURCE:TARGET[:ro]`` as shell words.

    Raises:
        UsageError: a path contains a character that separates mounts.
    """
    for mount in workload.volumes:
        source = _source(mount, options)
        target = (
            f"{mount.target}/{workload.spec.sync.name}" if mount.kind == "code" and workload.spec.sync else mount.target
        )
        for path in (target, *([] if isinstance(source, _Raw) else [source])):
            if any(letter in path for letter in separators):
                raise UsageError(
                    f"{path}: --runtime {options.runtime} does not support this path",
                    remedy=f"Use a path without {' and '.join(separators)}.",
                )
        end = shlex.quote(f":{target}" + ":ro" * mount.read_only)
        yield _Raw(f"{_quoted(source)}{end}")


def _pyxis(workload: Workload, options: ExportOptions) -> list[str]:
    spec = workload.spec
    mounts = list(_mounts(workload, options, ",:"))
    words: list[str] = [f"--container-image={enroot_image(spec.image)}", f"--container-workdir={spec.working_dir}"]
    words += ["--no-container-mount-home"]
    if mounts:
        words.append(_Raw("--container-mounts=" + ",".join(mounts)))
    return words


def enroot_image(image: str) -> str:
    """Return an image as enroot names it: ``REGISTRY#IMAGE``."""
    registry, slash, rest = image.partition("/")
    is_registry = slash and ("." in registry or ":" in registry or registry == "localhost")
    return f"{registry}#{rest}" if is_registry else image


def _apptainer(workload: Workload, options: ExportOptions) -> list[str]:
    spec = workload.spec
    words: list[str] = ["apptainer", "exec", *(["--nv"] if spec.gpus else []), "--pwd", spec.working_dir]
    for mount in _mounts(workload, options, ",:"):
        words += ["--bind", mount]
    return [*words, image_uri(spec.image)]


_MASTER = ("MASTER_PORT", "PET_MASTER_ADDR", "PET_MASTER_PORT")
_RENDEZVOUS = ("RANK", "PET_NODE_RANK", "WORLD_SIZE", "PET_NNODES", "PET_NPROC_PER_NODE", "MASTER_ADDR", *_MASTER)


def _docker(workload: Workload, given: Mapping[str, str], options: ExportOptions) -> Iterator[str]:
    spec = workload.spec
    yield from ("--network", "host", "--init", "--ipc", "private", "--shm-size", spec.share_memory)
    yield from rights(spec, NodeHardware())
    for mount in _mounts(workload, options, ":"):
        yield from ("--volume", mount)
    yield from ("--workdir", spec.working_dir)
    for name, value in given.items():
        yield from ("--env", f"{name}={value}")
    names = (*spec.secret_env, *(() if spec.kind is Kind.MPI else _RENDEZVOUS))
    for name in dict.fromkeys(name for name in names if name not in given or name in spec.secret_env):
        yield from ("--env", name)
    account, _, groups = spec.user.partition(",")
    yield from ("--user", account) if account else ()
    for group in filter(None, groups.split(",")):
        yield from ("--group-add", group)
    yield from ("--entrypoint", _Raw('"${command[0]}"'), spec.image)
