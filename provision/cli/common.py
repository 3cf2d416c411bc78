"""Options and functions that all verbs share.

Data goes to stdout, everything else to stderr. Colors are only used on a terminal, and if NO_COLOR is not set.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from provision.cli import log_file
from provision.cli.completion import complete_labs, complete_patterns, complete_roles
from provision.cli.levels import debug, note, printable, say, without_controls
from provision.errors import UsageError
from provision.report import layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from provision.model import Cluster, Secret
    from provision.workflow import PlanResult

InventoryOption = Annotated[
    str | None,
    typer.Option(
        "--inventory", "-i", metavar="PATH", envvar="PROVISION_INVENTORY", help="Ansible inventory: a file or a folder."
    ),
]
LabOption = Annotated[
    str | None,
    typer.Option("--lab", metavar="NAME", help="Use the nodes of this lab.", autocompletion=complete_labs),
]
LimitOption = Annotated[
    str | None,
    typer.Option(
        "--limit",
        "-l",
        metavar="PATTERN",
        help="Only these nodes (an Ansible host pattern).",
        autocompletion=complete_patterns,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout (same as -o json).")]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show each node, even if nodes have the same result.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Answer yes to all questions.")]
AllowDegradedOption = Annotated[
    bool,
    typer.Option("--allow-degraded", help="Also use nodes that failed their check at boot; reported and recorded."),
]
AskBecomePassOption = Annotated[
    bool, typer.Option("--ask-become-pass", "-K", help="Ask for the sudo password of the nodes.")
]

ForceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--force",
        metavar="ROLE",
        help="Run this role even if it is up to date. Repeatable.",
        autocompletion=complete_roles,
    ),
]
RebootOption = Annotated[
    bool,
    typer.Option("--reboot", help="Reboot idle nodes that need it, also outside of their maintenance windows."),
]
DisruptiveOption = Annotated[
    list[str] | None,
    typer.Option(
        "--disruptive",
        metavar="NODES",
        help="Allow disruptive steps on these nodes while jobs run. Repeatable.",
        autocompletion=complete_patterns,
    ),
]


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """The inventory, and the sudo password of its nodes."""

    inventory: InventoryOption = None
    lab: LabOption = None
    ask_become_pass: AskBecomePassOption = False

    @property
    def is_given(self) -> bool:
        """Whether the command line, not the environment, selects an inventory or a lab."""
        named = self.inventory is not None and os.environ.get("PROVISION_INVENTORY") != self.inventory
        return named or self.lab is not None

    @cached_property
    def become_password(self) -> Secret | None:
        """The sudo password, for which the user is asked once; None without --ask-become-pass."""
        return ask_become_password(ask=self.ask_become_pass)

    def cluster(self, *, connects: bool = True) -> Cluster:
        """Load and validate the inventory; see `cluster_from`."""
        return cluster_from(self.inventory, self.lab, become_password=self.become_password, connects=connects)


@dataclass(frozen=True, kw_only=True)
class NodeOptions(ClusterOptions):
    """The inventory, and those of its nodes that a verb works on."""

    limit: LimitOption = None


def place_words(inventory: str | None, lab: str | None) -> list[str]:
    """Return the options of a command line that choose the nodes, for other commands that are suggested."""
    if lab is not None:
        return ["--lab", lab]
    return [] if inventory in {None, os.environ.get("PROVISION_INVENTORY")} else ["-i", str(inventory)]


def inventory_from(inventory: str | None, lab: str | None) -> Path:
    """Return the inventory of the options, the environment or the folder."""
    if lab is not None:
        if inventory is not None and os.environ.get("PROVISION_INVENTORY") != inventory:
            raise UsageError("--lab and --inventory exclude each other", remedy="Use one of them.")
        from provision.lab.manager import inventory_path

        return inventory_path(lab)
    from provision.inventory import resolve

    return resolve(inventory, None)


def cluster_from(
    inventory: str | None,
    lab: str | None = None,
    *,
    become_password: Secret | None = None,
    warn: bool = True,
    through_agent: bool = False,
    through_login: bool = False,
    connects: bool = True,
) -> Cluster:
    """Load and validate the selected inventory; print its warnings on stderr.

    Raises:
        UsageError: The inventory uses the node agent, or a login node of Slurm, and the verb does not support it.
    """
    from provision.inventory import load

    cluster = load(inventory_from(inventory, lab), become_password=become_password)
    debug(f"inventory {cluster.inventory}: {len(cluster.nodes)} node{'s' * (len(cluster.nodes) != 1)}")
    log_file.hide(lambda: _known_secrets(cluster))
    if not through_agent and any(node.connection.agent for node in cluster.nodes):
        raise UsageError(
            f"this requires an operator: {cluster.inventory} connects to the nodes through the node agent",
            remedy="Use an inventory with a root login. This inventory can submit, list, follow, stop and delete jobs.",
        )
    if cluster.slurm_login and connects and not through_login:
        from provision.model.reason import reason
        from provision.report.reasons import error_of

        raise error_of(UsageError, reason("slurm.login_verb", name=cluster.slurm_login))
    if warn:
        for warning in cluster.warnings:
            say(f"warning: {warning}")
    if connects:
        from provision.connectors import refuse_unusable_keys

        refuse_unusable_keys(cluster.nodes)
    return cluster


def _known_secrets(cluster: Cluster) -> set[str]:
    from provision.workflow.bundle import known_secrets

    return known_secrets(cluster)


def ask_become_password(*, ask: bool) -> Secret | None:
    """Ask for the sudo password on the terminal if `ask` is true. It is never printed or stored."""
    if not ask:
        return None
    if not interactive():
        raise UsageError(
            "--ask-become-pass requires a terminal",
            remedy="Set ansible_become_password in a vault file of the inventory instead.",
        )
    import getpass

    from provision.model import Secret

    return Secret(getpass.getpass("sudo password of the nodes: "))


def checked(probe_result: PlanResult, *, read_only: bool = False) -> PlanResult:
    """Return the plan with the packages and files of its steps, and their problems."""
    count = sum(bool(node.steps) for node in probe_result.plan.nodes)
    if not count:
        return probe_result
    from provision import workflow

    if not read_only:
        note(f"check packages, repositories and the image on {count} node{'s' * (count != 1)}")
    return workflow.preflight(probe_result, read_only=read_only)


def take_degraded(cluster: Cluster, purpose: str, nodes: Sequence[tuple[str, str]]) -> None:
    """Report degraded nodes that are used nevertheless, with their reasons, and record them next to the apply logs."""
    from provision import workflow

    if not nodes:
        return
    say_reasons("degraded, but used: ", nodes)
    warning = workflow.note_degraded(cluster, purpose, nodes)
    if warning:
        say(f"warning: {warning}")


def print_json(document: Any) -> None:
    """Print one JSON document on stdout."""
    sys.stdout.write(json_text(document) + "\n")
    log_file.record_document(document, json_text)


def json_text(document: Any) -> str:
    """Return a document as text; control characters are escaped."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    text = without_controls(text, lambda letter: json.dumps(letter)[1:-1])
    return layout.painted(text, colour=False)


