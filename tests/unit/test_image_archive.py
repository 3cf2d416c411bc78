"""An image's files on the node: out of `docker save`, and into `docker load`."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provision import node_archive
from provision.node.image_peers import archive
from provision.node.image_peers import main as peers
from provision.node.image_peers.swarm import FOLDER
from tests.support.interpreters import NODE_PYTHON

LAYERS = (b"base" * 1000, b"top" * 1000)
DIFFS = ["sha256:" + hashlib.sha256(layer).hexdigest() for layer in LAYERS]
CONFIG = json.dumps({"rootfs": {"type": "layers", "diff_ids": DIFFS}}).encode()


def hashed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def packed(files: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return stream.getvalue()


def old_archive() -> bytes:
    """As Docker 20.10 writes it."""
    manifest = [{"Config": f"{hashed(CONFIG)}.json", "RepoTags": ["t:1"], "Layers": ["a/layer.tar", "b/layer.tar"]}]
    files = {"a/layer.tar": LAYERS[0], "a/json": b"{}", "b/layer.tar": LAYERS[1], f"{hashed(CONFIG)}.json": CONFIG}
    return packed({**files, "manifest.json": json.dumps(manifest).encode()})


def layout_archive(*others: dict[str, Any]) -> bytes:
    """As Docker 25 and later write it."""
    blobs = [f"blobs/sha256/{hashed(data)}" for data in (*LAYERS, CONFIG, b"{}")]
    manifest = [{"Config": blobs[2], "RepoTags": ["t:1"], "Layers": blobs[:2]}]
    files = dict(zip(blobs, (*LAYERS, CONFIG, b"{}"), strict=True))
    index = json.dumps({"manifests": [entry("docker.io/library/t:1"), *others]}).encode()
    return packed({**files, "index.json": index, "oci-layout": b"{}", "manifest.json": json.dumps(manifest).encode()})


def entry(name: str, data: bytes = b"{}") -> dict[str, Any]:
    """A manifest in the table of a layout."""
    annotations = {archive.NAME: name, archive.TAG: name.rpartition(":")[2]}
    digest = f"sha256:{hashed(data)}"
    return {
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": digest,
        "size": 2,
        "annotations": annotations,
    }


class Docker:
    """Programs that write `saved`, and store what they read."""

    def __init__(self, folder: Path, saved: bytes) -> None:
        self.saved, self.loaded = folder / "saved.tar", folder / "loaded.tar"
        self.saved.write_bytes(saved)

    def start(self, argv: list[str]) -> archive.Program:
        words = {"save": ["cat", str(self.saved)], "load": ["sh", "-c", f"cat >{self.loaded}"]}
        return archive.Program(words[argv[1]])

    def contents(self) -> dict[str, bytes]:
        with tarfile.open(self.loaded) as tar:
            return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def saved(folder: Path, docker: Docker) -> archive.Description:
    (folder / FOLDER).mkdir()
    return archive.save("t:1", str(folder), docker.start, lambda _: None)


@pytest.mark.parametrize("content", [old_archive(), layout_archive()])
def test_files_are_named_by_the_hash_of_their_contents(tmp_path: Path, content: bytes) -> None:
    """The same layers give the same files, whatever Docker names them."""
    description = saved(tmp_path, Docker(tmp_path, content))

    assert (description.config, description.layers) == (hashed(CONFIG), [hashed(layer) for layer in LAYERS])
    assert {path.name for path in (tmp_path / FOLDER).iterdir()} == set(description.blobs)
    assert archive.configuration(str(tmp_path), description)["rootfs"]["diff_ids"] == DIFFS


def test_a_layer_that_is_a_link_is_followed(tmp_path: Path) -> None:
    """Docker 20.10 writes a layer that occurs twice once."""
    manifest = [{"Config": "c.json", "RepoTags": None, "Layers": ["a/layer.tar", "b/layer.tar"]}]
    config = json.dumps({"rootfs": {"diff_ids": [DIFFS[0], DIFFS[0]]}}).encode()
    files = {"a/layer.tar": LAYERS[0], "c.json": config, "manifest.json": json.dumps(manifest).encode()}
    description = saved(tmp_path, Docker(tmp_path, packed(files, {"b/layer.tar": "../a/layer.tar"})))

    assert description.layers == [hashed(LAYERS[0])] * 2


def test_layers_that_the_node_has_are_not_loaded(tmp_path: Path) -> None:
    """Docker finds them by their names in the configuration."""
    docker = Docker(tmp_path, old_archive())
    description = saved(tmp_path, docker)
    present = [description.config, description.layers[1]]
    archive.load(str(tmp_path), description, present, "t:2", docker.start, layout=False, report=lambda _: None)

    contents = docker.contents()
    assert set(contents) == {"manifest.json", *present}
    assert json.loads(contents["manifest.json"])[0]["RepoTags"] == ["t:2"]


def test_the_store_of_containerd_gets_an_oci_layout(tmp_path: Path) -> None:
    """So the image has the digest of the registry there, too."""
    docker = Docker(tmp_path, layout_archive())
    description = saved(tmp_path, docker)
    archive.load(str(tmp_path), description, description.blobs, "t:1", docker.start, layout=True, report=lambda _: None)

    contents = docker.contents()
    assert json.loads(contents["index.json"])["manifests"] == [entry("docker.io/library/t:1")]
    assert {f"blobs/sha256/{name}" for name in description.blobs} < set(contents)


def test_the_table_of_a_sender_gives_no_other_image_a_name(tmp_path: Path) -> None:
    """Docker with containerd's store would load each image of the table under the name that it has there."""
    others = [entry("registry.example.com/base:prod"), entry("docker.io/library/other:1", CONFIG)]
    docker = Docker(tmp_path, layout_archive(*others))
    description = saved(tmp_path, docker)
    archive.load(str(tmp_path), description, description.blobs, "t:1", docker.start, layout=True, report=lambda _: None)

    assert json.loads(docker.contents()["index.json"])["manifests"] == [entry("docker.io/library/t:1")]


