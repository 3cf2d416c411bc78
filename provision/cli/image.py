"""``provision image``: images of jobs on the nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from provision.cli.common import InventoryOption, JsonOption, LabOption, cluster_from, print_json, say, show
from provision.cli.completion import complete_nodes
from provision.cli.levels import patience
from provision.errors import NotFound, UsageError
from provision.report.node_names import in_short

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Pull, compare and inspect images on nodes.

\b
Examples:
  provision image pull registry.example.com/training:1
  provision image pull registry.example.com/training:1 --peers
  provision image list registry.example.com/training:1
  provision image inspect registry.example.com/training:1
""",
)

ImageArgument = Annotated[str, typer.Argument(metavar="IMAGE", help="The image's reference.")]
NodesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--nodes", "-w", metavar="NODE,...", help="Only these nodes. Repeatable.", autocompletion=complete_nodes
    ),
]


@app.command("pull")
def pull(
    image: ImageArgument,
    nodes: NodesOption = None,
    peers: Annotated[
        bool, typer.Option("--peers", help="Pull on one node, and copy the image between the nodes.")
    ] = False,
    sender: Annotated[
        str,
        typer.Option(
            "--from", metavar="NODE", help="With --peers: the node that has it.", autocompletion=complete_nodes
        ),
    ] = "",
    archive: Annotated[
        Path | None,
        typer.Option("--archive", metavar="FILE", help="With --peers: file of docker save here.", dir_okay=False),
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="MB", help="With --peers: MB/s of each node. [no limit]")
    ] = None,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pull an image on all nodes in parallel.

    Jobs then start without pulling it. The exit code is 1 when the nodes differ afterwards.

    The credentials of `provision secret add registry` for its server are used.

    With --peers, one node pulls the image, and the nodes copy it over the data network by BitTorrent
    (python3-libtorrent). Nodes that cannot take part pull the image, with the reason. Only nodes that
    pull get the credentials. --from and --archive copy it without a registry.

    \b
    Examples:
      provision image pull registry.example.com/training:1
      provision image pull registry.example.com/training:1 --nodes gpu1,gpu2
      provision image pull registry.example.com/training:1 --peers --rate 500
      provision image pull training:1 --peers --archive train.tar
    """
    from provision.workflow import images

    if peers:
        _pull_from_peers(_asked(inventory, lab, nodes), _checked(image), (sender, archive, rate), as_json=as_json)
    if sender or archive or rate is not None:
        raise UsageError("--from, --archive and --rate require --peers", remedy="Add --peers.")
    with patience(f"pulling {image}"):
        result = images.pull(*_asked(inventory, lab, nodes), _checked(image))
    _present(image, result, as_json=as_json)


def _pull_from_peers(
    asked: tuple[Any, list[str]], image: str, options: tuple[str, Path | None, float | None], *, as_json: bool
) -> NoReturn:
    from provision.cli.image_progress import CopyProgress
    from provision.report.image_report import copy_document, copy_text
    from provision.workflow.image_copy import CopyRequest, distribute

    cluster, names = asked
    sender, archive, rate = options
    chosen = names or [node.name for node in cluster.nodes]
    if sender and archive:
        raise UsageError("--from and --archive exclude each other", remedy="Use one of them.")
    if rate is not None and rate <= 0:
        raise UsageError(f"--rate {rate:g}: not a rate", remedy="Specify MB/s above 0, or omit it for no limit.")
    if sender and sender not in chosen:
        raise NotFound(f"--from {sender}: it is not one of the nodes", remedy=f"Nodes are {in_short(chosen)}.")
    request = CopyRequest(image, sender, archive, round((rate or 0) * 1_000_000))
    begun = time.monotonic()
    with CopyProgress(chosen, f"copying {image}") as progress:
        result = distribute(cluster, names, request, progress.report)
    document = copy_document(image, result, time.monotonic() - begun)
    if as_json:
        print_json(document)
    else:
        show(copy_text(image, result))
    _finish(document)


@app.command("list")
def list_(
    image: ImageArgument,
    nodes: NodesOption = None,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare an image across the nodes.

    The exit code is 1 when the nodes differ.

    \b
    Examples:
      provision image list registry.example.com/training:1
    """
    from provision.workflow import images

    with patience("querying the nodes"):
        result = images.image_states(*_asked(inventory, lab, nodes), _checked(image))
    _present(image, result, as_json=as_json)


@app.command("inspect")
def inspect(
    image: ImageArgument,
    node: Annotated[
        str, typer.Option("--node", metavar="NODE", help="Node to use. [the first]", autocompletion=complete_nodes)
    ] = "",
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the software versions in an image.

    Shows system, Python, PyTorch, CUDA, NCCL, MPI and OFED, and incompatibilities with the host.

    \b
    Examples:
      provision image inspect registry.example.com/training:1
    """
    from provision.report.image_report import contents_document, contents_text
    from provision.workflow import images

    cluster, names = _asked(inventory, lab, [node] if node else None)
    where = names[0] if names else cluster.nodes[0].name
    with patience(f"inspecting {image} on {where}"):
        result = images.inspect(cluster, where, _checked(image))
    if as_json:
        print_json(contents_document(image, where, result.image, result.host))
    else:
        show(contents_text(image, where, result.image, result.host))


def _checked(image: str) -> str:
    if not image or image.startswith("-") or any(letter.isspace() for letter in image):
        raise UsageError(f"{image!r}: not an image reference", remedy="For example: registry.example.com/training:1")
    return image


def _asked(inventory: str | None, lab: str | None, nodes: list[str] | None) -> tuple[Any, list[str]]:
    cluster = cluster_from(inventory, lab)
    names = [word for text in nodes or () for word in text.split(",") if word]
    known = [node.name for node in cluster.nodes]
    odd = [name for name in names if name not in known]
    if odd:
        raise NotFound(f"there is no node {odd[0]}", remedy=f"Nodes are {in_short(list(known))}.")
    return cluster, names


def _present(image: str, result: Mapping[str, Any], *, as_json: bool) -> None:
    from provision.report.image_report import states_document, states_text

    document = states_document(image, result)
    if as_json:
        print_json(document)
    else:
        show(states_text(image, result))
    _finish(document)


def _finish(document: Mapping[str, Any]) -> NoReturn:
    """Print the remedies, and end with 1 if a node failed or the nodes differ."""
    for remedy in dict.fromkeys(state["remedy"] for state in document["nodes"] if state["remedy"]):
        say(f"hint: {remedy}")
    failed = any(state["error"] is not None for state in document["nodes"])
    raise typer.Exit(1 if failed or not document["same"] else 0)
