"""What a hostile image can have for its file of accounts; docker's engine is a STAND-IN that answers by its socket."""

from __future__ import annotations

import io
import socket
import tarfile
import threading
from pathlib import Path

import pytest

from provision.node import docker as node_docker
from provision.node.supervisor import account


class Archive:
    """Answers one question with an archive, and counts what was taken of it."""

    def __init__(self, folder: Path, head: bytes, more: int = 0) -> None:
        self.sent, self.head, self.more = 0, head, more
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(folder / "docker.sock"))
        self.listener.listen()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        connection, _ = self.listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + self.head)
            try:
                while self.sent < self.more:
                    connection.sendall(bytes(1 << 16))
                    self.sent += 1 << 16
            except OSError:
                pass
        self.listener.close()


def packed(**about: object) -> bytes:
    """The head of an archive with one member."""
    member = tarfile.TarInfo("passwd")
    for name, value in about.items():
        setattr(member, name, value)
    return member.tobuf(tarfile.GNU_FORMAT)


ENDLESS = packed(size=1 << 40)
SPARSE = packed(type=tarfile.GNUTYPE_SPARSE, size=0)[:386] + b"00000000000\0" * 8 + b"\0" + b"17777777777\0"
"""Whoever unpacks it makes eight gigabytes of zeros of nothing."""


@pytest.mark.parametrize(
    ("head", "more"),
    [
        (ENDLESS, 1 << 28),
        (SPARSE.ljust(512, b"\0"), 1 << 10),
        (packed(type=tarfile.SYMTYPE, linkname="/etc/shadow"), 1 << 10),
        (packed(type=tarfile.FIFOTYPE), 1 << 10),
        (packed(type=tarfile.CHRTYPE, devmajor=1, devminor=5), 1 << 10),
        (b"no archive", 0),
    ],
    ids=["endless", "sparse", "link", "fifo", "device", "nothing"],
)
def test_an_images_passwd_is_read_up_to_a_limit_and_only_if_it_is_a_regular_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: bytes, more: int
) -> None:
    """The image controls the file, and the job supervisor that reads it runs as root."""
    monkeypatch.setattr(node_docker, "DOCKER_SOCKET", str(tmp_path / "docker.sock"))
    archive = Archive(tmp_path, head, more)
    assert account._passwd_in("c") is None
    archive.thread.join()

    assert archive.sent < 1 << 24


def test_an_images_accounts_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are in most images."""
    text = b"root:x:0:0:root:/root:/bin/sh\n"
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as stream:
        member = tarfile.TarInfo("passwd")
        member.size = len(text)
        stream.addfile(member, io.BytesIO(text))
    monkeypatch.setattr(node_docker, "DOCKER_SOCKET", str(tmp_path / "docker.sock"))
    archive = Archive(tmp_path, made.getvalue())
    assert account._passwd_in("c") == text.decode()
    archive.thread.join()
