"""Data volumes of a cluster: their entries in the inventory, their mounts in containers, and problems on nodes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from provision.errors import InventoryError, ProvisionError, UsageError
from provision.model import Cluster
from provision.model.job import JobSpec

VARIABLE = "cluster_data"
"""Variable of the inventory for all nodes: name -> entry, as `as_entry` returns it."""

KINDS = {
    "nfs": ("nfs", "nfs4"),
    "lustre": ("lustre",),
    "s3fs": ("fuse.s3fs",),
    "path": (),
}
"""Kind -> the kernel's names of its file system; ``path`` can have any."""
_NETWORK = re.compile(
    r"nfs4?|lustre|ceph|beegfs\w*|gpfs|wekafs|cifs|smb3|9p|virtiofs|ocfs2|gfs2|glusterfs|pvfs2|fuse\.(?!fuse-overlayfs).*"
)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")
_FIELDS = ("kind", "path", "source", "read_only", "description", "owner", "added")


@dataclass(frozen=True)
class Volume:
    """A folder on all nodes that jobs mount by its name."""

    name: str
    kind: str
    """A key of `KINDS`."""
    path: str
    """Its path on the nodes."""
    source: str = ""
    """The source of the mount: ``server:/export``, ``mgs@tcp:/fs``, ``bucket``; empty for ``path``."""
    read_only: bool = False
    description: str = ""
    owner: str = ""
    added: str = ""
    """ISO 8601, UTC."""


@dataclass(frozen=True)
class DataFinding:
    """A problem of a volume on one node, or a difference between nodes if `node` is empty."""

    volume: str
    node: str
    level: str
    """``fail``: jobs cannot use it; ``warn``: jobs can use it."""
    problem: str
    remedy: str = ""


def new_volume(name: str, kind: str, place: str, at: str = "", **more: Any) -> Volume:
    """Return a new volume.

    Raises:
        UsageError: a value is invalid.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"invalid volume name {name!r}", remedy="Use lower-case letters, digits, '-' and '.'.")
    path = place if kind == "path" else at or f"/mnt/{name}"
    if kind == "path" and at:
        raise UsageError("--at and --path exclude each other")
    if not re.fullmatch(r"/[^:,\s\x00]+", path) or path.rstrip("/") == "" or ".." in path.split("/"):
        raise UsageError(f"{path}: the path of a volume must be absolute, without ':', ',' or spaces")
    shapes = {"nfs": r"[^\s/:]+:/\S*|\[[0-9a-fA-F:]+\]:/\S*", "lustre": r"\S+:/\S+", "s3fs": r"[^\s/:]+(:/\S*)?"}
    if kind in shapes and not re.fullmatch(shapes[kind], place):
        example = {"nfs": "server:/export", "lustre": "10.0.0.1@tcp:/scratch", "s3fs": "bucket"}[kind]
        raise UsageError(f"--{kind} {place}: invalid source; write it like {example}")
    return Volume(name, kind, path.rstrip("/"), "" if kind == "path" else place, **more)


def as_entry(volume: Volume) -> dict[str, Any]:
    """Return the entry of a volume in the inventory, without empty fields."""
    entry = {field: getattr(volume, field) for field in _FIELDS}
    return {field: value for field, value in entry.items() if value not in ("", False)}


def volumes_of(cluster: Cluster) -> dict[str, Volume]:
    """Return the volumes that the inventory describes, by name.

    Raises:
        InventoryError: an invalid entry, with its name.
    """
    raw = cluster.nodes[0].variables.get(VARIABLE) if cluster.nodes else None
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        raise InventoryError(f"{VARIABLE}: it must be a mapping from names to volumes")
    return {str(name): _volume(str(name), entry) for name, entry in raw.items()}


def _volume(name: str, entry: Any) -> Volume:
    where = f"{VARIABLE}, {name}"
    if not isinstance(entry, Mapping) or entry.get("kind") not in KINDS or not isinstance(entry.get("path"), str):
        raise InventoryError(f"{where}: it needs a kind ({', '.join(KINDS)}) and a path")
    unknown = [str(key) for key in entry if key not in _FIELDS]
    if unknown:
        raise InventoryError(f"{where}: unknown key '{unknown[0]}'; valid keys: {', '.join(_FIELDS)}")
    texts = {key: str(entry.get(key) or "") for key in ("description", "owner", "added")}
    place = entry["path"] if entry["kind"] == "path" else str(entry.get("source") or "")
    at = "" if entry["kind"] == "path" else entry["path"]
    try:
        return new_volume(name, entry["kind"], place, at, read_only=entry.get("read_only") is True, **texts)
    except UsageError as error:
        raise InventoryError(f"{where}: {error.message}", remedy=error.remedy) from error


def volumes_for(spec: JobSpec, cluster: Cluster) -> list[Volume]:
    """Return the volumes of a job's ``--data``, each once.

    Raises:
        UsageError: an unknown volume, or an invalid target.
    """
    volumes = volumes_of(cluster)
    names: list[str] = []
    targets: list[str] = []
    for name, target in spec.data:
        if name not in volumes:
            known = ", ".join(volumes) or "none"
            raise UsageError(
                f"--data {name}: unknown volume; known volumes: {known}", remedy="See: provision data list -a"
            )
        check_target(name, target)
        if name in names:
            raise UsageError(f"--data {name}: this volume is given twice")
        if target.rstrip("/") in targets:
            raise UsageError(f"--data {name}:{target}: another volume has the same target")
        names.append(name)
        targets.append(target.rstrip("/"))
    return [volumes[name] for name in names]


def check_target(name: str, target: str) -> None:
    """Refuse an invalid path in the container.

    Raises:
        UsageError: with the path.
    """
    is_valid = target.startswith("/") and target.strip("/") and not re.search(r"[:,\s\x00]", target)
    if not is_valid or ".." in target.split("/"):
        raise UsageError(f"--data {name}:{target}: the target must be an absolute path in the container, and not /")


def mounts_for(spec: JobSpec, cluster: Cluster) -> list[str]:
    """Return the values of ``docker run -v`` for a job's volumes, in the order of ``--data``."""
    volumes = {volume.name: volume for volume in volumes_for(spec, cluster)}
    return [
        f"{volumes[name].path}:{target.rstrip('/')}" + (":ro" if volumes[name].read_only else "")
        for name, target in spec.data
    ]


