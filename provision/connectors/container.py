"""The docker engine of this machine, as the lab uses it: containers, networks, volumes, images.

The only module that imports the docker SDK, and only when an engine is really talked to.
Every failure of the engine becomes a LabError that says what was asked of it.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.errors import LabError

if TYPE_CHECKING:
    import docker

__all__ = [
    "DEFAULT_HOST",
    "NODE_CAPABILITIES",
    "ContainerSpec",
    "ContainerStatus",
    "Engine",
    "NodeFile",
    "answers",
    "pack",
]

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
"""What systemd, a docker engine of its own and its containers need beside docker's own default.

With SYS_ADMIN among it, root there is still close to root here; what would change the machine itself (modules, raw
input and output, clock, reboot, kernel log, security policies, files by their handles) is not given.
"""


@dataclass(frozen=True)
class NodeFile:
    """A file to put into a container that has not started yet."""

    path: str
    content: bytes | None
    """None makes a folder."""
    mode: int = 0o644


@dataclass(frozen=True)
class ContainerSpec:
    """Everything a container is made with; nothing is published and nothing of this machine is mounted."""

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
    """What makes systemd shut down in good order."""


@dataclass(frozen=True)
class ContainerStatus:
    """A container as the engine sees it now."""

    name: str
    state: str
    """The engine's word: created, running, paused, restarting, removing, exited or dead."""
    started_at: str
    """Changes with every start."""
    networks: tuple[str, ...]
    image: str
    labels: Mapping[str, str]


def answers(host: str) -> bool:
    """Return whether a docker engine answers at `host` (``unix:///...``)."""
    try:
        Engine(host).close()
    except LabError:
        return False
    return True


