"""``provision data``: data volumes of a cluster, which jobs mount by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from provision.cli.common import (
    InventoryOption,
    JsonOption,
    LabOption,
    LimitOption,
    cluster_from,
    place_words,
    print_json,
    say,
    show,
    table,
)
from provision.commands.shell import join
from provision.report.grouping import grouped, outline
from provision.report.node_names import in_short

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from provision.batch.data import DataFinding, Volume
    from provision.model import Cluster
    from provision.report.json_documents.advice import CheckedVolumes, VolumeFinding, Volumes
    from provision.report.json_documents.advice import Volume as VolumeDocument

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Manage the data volumes that jobs mount.

Jobs mount them by name (submit --data NAME:/path).

Volumes are written into the inventory (cluster_data in group_vars), so that all operators have the same ones.
provision does not mount them: mount them on every node with /etc/fstab, systemd or your storage's own client.
`data check` and `verify` (check node.data) fail on nodes where a volume is not mounted.

\b
Examples:
  provision data add imagenet --nfs storage:/export/imagenet --ro
  provision data list
  provision data check imagenet
""",
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The volume's name.")]


@app.command("add")
def add(
    name: NameArgument,
    nfs: Annotated[str | None, typer.Option("--nfs", metavar="SERVER:/EXPORT", help="An NFS export.")] = None,
    path: Annotated[str | None, typer.Option("--path", metavar="/PATH", help="A folder on the nodes.")] = None,
    lustre: Annotated[str | None, typer.Option("--lustre", metavar="MGS:/FS", help="A Lustre file system.")] = None,
    s3fs: Annotated[str | None, typer.Option("--s3fs", metavar="BUCKET", help="A bucket, mounted with s3fs.")] = None,
    at: Annotated[
        str, typer.Option("--at", metavar="/PATH", help="Mount point on the nodes.  [default: /mnt/NAME]")
    ] = "",
    read_only: Annotated[bool, typer.Option("--ro", help="Mount it read-only in jobs.")] = False,
    description: Annotated[str, typer.Option("--description", metavar="TEXT", help="Text for `data list`.")] = "",
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a volume to the inventory.

    No node is changed: mount the volume on every node, then run `provision data check NAME`. A command that mounts it
    on all nodes is printed.

    \b
    Examples:
      provision data add imagenet --nfs storage:/export/imagenet --ro
      provision data add scratch --lustre 10.0.0.1@tcp:/scratch --at /scratch
      provision data add local --path /data --description "each node's own disk"
    """
    import datetime as dt

    from provision.batch.data import VARIABLE, as_entry, mount_everywhere, new_volume
    from provision.errors import UsageError
    from provision.inventory.data_volumes import add_volume
    from provision.locks import user

    given = {"nfs": nfs, "path": path, "lustre": lustre, "s3fs": s3fs}
    chosen = {kind: place for kind, place in given.items() if place is not None}
    if len(chosen) != 1:
        raise UsageError(
            f"provision data add {name}: the kind of the volume is missing",
            remedy="Add one of --nfs SERVER:/PATH, --path /PATH, --lustre and --s3fs; see provision data add --help",
        )
    (kind, place), added = chosen.popitem(), dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    volume = new_volume(name, kind, place, at, read_only=read_only, description=description, owner=user(), added=added)
    add_volume(cluster_from(inventory, lab, connects=False), VARIABLE, name, as_entry(volume))
    if as_json:
        print_json({"name": name, **as_entry(volume)})
        return
    say(f"{name} was added to the inventory; no node was changed")
    if volume.source:
        where = place_words(inventory, lab)
        say(f"mount it on every node, for example: {mount_everywhere(volume, *where)}")
    else:
        say(f"create {volume.path} on every node")
    say(f"then run: {join(['provision', 'data', 'check', name, *place_words(inventory, lab)])}")


@app.command("list")
def list_(
    every: Annotated[bool, typer.Option("--all", "-a", help="Also list volumes that no node can use now.")] = False,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    limit: LimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the data volumes.

    Lists the volumes that can be used now; -a lists all volumes of the inventory.

    \b
    Examples:
      provision data list
      provision data list -a --json
    """
    cluster = cluster_from(inventory, lab, connects=False)
    volumes, answers, findings = _checked_volumes(cluster, None, limit)
    failed = {(item.volume, item.node) for item in findings if item.level == "fail"}
    usable = [v for v in volumes if every or any((v.name, node) not in failed for node in answers[v.name])]
    if as_json:
        document: Volumes = {"volumes": [_document(volume, answers[volume.name], findings) for volume in usable]}
        print_json(document)
        return
    rows = [_row(volume, answers[volume.name]) for volume in usable]
    headers = ["NAME", "ACCESSMODE", "DESCRIPTION", "OWNER", "AGE"]
    show(table(headers, [[*row[:2], _short(row[2]), *row[3:]] for row in rows]))
    _say_none(volumes)
    if hidden := len(volumes) - len(usable):
        say(f"{hidden} more cannot be used now: provision data check; -a shows them")


@app.command("check")
def check(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One volume.  [default: all]")] = None,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    limit: LimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the data volumes on all nodes.

    Checks that they are mounted from the right source, respond, are readable, writable, and the same everywhere.

    The exit code is 1 when a job could not use a volume on a node.

    \b
    Examples:
      provision data check
      provision data check imagenet --limit 'gpu[1:4]'
    """
    volumes, answers, findings = _checked_volumes(cluster_from(inventory, lab), name, limit)
    failed = any(item.level == "fail" for item in findings)
    if as_json:
        documents = [_document(volume, answers[volume.name], findings) for volume in volumes]
        document: CheckedVolumes = {"ok": not failed, "volumes": documents}
        print_json(document)
        raise typer.Exit(1 if failed else 0)
    rows = [
        [group.value.volume, in_short(group.names), group.value.level, f"{group.value.problem} {group.note}".strip()]
        for group in grouped(((item.node or "all", item) for item in findings), _same_finding, _similar_finding)
    ]
    wrong = {item.volume for item in findings}
    rows += [[volume.name, "all", "ok", volume.path] for volume in volumes if volume.name not in wrong]
    show(table(["NAME", "NODE", "RESULT", "WHY"], rows))
    _say_none(volumes)
    for remedy in dict.fromkeys(item.remedy for item in findings if item.remedy):
        say(f"hint: {remedy}")
    raise typer.Exit(1 if failed else 0)


@app.command("rm")
def remove(name: NameArgument, inventory: InventoryOption = None, lab: LabOption = None) -> None:
    """Remove a volume from the inventory.

    The data and the mounts are preserved.

    \b
    Examples:
      provision data rm imagenet
    """
    from provision.batch.data import VARIABLE
    from provision.inventory.data_volumes import remove_volume

    remove_volume(cluster_from(inventory, lab, connects=False), VARIABLE, name)
    say(f"{name} was removed from the inventory; its content is preserved")


def _same_finding(_node: str, item: DataFinding) -> Hashable:
    return item.volume, item.level, item.problem


def _similar_finding(node: str, item: DataFinding) -> Hashable:
    return item.volume, item.level, outline(item.problem, node)


def _checked_volumes(
    cluster: Cluster, name: str | None, limit: str | None
) -> tuple[list[Volume], dict[str, dict[str, Any]], list[DataFinding]]:
    from provision.batch.data import judge, volumes_of
    from provision.errors import UsageError
    from provision.jobs.data import check_volumes
    from provision.workflow import chosen

    there = volumes_of(cluster)
    if name is not None and name not in there:
        raise UsageError(f"there is no volume {name}; there are: {', '.join(there) or 'none'}")
    volumes = [volume for volume in there.values() if name in (None, volume.name)]
    answers = check_volumes(chosen(cluster, limit), volumes)
    return volumes, answers, [item for volume in volumes for item in judge(volume, answers[volume.name])]


def _say_none(volumes: Sequence[Volume]) -> None:
    if not volumes:
        say("the inventory names no data volume; add one: provision data add --help")


def _row(volume: Volume, answers: dict[str, Any]) -> list[str]:
    from provision.batch.data import access_mode

    return [volume.name, access_mode(volume, answers), volume.description, volume.owner, _age(volume.added)]


def _short(text: str) -> str:
    return text if len(text) <= 30 else text[:27] + "..."  # noqa: PLR2004 - remaining width of 80 columns


def _age(added: str) -> str:
    """Return the age in one unit, as ``arena data list`` does; empty if the time is not recorded."""
    import datetime as dt

    from provision.batch.durations import short

    try:
        then = dt.datetime.fromisoformat(added)
    except ValueError:
        return ""
    return short((dt.datetime.now(dt.UTC) - then.astimezone(dt.UTC)).total_seconds())


def _document(volume: Volume, answers: dict[str, Any], findings: Sequence[DataFinding]) -> VolumeDocument:
    from provision.batch.data import access_mode

    mine: list[VolumeFinding] = [
        {"node": item.node, "level": item.level, "problem": item.problem, "remedy": item.remedy}
        for item in findings
        if item.volume == volume.name
    ]
    usable = all(item["level"] != "fail" for item in mine)
    return {
        "name": volume.name,
        "kind": volume.kind,
        "path": volume.path,
        "source": volume.source,
        "read_only": volume.read_only,
        "description": volume.description,
        "owner": volume.owner,
        "added": volume.added,
        "access_mode": access_mode(volume, answers),
        "usable": usable,
        "findings": mine,
    }