def access_mode(volume: Volume, answers: Mapping[str, Any]) -> str:
    """Return the access mode as in ``arena data list``, from the answers of nodes (there may be none)."""
    mounts = [_mount(answer) for answer in answers.values()]
    local = volume.kind == "path" and any(kind and not _NETWORK.fullmatch(kind) for kind, _ in mounts)
    if local or (volume.kind == "path" and not mounts):
        return "ReadOnlyOnce" if volume.read_only else "ReadWriteOnce"
    return "ReadOnlyMany" if volume.read_only else "ReadWriteMany"


def judge(volume: Volume, answers: Mapping[str, Any], *, seconds: float = 10.0) -> list[DataFinding]:
    """Return the problems of a volume.

    Args:
        volume: its entry in the inventory.
        answers: node -> the answer of ``data_check.py`` about it, or the error.
        seconds: the time limit of the answers.
    """
    problems = [
        DataFinding(volume.name, node, "fail", problem, remedy)
        for node, answer in answers.items()
        for problem, remedy in _problems(volume, answer, seconds)
    ]
    others = {node: answer for node, answer in answers.items() if node not in {finding.node for finding in problems}}
    return [*problems, *_differences(volume, others)]


def _problems(volume: Volume, answer: Any, seconds: float) -> Iterator[tuple[str, str]]:
    if isinstance(answer, ProvisionError):
        yield answer.message, answer.remedy or ""
        return
    if not isinstance(answer, Mapping):
        yield "the answer of the node is invalid", ""
        return
    fix = f"mount it: {mount_command(volume)}" if volume.source else f"create it: mkdir -p {volume.path}"
    if answer.get("hung"):
        yield (
            f"{volume.path} does not answer within {seconds:g} s: its server or the network does not work",
            f"fix the server; or unmount it (umount -f -l {volume.path}) and {fix}",
        )
        return
    if wrong := _wrong_mount(volume, answer):
        yield wrong, fix
        return
    why, code = str(answer.get("error") or "it cannot be used"), answer.get("errno")
    if code == "ESTALE":
        yield (
            f"{volume.path} is a stale mount: its server does not know it any more",
            f"umount -f -l {volume.path}, then {fix}",
        )
    elif not answer.get("exists"):
        yield f"{volume.path}: {why}", fix
    elif not answer.get("readable"):
        yield (
            f"{volume.path} cannot be read: {why}",
            "check its permissions, and the permissions of this node on its server",
        )
    elif not volume.read_only and not answer.get("writable"):
        remedy = "add it again with --ro, or make it writable on the node"
        if code in ("EACCES", "EPERM"):
            remedy += "; an NFS server with root_squash requires jobs with --user UID:GID"
        yield f"{volume.path} cannot be written to: {why}", remedy