def pack(files: Sequence[NodeFile]) -> bytes:
    """Make the tar archive that puts `files` into a container's root, all owned by root."""
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
    """A connection to one docker engine."""

    def __init__(self, host: str = DEFAULT_HOST, *, timeout: float = 120) -> None:
        import docker

        self.host = host
        with _worded(f"reach the docker engine at {host}"):
            self._client: docker.DockerClient = docker.DockerClient(base_url=host, version="auto", timeout=int(timeout))
            self._client.ping()

    def close(self) -> None:
        """Drop the connection."""
        self._client.close()

    def has_image(self, tag: str) -> bool:
        """Return whether the engine holds an image called `tag`."""
        return bool(self._client.images.list(filters={"reference": tag}))

    def import_image(self, archive: Path, tag: str, *, command: Sequence[str]) -> None:
        """Make an image called `tag` (``name:version``) of a root filesystem in a tar file."""
        import json

        repository, version = tag.rsplit(":", 1)
        changes = [f"CMD {json.dumps(list(command))}"]
        with _worded(f"import {archive} as image {tag}"):
            answer = self._client.api.import_image(str(archive), repository=repository, tag=version, changes=changes)
        if '"error"' in str(answer):
            raise LabError(f"could not import {archive} as image {tag}", output=str(answer))

    def remove_image(self, tag: str) -> None:
        """Forget an image; no error when it is not there or still used."""
        import docker

        try:
            self._client.images.remove(tag)
        except docker.errors.APIError:
            return

    def images(self, repository: str) -> list[str]:
        """List the tags that the engine holds of a repository."""
        return [tag for image in self._client.images.list(name=repository) for tag in image.tags]

    def create(self, spec: ContainerSpec, files: Sequence[NodeFile]) -> None:
        """Make a container and put `files` into it; it is not started."""
        endpoint = self._client.api.create_endpoint_config(ipv4_address=spec.address)
        with _worded(f"create container {spec.name}"):
            host_config = self._client.api.create_host_config(
                cap_add=list(NODE_CAPABILITIES),
                security_opt=["seccomp=unconfined", "apparmor=unconfined"],
                tmpfs=dict(spec.tmpfs),
                binds=[f"{volume}:{path}" for volume, path in spec.volumes.items()],
                shm_size=spec.shm_size,
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
        """Stop a container at once, as pulling its power would; no error when it does not run."""
        import docker

        try:
            self._client.api.kill(name)
        except docker.errors.APIError as error:
            if error.status_code not in {404, 409}:
                raise LabError(f"could not kill container {name}: {_reason(error)}") from error

    def unpause(self, name: str) -> None:
        """Let a paused container go on."""
        with _worded(f"unpause container {name}"):
            self._client.api.unpause(name)

    def inspect(self, name: str) -> ContainerStatus | None:
        """Return a container as it is now, None when there is no such container."""
        import docker

        try:
            with _worded(f"inspect container {name}", let_through=(docker.errors.NotFound,)):
                found: dict[str, Any] = self._client.api.inspect_container(name)
        except docker.errors.NotFound:
            return None
        return ContainerStatus(
            name=name,
            state=found["State"]["Status"],
            started_at=found["State"]["StartedAt"],
            networks=tuple(found["NetworkSettings"]["Networks"]),
            image=found["Config"]["Image"],
            labels=found["Config"]["Labels"] or {},
        )

    def logs(self, name: str, lines: int = 20) -> str:
        """Return the last lines of a container's console, without the control characters that systemd prints."""
        import re

        with _worded(f"read the log of container {name}"):
            text = bytes(self._client.api.logs(name, tail=lines)).decode("utf-8", "replace")
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", text)

    def containers(self, labels: Mapping[str, str | None]) -> list[str]:
        """Names of all containers, running or not, that carry the labels (None: with any value)."""
        with _worded("list containers"):
            found = self._client.api.containers(all=True, filters={"label": _filters(labels)})
        return sorted(item["Names"][0].lstrip("/") for item in found if item["Names"])

    def remove_container(self, name: str) -> None:
        """Kill and remove a container and its unnamed volumes; no error when it is gone."""
        with _worded(f"remove container {name}"), _gone_is_fine():
            self._client.api.remove_container(name, v=True, force=True)

    def networks(self, labels: Mapping[str, str | None]) -> list[str]:
        """Names of all networks that carry the labels (None: with any value)."""
        with _worded("list networks"):
            return sorted(item["Name"] for item in self._client.api.networks(filters={"label": _filters(labels)}))

    def subnets(self) -> list[str]:
        """Subnets (CIDR) of all networks of the engine."""
        with _worded("list networks"):
            found = self._client.api.networks()
        return [
            config["Subnet"]
            for network in found
            for config in (network.get("IPAM") or {}).get("Config") or []
            if config.get("Subnet")
        ]

    def create_network(
        self, name: str, *, subnet: str, gateway: str, labels: Mapping[str, str], internal: bool
    ) -> None:
        """Make a bridge network; an internal one has no way out of this machine."""
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
        """Remove a network; no error when it is gone."""
        with _worded(f"remove network {name}"), _gone_is_fine():
            self._client.api.remove_network(name)

    def connect(self, network: str, container: str, address: str) -> None:
        """Plug a container into a network at a fixed address."""
        with _worded(f"connect {container} to network {network}"):
            self._client.api.connect_container_to_network(container, network, ipv4_address=address)

    def disconnect(self, network: str, container: str) -> None:
        """Unplug a container from a network; no error when it is not plugged in."""
        status = self.inspect(container)
        if status is not None and network in status.networks:
            with _worded(f"disconnect {container} from network {network}"):
                self._client.api.disconnect_container_from_network(container, network, force=True)

    def execute(self, container: str, command: Sequence[str]) -> None:
        """Run a command as root in a running container; LabError with its output when it fails."""
        with _worded(f"run {command[0]} in container {container}"):
            started = self._client.api.exec_create(container, list(command))["Id"]
            output = bytes(self._client.api.exec_start(started)).decode("utf-8", "replace")
            code = self._client.api.exec_inspect(started)["ExitCode"]
        if code != 0:
            raise LabError(f"could not run {command[0]} in container {container} (exit code {code})", output=output)

    def create_volume(self, name: str, labels: Mapping[str, str]) -> None:
        """Make a volume; keeps the one that is there."""
        with _worded(f"create volume {name}"):
            self._client.api.create_volume(name, labels=dict(labels))

    def volumes(self, labels: Mapping[str, str | None]) -> list[str]:
        """Names of all volumes that carry the labels (None: with any value)."""
        with _worded("list volumes"):
            found = self._client.api.volumes(filters={"label": _filters(labels)})
        return sorted(item["Name"] for item in found["Volumes"] or [])

    def remove_volume(self, name: str) -> None:
        """Remove a volume and what it holds; no error when it is gone."""
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
    """Turn whatever the SDK raises into a LabError that says what was tried."""
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
        return "Run as root, or as a member of the group that may use docker."
    if "FileNotFoundError" in text or "Connection refused" in text or "ConnectionRefused" in text:
        return "Start the docker engine (systemctl start docker), or set DOCKER_HOST."
    return None
