"""The Docker engine of the controller, as the lab uses it: containers, networks, volumes, images.

No other module imports the Docker SDK. It is imported only before the first request. Every failed request raises
a LabError that names the request.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.errors import LabError, ProvisionError

if TYPE_CHECKING:
    import docker

DEFAULT_HOST = "unix:///var/run/docker.sock"

NODE_CAPABILITIES = (
    "SYS_ADMIN",
    "NET_ADMIN",
    "NET_BROADCAST",
    "SYS_PTRACE",
    "SYS_NICE",
    "SYS_TTY_CONFIG",
    "IPC_LOCK",
    "IPC_OWNER",
    "LEASE",
)
"""Capabilities that systemd, a nested Docker engine and its containers require beyond Docker's default.

They include SYS_ADMIN, so that root there has almost the rights of root here. Capabilities that change the host itself
are excluded (modules, raw I/O, clock, reboot, kernel log, security policies, file handles).
"""

NODE_DEVICE_RULES = tuple(f"c 195:{minor} rwm" for minor in (*range(16), 255))
"""Device numbers that nodes may use and pass on: those of NVIDIA's GPUs, whose files on lab nodes are SIMULATED.

Slurm on a node writes such rules for its jobs, and the kernel refuses devices that the node may not use itself. In
cgroup v1, one rule for all minor numbers could not be narrowed to those of a job.
"""


@dataclass(frozen=True)
class NodeFile:
    """A file that is copied into a container before it starts."""

    path: str
    content: bytes | None
    """None for a folder."""
    mode: int = 0o644


@dataclass(frozen=True)
class ContainerSpec:
    """Options of a new container. It publishes no ports and mounts no folders of the host."""

    name: str
    image: str
    hostname: str
    network: str
    address: str
    labels: Mapping[str, str]
    volumes: Mapping[str, str]
    """Volume name -> absolute path in the container."""
    tmpfs: Mapping[str, str] = field(default_factory=dict)
    shm_size: str = "64m"
    stop_signal: str = "SIGRTMIN+3"
    """Signal with which systemd shuts down cleanly."""


@dataclass(frozen=True)
class ContainerStatus:
    """Current state of a container."""

    name: str
    state: str
    """Docker's status: created, running, paused, restarting, removing, exited or dead."""
    started_at: str
    """It changes with every start."""
    networks: tuple[str, ...]
    image: str
    labels: Mapping[str, str]


def answers(host: str) -> bool:
    """Return whether a Docker engine answers at `host` (``unix:///...``)."""
    try:
        Engine(host).close()
    except LabError:
        return False
    return True


