"""What systemd runs for an instance of a job that is a process of its node (``--no-container``), and no container."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from provision.batch.containers import RUN, NodeHardware, limits_of, own_mounts
from provision.errors import UsageError
from provision.model.job import Assignment, JobSpec, Kind

__all__ = ["check_unit", "unit_name", "unit_of", "unit_variables"]

HOME = "~"
"""Begins paths in the home of the job's account, which each node knows."""
_ROOTS = "/root"
"""The default of --working-dir: another account works in its own home."""


def unit_name(assignment: Assignment, attempt: int) -> str:
    """Return the name of the unit that an instance runs in, as its node makes it."""
    return f"provision-rank-{assignment.container}-{attempt}.service"


def unit_variables(inside: Sequence[Assignment]) -> dict[str, str]:
    """Return what keeps a process of a node to the GPUs that are leased to it, in the order of their links.

    UUIDs, which name the same GPU whatever else of the node a process may see; none hides all.
    """
    return {"CUDA_VISIBLE_DEVICES": ",".join(uuid for assignment in inside for uuid in assignment.uuids)}


def unit_of(
    spec: JobSpec,
    *,
    hardware: NodeHardware,
    folder: str,
    mounts: Sequence[str] = (),
    entry: Sequence[str] = (),
) -> dict[str, Any]:
    """Return what the keeper is told of a unit: ``unit`` of README.md of `provision/jobs`.

    Args:
        spec: the job.
        hardware: what the node has.
        folder: the attempt's folder on the node.
        mounts: of data and code, ``/source:/target[:ro]``.
        entry: the command.
    """
    needs_own = spec.kind is Kind.MPI or spec.procs_per_gpu > 1
    own = own_mounts(spec, folder)
    binds = [_bind(mount) for mount in (*(own if needs_own else own[1:]), *mounts, *spec.mounts)]
    at_home = bool(spec.user) and spec.working_dir == _ROOTS
    if at_home:
        binds = [[source, _in_home(target), mode] for source, target, mode in binds]
    return {
        "user": spec.user,
        "folder": HOME if at_home else spec.working_dir,
        "command": list(entry),
        "limits": limits_of(spec, hardware),
        "binds": binds,
        "private": [RUN] if needs_own else [],
    }


def _bind(mount: str) -> list[str]:
    source, target, *mode = mount.split(":")
    return [source, target.rstrip("/"), "ro" if mode == ["ro"] else "rw"]


def _in_home(target: str) -> str:
    return HOME + target.removeprefix(_ROOTS) if target.startswith(f"{_ROOTS}/code/") else target


_NOT_ASKED = JobSpec("", Kind.RUN, ())


def check_unit(spec: JobSpec) -> None:
    """Return when nothing was asked for that only a container can have.

    Raises:
        UsageError: something was; the flag is named.
    """
    for field, (flag, remedy) in _OF_CONTAINERS.items():
        if getattr(spec, field) != getattr(_NOT_ASKED, field):
            raise UsageError(f"{flag} is for containers, and --no-container was given", remedy=remedy)
    if spec.tensorboard and not spec.tensorboard_image:
        raise UsageError(
            "--tensorboard runs in a container, and --no-container leaves it without an image",
            remedy="Name one that has TensorBoard: --tensorboard-image IMAGE.",
        )


_OF_CONTAINERS: Mapping[str, tuple[str, str]] = {
    "image": ("--image", "Leave one of the two out."),
    "worker_image": ("--worker-image", "Leave one of the two out."),
    "share_memory": ("--share-memory", "Leave it out: processes of a node have the node's own /dev/shm."),
    "privileged": ("--privileged", "Leave it out: a process of root's has all of its node; --user takes that away."),
    "pull": ("--pull", "Leave it out: there is no image."),
    "rdma": ("--no-rdma", "Leave it out: a process sees all devices of its node; --fabric tcp keeps NCCL off them."),
}
