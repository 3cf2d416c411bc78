"""The flags of ``provision submit``: arena's, word for word, and ours; and how a command line is read by them."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from provision.errors import UsageError

__all__ = ["FLAGS", "IGNORED", "Flag", "Scanned", "flag_help", "scan"]


@dataclass(frozen=True)
class Flag:
    """One flag and what it sets."""

    names: tuple[str, ...]
    """The first one is shown first; names of one letter have one dash."""
    field: str
    """Of JobSpec, or a word that `provision.batch.submission` knows."""
    metavar: str
    """Empty: it stands for true or false, and takes a value behind ``=`` only."""
    help: str
    section: str
    off: bool = False
    """It says false."""

    @property
    def switches(self) -> bool:
        """Whether it needs no value."""
        return not self.metavar


_RUNS, _DATA, _WHERE, _START = "What runs", "Code and data", "Where it goes", "How it is started"
_BOX, _LIFE, _HERE = "Container", "Life of the job", "This command"

_TABLE = {
    _RUNS: """
    --name -J|name|NAME|The job's name, which no other job has, running or over. Required.
    --image|image|IMAGE|The image of its containers. Required, unless --worker-image is given.
    --worker-image|worker_image|IMAGE|The image of the workers that are not the master; in place of --image there.
    --gpus|gpus|N|GPUs of each worker. [0]
    --workers --num-worker -N|workers|N|Workers; for pytorch the master is one of them, for mpi the launcher is not. [1]
    -G|total_gpus|N|GPUs of all workers together, as Slurm counts them.
    --device|device|KIND=N|nvidia.com/gpu=N is --gpus N; there are no other devices.
    --working-dir --workdir|working_dir|DIR|The folder that the command runs in. [/root]
    --env -e|env|K[=V]|A variable; without =V your own. What looks like a secret is kept apart. May be repeated.
    --env-file|env_file|FILE|Lines of K=V, of a file that only you can read (chmod 600). May be repeated.
    --shell|shell|SHELL|What runs a command of one quoted word: sh or bash. [sh]
    --command|command_text|LINE|The command, for those who like it as a flag.
    --file -f|file|SPEC|A spec in YAML or JSON, as --dry-run -o yaml prints it; - for standard input; flags override it.
    """,
    _DATA: """
    --data -d|data|NAME:/PATH|Mount what `provision data list` calls NAME. May be repeated.
    --data-dir|data_dir|DIR[:/PATH]|Mount a folder of the nodes. May be repeated.
    --mount --volume -v|mounts|SRC:DST[:ro]|Mount a file or folder of the nodes, as docker does. May be repeated.
    --config-file|config_files|FILE[:/PATH]|Copy a file of here to the nodes, and mount it read-only; up to 1 MiB.
    --sync-mode|sync_mode|MODE|Bring code to every node, into WORKDIR/code/NAME: git, rsync or local.
    --sync-source|sync_source|SOURCE|The repository, rsync source, or (local) folder; goes with --sync-mode.
    --sync-revision|sync_revision|REF|Branch, tag or commit for git.
    --tensorboard|tensorboard||Show the training in TensorBoard, on the first node.
    --tensorboard-image|tensorboard_image|IMAGE|An image that has TensorBoard. [the job's]
    --logdir|logdir|DIR|Where TensorBoard finds its events; best inside of --data. [/training_logs]
    """,
    _WHERE: """
    --gang|gang||Start all workers or none. [true]
    --no-gang|gang|-|Start what fits (as --gang=false).
    --gputopology|gputopology||Choose the GPUs by their links, among nodes labelled gpu.schedule=topology.
    --nodes --nodelist -w|nodes|NODE,...|Only these nodes.
    --exclude -x|exclude|NODE,...|Not these nodes.
    --selector --constraint -C|selector|K=V|Only nodes with this label. May be repeated.
    --toleration|toleration|KEY|Drained nodes too: `all` or `drained`.
    --pack|pack||As few nodes as possible. [true]
    --spread|spread||As many nodes as possible.
    --max-per-node|max_per_node|N|At most so many workers on one node. [0: no limit]
    --exclusive|exclusive||Nodes that have no other job, and get none.
    --gpu-ids|gpu_ids|I,...|These GPUs of each node, by nvidia-smi's numbers.
    """,
    _START: """
    --np --ntasks|np|N|mpi: make the mpirun line, with N ranks; `auto`: one for each GPU.
    --nproc-per-node|nproc_per_node|N|pytorch: processes of each worker, by torchrun: auto, gpu, cpu or a number.
    --launcher|launcher|NAME|torchrun, launch (torch.distributed.launch), python or mpirun. [the command as it is]
    --procs-per-gpu|procs_per_gpu|N|Copies of the command that share a worker's one GPU. [0: one]
    --mps|mps||Share it by NVIDIA's MPS.
    --no-lint|lint|-|mpi: start a typed mpirun line even if it surely fails.
    --preset|preset|NAME|A guide's settings: horovod-lightcc.
    --fabric|fabric|NAME|Send over tcp, roce, roce-gdr or ib; else what the nodes have.
    """,
    _BOX: """
    --share-memory --shm-size|share_memory|SIZE|/dev/shm, as 2Gi or 32g. [32g]
    --ulimit|ulimits|NAME=N|A limit, as memlock=-1. May be repeated.
    --privileged|privileged||Everything of the host; without it RDMA devices and IPC_LOCK alone.
    --rdma|rdma||Give RDMA devices where there are any. [true]
    --no-rdma|rdma|-|Give none.
    --pull --image-pull-policy|pull|WHEN|always, missing or never. [missing]
    --image-pull-secret|image_pull_secret|SERVER|A registry's login, as `provision secret list` names it. [the image's]
    --user -u|user|UID:GID[,GID...]|Who runs in it, with further groups. [the image's, else root]
    --no-container|no_container||No image: processes of the nodes, with what is installed there.
    """,
    _LIFE: """
    --retry|retry|N|Start the whole job again when it failed, N times at most. [0]
    --running-timeout --time -t|running_timeout|TIME|End it after this time.
    --starting-timeout|starting_timeout|TIME|Give the start up after this time, as pulling before it. [10m, pulling 30m]
    --ttl-after-finished|ttl_after_finished|TIME|Forget it so long after its end.
    --clean-task-policy|clean_task_policy|WHICH|Containers that go at the end: None, Running or All.
    --priority -p|priority|N|Higher ones start first. [0]
    --queue|queue|NAME|Hold it, labelled with this queue, until somebody lets it start.
    --hold|hold||Record it, and start it later: provision queue release NAME.
    --depends|depends|JOB,...|Start when these have succeeded.
    --label -l|labels|K=V|A label, for list -l. May be repeated.
    --annotation -a|annotations|K=V|A remark. May be repeated.
    --model-name|model_name|NAME|A remark of its own, shown by get -o wide.
    --model-source|model_source|WHERE|Likewise.
    """,
    _HERE: """
    --wait|wait||Wait for its end; exit with its code.
    --follow|follow||Show its output until its end; exit with its code.
    --dry-run|dry_run||Say where it would go and what would be started; start nothing.
    --engine|engine|NAME|Job engine; auto: that of the inventory. [auto]
    --output -o|output|FORM|json, yaml or name.
    --json|json||The same as -o json.
    --inventory -i|inventory|PATH|Ansible inventory: a file or a folder.
    --lab|lab|NAME|Use the nodes of this lab.
    --ask-become-pass -K|ask_become_pass||Ask for the sudo password of the nodes.
    """,
}

IGNORED = {
    "--scheduler": "nodes are chosen by provision",
    "--hostNetwork": "every job has the host's network",
    "--hostIPC": "instances of one node share what they need",
    "--hostPID": "containers have their own processes",
    "--mounts-on-launcher": "the launcher lives in the first worker's container and has its mounts",
    "--sync-image": "code is brought by the nodes themselves",
    "--cpu": "jobs are not cut to a share of a node's CPUs",
    "--memory": "jobs are not cut to a share of a node's memory",
}
"""Flags of arena that are taken, and change nothing here: why."""
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
    """A command line, cut into flags and the rest."""

    given: tuple[tuple[Flag, str, str], ...]
    """(flag, name as it was typed, value)."""
    loose: tuple[str, ...]
    """Words that are no flags."""
    behind: tuple[str, ...] | None
    """What stands behind ``--``; None without it."""
    notes: tuple[str, ...] = ()


def scan(words: Sequence[str]) -> Scanned:
    """Cut the words behind ``submit``; flags and other words may stand in any order, up to ``--``.

    Raises:
        UsageError: a flag that there is not, or one without its value.
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
                _taken(name, rest)
            notes.append(f"{name} changes nothing here: {IGNORED[name]}")
            continue
        flag = _known_flag(name, notes)
        if flag.switches:
            given.append((flag, name, value if equals else "false" if flag.off else "true"))
        else:
            given.append((flag, name, value if equals else _taken(name, rest)))
    return Scanned(tuple(given), tuple(loose), None, tuple(notes))


def _split(word: str) -> tuple[str, str, str]:
    """Return name, what parts it from its value, and the value; ``-eK=V`` is ``-e K=V``."""
    name, equals, value = word.partition("=")
    if not word.startswith("--") and len(name) > 2 and word[:2] in _BY_NAME:  # noqa: PLR2004 - dash and letter
        return word[:2], "=", word[2:]
    return name, equals, value


_INSTEAD = {
    "-n": "Name the job with --name, and set the number of workers with --workers. ",
}
"""Option of another command -> what it is called here."""


def _taken(name: str, rest: list[str]) -> str:
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
        notes.append(f"{name} is the old spelling of {known.names[0]}")
        return known
    close = difflib.get_close_matches(dashed, [*_BY_NAME, *IGNORED], 1, 0.7)
    raise UsageError(
        f"provision submit: there is no option {name}" + (f"; did you mean {close[0]}?" if close else ""),
        remedy=f"{_INSTEAD.get(name, '')}Put a command with options of its own behind --, or in quotes. "
        "All options: provision submit --help",
    )


def flag_help(width: int = 80) -> str:
    """Return the flags as text, by section."""
    lines: list[str] = []
    indent = 30
    for section in _TABLE:
        lines += ["", f"{section}:"]
        for flag in FLAGS:
            if flag.section != section:
                continue
            short = [name for name in flag.names if not name.startswith("--")]
            long = [name for name in flag.names if name.startswith("--")]
            head = "  " + ", ".join([*short, *long[:1]]) + (f" {flag.metavar}" if flag.metavar else "")
            help_lines = textwrap.wrap(flag.help, width - indent)
            if len(head) > indent - 2:
                lines.append(head)
                head = ""
            lines.append(f"{head:<{indent}}{help_lines[0]}".rstrip())
            lines += [" " * indent + part for part in help_lines[1:]]
    return "\n".join(lines[1:])
