"""Change the training image, its registry's CA or NVIDIA's repository in an existing inventory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.errors import InventoryError, UsageError
from provision.inventory.init import InitRequest, existing
from provision.inventory.load import load
from provision.inventory.ranges import expand
from provision.inventory.record import change_files, file_with, vars_file
from provision.inventory.sources import SourceIndex, shown
from provision.inventory.write import with_variables
from provision.model import Cluster
from provision.model.image_reference import registry_of

_IMAGE = "training_image_reference"
_CERTIFICATES = "docker_engine_registry_ca"
_URI = "nvidia_container_repository_uri"
_KEY = "nvidia_container_repository_key"


@dataclass(frozen=True)
class NewValues:
    """New values; None if not given."""

    image: str | None = None
    registry_ca: str | None = None
    """PEM text."""
    repository: str | None = None
    """Empty: the packages come from the nodes' own package sources."""
    repository_key: str | None = None
    usual_key: str = ""
    """Default key for a repository without a key."""


@dataclass(frozen=True)
class SettingsChange:
    """Variables to change in one file of an inventory."""

    cluster: Cluster
    file: Path
    variables: Mapping[str, Any]
    """Empty if the inventory has these values."""

    def before(self, name: str) -> Any:
        """Return the present value of a variable; None if it is not set."""
        return self.cluster.nodes[0].variables.get(name)


def plan_change(request: InitRequest, values: NewValues) -> SettingsChange:
    """Return the pending changes of an existing inventory.

    Raises:
        UsageError: A host is not in the inventory, or the registry of the certificate is unknown.
        InventoryError: The inventory cannot be changed.
    """
    path = existing(request).absolute()
    if not path.is_dir():
        raise UsageError(
            f"{shown(path)}: not an inventory folder",
            remedy=f"Change these variables manually: {_IMAGE}, {_CERTIFICATES}, {_URI}, {_KEY}",
        )
    cluster = load(path)
    known = {node.name for node in cluster.nodes}
    unknown = [word.name for word in expand(request.words) if word.name not in known] if request.words else []
    if unknown:
        raise UsageError(
            f"{shown(path)} already exists and has no host {', '.join(unknown)}",
            remedy="Add hosts with --add first, or set the name of a new inventory with --name.",
        )
    first = cluster.nodes[0].variables
    key = values.repository_key
    if values.repository and key is None and not first.get(_KEY):
        key = values.usual_key
    given = {_IMAGE: values.image, _URI: values.repository, _KEY: key}
    wanted: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if values.registry_ca:
        image = values.image or first.get(_IMAGE)
        if not isinstance(image, str) or "{{" in image or not image:
            raise UsageError(
                f"--registry-ca: {shown(path)} sets no image, so the registry is not known",
                remedy="Also specify the image: --image REGISTRY/PATH:TAG",
            )
        wanted[_CERTIFICATES] = _with_certificate(first.get(_CERTIFICATES), registry_of(image), values.registry_ca)
    changed = {name: value for name, value in wanted.items() if _is_other(cluster, name, value)}
    folder = path / "group_vars"
    file = file_with(folder, "all", changed) or vars_file(folder, "all", "site.yml")
    return SettingsChange(cluster, file, changed)


def change_settings(change: SettingsChange) -> Cluster:
    """Write the variables, each in place of its present value, without other changes.

    Raises:
        InventoryError: The inventory would not have these values on every node. It was not changed.
    """
    text = change.file.read_text(encoding="utf-8") if change.file.is_file() else "---\n"

    def check(after: Cluster) -> None:
        for name, value in change.variables.items():
            node = next((node for node in after.nodes if node.variables.get(name) != value), None)
            if node is not None:
                path = change.cluster.inventory
                place = SourceIndex(path).find(name, node.name, node.groups) or "another file"
                raise InventoryError(
                    f"{place}: {name} is also set here, for {node.name}",
                    remedy=f"Change or remove it there manually. {shown(path)} was not changed.",
                )

    return change_files(change.cluster, {change.file: with_variables(text, change.variables, change.file)}, check)


def _is_other(cluster: Cluster, name: str, value: Any) -> bool:
    return any(node.variables.get(name) != value for node in cluster.nodes)


def _with_certificate(present: Any, registry: str, certificate: str) -> list[dict[str, Any]]:
    entries = [dict(entry) for entry in present if isinstance(entry, Mapping)] if isinstance(present, list) else []
    others = [entry for entry in entries if entry.get("registry") != registry]
    return [*others, {"registry": registry, "certificate": certificate}]
