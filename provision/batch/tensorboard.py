"""TensorBoard for a job: the place of its events, its container, and causes of failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from posixpath import normpath

from provision.batch.data import Volume
from provision.batch.names import JOBS
from provision.errors import UsageError
from provision.model.job import JobRecord, JobSpec

_ROLE = "tensorboard"


@dataclass(frozen=True)
class LogPlace:
    """The location of the events of a job."""

    mount: tuple[str, str]
    """Path on the node, path in the container."""
    path: str
    """The log folder on the node."""
    shared: bool
    """Whether it is on a data volume, and contains the events of all instances."""


def container_name(job: str) -> str:
    """Return the name of a job's TensorBoard."""
    return f"{job}-tensorboard"


def log_place(spec: JobSpec, volumes: Sequence[Volume]) -> LogPlace:
    """Return the location of ``--logdir`` on the nodes: on the volume that contains it, else in the job's folder.

    Raises:
        UsageError: ``--logdir`` is invalid.
    """
    logdir = normpath(spec.logdir)
    if not spec.logdir.startswith("/") or logdir == "/" or any(letter in spec.logdir for letter in ":\n\0"):
        raise UsageError(f"--logdir {spec.logdir}: must be an absolute path in the container, and not /")
    paths = {volume.name: volume.path for volume in volumes}
    inside = [
        (target.rstrip("/"), paths[name])
        for name, target in spec.data
        if name in paths and _is_in(logdir, target.rstrip("/"))
    ]
    if not inside:
        folder = f"{JOBS}/{spec.name}/logs"
        return LogPlace((folder, logdir), folder, shared=False)
    target, path = max(inside, key=lambda pair: len(pair[0]))
    return LogPlace((path, target), path + logdir[len(target) :], shared=True)


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def warnings_for(spec: JobSpec, volumes: Sequence[Volume]) -> list[str]:
    """Return warnings about the events of a job."""
    if not spec.tensorboard:
        return []
    place = log_place(spec, volumes)
    read_only = [volume.name for volume in volumes if volume.read_only and volume.path == place.mount[0]]
    if place.shared and read_only:
        return [f"--logdir {spec.logdir} is on the volume {read_only[0]}, which is read-only: no events can be written"]
    if place.shared:
        return []
    where = f"--logdir {spec.logdir} is on no --data volume: it is stored in {place.path} on each node"
    return [f"{where}, and TensorBoard shows only the events of rank 0"]


def create_words(record: JobRecord, volumes: Sequence[Volume], address: str) -> list[str]:
    """Return the arguments of ``docker create``, without the port, which is the last one.

    The container reads the events and listens on one address; it has no other rights.
    """
    spec, place = record.spec, log_place(record.spec, volumes)
    words = ["--name", container_name(spec.name), "--network", "host", "--init", "--restart", "no", "--read-only"]
    words += ["--tmpfs", "/tmp:mode=1777", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]  # noqa: S108 # nosec B108 # a tmpfs of the container's own
    words += ["--pids-limit", "512", "--log-driver", "json-file", "--log-opt", "max-size=10m"]
    labels = {"provision.job": spec.name, "provision.id": record.id, "provision.role": _ROLE}
    for name, value in labels.items():
        words += ["--label", f"{name}={value}"]
    for name, value in {"HOME": "/tmp", "NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""}.items():  # noqa: S108 # nosec B108 # a tmpfs of the container's own
        words += ["--env", f"{name}={value}"]
    words += ["--volume", f"{place.mount[0]}:{place.mount[1]}:ro", "--workdir", "/tmp"]  # noqa: S108 # nosec B108 # a tmpfs of the container's own
    if spec.user:
        words += ["--user", spec.user.partition(",")[0]]
    image = spec.tensorboard_image or spec.image
    program = ["--logdir", normpath(spec.logdir), "--host", address, "--port"]
    return [*words, "--entrypoint", "tensorboard", image, *program]


def explain_start(output: str, code: str | None, image: str) -> tuple[str, str | None]:
    """Return why TensorBoard does not run, and a remedy; `code` is None if the container has not exited."""
    text = output.lower()
    missing = ("executable file not found", "tensorboard: not found", "no such file or directory")
    if code in {None, "127"} and any(words in text for words in missing):
        return (
            f"the image {image} does not contain tensorboard",
            "Use --tensorboard-image IMAGE, or add it to the image",
        )
    if "pull access denied" in text or "manifest unknown" in text or "no such image" in text:
        return (
            f"the image {image} cannot be pulled",
            "Use --tensorboard-image with an image that the node has or can pull",
        )
    if code is not None:
        return f"it exited immediately (exit code {code})", "Read its last lines below"
    return "its container could not be started", None
