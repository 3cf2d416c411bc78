"""One shell script out of many facts' commands, and the way back from its output to each fact's.

Every command runs in a session and under a time limit of its own, and prints into memory or a file of its own. So a
command that hangs (even one that no signal can end) costs its own fact and nothing else, and none holds the SSH session
open. Starting a program is what costs time on a slow node, so commands use the shell's own means and start few, and the
limits grow with the time that program starts take there: slow is not hung.

Two run the commands, with the same limits and the same output: where there is python3, `files/probe.py`, which is one
process instead of many and does some commands itself (`_WORKS`); else the shell, for a node must be looked at before
Python can be installed there. Where python3 is broken or does not begin, the shell does as well.

A session of its own costs more than most commands do. Those that only read files (`TOGETHER`) therefore share one, one
after the other; when one of them hangs, those behind it are started again, each in a session of its own. For probe.py
they share the shell too, but for those that would leave it or its folder (`_LEAVES`); what they set is unset before.
Facts that have the same command share its output.
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
"""The most that a slow node gets on top of every limit."""

OUTPUT_LIMIT = 8 * 1024 * 1024
"""Characters that one command may print."""

TOGETHER = frozenset(
    {
        "addresses", "boot", "clock", "container_ssh", "container_trust", "disks", "dma_buf", "docker_config",
        "fabric_manager", "gpu_pci", "hardware", "kernels", "kind", "limits", "listening", "modules",
        "nccl", "nvidia_container", "nvidia_modules", "packages", "pci_links", "pci_routing", "peer_memory",
        "peer_status", "rdma", "rdma_counters", "receipts", "routes", "signing", "simulated", "sysctls", "system",
        "time_sync", "xids",
    }
)  # fmt: skip
"""Facts that ask the kernel, systemd and the node's own disks: no name service, no GPU tool, no docker."""

PYTHON_SECONDS = 10
"""What python3 may take to begin; a node where it does not is looked at by the shell alone."""

_LAST = ("time_sync", "nccl", "disks")
"""Those of them that wait where systemd or a file system does not answer: nobody is to wait for them."""

_TOGETHER_SECONDS = 20

STUCK = "/run/provision-probe.stuck"
"""Names on a node the processes of earlier looks that no signal could end; only root can write there."""
KEPT = "/run/provision-probe"
"""A folder on a node for what later looks need not do again; only root can write there."""

_SMI = "gpus nvlinks topology"
"""Facts that ask nvidia-smi, and nothing where there is none."""

_KERNEL = """PROBE_MACHINE=
{ read -r PROBE_RELEASE </proc/sys/kernel/osrelease; read -r PROBE_MACHINE </proc/sys/kernel/arch; } 2>/dev/null
[ -n "$PROBE_MACHINE" ] || { set -- $(uname -rm); PROBE_RELEASE=$1 PROBE_MACHINE=$2; }"""
"""Kernels before 6.1 do not tell of the architecture in a file."""

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
"""Commands that probe.py does without a shell: each would start programs, and several want the same."""
_LEAVES = re.compile(r"(?<![\w$/.-])(?:exit|cd|exec|trap|umask|return|export|readonly|alias|set [-+]\w)(?![\w=-])")
"""What works beyond the command that has it, unless that has a shell of its own."""
_VARIABLES = re.compile(r"(?<![\w$/.-])(?:([a-z]\w*|IFS)=|for ([a-z]\w*)|read (?:-r )?([a-z][\w ]*))")
"""The variables that a command sets."""

