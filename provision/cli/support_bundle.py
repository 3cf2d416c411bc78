"""``provision support-bundle``: facts, checks and logs for support, without secrets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from provision.cli.common import NodeOptions, note, say, show
from provision.cli.option_groups import with_option_groups


@with_option_groups
def support_bundle(
    where: NodeOptions,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE.tar.gz", help="File to write; it must not exist.")
    ] = None,
) -> None:
    """Collect facts, checks and logs into one file.

    Secrets are removed, so that you can share the file.

    Passwords, private keys, tokens and credentials in URLs are removed. Host names,
    addresses and versions remain: review the file before you publish it.

    \b
    Examples:
      provision support-bundle
      provision support-bundle --lab demo --output bundle.tar.gz
    """
    from provision import workflow
    from provision.report.node_names import in_ranges

    target = output or Path(f"provision-support-{time.strftime('%Y%m%dT%H%M%S')}.tar.gz")
    cluster = where.cluster(connects=False)
    nodes = workflow.chosen(cluster, where.limit)
    note(f"probing {len(nodes)} node{'s' * (len(nodes) != 1)}")
    names = workflow.support_bundle(cluster, target, where.limit)
    for line in in_ranges(names):
        say(f"  {line}")
    say("secrets are removed; names, addresses and versions are not")
    show(str(target))
