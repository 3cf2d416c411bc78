"""Prints whether a program that has taken over the port of a node in a copy learns the hash of the torrent.

Runs on a machine with libtorrent, and with `provision` on its path. A node connects to the stolen port and to an
honest one; it receives all data from the honest one. The torrent of the sender names a tracker and a web server, to
which the node has to send nothing.
"""

import hashlib
import os
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

from provision.node.image_peers import swarm

HOME = "127.0.0.1"
SECONDS = 60
TRACKER_SECONDS = 5
"""libtorrent asks trackers and web servers within this time."""


def listen(heard: list[bytes]) -> int:
    """Listen on a port, and store what programs send there; return the port."""
    server = socket.create_server((HOME, 0))

    def serve() -> None:
        while True:
            connection, _ = server.accept()
            connection.settimeout(5)
            try:
                heard.append(connection.recv(4096))
            except OSError:
                heard.append(b"")
            connection.close()

    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


def peer(torrent: bytes, folder: Path, names: list[str], *, complete: bool) -> swarm.Swarm:
    """Start a node of the copy."""
    session = swarm.Swarm(HOME, 0, [HOME], 0)
    session.add(torrent, str(folder), names, complete=complete)
    return session


def main() -> None:
    """Print ``complete``, ``leaked`` and ``requests`` with their values."""
    folders = [Path(tempfile.mkdtemp()) for _ in range(2)]
    for folder in folders:
        (folder / swarm.FOLDER).mkdir()
    names = []
    for size in (1000, 1000000):
        data = os.urandom(size)
        names.append(hashlib.sha256(data).hexdigest())
        (folders[0] / swarm.FOLDER / names[-1]).write_bytes(data)
    torrent = swarm.make_torrent(str(folders[0]), names, lambda *_: None)
    lt = swarm.library()
    secret = lt.torrent_info(lt.bdecode(torrent)).info_hashes().v2.to_bytes()[:20]
    heard, requests = list[bytes](), list[bytes]()
    stolen, web = listen(heard), listen(requests)
    document = lt.bdecode(torrent)
    document[b"announce"] = f"http://{HOME}:{web}/announce".encode()
    document[b"url-list"] = [f"http://{HOME}:{web}/".encode()]
    torrent = lt.bencode(document)
    sender = peer(torrent, folders[0], names, complete=True)
    receiver = peer(torrent, folders[1], names, complete=False)
    receiver.connect([(HOME, stolen)])
    end = time.monotonic() + SECONDS
    while not (any(heard) and time.monotonic() > end - SECONDS + TRACKER_SECONDS) and time.monotonic() < end:
        time.sleep(0.1)
    receiver.connect([(HOME, sender.port())])
    while not receiver.progress().complete and time.monotonic() < end:
        time.sleep(0.1)
    complete = receiver.progress().complete and any(heard)
    leaked = any(secret in data for data in heard)
    sys.stdout.write(f"complete={complete} leaked={leaked} requests={len(requests)}\n")


main()
