"""What is known when a job's command line is judged, and what such a judgement says."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from provision.commands.mca import Parameter
from provision.commands.mpirun_words import TypedLine
from provision.facts import NodeFacts, Unknown
from provision.facts.container import Container
from provision.launchers import HostEntry
from provision.profiles import NodeNetwork


@dataclass(frozen=True)
class LaunchFinding:
    """One thing that is odd about a job's command line."""

    text: str
    evidence: str
    """What was seen, and where."""
    remedy: str
    fails: bool = False
    """True where the job surely fails, so that it is not started."""

    def __str__(self) -> str:
        return f"{self.text}: {self.evidence}"


@dataclass(frozen=True)
class LaunchScene:
    """What is judged, and what is known of the nodes."""

    version: int
    """Open MPI's major version; 0 if it was not probed."""
    entries: Sequence[HostEntry]
    """The nodes that can take ranks."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What the user gave the ranks, by --env or by -x."""
    parameters: Sequence[Parameter] = ()
    line: TypedLine | None = None
    """The mpirun line that the user typed."""
    fabric: str = ""
    """The fabric that the user insists on."""
    networks: Mapping[str, NodeNetwork] = field(default_factory=dict)
    facts: Mapping[str, NodeFacts] = field(default_factory=dict)
    """Of the nodes with ranks; none where no node was asked."""
    placed: bool = False
    """Whether each rank has a GPU, or an instance of one, by its name."""


def scene_of(scene: LaunchScene, names: Collection[str]) -> LaunchScene:
    """Return a scene with what its typed line says too, and with the networks and facts of some nodes alone."""
    line = scene.line
    typed = {name: value for name, value in line.variables.items() if value is not None} if line else {}
    variables = {**scene.variables, **typed}
    by_environment = [
        Parameter("environment", name.removeprefix("OMPI_MCA_"), value)
        for name, value in variables.items()
        if name.startswith("OMPI_MCA_")
    ]
    return replace(
        scene,
        variables=variables,
        parameters=[*(line.parameters if line else ()), *by_environment],
        networks={name: scene.networks[name] for name in names if name in scene.networks},
        facts={name: scene.facts[name] for name in names if name in scene.facts},
    )


def interfaces(facts: NodeFacts) -> dict[str, list[str]]:
    """Interface -> its addresses; none if the container has its own network or they are unknown."""
    own = isinstance(facts.container, Container) and facts.container.network != "host"
    if isinstance(facts.addresses, Unknown) or own:
        return {}
    by_interface: dict[str, list[str]] = {}
    for entry in facts.addresses:
        by_interface.setdefault(entry.interface, []).append(entry.address)
    return by_interface


def data_interface(scene: LaunchScene, node: str) -> str:
    """Return what to say about the interface that would be right on a node."""
    network = scene.networks.get(node)
    return f"its data interface is {network.interface}." if network and network.interface else "see `ip addr` there."


def few(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    few = 6
    return ", ".join(names[:few]) + (f" and {len(names) - few} more" if len(names) > few else "")
