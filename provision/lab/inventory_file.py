"""The lab's inventory: an ordinary Ansible inventory, as for real machines."""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.lab.base import DriverName, LabNode, LabSpec
from provision.local_files import private_folder, write_private

if TYPE_CHECKING:
    from provision.lab.services import ServiceInfo

_HEADER = """\
# Written by `provision lab up`, anew each time: do not edit. It is an ordinary Ansible inventory.
"""


def inventory_of(folder: Path) -> Path:
    """Return the path of a lab's inventory."""
    return folder / "inventory" / "hosts.yml"


def write_inventory(spec: LabSpec, folder: Path, nodes: Sequence[LabNode], services: ServiceInfo) -> Path:
    """Write the inventory and return its path."""
    path = inventory_of(folder)
    private_folder(path.parent)
    write_private(path, render(spec, folder, nodes, services))
    return path


def render(spec: LabSpec, folder: Path, nodes: Sequence[LabNode], services: ServiceInfo) -> str:
    """Return the inventory's text; the same lab gives the same text."""
    import yaml

    from provision.lab.services.rpm_repository import variables

    hosts = {
        node.name: {
            "ansible_host": node.address,
            "ansible_port": node.port,
            "cluster_data_address": node.data_address,
            **variables(spec.system_of(index), services.repository_url, services.repository_key),
        }
        for index, node in enumerate(nodes)
    }
    document = {"all": {"children": {"gpu_nodes": {"hosts": hosts, "vars": _variables(spec, folder, nodes, services)}}}}
    return _HEADER + yaml.dump(document, Dumper=_dumper(), sort_keys=False, width=1000)


def _variables(spec: LabSpec, folder: Path, nodes: Sequence[LabNode], services: ServiceInfo) -> dict[str, Any]:
    modules = spec.driver is DriverName.VM and spec.machine is not None
    data = sorted({str(ipaddress.ip_network(f"{node.data_address}/24", strict=False)) for node in nodes})
    known_hosts = f"UserKnownHostsFile={_ssh_path(folder / 'known_hosts')}"
    return {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(folder / "id_ed25519"),
        "ansible_ssh_common_args": shlex.join(["-o", known_hosts, "-o", "StrictHostKeyChecking=yes"]),
        "ansible_python_interpreter": "/usr/bin/python3",
        "cluster_name": spec.name,
        "cluster_data_networks": data,
        "platform_extra_repositories": services.repositories,
        "rdma_stack_soft_roce_enabled": spec.driver is DriverName.VM,
        **({"peer_memory_source_url": services.peer_memory_url} if modules else {}),
        "docker_engine_registry_ca": [{"registry": services.registry, "certificate": services.ca_certificate}],
        "training_image_reference": services.image_reference,
        "training_image_digest": services.image_digest,
        "training_container_shm_size": "1g",
    }


def _ssh_path(path: Path) -> str:
    """Return a path as the value of an ssh option: percent signs doubled, quoted if it has spaces."""
    text = str(path).replace("%", "%%")
    return f'"{text}"' if " " in text else text


def _dumper() -> Any:
    """Return a YAML dumper that writes certificates and keys as readable blocks."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return Dumper
