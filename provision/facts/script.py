"""One shell script out of many facts' commands, and the way back from its output to each fact's.

Every command runs in a session and under a time limit of its own, writes into a file of its own, and reports its end
through a pipe. So a command that hangs (even one that no signal can end) costs its own fact and nothing else, and
none holds the SSH session open.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from provision.facts.base import Fact, RawOutput, Unknown

__all__ = ["GRACE_SECONDS", "Parameters", "script", "split"]

GRACE_SECONDS = 5
"""How long after the longest limit the script gives up on commands that cannot even be killed."""

_TIMED_OUT = frozenset({124, 137})
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
    runs = "\n".join(
        f"run {fact.name} {fact.limit_seconds} {shlex.quote(fact.command.strip())} >/dev/null 2>&1 &" for fact in facts
    )
    return _TEMPLATE.format(
        parameters=(parameters or Parameters()).assignments(),
        runs=runs,
        names=" ".join(fact.name for fact in facts),
        count=len(facts),
        token=token,
        deadline=max((fact.limit_seconds for fact in facts), default=0) + GRACE_SECONDS,
    )


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
    if not code.isdecimal() or int(code) in _TIMED_OUT:
        return Unknown(f"hung: {fact.label} (no end within {fact.limit_seconds} s)")
    return RawOutput(out, int(code), err)


_TEMPLATE = r"""LC_ALL=C
PATH=${{PATH:-/usr/bin:/bin}}:/usr/local/sbin:/usr/sbin:/sbin
export LC_ALL PATH
{parameters}
umask 077
for tool in setsid timeout mkfifo mktemp; do
  command -v $tool >/dev/null || {{ echo "the program $tool is missing" >&2; exit 1; }}
done
work=
for base in /run /dev/shm /tmp /var/tmp; do
  work=$(mktemp -d "$base/provision-probe.XXXXXX" 2>/dev/null) && break
done
[ -n "$work" ] || {{ echo "no folder takes temporary files (/run, /dev/shm, /tmp, /var/tmp)" >&2; exit 1; }}
watch=
trap 'rm -rf "$work"; [ -z "$watch" ] || kill "$watch" 2>/dev/null' EXIT
trap 'exit 1' HUP INT TERM PIPE
mkfifo "$work/done" || exit 1
exec 3<>"$work/done"
run() {{
  setsid timeout -k 1 "$2" sh -c "$3" >"$work/$1.out" 2>"$work/$1.err" </dev/null 3>&-
  echo "$?" >"$work/$1.code"
  echo end >&3
}}
(
  trap 'kill "$nap" 2>/dev/null; exit 0' TERM
  sleep {deadline} & nap=$!
  wait "$nap" && echo late >&3
) >/dev/null 2>&1 </dev/null &
watch=$!
{runs}
left={count}
while [ "$left" -gt 0 ] && read -r word <&3 && [ "$word" = end ]; do left=$((left - 1)); done
echo "provision-probe 1 {token}"
for name in {names}; do
  code=hung
  [ ! -s "$work/$name.code" ] || read -r code <"$work/$name.code"
  echo "{token} out $name"
  [ ! -s "$work/$name.out" ] || cat "$work/$name.out"
  echo
  echo "{token} err $name"
  [ ! -s "$work/$name.err" ] || tail -n 20 "$work/$name.err"
  echo
  echo "{token} end $name $code"
done
"""
