"""Images on nodes, and the software versions in one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from provision.errors import ProvisionError
from provision.facts.image_contents import THINGS, ImageContents, mismatch
from provision.report import layout
from provision.report.grouping import grouped, reason_lines
from provision.report.job_words import columns
from provision.report.node_names import in_short

if TYPE_CHECKING:
    from provision.report.json_documents.probes import Image, ImageCopy
    from provision.report.json_documents.probes import ImageContents as ContentsDocument

_SHORT = 19
"""``sha256:`` and twelve digits."""


def states_text(image: str, states: Mapping[str, Any]) -> str:
    """Return the image of each node, and whether all nodes have the same."""
    groups = grouped(((name, _cells(state)) for name, state in states.items()), lambda _, cells: cells)
    rows = [[in_short(group.names), *group.value] for group in groups]
    lines = [image, *columns([["NODE", "IMAGE ID", "DIGEST", "SIZE"], *rows])]
    lines += reason_lines((name, state.message) for name, state in states.items() if isinstance(state, ProvisionError))
    known = {name: state.id for name, state in states.items() if not isinstance(state, ProvisionError)}
    missing = [name for name, own in known.items() if not own]
    others = [name for name in _different(states) if known.get(name)]
    if missing:
        lines.append("on none of these nodes" if len(missing) == len(states) else f"missing on {in_short(missing)}")
    if others:
        lines.append(f"different image on {in_short(others)}")
    return "\n".join(lines)


def states_document(image: str, states: Mapping[str, Any]) -> Image:
    """Return the document of ``image list --json`` and ``image pull --json``."""
    return {
        "image": image,
        "same": not _different(states),
        "nodes": [
            {
                "name": name,
                "error": state.message,
                "remedy": state.remedy,
                "error_code": state.code,
                "id": "",
                "digest": "",
                "megabytes": 0,
            }
            if isinstance(state, ProvisionError)
            else {
                "name": name,
                "error": None,
                "remedy": None,
                "error_code": None,
                "id": state.id,
                "digest": state.digest,
                "megabytes": state.megabytes,
            }
            for name, state in states.items()
        ],
    }


def copy_text(image: str, copy: Any) -> str:
    """Return the image of each node, where it came from, and why nodes did not take part in the copy.

    `copy` is a `Distribution` of `provision.workflow.image_copy`.
    """
    states = {name: one.state for name, one in copy.nodes.items()}
    cells = {name: (one.source or "-", _amount(one.received)) for name, one in copy.nodes.items()}
    rows = [[in_short(group.names), *group.value] for group in grouped(cells.items(), lambda _, value: value)]
    lines = [states_text(image, states), "", *columns([["NODE", "FROM", "RECEIVED"], *rows])]
    if copy.sender:
        lines.append(f"sent by {copy.sender}")
    return "\n".join([*lines, *reason_lines((name, one.reason) for name, one in copy.nodes.items() if one.reason)])


def _amount(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size else "-"


def copy_document(image: str, copy: Any, seconds: float) -> ImageCopy:
    """Return the document of ``image pull --peers --json``."""
    document = states_document(image, {name: one.state for name, one in copy.nodes.items()})
    return {
        "image": image,
        "same": document["same"],
        "sender": copy.sender,
        "seconds": round(seconds, 3),
        "nodes": [
            {**node, "source": one.source, "reason": one.reason, "received_bytes": one.received}
            for node, one in zip(document["nodes"], copy.nodes.values(), strict=True)
        ],
    }


def contents_text(image: str, node: str, inside: ImageContents, host: ImageContents) -> str:
    """Return the software versions of an image and its host, and mismatches."""
    rows = [
        [thing, inside.versions.get(thing, "-"), host.versions.get(thing, "-")]
        for thing in THINGS
        if thing in inside.versions or thing in host.versions
    ]
    lines = [f"{image} on {node}", *columns([["WHAT", "IMAGE", "HOST"], *rows])]
    problem = mismatch(inside, host)
    return "\n".join([*lines, *([f"mismatch: {problem}"] if problem else [])])


def contents_document(image: str, node: str, inside: ImageContents, host: ImageContents) -> ContentsDocument:
    """Return the document of ``image inspect --json``."""
    return {
        "image": image,
        "node": node,
        "versions": dict(inside.versions),
        "host": dict(host.versions),
        "mismatch": mismatch(inside, host),
    }


def _cells(state: Any) -> tuple[str, str, str]:
    if isinstance(state, ProvisionError):
        return "-", "-", layout.state("error")
    if not state.id:
        return "-", "-", "missing"
    return state.id[:_SHORT], state.digest.rpartition("@")[2][:_SHORT] or "-", f"{state.megabytes} MB"


def _different(states: Mapping[str, Any]) -> list[str]:
    """Return the nodes whose image is missing or differs from that of most nodes.

    The same image has another ID in each of Docker's two image stores, and the same digest.
    """
    known = {name: None if isinstance(state, ProvisionError) else state for name, state in states.items()}
    ids = {name: state.id if state else "" for name, state in known.items()}
    digests = {name: state.digest.rpartition("@")[2] if state else "" for name, state in known.items()}
    return min(_unusual(ids), _unusual(digests), key=len)


def _unusual(values: Mapping[str, str]) -> list[str]:
    present = [own for own in values.values() if own]
    usual = max(present, key=present.count, default="")
    return [name for name, own in values.items() if own != usual or not own]
