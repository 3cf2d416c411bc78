"""The Docker engine and the training container: the probe's program, run on a /proc of the test."""

from __future__ import annotations

import json
import os

import pytest

from provision.facts import RawOutput, Unknown
from provision.facts.container import Container, ContainerFact, DeletedMount, Process
from provision.facts.docker import DockerInfo, DockerInfoFact, Image, ImageFact
from provision.facts.managed import ManagedFact
from tests.unit.facts.conftest import Node

PID = 7
CONTAINER = {
    "Id": "c1", "Image": "sha256:aa", "RestartCount": 2, "State": {"Status": "running", "Pid": PID, "ExitCode": 0},
    "Config": {"Image": "r/t:1", "Labels": {"a": "b"}, "Env": ["PASSWORD=hunter2"]},
    "HostConfig": {"Privileged": False, "NetworkMode": "host", "ShmSize": 64, "Binds": None},
}  # fmt: skip
INFO = {"ServerVersion": "28.1", "Driver": "overlay2", "HttpProxy": "http://u:hunter2@p", "Runtimes": {"runc": {}}}


@pytest.fixture
def machine(node: Node, engine: dict[str, object]) -> Node:
    """Return a node whose engine runs, with the container's first process in the test's /proc."""
    node.program("docker", "exit 1")
    for pid, name, space in ((3, "dockerd", "pid:[1]"), (PID, "docker-init", "pid:[2]"), (9, "python3", "pid:[2]")):
        process(node, pid, name, space)
    (node.root / "proc/self/ns").mkdir(parents=True)
    (node.root / "proc/self/ns/pid").symlink_to("pid:[1]")
    engine["/info"] = INFO
    engine["/containers/train/json"] = CONTAINER
    return node


def process(node: Node, pid: int, name: str, space: str) -> None:
    """Add a process to the test's /proc."""
    folder = node.root / "proc" / str(pid)
    (folder / "ns").mkdir(parents=True)
    (folder / "ns/pid").symlink_to(space)
    (folder / "comm").write_text(f"{name}\n")
    (folder / "stat").write_text(f"{pid} ({name}) S 1 {pid} {pid} 0 -1 0 0 0\n")


def look(node: Node, more: str = "", images: str = "r/t:1") -> RawOutput:
    """Run the program with the test's /proc and engine, and a limit of half a second; `more` is a sed program."""
    change = f's,^PROC = .*,PROC = "{node.root}/proc",;s,^DOCKER_SOCKET = .*,DOCKER_SOCKET = "{node.root}/docker.sock",'
    return node.run(
        f"{change};s/^ENGINE_SECONDS = .*/ENGINE_SECONDS = 0.5/;{more}", PROBE_CONTAINER="train", PROBE_IMAGES=images
    )


def test_container_configuration_and_state_are_read(machine: Node) -> None:
    (machine.root / "proc/7/limits").write_text("Max locked memory         unlimited  unlimited  bytes\n")
    for device in ("nvidia0", "infiniband/uverbs1", "null"):
        path = machine.root / "proc/7/root/dev" / device
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    result = ContainerFact().parse(look(machine))

    assert isinstance(result, Container)
    assert (result.status, result.image_id, result.labels, result.restarts) == ("running", "sha256:aa", {"a": "b"}, 2)
    assert result.limits == {"Max locked memory": None}
    assert result.devices == ("infiniband/uverbs1", "nvidia0")
    assert result.processes == (Process(7, "docker-init"), Process(9, "python3"))


def test_the_engine_is_queried_once_for_managed_and_requested_objects(machine: Node, engine: dict[str, object]) -> None:
    """A receipt and the configuration name the same image and container."""
    engine["/images/r/t:1/json"] = {"Id": "sha256:aa"}
    machine.program("systemctl", "echo LoadState=loaded; echo ActiveState=active")
    machine.receipt("some", images={"r/t:1": "sha256:aa"}, containers={"train": {}})
    raw = look(machine)
    managed = ManagedFact().parse(raw)

    assert sorted(machine.asked) == ["/containers/train/json", "/images/r/t:1/json", "/info"]
    assert not isinstance(managed, Unknown)
    assert managed.observed["some"]["images"] == {"r/t:1": "sha256:aa"}
    assert managed.observed["some"]["containers"]["train"]["id"] == "c1"
    assert ImageFact().parse(raw) == Image("sha256:aa", (), (), config_digest="sha256:aa")


def test_no_password_of_engine_or_container_is_printed(machine: Node) -> None:
    said = look(machine)

    assert isinstance(DockerInfoFact().parse(said), DockerInfo)
    assert "hunter2" not in said.stdout + said.stderr


