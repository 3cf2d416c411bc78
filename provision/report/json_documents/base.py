"""Parts that several JSON documents have."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from provision.model.reason import ReasonDocument


class Finding(ReasonDocument):
    """A result with its reason and remedy."""

    reason: str
    """The result as a sentence, or its cause."""
    remedy: str | None
    """What to do, if anything."""


class Problem(ReasonDocument):
    """A problem and its remedy."""

    message: str
    """What is wrong."""
    remedy: str | None
    """What to do."""


class ExcludedNode(TypedDict):
    """A node that is not used, or only with a reservation."""

    node: str
    """Its name in the inventory."""
    reason: str
    """Why."""


class NodeResult(TypedDict):
    """A node, and the error if it has no result."""

    name: str
    """Its name in the inventory."""
    error: str | None
    """Why there is no result."""
    remedy: str | None
    """What to do about the error."""
    error_code: str | None
    """The code of the error."""


class ErrorDetails(TypedDict):
    """The error of a command."""

    code: str | None
    """The code of the error, for scripts; null if it has none."""
    params: dict[str, Any]
    """The values that the message contains, by name."""
    node: str | None
    """The node that has the error, if it is one."""
    message: str
    """What is wrong, and why."""
    remedy: str | None
    """What to do."""
    output: str
    """The output of a program that failed; empty without one."""


class ErrorDocument(TypedDict):
    """The document of a command that fails before it has a result."""

    ok: Literal[False]
    """Always false."""
    error: ErrorDetails
    """The error."""
