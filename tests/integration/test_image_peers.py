"""`image pull --peers` on four container nodes: one copy from the registry, the others from node to node."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Done, Provision, eventually
from tests.support.engine import engine_host
from tests.support.random_images import (
    USER,
    CountingRegistry,
    RandomImage,
    counting_registry,
    make,
    random_layer,
    save,
    upload,
)
from tests.support.watch import Watch

pytestmark = pytest.mark.slow

LAB = os.environ.get("IMAGE_PEERS_LAB") or f"peers{os.getpid()}"
NODES = tuple(f"{LAB}-{number}" for number in range(1, 5))
FIRST, SECOND, THIRD, LAST = NODES
LAYER_MB = 20
APT = "DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300"
INSTALL = f"{APT} install -y --no-install-recommends python3-libtorrent >/dev/null 2>&1"
REMOVE = f"{APT} purge -y python3-libtorrent >/dev/null 2>&1"
WORK = "/var/lib/provision/images"
REMAINS = f"ls {WORK}; pgrep -f '[i]mage-peers' || true"
DOWNLOADING = f"ls -d {WORK}/copy-*/blobs/* 2>/dev/null | head -1"


@dataclass
class Site:
    """The lab's nodes, and a registry with a password."""

    provision: Provision
    host: str
    registry: CountingRegistry
    services: Path
    port: int
    folder: Path
    base: list[bytes] = field(default_factory=lambda: [random_layer(LAYER_MB) for _ in range(2)])

    def on(self, node: str, command: str, *, check: bool = True) -> str:
        """Return what a shell command prints on a node, by no network."""
        argv = ["docker", "-H", self.host, "exec", f"provision-{LAB}-{node}", "bash", "-c", command]
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False, timeout=900)
        assert done.returncode == 0 or not check, f"{node}: {command}: {done.stderr}"
        return done.stdout

    def on_all(self, command: str) -> dict[str, str]:
        """Return what a shell command prints on each node."""
        with ThreadPoolExecutor() as pool:
            return dict(zip(NODES, pool.map(lambda node: self.on(node, command), NODES), strict=True))

    def push(self, tag: str) -> tuple[str, RandomImage]:
        """Push an image with a new layer on the common ones; return its name."""
        image = make(self.folder / tag, [*self.base, random_layer(LAYER_MB)])
        upload(image, "team/train", tag, self.services, self.port)
        return f"{self.registry.server}/team/train:{tag}", image

    def argv(self, name: str, *words: str) -> list[str]:
        """The words of a copy."""
        return ["image", "pull", name, "--peers", "--lab", LAB, "--json", *words]

    def copy(self, name: str, *words: str, code: int = 0) -> dict[str, Any]:
        """Copy an image; return the document."""
        done = self.provision(*self.argv(name, *words), timeout=600)
        assert done.code == code, str(done)
        document: dict[str, Any] = done.document
        return document

    def ids(self, name: str, nodes: tuple[str, ...] = NODES) -> set[str]:
        """Return the IDs of an image on nodes."""
        inspect = f"docker image inspect --format '{{{{.Id}}}}' {name} 2>/dev/null || true"
        return {self.on(node, inspect).strip() for node in nodes}

    def forget(self) -> None:
        """Remove all images from the nodes."""
        self.on_all("docker image ls -q | sort -u | xargs -r docker image rm -f >/dev/null 2>&1; true")

    def start(self, name: str, *words: str) -> subprocess.Popen[str]:
        """Start a copy, and wait until nodes receive it."""
        running = self.provision.start(*self.argv(name, *words))
        eventually(lambda: self.on(LAST, DOWNLOADING), seconds=120, what="the last node receives the image")
        return running

    def nothing_remains(self) -> bool:
        """Return whether no node has a file or a process of a copy."""
        return set(self.on_all(REMAINS).values()) == {""}


