"""Change the training image, its registry's CA or NVIDIA's repository in an existing inventory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from provision.errors import InventoryError, UsageError
from provision.inventory.init import InitRequest, existing, load_staged, moved, staging
from provision.inventory.load import load
from provision.inventory.ranges import expand
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

    Args:
        request: Options with the inventory, and hosts that must be in it.
        values: The new values.

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
    return SettingsChange(cluster, _file(path, list(changed)), changed)


def change_settings(change: SettingsChange) -> Cluster:
    """Write the variables, each in place of its present value, without other changes.

    Raises:
        InventoryError: The inventory would not have these values on every node. It was not changed.
    """
    path, file = change.cluster.inventory, change.file
    text = file.read_text(encoding="utf-8") if file.is_file() else "---\n"
    with staging(path, copy=True) as stage:
        staged = stage / file.relative_to(path)
        staged.parent.mkdir(parents=True, exist_ok=True)
        staged.write_text(with_variables(text, change.variables, file), encoding="utf-8")
        after = load_staged(stage, path)
        for name, value in change.variables.items():
            node = next((node for node in after.nodes if node.variables.get(name) != value), None)
            if node is not None:
                place = SourceIndex(stage).find(name, node.name, node.groups) or "another file"
                raise InventoryError(
                    f"{place.replace(stage.name, path.name)}: {name} is also set here, for {node.name}",
                    remedy=f"Change or remove it there manually. {shown(path)} was not changed.",
                )
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists():
            staged.chmod(file.stat().st_mode & 0o7777)
        staged.replace(file)
    return moved(after, stage, path)


def _is_other(cluster: Cluster, name: str, value: Any) -> bool:
    return any(node.variables.get(name) != value for node in cluster.nodes)


def _with_certificate(present: Any, registry: str, certificate: str) -> list[dict[str, Any]]:
    entries = [dict(entry) for entry in present if isinstance(entry, Mapping)] if isinstance(present, list) else []
    others = [entry for entry in entries if entry.get("registry") != registry]
    return [*others, {"registry": registry, "certificate": certificate}]


def _file(path: Path, names: Sequence[str]) -> Path:
    """Return the file for all nodes that contains one of the variables, otherwise the file that ``init`` writes."""
    folder = path / "group_vars" / "all"
    files = sorted(folder.rglob("*.y*ml")) if folder.is_dir() else []
    single = (folder, folder.with_suffix(".yml"), folder.with_suffix(".yaml"))
    files = files or [file for file in single if file.is_file()]
    for file in files:
        try:
            values = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            continue
        if isinstance(values, dict) and any(name in values for name in names):
            return file
    if folder.is_dir():
        return folder / "site.yml"
    return files[0] if files else folder.with_suffix(".yml")