@pytest.mark.parametrize(
    "manifests",
    [
        [],
        [{**entry("docker.io/library/t:1"), "digest": "sha256:" + "f" * 64}],
        [{**entry("docker.io/library/t:1"), "size": "2"}],
        [entry("docker.io/library/x:1"), entry("docker.io/library/y:1")],
    ],
)
def test_a_table_without_the_image_is_refused(tmp_path: Path, manifests: list[Any]) -> None:
    """Nothing is loaded."""
    docker = Docker(tmp_path, layout_archive())
    description = saved(tmp_path, docker)._replace(table=json.dumps({"manifests": manifests}))

    with pytest.raises((ValueError, TypeError), match=r"table of the image|unpack"):
        archive.tables_of(description, "t:1", layout=True)


@pytest.mark.parametrize(
    ("tag", "full"),
    [
        ("t:1", "docker.io/library/t:1"),
        ("team/t:1", "docker.io/team/t:1"),
        ("docker.io/t:1", "docker.io/library/t:1"),
        ("registry.example.com:5000/t:1", "registry.example.com:5000/t:1"),
        ("localhost/t:1", "localhost/t:1"),
    ],
)
def test_containerd_gets_the_full_name_of_an_image(tag: str, full: str) -> None:
    """As Docker itself completes it."""
    assert archive.full_name(tag) == full


def test_a_changed_configuration_is_refused(tmp_path: Path) -> None:
    """It names the layers, so Docker would verify the wrong ones."""
    description = saved(tmp_path, Docker(tmp_path, old_archive()))
    (tmp_path / FOLDER / description.config).write_bytes(CONFIG + b" ")

    with pytest.raises(ValueError, match="was changed"):
        archive.configuration(str(tmp_path), description)


def test_a_failed_docker_save_is_an_error_with_its_words(tmp_path: Path) -> None:
    """Not an image without layers."""
    (tmp_path / FOLDER).mkdir()

    def start(_: list[str]) -> archive.Program:
        return archive.Program(["sh", "-c", "echo 'no such image' >&2; exit 1"])

    with pytest.raises(OSError, match="no such image"):
        archive.save("t:1", str(tmp_path), start, lambda _: None)


def test_chain_ids_are_those_of_docker() -> None:
    """The chain of a layer depends on all layers below it; the values are from a real engine."""
    first = "sha256:" + "a" * 64
    second = "sha256:" + "b" * 64
    upper = "sha256:" + hashlib.sha256(f"{first} {second}".encode()).hexdigest()

    assert archive.chains([first, second]) == [first, upper]