def _wrong_mount(volume: Volume, answer: Mapping[str, Any]) -> str:
    if volume.kind == "path":
        return ""
    kind, source = _mount(answer)
    if kind not in KINDS[volume.kind]:
        return f"{volume.path} is not mounted: it is on {source or 'an unknown device'} ({kind or 'unknown'})"
    if volume.kind != "s3fs" and source.rstrip("/") != volume.source.rstrip("/"):
        return f"{volume.path} is mounted from {source} instead of {volume.source}"
    return ""


def _mount(answer: Any) -> tuple[str, str]:
    mount = answer.get("mount") if isinstance(answer, Mapping) else None
    if not isinstance(mount, Mapping):
        return "", ""
    return str(mount.get("type") or ""), str(mount.get("source") or "")


def _differences(volume: Volume, answers: Mapping[str, Any]) -> Iterator[DataFinding]:
    """Yield differences between nodes of a volume without a source; others are compared with their source."""
    if volume.kind != "path" or len(answers) < 2:  # noqa: PLR2004 - a comparison
        return
    mounts = {node: _mount(answer) for node, answer in answers.items()}
    local = [node for node, (kind, _) in mounts.items() if not _NETWORK.fullmatch(kind)]
    first, *others = mounts
    if len(local) == len(mounts):
        yield DataFinding(
            volume.name,
            "",
            "warn",
            f"{volume.path} is on a local disk of each node: nodes do not see the files of others",
        )
        return
    for node in others:
        if mounts[node] != mounts[first]:
            yield DataFinding(
                volume.name,
                node,
                "fail",
                f"{volume.path} is {mounts[node][1]} ({mounts[node][0]}) here and {mounts[first][1]} on {first}",
                "mount the same source on all nodes",
            )


def mount_command(volume: Volume) -> str:
    """Return instructions to mount a volume on a node, now and at boot."""
    if volume.kind == "s3fs":
        command = f"s3fs {volume.source} {volume.path}" + (" -o ro" if volume.read_only else "")
    else:
        option = " -o ro" if volume.read_only else ""
        command = f"mount -t {volume.kind}{option} {volume.source} {volume.path}"
    return f"{command}; to mount it at boot, add to /etc/fstab: {fstab_line(volume)}"


def fstab_line(volume: Volume) -> str:
    """Return the line of /etc/fstab for a volume with a source."""
    return f"{volume.source} {volume.path} {KINDS[volume.kind][0]} {','.join(_mount_options(volume))} 0 0"


def _mount_options(volume: Volume) -> list[str]:
    options = ["ro"] if volume.read_only else []
    return [*options, "_netdev", *(["allow_other"] if volume.kind == "s3fs" else [])]


def mount_everywhere(volume: Volume, *where: str) -> str:
    """Return one command that mounts a volume on all nodes, and at boot where that succeeded.

    A wrong source in /etc/fstab would delay the next boot.
    """
    path, source = shlex.quote(volume.path), shlex.quote(volume.source)
    kind, options = KINDS[volume.kind][0], ",".join(_mount_options(volume))
    line = shlex.quote(fstab_line(volume))
    script = f"mkdir -p {path} && mount -t {kind} -o {options} {source} {path} && echo {line} >>/etc/fstab"
    return shlex.join(["provision", "exec", *where, "--", script])