@pytest.fixture(scope="module")
def site(provision: Provision, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Four nodes of Debian 12 with Docker and libtorrent; the registry's password is stored on the controller."""
    own = "IMAGE_PEERS_LAB" not in os.environ
    if not own:  # a lab that is there already, for work on these tests
        provision = Provision(provision.folder, XDG_STATE_HOME=os.environ["IMAGE_PEERS_STATE"])
    try:
        if own:
            provision.ok("lab", "up", LAB, "--driver", "container", "--distro", "debian12", "--nodes", str(len(NODES)))
            provision.ok("apply", "--lab", LAB, "--yes", "--only", "docker_engine")
        lab = Path(provision.environment["XDG_STATE_HOME"]) / "provision/labs" / LAB
        services = lab / "services"
        known = next(name for name in services.glob("registry-*.yml") if "127.0.0.1" not in name.name)
        settings = json.loads(known.read_text())
        address, _, port = settings["http"]["addr"].rpartition(":")
        folder = tmp_path_factory.mktemp("images")
        with counting_registry(folder, services, address) as registry:
            site = Site(provision, engine_host(lab), registry, services, int(port), folder)
            certificates = f"/etc/docker/certs.d/{address}:{port}"
            site.on_all(f"{INSTALL}; mkdir -p {WORK}; cp -rn {certificates} /etc/docker/certs.d/{registry.server}")
            login = ("secret", "add", "registry", "--server", registry.server, "--username", USER)
            stored = provision(*login, stdin=f"{registry.password}\n")
            assert stored.code == 0, str(stored)
            site.forget()
            yield site
            provision.ok("secret", "rm", "registry", "--server", registry.server)
    finally:
        down = provision("lab", "down", LAB) if own else Done(0, "", "")
    assert down.code == 0, str(down)


def test_the_registry_sends_one_copy_and_only_one_node_gets_the_credential(site: Site) -> None:
    """All nodes have the image; the second call transfers nothing; a changed layer is transferred alone."""
    name, image = site.push("first")
    places = {node: site.on(node, "hostname -I").split() for node in NODES}
    with Watch([site.registry.password], 0.02) as watch:
        first = site.copy(name)

    sources = {node["name"]: node["source"] for node in first["nodes"]}
    assert sources == {FIRST: "registry", SECOND: "peers", THIRD: "peers", LAST: "peers"}
    assert (first["same"], first["sender"]) == (True, FIRST)
    assert site.ids(name) == {image.id}
    assert image.size <= site.registry.bytes_sent() <= 1.1 * image.size
    assert site.registry.clients() <= set(places[FIRST]), "only the sender logged in"
    assert watch.leaks == set(), "the password is in no argument and no environment"
    forms = site.registry.password, base64.b64encode(f"{USER}:{site.registry.password}".encode()).decode()
    search = f"grep -rlaFs -e {forms[0]} -e {forms[1]} /root /run /tmp /etc /var/lib/provision || true"
    assert set(site.on_all(search).values()) == {""}
    assert site.nothing_remains()

    before = site.registry.bytes_sent()
    second = site.copy(name)
    assert {node["name"]: node["source"] for node in second["nodes"]} == {
        FIRST: "registry", SECOND: "present", THIRD: "present", LAST: "present",
    }  # fmt: skip
    assert [node["received_bytes"] for node in second["nodes"]] == [0, 0, 0, 0]
    assert site.registry.bytes_sent() - before < 100_000

    before = site.registry.bytes_sent()
    other_name, other = site.push("second")
    third = site.copy(other_name)
    assert site.ids(other_name) == {other.id}
    received = [node["received_bytes"] for node in third["nodes"] if node["name"] != FIRST]
    assert all(LAYER_MB * 1e6 <= size <= 1.2 * LAYER_MB * 1e6 for size in received), received
    assert site.registry.bytes_sent() - before <= 1.1 * LAYER_MB * 1e6


def test_a_node_that_dies_in_the_middle_delays_no_other(site: Site) -> None:
    """The others have the image, and the command names the node."""
    site.forget()
    name, image = site.push("death")
    running = site.start(name, "--rate", "5")
    cut = "ip route show default >/run/default-route; ip link set eth0 down; ip link set eth1 down"
    try:
        site.on(LAST, cut)
        others = (FIRST, SECOND, THIRD)
        eventually(lambda: site.ids(name, others) == {image.id}, seconds=120, what="the other nodes have the image")
        out, _ = running.communicate(timeout=200)
    finally:
        site.on(
            LAST, "ip link set eth0 up; ip link set eth1 up; ip route replace $(cat /run/default-route)", check=False
        )
    document = json.loads(out[out.index("{") : out.rindex("}") + 1])
    failed = {node["name"]: bool(node["error"]) for node in document["nodes"]}
    assert failed == {FIRST: False, SECOND: False, THIRD: False, LAST: True}
    assert running.returncode == 1
    eventually(site.nothing_remains, seconds=150, what="the node that was cut off has removed its files")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_remains_on_nodes_when_the_command_ends_early(site: Site, number: signal.Signals) -> None:
    """Ctrl-C, or a controller that is killed: no process and no file."""
    site.forget()
    name, _ = site.push(f"end{number.value}")
    running = site.start(name, "--rate", "2")
    running.send_signal(number)
    running.communicate(timeout=60)
    assert running.returncode == (130 if number == signal.SIGINT else -number)
    eventually(site.nothing_remains, seconds=30, what="the nodes have removed all files")


def test_a_node_without_libtorrent_pulls_with_a_reason(site: Site) -> None:
    """It gets the image, and the report names the package."""
    site.forget()
    site.on(THIRD, REMOVE)
    try:
        name, image = site.push("plain")
        document = site.copy(name)
    finally:
        site.on(THIRD, INSTALL)
    (plain,) = [node for node in document["nodes"] if node["name"] == THIRD]
    assert (plain["source"], "python3-libtorrent is not installed" in plain["reason"]) == ("registry", True)
    assert {node["source"] for node in document["nodes"] if node["name"] in {SECOND, LAST}} == {"peers"}
    assert site.ids(name) == {image.id}


def test_a_tar_file_of_the_controller_reaches_all_nodes_without_a_registry(site: Site) -> None:
    """One node loads it; the registry sends nothing, and a name that no registry has works."""
    site.forget()
    name, path = "nowhere.example.com/train:1", site.folder / "train.tar"
    image = make(site.folder / "archive", [random_layer(LAYER_MB)])
    save(image, path, name)
    before = site.registry.bytes_sent()
    document = site.copy(name, "--archive", str(path))
    assert {node["name"]: node["source"] for node in document["nodes"]} == {
        FIRST: "archive", SECOND: "peers", THIRD: "peers", LAST: "peers",
    }  # fmt: skip
    assert site.ids(name) == {image.id}
    assert site.registry.bytes_sent() == before
    given = site.copy(name, "--from", SECOND)
    assert {node["source"] for node in given["nodes"]} == {"present"}


def test_a_program_that_takes_over_a_port_gets_no_image(site: Site) -> None:
    """A user of a node could listen on the port of a copy that has ended there, and has the node's address.

    Nodes send no requests to trackers and web servers of the sender's torrent.
    """
    program = (Path(__file__).parents[1] / "support/stolen_port.py").read_text()
    folder = "/run/provision/programs"
    site.copy(site.push("stolen")[0])  # the node's programs are there
    shown = site.on(FIRST, f"PYTHONPATH=$(ls {folder}/*.pyz | head -1) python3 - <<'END'\n{program}\nEND")

    assert shown.split() == ["complete=True", "leaked=False", "requests=0"]


def test_a_corrupted_block_is_refused(site: Site) -> None:
    """Files of the sender change during the copy: no node loads other data, and all pull the image instead."""
    site.forget()
    name, image = site.push("corrupt")
    running = site.start(name, "--rate", "3")
    zeros = "dd if=/dev/zero of=$file bs=1M count=19 conv=notrunc status=none"
    spoil = "for file in {}/copy-*/blobs/*; do [ $(stat -c %s $file) -lt 100000 ] || " + zeros + "; done"
    site.on(FIRST, spoil.format(WORK))
    out, _ = running.communicate(timeout=400)
    document = json.loads(out[out.index("{") : out.rindex("}") + 1])
    assert site.ids(name) == {image.id}, document
    assert {node["source"] for node in document["nodes"]} == {"registry"}, document
    assert all(node["reason"] for node in document["nodes"] if node["name"] != FIRST)
