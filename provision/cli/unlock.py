"""``provision unlock``: release a node's lock whose apply has died."""

from __future__ import annotations

from typing import Annotated

import typer

from provision.cli.common import ClusterOptions, JsonOption, YesOption, confirm, print_json, say, say_reasons, show
from provision.cli.completion import complete_patterns
from provision.cli.option_groups import with_option_groups


@with_option_groups
def unlock(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NODE...",
            help="Nodes (Ansible host patterns) to unlock.",
            autocompletion=complete_patterns,
        ),
    ],
    where: ClusterOptions,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Release the lock of an apply that has died.

    A lock is released automatically when its apply has ended, was killed or has sent no heartbeat for 90 seconds, and
    its Ansible tasks on the node have ended. Use unlock for a lock that waits for a hanging task. Two concurrent
    applies undo each other's steps, so unlock shows the holder and asks. A node without a lock is not an error.

    \b
    Examples:
      provision unlock gpu3
      provision unlock 'gpu[1:4]' -i inventories/prod --yes
    """
    from provision.errors import ProvisionError
    from provision.model.history import Unlocked
    from provision.report.history_report import unlocked_document, unlocked_text
    from provision.report.node_names import in_short
    from provision.workflow import chosen, remote_lock

    nodes = chosen(where.cluster(), ",".join(names))
    done: list[Unlocked] = []
    held, reasons = {}, {}
    for name, state in remote_lock.probe_locks(nodes).items():
        if isinstance(state, ProvisionError):
            done.append(Unlocked(name, "unreachable", state.message, None, state.remedy))
        elif state.holder is not None:
            held[name] = state.holder
            busy = f"; Ansible still runs there: {', '.join(state.working)}" if state.working else ""
            reasons[name] = f"{state.holder.describe()}{busy}"
        else:
            done.append(remote_lock.without_holder(name, state))
    say_reasons("", reasons.items())
    if held:
        say("If that apply is still running, it and the next one undo each other's steps, and a package")
        say("manager or service may be interrupted. First check the process on the machine named above.")
        confirm(f"Release the lock of {in_short(list(held))}?", yes=yes)
        done += remote_lock.unlock(nodes, held)
    order = {node.name: number for number, node in enumerate(nodes)}
    done.sort(key=lambda one: order[one.node])
    if as_json:
        print_json(unlocked_document(done))
    else:
        show(unlocked_text(done))
    raise typer.Exit(0 if all(one.ok for one in done) else 1)
