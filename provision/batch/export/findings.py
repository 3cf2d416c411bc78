"""The problems and notes about a manifest, and the fields of one of its pods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from provision.model.reason import Reason, reason

_INSTEAD = {
    "envFrom": "Write each variable into env.",
    "initContainers": "Use --sync-mode git for code, and volumes of `provision data` for data.",
    "affinity": "Use --nodes, --exclude, --selector, --spread or --max-per-node 1.",
    "containers": "Write one container.",
    "mpiImplementation": "Use an image with Open MPI.",
    "mountPropagation": "Mount the paths on the node before the job starts.",
    "subPath": "Add the folder as a volume of its own: provision data add.",
    "volumes": "Use --data, --mount or --config-file.",
    "valueFrom": "Write the value, or use --env NAME.",
    "command": "Write the whole command: the entrypoint of the image is not read.",
    "resources": "Use whole GPUs: nvidia.com/gpu.",
    "securityContext": "Use --user UID:GID.",
}


@dataclass
class Findings:
    """What is wrong with a manifest, and what has no effect; each with the path of the field."""

    problems: list[tuple[str, Reason]] = field(default_factory=list)
    notes: list[tuple[str, Reason]] = field(default_factory=list)
    pending: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Field of a job that only an annotation can have -> path and number of its parts in the manifest."""

    def refuse(self, path: str, what: str = "") -> None:
        """Report a field that cannot be used."""
        name = what or path.rpartition(".")[2].partition("[")[0]
        self.problems.append((path, reason("manifest.unsupported", path=path, instead=_INSTEAD.get(name, ""))))

    def note(self, path: str) -> None:
        """Report a field without effect."""
        self.notes.append((path, reason("manifest.no_effect", path=path)))

    def sort(
        self, value: Mapping[str, Any], path: str, read: frozenset[str], noted: frozenset[str], ignored: frozenset[str]
    ) -> None:
        """Report the fields of a mapping that are not read."""
        for name, item in value.items():
            if name in read | ignored or item in (None, [], {}, False):
                continue
            if name in noted:
                self.note(f"{path}.{name}")
            else:
                self.refuse(f"{path}.{name}")


@dataclass
class PodFields:
    """One pod as fields of a job."""

    path: str = ""
    """Of its template."""
    image: str = ""
    argv: tuple[str, ...] = ()
    gpus: int = 0
    env: dict[str, str] = field(default_factory=dict)
    secret_env: list[str] = field(default_factory=list)
    sync_secrets: list[str] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    """Other fields of the job, by name."""
