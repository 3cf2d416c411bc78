"""Build one shell script from the commands of many facts, and split its output into the output of each fact.

Every command runs in its own session with its own time limit, and writes to memory or to its own file. A command that
hangs, even one that no signal can kill, costs only its own fact and does not keep the SSH session open. Starting
programs is the main cost on a slow node, so commands use shell built-ins where possible, and limits grow with the
measured time of process starts: a slow node is not a hung node.

There are two runners with the same limits and the same output. With python3, `files/probe.py` uses one process
instead of many and executes some commands itself (`_WORKS`). Otherwise the shell runs them, because a node must be
probed before Python can be installed. The shell also takes over if python3 is broken or does not start.

A session costs more than most commands. Commands that only read files (`TOGETHER`) therefore share one session, one
after the other; if one hangs, the later ones are started again in sessions of their own. probe.py also runs them in one
shell, except those that would leave it or its folder (`_LEAVES`); variables that they set are unset before. Facts with
the same command share its output.
"""

from __future__ import annotations

import functools
import hashlib
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from provision.facts.base import Fact, RawOutput, Unknown
from provision.facts.container_ssh import ContainerSshFact, ContainerTrustFact
from provision.facts.kernel import ModulesFact, PackagesFact, SysctlsFact
from provision.facts.outputs import SHARED, Outputs
from provision.facts.program import BEGIN, COMMAND, COMMAND_OF_ARGUMENT, PROBE
from provision.facts.records import ReceiptsFact
from provision.facts.system import LimitsFact
from provision.facts.units import UNITS

__all__ = ["MOST_SLACK_SECONDS", "TOGETHER", "Parameters", "script", "split"]

MOST_SLACK_SECONDS = 120
"""The maximum extra time of every limit on a slow node."""

OUTPUT_LIMIT = 8 * 1024 * 1024
"""Maximum number of characters of one command's output."""

TOGETHER = frozenset(
    {
        "addresses", "boot", "clock", "container_ssh", "container_trust", "disks", "dma_buf", "docker_config",
        "fabric_manager", "gpu_pci", "hardware", "kernels", "kind", "limits", "listening", "modules",
        "nccl", "nvidia_container", "nvidia_modules", "packages", "pci_links", "pci_routing", "peer_memory",
        "peer_status", "rdma", "rdma_counters", "receipts", "routes", "signing", "simulated", "sysctls", "system",
        "time_sync", "xids",
    }
)  # fmt: skip
"""Facts that query the kernel, systemd and local disks: no name service, no GPU tool, no docker."""

PYTHON_SECONDS = 10
"""Time limit for the start of python3; after it the shell alone probes the node."""

_LAST = ("time_sync", "nccl", "disks")
"""Those of TOGETHER that block if systemd or a file system does not answer; they run last."""

_TOGETHER_SECONDS = 20

STUCK = "/run/provision-probe.stuck"
"""File on a node with the processes of earlier probes that no signal could kill; only root can write it."""
CACHE = "/run/provision-probe"
"""Folder on a node with results that later probes reuse; only root can write there."""

_SMI = "gpus nvlinks topology"
"""Facts that query nvidia-smi, and print nothing without it."""

_KERNEL = """PROBE_MACHINE=
{ read -r PROBE_RELEASE </proc/sys/kernel/osrelease; read -r PROBE_MACHINE </proc/sys/kernel/arch; } 2>/dev/null
[ -n "$PROBE_MACHINE" ] || { set -- $(uname -rm); PROBE_RELEASE=$1 PROBE_MACHINE=$2; }"""
"""Kernels before 6.1 do not report the architecture in a file."""