@pytest.mark.parametrize(
    "change",
    [
        {"config": "../../etc/passwd"},
        {"layers": ["a" * 64]},
        {"blobs": [hashed(CONFIG), *map(hashed, LAYERS), "../../etc/passwd"]},
        {"blobs": []},
        {"layers": [hashed(LAYERS[0])] * 2000},
        {"table": 1},
        {"layers": [1]},
    ],
)
def test_a_description_with_other_files_is_refused(change: dict[str, Any]) -> None:
    """Names become paths on the node."""
    names = [hashed(layer) for layer in LAYERS]
    message = {"config": hashed(CONFIG), "layers": names, "blobs": [hashed(CONFIG), *names], "table": ""}
    assert archive.described(message).layers == names

    with pytest.raises(ValueError, match="image"):
        archive.described({**message, **change})


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command line of the program as nodes run it, with a folder of the test and without Docker."""
    packed_programs = tmp_path / "programs.pyz"
    packed_programs.write_bytes(node_archive.build())
    monkeypatch.setenv("PROVISION_IMAGE_FOLDER", str(tmp_path / "work"))
    monkeypatch.setenv("PROVISION_DOCKER_SOCKET", str(tmp_path / "absent"))
    return [NODE_PYTHON, "-I", "-S", str(packed_programs), "image-peers"]


@pytest.mark.parametrize("line", [b"", b"{}\n", b"no json\n", b'{"do": "send"}\n', b'{"do": "receive", "image": 1}\n'])
def test_an_invalid_request_is_answered_and_leaves_nothing(tmp_path: Path, program: list[str], line: bytes) -> None:
    """It is an answer, not a traceback."""
    done = subprocess.run(program, input=line, capture_output=True, check=False, timeout=60)

    assert done.returncode == 2
    assert json.loads(done.stdout)["code"] == "invalid"
    assert done.stderr == b""
    assert not (tmp_path / "work").exists()


def test_a_state_without_docker_and_library_is_a_state(program: list[str]) -> None:
    """The controller decides what follows from it."""
    done = subprocess.run(
        program, input=b'{"do": "inspect", "image": "t:1"}\n', capture_output=True, check=False, timeout=60
    )

    state = json.loads(done.stdout)
    assert (state["event"], state["id"], bool(state["docker"])) == ("state", "", True)


REQUEST = {"do": "send", "image": "t", "tag": "t", "address": "127.0.0.1", "port": 1, "allowed": [], "rate": 0}
HOLD = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], 0), 2); print(flush=True); input()"


def failure(program: list[str]) -> dict[str, Any]:
    """Return the answer of a program that cannot send, because Docker does not answer; the controller stays."""
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(REQUEST).encode() + b"\n")
        process.stdin.flush()
        answers = [json.loads(line) for line in process.stdout]
    assert process.returncode == 1
    (last,) = [one for one in answers if one["event"] == "failed"]
    return dict(last)


def test_files_of_killed_programs_are_removed(tmp_path: Path, program: list[str]) -> None:
    """And those of running ones stay, as do files of others."""
    work = tmp_path / "work"
    for name in ("copy-killed", "copy-running", "other"):
        (work / name / FOLDER).mkdir(parents=True)
    argv = [sys.executable, "-c", HOLD, str(work / "copy-running")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        holder.stdout.readline()
        answer = failure(program)
        left = sorted(path.name for path in work.iterdir())
        holder.communicate(b"\n")

    assert answer["code"] == "failed"
    assert left == ["copy-running", "other"]


def test_the_program_ends_with_its_input(tmp_path: Path, program: list[str]) -> None:
    """A controller that is gone leaves neither a process nor a file."""
    done = subprocess.run(
        program, input=json.dumps(REQUEST).encode() + b"\n", capture_output=True, check=False, timeout=60
    )

    assert done.returncode == 1
    assert not list(tmp_path.glob("work/*"))


def test_the_folder_of_a_new_copy_is_not_removed_by_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two operators may copy images at the same time; each copy removes what ended ones have left."""
    monkeypatch.setattr(peers, "WORK", str(tmp_path))
    request = {"do": "send", "image": "t:1", "tag": "t:1", "address": "10.0.0.1", "port": 1, "allowed": [], "rate": 0}
    first, second = (peers.Copy(request, peers.Requests(0)) for _ in range(2))
    other = threading.Thread(target=second.make_folder, daemon=True)
    real = tempfile.mkdtemp

    def mkdtemp(**words: str) -> str:
        path = real(**words)
        if threading.current_thread() is not other:
            other.start()
            other.join(0.5)
        return path

    monkeypatch.setattr(peers, "tempfile", SimpleNamespace(mkdtemp=mkdtemp))
    first.make_folder()
    other.join()

    assert {Path(copy.folder, FOLDER).is_dir() for copy in (first, second)} == {True}
