"""Services of the lab for its nodes: an image registry with the lab's own CA, and a signed package repository."""

from __future__ import annotations

import json
import random
import shutil
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from provision.documents import decode
from provision.documents.lab import ServicePorts
from provision.errors import InvalidDocument, LabError
from provision.lab.access import file_lock
from provision.lab.base import LabSpec, Progress
from provision.lab.machines import load
from provision.lab.package_managers import PackageManager
from provision.lab.services import processes, registry, repository, rpm_repository
from provision.lab.services.ca import ensure_certificates
from provision.lab.services.image import ensure_training_image
from provision.lab.services.kernel import GIT_FOLDER
from provision.lab.services.packages import (
    build_doca_packages,
    build_packages,
    file_name,
    machine_package_name,
    simulated_things,
    stand_ins,
)
from provision.local_files import cache_folder, write_private

__all__ = ["ServiceInfo", "ServiceState", "Services"]

_REPOSITORY, _TAG = "training", "1"
_ALWAYS_NAMED = ("127.0.0.1", "localhost", "10.0.2.2")
_PORTS = range(20000, 32000)  # below Linux's range for outgoing connections
_PORT_TRIES = 50


@dataclass(frozen=True)
class ServiceInfo:
    """Addresses and keys of the lab's services."""

    registry: str
    """``ADDRESS:PORT`` as seen from the nodes."""
    ca_certificate: str
    """PEM text for ``docker_engine_registry_ca``."""
    image_reference: str
    image_digest: str
    repositories: list[dict[str, str]]
    """Entries for ``platform_extra_repositories``: name, uris, suites, components, key."""
    simulated: list[str]
    """The SIMULATED parts, one sentence each."""
    peer_memory_url: str = ""
    """URL of the git repository with nv_peer_mem's stand-in for the controller, which fetches it."""
    nvidia_repository: str = ""
    """The repository of the stand-ins for the NVIDIA Container Toolkit, like a site's mirror of NVIDIA's repository."""
    nvidia_key: str = ""
    """File with its signing key."""
    registry_ca: str = ""
    """File with the CA certificate of the registry."""
    repository_url: str = ""
    """URL of all package repositories."""
    repository_key: str = ""
    """Their public key, armored."""

    def site(self) -> dict[str, str]:
        """Return the site settings of the lab as options of ``init``."""
        options = {
            "--image": self.image_reference,
            "--registry-ca": self.registry_ca,
            "--nvidia-repository": self.nvidia_repository,
            "--nvidia-key": self.nvidia_key,
            "--nvidia-fingerprint": self._fingerprint(),
        }
        return {name: value for name, value in options.items() if value}

    def _fingerprint(self) -> str:
        """Return the fingerprint of the repository's key: the lab made the key, so it needs no comparison."""
        from provision.commands.signing_keys import read_key

        key = Path(self.nvidia_key)
        return read_key(key).fingerprint if key.is_file() else ""


@dataclass(frozen=True)
class ServiceState:
    """One process of the lab's services."""

    name: str
    running: bool


class Services:
    """Starts, stops and checks the services of a lab; every method can be repeated after a crash.

    Args:
        cache: directory of images and packages for all labs (default: below the user's cache directory).
    """

    def __init__(self, cache: Path | None = None) -> None:
        self._cache = cache or cache_folder()

    def up(
        self, spec: LabSpec, folder: Path, addresses: Sequence[str], host_address: str, progress: Progress
    ) -> ServiceInfo:
        """Start all services on `addresses` (loopback, the bridge) unless running, and return their settings."""
        own = folder / "services"
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file_lock(own / ".lock"):
            image = ensure_training_image(self._cache, progress)
            certificates = ensure_certificates(own, spec.name, [*_ALWAYS_NAMED, *addresses, host_address])
            ports = _ports(own, addresses)
            progress.step("starting the registry and the package repository")
            registry.ensure_running(own, addresses, ports["registry"], certificates)
            registry.push(image, _REPOSITORY, _TAG, port=ports["registry"], authority=certificates.authority)
            rpms = rpm_repository.contents(spec, self._cache, progress)
            key = repository.ensure_repository(
                own, spec.name, build_packages(self._cache), rpms, build_doca_packages(self._cache)
            )
            repository.ensure_running(own, addresses, ports["repository"])
            served = f"{host_address}:{ports['registry']}"
            url = f"http://{host_address}:{ports['repository']}"
            info = ServiceInfo(
                registry=served,
                ca_certificate=certificates.authority.read_text(),
                image_reference=f"{served}/{_REPOSITORY}:{_TAG}",
                image_digest=image.digest,
                repositories=[
                    {
                        "name": "provision-lab",
                        "uris": url,
                        "suites": repository.SUITE,
                        "components": repository.COMPONENT,
                        "key": key,
                    }
                ],
                simulated=simulated_things(spec.machine, spec.systems),
                nvidia_repository=f"{url}/{repository.NVIDIA_ADDRESS}",
                nvidia_key=str(own / "repository.pub"),
                registry_ca=str(certificates.authority),
                peer_memory_url=f"http://127.0.0.1:{ports['repository']}/{GIT_FOLDER}",
                repository_url=url,
                repository_key=key,
            )
            write_private(own / "info.json", json.dumps(asdict(info), indent=2))
        return info

    def info(self, folder: Path) -> ServiceInfo | None:
        """Return the result of the last `up`, or None."""
        try:
            return decode((folder / "services/info.json").read_bytes(), ServiceInfo, node="", what="info.json")
        except (OSError, InvalidDocument):
            return None

    def down(self, folder: Path) -> None:
        """Stop the lab's services and remove their files; missing ones are no error."""
        own = folder / "services"
        if not own.exists():
            return
        with file_lock(own / ".lock"):
            for record in _records(own):
                processes.stop(record)
            shutil.rmtree(own)

    def status(self, folder: Path) -> tuple[ServiceState, ...]:
        """Return the current state of the processes."""
        return tuple(ServiceState(record.stem, processes.running(record)) for record in _records(folder / "services"))

    def hardware_packages(self, spec: LabSpec, manager: PackageManager) -> list[Path]:
        """Return the package files of the simulated hardware of `spec.machine`; none for nodes without GPUs."""
        if spec.machine is None:
            return []
        names = ("nvidia-smi-simulated", machine_package_name(load(spec.machine).name))
        files = {file_name(package, manager) for package in stand_ins(manager) if package.name in names}
        return [path for path in build_packages(self._cache, manager) if path.name in files]


def _records(own: Path) -> list[Path]:
    record = repository.record_of(own)
    return [*registry.records(own), *([record] if record.exists() else [])]


def _ports(own: Path, addresses: Sequence[str]) -> dict[str, int]:
    """Return the lab's ports, which never change because they are in the nodes' configuration."""
    path = own / "ports.json"
    try:
        recorded = decode(path.read_bytes(), ServicePorts, node="", what=str(path))
    except (OSError, InvalidDocument):
        first = _free_port(addresses, taken=0)
        ports = {"registry": first, "repository": _free_port(addresses, taken=first)}
        write_private(path, json.dumps(ports))
        return ports
    return {"registry": recorded.registry, "repository": recorded.repository}


def _free_port(addresses: Sequence[str], *, taken: int) -> int:
    for port in random.sample(_PORTS, _PORT_TRIES):  # nosec B311 # ports to try, not a secret
        if port != taken and all(_is_free(address, port) for address in addresses):
            return port
    raise LabError(
        f"no free port for the lab's services on {', '.join(addresses)}",
        remedy="Check that these addresses exist on the controller: ip address",
    )


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