_WORKS = {
    COMMAND: "program",
    UNITS: "units",
    PackagesFact.command: "packages",
    SysctlsFact.command: "sysctls",
    LimitsFact.command: "limits",
    ModulesFact.command: "modules",
    ReceiptsFact.command: "receipts",
    ContainerSshFact.command: "container_ssh",
    ContainerTrustFact.command: "container_trust",
}
"""Commands that probe.py executes without a shell, because they would start programs or share work."""
_LEAVES = re.compile(r"(?<![\w$/.-])(?:exit|cd|exec|trap|umask|return|export|readonly|alias|set [-+]\w)(?![\w=-])")
"""Commands with effects beyond themselves, which therefore need their own shell."""
_VARIABLES = re.compile(r"(?<![\w$/.-])(?:([a-z]\w*|IFS)=|for ([a-z]\w*)|read (?:-r )?([a-z][\w ]*))")
"""The variables that a command sets."""

_PARAMETERS, _TOKEN = "@parameters@", "@token@"
_FIRST_LINE = re.compile(r"^provision-probe 1 ([0-9a-f]{32})\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Parameters:
    """Inputs of the commands; each becomes a shell variable. PROBE_RELEASE is the node's kernel.

    PROBE_MACHINE is its architecture, as printed by ``uname -m``.
    """

    names: tuple[str, ...] = ()
    """Names that should resolve on the node: PROBE_NAMES."""
    container: str = "provision-training"
    """PROBE_CONTAINER."""
    images: tuple[str, ...] = ()
    """References of the training image: PROBE_IMAGES."""
    sysctls: tuple[str, ...] = ()
    """PROBE_SYSCTLS."""
    paths: tuple[str, ...] = (
        *("/", "/etc", "/run", "/tmp", "/var/log", "/var/lib", "/var/lib/containerd", "/var/lib/docker"),  # noqa: S108 # nosec B108
        *("/var/lib/provision", "/var/lib/provision/jobs"),
    )
    """Paths whose free space is reported: PROBE_PATHS."""
    topology: bool = False
    """Whether nvidia-smi is queried for the matrix of GPUs and cards: PROBE_TOPOLOGY."""
    known: tuple[str, ...] = ()
    """SHA-256 hashes of outputs that the controller has, so that their text is not sent: PROBE_KNOWN."""

    def assignments(self) -> str:
        """Return the shell lines that set and export the variables."""
        values = {
            "PROBE_NAMES": " ".join(self.names),
            "PROBE_CONTAINER": self.container,
            "PROBE_IMAGES": " ".join(self.images),
            "PROBE_SYSCTLS": " ".join(self.sysctls),
            "PROBE_PATHS": " ".join(self.paths),
            "PROBE_TOPOLOGY": "yes" if self.topology else "",
        }
        lines = [f"{key}={shlex.quote(value)}" for key, value in values.items()]
        exports = "export " + " ".join([*values, "PROBE_RELEASE", "PROBE_MACHINE"])
        return "\n".join([*lines, _KERNEL, exports, f"PROBE_KNOWN='{' '.join(self.known)}'"])


def script(
    facts: Sequence[Fact[Any]],
    parameters: Parameters | None = None,
    *,
    token: str | None = None,
    read_only: bool = False,
    python: bool = True,
) -> str:
    """Return the POSIX sh script that runs the commands of all `facts` and separates their outputs.

    With python3 on the node, `files/probe.py` runs them, which costs less; with ``python=False`` the shell always does.
    With `read_only` it writes nothing on the node, not even a temporary file, and runs the commands one by one.
    """
    token = token or secrets.token_hex(16)
    facts = _unique_commands(facts)
    if read_only:
        runs = (f"run {fact.name} {fact.limit_seconds} {shlex.quote(fact.command.strip())}" for fact in facts)
        return _READ_ONLY.format(
            parameters=(parameters or Parameters()).assignments(), runs="\n".join(runs), token=token
        )
    return (
        _for_all_nodes(facts, python=python)
        .replace(_PARAMETERS, (parameters or Parameters()).assignments(), 1)
        .replace(_TOKEN, token)
    )


def _unique_commands(facts: Sequence[Fact[Any]]) -> tuple[Fact[Any], ...]:
    """Return the first fact of each command."""
    first: dict[str, Fact[Any]] = {}
    for fact in facts:
        first.setdefault(fact.command, fact)
    return tuple(first.values())


@functools.lru_cache(maxsize=2)
def _command_owners(facts: tuple[Fact[Any], ...]) -> dict[str, str]:
    """Return fact -> the fact whose command provides its output."""
    owners = {fact.command: fact.name for fact in _unique_commands(facts)}
    return {fact.name: owners[fact.command] for fact in facts}


@functools.lru_cache(maxsize=4)
def _for_all_nodes(facts: tuple[Fact[Any], ...], *, python: bool) -> str:
    """Return the script without node-specific values."""
    ordered = sorted(facts, key=_order)
    names = " ".join(fact.name for fact in facts)
    return (_HEAD + (_PYTHON if python else "") + _SHELL).format(
        parameters=_PARAMETERS,
        texts="\n".join(f"text_{fact.name}={shlex.quote(_text(fact))}" for fact in ordered),
        commands=" \\\n".join(
            f'    {fact.name} {fact.limit_seconds} {_mode(fact)} "$text_{fact.name}"' for fact in ordered
        ),
        program=shlex.quote(PROBE),
        begin=shlex.quote(BEGIN),
        hash=hashlib.sha256(PROBE.encode()).hexdigest()[:32],
        watch=_watch(facts),
        runs="\n".join(
            f'{"join" if fact.name in TOGETHER else "run"} {fact.name} "$text_{fact.name}"' for fact in ordered
        ),
        names=names,
        token=_TOKEN,
        most=MOST_SLACK_SECONDS,
        together=_TOGETHER_SECONDS,
        seconds=PYTHON_SECONDS,
        smi=_SMI,
        stuck=STUCK,
        cache=CACHE,
    )


def _text(fact: Fact[Any]) -> str:
    """Return a fact's command as it is sent; commands in one shell must not leave variables or arguments behind."""
    text = COMMAND_OF_ARGUMENT if fact.command == COMMAND else fact.command.strip()
    if _mode(fact) != "group":
        return text
    used = sorted({name for words in _VARIABLES.findall(text) for name in "".join(words).split()})
    return "\n".join(
        [f"unset {' '.join(used)}"] * bool(used) + [text.removesuffix("exit 0") + ":" * text.endswith("exit 0")]
    )


def _mode(fact: Fact[Any]) -> str:
    """Return how probe.py runs a fact's command; one without side effects needs no shell of its own."""
    if fact.command in _WORKS:
        return _WORKS[fact.command]
    if fact.name in _SMI.split():
        return '"$topology"' if fact.name == "topology" else '"$smi"'
    if fact.name not in TOGETHER:
        return "apart"
    return "subshell" if _LEAVES.search(fact.command.strip().removesuffix("exit 0")) else "group"


def _order(fact: Fact[Any]) -> int:
    """Return a fact's position in the script: those with their own session start first."""
    return _LAST.index(fact.name) + 2 if fact.name in _LAST else int(fact.name in TOGETHER)


def _watch(facts: Sequence[Fact[Any]]) -> str:
    """Return the shell lines that sleep from limit to limit and report the facts whose time limit has passed."""
    by_limit: dict[int, list[str]] = {}
    for fact in facts:
        by_limit.setdefault(fact.limit_seconds, []).append(fact.name)
    together = [name for limit in sorted(by_limit) for name in by_limit[limit] if name in TOGETHER]
    events = {limit: [f"limit @ {' '.join(names)}"] for limit, names in _apart(by_limit).items()}
    if together:
        events.setdefault(_TOGETHER_SECONDS, []).append("together @")
        events.setdefault(2 * _TOGETHER_SECONDS, []).append(f"limit @ {' '.join(together)}")
    lines: list[str] = []
    before = 0
    for limit in sorted(events):
        more = f"{limit - before}" if before else f"$(({limit} + slack))"
        lines.append(f"  sleep {more} & nap=$!")
        messages = "; ".join(f'echo "{event}" >&3' for event in events[limit]).replace("@", f"$(({limit} + slack))")
        lines.append(f'  wait "$nap" && {{ {messages}; }}')
        before = limit
    return "\n".join(lines)


def _apart(by_limit: Mapping[int, Sequence[str]]) -> dict[int, list[str]]:
    """Return limit -> names of the facts with their own session."""
    apart = {limit: [name for name in names if name not in TOGETHER] for limit, names in by_limit.items()}
    return {limit: names for limit, names in apart.items() if names}


def split(text: str, facts: Sequence[Fact[Any]], outputs: Outputs | None = None) -> dict[str, RawOutput | Unknown]:
    """Split the script's output by fact; a missing or hung command is an Unknown that names it.

    `outputs` has the texts of ``Parameters.known``, which arrive as hashes; other texts are added to it.
    """
    first = _FIRST_LINE.search(text)
    if first is None:
        return {fact.name: Unknown("the probe printed no readable output") for fact in facts}
    sections = _sections(text, first[1], outputs)
    if outputs is not None:
        outputs.saw({section.out for name, section in sections.items() if section.sent and name in SHARED})
    owners = _command_owners(tuple(facts))
    return {fact.name: _section(sections.get(owners[fact.name]), fact) for fact in facts}


class _Section(NamedTuple):
    """The text between a fact's markers."""

    out: str
    err: str
    ended: str
    sent: bool
    """Whether `out` was sent as text, not as its hash."""


def _sections(text: str, token: str, outputs: Outputs | None) -> dict[str, _Section]:
    """Return the sections by fact; no output can contain a marker, which begins with this probe's random token."""
    parts = [part.partition("\n") for part in text.split(f"\n{token} ")[1:]]
    sections: dict[str, _Section] = {}
    for (out, _, stdout), (err, _, stderr), (end, _, _) in zip(parts, parts[1:], parts[2:], strict=False):
        word, _, name = out.partition(" ")
        ended = end.removeprefix(f"end {name} ")
        if err != f"err {name}" or ended == end or " " in ended or name in sections:
            continue
        whole = _whole(word, stdout, outputs)
        if whole is not None:
            sections[name] = _Section(whole, stderr, ended, word == "out")
    return sections


def _whole(word: str, stdout: str, outputs: Outputs | None) -> str | None:
    """Return the output, which may have been sent as its hash."""
    if word == "same":
        return outputs.known(stdout.strip()) if outputs is not None else None
    return stdout if word == "out" else None


def _section(section: _Section | None, fact: Fact[Any]) -> RawOutput | Unknown:
    if section is None:
        return Unknown(f"the probe ended before {fact.label} did")
    out, err, code, _ = section
    if len(out) + len(err) > OUTPUT_LIMIT:
        return Unknown(f"{fact.label} printed {len(out) + len(err)} characters, and the limit is {OUTPUT_LIMIT}")
    if code == "hung:again":
        return Unknown(f"hung: {fact.label} (since an earlier probe; it was not started again)")
    if not code.isdecimal():
        return Unknown(f"hung: {fact.label} (no end within {code.partition(':')[2] or fact.limit_seconds} s)")
    return RawOutput(out, int(code), err)


_HEAD = r"""LC_ALL=C
PATH=${{PATH:-/usr/bin:/bin}}:/usr/local/sbin:/usr/sbin:/sbin
export LC_ALL PATH
{parameters}
umask 077
program={program}
{texts}
"""

_PYTHON = r"""# Python may exist and not start: then USR1 makes this shell run all commands itself.
begun=; {{ read -r begun _ </proc/uptime; }} 2>/dev/null
smi=apart; command -v nvidia-smi >/dev/null || smi=subshell
topology=$smi; [ -n "$PROBE_TOPOLOGY" ] || topology=subshell
if [ ! -s "{stuck}" ] && command -v python3 >/dev/null; then
  probe= watch= mute=
  trap 'kill "$probe" "$watch" 2>/dev/null; exit 1' HUP INT TERM PIPE
  trap 'mute=yes' USR1
  python3 -I -S -X utf8 -c {begin} "$program" "{cache}/{hash}" \
{token} "$begun" {together} {most} "{stuck}" "$PROBE_KNOWN" "{cache}" \
{commands} </dev/null & probe=$!
  (
    trap 'kill "$nap"; exit' TERM
    sleep {seconds} & nap=$!
    wait "$nap" && read -r name <"/proc/$probe/comm" && [ "$name" != provision-probe ] && kill -s USR1 $$
  ) >/dev/null 2>&1 </dev/null & watch=$!
  wait "$probe"; code=$?
  kill "$watch" 2>/dev/null
  [ -n "$mute" ] || case $code in 0|75) exit "$code";; esac
  [ -z "$mute" ] || kill -s KILL "$probe"
  trap - USR1
fi
"""

_SHELL = r"""for tool in setsid mkfifo mktemp cat sleep; do
  command -v $tool >/dev/null || {{ echo "the program $tool is missing" >&2; exit 1; }}
done
now() {{ read -r up _ </proc/uptime; echo "${{up%.*}}${{up#*.}}"; }}
begun=$(now) work=
for base in /run /dev/shm /tmp /var/tmp; do
  work=$(mktemp -d "$base/provision-probe.XXXXXX" 2>/dev/null) && break
done
[ -n "$work" ] || {{ echo "no folder for temporary files is writable (/run, /dev/shm, /tmp, /var/tmp)" >&2; exit 1; }}
watch= ended= stuck=
# State, process group and start of a process; nothing where it is gone.
process() {{
  {{ read -r line </proc/$1/stat; }} 2>/dev/null || return 0
  set -- ${{line##*) }}; echo "$1 $3 ${{20}}"
}}
# A process that no signal could kill is not started again while it lives, nor is a Python that did not start now.
[ -z "${{mute:-}}" ] || {{ set -- $(process "$probe"); [ -z "${{3:-}}" ] || echo "managed $probe $3" >>"{stuck}"; }}
while read -r name pid since; do
  case $(process "$pid") in Z*) ;; *" $since") stuck="$stuck $name";; esac
done 2>/dev/null <"{stuck}"
note_stuck() {{
  sleep 0.2
  for stat in /proc/[0-9]*/stat; do
    pid=${{stat#/proc/}}; pid=${{pid%/stat}}
    seen=$(process "$pid"); set -- $seen
    for name in $ended; do
      eval "group=\$pid_$name"
      [ "${{1:-Z}}" = Z ] || [ "${{2:-}}" != "$group" ] || echo "$name $pid $3"
    done
  done >"$work/stuck"
  [ ! -s "$work/stuck" ] || cat "$work/stuck" >>"{stuck}"
}}
leave() {{
  for name in {names}; do
    [ -s "$work/$name.code" ] || eval "[ -z \"\$pid_$name\" ] || kill -s KILL -- -\$pid_$name" 2>/dev/null
  done
  [ -z "$ended" ] || note_stuck
  rm -rf "$work"; [ -z "$watch" ] || kill "$watch" 2>/dev/null
  [ -n "$stuck$ended" ] || rm -f "{stuck}"
}}
trap leave EXIT
trap 'exit 1' HUP INT TERM PIPE
mkfifo "$work/done" || exit 1
exec 3<>"$work/done"
slack=$((($(now) - begun) * 5 / 3))
[ "$slack" -lt {most} ] || slack={most}
end='echo "$?" >"$0.code"; echo "end ${{0##*/}}" >&3'
again() {{
  case " $stuck " in *" $1 "*)
    : >"$work/$1.out"; : >"$work/$1.err"; echo hung:again >"$work/$1.limit"; echo "end $1" >&3; return 0;;
  esac
  return 1
}}
apart() {{
  again "$1" || {{
    setsid sh -c "trap '$end' EXIT
$2" "$work/$1" "$program" >"$work/$1.out" 2>"$work/$1.err" </dev/null &
    eval "pid_$1=$!"
  }}
}}
run() {{
  case " $idle " in *" $1 "*) join "$1" "$2";; *) apart "$1" "$2";; esac
}}
# One after the other in one session; started after all `run`.
together= row=
join() {{
  again "$1" || {{
    together="$together $1"
    row="$row
(
$2
) >\"\$0/$1.out\" 2>\"\$0/$1.err\"
echo \"\$?\" >\"\$0/$1.code\"; echo \"end $1\" >&3"
  }}
}}
start_row() {{
  [ -n "$row" ] || return 0
  setsid sh -c "$row" "$work" "$program" >/dev/null 2>&1 </dev/null &
  for name in $together; do eval "pid_$name=$!"; done
}}
give_up() {{
  seconds=$1; shift
  for name; do
    [ -s "$work/$name.code" ] || [ -s "$work/$name.limit" ] || {{
      echo "hung:$seconds" >"$work/$name.limit"
      ended="$ended $name"; eval "kill -s KILL -- -\$pid_$name" 2>/dev/null
    }}
    echo "end $name" >&3
  done
}}
# The first that has not ended hangs; the later ones have not started.
break_row() {{
  hung=
  for name in $together; do
    [ -s "$work/$name.code" ] || {{ hung=$name; break; }}
  done
  [ -n "$hung" ] || return 0
  eval "kill -s KILL -- -\$pid_$hung" 2>/dev/null
  give_up "$1" "$hung"
  for name in $together; do
    [ -s "$work/$name.code" ] || [ "$name" = "$hung" ] || eval "apart $name \"\$text_$name\""
  done
}}
(
  trap 'kill "$nap" 2>/dev/null; exit 0' TERM
{watch}
) >/dev/null 2>&1 </dev/null &
watch=$!
# Commands that have nothing to query end at once, and need no session of their own.
idle=
command -v nvidia-smi >/dev/null || idle="{smi}"
[ -n "$PROBE_TOPOLOGY" ] || idle="$idle topology"
{runs}
start_row
waiting=" {names} "
while [ "$waiting" != " " ] && read -r word name <&3; do
  case $word in
    end) case $waiting in *" $name "*) waiting="${{waiting%% $name *}} ${{waiting#* $name }}";; esac;;
    limit) give_up $name;;
    together) break_row "$name";;
  esac
done
# Replace outputs that the controller already has by their hashes.
same=' '
if [ -n "$PROBE_KNOWN" ] && command -v sha256sum >/dev/null; then
  sha256sum "$work"/*.out >"$work/sums"
  while read -r sum file; do
    case " $PROBE_KNOWN " in *" $sum "*) same="$same${{file##*/}} "; echo "$sum" >"$file";; esac
  done <"$work/sums"
fi
# Consecutive markers go into one file.
before="provision-probe 1 {token}
"
set --
for name in {names}; do
  code=hung
  for file in "$work/$name.limit" "$work/$name.code"; do [ ! -s "$file" ] || read -r code <"$file"; done
  case $same in *" $name.out "*) word=same;; *) word=out;; esac
  before="${{before}}{token} $word $name
"
  if [ -s "$work/$name.out" ]; then
    printf %s "$before" >"$work/$name.1"; before=; set -- "$@" "$work/$name.1" "$work/$name.out"
  fi
  before="$before
{token} err $name
"
  if [ -s "$work/$name.err" ]; then
    printf %s "$before" >"$work/$name.2"; before=; set -- "$@" "$work/$name.2" "$work/$name.err"
  fi
  before="$before
{token} end $name $code
"
done
printf %s "$before" | cat "$@" -
"""

_READ_ONLY = r"""LC_ALL=C
PATH=${{PATH:-/usr/bin:/bin}}:/usr/local/sbin:/usr/sbin:/sbin
export LC_ALL PATH
{parameters}
command -v timeout >/dev/null || {{ echo "the program timeout is missing" >&2; exit 1; }}
# Print stderr first, then a line with the exit code, then stdout.
run() {{
  both=$({{ text=$(timeout -s KILL "$2" sh -c "$3" </dev/null); echo "{token} $?"; printf '%s.' "$text"; }} 2>&1)
  rest=${{both#*{token} }}; code=${{rest%%
*}}
  [ "$code" != 137 ] || code="hung:$2"
  rest=${{rest#*
}}
  printf '%s\n' "{token} out $1" "${{rest%.}}" "{token} err $1" "${{both%%{token} *}}" "{token} end $1 $code"
}}
echo "provision-probe 1 {token}"
{runs}
exit 0
"""
