"""The lock file of a stack. Anybody who edits the inventory can write it, so only valid forms are accepted."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from provision.model.stack import STACK_COMPONENTS, Stack, StackPart

MOST_BYTES = 64 * 1024
"""Of a lock file."""
_MOST_PACKAGES = 200
_MOST_ACCEPTED = 100

Word = Annotated[str, Meta(pattern=r"\A[0-9A-Za-z][0-9A-Za-z._-]{0,63}\Z")]
Version = Annotated[str, Meta(pattern=r"\A[0-9A-Za-z][0-9A-Za-z.+~^:_-]{0,127}(?<![+-])\Z")]
"""A version of apt or rpm. The first character keeps it from being an option. `apt-get install NAME=VERSION-` removes
the package, so a version ends with neither ``-`` nor ``+``."""
Package = Annotated[str, Meta(pattern=r"\A[0-9A-Za-z][0-9A-Za-z.+_-]{1,99}(?<!-)\Z")]
Digest = Annotated[str, Meta(pattern=r"\Asha256:[0-9a-f]{64}\Z")]
Release = Annotated[str, Meta(pattern=r"\A[0-9][0-9A-Za-z.+~_-]{0,63}\Z")]
Packages = Annotated[dict[Package, Version], Meta(max_length=_MOST_PACKAGES)]


class _Part(Struct, forbid_unknown_fields=True):
    version: Version
    packages: Packages = {}


class _Kernel(Struct, forbid_unknown_fields=True):
    version: Release


class _Image(Struct, forbid_unknown_fields=True):
    version: Digest


class _Components(Struct, forbid_unknown_fields=True):
    kernel: _Kernel | None = None
    headers: _Part | None = None
    rdma: _Part | None = None
    driver: _Part | None = None
    fabric_manager: _Part | None = None
    toolkit: _Part | None = None
    docker: _Part | None = None
    image: _Image | None = None


class _StackLock(Struct, forbid_unknown_fields=True):
    format: Literal[1]
    system: Word
    architecture: Word
    components: _Components
    node: Annotated[str, Meta(pattern=r"\A[0-9A-Za-z][0-9A-Za-z._-]{0,252}\Z")] = ""
    accepted_conflicts: Annotated[tuple[Word, ...], Meta(max_length=_MOST_ACCEPTED)] = ()


def stack_of(document: Any) -> Stack:
    """Return the stack of a parsed lock file.

    Raises:
        ValueError: it is not a lock file of this version; the text names the key.
    """
    try:
        lock = msgspec.convert(document, _StackLock)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)[:300]) from error
    parts: dict[str, StackPart] = {}
    for name in STACK_COMPONENTS:
        part = getattr(lock.components, name)
        if part is not None:
            parts[name] = StackPart(part.version, dict(getattr(part, "packages", {})))
    return Stack(lock.system, lock.architecture, parts, lock.node, lock.accepted_conflicts)


def document_of(stack: Stack) -> dict[str, Any]:
    """Return a stack as the content of a lock file, which `stack_of` reads.

    Raises:
        ValueError: a value from the node has no valid form.
    """
    components = {
        name: {"version": part.version, **({"packages": dict(sorted(part.packages.items()))} if part.packages else {})}
        for name, part in stack.parts.items()
    }
    document = {
        "format": 1,
        "node": stack.node,
        "system": stack.system,
        "architecture": stack.architecture,
        "components": components,
        **({"accepted_conflicts": list(stack.accepted)} if stack.accepted else {}),
    }
    stack_of(document)
    return document
