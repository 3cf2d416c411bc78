"""Parse ``mpirun`` command lines of users: which words are flags, and where the program starts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from provision.commands.mca import Parameter
from provision.model import Setting

LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun")

_PARAMETERS = frozenset({"mca", "gmca", "prtemca", "gprtemca", "pmixmca", "omca", "gomca"})
"""Flags that are followed by a name and a value."""
_ALONE_NAMES = """
allow-run-as-root bind-to-core bind-to-none bind-to-socket bycore bynode bysocket byslot continuous
disable-recovery display-allocation display-devel-map display-map do-not-launch do-not-resolve enable-recovery
get-stack-traces index-argv-by-rank leave-session-attached merge-stderr-to-stdout no-local nolocal noprefix
nooversubscribe novm oversubscribe pernode preload-binary q quiet report-bindings report-child-jobs-separately
report-state-on-timeout set-cwd-to-session-dir staged tag-output timestamp-output use-hwthread-cpus v verbose xml
"""
_VALUE_NAMES = """
N H am app bind-to c cpu-list cpu-set default-hostfile display dvm dvm-uri forward-signals host hostfile
launch-agent machinefile map-by max-restarts n np npernode npersocket ompi-server output output-filename path
personality ppr prefix preload-files rank-by rankfile report-events report-pid report-uri rf runtime-options
slot-list stdin timeout tune wd wdir x xterm
"""
_ALONE, _WITH_VALUE = frozenset(_ALONE_NAMES.split()), frozenset(_VALUE_NAMES.split())
_NEVER_JOINED = frozenset({"H", "c"})
"""Open MPI 5 accepts ``-np=4`` and ``--host=a:8``, but not these flags with an equals sign."""
_RANKS = frozenset({"np", "n", "c"})
_HOSTS = frozenset({"H", "host"})
_HOSTFILES = frozenset({"hostfile", "machinefile", "default-hostfile"})
_PER_NODE = frozenset({"N", "npernode", "npersocket", "pernode", "ppr"})


def _number(text: str) -> int | None:
    """Return a number of ranks or slots; None for an invalid or implausibly large number."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


@dataclass(frozen=True)
class TypedLine:
    """A parsed mpirun command line."""

    program: str
    settings: tuple[Setting, ...]
    """Its flags with the words as typed."""
    command: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    """Flags that no version of Open MPI has; they are assumed to have no value."""
    joined: tuple[str, ...] = ()
    """Words that join a flag and its value with an equals sign, which Open MPI supports from version 5 on."""

    @property
    def variables(self) -> Mapping[str, str | None]:
        """Environment variables of the ranks; None where only the name is given."""
        return {setting.name: setting.value for setting in self.settings if setting.is_variable}

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """MCA parameters in the order of the command line."""
        given = [s for s in self.settings if _bare(s.flag) in _PARAMETERS]
        return tuple(Parameter(f"--{_bare(s.flag)}", s.name, s.value or "") for s in given)

    @property
    def ranks(self) -> int | None:
        """Number of ranks; None if it is not given."""
        given = self._value(_RANKS)
        return _number(given or "")

    @property
    def hosts(self) -> tuple[tuple[str, int], ...]:
        """Hosts of -H with their slots, 1 by default; several -H are added up."""
        hosts: dict[str, int] = {}
        given = (setting.value or "" for setting in self.settings if _bare(setting.flag) in _HOSTS)
        for word in ",".join(given).split(","):
            name, _, slots = word.partition(":")
            if name:
                hosts[name] = hosts.get(name, 0) + (1 if (count := _number(slots)) is None else count)
        return tuple(hosts.items())

    @property
    def names_hosts(self) -> bool:
        """Whether the command line maps ranks to nodes."""
        return self._value(_HOSTS | _HOSTFILES) is not None

    @property
    def counts_ranks(self) -> bool:
        """Whether the command line sets the number of ranks."""
        return any(_bare(setting.flag) in _RANKS | _PER_NODE for setting in self.settings) or any(
            "ppr:" in (setting.value or "") for setting in self.settings
        )

    @property
    def ranks_per_node(self) -> int | None:
        """Number of ranks per node if it is given, otherwise None."""
        for setting in self.settings:
            flag, value = _bare(setting.flag), setting.value or ""
            if flag == "pernode":
                return 1
            if flag in {"N", "npernode"}:
                return _number(value)
            named = re.search(r"ppr:([0-9]{1,9}):node\b" if flag == "map-by" else r"^([0-9]{1,9}):node\b", value)
            if flag in {"map-by", "ppr"} and named:
                return int(named[1])
        return None

    @property
    def oversubscribes(self) -> bool:
        """Whether more ranks than slots are allowed."""
        words = " ".join(f"{s.flag} {s.name} {s.value or ''}" for s in self.settings).lower()
        without = words.replace("nooversubscribe", "")
        return "oversubscribe" in without

    def has(self, *flags: str) -> bool:
        """Return whether any of these flags (without dashes) is on the command line."""
        return any(_bare(setting.flag) in flags for setting in self.settings)

    def _value(self, flags: frozenset[str]) -> str | None:
        return next((s.value for s in self.settings if _bare(s.flag) in flags), None)


def is_launcher(command: Sequence[str]) -> bool:
    """Return whether a command starts with mpirun."""
    return bool(command) and command[0].rpartition("/")[2] in LAUNCHERS


def parse_line(words: Sequence[str]) -> TypedLine:
    """Parse a command line that starts with the launcher. It never raises an error."""
    settings: list[Setting] = []
    unknown: list[str] = []
    joined: list[str] = []
    at = 1
    while at < len(words) and words[at].startswith("-"):
        flag, value = _parted(words[at])
        count = _count(flag)
        if count is None:
            unknown.append(flag)
        if value is not None:
            joined.append(words[at])
        behind = at + 1 + (count or 0) - (value is not None)
        values = [*([] if value is None else [value]), *words[at + 1 : behind]]
        settings.append(_setting(flag, values, tuple(words[at:behind])))
        at = behind
    return TypedLine(words[0], tuple(settings), tuple(words[at:]), tuple(unknown), tuple(joined))


def _parted(word: str) -> tuple[str, str | None]:
    """Split ``--np=4`` into flag and value; return other words unchanged."""
    flag, equals, value = word.partition("=")
    takes_one = _count(flag) and _bare(flag) not in _NEVER_JOINED
    return (flag, value) if equals and takes_one else (word, None)


def _setting(flag: str, values: Sequence[str], typed: tuple[str, ...]) -> Setting:
    if _bare(flag) == "x" and values:
        name, given, value = values[0].partition("=")
        return Setting("-x", name, value if given else None, "your command", typed=typed)
    padded: Iterator[str] = iter(values)
    name = next(padded, "") if _bare(flag) in _PARAMETERS else ""
    return Setting(flag, name, next(padded, None), "your command", typed=typed)


def _count(flag: str) -> int | None:
    """Return the number of words that belong to a flag; None for an unknown flag."""
    name = _bare(flag)
    return 2 if name in _PARAMETERS else 1 if name in _WITH_VALUE else 0 if name in _ALONE else None


def _bare(flag: str) -> str:
    return flag.lstrip("-")