def show(text: str, *, end: str = "\n") -> None:
    """Print a report on stdout; control characters in texts of nodes are removed."""
    text = printable(text)
    sys.stdout.write(layout.painted(text, colour=True) + end)
    sys.stdout.flush()
    log_file.record("stdout", layout.painted(text, colour=False))


def say_reasons(head: str, reasons: Iterable[tuple[str, str]]) -> None:
    """Print node names and reasons on stderr after `head`, one line per reason."""
    from provision.report.grouping import reason_lines

    for line in reason_lines(reasons):
        say(f"{head}{line}")


def adapt_to_terminal() -> None:
    """Set the width and the colors of reports for stdout."""
    terminal = sys.stdout.isatty()
    colour = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    layout.choose(columns=shutil.get_terminal_size().columns if terminal else layout.NARROWEST, colour=colour)


def interactive() -> bool:
    """Return whether the user can be asked: stdin and stderr are terminals."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, *, yes: bool) -> None:
    """Return if the answer is yes; otherwise, or without a terminal, raise UsageError."""
    if yes:
        return
    if not interactive():
        raise UsageError(
            f"{question} Not confirmed: there is no terminal for the question.", remedy="To confirm, add --yes."
        )
    if prompt(f"{question} [y/N]").lower() not in {"y", "yes"}:
        raise UsageError("Not confirmed; nothing was changed.")


def prompt(question: str) -> str:
    """Ask on the terminal and return the stripped answer. The caller must have checked `interactive`."""
    sys.stderr.write(f"{question} ")
    sys.stderr.flush()
    log_file.record("stderr", question)
    line = sys.stdin.readline()
    if not line:
        raise UsageError("No answer: the input ended; nothing was changed.")
    return line.strip()


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, width: int = 0) -> str:
    """Format rows as a table of at most `width` columns (the terminal's)."""
    return "\n".join(layout.table(headers, rows, columns=width))
