"""Answers of the nodes' program that copies images between nodes, one line each."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from provision.documents.text import PrintableLine

LINE_LIMIT = 64 * 1024
"""Bytes of one answer, other than an offer."""
OFFER_LIMIT = 8 * 1024 * 1024
"""Bytes of an offer, which the controller sends to each node: the torrent has 32 bytes per 8 MiB of a large image."""
_TABLE_LIMIT = 64 * 1024
_MAX_BLOBS = 4000
Bytes = Annotated[int, Meta(ge=0, le=2**53)]
Hash = Annotated[str, Meta(min_length=64, max_length=64, pattern=r"^[0-9a-f]{64}\Z")]
Digest = Annotated[str, Meta(max_length=71, pattern=r"^sha256:[0-9a-f]{64}\Z")]
Hashes = Annotated[list[Hash], Meta(max_length=_MAX_BLOBS)]
Port = Annotated[int, Meta(ge=1, le=65535)]


class CopyState(Struct, tag_field="event", tag="state"):
    """Whether a node can take part, and what it has of the image."""

    problem: PrintableLine = field(default_factory=PrintableLine)
    """Why it has no usable libtorrent; empty if it has."""
    library: PrintableLine = field(default_factory=PrintableLine)
    """The version of libtorrent."""
    docker: PrintableLine = field(default_factory=PrintableLine)
    """Why Docker does not answer; empty if it does."""
    id: Annotated[str, Meta(max_length=71, pattern=r"^(sha256:[0-9a-f]{64})?\Z")] = ""
    """The ID of its image, empty without one."""
    content: Annotated[str, Meta(max_length=64, pattern=r"^([0-9a-f]{64})?\Z")] = ""
    """The hash of the list of the image's layers; the same in each of Docker's image stores."""
    containerd: bool = False
    """Whether Docker stores images in containerd."""


class CopyOffer(Struct, tag_field="event", tag="offer"):
    """The torrent of an image, from the node that has it."""

    torrent: Annotated[str, Meta(max_length=OFFER_LIMIT, pattern=r"^[A-Za-z0-9+/=]+\Z")]
    id: Digest
    config: Hash
    layers: Hashes
    blobs: Hashes
    table: Annotated[str, Meta(max_length=_TABLE_LIMIT)]
    diffs: Annotated[list[Digest], Meta(max_length=_MAX_BLOBS)]
    port: Port


class CopyListening(Struct, tag_field="event", tag="listening"):
    """The port of a node that receives the image."""

    port: Port


class CopyProgress(Struct, tag_field="event", tag="progress"):
    """How far a node is."""

    step: Literal["starting", "saving", "hashing", "downloading", "loading", "sending"]
    done: Bytes
    total: Bytes
    received: Bytes
    sent: Bytes


class CopyDone(Struct, tag_field="event", tag="done"):
    """The image is on the node."""

    id: Digest
    received: Bytes


class CopyFailed(Struct, tag_field="event", tag="failed"):
    """The node has given up."""

    code: PrintableLine
    message: PrintableLine


CopyEvent = CopyState | CopyOffer | CopyListening | CopyProgress | CopyDone | CopyFailed
"""Any of them, distinguished by the field ``event``."""
