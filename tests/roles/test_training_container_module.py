"""The modules that talk to docker's engine, with a STAND-IN for the engine, under the oldest Python of this machine."""

from __future__ import annotations

import hashlib
import http.server
import json
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.support.interpreters import OLDEST
from tests.support.light_modules import light, run_light

IMAGE = {"Id": "sha256:1", "Config": {"Env": ["PATH=/bin", "A=image"], "Labels": {"of": "image"}, "User": "1000"}}
SETTINGS: dict[str, Any] = {
    "name": "training",
    "image": "training:1",
    "entrypoint": ["/entry"],
    "shm_size": "32g",
    "ulimits": ["memlock:-1:-1", "nofile:10:20"],
    "capabilities": ["IPC_LOCK"],
    "dropped_capabilities": ["MKNOD"],
    "devices": ["/dev/a:/dev/b:rw"],
    "gpus": True,
    "volumes": ["/srv:/srv", "/x:/y:ro"],
    "env": {"A": "two\nlines", "TOKEN": "s3cret"},
    "labels": {"provision.role": "training_container"},
}


class Engine(http.server.BaseHTTPRequestHandler):
    """Knows one image and at most one container, and records the requests that change something."""

    requests: ClassVar[list[str]] = []
    images: ClassVar[dict[str, Any]] = {}
    containers: ClassVar[dict[str, Any]] = {}
    refusal: ClassVar[str] = ""
    driver_status: ClassVar[list[list[str]]] = []

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def address_string(self) -> str:
        """Return a name: a socket of Unix has no address."""
        return "test"

    def answer(self, status: int, document: object = None) -> None:
        """Send an answer."""
        body = b"" if document is None else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        """Describe an image or a container."""
        kind, _, name = self.path[1:].partition("/")
        if kind == "info":
            self.answer(200, {"DriverStatus": self.driver_status})
            return
        if self.path == "/images/json":
            self.answer(200, [{"Id": image["Id"]} for image in self.images.values()])
            return
        document = {"images": self.images, "containers": self.containers}[kind].get(name.removesuffix("/json"))
        self.answer(200 if document else 404, document or {"message": f"no such {kind}"})

    def do_DELETE(self) -> None:
        """Remove a container."""
        self.requests.append(f"DELETE {self.path}")
        del self.containers[self.path.split("/")[2]]
        self.answer(204)

    def do_POST(self) -> None:
        """Create or change a container."""
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        self.requests.append(self.path.partition("?")[0].rpartition("/")[2])
        if self.refusal:
            self.answer(400, {"message": self.refusal})
        elif self.path.startswith("/containers/create"):
            self.containers[self.path.partition("name=")[2]] = created(body, self.images[body["Image"]])
            self.answer(201, {"Id": "c1"})
        else:
            _, _, name, verb = self.path.split("/")
            change(self.containers[name], verb, body)
            self.answer(204)


def created(body: dict[str, Any], image: dict[str, Any]) -> dict[str, Any]:
    """Return a new container as docker describes it."""
    config = image["Config"]
    names = {word.partition("=")[0] for word in body["Env"]}
    variables = [word for word in config["Env"] if word.partition("=")[0] not in names]
    own = {key: body[key] for key in ("Image", "Entrypoint", "Cmd")}
    own |= {"Env": [*body["Env"], *variables], "Labels": {**config["Labels"], **body["Labels"]}}
    own |= {"User": body.get("User", config["User"])}
    host = {**body["HostConfig"], "CapAdd": [f"CAP_{name}" for name in body["HostConfig"]["CapAdd"]]}
    state = {"Running": False, "Paused": False, "Status": "created"}
    return {"Id": "c1", "Image": image["Id"], "Config": own, "HostConfig": host, "State": state}


def change(container: dict[str, Any], verb: str, body: dict[str, Any]) -> None:
    """Carry out a request on a container."""
    container["HostConfig"].update(body)
    state = {"start": {"Running": True}, "stop": {"Running": False}, "unpause": {"Paused": False}, "update": {}}[verb]
    container["State"].update(state)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[type[Engine]]:
    """The stand-in, without containers."""
    Engine.requests, Engine.containers, Engine.refusal = [], {}, ""
    Engine.images = {"training:1": IMAGE, "sha256:1": IMAGE}
    Engine.driver_status = [["Backing Filesystem", "extfs"]]
    with socketserver.ThreadingUnixStreamServer(str(tmp_path / "docker.sock"), Engine) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Engine
        server.shutdown()


