"""The files of an image, out of `docker save` and into `docker load`: one file per layer, named by its SHA-256 hash."""

import hashlib
import io
import json
import os
import subprocess
import tarfile
from typing import IO, Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from provision.node import docker
from provision.node.files import Record
from provision.node.image_peers.swarm import FOLDER, HASH

MOST_LAYERS = 1000
MOST_TABLE_BYTES = 1 << 24
"""The most bytes of a table of contents or an image's configuration."""
MOST_LAYOUT_BYTES = 1 << 16
"""The most bytes of the table of an OCI layout with one image."""
NAME = "io.containerd.image.name"
"""The annotation from which containerd takes the name of an image."""
TAG = "org.opencontainers.image.ref.name"
PIECE = 1 << 20
TABLES = ("manifest.json", "index.json", "oci-layout")
LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'


class Description(NamedTuple):
    """What an image's files are for."""

    config: str
    """The file of the configuration: its hash is the ID of the image in Docker's own store."""
    layers: List[str]
    """The files of the layers, from the lowest."""
    blobs: List[str]
    """All files."""
    table: str
    """The table of an OCI layout, which containerd's store reads; empty if `docker save` wrote none."""


def described(message: Record) -> Description:
    """Return a description from a message; ValueError if it is not valid."""
    config, layers, blobs, table = (message[key] for key in ("config", "layers", "blobs", "table"))
    names = [config, *layers, *blobs]
    if not all(isinstance(name, str) and HASH.match(name) for name in names):
        raise ValueError("a file of the image has an invalid name")
    if len(layers) > MOST_LAYERS or len(blobs) > 4 * MOST_LAYERS or not {config, *layers} <= set(blobs):
        raise ValueError("the image has too many files, or the list of its files is incomplete")
    if not isinstance(table, str) or len(table) > MOST_LAYOUT_BYTES:
        raise ValueError("the table of the image is not valid")
    return Description(config, list(layers), list(blobs), table)


def chains(diffs: Sequence[str]) -> List[str]:
    """Return the chain IDs of layers: of each layer with all layers below it."""
    result: List[str] = []
    for diff in diffs:
        upper = diff
        if result:
            upper = "sha256:" + hashlib.sha256("{} {}".format(result[-1], diff).encode()).hexdigest()
        result.append(upper)
    return result


def stored_chains() -> Set[str]:
    """Return the chain IDs of all layers in Docker's own store; OSError if Docker does not answer."""
    known: Set[str] = set()
    for entry in docker.engine_json("/images/json") or []:
        image = docker.engine_json("/images/{}/json".format(docker.quoted(str(entry.get("Id"))))) or {}
        known.update(chains(layers_of(image)))
    return known


def layers_of(image: Record) -> List[str]:
    """Return the hashes of an image's layers, unpacked."""
    return [str(layer) for layer in (image.get("RootFS") or {}).get("Layers") or []]


def find(name: str) -> Record:
    """Return what Docker knows about an image, an empty record if there is none; OSError if it does not answer."""
    image: Optional[Record] = docker.engine_json("/images/{}/json".format(docker.quoted(name)))
    return image or {}


def save(name: str, parent: str, start: Callable[[List[str]], Any], report: Callable[[int], None]) -> Description:
    """Write the files of an image into the folder of `parent`.

    Args:
        name: the image.
        parent: the folder, with an empty folder `FOLDER`.
        start: starts a program with pipes, which ends with this process.
        report: receives the number of written bytes.

    Raises:
        OSError: `docker save` failed, or the disk is full.
        ValueError: the archive is not valid.
    """
    process = start(["docker", "save", name])
    files: Dict[str, str] = {}
    links: Dict[str, str] = {}
    tables: Dict[str, bytes] = {}
    written = 0
    try:
        with tarfile.open(fileobj=process.stdout, mode="r|") as stream:
            for member in stream:
                content = stream.extractfile(member) if member.isreg() else None
                if member.issym() or member.islnk():
                    target = os.path.join(os.path.dirname(member.name), member.linkname) if member.issym() else ""
                    links[member.name] = os.path.normpath(target or member.linkname)
                elif content is not None and member.name in TABLES:
                    tables[member.name] = content.read(MOST_TABLE_BYTES)
                elif content is not None:
                    before = written
                    files[member.name] = write_blob(content, parent, lambda size, base=before: report(base + size))  # type: ignore[misc]
                    written += member.size
    except tarfile.TarError as problem:
        finish(process)
        raise OSError("docker save: {}".format(process.words or problem))
    if finish(process):
        raise OSError("docker save: {}".format(process.words or "it failed"))
    for link, target in links.items():
        files[link] = files.get(target, "")
    return read_tables(tables, files, parent)


def write_blob(content: IO[bytes], parent: str, report: Callable[[int], None]) -> str:
    """Write a file under the hash of its contents; return the hash."""
    digest, size = hashlib.sha256(), 0
    part = os.path.join(parent, FOLDER, "part")
    with open(part, "wb") as target:
        for piece in iter(lambda: content.read(PIECE), b""):
            digest.update(piece)
            target.write(piece)
            size += len(piece)
            report(size)
    name = digest.hexdigest()
    os.rename(part, os.path.join(parent, FOLDER, name))
    return name


def read_tables(tables: Dict[str, bytes], files: Dict[str, str], parent: str) -> Description:
    """Return the description of an archive of one image; remove the files that it does not need."""
    entries = json.loads(tables.get("manifest.json", b"[]").decode())
    if len(entries) != 1:
        raise ValueError("docker save wrote {} images".format(len(entries)))
    config = files.get(entries[0]["Config"], "")
    layers = [files.get(path, "") for path in entries[0]["Layers"]]
    table = tables.get("index.json", b"").decode() if "oci-layout" in tables else ""
    needed = {config, *layers} | (
        {name for path, name in files.items() if path.startswith("blobs/")} if table else set()
    )
    for name in set(files.values()) - needed - {""}:
        os.unlink(os.path.join(parent, FOLDER, name))
    return described({"config": config, "layers": layers, "blobs": sorted(needed), "table": table})


