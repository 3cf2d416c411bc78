"""Preflight: requirements of an apply that are verified before its first change, and the packages it installs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PreflightCode(StrEnum):
    """Kind of a problem; scripts match on it."""

    VARIABLE_MISSING = "variable.missing"
    VARIABLE_INVALID = "variable.invalid"
    VARIABLE_TEMPLATE = "variable.template"
    """Its Jinja cannot be rendered: an undefined name, a syntax error, an unknown filter."""
    CLUSTER_MIXED = "cluster.mixed"
    """The nodes differ in what all nodes of a cluster must have in common."""
    KERNEL_UNSUPPORTED = "kernel.unsupported"
    """A kernel that the requested release of a vendor's software is not known to support."""
    STACK_INSTALLED = "stack.installed"
    """An installed RDMA stack that the requested one cannot replace."""
    FILE_MISSING = "file.missing"
    """On the controller."""
    REPOSITORY_UNREACHABLE = "repository.unreachable"
    REPOSITORY_INVALID = "repository.invalid"
    """It responds, but its index or signature is invalid."""
    PACKAGE_MISSING = "package.missing"
    PACKAGE_CONFLICT = "package.conflict"
    REGISTRY_UNREACHABLE = "registry.unreachable"
    REGISTRY_UNTRUSTED = "registry.untrusted"
    """The node does not trust its certificate."""
    IMAGE_MISSING = "image.missing"
    IMAGE_REFUSED = "image.refused"
    """The registry requires credentials, or rejects the configured ones."""
    NODE_UNCHECKED = "node.unchecked"
    """The preflight could not run on the node."""


@dataclass(frozen=True)
class PreflightProblem:
    """One reason why an apply would fail on a node."""

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
    """The version in the node's package index; None if it is unknown."""
