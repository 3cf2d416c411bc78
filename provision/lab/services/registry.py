"""The lab's image registry: one docker-registry process per address with shared storage, always with TLS."""

from __future__ import annotations

import http.client
import json
import shutil
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from provision.errors import LabError
from provision.lab.services import processes
from provision.lab.services.ca import Certificates
from provision.lab.services.image import TrainingImage
from provision.lab.services.rootfs import Blob
from provision.local_files import write_private

PROGRAM = "docker-registry"
_LOOPBACK = "127.0.0.1"
_CREATED, _ACCEPTED, _OK = 201, 202, 200


def ensure_running(folder: Path, addresses: Sequence[str], port: int, certificates: Certificates) -> None:
    """Start a registry on `port` of each of `addresses`, and stop those on other addresses.

    Raises:
        LabError: docker-registry is not installed or does not start.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        raise LabError(
            f"{PROGRAM} is not installed; it is required to serve the training image",
            remedy=f"Run: apt-get install --no-install-recommends {PROGRAM}",
        )
    required_records = {_record(folder, address) for address in addresses}
    for record in records(folder):
        if record not in required_records or certificates.renewed:
            processes.stop(record)
    for address in addresses:
        record = _record(folder, address)
        if not processes.running(record):
            config = folder / f"{record.stem}.yml"
            write_private(config, json.dumps(_config(folder, address, port, certificates), indent=2))
            log = folder / f"{record.stem}.log"
            processes.start([program, "serve", str(config)], record=record, log=log, address=address, port=port)


def records(folder: Path) -> list[Path]:
    """Return the records of the registry's processes, running or not."""
    return sorted(folder.glob("registry-*.json"))


def push(image: TrainingImage, repository: str, tag: str, *, port: int, authority: Path) -> None:
    """Push `image` to the lab's registry; existing blobs are not sent again."""
    with _Client(port, authority) as client:
        path = f"/v2/{repository}/manifests/{image.digest}"
        if client.status("HEAD", path, headers={"Accept": image.media_type}) != _OK:
            for blob in image.blobs:
                client.upload(repository, blob)
        headers = {"Content-Type": image.media_type}
        client.expect(_CREATED, "PUT", f"/v2/{repository}/manifests/{tag}", image.manifest, headers)


def _record(folder: Path, address: str) -> Path:
    return folder / f"registry-{address}.json"


def _config(folder: Path, address: str, port: int, certificates: Certificates) -> dict[str, object]:
    """Return the registry's configuration; JSON is valid YAML and avoids quoting problems."""
    return {
        "version": 0.1,
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {
            "filesystem": {"rootdirectory": str(folder / "registry")},
            "maintenance": {"uploadpurging": {"enabled": False}},
        },
        "http": {
            "addr": f"{address}:{port}",
            "tls": {"certificate": str(certificates.certificate), "key": str(certificates.key)},
        },
    }


@dataclass
class _Client:
    """The requests of the registry's HTTP API for a push, over verified TLS."""

    port: int
    authority: Path

    def __enter__(self) -> Self:
        context = ssl.create_default_context(cafile=str(self.authority))
        self._connection = http.client.HTTPSConnection(_LOOPBACK, self.port, timeout=120, context=context)
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def upload(self, repository: str, blob: Blob) -> None:
        """Send one blob unless the registry has it."""
        if self.status("HEAD", f"/v2/{repository}/blobs/{blob.digest}") == _OK:
            return
        location = urlsplit(self.expect(_ACCEPTED, "POST", f"/v2/{repository}/blobs/uploads/"))
        target = f"{location.path}?{location.query}&digest={blob.digest}".replace("?&", "?")
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(blob.size)}
        with blob.path.open("rb") as file:
            self.expect(_CREATED, "PUT", target, file, headers)

    def status(self, method: str, path: str, headers: dict[str, str] | None = None) -> int:
        """Return the status of a request without a body."""
        self._connection.request(method, path, headers=headers or {})
        response = self._connection.getresponse()
        response.read()
        return response.status

    def expect(
        self, status: int, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> str:
        """Send a request that must return `status`; return the Location in the response."""
        try:
            self._connection.request(method, path, body=body, headers=headers or {})  # type: ignore[arg-type]
            response = self._connection.getresponse()
            answer = response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise LabError(f"cannot push the training image to the lab's registry: {error}") from error
        if response.status != status:
            raise LabError(
                f"the lab's registry refused the training image ({method} {path}: status {response.status})",
                remedy="Check for a full disk, and the registry's log in the lab's folder below services.",
                output=answer,
            )
        return response.headers.get("Location", "")
