"""Logins from every container to every other one: the script for a node, and the parser of its output."""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Sequence

from provision.components.check import PairOutcome
from provision.model.reason import Reason, reason

PAIR_SECONDS = 20
"""How long one login may take."""
NO_CONNECTION = frozenset({"container_ssh.pairs.no_answer", "container_ssh.pairs.no_connection"})
"""The codes of logins that did not reach the data address."""
_SSH_NO_CONNECTION = ("timed out", "no route to host", "network is unreachable", "connection refused")
"""Messages of OpenSSH, which has one exit status for all of them."""
_BATCH = 16
_LINE = re.compile(r"([0-9a-f]{16}) (\S{1,255}) ([0-9]{1,3}) ([0-9]{1,18}) ?(.*)")


def pairs_script(container: str, peers: Sequence[str], *, token: str | None = None) -> str:
    """Return the sh script that logs in from inside `container` to all `peers`, sixteen at a time.

    A login counts when it ends well and prints nothing: text from a shell's start file breaks MPI's daemons.
    """
    token = token or secrets.token_hex(8)
    inner = f"""
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
try() {{
  timeout -k 1 {PAIR_SECONDS} ssh -F /etc/provision/ssh/ssh_config "$1" true >"$work/$1.out" 2>"$work/$1.err" </dev/null
  code=$?
  size=$(wc -c <"$work/$1.out")
  echo "{token} $1 $code" $size "$(grep -v '^ *$' "$work/$1.err" | tail -n 3 | tr '\\n' ' ')"
}}
count=0
for peer in "$@"; do
  try "$peer" &
  count=$((count + 1))
  [ $((count % {_BATCH})) -ne 0 ] || wait
done
wait
"""
    words = ["docker", "exec", container, "sh", "-c", inner, "sh", *peers]
    return shlex.join(words) + " </dev/null\n"


def parse_pairs(source: str, peers: Sequence[str], output: str, error: str = "") -> list[PairOutcome]:
    """Read what ``pairs_script`` printed on `source`; a peer without a line counts as failed."""
    outcomes: dict[str, PairOutcome] = {}
    for line in output.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match and match[2] in peers:
            outcomes[match[2]] = _outcome(source, match[2], int(match[3]), int(match[4]), match[5].strip())
    cause = (error.strip().splitlines() or [""])[-1]
    not_tried = reason("container_ssh.pairs.ssh", cause=cause) if cause else reason("container_ssh.pairs.no_result")
    return [outcomes.get(peer, PairOutcome(source, peer, ok=False, reason=not_tried)) for peer in peers]


def _outcome(source: str, target: str, code: int, size: int, error: str) -> PairOutcome:
    problem = _problem(code, size, error)
    return PairOutcome(source, target, ok=problem is None, reason=problem)


def _problem(code: int, size: int, error: str) -> Reason | None:
    if code in {124, 137}:
        return reason("container_ssh.pairs.no_answer", seconds=PAIR_SECONDS)
    if code != 0 and any(words in error.lower() for words in _SSH_NO_CONNECTION):
        return reason("container_ssh.pairs.no_connection", cause=error)
    if code != 0:
        return reason("container_ssh.pairs.ssh", cause=error or f"ssh ended with code {code}")
    return reason("container_ssh.pairs.prints", bytes=size) if size else None
