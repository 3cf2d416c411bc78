"""Validate the specification of a job, before any connection."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath

from provision.batch.code import FILES, fetch_request, is_here, plain_warning
from provision.batch.inference import rank_findings, rank_problem, starts_processes, starts_ranks, words_of
from provision.batch.names import check_name
from provision.batch.units import check_unit
from provision.commands.shell import is_environment_name
from provision.documents.jobs import MOST_RETRIES
from provision.errors import UsageError
from provision.launchers import DEFAULT_PER_NODE, MPIRUN, launcher_names, launcher_of, typed_commands
from provision.model.job import JobSpec, Kind
from provision.profiles import FABRICS, PRESETS

_WORDS = {
    "shell": ("sh", "bash"),
    "pull": ("always", "missing", "never"),
    "clean_task_policy": ("", "None", "Running", "All"),
    "fabric": (*FABRICS, ""),
    "preset": (*PRESETS, ""),
}
_AT_LEAST = {
    "gpus": 0,
    "workers": 1,
    "retry": 0,
    "max_per_node": 0,
    "procs_per_gpu": 0,
    "ranks": 0,
    "running_timeout": 0,
    "starting_timeout": 0,
    "ttl_after_finished": 0,
}


MOST = 999_999_999
"""Limit of all numbers: larger ones would fail later, during the start."""
_LARGEST_SHOWN = 1e300
"""Larger ones cannot be formatted; a record of a node can contain them."""
_AT_MOST = {"retry": MOST_RETRIES}
LONGEST_WORD = 1 << 17
MOST_WORKERS = 16384
"""More are probably a mistake: each worker is a container."""


def check(spec: JobSpec) -> None:
    """Verify that a job can start on some nodes.

    Raises:
        UsageError: it cannot start on any node; with the flag or the key of the spec file.
    """
    check_name(spec.name)
    for part in (_numbers, _choices, _image, _container, _environment, _paths, _data, _code, _placement, _launch):
        part(spec)


def check_recorded(spec: JobSpec, *, packed: bool) -> None:
    """Verify that a job can be signed, recorded and started without files of the submitter's machine.

    Args:
        spec: the job.
        packed: whether its code was packed at submission.

    Raises:
        UsageError: it cannot start on any node, or its start would read files of the machine that starts it.
    """
    check(spec)
    if spec.sync is None:
        if packed:
            raise UsageError("the job has packed code, but no source")
        return
    named = [name for name in spec.sync.options if name.endswith(tuple(FILES))]
    if named:
        raise UsageError(f"{named[0]} is a file of the machine that starts the job", remedy=_SUBMIT_AGAIN)
    if packed != is_here(spec.sync):
        what = "was packed" if packed else "is a path of the machine that starts the job"
        raise UsageError(f"--sync-source {spec.sync.source}: the code {what}", remedy=_SUBMIT_AGAIN)


_SUBMIT_AGAIN = "Submit the job again: the contents of files and folders are read at submission."


def warnings_of(spec: JobSpec) -> Iterator[str]:
    """Yield warnings about probable mistakes in a spec."""
    yield from rank_findings(spec)
    targets = [target for _, target in spec.data]
    if spec.tensorboard and not any(_inside(spec.logdir, target) for target in targets):
        yield f"--logdir {spec.logdir} is in no --data volume: TensorBoard will show only the events of the first node"
    if spec.nproc_per_node and not spec.launcher and len(spec.command) == 1 and not _torch(spec):
        yield (
            f"--nproc-per-node {spec.nproc_per_node} does not start processes of a command in quotes; it only "
            f"sets PET_NPROC_PER_NODE. Use --launcher {DEFAULT_PER_NODE} to start the command with {DEFAULT_PER_NODE}"
        )
    yield from _without_effect(spec)
    if spec.sync is not None and plain_warning(spec.sync):
        yield plain_warning(spec.sync)
    if not spec.gang:
        yield "--gang=false: the job starts with the workers that fit, and its program may wait for the others"


def _without_effect(spec: JobSpec) -> Iterator[str]:
    """Yield options without effect on this job."""
    if spec.gputopology and not spec.gpus:
        yield "--gputopology has no effect for a job without GPUs"
    if spec.tensorboard_image and not spec.tensorboard:
        yield "--tensorboard-image has no effect without --tensorboard"
    if spec.privileged and not spec.rdma:
        yield "--no-rdma has no effect with --privileged, which includes all devices"
    if spec.no_container and spec.clean_task_policy in {"None", "Running"}:
        yield f"--clean-task-policy {spec.clean_task_policy} has no effect: all processes end with the job"
    words = words_of(spec.command)
    per_node = spec.kind is not Kind.MPI and launcher_of(spec.launcher).per_node
    if spec.launcher and (starts_processes(words) if per_node else spec.kind is Kind.MPI and starts_ranks(words)):
        yield f"--launcher {spec.launcher} has no effect: the command itself starts the processes"
    if spec.shell != "sh" and len(spec.command) > 1:
        yield f"--shell {spec.shell} has no effect: a command of several words runs without a shell"


def _torch(spec: JobSpec) -> bool:
    words = re.split(r"[^\w-]+", spec.command[0])
    return starts_processes(words_of(spec.command)) or not typed_commands(per_node=True).isdisjoint(words)


def _flag(field: str) -> str:
    return "--" + {"ulimits": "ulimit"}.get(field, field.replace("_", "-"))


def _numbers(spec: JobSpec) -> None:
    for field, least in _AT_LEAST.items():
        value = getattr(spec, field)
        most = _AT_MOST.get(field, MOST)
        if not least <= value <= most:
            bound = f"at least {least}" if value < least else f"at most {most}"
            shown = f"{value:.15g}" if abs(value) < _LARGEST_SHOWN else "(a larger number)"
            raise UsageError(f"{_flag(field)} {shown}: must be {bound}")
    if abs(spec.priority) > MOST or any(not 0 <= one <= MOST for one in spec.gpu_ids):
        raise UsageError(f"--priority or --gpu-ids: must be at most {MOST}")
    if spec.workers > MOST_WORKERS:
        raise UsageError(f"--workers {spec.workers}: must be at most {MOST_WORKERS}")


def _choices(spec: JobSpec) -> None:
    for field, words in {**_WORDS, "launcher": ("", *launcher_names())}.items():
        if getattr(spec, field) not in words:
            known = ", ".join(word for word in words if word)
            raise UsageError(f"{_flag(field)} {getattr(spec, field)}: must be one of {known}")
    if spec.preset == "taco":
        raise UsageError(
            "--preset taco generates an mpirun command line, and a batch job has its own",
            remedy="Use --preset horovod-lightcc; `provision run --preset taco --dry-run` prints the command line.",
        )
    if not re.fullmatch(r"(auto|gpu|cpu|[1-9][0-9]{0,8})?", spec.nproc_per_node):
        raise UsageError(f"--nproc-per-node {spec.nproc_per_node}: must be auto, gpu, cpu or a number")
    if not re.fullmatch(r"([0-9]{1,10}:[0-9]{1,10}(,[0-9]{1,10})*)?", spec.user):
        raise UsageError(
            f"--user {spec.user}: must consist of numbers",
            remedy="Write UID:GID as printed by `id -u` and `id -g`, and further groups after commas.",
        )


def _image(spec: JobSpec) -> None:
    if spec.no_container:
        check_unit(spec)
    elif not spec.image:
        raise UsageError(
            "the job has no image",
            remedy="Specify --image IMAGE, or --no-container for programs that are installed on the nodes.",
        )


_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}")
_SIZE = re.compile(r"\d{1,18}[bkmg]?")
_LIMIT = re.compile(r"[a-z]{1,32}=-?[0-9]{1,19}(:-?[0-9]{1,19})?")


def _container(spec: JobSpec) -> None:
    """Refuse values that docker would read as options or as other values."""
    for field in ("image", "worker_image", "tensorboard_image"):
        value = getattr(spec, field)
        if value and not _IMAGE.fullmatch(value):
            raise UsageError(f"{_flag(field)} {value!r}: invalid image name")
    if not _SIZE.fullmatch(spec.share_memory):
        raise UsageError(f"--share-memory {spec.share_memory!r}: invalid size", remedy="Write 2Gi, 32g or 512m.")
    for name, value in spec.ulimits.items():
        if not _LIMIT.fullmatch(f"{name}={value}"):
            raise UsageError(f"--ulimit {name}={value}: invalid limit", remedy="For example: memlock=-1")


def _environment(spec: JobSpec) -> None:
    for name in (*spec.env, *spec.secret_env):
        if not is_environment_name(name) or name.startswith("PROVISION_"):
            raise UsageError(f"--env {name!r}: invalid name of a variable")
    for text in (*spec.env.values(), *spec.command):
        if "\0" in text:
            raise UsageError("the command or a variable contains a NUL character")
        if not _is_text(text):
            raise UsageError("the command or a variable contains an invalid character (a lone surrogate)")
    if any(len(text.encode("utf-8", "surrogateescape")) >= LONGEST_WORD for text in spec.command):
        raise UsageError(
            f"an argument of the command has {LONGEST_WORD} bytes or more, which Linux does not support",
            remedy="Move the script into a file, and use --config-file or --sync-mode.",
        )


def _is_text(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _paths(spec: JobSpec) -> None:
    for field in ("working_dir", "logdir"):
        if not getattr(spec, field).startswith("/"):
            raise UsageError(f"{_flag(field)} {getattr(spec, field)}: must be an absolute path in the container")
    for mount in spec.mounts:
        source, _, rest = mount.partition(":")
        target, _, mode = rest.partition(":")
        if not source.startswith("/") or not target.startswith("/") or mode not in {"", "ro", "rw"}:
            raise UsageError(
                f"--mount {mount}: invalid mount", remedy="Write /SOURCE:/TARGET[:ro] with absolute paths."
            )
        _target("--mount", mount, target)
    for text in spec.config_files:
        _target("--config-file", text, text.partition(":")[2])


def _target(flag: str, text: str, target: str) -> None:
    if not target.startswith("/") or not PurePosixPath(target).name or ".." in PurePosixPath(target).parts:
        raise UsageError(
            f"{flag} {text}: '{target}' is not an absolute path below / in the container",
            remedy=f"For example: {flag} {text.split(':', maxsplit=1)[0]}:/data",
        )
    if not text.isprintable():
        raise UsageError(f"{flag} {text!r}: the path contains a line break or another character that cannot be printed")


def _data(spec: JobSpec) -> None:
    names: set[str] = set()
    for name, target in spec.data:
        _target("--data", f"{name}:{target}", target)
        if name in names:
            raise UsageError(f"--data {name}: mounted twice", remedy="Use each name once.")
        names.add(name)
    mounted = [target for _, target in spec.data]
    mounted += [mount.split(":")[1] for mount in (*spec.mounts, *spec.config_files)]
    twice = _first(mounted, lambda target: mounted.count(target) > 1)
    if twice:
        raise UsageError(f"{twice}: two mounts have this target", remedy="Use a different path for each mount.")


def _code(spec: JobSpec) -> None:
    if spec.sync is None:
        return
    mode, source = spec.sync.mode, spec.sync.source
    if not mode or not source:
        given, other = ("--sync-source", "--sync-mode git") if source else (f"--sync-mode {mode}", "--sync-source")
        raise UsageError(f"{given} requires {other.split()[0]}", remedy=f"Add {other}.")
    fetch_request(spec.sync, {})


def _placement(spec: JobSpec) -> None:
    both = _first(spec.nodes, lambda name: name in spec.exclude)
    if both:
        raise UsageError(f"{both} is in --nodes and in --exclude", remedy="Remove it from one of them.")
    if spec.gpu_ids and len(set(spec.gpu_ids)) != len(spec.gpu_ids):
        raise UsageError("--gpu-ids contains a GPU twice")
    if spec.gpu_ids and (not spec.gpus or len(spec.gpu_ids) % spec.gpus):
        raise UsageError(f"--gpu-ids has {len(spec.gpu_ids)} GPUs, which is not a multiple of --gpus {spec.gpus}")
    if spec.name in spec.depends:
        raise UsageError(f"--depends {spec.name}: a job cannot wait for itself")


def _launch(spec: JobSpec) -> None:
    if not any(spec.command):
        raise UsageError("the job has no command", remedy="Write it last: in quotes, or after --.")
    if (spec.launcher == MPIRUN or spec.ranks) and spec.kind is not Kind.MPI:
        raise UsageError(
            f"--np and --launcher {MPIRUN} require an mpi job",
            remedy=f"Run provision submit mpi, or use --nproc-per-node for {DEFAULT_PER_NODE}.",
        )
    if spec.ranks and spec.launcher != MPIRUN:
        raise UsageError(
            f"--launcher {spec.launcher} starts the command once, and --np {spec.ranks} requests ranks",
            remedy="Remove one of them.",
        )
    if launcher_of(spec.launcher).per_node and spec.kind is Kind.MPI:
        raise UsageError(
            f"--launcher {spec.launcher} does not support mpi jobs",
            remedy=f"Use --launcher {MPIRUN}, or submit pytorch.",
        )
    if spec.nproc_per_node and spec.kind is Kind.MPI:
        raise UsageError("--nproc-per-node does not support mpi jobs", remedy="Use --np auto or --np N.")
    _sharing(spec)
    problem = rank_problem(spec) if spec.lint else ""
    if problem:
        raise UsageError(problem, remedy="Fix the command, or start it anyway with --no-lint.")


def _sharing(spec: JobSpec) -> None:
    """Refuse options that contradict --procs-per-gpu."""
    if spec.mps and spec.procs_per_gpu < 2:  # noqa: PLR2004 - one process does not share
        raise UsageError("--mps requires at least two processes for each GPU", remedy="Add --procs-per-gpu N.")
    if spec.procs_per_gpu < 2:  # noqa: PLR2004
        return
    if spec.kind is Kind.MPI:
        raise UsageError(
            "--procs-per-gpu does not support mpi jobs", remedy="Write the command: mpirun --oversubscribe -np N ..."
        )
    if spec.gpus != 1:
        raise UsageError(
            f"--procs-per-gpu shares one GPU, and each worker has {spec.gpus}",
            remedy="Use --gpus 1, and --workers N for more GPUs.",
        )
    if spec.nproc_per_node or launcher_of(spec.launcher).per_node:
        raise UsageError(
            f"--procs-per-gpu starts copies of the command, and so does {spec.launcher or DEFAULT_PER_NODE}",
            remedy="Remove --nproc-per-node and --launcher.",
        )


def _inside(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder)


def _first(items: Sequence[str], true: Callable[[str], bool]) -> str:
    return next((item for item in items if true(item)), "")