def run(folder: Path, module: str, *, check: bool = False, **arguments: Any) -> tuple[int, dict[str, Any]]:
    """Run a module whose docker is the stand-in, and whose other paths are in the folder of the test."""
    document = light.decoded(light.light_program(module, arguments))
    for part in document["parts"]:
        for path in ("/run/docker.sock", "/var/lib/containerd", "/var/lib/provision/origins"):
            part[2] = part[2].replace(f'"{path}"', f'"{folder}/{path.rpartition("/")[2]}"')
    return run_light(OLDEST, light.encoded(document), check=check)


def container(folder: Path, *, check: bool = False, **changes: Any) -> dict[str, Any]:
    """Run the module training_container, which must not fail; return its result."""
    code, answer = run(folder, "training_container", check=check, **{**SETTINGS, **changes})
    assert code == 0, answer
    return answer


def steps(answer: dict[str, Any]) -> list[str]:
    """Return the names of the actions of a result."""
    return [name for action in answer["actions"] for name in action]


def test_a_second_run_changes_nothing(tmp_path: Path, engine: type[Engine]) -> None:
    """Docker lists variables, labels and capabilities in its own form; they are the same settings."""
    first, second = container(tmp_path), container(tmp_path)

    assert (steps(first), first["changed"], engine.requests) == (["created", "started"], True, ["create", "start"])
    assert (steps(second), second["changed"], second["differences"]) == ([], False, [])
    assert first["container"] == {"Id": "c1"}


def test_check_mode_reports_the_steps_and_takes_none(tmp_path: Path, engine: type[Engine]) -> None:
    created_later = container(tmp_path, check=True)
    assert engine.requests == []
    container(tmp_path)
    replaced_later = container(tmp_path, check=True, shm_size="1g")

    assert (steps(created_later), created_later["changed"]) == (["created", "started"], True)
    assert steps(replaced_later) == ["stopped", "removed", "created", "started"]
    assert replaced_later["differences"] == ["shm_size"]
    assert engine.requests == ["create", "start"]


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"shm_size": "128m"}, "shm_size"),
        ({"env": {"A": "other"}}, "env"),
        ({"labels": {}}, "labels"),
        ({"user": "1001"}, "user"),
        ({"volumes": ["/srv:/srv:ro"]}, "volumes"),
        ({"ulimits": ["memlock:1:1"]}, "ulimits"),
        ({"capabilities": []}, "capabilities"),
        ({"dropped_capabilities": []}, "cap_drop"),
        ({"devices": []}, "devices"),
        ({"gpus": False}, "device_requests"),
        ({"privileged": True}, "privileged"),
        ({"entrypoint": ["/other"]}, "entrypoint"),
    ],
)
def test_a_container_with_another_setting_is_replaced(
    tmp_path: Path, engine: type[Engine], changes: dict[str, Any], difference: str
) -> None:
    """The report names the setting, and contains no value of a variable."""
    container(tmp_path)
    answer = container(tmp_path, **changes)

    assert answer["differences"] == [difference]
    assert engine.requests[2:] == ["stop", "DELETE /containers/training", "create", "start"]
    assert "s3cret" not in json.dumps(answer)
    assert steps(container(tmp_path, **changes)) == []


def test_a_container_of_another_image_is_replaced(tmp_path: Path, engine: type[Engine]) -> None:
    """The name of the image may be the same: a newer image was loaded."""
    container(tmp_path)
    engine.images = {"training:1": {**IMAGE, "Id": "sha256:2"}}

    assert container(tmp_path)["differences"] == ["image"]
    assert container(tmp_path)["changed"] is False


def test_a_container_that_docker_set_up_differently_is_repaired_in_place(tmp_path: Path, engine: type[Engine]) -> None:
    """A stopped or paused container is continued, and its restart policy restored, without replacing it."""
    container(tmp_path)
    for change_, expected in (
        (lambda one: one["State"].update(Running=False), ["started"]),
        (lambda one: one["State"].update(Paused=True), ["set_paused"]),
        (lambda one: one["HostConfig"].update(RestartPolicy={"Name": "no"}), ["updated"]),
    ):
        change_(engine.containers["training"])
        assert steps(container(tmp_path)) == expected
        assert steps(container(tmp_path)) == []


def test_a_refusal_of_docker_is_a_failure_with_its_message(tmp_path: Path, engine: type[Engine]) -> None:
    engine.refusal = "unable to find user no-such-one"
    code, answer = run(tmp_path, "training_container", **SETTINGS)

    assert (code, answer["msg"]) == (1, "Error creating the container: unable to find user no-such-one")


