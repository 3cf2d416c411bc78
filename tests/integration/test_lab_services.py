"""The lab's services as nodes meet them: real pulls over verified TLS, real apt with the repository's key."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from provision.lab.base import DriverName, LabSpec
from provision.lab.package_managers import APT
from provision.lab.services import ServiceInfo, Services, processes

# The second address stands for a bridge: a lab listens on loopback and there, never everywhere.
ADDRESSES = ["127.0.0.1", "127.0.0.77"]
SPEC = LabSpec("served", DriverName.CONTAINER, 1, machine="pair")

needs_skopeo = pytest.mark.skipif(shutil.which("skopeo") is None, reason="skopeo is not installed")


class Silent:
    """A progress display without a viewer."""

    def step(self, message: str) -> None:
        """Say nothing."""


@dataclass
class Served:
    """A lab's services that run."""

    services: Services
    folder: Path
    info: ServiceInfo

    def up(self) -> ServiceInfo:
        return self.services.up(SPEC, self.folder, ADDRESSES, "127.0.0.77", Silent())


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    """Services of a lab of their own, with the cache that all labs share."""
    folder = tmp_path_factory.mktemp("lab")
    made = Served(Services(), folder, ServiceInfo("", "", "", "", [], []))
    try:
        made.info = made.up()
        yield made
    finally:
        made.services.down(folder)
    assert not (folder / "services").exists()


def skopeo(*arguments: str, authority: str, folder: Path) -> subprocess.CompletedProcess[str]:
    certificates = folder / "certificates"
    certificates.mkdir(exist_ok=True)
    (certificates / "ca.crt").write_text(authority)
    words = [word.replace("CERTS", str(certificates)) for word in arguments]
    return subprocess.run(["skopeo", *words], capture_output=True, text=True, check=False)


def listeners(port: int) -> set[str]:
    """Local IPv4 addresses that listen on `port`, from the kernel."""
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            address, state = line.split()[1], line.split()[3]
            if state == "0A" and int(address.rpartition(":")[2], 16) == port:
                octets = bytes.fromhex(address.rpartition(":")[0])
                addresses.add(".".join(str(octet) for octet in reversed(octets)))
    return addresses


@needs_skopeo
def test_the_image_is_pulled_by_its_digest_over_tls(served, tmp_path):
    """A client that trusts the lab's CA gets all layers of the image under the announced digest."""
    repository = served.info.image_reference.rpartition(":")[0]
    source = f"docker://{repository}@{served.info.image_digest}"

    done = skopeo(
        "copy",
        "--src-cert-dir",
        "CERTS",
        source,
        f"dir:{tmp_path}/image",
        authority=served.info.ca_certificate,
        folder=tmp_path,
    )

    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "image/manifest.json").read_text())
    assert sum(layer["size"] for layer in manifest["layers"]) < 150e6
    assert all((tmp_path / "image" / layer["digest"].partition(":")[2]).exists() for layer in manifest["layers"])


@needs_skopeo
def test_a_client_without_the_labs_ca_is_refused(served, tmp_path):
    """Another authority's certificate does not open the registry."""
    other = tmp_path / "other"
    other.mkdir()
    from provision.lab.services.ca import ensure_certificates

    wrong = ensure_certificates(other, "other", ["127.0.0.77"]).authority.read_text()

    done = skopeo(
        "inspect", "--cert-dir", "CERTS", f"docker://{served.info.image_reference}", authority=wrong, folder=tmp_path
    )

    assert done.returncode != 0
    assert "x509" in done.stderr


def test_services_listen_only_on_the_configured_address(served):
    """Neither registry nor repository is reachable from outside this machine."""
    ports = json.loads((served.folder / "services/ports.json").read_text())

    assert listeners(ports["registry"]) == set(ADDRESSES)
    assert listeners(ports["repository"]) == set(ADDRESSES)


def test_private_keys_are_readable_by_their_owner_only(served):
    """The keys of the CA, the registry and the repository belong to the lab's owner."""
    own = served.folder / "services"

    assert own.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o077 for path in own.glob("*.key")} == {
        "ca.key": 0,
        "server.key": 0,
        "repository.key": 0,
    }


def test_up_restarts_a_killed_service_on_its_port(served):
    """After a crash, `up` restarts what is missing and does not touch the rest."""
    record = served.folder / "services/registry-127.0.0.77.json"
    untouched = processes.read_record(served.folder / "services/repository.json")
    before = processes.read_record(record)
    os.kill(before.pid, signal.SIGKILL)
    os.waitpid(before.pid, 0)
    broken = {state.name: state.running for state in served.services.status(served.folder)}

    info = served.up()

    assert not broken["registry-127.0.0.77"]
    assert all(state.running for state in served.services.status(served.folder))
    assert info == served.info
    assert processes.read_record(served.folder / "services/repository.json") == untouched


class Apt:
    """apt with folders of its own, so that this machine's packages are not touched."""

    def __init__(self, root: Path, info: ServiceInfo, key: str) -> None:
        source = info.repositories[0]
        for name in ("state/lists/partial", "cache/archives/partial", "parts", "keys"):
            (root / name).mkdir(parents=True)
        (root / "keys/lab.asc").write_text(key)
        line = f"deb [signed-by={root}/keys/lab.asc] {source['uris']} {source['suites']} {source['components']}\n"
        (root / "sources.list").write_text(line)
        (root / "status").write_text("")
        values = {
            "Dir::State": f"{root}/state",
            "Dir::State::status": f"{root}/status",
            "Dir::Cache": f"{root}/cache",
            "Dir::Etc::sourcelist": f"{root}/sources.list",
            "Dir::Etc::sourceparts": f"{root}/parts",
            "APT::Sandbox::User": "",
            "Acquire::Languages": "none",
        }
        self._options = [f"-o{name}={value}" for name, value in values.items()]
        self._root = root

    def __call__(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [program, *self._options, *arguments]
        return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=self._root)


def test_apt_accepts_the_repository_with_its_key_and_installs_from_it(served, tmp_path):
    """With the published key apt takes the index, and what it fetches says SIMULATED."""
    apt = Apt(tmp_path, served.info, served.info.repositories[0]["key"])

    update = apt("apt-get", "update")
    fetched = apt("apt-get", "download", "nvidia-container-toolkit", "nvidia-smi-simulated")

    assert (update.returncode, update.stderr) == (0, "")
    assert fetched.returncode == 0, fetched.stderr
    assert "SIMULATED" in apt("apt-cache", "show", "nvidia-docker2").stdout
    assert len(list(tmp_path.glob("nvidia-*_all.deb"))) == 2


def test_apt_refuses_the_repository_with_another_key(served, tmp_path):
    """A key of somebody else does not vouch for the lab's packages."""
    other = Services()
    folder = tmp_path / "other"
    folder.mkdir()
    from provision.lab.services import repository

    key = repository.ensure_repository(folder, "other", other.hardware_packages(SPEC, APT))
    apt = Apt(tmp_path / "apt", served.info, key)

    done = apt("apt-get", "update")

    assert "NO_PUBKEY" in done.stderr + done.stdout
    assert apt("apt-get", "download", "nvidia-docker2").returncode != 0