def configuration(parent: str, description: Description) -> Record:
    """Return the image's configuration; ValueError if it is not the one of the description, or invalid."""
    with open(os.path.join(parent, FOLDER, description.config), "rb") as stream:
        data = stream.read(MOST_TABLE_BYTES)
    if hashlib.sha256(data).hexdigest() != description.config:
        raise ValueError("the image's configuration was changed")
    document = json.loads(data.decode())
    diffs = document["rootfs"]["diff_ids"]
    if len(diffs) != len(description.layers):
        raise ValueError("the image's configuration has {} layers, not {}".format(len(diffs), len(description.layers)))
    return dict(document)


def load(
    parent: str,
    description: Description,
    present: Iterable[str],
    tag: str,
    start: Callable[[List[str]], Any],
    *,
    layout: bool,
    report: Callable[[int], None],
) -> None:
    """Load an image from its files.

    Args:
        parent: the folder of the files.
        description: what they are for.
        present: the files that were received. Docker's own store needs no file of a layer that it has.
        tag: the image's name on this node.
        start: starts a program with pipes, which ends with this process.
        layout: whether Docker gets an OCI layout, with which containerd's store preserves the image's digest.
        report: receives the number of bytes that Docker has read.

    Raises:
        OSError: `docker load` failed.
        ValueError: the table of the image is not valid; Docker was not started.
    """
    tables = tables_of(description, tag, layout=layout)
    process = start(["docker", "load", "--quiet"])
    names = [name for name in description.blobs if name in set(present)]
    prefix = "blobs/sha256/{}" if layout else "{}"
    paths = {name: prefix.format(name) for name in names}
    sent = 0
    try:
        with tarfile.open(fileobj=process.stdin, mode="w|", format=tarfile.PAX_FORMAT) as stream:
            for path, data in tables:
                add(stream, path, len(data), io.BytesIO(data), lambda _: None)
            for name in names:
                with open(os.path.join(parent, FOLDER, name), "rb") as content:
                    size, base = os.fstat(content.fileno()).st_size, sent
                    add(stream, paths[name], size, content, lambda size, base=base: report(base + size))  # type: ignore[misc]
                sent += size
        process.stdin.close()
    except BrokenPipeError:
        pass  # Docker's message has the cause
    if finish(process):
        raise OSError("docker load: {}".format(process.words or "it failed"))


def tables_of(description: Description, tag: str, *, layout: bool) -> List[Tuple[str, bytes]]:
    """Return paths and contents of an archive's tables."""
    if layout:
        return [("oci-layout", LAYOUT), ("index.json", json.dumps(index_of(description, tag)).encode())]
    entry = {"Config": description.config, "RepoTags": [tag], "Layers": description.layers}
    return [("manifest.json", json.dumps([entry]).encode())]


def index_of(description: Description, tag: str) -> Record:
    """Return the table of an OCI layout with this image alone, under this name; ValueError if there is no such image.

    The sender's table could name any number of images, each of which `docker load` would store under its own name.
    """
    entries = json.loads(description.table)["manifests"]
    named = [one for one in entries if (one.get("annotations") or {}).get(NAME) == full_name(tag)]
    (entry,) = entries if len(entries) == 1 else named
    kind, digest, size = (entry[key] for key in ("mediaType", "digest", "size"))
    if not isinstance(kind, str) or len(kind) > 200 or not isinstance(size, int) or isinstance(size, bool):
        raise ValueError("the table of the image is not valid")
    if digest not in ["sha256:" + name for name in description.blobs]:
        raise ValueError("the table of the image names no file of it")
    annotations = {NAME: full_name(tag), TAG: tag.rpartition(":")[2]}
    manifest = {"mediaType": kind, "digest": digest, "size": size, "annotations": annotations}
    return {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [manifest]}


def full_name(tag: str) -> str:
    """Return the name of an image with its registry, as containerd stores it."""
    server, slash, path = tag.partition("/")
    if not slash or not ("." in server or ":" in server or server == "localhost"):
        server, path = "docker.io", tag
    if server == "index.docker.io":
        server = "docker.io"
    return "{}/{}{}".format(server, "" if "/" in path or server != "docker.io" else "library/", path)


def add(stream: tarfile.TarFile, path: str, size: int, content: IO[bytes], report: Callable[[int], None]) -> None:
    """Add a file to an archive, and report its bytes as they are read."""
    member = tarfile.TarInfo(path)
    member.size, member.mode = size, 0o644
    stream.addfile(member, Counted(content, report))


class Counted(io.RawIOBase):
    """A file that reports how much of it was read."""

    def __init__(self, content: IO[bytes], report: Callable[[int], None]) -> None:
        self.content, self.report, self.size = content, report, 0

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        data = self.content.read(size)
        self.size += len(data)
        self.report(self.size)
        return data


class Program:
    """A running program whose messages are collected, and which is killed if this process removes its files."""

    def __init__(self, argv: List[str]) -> None:
        import threading

        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
        )
        self.stdin, self.stdout, self.words = self.process.stdin, self.process.stdout, ""
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        stream: Any = self.process.stderr
        self.words = stream.read(4000).decode(errors="replace").strip()
        while stream.read(65536):
            pass

    def kill(self) -> None:
        """End the program."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def finish(program: Program) -> int:
    """Read the rest of a program's output; return its exit status."""
    stream: Any = program.stdout
    while stream.read(65536):
        pass
    status = program.process.wait()
    program.reader.join(5)
    return status