def test_docker_that_does_not_answer_is_named(tmp_path: Path) -> None:
    code, answer = run(tmp_path, "training_container", **SETTINGS)

    assert (code, answer["msg"]) == (1, f"{tmp_path}/docker.sock: No such file or directory")


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program `docker` that records its arguments; it refuses images whose name begins with missing."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/docker"
    text = 'case "$*" in *missing*) echo "manifest unknown" >&2; exit 1;; esac'
    program.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/calls\n{text}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return tmp_path / "calls"


@pytest.mark.usefixtures("engine", "client")
@pytest.mark.parametrize(("name", "count"), [("training:1", 1), ("other:1", 0)])
def test_an_image_is_described(tmp_path: Path, name: str, count: int) -> None:
    code, answer = run(tmp_path, "training_image", action="inspect", name=name)

    assert (code, len(answer["images"]), answer["changed"]) == (0, count, False)
    assert answer["containerd"] is False


def stored(folder: Path, document: object) -> str:
    """Put a document into the content store of containerd; return its digest."""
    data = json.dumps(document).encode()
    name = hashlib.sha256(data).hexdigest()
    blobs = folder / "containerd/io.containerd.content.v1.content/blobs/sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    (blobs / name).write_bytes(data)
    return f"sha256:{name}"


@pytest.mark.usefixtures("client")
def test_an_image_in_containerd_is_identified_by_its_configuration_too(tmp_path: Path, engine: type[Engine]) -> None:
    """An archive and Docker's own store name images by it; containerd's store names them by their manifest."""
    config = "sha256:" + "c" * 64
    identity = stored(tmp_path, {"config": {"digest": config}})
    engine.images = {"training:1": {"Id": identity, "RepoDigests": [f"training@{identity}"]}}
    engine.images |= {identity: engine.images["training:1"]}
    engine.driver_status = [["driver-type", "io.containerd.snapshotter.v1"]]

    _, described = run(tmp_path, "training_image", action="inspect", name="training:1")
    _, match = run(tmp_path, "training_image", action="find", identities=[config, "sha256:" + "d" * 64])
    _, other = run(tmp_path, "training_image", action="find", identities=["sha256:" + "e" * 64])

    assert (described["identities"], described["containerd"]) == ([identity, config], True)
    assert [image["Id"] for image in match["images"]] == [identity]
    assert other["images"] == []


@pytest.mark.usefixtures("client")
def test_an_image_in_dockers_own_store_is_identified_by_its_id(tmp_path: Path, engine: type[Engine]) -> None:
    identity = "sha256:" + "a" * 64
    engine.images = {"other:1": {"Id": identity, "RepoDigests": None}}
    engine.images |= {identity: engine.images["other:1"]}

    _, match = run(tmp_path, "training_image", action="find", identities=[identity])

    assert ([image["Id"] for image in match["images"]], match["identities"]) == ([identity], [identity])


@pytest.mark.usefixtures("engine")
def test_a_pull_reports_whether_the_image_changed(tmp_path: Path, client: Path) -> None:
    """The registry is always asked, with docker's own logins."""
    pulled = run(tmp_path, "training_image", action="pull", name="training:1")
    refused = run(tmp_path, "training_image", action="pull", name="missing:1")

    assert (pulled[0], pulled[1]["changed"], pulled[1]["image"]["Id"]) == (0, False, "sha256:1")
    assert (refused[0], refused[1]["msg"], "image" in refused[1]) == (1, "manifest unknown", False)
    assert client.read_text().splitlines() == ["pull --quiet training:1", "pull --quiet missing:1"]


@pytest.mark.usefixtures("engine")
def test_an_image_gets_a_second_name_once(tmp_path: Path, client: Path) -> None:
    there = run(tmp_path, "training_image", action="tag", name="sha256:1", tag="training:1")
    new = run(tmp_path, "training_image", action="tag", name="training:1", tag="other:1")
    planned = run(tmp_path, "training_image", check=True, action="tag", name="training:1", tag="other:1")

    assert [answer["changed"] for _, answer in (there, new, planned)] == [False, True, True]
    assert client.read_text().splitlines() == ["tag training:1 other:1"]
    [brought] = (tmp_path / "origins/images").glob("*.ours")
    assert json.loads(brought.read_text()) == {"ids": ["sha256:1"]}


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("action", ["inspect", "find", "pull", "tag"])
def test_an_engine_that_does_not_answer_fails_all_actions(tmp_path: Path, action: str) -> None:
    code, answer = run(tmp_path, "training_image", action=action, name="training:1", tag="x:1")

    assert code == 1
    assert "No such file or directory" in answer["msg"]
