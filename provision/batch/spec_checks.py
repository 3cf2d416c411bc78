"""What a job's spec may not say, whoever wrote it: said before anything connects."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath

from provision.batch.code import FILES, fetch_request, is_here, plain_warning
from provision.batch.inference import rank_findings, starts_processes, surely_fails, words_of
from provision.batch.names import check_name
from provision.batch.units import check_unit
from provision.commands.shell import is_environment_name
from provision.documents.jobs import MOST_RETRIES
from provision.errors import UsageError
from provision.launchers import launcher_names, launcher_of
from provision.model.job import JobSpec, Kind
from provision.profiles import FABRICS, PRESETS

__all__ = ["check", "check_recorded", "doubts"]

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
"""Of any number, as flags have it: larger ones fail somewhere in a start, in whatever way."""
_AT_MOST = {"retry": MOST_RETRIES}
LONGEST_WORD = 1 << 17
MOST_WORKERS = 16384
"""More is a slip of the finger: each is a container."""


def check(spec: JobSpec) -> None:
    """Return when the spec can be started somewhere.

    Raises:
        UsageError: it cannot, anywhere; the flag (or the key of a spec file) is named.
    """
    check_name(spec.name)
    for part in (_numbers, _choices, _image, _container, _environment, _paths, _data, _code, _placement, _launch):
        part(spec)


def check_recorded(spec: JobSpec, *, packed: bool) -> None:
    """Return when the spec can be signed, recorded and started: it names nothing of the submitter's machine.

    Args:
        spec: the job.
        packed: whether its code was packed when it was submitted.

    Raises:
        UsageError: it cannot be started anywhere, or its start would read a file of whoever starts it.
    """
    check(spec)
    if spec.sync is None:
        if packed:
            raise UsageError("the job has packed code and names no source of it")
        return
    named = [name for name in spec.sync.options if name.endswith(tuple(FILES))]
    if named:
        raise UsageError(f"{named[0]} names a file of the machine that starts the job", remedy=_SUBMIT_AGAIN)
    if packed != is_here(spec.sync):
        what = "was packed" if packed else "is a path of the machine that starts the job"
        raise UsageError(f"--sync-source {spec.sync.source}: the code {what}", remedy=_SUBMIT_AGAIN)


_SUBMIT_AGAIN = "Submit the job again: contents of files and folders are taken along when it is submitted."


def doubts(spec: JobSpec) -> Iterator[str]:
    """Yield what is odd about a spec and may be meant."""
    yield from rank_findings(spec)
    targets = [target for _, target in spec.data]
    if spec.tensorboard and not any(_inside(spec.logdir, target) for target in targets):
        yield f"--logdir {spec.logdir} is in none of --data: TensorBoard will show the events of the first node alone"
    if spec.nproc_per_node and not spec.launcher and len(spec.command) == 1 and not _torch(spec):
        yield (
            f"--nproc-per-node {spec.nproc_per_node} starts nothing by itself for a command of one quoted word, which "
            "finds it in PET_NPROC_PER_NODE; --launcher torchrun puts torchrun before it"
        )
    yield from _without_effect(spec)
    if spec.sync is not None and plain_warning(spec.sync):
        yield plain_warning(spec.sync)
    if spec.no_container and not spec.user:
        yield "--no-container without --user: its processes are root's on the nodes; --user UID:GID takes an account"
    if not spec.gang:
        yield "--gang=false: it starts with the workers that fit, and a job of one program may wait for the others"


def _without_effect(spec: JobSpec) -> Iterator[str]:
    """Yield what was asked for and changes nothing for this job."""
    if spec.gputopology and not spec.gpus:
        yield "--gputopology changes nothing for a job without GPUs"
    if spec.tensorboard_image and not spec.tensorboard:
        yield "--tensorboard-image changes nothing without --tensorboard"
    if spec.privileged and not spec.rdma:
        yield "--no-rdma changes nothing with --privileged, which gives all devices"
    if spec.no_container and spec.clean_task_policy in {"None", "Running"}:
        yield f"--clean-task-policy {spec.clean_task_policy} changes nothing: no process of a node outlives its job"
    if spec.shell != "sh" and len(spec.command) > 1:
        yield f"--shell {spec.shell} changes nothing: no shell runs a command of several words"


def _torch(spec: JobSpec) -> bool:
    return starts_processes(words_of(spec.command)) or "torchrun" in spec.command[0]


def _flag(field: str) -> str:
    return "--" + {"ulimits": "ulimit"}.get(field, field.replace("_", "-"))


def _numbers(spec: JobSpec) -> None:
    for field, least in _AT_LEAST.items():
        value = getattr(spec, field)
        most = _AT_MOST.get(field, MOST)
        if not least <= value <= most:
            bound = f"at least {least}" if value < least else f"at most {most}"
            raise UsageError(f"{_flag(field)} {value:.15g}: {bound} is possible")
    if abs(spec.priority) > MOST or any(not 0 <= one <= MOST for one in spec.gpu_ids):
        raise UsageError(f"--priority or --gpu-ids: at most {MOST} is possible")
    if spec.workers > MOST_WORKERS:
        raise UsageError(f"--workers {spec.workers}: at most {MOST_WORKERS} are possible")


def _choices(spec: JobSpec) -> None:
    for field, words in {**_WORDS, "launcher": ("", *launcher_names())}.items():
        if getattr(spec, field) not in words:
            known = ", ".join(word for word in words if word)
            raise UsageError(f"{_flag(field)} {getattr(spec, field)}: this is none of {known}")
    if spec.preset == "taco":
        raise UsageError(
            "--preset taco writes a whole mpirun line, and the line of a batch job is the user's own",
            remedy="`provision run --preset taco --dry-run` shows the line; --preset horovod-lightcc sets variables.",
        )
    if not re.fullmatch(r"(auto|gpu|cpu|[1-9][0-9]{0,8})?", spec.nproc_per_node):
        raise UsageError(f"--nproc-per-node {spec.nproc_per_node}: this is none of auto, gpu, cpu, or a number")
    if not re.fullmatch(r"([0-9]{1,10}:[0-9]{1,10}(,[0-9]{1,10})*)?", spec.user):
        raise UsageError(
            f"--user {spec.user}: numbers are wanted",
            remedy="Write UID:GID, as `id -u` and `id -g` say, and further groups behind commas.",
        )


def _image(spec: JobSpec) -> None:
    if spec.no_container:
        check_unit(spec)
    elif not spec.image:
        raise UsageError(
            "the job has no image",
            remedy="Name one: --image IMAGE; or --no-container, for programs that are installed on the nodes.",
        )


_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}")
_SIZE = re.compile(r"\d{1,18}[bkmg]?")
_LIMIT = re.compile(r"[a-z]{1,32}=-?[0-9]{1,19}(:-?[0-9]{1,19})?")


def _container(spec: JobSpec) -> None:
    """Refuse words that docker would take for options, or for others than they are meant as."""
    for field in ("image", "worker_image", "tensorboard_image"):
        value = getattr(spec, field)
        if value and not _IMAGE.fullmatch(value):
            raise UsageError(f"{_flag(field)} {value!r}: this is not the name of an image")
    if not _SIZE.fullmatch(spec.share_memory):
        raise UsageError(f"--share-memory {spec.share_memory!r}: this is not a size", remedy="Write 2Gi, 32g or 512m.")
    for name, value in spec.ulimits.items():
        if not _LIMIT.fullmatch(f"{name}={value}"):
            raise UsageError(f"--ulimit {name}={value}: this is not a limit", remedy="For example: memlock=-1")


def _environment(spec: JobSpec) -> None:
    for name in (*spec.env, *spec.secret_env):
        if not is_environment_name(name) or name.startswith("PROVISION_"):
            raise UsageError(f"--env {name!r}: this is not the name of a variable of the job")
    for text in (*spec.env.values(), *spec.command):
        if "\0" in text:
            raise UsageError("the command or a variable contains a NUL character")
        if _is_no_text(text):
            raise UsageError("the command or a variable contains half a character (a lone surrogate)")
    if any(len(text.encode("utf-8", "surrogateescape")) >= LONGEST_WORD for text in spec.command):
        raise UsageError(
            f"a word of the command has {LONGEST_WORD} bytes or more, and Linux starts no such program",
            remedy="Put the script into a file: --config-file, or --sync-mode.",
        )


def _is_no_text(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return True
    return False


def _paths(spec: JobSpec) -> None:
    for field in ("working_dir", "logdir"):
        if not getattr(spec, field).startswith("/"):
            raise UsageError(f"{_flag(field)} {getattr(spec, field)}: an absolute path of the container is wanted")
    for mount in spec.mounts:
        source, _, rest = mount.partition(":")
        target, _, mode = rest.partition(":")
        if not source.startswith("/") or not target.startswith("/") or mode not in {"", "ro", "rw"}:
            raise UsageError(f"--mount {mount}: this is not /SOURCE:/TARGET[:ro]", remedy="Both paths are absolute.")
        _target("--mount", mount, target)
    for text in spec.config_files:
        _target("--config-file", text, text.partition(":")[2])


def _target(flag: str, text: str, target: str) -> None:
    if not target.startswith("/") or not PurePosixPath(target).name or ".." in PurePosixPath(target).parts:
        raise UsageError(
            f"{flag} {text}: '{target}' is no absolute path below / in the container",
            remedy=f"Such as {flag} {text.split(':', maxsplit=1)[0]}:/data",
        )
    if not text.isprintable():
        raise UsageError(f"{flag} {text!r}: a path with a line break, or another letter that cannot be printed")


def _data(spec: JobSpec) -> None:
    names: set[str] = set()
    for name, target in spec.data:
        _target("--data", f"{name}:{target}", target)
        if name in names:
            raise UsageError(f"--data {name}: it is mounted twice", remedy="Give each name once.")
        names.add(name)
    mounted = [target for _, target in spec.data]
    mounted += [mount.split(":")[1] for mount in (*spec.mounts, *spec.config_files)]
    twice = _first(mounted, lambda target: mounted.count(target) > 1)
    if twice:
        raise UsageError(f"two things are mounted at {twice}", remedy="Give each a path of its own.")


def _code(spec: JobSpec) -> None:
    if spec.sync is None:
        return
    mode, source = spec.sync.mode, spec.sync.source
    if not mode or not source:
        given, other = ("--sync-source", "--sync-mode git") if source else (f"--sync-mode {mode}", "--sync-source")
        raise UsageError(f"{given} comes without {other.split()[0]}", remedy=f"Add {other}.")
    fetch_request(spec.sync, {})


def _placement(spec: JobSpec) -> None:
    both = _first(spec.nodes, lambda name: name in spec.exclude)
    if both:
        raise UsageError(f"{both} is in --nodes and in --exclude", remedy="Leave it out of one of them.")
    if spec.gpu_ids and len(set(spec.gpu_ids)) != len(spec.gpu_ids):
        raise UsageError("--gpu-ids names a GPU twice")
    if spec.gpu_ids and (not spec.gpus or len(spec.gpu_ids) % spec.gpus):
        raise UsageError(f"--gpu-ids names {len(spec.gpu_ids)} GPUs, and each worker gets {spec.gpus}")
    if spec.name in spec.depends:
        raise UsageError(f"--depends {spec.name}: a job cannot wait for itself")


def _launch(spec: JobSpec) -> None:
    if not any(spec.command):
        raise UsageError("the job has no command", remedy="Put it last, in quotes, or word by word behind --.")
    if (spec.launcher == "mpirun" or spec.ranks) and spec.kind is not Kind.MPI:
        raise UsageError(
            "ranks of mpirun are for mpi jobs", remedy="provision submit mpi; or --nproc-per-node for torchrun."
        )
    if spec.ranks and spec.launcher != "mpirun":
        raise UsageError(
            f"--launcher {spec.launcher} starts the command once, and --np {spec.ranks} asks for ranks of it",
            remedy="Leave one of them out.",
        )
    if launcher_of(spec.launcher).per_node and spec.kind is Kind.MPI:
        raise UsageError(
            f"--launcher {spec.launcher} is not for mpi jobs", remedy="mpi: --launcher mpirun; or submit pytorch."
        )
    if spec.nproc_per_node and spec.kind is Kind.MPI:
        raise UsageError("--nproc-per-node is for torchrun, not for mpi jobs", remedy="mpi: --np auto, or --np N.")
    _sharing(spec)
    trouble = surely_fails(spec) if spec.lint else ""
    if trouble:
        raise UsageError(trouble, remedy="Mend the line; --no-lint starts it all the same.")


def _sharing(spec: JobSpec) -> None:
    """Copies that share a GPU are one worker's, and nobody else makes processes of it."""
    if spec.mps and spec.procs_per_gpu < 2:  # noqa: PLR2004 - one process shares with nobody
        raise UsageError("--mps: there is nobody to share with", remedy="Add --procs-per-gpu N.")
    if spec.procs_per_gpu < 2:  # noqa: PLR2004
        return
    if spec.kind is Kind.MPI:
        raise UsageError(
            "--procs-per-gpu is for pytorch and run jobs", remedy="mpi: type the line: mpirun --oversubscribe -np N ..."
        )
    if spec.gpus != 1:
        raise UsageError(
            f"--procs-per-gpu shares one GPU, and each worker has {spec.gpus}",
            remedy="Write --gpus 1; --workers N is for more GPUs.",
        )
    if spec.nproc_per_node or launcher_of(spec.launcher).per_node:
        raise UsageError(
            "--procs-per-gpu starts copies of the command itself, and torchrun would start some too",
            remedy="Leave --nproc-per-node and --launcher out.",
        )


def _inside(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder)


def _first(items: Sequence[str], true: Callable[[str], bool]) -> str:
    return next((item for item in items if true(item)), "")
