"""An inventory of this machine alone, for ``bootstrap``."""

from __future__ import annotations

import json
import os
from pathlib import Path

from provision.components import COMPONENTS


def local_inventory(folder: Path, name: str, *, image: str | None, variables: Path | None) -> Path:
    """Write an inventory of this machine alone into `folder` and return its path.

    `variables` is a file as an inventory's group_vars/all.yml. Where neither it nor `image` names a training image,
    the roles for images and containers are off.
    """
    host: dict[str, object] = {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"}
    if os.geteuid() != 0:
        host["ansible_become"] = True
    if image:
        host["training_image_reference"] = image
    roles = [role for role, component in COMPONENTS.items() if component.needs_image]
    named = "{{ training_image_reference | default('') | length > 0 }}"
    groups = {"all": {"vars": {f"{role}_enabled": named for role in roles}}, "gpu_nodes": {"hosts": {name: host}}}
    (folder / "hosts.yml").write_text(json.dumps(groups, indent=2))
    if variables:
        (folder / "group_vars").mkdir()
        (folder / "group_vars/all.yml").symlink_to(variables.absolute())
    return folder
