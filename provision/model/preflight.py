"""What an apply needs before its first change, and what it will put on a node."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["PackageChange", "PreflightCode", "PreflightProblem"]


class PreflightCode(StrEnum):
    """The kind of a problem; scripts match on it."""

    VARIABLE_MISSING = "variable.missing"
    VARIABLE_INVALID = "variable.invalid"
    VARIABLE_TEMPLATE = "variable.template"
    """Its Jinja cannot be rendered: an undefined name, a syntax error, an unknown filter."""
    FILE_MISSING = "file.missing"
    """On the controller."""
    REPOSITORY_UNREACHABLE = "repository.unreachable"
    REPOSITORY_INVALID = "repository.invalid"
    """It answers, and its index or its signature cannot be used."""
    PACKAGE_MISSING = "package.missing"
    PACKAGE_CONFLICT = "package.conflict"
    REGISTRY_UNREACHABLE = "registry.unreachable"
    REGISTRY_UNTRUSTED = "registry.untrusted"
    """The node does not trust its certificate."""
    IMAGE_MISSING = "image.missing"
    IMAGE_REFUSED = "image.refused"
    """The registry requires a login, or another one."""
    NODE_UNCHECKED = "node.unchecked"
    """The checks themselves could not be made on the node."""


@dataclass(frozen=True)
class PreflightProblem:
    """One reason why an apply would fail on a node; found before anything changes."""

    code: PreflightCode
    role: str
    object: str
    """The variable, package, URL or image."""
    problem: str
    """What is wrong, without a full stop."""
    remedy: str


@dataclass(frozen=True)
class PackageChange:
    """A package that an apply installs."""

    name: str
    version: str | None = None
    """The version that the node's package index would install; None where it is not known."""
