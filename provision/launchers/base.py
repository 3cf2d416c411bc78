"""What a launcher is: the program that starts the processes of a job, and what it needs for that."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from provision.errors import UsageError
from provision.model import Setting

Hosts = Sequence[tuple[str, int]]
"""Nodes with their slots."""
MASTER_PORT = 29500
"""Where torch's ranks meet unless something else listens there."""


@dataclass(frozen=True)
class HostEntry:
    """One node that can take ranks."""

    name: str
    """The inventory name; it resolves to the data address on nodes and in containers."""
    address: str
    """The data address, for launchers that take no names."""
    slots: int
    kind: str
    """``gpu`` or ``cpu``: what a slot is."""
    cpus: int = field(default=0, compare=False)
    """CPUs of the node; 0 when they are not known."""
    free_port: int = field(default=MASTER_PORT, compare=False)
    """A port of the node that nothing listened on when it was probed."""


@dataclass(frozen=True)
class Launch:
    """Everything that the command line of an MPI launcher depends on."""

    version: int
    """Open MPI's major version; 0 of another MPI."""
    ranks: int
    command: tuple[str, ...]
    hostfile: str = ""
    """Path in the head node's container; empty: the launcher's environment names it."""
    job: str = ""
    """Id that marks every process of the job (environment variable PROVISION_JOB); empty: the environment has it."""
    networks: tuple[str, ...] = ()
    """Data networks as CIDRs; interface names differ between nodes, CIDRs do not."""
    interfaces: tuple[str, ...] = ()
    """Names of the interfaces that carry the nodes' data addresses, of all nodes together."""
    subnets: tuple[str, ...] = ()
    """Networks of the nodes' data addresses as CIDRs, for nodes whose interfaces have different names."""
    root: bool = False
    """Whether the container's user is root, which mpirun refuses unless it is allowed."""
    environment: tuple[str, ...] = ()
    """Names of variables that every rank gets."""
    variables: tuple[Setting, ...] = ()
    """Variables with their values, or with where their values come from."""
    workdir: str | None = None
    per_node: bool = False
    """One process on each node, which starts the others itself."""
    ssh_config: str = "/etc/provision/ssh/ssh_config"
    program: str = "mpirun"


