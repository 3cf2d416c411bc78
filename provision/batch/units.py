"""The systemd unit of an instance without a container (``--no-container``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from provision.batch.containers import RUN, NodeHardware, limits_of, own_mounts
from provision.errors import UsageError
from provision.model.job import Assignment, JobSpec, Kind

HOME = "~"
"""Prefix of paths in the home of the job's account, which each node resolves."""
_ROOT_HOME = "/root"
"""The default of --working-dir; other accounts use their own home."""


def unit_name(assignment: Assignment, attempt: int) -> str:
    """Return the name of the unit of an instance."""
    return f"provision-rank-{assignment.container}-{attempt}.service"


def unit_variables(inside: Sequence[Assignment]) -> dict[str, str]:
    """Return the variable that limits a process to its leased GPUs, in the order of their links.

    UUIDs are unambiguous even if a process sees other GPUs of the node; an empty value hides all GPUs.
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
    """Return the description of a unit for the job supervisor: ``unit`` in README.md of `provision/jobs`."""
    needs_own = spec.kind is Kind.MPI or spec.procs_per_gpu > 1
    own = own_mounts(spec, folder)
    binds = [_bind(mount) for mount in (*(own if needs_own else own[1:]), *mounts, *spec.mounts)]
    at_home = bool(spec.user) and spec.working_dir == _ROOT_HOME
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
    return HOME + target.removeprefix(_ROOT_HOME) if target.startswith(f"{_ROOT_HOME}/code/") else target


_DEFAULTS = JobSpec("", Kind.RUN, ())


def check_unit(spec: JobSpec) -> None:
    """Refuse options that require a container.

    Raises:
        UsageError: with the flag.
    """
    for field, (flag, remedy) in _OF_CONTAINERS.items():
        if getattr(spec, field) != getattr(_DEFAULTS, field):
            raise UsageError(f"{flag} requires a container, and --no-container was given", remedy=remedy)
    if spec.tensorboard and not spec.tensorboard_image:
        raise UsageError(
            "--tensorboard requires an image, and --no-container was given",
            remedy="Specify an image with TensorBoard: --tensorboard-image IMAGE.",
        )


_OF_CONTAINERS: Mapping[str, tuple[str, str]] = {
    "image": ("--image", "Remove one of the two options."),
    "worker_image": ("--worker-image", "Remove one of the two options."),
    "share_memory": ("--share-memory", "Remove it: processes of a node use the node's /dev/shm."),
    "privileged": ("--privileged", "Remove it: processes of root have all rights; use --user to restrict them."),
    "pull": ("--pull", "Remove it: there is no image."),
    "rdma": (
        "--no-rdma",
        "Remove it: processes see all devices of a node; use --fabric tcp so that NCCL ignores them.",
    ),
}
