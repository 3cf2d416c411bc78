"""This node's part in copying an image between nodes.

Standard input and output are lines of JSON. The first request is ``inspect``, ``send`` (this node has the image) or
``receive``; then ``peers`` may follow, and ``end`` at last. The program ends, and removes its files, when its input
ends or nothing arrives for a minute: a controller that is gone leaves nothing on the node. Answers have a key
``event``: ``state``, ``offer``, ``listening``, ``progress``, ``done`` or ``failed``.
"""

import base64
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import queue
import select
import shutil
import sys
import tempfile
import threading
import time
from typing import Dict, List, Optional, Tuple

from provision.node import docker
from provision.node.files import Record
from provision.node.image_peers import archive, swarm

WORK = os.environ.get("PROVISION_IMAGE_FOLDER") or "/var/lib/provision/images"
PREFIX = "copy-"
SILENCE_SECONDS = 60
LINE_BYTES = 64 << 20
"""The longest request: a torrent has 32 bytes for each piece, and the file's table."""
REPORT_SECONDS = 1.0
STALL_SECONDS = 90
"""How long no byte may arrive before this node gives up."""
ALONE_SECONDS = 30
"""How long this node may be without a connection to another one before it gives up."""
SPARE_BYTES = 256 << 20
"""Free space that remains on each disk."""
MOST_PEERS = 10000


ANSWERING = threading.Lock()


