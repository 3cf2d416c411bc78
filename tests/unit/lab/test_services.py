"""The lab's services without docker: processes, certificates, the signed repository, the image's files."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tarfile
import threading
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from provision.errors import LabError
from provision.lab.services import Services, image, processes, repository
from provision.lab.services.ca import ensure_certificates
from provision.lab.services.packages import build_packages
from provision.lab.services.rootfs import compress

needs_apt = pytest.mark.skipif(
    not all(shutil.which(program) for program in ("apt-ftparchive", "gpg", "dpkg-deb")),
    reason="apt-utils or gnupg missing",
)
LOOPBACK = "127.0.0.1"


@pytest.fixture
def port():
    """Return a free port outside the kernel's range, which parallel tests use."""
    for number in range(14000 + os.getpid() % 5000, 19900):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((LOOPBACK, number))
            return number
    pytest.fail("no port is free")


@pytest.fixture
def served(tmp_path, port):
    """A service of ours that runs on loopback and serves one folder."""
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository/file").write_text("content")
    repository.ensure_running(tmp_path, [LOOPBACK], port)
    yield tmp_path
    processes.stop(repository.record_of(tmp_path))


def test_a_service_outlives_its_command_and_is_stopped_by_its_record(served, port):
    """A started service answers, is known as running, and is gone after stop."""
    record = repository.record_of(served)
    before = processes.running(record)
    said = urllib.request.urlopen(f"http://{LOOPBACK}:{port}/file").read()

    processes.stop(record)

    assert (before, said) == (True, b"content")
    assert not processes.running(record)
    assert not record.exists()
    assert not processes.answers(LOOPBACK, port)


def test_a_service_that_runs_is_not_started_again(served, port):
    """A second `up` keeps the process."""
    record = repository.record_of(served)
    first = processes.read_record(record)

    repository.ensure_running(served, [LOOPBACK], port)

    assert processes.read_record(record) == first


def test_a_stopped_service_is_started_again(served, port):
    """After a crash of the service, `up` brings it back on its port."""
    record = repository.record_of(served)
    first = processes.read_record(record)
    os.kill(first.pid, 9)
    os.waitpid(first.pid, 0)

    repository.ensure_running(served, [LOOPBACK], port)

    assert processes.running(record)
    assert processes.read_record(record) != first


def test_another_process_with_the_same_pid_is_not_stopped(tmp_path):
    """When the recorded pid belongs to another process by now, that one is not killed."""
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    record = tmp_path / "service.json"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    record.write_text(json.dumps({"pid": bystander.pid, "started": 1, "boot": boot}))

    processes.stop(record)
    alive = bystander.poll() is None
    bystander.communicate(b"\n")

    assert alive
    assert bystander.returncode == 0


def test_a_service_that_fails_to_start_is_reported_with_its_output(tmp_path, port):
    """The error names the service and has its output; the process is stopped."""
    argv = ["/bin/sh", "-c", "echo no such luck >&2; exit 3"]

    with pytest.raises(LabError) as caught:
        processes.start(argv, record=tmp_path / "r.json", log=tmp_path / "r.log", address=LOOPBACK, port=port)

    assert "no such luck" in caught.value.output
    assert not (tmp_path / "r.json").exists()


def test_keys_are_private_and_the_certificate_is_valid_for_its_names_only(tmp_path):
    """A client that trusts the lab's CA accepts the address in the certificate, and refuses another."""
    made = ensure_certificates(tmp_path, "demo", [LOOPBACK, "10.0.2.2", "localhost"])

    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("*.key")} == {
        "ca.key": 0o600,
        "server.key": 0o600,
    }
    assert handshake(made, "10.0.2.2") == "ok"
    assert "10.9.9.9" in handshake(made, "10.9.9.9")


def test_a_new_address_renews_the_certificate_under_the_same_authority(tmp_path):
    """Nodes that trust the CA go on trusting it when the lab listens on one more address."""
    first = ensure_certificates(tmp_path, "demo", [LOOPBACK])
    authority = first.authority.read_text()
    again = ensure_certificates(tmp_path, "demo", [LOOPBACK])
    more = ensure_certificates(tmp_path, "demo", [LOOPBACK, "10.78.0.1"])

    assert (first.renewed, again.renewed, more.renewed) == (True, False, True)
    assert more.authority.read_text() == authority
    assert handshake(more, "10.78.0.1") == "ok"


def handshake(certificates, name: str) -> str:
    """Perform a TLS handshake over a socket pair; return ok or the client's error."""
    left, right = socket.socketpair()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificates.certificate, certificates.key)

    def serve() -> None:
        try:
            server.wrap_socket(left, server_side=True).close()
        except OSError:
            left.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client = ssl.create_default_context(cafile=str(certificates.authority))
        client.wrap_socket(right, server_hostname=name).close()
    except ssl.SSLError as error:
        return str(error)
    else:
        return "ok"
    finally:
        right.close()
        thread.join()


@needs_apt
def test_the_repository_is_signed_by_a_constant_key(tmp_path):
    """gpg accepts the index with the published key, and a second call changes nothing."""
    packages = build_packages(tmp_path / "cache")
    folder = tmp_path / "services"
    folder.mkdir()
    key = repository.ensure_repository(folder, "demo", packages)
    release = folder / "repository/dists/lab/InRelease"
    before = release.read_bytes()

    again = repository.ensure_repository(folder, "demo", packages)

    assert (again, release.read_bytes()) == (key, before)
    assert verify(tmp_path, key, release) == 0
    release.write_bytes(before.replace(b"Suite: lab", b"Suite: bad"))
    assert verify(tmp_path, key, release) != 0
    assert (folder / "repository.key").stat().st_mode & 0o777 == 0o600


@needs_apt
def test_the_index_lists_every_package_and_the_secret_key_is_not_served(tmp_path):
    """What nodes can fetch is the packages and the index, nothing secret."""
    packages = build_packages(tmp_path / "cache")
    repository.ensure_repository(tmp_path, "demo", packages)
    root = tmp_path / "repository"

    index = (root / "dists/lab/main/binary-amd64/Packages").read_text()

    assert index.count("Package: ") == len(packages)
    assert not [path for path in root.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]


def verify(folder: Path, key: str, signed: Path) -> int:
    """Check a signature as apt does: with one key, given as a file."""
    keyring = folder / "key.gpg"
    dearmored = subprocess.run(["gpg", "--dearmor"], input=key.encode(), capture_output=True, check=True).stdout
    keyring.write_bytes(dearmored)
    return subprocess.run(["gpgv", "--keyring", keyring, signed], capture_output=True, check=False).returncode


def test_the_same_files_give_the_same_image(tmp_path):
    """The digest of an image depends on its content alone, so a rebuilt one is not a new one."""
    plain = tmp_path / "root.tar"
    with tarfile.open(plain, "w") as archive:
        archive.add(__file__, "file")
    base = compress(plain, tmp_path / "layer.tar.gz")

    assert (
        image._assemble(tmp_path / "a", base, "bookworm").digest
        == image._assemble(tmp_path / "b", base, "bookworm").digest
    )


def test_down_of_a_lab_without_services_is_no_error(tmp_path):
    """`lab down` can be repeated."""
    services = Services(tmp_path / "cache")

    services.down(tmp_path)

    assert services.status(tmp_path) == ()
    assert services.info(tmp_path) is None