@dataclass(frozen=True)
class CommandLine:
    """The flags and variables of a command line, and the launcher's environment that they need."""

    settings: tuple[Setting, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reach:
    """How a launcher finds the nodes of a job and logs in to them where its command line does not say so."""

    ssh_config: str = "/etc/provision/ssh/ssh_config"
    job: str = ""
    """Id that marks the launcher's daemons; empty: their container belongs to the job."""
    folder: str = ""
    """Has the host files, each by the `file_name` of its launcher; empty: the command line names hosts."""
    interfaces: Sequence[str] = ()
    """Names of the interfaces that carry the nodes' data addresses; none when one is not known."""
    subnets: Sequence[str] = ()
    """Networks of these addresses as CIDRs; likewise."""


def argv_of(program: str, settings: Iterable[Setting], command: Iterable[str]) -> list[str]:
    """Return the whole command line of settings."""
    return [program, *(word for setting in settings for word in setting.words()), *command]


@dataclass(frozen=True)
class Launcher:
    """One way to start the processes of a job. Its functions are pure."""

    name: str
    order: int = 100
    """Position in lists.

    The first MPI library is assumed where the inventory names none (`DEFAULT_MPI`). The first launcher with `per_node`
    and `rendezvous` starts the processes of a node if only their number is given (`DEFAULT_PER_NODE`).
    """
    label: str = ""
    """What a person calls the MPI library that it belongs to; empty for others."""
    version: int = 0
    """Major version, where launchers of one label differ by it."""

    host_file: Callable[[Sequence[HostEntry]], str] | None = None
    """Returns the host file, which ends with a newline unless there are no entries; None: it reads none.

    Raises UsageError when it cannot start ranks on these nodes.
    """
    has_port: bool = False
    """Whether the host file contains `HostEntry.free_port`, which ``hostfile --master-port`` sets."""
    file_name: str = ""
    """Name of the host file among the files of a batch job of type mpi; empty: it is not there.

    Other types of batch jobs get no host file: their processes find each other by the variables of `shell_line`.
    """
    binds_ranks: bool = False
    """Whether it reads a rank file."""

    identify: Callable[[str], int | None] | None = None
    """Returns the major version from the first line of ``mpirun --version``; None for another launcher's line."""
    command_line: Callable[[Launch], CommandLine] = lambda _: CommandLine(())
    """Returns the command line that starts ranks on all nodes; empty for a launcher that mpirun starts."""
    argv: Callable[[str, Iterable[Setting], Iterable[str]], list[str]] = argv_of
    """Returns the words of program, settings and command."""
    environment: Callable[[Reach], dict[str, str]] = lambda _: {}
    """Returns the variables by which it reaches the nodes where its command line does not say how.

    They are set for mpirun in `run`, and in the containers of a batch job of type mpi. Launchers with `per_node` get
    the variables of `shell_line` instead.
    """
    reads_lines: bool = False
    """Whether `run` completes command lines that users type for it, and writes those of presets for it."""
    typed_settings: Callable[[Launch, Hosts, Mapping[str, str], str], tuple[Setting, ...]] = lambda *_: ()
    """Returns a command line as users type it, from hosts, parameters and who decided the parameters."""

    commands: tuple[str, ...] = ()
    """Programs that users type to start it."""
    modules: tuple[str, ...] = ()
    """Python modules that users type to start it (``python -m``)."""
    per_node: bool = False
    """Whether it is started once on each node and starts that node's processes itself."""
    rendezvous: bool = False
    """Whether ``run --launcher`` and ``submit --launcher`` accept it.

    Its processes then get the variables with which torch's ranks find each other. If it starts one process for each
    rank, these are MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE in `run`, and the first
    four in a batch job. With `per_node` these are the variables of `shell_line`.
    """
    instead: str = ""
    """What ``submit NAME`` proposes if other tools have a job type of this name and ``submit`` has none (the types are
    `model.job.Kind`); empty: NAME is an unknown type."""
    equal_slots: bool = False
    """Whether all nodes must have the same number of ranks."""
    program: str = ""
    """What is started on each node, in front of the script; empty: the command itself."""
    shell_line: str = ""
    """A line for sh in place of `program`, for options that differ between nodes.

    Each node has the variables PET_NNODES, PET_NODE_RANK, PET_NPROC_PER_NODE, PET_MASTER_ADDR and PET_MASTER_PORT,
    which torchrun reads by itself, and MASTER_ADDR, MASTER_PORT, WORLD_SIZE (nodes) and RANK (of the node).
    """

    def node_words(self, shell: str, command: tuple[str, ...]) -> tuple[str, ...]:
        """Return what starts a command on a node; one word is a line for the shell."""
        start = self.shell_line or self.program
        if len(command) == 1:
            return (shell, "-c", _INTERPRETER.sub(lambda match: f"{match[1]}{start} ", command[0], count=1))
        return (*self.prefix(shell), *script_words(command))

    def prefix(self, shell: str = "sh") -> tuple[str, ...]:
        """Return the words in front of a script."""
        return (shell, "-c", f'{self.shell_line} "$@"', shell) if self.shell_line else (self.program,)


_INTERPRETER = re.compile(
    r"""^\s*((?:[A-Za-z_]\w*=(?:'[^']*'|"[^"]*"|[^\s'"])*\s+)*)(?:(?:\S*/)?python[\d.]*\s+(?:-u\s+)*)?"""
)
"""Of a line: the variables before its program, which stay there, and python, which the launchers start."""
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")


def script_words(words: Sequence[str]) -> tuple[str, ...]:
    """Return the script of a command and its words, without the interpreter before it."""
    left = list(words)
    if len(left) > 1 and _PYTHON.fullmatch(left[0].rpartition("/")[2]):
        left.pop(0)
        while len(left) > 1 and left[0] == "-u":  # the launchers add it
            left.pop(0)
    return tuple(left)


def fitted(entries: Sequence[HostEntry], ranks: int | None) -> list[HostEntry]:
    """Return the entries with just as many slots as there are ranks, filled in order; all slots without a number.

    Raises:
        UsageError: there are fewer slots than ranks; the table of slots is its output.
    """
    if ranks is None:
        return list(entries)
    total = sum(entry.slots for entry in entries)
    if not 1 <= ranks <= total:
        raise UsageError(
            f"{ranks} ranks were asked for, but the nodes have {total} slot{'s' * (total != 1)}",
            remedy=f"Ask for 1 to {total} (-n), or add nodes.",
            output=slot_table(entries),
        )
    left, fitting = ranks, []
    for entry in entries:
        taken = min(entry.slots, left)
        left -= taken
        if taken:
            fitting.append(replace(entry, slots=taken))
    return fitting


def slot_table(entries: Sequence[HostEntry]) -> str:
    """Return the slots of each node, and what a slot is there."""
    width = max(len("node"), *(len(entry.name) for entry in entries))
    rows = [f"{'node':<{width}}  slots  of"]
    rows += [f"{entry.name:<{width}}  {entry.slots:>5}  {entry.kind}" for entry in entries]
    return "\n".join([*rows, f"{'total':<{width}}  {sum(entry.slots for entry in entries):>5}"])
