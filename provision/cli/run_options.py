"""From what was typed behind ``provision run`` to what is asked for; nothing here connects."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from provision.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from provision.commands.mpirun_words import TypedLine
    from provision.facts import NodeFacts
    from provision.hostfiles import HostEntry
    from provision.jobs import JobRequest
    from provision.model import Cluster, NodePlacement, Secret
    from provision.profiles import NodeNetwork, Wish

__all__ = ["Seats", "environment", "ranks", "refuse_modes", "request", "seats", "wish"]


def ranks(text: str) -> int:
    """Return a number of ranks as it was typed; ``p`` is what ``-np 4`` leaves of mpirun's flag."""
    import typer

    try:
        return int(text)
    except ValueError:
        more = "; mpirun's -np 4 is -n 4 here" if text == "p" else ""
        raise typer.BadParameter(f"{text!r} is no number of ranks{more}") from None


def wish(preset: str, fabric: str, *, lightcc: bool, gdr: bool) -> Wish:
    """Return what is asked for beyond the program; UsageError for words that mean nothing, or not together."""
    from provision.profiles import FABRICS, PRESETS, Wish

    if preset and preset not in PRESETS:
        raise UsageError(f"--preset {preset}: there is no such preset", remedy=f"Known are: {', '.join(PRESETS)}.")
    if fabric and fabric not in FABRICS:
        raise UsageError(f"--fabric {fabric}: there is no such fabric", remedy=f"Known are: {', '.join(FABRICS)}.")
    if preset == "taco" and fabric:
        raise UsageError("--preset taco is for RoCE alone", remedy="Leave --fabric out, or the preset.")
    if lightcc and preset != "taco":
        raise UsageError("--lightcc belongs to --preset taco", remedy="Or use --preset horovod-lightcc.")
    if gdr and preset != "taco":
        raise UsageError(
            "--gdr belongs to --preset taco",
            remedy="Without the preset GPUDirect RDMA is used where the nodes have it; --fabric roce-gdr insists.",
        )
    return Wish(preset, fabric, lightcc, gdr)


@dataclass(frozen=True)
class Seats:
    """Who makes the ranks, and what each of them gets."""

    launcher: str = "mpirun"
    placement: tuple[NodePlacement, ...] = ()
    own_gpus: bool = False


_LAUNCHERS = ("mpirun", "python", "torchrun", "launch")


def seats(launcher: str, placement: Path | None, *, own_gpus: bool, gputopology: bool) -> Seats:
    """Return what is asked for of the ranks; UsageError for what there is not, or a file that is no placement."""
    from provision.hostfiles.placement_file import read_placement

    if launcher not in _LAUNCHERS:
        raise UsageError(
            f"--launcher {launcher}: there is no such launcher", remedy=f"Known are: {', '.join(_LAUNCHERS)}."
        )
    if own_gpus and placement is None and not gputopology:
        raise UsageError(
            "--own-gpus needs a placement to know them by", remedy="Add --placement FILE, or --gputopology."
        )
    if placement is None:
        return Seats(launcher, own_gpus=own_gpus)
    try:
        text = placement.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--placement {placement}: it cannot be read: {error}") from error
    return Seats(launcher, tuple(read_placement(text)), own_gpus)


def refuse_modes(*, offline: bool, dry_run: bool, explain: bool, as_json: bool) -> None:
    """Raise UsageError when what is asked for cannot be done without nodes, or cannot be JSON."""
    if offline and not (dry_run or explain):
        raise UsageError("--offline starts nothing, for it connects to no node", remedy="Add --dry-run or --explain.")
    if as_json and not explain:
        raise UsageError("--json is for run --explain", remedy="The output of a job is the job's own.")


def request(
    cluster: Cluster,
    entries: list[HostEntry],
    command: tuple[str, ...],
    ranks: int | None,
    sync: Path | None,
    environment: dict[str, Secret],
    workdir: str | None,
    wish: Wish,
    found: Mapping[str, NodeNetwork],
    facts: Mapping[str, NodeFacts],
    seats: Seats,
) -> JobRequest:
    """Return the job on `entries`; the cluster has the roles' defaults.

    Raises:
        UsageError: an mpirun line of the user's own that has no program, or says twice what is said here.
        LaunchError: a variable of the inventory that only Ansible could resolve.
    """
    from provision.jobs import JobRequest, new_job_id, placed_entries, with_uuids

    line = _typed_line(command, wish, ranks, seats)
    if wish.preset == "taco" and seats != Seats():
        raise UsageError(
            "--preset taco has ranks of mpirun, and the same for all",
            remedy="Leave --launcher and --placement out; or --gputopology.",
        )
    if seats.placement:
        entries = placed_entries(entries, seats.placement)
    if seats.launcher in {"torchrun", "launch"} and command[0].rpartition("/")[2].startswith("python"):
        raise UsageError(
            f"--launcher {seats.launcher} starts python itself",
            remedy=f"Leave {command[0]} out: give the script alone.",
        )
    names = [entry.name for entry in entries]
    variables = {node.name: node.variables for node in cluster.nodes}
    wanted = str(variables[names[0]].get("cluster_head") or names[0])
    head = wanted if wanted in names else names[0]
    for name in names:
        _refuse_templates(name, variables[name])
    return JobRequest(
        command=line.command if line else command,
        entries=tuple(entries),
        nodes={node.name: node for node in cluster.nodes},
        head=head,
        containers={name: str(variables[name].get("training_container_name")) for name in names},
        networks=tuple(str(network) for network in variables[head].get("cluster_data_networks") or ()),
        ranks=ranks,
        workdir=workdir,
        sync=sync.resolve() if sync else None,
        environment=environment,
        job=new_job_id(),
        wish=replace(wish, fabric=wish.fabric or ("" if line else str(variables[head].get("cluster_fabric") or ""))),
        found=found,
        mpirun=str(variables[head].get("cluster_mpirun") or ""),
        line=line,
        facts=facts,
        launcher=seats.launcher,
        placement=with_uuids(seats.placement, facts),
        visible="rank" if seats.own_gpus else "node",
    )


def _typed_line(command: tuple[str, ...], wish: Wish, ranks: int | None, seats: Seats) -> TypedLine | None:
    """Return the mpirun line that the command is, None when it is a program."""
    from provision.commands.mpirun_words import is_launcher, parse_line
    from provision.profiles import check_light

    if not is_launcher(command):
        return None
    line = parse_line(command)
    if not line.command:
        raise UsageError(f"{command[0]} is given no program to start", remedy="Put the program behind its flags.")
    if wish.preset or wish.fabric or seats.placement or seats.launcher != "mpirun":
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


_OURS = frozenset({"PROVISION_JOB", "PROVISION_LAUNCHER", "PROVISION_NODE", "PROVISION_RANKS"})
"""Variables by which jobs are told from each other, and ranks get their places."""


def environment(words: Sequence[str]) -> dict[str, Secret]:
    """``K=V`` as it stands; ``K`` from this process's environment, so that secrets need not be typed."""
    from provision.commands.shell import is_environment_name
    from provision.model import Secret
    from provision.profiles import check_light

    values: dict[str, Secret] = {}
    for word in words:
        name, given, value = word.partition("=")
        if not is_environment_name(name) or name in _OURS:
            raise UsageError(f"--env {name}: this is no name of a variable that can be set")
        if not given and name not in os.environ:
            raise UsageError(
                f"--env {name}: {name} is not set here", remedy=f"export {name}, or give --env {name}=VALUE"
            )
        values[name] = Secret(value if given else os.environ[name])
    check_light({name: value.reveal() for name, value in values.items()})
    return values