def pack(files: Sequence[NodeFile]) -> bytes:
    """Return a tar archive of `files` for a container's root folder, all owned by root."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for item in files:
            info = tarfile.TarInfo(item.path.lstrip("/"))
            info.mode = item.mode
            if item.content is None:
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
            else:
                info.size = len(item.content)
                archive.addfile(info, io.BytesIO(item.content))
    return buffer.getvalue()


class Engine:
    """A connection to one Docker engine."""

    def __init__(self, host: str = DEFAULT_HOST, *, timeout: float = 120) -> None:
        try:
            import docker
        except ImportError as error:
            raise ProvisionError(
                f"Docker SDK: not installed, but nodes in containers need it ({error})",
                remedy="Install the extra for the lab: pip install 'gpu-provision[lab]'",
            ) from error
        self.host = host
        with _worded(f"connect to the Docker engine at {host}"):
            self._client: docker.DockerClient = docker.DockerClient(base_url=host, version="auto", timeout=int(timeout))
            self._client.ping()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def has_image(self, tag: str) -> bool:
        """Return whether the engine has an image `tag`."""
        return bool(self._client.images.list(filters={"reference": tag}))

    def import_image(self, archive: Path, tag: str, *, command: Sequence[str]) -> None:
        """Create an image `tag` (``name:version``) from a root filesystem in a tar file."""
        import json

        repository, version = tag.rsplit(":", 1)
        changes = [f"CMD {json.dumps(list(command))}"]
        with _worded(f"import {archive} as image {tag}"):
            answer = self._client.api.import_image(str(archive), repository=repository, tag=version, changes=changes)
        if '"error"' in str(answer):
            raise LabError(f"could not import {archive} as image {tag}", output=str(answer))

    def remove_image(self, tag: str) -> None:
        """Remove an image. A missing or used image is not an error."""
        import docker

        try:
            self._client.images.remove(tag)
        except docker.errors.APIError:
            return

    def images(self, repository: str) -> list[str]:
        """Return the tags of a repository in the engine."""
        return [tag for image in self._client.images.list(name=repository) for tag in image.tags]

    def create(self, spec: ContainerSpec, files: Sequence[NodeFile]) -> None:
        """Create a container and copy `files` into it, without starting it."""
        endpoint = self._client.api.create_endpoint_config(ipv4_address=spec.address)
        with _worded(f"create container {spec.name}"):
            host_config = self._client.api.create_host_config(
                cap_add=list(NODE_CAPABILITIES),
                security_opt=["seccomp=unconfined", "apparmor=unconfined"],
                tmpfs=dict(spec.tmpfs),
                binds=[f"{volume}:{path}" for volume, path in spec.volumes.items()],
                shm_size=spec.shm_size,
                device_cgroup_rules=list(NODE_DEVICE_RULES),
                restart_policy={"Name": "unless-stopped"},
                network_mode=spec.network,
            )
            host_config["CgroupnsMode"] = "private"
            self._client.api.create_container(
                spec.image,
                name=spec.name,
                hostname=spec.hostname,
                labels=dict(spec.labels),
                stop_signal=spec.stop_signal,
                volumes=list(spec.volumes.values()),
                host_config=host_config,
                networking_config={"EndpointsConfig": {spec.network: endpoint}},
            )
            self._client.api.put_archive(spec.name, "/", pack(files))

    def start(self, name: str) -> None:
        """Start a container that is not running."""
        with _worded(f"start container {name}"):
            self._client.api.start(name)

    def kill(self, name: str) -> None:
        """Kill a container, as a power failure would. A stopped container is not an error."""
        import docker

        try:
            self._client.api.kill(name)
        except docker.errors.APIError as error:
            if error.status_code not in {404, 409}:
                raise LabError(f"could not kill container {name}: {_reason(error)}") from error

    def unpause(self, name: str) -> None:
        """Resume a paused container."""
        with _worded(f"unpause container {name}"):
            self._client.api.unpause(name)

    def inspect(self, name: str) -> ContainerStatus | None:
        """Return the current state of a container; None if it does not exist."""
        import docker

        try:
            with _worded(f"inspect container {name}", let_through=(docker.errors.NotFound,)):
                status: dict[str, Any] = self._client.api.inspect_container(name)
        except docker.errors.NotFound:
            return None
        return ContainerStatus(
            name=name,
            state=status["State"]["Status"],
            started_at=status["State"]["StartedAt"],
            networks=tuple(status["NetworkSettings"]["Networks"]),
            image=status["Config"]["Image"],
            labels=status["Config"]["Labels"] or {},
        )

    def logs(self, name: str, lines: int = 20) -> str:
        """Return the last lines of a container's console, without the control characters that systemd prints."""
        import re

        with _worded(f"read the log of container {name}"):
            text = bytes(self._client.api.logs(name, tail=lines)).decode("utf-8", "replace")
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", text)

    def containers(self, labels: Mapping[str, str | None]) -> list[str]:
        """Return the names of all containers, running or not, with these labels (None: with any value)."""
        with _worded("list containers"):
            entries = self._client.api.containers(all=True, filters={"label": _filters(labels)})
        return sorted(item["Names"][0].lstrip("/") for item in entries if item["Names"])

    def remove_container(self, name: str) -> None:
        """Kill and remove a container and its unnamed volumes. A missing container is not an error."""
        with _worded(f"remove container {name}"), _gone_is_fine():
            self._client.api.remove_container(name, v=True, force=True)

    def networks(self, labels: Mapping[str, str | None]) -> list[str]:
        """Return the names of all networks with these labels (None: with any value)."""
        with _worded("list networks"):
            return sorted(item["Name"] for item in self._client.api.networks(filters={"label": _filters(labels)}))

    def subnets(self) -> list[str]:
        """Return the subnets (CIDR) of all networks of the engine."""
        with _worded("list networks"):
            entries = self._client.api.networks()
        return [
            config["Subnet"]
            for network in entries
            for config in (network.get("IPAM") or {}).get("Config") or []
            if config.get("Subnet")
        ]

    def create_network(
        self, name: str, *, subnet: str, gateway: str, labels: Mapping[str, str], internal: bool
    ) -> None:
        """Create a bridge network. An internal one has no route to other networks."""
        import docker

        pool = docker.types.IPAMPool(subnet=subnet, gateway=gateway)
        with _worded(f"create network {name} with subnet {subnet}"):
            self._client.api.create_network(
                name,
                driver="bridge",
                check_duplicate=True,
                internal=internal,
                labels=dict(labels),
                ipam=docker.types.IPAMConfig(pool_configs=[pool]),
            )

    def remove_network(self, name: str) -> None:
        """Remove a network. A missing network is not an error."""
        with _worded(f"remove network {name}"), _gone_is_fine():
            self._client.api.remove_network(name)

    def connect(self, network: str, container: str, address: str) -> None:
        """Connect a container to a network with a fixed address."""
        with _worded(f"connect {container} to network {network}"):
            self._client.api.connect_container_to_network(container, network, ipv4_address=address)

    def disconnect(self, network: str, container: str) -> None:
        """Disconnect a container from a network. A container that is not connected is not an error."""
        status = self.inspect(container)
        if status is not None and network in status.networks:
            with _worded(f"disconnect {container} from network {network}"):
                self._client.api.disconnect_container_from_network(container, network, force=True)

    def execute(self, container: str, command: Sequence[str]) -> None:
        """Run a command as root in a running container; LabError with its output if it fails."""
        with _worded(f"run {command[0]} in container {container}"):
            started = self._client.api.exec_create(container, list(command))["Id"]
            output = bytes(self._client.api.exec_start(started)).decode("utf-8", "replace")
            code = self._client.api.exec_inspect(started)["ExitCode"]
        if code != 0:
            raise LabError(f"could not run {command[0]} in container {container} (exit code {code})", output=output)

    def create_volume(self, name: str, labels: Mapping[str, str]) -> None:
        """Create a volume, unless it exists."""
        with _worded(f"create volume {name}"):
            self._client.api.create_volume(name, labels=dict(labels))

    def volumes(self, labels: Mapping[str, str | None]) -> list[str]:
        """Return the names of all volumes with these labels (None: with any value)."""
        with _worded("list volumes"):
            entries = self._client.api.volumes(filters={"label": _filters(labels)})
        return sorted(item["Name"] for item in entries["Volumes"] or [])

    def remove_volume(self, name: str) -> None:
        """Remove a volume and its content. A missing volume is not an error."""
        with _worded(f"remove volume {name}"), _gone_is_fine():
            self._client.api.remove_volume(name, force=True)


def _filters(labels: Mapping[str, str | None]) -> list[str]:
    return [key if value is None else f"{key}={value}" for key, value in labels.items()]


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    import docker

    try:
        yield
    except docker.errors.NotFound:
        return
    except docker.errors.APIError as error:
        if "already in progress" not in str(error):
            raise


@contextmanager
def _worded(what: str, let_through: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Convert errors of the SDK to a LabError that names the request."""
    import docker
    import requests

    try:
        yield
    except let_through:
        raise
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        raise LabError(f"could not {what}: {_reason(error)}", remedy=_remedy(error)) from error


def _reason(error: Exception) -> str:
    explanation = getattr(error, "explanation", None)
    return str(explanation or error).strip()


def _remedy(error: Exception) -> str | None:
    text = str(error)
    if "PermissionError" in text or "Permission denied" in text:
        return "Run the command as root or as a member of the group docker."
    if "FileNotFoundError" in text or "Connection refused" in text or "ConnectionRefused" in text:
        return "Start Docker (systemctl start docker), or set DOCKER_HOST."
    return None
