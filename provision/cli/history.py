"""``provision history``: past applies and the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import JsonOption, NodeOptions, print_json, say, say_reasons, show
from provision.cli.option_groups import with_option_groups
from provision.errors import ProvisionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from provision.model import Cluster, Node
    from provision.model.history import Entry
    from provision.workflow.history import Fleet


@with_option_groups
def history(
    where: NodeOptions,
    nodes: Annotated[
        bool, typer.Option("--nodes", help="Show the records of each node separately, with roles and messages.")
    ] = False,
    local: Annotated[bool, typer.Option("--local", help="Show this machine's records; connect to no node.")] = False,
    audit: Annotated[
        bool, typer.Option("--audit", help="Show the nodes' audit records: all actions, including those on jobs.")
    ] = False,
    number: Annotated[
        int, typer.Option("-n", "--newest", metavar="N", min=1, max=100000, help="Only the newest N records.")
    ] = 20,
    user: Annotated[
        str, typer.Option("--user", "-u", metavar="USER,...", help="Only of these users: NAME, or NAME@HOST.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """List past applies: operator, command, result.

    The list contains the applies of all operators: the records of this machine and of the nodes, merged. The
    nodes' records contain what operators claimed there (source in --json); --audit verifies more. When a node's records
    cannot be read, it is listed, and the exit code is 1: an apply may be missing. With --local no node is connected
    to. An apply that did not end (killed, power failure) is listed as ``died``. This machine and the nodes store the
    newest 200.

    With --audit each node's journal shows who applied, submitted, attached to, stopped, deleted or restarted what,
    who read whose logs, which secrets were used, and what was refused. A name with a question mark was only claimed
    (a root login); the others were verified with the person's SSH key.

    \b
    Examples:
      provision history
      provision history --limit gpu3 -n 5
      provision history --user alice
      provision history --local
      provision history --nodes --json
      provision history --audit --limit head -n 100
    """
    from provision import workflow
    from provision.workflow import history as past

    cluster = where.cluster(connects=nodes or audit)
    chosen = workflow.chosen(cluster, where.limit)

    if audit:
        failed = _show_audit(chosen, number, user, as_json=as_json)
    elif nodes:
        failed = _show_nodes(chosen, number, user, as_json=as_json)
    else:
        names = frozenset(node.name for node in chosen) if where.limit is not None else None
        fleet = _local(cluster, names) if local else _fleet(cluster, chosen, number, user)
        fleet = past.Fleet(_newest(fleet.entries, number, user), fleet.lost)
        _show_fleet(cluster, fleet, user, local=local, as_json=as_json)
        failed = False
    raise typer.Exit(1 if failed else 0)


def _newest(entries: Iterable[Entry], number: int, user: str) -> tuple[Entry, ...]:
    """Return the newest entries of a user, or of all users."""
    from provision.model.people import is_one_of

    return tuple(entry for entry in entries if is_one_of(f"{entry.user}@{entry.host}", user))[-number:]


def _show_audit(nodes: Sequence[Node], number: int, user: str, *, as_json: bool) -> bool:
    """Show the audit records; return whether the records of a node could not be read."""
    from provision.report.audit_report import audit_document, audit_text
    from provision.workflow.audit_records import read_audit

    trails = read_audit(nodes, newest=number, user=user)
    if as_json:
        print_json(audit_document(trails))
    else:
        show(audit_text(trails))
    return any(isinstance(outcome, ProvisionError) for outcome in trails.values())


def _show_nodes(nodes: Sequence[Node], number: int, user: str, *, as_json: bool) -> bool:
    """Show the records of each node; return whether the records of a node could not be read."""
    from provision.report import history_report as report
    from provision.workflow import history as past

    records = {
        name: outcome if isinstance(outcome, ProvisionError) else _newest(outcome, number, user)
        for name, outcome in past.read_nodes(nodes, newest=past.MAX_ENTRIES if user else number).items()
    }
    if as_json:
        print_json(report.nodes_document(records))
    else:
        show(report.nodes_text(records))
    return any(isinstance(outcome, ProvisionError) for outcome in records.values())


def _local(cluster: Cluster, names: frozenset[str] | None) -> Fleet:
    from provision.workflow import history as past

    own = past.read(cluster)
    return past.Fleet(tuple(entry for entry in own if names is None or names & set(entry.nodes)), {})


def _fleet(cluster: Cluster, nodes: Sequence[Node], number: int, user: str) -> Fleet:
    from provision.cli.levels import patience
    from provision.workflow import history as past

    with patience("reading the records of the nodes"):
        return past.read_fleet(cluster, nodes, newest=past.MAX_ENTRIES if user else number)


def _show_fleet(cluster: Cluster, fleet: Fleet, user: str, *, local: bool, as_json: bool) -> None:
    from provision.report import history_report as report

    if as_json:
        print_json(report.fleet_document(fleet.entries, fleet.lost))
    elif fleet.entries:
        show(report.fleet_text(fleet.entries))
    else:
        where = "on this machine" if local else "on this machine or on the nodes that answered"
        by = f" by {user}" if user else ""
        say(f"no apply of {cluster.inventory}{by} is recorded {where}")
    say_reasons("warning: no records of ", ((name, error.message) for name, error in fleet.lost.items()))
    raise typer.Exit(1 if fleet.lost else 0)