class Failed(Exception):
    """This node cannot continue; `code` is for the controller, the text for a person."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def main() -> int:
    """Serve one copy."""
    requests = Requests(sys.stdin.fileno())
    try:
        request = json.loads((requests.next() or b"{}").decode())
        if request["do"] == "inspect":
            answer(state(str(request["image"])))
            return 0
        return Copy(request, requests).run()
    except (ValueError, KeyError, TypeError) as problem:
        answer({"event": "failed", "code": "invalid", "message": "invalid request: {!r}".format(problem)[:1000]})
        return 2


class Requests:
    """The lines of standard input."""

    def __init__(self, handle: int) -> None:
        self.handle, self.rest = handle, b""

    def next(self) -> Optional[bytes]:
        """Return the next line; None if the input has ended, is silent for too long, or sends too long a line."""
        pieces = [self.rest]
        size = len(self.rest)
        while b"\n" not in pieces[-1]:
            if size > LINE_BYTES or not select.select([self.handle], [], [], SILENCE_SECONDS)[0]:
                return None
            data = os.read(self.handle, 1 << 20)
            if not data:
                return None
            pieces.append(data)
            size += len(data)
        line, _, self.rest = b"".join(pieces).partition(b"\n")
        return line


def answer(event: Record) -> None:
    """Print one answer."""
    data = json.dumps(event).encode() + b"\n"
    with ANSWERING:
        while data:
            data = data[os.write(1, data) :]


def state(image: str) -> Record:
    """Return whether this node can take part, and what it has of the image."""
    result: Record = {"event": "state", "problem": "", "library": "", "docker": "", "id": "", "content": ""}
    result["containerd"] = False
    try:
        result["library"] = str(swarm.library().__version__)
    except swarm.Unusable as problem:
        result["problem"] = str(problem)
    try:
        known = archive.find(image)
        result["id"] = str(known.get("Id") or "")
        if known:
            result["content"] = hashlib.sha256(" ".join(archive.layers_of(known)).encode()).hexdigest()
        result["containerd"] = in_containerd(docker.engine_json("/info") or {})
    except OSError as problem:
        result["docker"] = problem.strerror or str(problem)
    return result


def in_containerd(info: Record) -> bool:
    """Return whether Docker stores images in containerd."""
    return any("containerd.snapshotter" in str(pair) for pair in info.get("DriverStatus") or [])


class Copy:
    """One node's part; a thread reads the requests, and ends this process with the connection."""

    def __init__(self, request: Record, lines: Requests) -> None:
        self.request, self.lines = request, lines
        if request["do"] not in ("send", "receive"):
            raise ValueError("unknown action")
        self.image, self.tag = text(request, "image"), text(request, "tag")
        self.address, self.port = text(request, "address"), number(request, "port", 65535)
        self.allowed = [str(address) for address in request["allowed"][:MOST_PEERS]]
        self.rate = number(request, "rate", 1 << 50)
        self.requests: "queue.Queue[Record]" = queue.Queue()
        self.programs: List[archive.Program] = []
        self.swarm: Optional[swarm.Swarm] = None
        self.folder, self.lock, self.own_port = "", -1, 0
        self.ending, self.listening = threading.Lock(), False
        self.progress: Record = {}
        self.report("starting", 0, 0)

    def run(self) -> int:
        """Send or receive the image; return the exit status."""
        threading.Thread(target=self.read, args=(self.lines,), daemon=True).start()
        threading.Thread(target=self.report_regularly, daemon=True).start()
        try:
            self.make_folder()
            if self.request["do"] == "send":
                self.send()
            else:
                self.receive()
            return self.serve()
        except Failed as problem:
            return self.give_up(problem.code, str(problem))
        except swarm.Unusable as problem:
            return self.give_up("unusable", str(problem))
        except OSError as problem:
            full = problem.errno in (errno.ENOSPC, errno.EDQUOT) or "o space left" in str(problem)
            return self.give_up("disk_full" if full else "failed", problem.strerror or str(problem))
        except Exception as problem:  # noqa: BLE001 - libtorrent has errors of its own, and the controller needs an answer
            return self.give_up("failed", "{}: {}".format(type(problem).__name__, problem))
        finally:
            self.listening = False
            if self.swarm:
                self.swarm.close()
            self.clean()

    def give_up(self, code: str, message: str) -> int:
        """Report a failure."""
        answer({"event": "failed", "code": code, "message": message[:2000]})
        return 1

    # Requests

    def read(self, lines: Requests) -> None:
        """Read requests until the controller is gone; then end this process."""
        for line in iter(lines.next, None):
            try:
                request = json.loads(line.decode())
                if request["do"] != "stay":
                    self.requests.put(request)
            except (ValueError, KeyError, TypeError):
                continue
        self.clean()
        os._exit(1)

    def start(self, argv: List[str]) -> archive.Program:
        """Start a program that does not outlive this process."""
        program = archive.Program(argv)
        self.programs.append(program)
        return program

    # Files

    def make_folder(self) -> None:
        """Create this copy's folder, and remove those of programs that were killed."""
        os.makedirs(WORK, mode=0o700, exist_ok=True)
        work = os.open(WORK, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(work, fcntl.LOCK_EX)  # another copy must not remove the folder before it is locked
            for name in os.listdir(WORK):
                path = os.path.join(WORK, name)
                if name.startswith(PREFIX) and not locked(path):
                    shutil.rmtree(path, ignore_errors=True)
            self.folder = tempfile.mkdtemp(prefix=PREFIX, dir=WORK)
            self.lock = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        finally:
            os.close(work)
        os.mkdir(os.path.join(self.folder, swarm.FOLDER), 0o700)

    def clean(self) -> None:
        """End the programs, and remove the files."""
        with self.ending:
            for program in self.programs:
                program.kill()
            folder, self.folder = self.folder, ""
            if folder:
                shutil.rmtree(folder, ignore_errors=True)

    def require_space(self, own: int, dockers: int) -> None:
        """Raise Failed unless the disks have space for so many bytes of our files, and of Docker's."""
        root = str((docker.engine_json("/info") or {}).get("DockerRootDir") or "/var/lib/docker")
        needs: Dict[int, Tuple[str, int]] = {}
        for path, size in ((WORK, own), (root if os.path.isdir(root) else "/", dockers)):
            device = os.stat(path).st_dev
            shown, before = needs.get(device, (path, SPARE_BYTES))
            needs[device] = shown, before + size
        for path, size in needs.values():
            system = os.statvfs(path)
            free = system.f_bavail * system.f_frsize
            if free < size:
                words = "{} has {} MB free, and the copy needs {} MB".format(path, free // 10**6, -(-size // 10**6))
                raise Failed("disk_full", words)

    # The copy

    def report(self, step: str, done: int, total: int) -> None:
        """Set the progress that is reported."""
        self.progress = {"event": "progress", "step": step, "done": done, "total": max(done, total)}

    def report_regularly(self) -> None:
        """Report the progress once a second; without these answers the controller takes the node for dead."""
        while True:
            received, sent = 0, 0
            with contextlib.suppress(Exception):  # the copy itself reports errors of libtorrent
                if self.swarm and self.listening:
                    transfer = self.swarm.progress()
                    received, sent = transfer.received, transfer.sent
            answer({**self.progress, "received": received, "sent": sent})
            time.sleep(REPORT_SECONDS)

    def send(self) -> None:
        """Write the image's files, offer their torrent, and listen."""
        image = archive.find(self.image)
        if not image:
            raise Failed("no_image", "there is no image {}".format(self.image))
        size = int(image.get("Size") or 0)
        self.require_space(size, size)
        self.report("saving", 0, size)
        description = archive.save(
            self.image, self.folder, self.start, lambda done: self.report("saving", done, max(size, done))
        )
        config = archive.configuration(self.folder, description)
        if len(description.blobs) < 2:  # libtorrent leaves out the folder of a single file
            raise Failed("unusable", "the image has no layers, so there is nothing to copy")
        self.report("hashing", 0, size)
        torrent = swarm.make_torrent(
            self.folder, description.blobs, lambda done, total: self.report("hashing", done, total)
        )
        self.listen(torrent, description.blobs, complete=True)
        offer = {"event": "offer", "torrent": base64.b64encode(torrent).decode(), "id": str(image["Id"])}
        diffs = config["rootfs"]["diff_ids"]
        answer({**offer, **description._asdict(), "diffs": diffs, "port": self.own_port})

    def listen(self, torrent: bytes, wanted: List[str], *, complete: bool) -> swarm.Swarm:
        """Start libtorrent; return its session."""
        session = self.swarm = swarm.Swarm(self.address, self.port, self.allowed, self.rate)
        session.add(torrent, self.folder, wanted, complete=complete)
        self.own_port = session.port()
        self.listening = True
        return session

    def receive(self) -> None:
        """Receive the image, and load it."""
        description = archive.described(self.request)
        wanted_id = text(self.request, "id")
        containerd = in_containerd(docker.engine_json("/info") or {})
        stored = archive.find(wanted_id)
        if stored:
            self.name_image(wanted_id)
            answer({"event": "done", "id": wanted_id, "received": 0})
            return
        torrent = base64.b64decode(text(self.request, "torrent").encode())
        layout = containerd and bool(description.table)
        wanted = self.wanted(description, containerd=containerd, layout=layout)
        sizes = self.sizes(torrent)
        size = sum(sizes[name] for name in wanted)
        self.require_space(size, 2 * size)
        session = self.listen(torrent, wanted, complete=False)
        answer({"event": "listening", "port": self.own_port})
        self.download(session)
        session.flush()
        received = session.progress().received
        config = archive.configuration(self.folder, description)
        self.report("loading", 0, size)
        archive.load(
            self.folder, description, wanted, self.tag, self.start,
            layout=layout, report=lambda done: self.report("loading", done, size),
        )  # fmt: skip
        image = archive.find(self.tag)
        if archive.layers_of(image) != config["rootfs"]["diff_ids"]:
            raise Failed("failed", "Docker has loaded another image than the one that was copied")
        if not containerd and image.get("Id") != "sha256:" + description.config:
            raise Failed("failed", "the loaded image has the ID {}".format(image.get("Id")))
        answer({"event": "done", "id": str(image.get("Id")), "received": received})

    def wanted(self, description: archive.Description, *, containerd: bool, layout: bool) -> List[str]:
        """Return the files that this node needs: not those of layers that Docker's own store has."""
        if layout:
            return description.blobs
        layers = dict.fromkeys(description.layers)
        if not containerd:
            diffs = [str(diff) for diff in self.request["diffs"]]
            if len(diffs) != len(description.layers):
                raise ValueError("the number of layers is wrong")
            known = archive.stored_chains()
            missing = [name for name, chain in zip(description.layers, archive.chains(diffs)) if chain not in known]
            layers = dict.fromkeys(missing)
        return [description.config, *layers]

    def sizes(self, torrent: bytes) -> Dict[str, int]:
        """Return the sizes of a torrent's files."""
        lt = swarm.library()
        info = swarm.parsed(lt, torrent)
        return {name: int(info.files().file_size(place)) for place, name in enumerate(swarm.names_of(lt, info)) if name}

    def name_image(self, image: str) -> None:
        """Give an image of this node its name."""
        repository, _, tag = self.tag.rpartition(":")
        path = "/images/{}/tag?repo={}&tag={}".format(*map(docker.quoted, (image, repository, tag)))
        status, body = docker.engine("POST", path)
        if status != 201:
            raise OSError("docker tag: {}".format(docker.engine_words(body)))

    def download(self, session: swarm.Swarm) -> None:
        """Receive the files from the other nodes."""
        last, moved = -1, time.monotonic()
        met = moved
        while True:
            self.handle_requests(0.2)
            progress, now = session.progress(), time.monotonic()
            if progress.complete:
                return
            if progress.received != last:
                last, moved = progress.received, now
            met = now if progress.peers else met
            if now - met > ALONE_SECONDS:
                raise Failed(
                    "no_peers", "no other node can be reached on the data network, port {}".format(self.own_port)
                )
            if now - moved > STALL_SECONDS:
                raise Failed("stalled", "no data has arrived for {} s".format(STALL_SECONDS))
            self.report("downloading", progress.done, progress.total)

    def serve(self) -> int:
        """Send to the other nodes until the controller ends the copy."""
        while self.handle_requests(0.5):
            if self.swarm:
                progress = self.swarm.progress()
                self.report("sending", progress.done, progress.total)
        return 0

    def handle_requests(self, seconds: float) -> bool:
        """Handle a request if one arrives; return False at the end of the copy."""
        try:
            request = self.requests.get(timeout=seconds)
        except queue.Empty:
            return True
        if request["do"] == "end":
            return False
        if request["do"] == "peers" and self.swarm:
            peers = [(str(peer[0]), int(peer[1])) for peer in request["peers"][:MOST_PEERS]]
            self.swarm.connect(peer for peer in peers if peer[0] in self.allowed)
        return True


def locked(path: str) -> bool:
    """Return whether a running program uses a folder."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def text(record: Record, key: str) -> str:
    """Return a field that is a text; ValueError if it is not."""
    value = record[key]
    if not isinstance(value, str):
        raise ValueError("{} is not a text".format(key))  # noqa: TRY004 - the request is invalid
    return value


def number(record: Record, key: str, most: int) -> int:
    """Return a field that is a number from 0; ValueError if it is not."""
    value = record[key]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError("{} is not a number".format(key))
    return value
