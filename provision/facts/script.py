"""One shell script out of many facts' commands, and the way back from its output to each fact's.

Every command runs in a session and under a time limit of its own, writes into a file of its own, and reports its end
through a pipe. So a command that hangs (even one that no signal can end) costs its own fact and nothing else, and
none holds the SSH session open. Starting a program is what costs time on a slow node, so commands use the shell's own
means and start few, and the limits grow with the time that a program start takes there: slow is not hung.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from provision.facts.base import Fact, RawOutput, Unknown

__all__ = ["MOST_SLACK_SECONDS", "Parameters", "script", "split"]

MOST_SLACK_SECONDS = 120
"""The most that a slow node gets on top of every limit."""

_FIRST_LINE = re.compile(r"^provision-probe 1 ([0-9a-f]{32})\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Parameters:
    """What the commands need to know beforehand; each becomes a shell variable."""

    names: tuple[str, ...] = ()
    """Names that should resolve on the node: PROBE_NAMES."""
    container: str = "provision-training"
    """PROBE_CONTAINER."""
    images: tuple[str, ...] = ()
    """References under which the wanted image may be found: PROBE_IMAGES."""
    sysctls: tuple[str, ...] = ()
    """PROBE_SYSCTLS."""
    paths: tuple[str, ...] = ("/", "/var/lib/docker", "/tmp")  # noqa: S108 - only looked at
    """Where free space counts: PROBE_PATHS."""

    def assignments(self) -> str:
        """The shell lines that set and export them."""
        values = {
            "PROBE_NAMES": " ".join(self.names),
            "PROBE_CONTAINER": self.container,
            "PROBE_IMAGES": " ".join(self.images),
            "PROBE_SYSCTLS": " ".join(self.sysctls),
            "PROBE_PATHS": " ".join(self.paths),
        }
        lines = [f"{key}={shlex.quote(value)}" for key, value in values.items()]
        return "\n".join([*lines, "export " + " ".join(values)])


def script(facts: Sequence[Fact[Any]], parameters: Parameters | None = None, *, token: str | None = None) -> str:
    """Return the POSIX sh script that runs the commands of all `facts` and prints their outputs apart."""
    token = token or secrets.token_hex(16)
    return _TEMPLATE.format(
        parameters=(parameters or Parameters()).assignments(),
        watch=_watch(facts),
        runs="\n".join(f"run {fact.name} {shlex.quote(fact.command.strip())}" for fact in facts),
        names=" ".join(fact.name for fact in facts),
        token=token,
        most=MOST_SLACK_SECONDS,
    )


def _watch(facts: Sequence[Fact[Any]]) -> str:
    """Return the lines that sleep from limit to limit and name those whose time is over then."""
    by_limit: dict[int, list[str]] = {}
    for fact in facts:
        by_limit.setdefault(fact.limit_seconds, []).append(fact.name)
    lines: list[str] = []
    before = 0
    for limit in sorted(by_limit):
        more = f"{limit - before}" if before else f"$(({limit} + slack))"
        lines.append(f"  sleep {more} & nap=$!")
        lines.append(f'  wait "$nap" && echo "limit $(({limit} + slack)) {" ".join(by_limit[limit])}" >&3')
        before = limit
    return "\n".join(lines)


def split(text: str, facts: Sequence[Fact[Any]]) -> dict[str, RawOutput | Unknown]:
    """Cut the script's output into each fact's own; what is missing or hung is an Unknown that names the command."""
    first = _FIRST_LINE.search(text)
    if first is None:
        return {fact.name: Unknown("the probe printed nothing readable") for fact in facts}
    return {fact.name: _section(text, first[1], fact) for fact in facts}


def _section(text: str, token: str, fact: Fact[Any]) -> RawOutput | Unknown:
    pattern = rf"^{token} out {fact.name}\n(.*?)\n{token} err {fact.name}\n(.*?)\n{token} end {fact.name} (\S+)$"
    found = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    if found is None:
        return Unknown(f"the probe ended before {fact.label} did")
    out, err, code = found[1], found[2], found[3]
    if not code.isdecimal():
        return Unknown(f"hung: {fact.label} (no end within {code.partition(':')[2] or fact.limit_seconds} s)")
    return RawOutput(out, int(code), err)


_TEMPLATE = r"""LC_ALL=C
PATH=${{PATH:-/usr/bin:/bin}}:/usr/local/sbin:/usr/sbin:/sbin
export LC_ALL PATH
{parameters}
umask 077
for tool in setsid mkfifo mktemp cat sleep; do
  command -v $tool >/dev/null || {{ echo "the program $tool is missing" >&2; exit 1; }}
done
work=
for base in /run /dev/shm /tmp /var/tmp; do
  work=$(mktemp -d "$base/provision-probe.XXXXXX" 2>/dev/null) && break
done
[ -n "$work" ] || {{ echo "no folder takes temporary files (/run, /dev/shm, /tmp, /var/tmp)" >&2; exit 1; }}
now() {{ read -r up _ </proc/uptime; echo "${{up%.*}}${{up#*.}}"; }}
slack=$(now); for i in 1 2 3 4; do setsid sh -c :; done; slack=$((($(now) - slack) / 3))
[ "$slack" -lt {most} ] || slack={most}
watch=
leave() {{
  for name in {names}; do
    [ -s "$work/$name.code" ] || eval "[ -z \"\$pid_$name\" ] || kill -s KILL -- -\$pid_$name" 2>/dev/null
  done
  rm -rf "$work"; [ -z "$watch" ] || kill "$watch" 2>/dev/null
}}
trap leave EXIT
trap 'exit 1' HUP INT TERM PIPE
mkfifo "$work/done" || exit 1
exec 3<>"$work/done"
end='echo "$?" >"$0.code"; echo "end ${{0##*/}}" >&3'
run() {{
  setsid sh -c "trap '$end' EXIT
$2" "$work/$1" >"$work/$1.out" 2>"$work/$1.err" </dev/null &
  eval "pid_$1=$!"
}}
give_up() {{
  seconds=$1; shift
  for name; do
    [ -s "$work/$name.code" ] || echo "hung:$seconds" >"$work/$name.limit"
    [ -s "$work/$name.code" ] || eval "kill -s KILL -- -\$pid_$name" 2>/dev/null
    echo "end $name" >&3
  done
}}
(
  trap 'kill "$nap" 2>/dev/null; exit 0' TERM
{watch}
) >/dev/null 2>&1 </dev/null &
watch=$!
{runs}
waiting=" {names} "
while [ "$waiting" != " " ] && read -r word name <&3; do
  case $word in
    end) case $waiting in *" $name "*) waiting="${{waiting%% $name *}} ${{waiting#* $name }}";; esac;;
    limit) give_up $name;;
  esac
done
set --
for name in {names}; do
  code=hung
  for file in "$work/$name.limit" "$work/$name.code"; do [ ! -s "$file" ] || read -r code <"$file"; done
  echo "{token} out $name" >"$work/$name.1"
  echo "
{token} err $name" >"$work/$name.2"
  echo "
{token} end $name $code" >"$work/$name.3"
  set -- "$@" "$work/$name.1" "$work/$name.out" "$work/$name.2" "$work/$name.err" "$work/$name.3"
done
echo "provision-probe 1 {token}"
cat "$@"
"""