_PARAMETERS, _TOKEN = "@parameters@", "@token@"
_FIRST_LINE = re.compile(r"^provision-probe 1 ([0-9a-f]{32})\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Parameters:
    """What the commands need to know beforehand; each becomes a shell variable. PROBE_RELEASE is the node's kernel.

    PROBE_MACHINE is its architecture, as ``uname -m`` says it.
    """

    names: tuple[str, ...] = ()
    """Names that should resolve on the node: PROBE_NAMES."""
    container: str = "provision-training"
    """PROBE_CONTAINER."""
    images: tuple[str, ...] = ()
    """References under which the wanted image may be found: PROBE_IMAGES."""
    sysctls: tuple[str, ...] = ()
    """PROBE_SYSCTLS."""
    paths: tuple[str, ...] = (
        *("/", "/etc", "/run", "/tmp", "/var/log", "/var/lib", "/var/lib/containerd", "/var/lib/docker"),  # noqa: S108 # nosec B108
        *("/var/lib/provision", "/var/lib/provision/jobs"),
    )
    """Where free space counts: PROBE_PATHS."""
    topology: bool = False
    """Whether nvidia-smi is asked for the matrix of GPUs and cards: PROBE_TOPOLOGY."""
    known: tuple[str, ...] = ()
    """Hashes (SHA-256, hexadecimal) of outputs that need not be sent, as we have their text: PROBE_KNOWN."""

    def assignments(self) -> str:
        """The shell lines that set and export them."""
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
    """Return the POSIX sh script that runs the commands of all `facts` and prints their outputs apart.

    Where there is python3, `files/probe.py` does, which costs the node less; without `python` the shell does anywhere.
    With `read_only` it writes nothing at all on the node, not even a temporary file: one command after the other.
    """
    token = token or secrets.token_hex(16)
    facts = _asked(facts)
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


def _asked(facts: Sequence[Fact[Any]]) -> tuple[Fact[Any], ...]:
    """Return the first fact of each command."""
    first: dict[str, Fact[Any]] = {}
    for fact in facts:
        first.setdefault(fact.command, fact)
    return tuple(first.values())


@functools.lru_cache(maxsize=2)
def _askers(facts: tuple[Fact[Any], ...]) -> dict[str, str]:
    """Return for each fact the name of the one whose command brings its output."""
    asked = {fact.command: fact.name for fact in _asked(facts)}
    return {fact.name: asked[fact.command] for fact in facts}


@functools.lru_cache(maxsize=4)
def _for_all_nodes(facts: tuple[Fact[Any], ...], *, python: bool) -> str:
    """Return the script without what differs from node to node."""
    ordered = sorted(facts, key=_place)
    names = " ".join(fact.name for fact in facts)
    return (_HEAD + (_PYTHON if python else "") + _SHELL).format(
        parameters=_PARAMETERS,
        texts="\n".join(f"text_{fact.name}={shlex.quote(_text(fact))}" for fact in ordered),
        commands=" \\\n".join(
            f'    {fact.name} {fact.limit_seconds} {_how(fact)} "$text_{fact.name}"' for fact in ordered
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
        kept=KEPT,
    )


def _text(fact: Fact[Any]) -> str:
    """Return a fact's command as it is sent; in a row none leaves variables or arguments to those behind it."""
    text = COMMAND_OF_ARGUMENT if fact.command == COMMAND else fact.command.strip()
    if _how(fact) != "group":
        return text
    used = sorted({name for words in _VARIABLES.findall(text) for name in "".join(words).split()})
    return "\n".join(
        [f"unset {' '.join(used)}"] * bool(used) + [text.removesuffix("exit 0") + ":" * text.endswith("exit 0")]
    )


def _how(fact: Fact[Any]) -> str:
    """Return how probe.py runs a fact's command: what leaves nothing behind needs no shell of its own in the row."""
    if fact.command in _WORKS:
        return _WORKS[fact.command]
    if fact.name in _SMI.split():
        return '"$topology"' if fact.name == "topology" else '"$smi"'
    if fact.name not in TOGETHER:
        return "apart"
    return "subshell" if _LEAVES.search(fact.command.strip().removesuffix("exit 0")) else "group"


def _place(fact: Fact[Any]) -> int:
    """Return where a fact stands in the script: those with a session of their own begin first."""
    return _LAST.index(fact.name) + 2 if fact.name in _LAST else int(fact.name in TOGETHER)


def _watch(facts: Sequence[Fact[Any]]) -> str:
    """Return the lines that sleep from limit to limit and name those whose time is over then."""
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
        said = "; ".join(f'echo "{event}" >&3' for event in events[limit]).replace("@", f"$(({limit} + slack))")
        lines.append(f'  wait "$nap" && {{ {said}; }}')
        before = limit
    return "\n".join(lines)


def _apart(by_limit: Mapping[int, Sequence[str]]) -> dict[int, list[str]]:
    """Return the names of those that have a session of their own."""
    apart = {limit: [name for name in names if name not in TOGETHER] for limit, names in by_limit.items()}
    return {limit: names for limit, names in apart.items() if names}


def split(text: str, facts: Sequence[Fact[Any]], outputs: Outputs | None = None) -> dict[str, RawOutput | Unknown]:
    """Cut the script's output into each fact's own; what is missing or hung is an Unknown that names the command.

    `outputs` has the texts of ``Parameters.known``, which come as their hashes, and is shown those that do not.
    """
    first = _FIRST_LINE.search(text)
    if first is None:
        return {fact.name: Unknown("the probe printed nothing readable") for fact in facts}
    sections = _sections(text, first[1], outputs)
    if outputs is not None:
        outputs.saw({section.out for name, section in sections.items() if section.sent and name in SHARED})
    asked = _askers(tuple(facts))
    return {fact.name: _section(sections.get(asked[fact.name]), fact) for fact in facts}


class _Section(NamedTuple):
    """What stands between a fact's marks."""

    out: str
    err: str
    ended: str
    sent: bool
    """Whether `out` came as it is, and not as its hash."""


def _sections(text: str, token: str, outputs: Outputs | None) -> dict[str, _Section]:
    """Return what was printed for each fact; no output holds a mark, which begins with this look's own token."""
    parts = [part.partition("\n") for part in text.split(f"\n{token} ")[1:]]
    found: dict[str, _Section] = {}
    for (out, _, stdout), (err, _, stderr), (end, _, _) in zip(parts, parts[1:], parts[2:], strict=False):
        word, _, name = out.partition(" ")
        ended = end.removeprefix(f"end {name} ")
        if err != f"err {name}" or ended == end or " " in ended or name in found:
            continue
        whole = _whole(word, stdout, outputs)
        if whole is not None:
            found[name] = _Section(whole, stderr, ended, word == "out")
    return found


def _whole(word: str, stdout: str, outputs: Outputs | None) -> str | None:
    """Return what was printed, which may have come as its hash."""
    if word == "same":
        return outputs.known(stdout.strip()) if outputs is not None else None
    return stdout if word == "out" else None


def _section(found: _Section | None, fact: Fact[Any]) -> RawOutput | Unknown:
    if found is None:
        return Unknown(f"the probe ended before {fact.label} did")
    out, err, code, _ = found
    if len(out) + len(err) > OUTPUT_LIMIT:
        return Unknown(f"{fact.label} printed {len(out) + len(err)} characters, and the limit is {OUTPUT_LIMIT}")
    if code == "hung:again":
        return Unknown(f"hung: {fact.label} (since an earlier look; it was not started again)")
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

_PYTHON = r"""# Python may be there and not begin: then the shell is told by USR1, and does all itself.
begun=; {{ read -r begun _ </proc/uptime; }} 2>/dev/null
smi=apart; command -v nvidia-smi >/dev/null || smi=subshell
topology=$smi; [ -n "$PROBE_TOPOLOGY" ] || topology=subshell
if [ ! -s "{stuck}" ] && command -v python3 >/dev/null; then
  probe= watch= mute=
  trap 'kill "$probe" "$watch" 2>/dev/null; exit 1' HUP INT TERM PIPE
  trap 'mute=yes' USR1
  python3 -I -S -X utf8 -c {begin} "$program" "{kept}/{hash}" \
    {token} "$begun" {together} {most} "{stuck}" "$PROBE_KNOWN" "{kept}" \
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
[ -n "$work" ] || {{ echo "no folder takes temporary files (/run, /dev/shm, /tmp, /var/tmp)" >&2; exit 1; }}
watch= ended= stuck=
# State, process group and start of a process; nothing where it is gone.
process() {{
  {{ read -r line </proc/$1/stat; }} 2>/dev/null || return 0
  set -- ${{line##*) }}; echo "$1 $3 ${{20}}"
}}
# What no signal could end is not started again while it lives; Python that did not begin is not started again now.
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
# One after the other in one session: begun at the end of all `run`.
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
# The first that has not ended hangs; those behind it have not begun.
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
# What has nothing to ask ends at once, and needs no session of its own.
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
# Of an output that the controller has already it is told which one.
same=' '
if [ -n "$PROBE_KNOWN" ] && command -v sha256sum >/dev/null; then
  sha256sum "$work"/*.out >"$work/sums"
  while read -r sum file; do
    case " $PROBE_KNOWN " in *" $sum "*) same="$same${{file##*/}} "; echo "$sum" >"$file";; esac
  done <"$work/sums"
fi
# Marks that follow each other with nothing between them go into one file.
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
# What goes to stderr comes first, then a line with the exit code, then what went to stdout.
run() {{
  said=$({{ text=$(timeout -s KILL "$2" sh -c "$3" </dev/null); echo "{token} $?"; printf '%s.' "$text"; }} 2>&1)
  rest=${{said#*{token} }}; code=${{rest%%
*}}
  [ "$code" != 137 ] || code="hung:$2"
  rest=${{rest#*
}}
  printf '%s\n' "{token} out $1" "${{rest%.}}" "{token} err $1" "${{said%%{token} *}}" "{token} end $1 $code"
}}
echo "provision-probe 1 {token}"
{runs}
exit 0
"""
