"""A BitTorrent session of libtorrent between nodes that the controller lists: no tracker, DHT or discovery.

The hashes of the torrent are SHA-256 (BitTorrent v2), so libtorrent 2.0 is required. The torrent arrives over SSH.
"""

import os
import re
import sys
import time
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Sequence, Tuple

FOLDER = "blobs"
"""The torrent's folder; its files are named by the SHA-256 hash of their contents."""
HASH = re.compile(r"[0-9a-f]{64}\Z")
PARTS = (b"info", b"piece layers")
"""What is used of a torrent: files with their hashes."""
OLDEST = (2, 0)
MOST_BYTES = 1 << 42
FLUSH_SECONDS = 120
CONNECT_SECONDS = 5
CONNECTIONS = 200
EVERY_ADDRESS = (
    ("0.0.0.0", "255.255.255.255"),  # nosec B104 # a range of a filter
    ("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
)


class Unusable(Exception):
    """This node has no usable libtorrent; the text says why."""


class Progress(NamedTuple):
    """The state of the transfer on this node, in bytes."""

    done: int
    total: int
    received: int
    sent: int
    peers: int
    complete: bool


def library() -> Any:
    """Import libtorrent from the packages of this interpreter, which our programs start without.

    Raises:
        Unusable: it is missing, broken or older than 2.0.
    """
    import site

    sys.path.extend(path for path in site.getsitepackages() if path not in sys.path)
    try:
        import libtorrent  # type: ignore[import-not-found,unused-ignore]
    except ImportError as problem:
        raise Unusable("python3-libtorrent is not installed ({})".format(problem))
    version = tuple(int(word) for word in re.findall(r"\d+", str(libtorrent.__version__))[:2])
    if version < OLDEST:
        raise Unusable("libtorrent {} is too old (2.0 is required)".format(libtorrent.__version__))
    return libtorrent


def piece_bytes(total: int) -> int:
    """Return the size of pieces: a power of two, about a thousand pieces."""
    size = 1 << 18
    while size < 1 << 23 and size * 1024 < total:
        size <<= 1
    return size


def make_torrent(parent: str, names: Iterable[str], report: Callable[[int, int], None]) -> bytes:
    """Return the torrent of files in the folder `FOLDER` of `parent`; report the bytes that were read, and all."""
    lt = library()
    files = lt.file_storage()
    total = 0
    for name in sorted(names):
        size = os.path.getsize(os.path.join(parent, FOLDER, name))
        files.add_file("{}/{}".format(FOLDER, name), size)
        total += size
    torrent = lt.create_torrent(files, piece_bytes(total), lt.create_torrent_flags_t.v2_only)
    torrent.set_priv(True)
    size = torrent.piece_length()
    lt.set_piece_hashes(torrent, parent, lambda piece: report(min((piece + 1) * size, total), total))
    data: bytes = lt.bencode(torrent.generate())
    return data


def parsed(lt: Any, torrent: bytes) -> Any:
    """Return a torrent as libtorrent reads it, without trackers, web servers and other addresses.

    The sender wrote it, and libtorrent would send requests to these addresses, also to those that are not admitted.

    Raises:
        ValueError: it is not a torrent.
    """
    document = lt.bdecode(torrent)
    if not isinstance(document, dict):
        raise ValueError("the torrent is not valid")  # noqa: TRY004 - the request is invalid
    return lt.torrent_info({key: document[key] for key in PARTS if key in document})


def names_of(lt: Any, info: Any) -> List[str]:
    """Return the names of a torrent's files, empty for padding, which is no file on disk.

    Raises:
        ValueError: a file does not belong into the folder, or the torrent is too large.
    """
    files = info.files()
    names: List[str] = []
    for number in range(files.num_files()):
        if files.file_flags(number) & lt.file_flags_t.flag_pad_file:
            names.append("")
            continue
        folder, _, name = files.file_path(number).partition("/")
        if folder != FOLDER or not HASH.match(name) or files.symlink(number):
            raise ValueError("the torrent has a file {!r}".format(files.file_path(number)[:200]))
        names.append(name)
    if files.total_size() > MOST_BYTES:
        raise ValueError("the torrent has {} bytes".format(files.total_size()))
    return names


class Swarm:
    """This node's part in the copy of one torrent."""

    def __init__(self, address: str, port: int, allowed: Sequence[str], rate: int) -> None:
        """Listen on an address, for these addresses only; `rate` is the limit in bytes per second, 0 for none."""
        self.lt = library()
        listen = "[{}]:{}".format(address, port) if ":" in address else "{}:{}".format(address, port)
        self.session = self.lt.session(self._settings(listen, address))
        self._admit(allowed, rate)

    def _settings(self, listen: str, address: str) -> Dict[str, Any]:
        category = self.lt.alert.category_t
        return {
            "listen_interfaces": listen,
            "outgoing_interfaces": address,
            "alert_mask": category.error_notification | category.storage_notification | category.status_notification,
            "enable_dht": False,
            "enable_lsd": False,
            "enable_upnp": False,
            "enable_natpmp": False,
            "enable_incoming_utp": False,
            "enable_outgoing_utp": False,
            # The torrent's hash is the secret of the encrypted handshake: a program that takes over the port of a node
            # without knowing it does not learn it, and so gets no data. What follows is not encrypted.
            "in_enc_policy": 0,  # forced
            "out_enc_policy": 0,
            "allowed_enc_level": 1,  # plain text
            "prefer_rc4": False,
            "connections_limit": CONNECTIONS,
            "connection_speed": 100,
            "peer_connect_timeout": CONNECT_SECONDS,
            "min_reconnect_time": 2,
            "max_failcount": 30,
            "unchoke_interval": 3,
            "optimistic_unchoke_interval": 9,
            "send_buffer_watermark": 4 << 20,
            "max_out_request_queue": 64,
            "request_queue_time": 1,
            "max_allowed_in_request_queue": 64,  # others request no more: what many nodes request early is sent often
            "user_agent": "",
        }

    def _admit(self, allowed: Sequence[str], rate: int) -> None:
        """Refuse other addresses; limit the rate, and serve all peers at once, whatever they sent.

        libtorrent's own limits do not apply to addresses of local networks, but those of a peer class do.
        """
        blocked, classes = self.lt.ip_filter(), self.lt.ip_filter()
        number = self.session.create_peer_class("cluster")
        chosen = self.session.get_peer_class(number)
        chosen.update(ignore_unchoke_slots=True, upload_limit=rate, download_limit=rate)
        self.session.set_peer_class(number, chosen)
        for first, last in EVERY_ADDRESS:
            blocked.add_rule(first, last, 1)
            classes.add_rule(first, last, 1 << number)
        for address in allowed:
            blocked.add_rule(address, address, 0)
        self.session.set_ip_filter(blocked)
        self.session.set_peer_class_filter(classes)

    def add(self, torrent: bytes, parent: str, wanted: Iterable[str], *, complete: bool) -> None:
        """Start the torrent; of its files only `wanted` ones are downloaded, none if it is `complete`."""
        info = parsed(self.lt, torrent)
        names, chosen = names_of(self.lt, info), set(wanted)
        parameters = self.lt.add_torrent_params()
        parameters.ti = info
        parameters.save_path = parent
        parameters.file_priorities = [4 if complete or name in chosen or not name else 0 for name in names]
        flags = self.lt.torrent_flags
        parameters.flags = flags.disable_dht | flags.disable_lsd | flags.disable_pex
        if complete:
            parameters.flags |= flags.seed_mode
        self.torrent = self.session.add_torrent(parameters)

    def port(self, seconds: float = 10) -> int:
        """Return the port on which the session listens; OSError if it cannot listen."""
        deadline = time.monotonic() + seconds
        while not self.session.listen_port():
            if time.monotonic() > deadline:
                raise OSError("libtorrent cannot listen on the address of the data network")
            self.session.wait_for_alert(200)
            self.session.pop_alerts()
        return int(self.session.listen_port())

    def connect(self, peers: Iterable[Tuple[str, int]]) -> None:
        """Connect to nodes."""
        for address, port in peers:
            self.torrent.connect_peer((address, port))

    def progress(self) -> Progress:
        """Return the state of the transfer.

        Raises:
            OSError: libtorrent cannot continue, for example because the disk is full.
        """
        status = self.torrent.status()
        if status.errc.value():
            raise OSError(status.errc.message())
        return Progress(
            int(status.total_wanted_done),
            int(status.total_wanted),
            int(status.total_payload_download),
            int(status.total_payload_upload),
            int(status.num_peers),
            bool(status.is_finished) and status.total_wanted_done == status.total_wanted,
        )

    def flush(self) -> None:
        """Wait until all received data is in the files."""
        self.session.pop_alerts()
        self.torrent.flush_cache()
        deadline = time.monotonic() + FLUSH_SECONDS
        while time.monotonic() < deadline:
            self.session.wait_for_alert(500)
            for alert in self.session.pop_alerts():
                if isinstance(alert, self.lt.cache_flushed_alert):
                    return
        raise OSError("libtorrent has not written the received data after {} s".format(FLUSH_SECONDS))

    def close(self) -> None:
        """End the session, and wait until it has closed its files."""
        if hasattr(self, "torrent"):
            del self.torrent
        if hasattr(self, "session"):
            del self.session
