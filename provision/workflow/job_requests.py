"""Requests for jobs that run in the training containers, from nodes, a command and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from provision.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from provision.commands.mpirun_words import TypedLine
    from provision.facts import NodeFacts
    from provision.jobs import JobRequest
    from provision.launchers import HostEntry
    from provision.model import Cluster, NodePlacement, Secret
    from provision.profiles import NodeNetwork, ProfileOptions


@dataclass(frozen=True)
class RankOptions:
    """Who makes the ranks, and what each of them gets."""

    launcher: str = "mpirun"
    placement: tuple[NodePlacement, ...] = ()
    own_gpus: bool = False


@dataclass(frozen=True)
class LaunchOptions:
    """How the ranks are started."""

    profile: ProfileOptions
    rank_options: RankOptions = field(default_factory=RankOptions)
    ranks: int | None = None
    """All slots without it."""
    sync: Path | None = None
    environment: Mapping[str, Secret] = field(default_factory=dict)
    workdir: str | None = None


def job_request(
    cluster: Cluster,
    entries: list[HostEntry],
    command: tuple[str, ...],
    options: LaunchOptions,
    networks: Mapping[str, NodeNetwork],
    facts: Mapping[str, NodeFacts],
) -> JobRequest:
    """Return the request for a job.

    Raises:
        UsageError: an mpirun line of the user's own that has no program, or says twice what is said here.
        LaunchError: a variable of the inventory that only Ansible could resolve.
    """
    from provision.jobs import JobRequest, new_job_id, placed_entries, with_uuids

    profile, rank_options = options.profile, options.rank_options
    line = _typed_line(command, profile, options.ranks, rank_options)
    _refuse_combinations(options, command)
    if rank_options.placement:
        entries = placed_entries(entries, rank_options.placement)
    names = [entry.name for entry in entries]
    variables = {node.name: node.variables for node in cluster.nodes}
    wanted = str(variables[names[0]].get("cluster_head") or names[0])
    head = wanted if wanted in names else names[0]
    for name in names:
        _refuse_templates(name, variables[name])
    fabric = profile.fabric or ("" if line else str(variables[head].get("cluster_fabric") or ""))
    return JobRequest(
        command=line.command if line else command,
        entries=tuple(entries),
        nodes={node.name: node for node in cluster.nodes},
        head=head,
        containers={name: str(variables[name].get("training_container_name")) for name in names},
        networks=tuple(str(network) for network in variables[head].get("cluster_data_networks") or ()),
        ranks=options.ranks,
        workdir=options.workdir,
        sync=options.sync.resolve() if options.sync else None,
        environment=options.environment,
        job=new_job_id(),
        profile=replace(profile, fabric=fabric),
        node_networks=networks,
        mpirun=str(variables[head].get("cluster_mpirun") or ""),
        line=line,
        facts=facts,
        launcher=rank_options.launcher,
        placement=with_uuids(rank_options.placement, facts),
        visible="rank" if rank_options.own_gpus else "node",
    )


def _refuse_combinations(options: LaunchOptions, command: tuple[str, ...]) -> None:
    """Raise UsageError for options that exclude each other."""
    from provision.launchers import launcher_of

    rank_options = options.rank_options
    if options.profile.preset == "taco" and rank_options != RankOptions():
        raise UsageError(
            "--preset taco has ranks of mpirun, and the same for all",
            remedy="Leave --launcher and --placement out; or --gputopology.",
        )
    launcher, first = launcher_of(rank_options.launcher), command[0].rpartition("/")[2]
    if launcher.per_node and (first.startswith("python") or first in {*launcher.commands, launcher.program}):
        raise UsageError(
            f"--launcher {launcher.name} starts {launcher.program} on each node; the command starts with {command[0]}",
            remedy=f"Omit {command[0]}: give the script and its arguments.",
        )


def _typed_line(
    command: tuple[str, ...], profile: ProfileOptions, ranks: int | None, rank_options: RankOptions
) -> TypedLine | None:
    """Return the mpirun line that the command is, None when it is a program."""
    from provision.commands.mpirun_words import is_launcher, parse_line
    from provision.profiles import check_light

    if not is_launcher(command):
        return None
    line = parse_line(command)
    if not line.command:
        raise UsageError(f"{command[0]} is given no program to start", remedy="Put the program behind its flags.")
    if profile.preset or profile.fabric or rank_options.placement or rank_options.launcher != "mpirun":
        raise UsageError(
            f"your own {command[0]} line is taken as it is: no --preset, --fabric, --launcher or place",
            remedy="Leave them out, or give the program alone.",
        )
    check_light(line.variables)
    if ranks is not None and line.counts_ranks:
        raise UsageError(
            f"the number of ranks is given to provision (-n {ranks}) and to {command[0]}", remedy="Give it once."
        )
    return line


_TAKEN_LITERALLY = (
    "training_container_name",
    "cluster_data_networks",
    "cluster_data_interface",
    "cluster_management_interface",
    "cluster_fabric",
    "cluster_head",
    "cluster_mpi",
    "cluster_mpirun",
)


def _refuse_templates(name: str, variables: Mapping[str, object]) -> None:
    """A name that only Ansible could make, on the node, would be taken literally."""
    from provision.facts import plain

    for key in _TAKEN_LITERALLY:
        if not plain(variables.get(key)):
            raise LaunchError(
                f"{key} cannot be resolved without Ansible: {variables[key]}",
                node=name,
                remedy="Write it so that it needs no facts of the node.",
            )
