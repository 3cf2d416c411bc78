"""Documents of ``stack``."""

from __future__ import annotations

from typing import TypedDict

from provision.model.reason import ReasonDocument
from provision.stack.prediction import Forecast


class StackComponent(TypedDict):
    """One component of a stack."""

    version: str
    """Its version; of the RDMA stack `inbox`, or the version of the vendor's stack."""
    packages: dict[str, str]
    """Package -> version; empty if it has no packages."""


class StackDocument(TypedDict):
    """A lock file that was written."""

    file: str
    """Its path."""
    node: str
    """The node with these versions."""
    system: str
    """Its operating system, as in `debian_12`."""
    architecture: str
    """Its architecture, as `uname -m` prints it."""
    components: dict[str, StackComponent]
    """Component -> its version."""


class StackDifference(TypedDict):
    """A component or package that differs."""

    component: str
    """The component."""
    package: str
    """The package; empty for the version of the component itself."""
    a: str
    """The version in A; empty if A does not have it."""
    b: str
    """The version in B; empty if B does not have it."""


class StackDifferences(TypedDict):
    """The differences of two stacks."""

    a: str
    """The first node or lock file."""
    b: str
    """The second node or lock file."""
    same: bool
    """Whether there is no difference."""
    differences: list[StackDifference]
    """The differences."""


class ForecastComponent(TypedDict):
    """What is known about the build of one component."""

    component: str
    """`driver`, `rdma` or `peer_memory`."""
    version: str
    """Its version on the node."""
    forecast: Forecast
    """What is known. Nothing is compiled, so `no_obstacle` does not say that the build succeeds."""
    text: str
    """The reasons as one text."""
    reasons: list[ReasonDocument]
    """The reasons."""
    remedy: str
    """What to do; empty if nothing has to be done."""


class ForecastKernel(TypedDict):
    """The predictions for one kernel."""

    release: str
    """The kernel's release."""
    components: list[ForecastComponent]
    """The components that the node has."""


class ForecastNode(TypedDict):
    """The predictions for one node."""

    name: str
    """Its name in the inventory."""
    error: str | None
    """Why it could not be probed."""
    error_code: str | None
    """The code of the error."""
    remedy: str | None
    """What to do about the error."""
    kernels: list[ForecastKernel]
    """The kernels; empty if no newer one is available."""


class StackForecast(TypedDict):
    """Predictions for kernels that are not installed."""

    nodes: list[ForecastNode]
    """The nodes."""
