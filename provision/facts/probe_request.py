"""Build the request for the probe from the commands of many facts, and split its output into the output of each fact.

The program `provision.node.probe.probe` runs the commands on the node; a node without python3 gets `system_script`.
Every command has its own time limit, and limits grow with the measured time of process starts: a slow node is not a
hung node. A command that hangs, even one that no signal can kill, or that prints too much costs only its own fact.

Process starts are the main cost of a probe. Commands that only read files therefore share one session, one after the
other; if one hangs, the later ones are started again in sessions of their own. Facts with the same command share its
output.
"""

from __future__ import annotations

import functools
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from provision.facts.base import Fact, RawOutput, Unknown
from provision.facts.outputs import SHARED, Outputs
from provision.facts.system import SystemFact

MOST_SLACK_SECONDS = 120
"""The maximum extra time of every limit on a slow node."""

OUTPUT_LIMIT = 8 * 1024 * 1024
"""Maximum number of bytes of one command's output."""

ANSWER_LIMIT = 31 * 1024 * 1024
"""Maximum number of bytes of all outputs; the longest ones are left out."""

SHARED_SECONDS = 20
"""Time limit of the commands that share a session."""

TRANSFER_SECONDS = 60
"""Time for the transfer of request and answer, and for the start of the program."""

OWN_SESSION_SECONDS = 40
"""A command with at least this limit has a session of its own: it queries a name service, a GPU tool or Docker."""

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
    mounts: tuple[str, ...] = ()
    """Paths that jobs mount: PROBE_MOUNTS."""
    topology: bool = False
    """Whether nvidia-smi is queried for the matrix of GPUs and cards: PROBE_TOPOLOGY."""
    known: tuple[str, ...] = ()
    """SHA-256 hashes of outputs that the controller has, so that their text is not sent: PROBE_KNOWN."""

    def environment(self) -> dict[str, str]:
        """Return the variables of the commands, without PROBE_RELEASE and PROBE_MACHINE."""
        return {
            "PROBE_NAMES": " ".join(self.names),
            "PROBE_CONTAINER": self.container,
            "PROBE_IMAGES": " ".join(self.images),
            "PROBE_SYSCTLS": " ".join(self.sysctls),
            "PROBE_PATHS": " ".join(self.paths),
            "PROBE_MOUNTS": " ".join(self.mounts),
            "PROBE_TOPOLOGY": "yes" if self.topology else "",
        }


def request(
    facts: Sequence[Fact[Any]],
    parameters: Parameters | None = None,
    *,
    token: str | None = None,
    read_only: bool = False,
) -> bytes:
    """Return the request for the program ``probe``, which runs the commands of all `facts`.

    Args:
        facts: the facts to collect.
        parameters: the inputs of their commands.
        token: 32 hexadecimal digits that separate the outputs; random by default.
        read_only: whether the program stores nothing on the node.
    """
    asked = parameters or Parameters()
    document = json.dumps(
        {
            "token": token or secrets.token_hex(16),
            "environment": asked.environment(),
            "known": list(asked.known),
            "write": not read_only,
            "shared_limit": SHARED_SECONDS,
            "most_slack": MOST_SLACK_SECONDS,
            "output_limit": OUTPUT_LIMIT,
            "answer_limit": ANSWER_LIMIT,
            "commands": [
                [fact.name, fact.limit_seconds, fact.command.strip(), fact.limit_seconds < OWN_SESSION_SECONDS]
                for fact in _unique_commands(facts)
            ],
        }
    )
    return f"{document}\n".encode()


def probe_seconds(facts: Sequence[Fact[Any]]) -> int:
    """Return the time limit of a probe, which the program does not exceed on a node that works.

    If a command of a shared session hangs, the later ones are started again, and one of them may hang too.
    """
    longest = max([SHARED_SECONDS, *(fact.limit_seconds for fact in facts)])
    return 2 * (longest + MOST_SLACK_SECONDS) + TRANSFER_SECONDS


def system_script() -> str:
    """Return the shell script for a node without python3; it prints the fact `system` as the program would."""
    token = secrets.token_hex(16)
    return (
        "LC_ALL=C; export LC_ALL\n"
        "PROBE_RELEASE=$(uname -r) PROBE_MACHINE=$(uname -m)\n"
        f"printf 'provision-probe 1 {token}\\n{token} out {SystemFact.name}\\n'\n"
        f"{SystemFact.command.strip()}\n"
        f"printf '\\n{token} err {SystemFact.name}\\n\\n{token} end {SystemFact.name} 0\\n'\n"
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


def split(text: str, facts: Sequence[Fact[Any]], outputs: Outputs | None = None) -> dict[str, RawOutput | Unknown]:
    """Return the output of each fact; a missing or hung command, or one that printed too much, is an Unknown.

    Args:
        text: the answer of the program.
        facts: the facts of the request.
        outputs: has the texts of ``Parameters.known``, which arrive as hashes; other texts are added to it.
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
    """Return the sections by fact.

    A marker begins with the random token of the request, which only the program and the controller know. An output with
    a marker could only be printed by root on the node, who can forge all facts anyway.
    """
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
    if code == "long" or len(out) + len(err) > OUTPUT_LIMIT:
        return Unknown(f"the output of {fact.label} is too long (the limit is {OUTPUT_LIMIT} bytes)")
    if code == "hung:again":
        return Unknown(f"hung: {fact.label} (since an earlier probe; it was not started again)")
    if not code.isdecimal():
        return Unknown(f"hung: {fact.label} (no end within {code.partition(':')[2] or fact.limit_seconds} s)")
    return RawOutput(out, int(code), err)