def test_mounts_of_deleted_folders_are_reported(machine: Node, engine: dict[str, object]) -> None:
    """Bind mounts and the hosts file count; docker's own mounts and files replaced by editors do not."""
    binds = [
        "/srv/a:/a/:ro",
        "/srv/b c:/b c",
        "/srv/one:/a 1",
        "/srv/f:/f:ro",
        "/srv/there:/there",
        "/var/hosts:/etc/hosts:ro",
        "odd",
    ]
    engine["/containers/train/json"] = {**CONTAINER, "HostConfig": {"Binds": binds}}
    rows = [("/srv/a//deleted", "/a"), ("/srv/b\\040c//deleted", "/b\\040c"), ("/srv/f//deleted", "/f"),
            ("/srv/one//deleted", "/a\\0401"), ("/srv/there", "/there"),
            ("/var/hosts//deleted", "/etc/hosts"), ("/x//deleted", "/docker")]  # fmt: skip
    first = machine.root / "proc/7"
    for folder in ("root/a", "root/b c", "root/a 1", "root/there", "root/docker", "root/etc"):
        (first / folder).mkdir(parents=True)
    for file in ("root/f", "root/etc/hosts"):
        (first / file).touch()
    table = [f"{number} 1 8:1 {root} {target} ro - ext4 /dev/sda1 rw" for number, (root, target) in enumerate(rows)]
    (first / "mountinfo").write_text("\n".join(table) + "\n")

    result = ContainerFact().parse(look(machine))

    assert isinstance(result, Container)
    assert result.deleted == (
        DeletedMount("/srv/a", "/a"), DeletedMount("/srv/b c", "/b c"), DeletedMount("/srv/one", "/a 1"),
        DeletedMount("/var/hosts", "/etc/hosts"),
    )  # fmt: skip


def test_the_first_existing_reference_is_the_image(machine: Node, engine: dict[str, object]) -> None:
    engine["/images/r/t:1/json"] = {"Id": "sha256:aa", "RepoDigests": None, "RepoTags": ["r/t:1"]}

    image = ImageFact().parse(look(machine, images="r/t@sha256:ff r/t:1"))
    assert image == Image("sha256:aa", (), ("r/t:1",), config_digest="sha256:aa")
    assert ImageFact().parse(look(machine, images="r/t@sha256:ff")) is None


def test_a_stopped_engine_is_not_queried(machine: Node, engine: dict[str, object]) -> None:
    """Opening its socket would start it. An engine inside a container is not the node's."""
    (machine.root / "proc/3/ns/pid").unlink()
    (machine.root / "proc/3/ns/pid").symlink_to("pid:[5]")
    engine["/info"] = b""
    said = look(machine)

    assert DockerInfoFact().parse(said) == Unknown("docker info failed: the engine does not run")
    assert isinstance(ContainerFact().parse(said), Unknown)


def test_a_hanging_engine_is_reported_and_queried_once(machine: Node, engine: dict[str, object]) -> None:
    engine["/info"] = b""
    said = look(machine)

    assert DockerInfoFact().parse(said) == Unknown("hung: docker info (no end within 0.5 s)")
    assert ImageFact().parse(said) == Unknown("hung: docker image inspect (no end within 0.5 s)")
    assert json.loads(said.stdout)["sealed"] == {}


def test_a_node_without_docker_has_no_container(machine: Node) -> None:
    (machine.programs / "docker").unlink()
    said = machine.run(f's,^PROC = .*,PROC = "{machine.root}/proc",;s,os.get_exec_path(),["/nowhere"],')

    assert DockerInfoFact().parse(said) == Unknown("docker info failed: there is no docker command")
    assert ContainerFact().parse(said) is None
    assert ImageFact().parse(said) is None


def test_a_deeply_nested_answer_is_unknown() -> None:
    deep = '{"sealed": {}, "observed": {"a": {"files": ' + "[" * 500 + "]" * 500 + '}}, "jobs": [], "hung": []}'

    assert isinstance(ManagedFact().parse(RawOutput(deep, 0)), Unknown)
    assert isinstance(ContainerFact().parse(RawOutput("[" * 100000, 0)), Unknown)


def running_containers(machine: Node) -> int:
    """Probe with a cache, and return the number of running containers."""
    cache = machine.root / "cache/engine"
    raw = look(machine, f'/^def managed_and_engine/s|cache: str = ""|cache="{cache}"|')
    result = DockerInfoFact().parse(raw)
    assert isinstance(result, DockerInfo), raw
    return result.containers_running


def event(action: str) -> str:
    """Return one event of the engine."""
    return json.dumps({"Type": "container", "Action": action, "time": 1})


@pytest.mark.skipif(os.geteuid() != 0, reason="the cache is used only if root alone can write it")
def test_engine_info_is_cached_until_an_event_may_change_it(machine: Node, engine: dict[str, object], tmp_path) -> None:
    """The cache is invalid after any event that may change the info, and for a new engine process."""
    (machine.root / "proc/3/stat").write_text("3 (dockerd) S 1 3 3 0 -1" + " 0" * 13 + " 77\n")
    counts = []
    for running, events in enumerate(([], [], ["exec_die"], ["exec_start", "reload"], ["die"], ["exec_die"] * 60)):
        engine["/info"] = {**INFO, "ContainersRunning": running}
        engine["/events"] = "\n".join(map(event, events))
        counts.append(running_containers(machine))
    (machine.root / "proc/3/stat").write_text("3 (dockerd) S 1 3 3 0 -1" + " 0" * 13 + " 78\n")
    engine["/events"], engine["/info"] = "", {**INFO, "ContainersRunning": 9}

    assert counts == [0, 0, 0, 3, 4, 5]
    assert running_containers(machine) == 9
    assert (tmp_path / "cache").stat().st_mode & 0o077 == 0
