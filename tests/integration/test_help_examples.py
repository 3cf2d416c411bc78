"""The examples in the help of verbs that need nodes, in a shell, as somebody types them who has read `--help`.

Names of nodes, lab and image are the lab's. The working folder has the files that the examples name.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import ENGINES, LAB
from tests.support.command import Done, Provision, eventually
from tests.support.engine import engine_host
from tests.support.help_examples import OF_LABS, ON_NODES, Example

OTHER = f"{LAB}b"
"""A lab for the verbs that create, disconnect and remove one."""
TRAIN = """\
import http.server, os, signal
rank = os.environ["RANK"]
print("rank", rank, "of", os.environ["WORLD_SIZE"], flush=True)
os.chdir("/data")
if rank == "0":
    http.server.HTTPServer(("", 8888), http.server.SimpleHTTPRequestHandler).serve_forever()
signal.pause()
"""
"""Trains until it is stopped; its first rank shows the files of the volume."""


class Reader:
    """A person with the command on the PATH, in a folder of its own."""

    def __init__(self, command: Provision, names: dict[str, str]) -> None:
        self.command, self.names = command, names

    def line(self, example: Example) -> str:
        """Return the example with the names of the lab."""
        line = example.line
        for name, own in self.names.items():
            line = re.sub(name, own, line)
        return line

    def start(self, line: str) -> subprocess.Popen[str]:
        """Start a command line in bash."""
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=self.command.folder,
            env=self.command.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, line: str) -> Done:
        """Run it to its end; output in a file counts as printed."""
        with self.start(line) as process:
            out, err = process.communicate(timeout=1500)
        redirected = re.search(r" > (\S+)$", line)
        return Done(process.returncode, out + (self.file(redirected[1]) if redirected else ""), err)

    def file(self, name: str) -> str:
        """Return the content of a file."""
        return (self.command.folder / name).read_text(encoding="utf-8")

    def run_until_it_answers(self, line: str, url: str) -> Done:
        """Run a command that serves something until it is interrupted; what it serves counts as printed."""
        with self.start(f"exec {line}") as process:
            try:
                page = eventually(lambda: fetched(url), seconds=60, what=f"{url} answers")
            finally:
                process.terminate()
                _, err = process.communicate(timeout=60)
        return Done(process.returncode, page, err)


def fetched(url: str) -> str:
    """Return what is answered there; empty as long as nothing is."""
    with contextlib.suppress(OSError):
        return urllib.request.urlopen(url, timeout=5).read().decode()  # noqa: S310 - our own address
    return ""


def free_port() -> int:
    """Return a port on which nothing listens here."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def reader(provision: Provision, folder: Path, names: dict[str, str]) -> Reader:
    """Return a person with the labs of the tests."""
    command = Provision(folder, XDG_STATE_HOME=provision.environment["XDG_STATE_HOME"])
    command.put_on_path()
    return Reader(command, names)


@pytest.fixture(scope="module")
def of_labs(provision, tmp_path_factory) -> Iterator[Reader]:
    """Somebody whose only lab is one that the examples make."""
    try:
        yield reader(provision, tmp_path_factory.mktemp("labs"), {r"\b(quick|demo)\b": OTHER})
    finally:
        down = provision("lab", "down", OTHER)
    assert down.code == 0, str(down)


@pytest.fixture(scope="module")
def on_nodes(provision, cluster, jobs, ssh_files, tmp_path_factory) -> Iterator[Reader]:
    """Somebody with an inventory of the lab's nodes, a volume of data and the files that the examples name."""
    if jobs.engine != "direct":
        pytest.skip("the examples are those of the engine direct")
    folder = tmp_path_factory.mktemp("nodes")
    hosts = " ".join(f"{node['name']}={node['address']}:{node['port']}" for node in cluster["nodes"])
    names = {
        r"'gpu\[1-8\]'": hosts,
        r"\bgpu1\b": f"{LAB}-1",
        r"\bgpu[23]\b": f"{LAB}-2",
        r"(?<!provision )\b(demo|trial)\b": LAB,
        r"\bIMAGE\b|registry\.example\.com/training:1": jobs.image,
        r"~/\.ssh/key": str(ssh_files / "id_ed25519"),
        r"\b18888\b": str(free_port()),
    }
    inventory = folder / "inventories/prod"
    inventory.parent.mkdir()
    inventory.symlink_to(ssh_files / "inventory")
    (folder / "provision.toml").write_text('inventory = "inventories/prod"\n')
    (folder / "topology.xml").write_text("<system/>\n")
    shutil.copyfile(ssh_files / "known_hosts", folder / "keys.txt")
    backup = tmp_path_factory.mktemp("backup") / "inventory"
    shutil.copytree(ssh_files / "inventory", backup, symlinks=True)
    script = f"mkdir -p /etc/nccl /srv/training; cat >/srv/training/train.py <<'END'\n{TRAIN}END\n"
    try:
        on_all(provision, cluster, script)
        jobs.ok("data add", "training-data", "--path", "/srv/training")
        yield reader(provision, folder, names)
    finally:
        jobs("delete", "mnist", "--force")
        on_all(provision, cluster, "rm -rf /etc/nccl /srv/training")
        shutil.rmtree(ssh_files / "inventory")
        shutil.copytree(backup, ssh_files / "inventory", symlinks=True)


def on_all(provision: Provision, cluster: dict, script: str) -> None:
    """Run a shell script on all nodes."""
    for node in cluster["nodes"]:
        provision.ok("lab", "ssh", LAB, node["name"], "--", script)


def assert_works(example: Example, line: str, done: Done, lab: str) -> None:
    """The exit code and what was printed are those that a reader expects."""
    assert done.code in example.codes, f"{line}\n{done}"
    assert re.search(example.shows.replace("LAB", lab), done.out + done.err, re.MULTILINE), f"{line}\n{done}"


@pytest.mark.slow
@pytest.mark.parametrize("example", OF_LABS, ids=lambda example: example.verb)
def test_the_example_of_a_verb_for_labs_works(provision, of_labs, example):
    line = of_labs.line(example)
    done = of_labs.run(line)

    folder = provision.folder / "state/provision/labs" / OTHER
    if folder.exists():
        ENGINES.add(engine_host(folder))
    assert_works(example, line, done, OTHER)


@pytest.mark.slow
@pytest.mark.parametrize("example", ON_NODES, ids=lambda example: example.verb)
def test_the_example_of_a_verb_for_nodes_works(on_nodes, example):
    line = on_nodes.line(example)
    if example.verb == "port-forward":
        port = re.search(r"(\d+):8888", line)
        done = on_nodes.run_until_it_answers(line, f"http://127.0.0.1:{port[1]}/")
    else:
        done = on_nodes.run(line)

    assert_works(example, line, done, LAB)
