"""The flags of ``provision submit``, which include those of arena, and the parser of its command line."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from provision.errors import UsageError
from provision.launchers import DEFAULT_PER_NODE, launcher_names


@dataclass(frozen=True)
class Flag:
    """A flag and the field that it sets."""

    names: tuple[str, ...]
    """The first one is the main name; names of one letter have one dash."""
    field: str
    """A field of JobSpec, or another key that `provision.batch.submission` uses."""
    metavar: str
    """Empty for a switch, whose value can only follow ``=``."""
    help: str
    section: str
    off: bool = False
    """Whether the switch means false."""

    @property
    def usage(self) -> str:
        """Return its names of one letter, its main name and the kind of its value, as in a help."""
        short = [name for name in self.names if not name.startswith("--")]
        long = [name for name in self.names if name.startswith("--")]
        return ", ".join([*short, *long[:1]]) + (f" {self.metavar}" if self.metavar else "")

    @property
    def is_switch(self) -> bool:
        """Return whether it needs no value."""
        return not self.metavar


_RUNS, _DATA, _WHERE, _START = "Program", "Code and data", "Placement", "Launch"
_BOX, _LIFE, _HERE = "Container", "Lifecycle", "This command"

_TABLE = {
    _RUNS: """
    --name -J|name|NAME|Unique name of the job. Required.
    --image|image|IMAGE|Image of the containers. Required, unless --worker-image is given.
    --worker-image|worker_image|IMAGE|Image of the workers except the master, instead of --image.
    --gpus|gpus|N|GPUs of each worker. [0]
    --workers --num-worker -N|workers|N|Workers; includes the master of pytorch, but not the launcher of mpi. [1]
    -G|total_gpus|N|GPUs of all workers together, as in Slurm.
    --device|device|KIND=N|nvidia.com/gpu=N means --gpus N; other devices are not supported.
    --working-dir --workdir|working_dir|DIR|Working directory of the command. [/root]
    --env -e|env|K[=V]|Variable; without =V, with your own value. Secrets are sent separately. Repeatable.
    --env-file|env_file|FILE|File of K=V lines that only you can read (chmod 600). Repeatable.
    --shell|shell|SHELL|Shell for a command in quotes: sh or bash. [sh]
    --command|command_text|LINE|The command, instead of the last argument.
    --file -f|file|SPEC|Spec file, as printed by --dry-run -o yaml; - for standard input. Flags override it.
    """,
    _DATA: """
    --data -d|data|NAME:/PATH|Mount a volume of `provision data list`. Repeatable.
    --data-dir|data_dir|DIR[:/PATH]|Mount a folder of the nodes. Repeatable.
    --mount --volume -v|mounts|SRC:DST[:ro]|Mount a file or folder of the nodes, as in docker. Repeatable.
    --config-file|config_files|FILE[:/PATH]|Copy a local file to the nodes and mount it read-only; at most 1 MiB.
    --sync-mode|sync_mode|MODE|Copy code into WORKDIR/code/NAME on every node: git, rsync or local.
    --sync-source|sync_source|SOURCE|Repository, rsync source or local folder for --sync-mode.
    --sync-revision|sync_revision|REF|Branch, tag or commit of the git repository.
    --tensorboard|tensorboard||Start TensorBoard on the first node.
    --tensorboard-image|tensorboard_image|IMAGE|Image with TensorBoard. [the job's]
    --logdir|logdir|DIR|Folder of the TensorBoard events, preferably on a --data volume. [/training_logs]
    """,
    _WHERE: """
    --gang|gang||Start all workers or none (gang scheduling). [true]
    --no-gang|gang|-|Start the workers that fit (same as --gang=false).
    --gputopology|gputopology||Choose GPUs by their links, on nodes with the label gpu.schedule=topology.
    --nodes --nodelist -w|nodes|NODE,...|Use only these nodes.
    --exclude -x|exclude|NODE,...|Do not use these nodes.
    --selector --constraint -C|selector|K=V|Use only nodes with this label. Repeatable.
    --toleration|toleration|KEY|Also use drained nodes: `all` or `drained`.
    --pack|pack||Use as few nodes as possible. [true]
    --spread|spread||Use as many nodes as possible.
    --max-per-node|max_per_node|N|Maximum number of workers on one node. [0: no limit]
    --exclusive|exclusive||Use nodes without other jobs, and block them for other jobs.
    --gpu-ids|gpu_ids|I,...|Use these GPUs of each node, by index of nvidia-smi.
    """,
    _START: f"""
    --np --ntasks|np|N|mpi: generate the mpirun command with N ranks; `auto`: one for each GPU.
    --nproc-per-node|nproc_per_node|N|pytorch: processes of a worker, by {DEFAULT_PER_NODE}: auto, gpu, cpu or a number.
    --launcher|launcher|NAME|{", ".join(launcher_names())}. [unchanged command]
    --procs-per-gpu|procs_per_gpu|N|Copies of the command that share the GPU of a worker. [0: one]
    --mps|mps||Share the GPU by NVIDIA MPS.
    --no-lint|lint|-|mpi: start an mpirun command even if it will fail.
    --preset|preset|NAME|Settings of a guide: horovod-lightcc.
    --fabric|fabric|NAME|Network: tcp, roce, roce-gdr or ib. [the best one of the nodes]
    """,
    _BOX: """
    --share-memory --shm-size|share_memory|SIZE|Size of /dev/shm, e.g. 2Gi or 32g. [32g]
    --ulimit|ulimits|NAME=N|Limit, e.g. memlock=-1. Repeatable.
    --privileged|privileged||Give all devices and rights of the host, instead of only RDMA devices and IPC_LOCK.
    --rdma|rdma||Give RDMA devices, if the node has any. [true]
    --no-rdma|rdma|-|Give no RDMA devices.
    --pull --image-pull-policy|pull|WHEN|Pull the image: always, missing or never. [missing]
    --image-pull-secret|image_pull_secret|SERVER|Credential for a registry, see `provision secret list`. [the image's]
    --user -u|user|UID:GID[,GID...]|Account and additional groups. [the image's, else root]
    --no-container|no_container||Run processes on the nodes, without a container.
    """,
    _LIFE: """
    --retry|retry|N|Restart the whole job after a failure, at most N times. [0]
    --running-timeout --time -t|running_timeout|TIME|Stop the job after this time.
    --starting-timeout|starting_timeout|TIME|Time limit of the start, and of the pull before it. [10m; pull 30m]
    --ttl-after-finished|ttl_after_finished|TIME|Delete the finished job after this time.
    --clean-task-policy|clean_task_policy|WHICH|Containers to remove at the end: None, Running or All.
    --priority -p|priority|N|Jobs with higher priority start first. [0]
    --queue|queue|NAME|Label the job with this queue, and hold it until it is released.
    --hold|hold||Hold the job until: provision queue release NAME.
    --depends|depends|JOB,...|Start after these jobs have succeeded.
    --label -l|labels|K=V|Label, for list -l. Repeatable.
    --annotation -a|annotations|K=V|Annotation. Repeatable.
    --model-name|model_name|NAME|Name of the model, printed by get -o wide.
    --model-source|model_source|WHERE|Source of the model, printed by get -o wide.
    """,
    _HERE: """
    --wait|wait||Wait until the job has finished; exit with its exit code.
    --follow|follow||Follow the output until the job has finished; exit with its exit code.
    --dry-run|dry_run||Print placement and commands without starting the job.
    --engine|engine|NAME|Job engine; auto: the engine of the inventory. [auto]
    --output -o|output|FORM|Output format: json, yaml or name.
    --json|json||Same as -o json.
    --inventory -i|inventory|PATH|Ansible inventory: a file or a folder.
    --lab|lab|NAME|Use the nodes of this lab.
    --ask-become-pass -K|ask_become_pass||Ask for the sudo password of the nodes.
    """,
}

IGNORED = {
    "--scheduler": "provision chooses the nodes",
    "--hostNetwork": "every job uses the network of the host",
    "--hostIPC": "instances on one node share the required resources",
    "--hostPID": "containers have their own process namespaces",
    "--mounts-on-launcher": "the launcher runs in the container of the first worker and has its mounts",
    "--sync-image": "nodes fetch the code",
    "--cpu": "jobs have no limit of CPUs",
    "--memory": "jobs have no limit of memory",
}
"""Ignored flags of arena -> the reason."""
_IGNORED_SWITCHES = frozenset({"--hostNetwork", "--hostIPC", "--hostPID", "--mounts-on-launcher"})


def _flags() -> Iterator[Flag]:
    for section, lines in _TABLE.items():
        for line in textwrap.dedent(lines).strip().splitlines():
            names, field, metavar, text = line.split("|", 3)
            yield Flag(tuple(names.split()), field, metavar.strip("-"), text, section, off=metavar == "-")


FLAGS = tuple(_flags())
_BY_NAME = {name: flag for flag in FLAGS for name in flag.names}


@dataclass(frozen=True)
class Scanned:
    """A command line, separated into flags and other words."""

    given: tuple[tuple[Flag, str, str], ...]
    """(flag, name on the command line, value)."""
    loose: tuple[str, ...]
    """Words that are not flags."""
    behind: tuple[str, ...] | None
    """The words after ``--``; None without it."""
    notes: tuple[str, ...] = ()


def scan(words: Sequence[str]) -> Scanned:
    """Separate the arguments of ``submit``; flags and other words can have any order before ``--``.

    Raises:
        UsageError: an unknown flag, or a flag without its value.
    """
    given: list[tuple[Flag, str, str]] = []
    loose: list[str] = []
    notes: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return Scanned(tuple(given), tuple(loose), tuple(rest), tuple(notes))
        if not word.startswith("-") or word == "-":
            loose.append(word)
            continue
        name, equals, value = _split(word)
        if name in IGNORED:
            if not equals and name not in _IGNORED_SWITCHES:
                _value_of(name, rest)
            notes.append(f"{name} has no effect: {IGNORED[name]}")
            continue
        flag = _known_flag(name, notes)
        if flag.is_switch:
            given.append((flag, name, value if equals else "false" if flag.off else "true"))
        else:
            given.append((flag, name, value if equals else _value_of(name, rest)))
    return Scanned(tuple(given), tuple(loose), None, tuple(notes))


def _split(word: str) -> tuple[str, str, str]:
    """Return name, separator and value; ``-eK=V`` means ``-e K=V``."""
    name, equals, value = word.partition("=")
    if not word.startswith("--") and len(name) > 2 and word[:2] in _BY_NAME:  # noqa: PLR2004 - dash and letter
        return word[:2], "=", word[2:]
    return name, equals, value


_INSTEAD = {
    "-n": "Name the job with --name, and set the number of workers with --workers. ",
}
"""Option of another command -> the equivalent options."""


def _value_of(name: str, rest: list[str]) -> str:
    if not rest or rest[0] == "--":
        raise UsageError(f"provision submit: {name} needs a value", remedy="All options: provision submit --help")
    return rest.pop(0)


def _known_flag(name: str, notes: list[str]) -> Flag:
    flag = _BY_NAME.get(name)
    if flag is not None:
        return flag
    dashed = re.sub(r"(?<=[a-z])(?=[A-Z])|_", "-", name).lower()
    plain = dashed.removesuffix("s") if dashed not in _BY_NAME else dashed
    known = _BY_NAME.get(dashed) or _BY_NAME.get(plain)
    if known is not None:
        notes.append(f"{name} is an alias of {known.names[0]}")
        return known
    close = difflib.get_close_matches(dashed, [*_BY_NAME, *IGNORED], 1, 0.7)
    raise UsageError(
        f"provision submit: no such option {name}" + (f"; did you mean {close[0]}?" if close else ""),
        remedy=f"{_INSTEAD.get(name, '')}Write a command with options after --, or in quotes. "
        "All options: provision submit --help",
    )


def flag_help(width: int = 80) -> str:
    """Return the help text of the flags, by section."""
    lines: list[str] = []
    indent = 30
    for section in _TABLE:
        lines += ["", f"{section}:"]
        for flag in FLAGS:
            if flag.section != section:
                continue
            head = f"  {flag.usage}"
            help_lines = textwrap.wrap(flag.help, width - indent)
            if len(head) > indent - 2:
                lines.append(head)
                head = ""
            lines.append(f"{head:<{indent}}{help_lines[0]}".rstrip())
            lines += [" " * indent + part for part in help_lines[1:]]
    return "\n".join(lines[1:])
