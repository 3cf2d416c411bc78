"""Problems of the variables, parameters and flags that a user sets for a job, according to the facts of the nodes."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence

from provision.checks.launch_lint_nccl import NCCL_JUDGES
from provision.checks.launch_scene import LaunchFinding, LaunchScene, data_interface, few, interfaces
from provision.commands.mca import PRRTE, Parameter, is_gone, spelled
from provision.facts import Unknown

__all__ = ["LaunchFinding", "LaunchScene", "lint"]


def lint(scene: LaunchScene) -> tuple[LaunchFinding, ...]:
    """Return the findings, those that make the job fail first. Unknown facts cause no finding."""
    findings = [finding for judge in _JUDGES for finding in judge(scene)]
    return tuple(sorted(findings, key=lambda finding: not finding.fails))


def _hosts(scene: LaunchScene) -> Iterator[LaunchFinding]:
    known = {entry.name: entry.slots for entry in scene.entries}
    hosts = scene.line.hosts if scene.line else ()
    strange = [name for name, _ in hosts if name not in known]
    if strange:
        yield LaunchFinding(
            f"-H names {few(strange)}",
            "not among the nodes that can take ranks: " + few(list(known)),
            "Use names of the inventory; `provision hostfile` says why a node is left out.",
            fails=True,
        )
    for name, slots in hosts:
        if slots > known.get(name, slots):
            evidence = f"{name} has {known[name]} slots"
            yield LaunchFinding(f"-H gives {name} {slots} slots", evidence, f"Write -H {name}:{known[name]}.")
    if scene.line and any(slots == 1 < known.get(name, 1) for name, slots in hosts):
        names = [name for name, slots in hosts if slots == 1 < known.get(name, 1)]
        wanted = ",".join(f"{name}:{known[name]}" for name in names)
        yield LaunchFinding(
            f"-H gives {few(names)} one slot", "without a number behind the name it is one", f"Write -H {wanted}."
        )


def _ranks(scene: LaunchScene) -> Iterator[LaunchFinding]:
    line = scene.line
    if line is None or line.ranks is None:
        return
    slots = sum(count for _, count in line.hosts) or sum(entry.slots for entry in scene.entries)
    table = ", ".join(f"{entry.name} {entry.slots} ({entry.kind})" for entry in scene.entries[:8])
    if line.ranks > slots and not line.oversubscribes:
        yield LaunchFinding(
            f"-np {line.ranks} is more than the {slots} slots",
            table,
            f"Write -np {slots}, or name more nodes.",
            fails=True,
        )
    elif line.ranks < slots and line.hosts:
        yield LaunchFinding(
            f"-np {line.ranks} leaves {slots - line.ranks} of {slots} slots idle", table, f"-np {slots}?"
        )


def _ranks_per_node(scene: LaunchScene) -> Iterator[LaunchFinding]:
    """The nodes are filled in order, as long as there are ranks."""
    line = scene.line
    if line is None or line.ranks_per_node is None or line.oversubscribes:
        return
    left = line.ranks
    for name, slots in line.hosts or [(entry.name, entry.slots) for entry in scene.entries]:
        wanted = line.ranks_per_node if left is None else min(left, line.ranks_per_node)
        left = None if left is None else left - wanted
        if wanted > slots:
            yield LaunchFinding(
                f"{line.ranks_per_node} ranks on each node are too many",
                f"{name} has {slots} slots",
                f"Ask for at most {slots} on each, or leave {name} out.",
                fails=True,
            )
            return


def _unknown_flags(scene: LaunchScene) -> Iterator[LaunchFinding]:
    for flag in scene.line.unknown if scene.line else ():
        yield LaunchFinding(
            f"{flag} is no flag of mpirun that we know",
            "it is passed on as it is, taken to have no value",
            "See mpirun -h.",
        )


def _joined_flags(scene: LaunchScene) -> Iterator[LaunchFinding]:
    for word in scene.line.joined if scene.line and 0 < scene.version < PRRTE else ():
        yield LaunchFinding(
            word,
            f"the containers have Open MPI {scene.version}, whose mpirun takes no value behind an equals sign",
            f"Write {word.replace('=', ' ', 1)}",
            fails=True,
        )


def _old_names(scene: LaunchScene) -> Iterator[LaunchFinding]:
    if not scene.version:
        return
    if scene.version < PRRTE:
        for parameter in scene.parameters:
            if parameter.flag == "--prtemca":
                yield LaunchFinding(
                    f"--prtemca {parameter.name}",
                    f"the containers have Open MPI {scene.version}, whose mpirun does not know --prtemca",
                    "Use --mca and version 4's name of the parameter.",
                    fails=True,
                )
        return
    for parameter in scene.parameters:
        if is_gone(parameter.name, scene.version):
            yield _without_effect(parameter, scene.version)
            continue
        new = spelled(parameter.name, parameter.value, scene.version)
        if parameter.flag == "--mca" and (new.name, new.value) != (parameter.name, parameter.value):
            yield LaunchFinding(
                f"--mca {parameter.name} {parameter.value}",
                f"the containers have Open MPI {scene.version}, which does not take it so",
                f"Write {new.flag} {new.name} {new.value}" if new.value else "Leave it out.",
            )


def _without_effect(parameter: Parameter, version: int) -> LaunchFinding:
    typed = f"OMPI_MCA_{parameter.name}=" if parameter.flag == "environment" else f"{parameter.flag} {parameter.name} "
    instead = (
        "Leave it out; it reaches RDMA cards by UCX (--mca pml ucx)."
        if parameter.name.startswith("btl_openib_")
        else "Leave it out; the daemons' interfaces are named by --prtemca prte_if_include."
    )
    component = "openib" if parameter.name.startswith("btl_openib_") else "oob"
    return LaunchFinding(
        f"{typed}{parameter.value}", f"the containers have Open MPI {version}, which has no {component}", instead
    )


def _both_lists(scene: LaunchScene) -> Iterator[LaunchFinding]:
    names = {parameter.name for parameter in scene.parameters}
    for name in sorted(names):
        family = name.removesuffix("_if_include")
        if name != family and f"{family}_if_exclude" in names:
            yield LaunchFinding(
                f"{family}_if_include and {family}_if_exclude are both given",
                "Open MPI takes one of them alone, and stops",
                f"Leave {family}_if_exclude out.",
                fails=True,
            )


def _mpi_interfaces(scene: LaunchScene) -> Iterator[LaunchFinding]:
    for parameter in scene.parameters:
        if not parameter.name.endswith("_if_include"):
            continue
        for node, facts in scene.facts.items():
            there = interfaces(facts)
            wanted = [word for word in parameter.value.split(",") if word]
            if there and wanted and not any(_carries(word, there) for word in wanted):
                yield LaunchFinding(
                    f"{parameter.name} {parameter.value}",
                    f"{node} has {few(sorted(there))}",
                    f"Name an interface or a network of every node; {data_interface(scene, node)}",
                    fails=len(scene.facts) > 1,
                )


def _partitions(scene: LaunchScene) -> Iterator[LaunchFinding]:
    """A GPU in MIG mode cannot be used as a whole; ranks that select it by number share its first instance."""
    slots = {entry.name for entry in scene.entries if entry.kind == "gpu"}
    cut = {
        name: [str(gpu.index) for gpu in facts.gpus if gpu.health.mig]
        for name, facts in scene.facts.items()
        if name in slots and not isinstance(facts.gpus, Unknown)
    }
    shown = [f"{name} {', '.join(indices)}" for name, indices in cut.items() if indices]
    if shown and not scene.placed:
        yield LaunchFinding(
            f"GPUs in MIG mode get ranks: {few(shown)}",
            "by numbers all ranks of a node get the same MIG instance, and no two instances work together",
            "Leave these nodes out (--limit), switch MIG off (nvidia-smi -mig 0), or name an instance for each rank by "
            "its UUID (nvidia-smi -L) in a --placement, with --own-gpus.",
        )


def _carries(word: str, there: Mapping[str, Sequence[str]]) -> bool:
    if "/" not in word:
        return word in there
    try:
        network = ipaddress.ip_network(word, strict=False)
    except ValueError:
        return False
    return any(ipaddress.ip_address(address) in network for addresses in there.values() for address in addresses)


_JUDGES = (
    _hosts,
    _ranks,
    _ranks_per_node,
    _unknown_flags,
    _joined_flags,
    _old_names,
    _both_lists,
    _mpi_interfaces,
    _partitions,
    *NCCL_JUDGES,
)
