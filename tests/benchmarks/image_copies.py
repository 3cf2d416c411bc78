"""``make bench-images``: an image on 1, 2, 4, ... container nodes, by plain pulls and by copies between the nodes.

The registry's uplink and the data network of each node have the same limited rate (tc): SIMULATED slow links.

``python -m tests.benchmarks.image_copies --nodes 4 --megabytes 60 --megabits 80``
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.command import Provision
from tests.support.engine import engine_host
from tests.support.random_images import USER, CountingRegistry, counting_registry, make, random_layer, upload
from tools.performance import Recorder

ROOT = Path(__file__).resolve().parents[2]
LAB = f"copies{os.getpid()}"
PLAIN, PEERS = "image pull", "image pull --peers"
LAYERS = 3
INSTALL = (
    "DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "
    "python3-libtorrent >/dev/null 2>&1"
)
FORGET = "docker image ls -q | sort -u | xargs -r docker image rm -f >/dev/null 2>&1; true"
TBF = "root tbf rate {megabits}mbit burst 256kb latency 100ms"


@dataclass
class Row:
    """One program on so many nodes."""

    nodes: int
    program: str
    seconds: float
    copies: float
    """The bytes that the registry sent, in copies of the image."""


class Bench:
    """A lab of container nodes with slow links, and a registry that counts what it sends."""

    def __init__(self, provision: Provision, lab: str, megabits: int) -> None:
        self.provision, self.lab, self.megabits = provision, lab, megabits
        folder = Path(provision.environment["XDG_STATE_HOME"]) / "provision/labs" / lab
        self.host, self.services = engine_host(folder), folder / "services"
        status = provision.ok("lab", "status", lab, "--json").document
        self.names = [node["name"] for node in status["nodes"]]
        known = next(path for path in self.services.glob("registry-*.yml") if "127.0.0.1" not in path.name)
        self.address, _, port = json.loads(known.read_text())["http"]["addr"].rpartition(":")
        self.port = int(port)
        self.rows: list[Row] = []

    def docker(self, *words: str) -> str:
        """Return what a command of the lab's engine prints."""
        return subprocess.run(["docker", "-H", self.host, *words], capture_output=True, text=True, check=True).stdout

    def on(self, name: str, command: str) -> str:
        """Return what a shell command prints on a node."""
        return self.docker("exec", f"provision-{self.lab}-{name}", "bash", "-c", command)

    def on_all(self, command: str) -> list[str]:
        """Run a shell command on all nodes."""
        with ThreadPoolExecutor() as pool:
            return list(pool.map(lambda name: self.on(name, command), self.names))

    def limit_links(self, stack: ExitStack) -> None:
        """Limit what the registry's host sends to the nodes, and what each node sends and receives on eth1."""
        network = self.docker("network", "inspect", "--format", "{{.Id}}", f"provision-{self.lab}").strip()
        own = [f"br-{network[:12]}"]
        for name in self.names:
            index = self.on(name, "cat /sys/class/net/eth1/iflink").strip()
            own += [path.name for path in Path("/sys/class/net").iterdir() if _index(path) == index]
        for device in own:
            words = f"tc qdisc add dev {device} {TBF.format(megabits=self.megabits)}".split()
            subprocess.run(words, check=True)
            stack.callback(subprocess.run, f"tc qdisc del dev {device} root".split(), check=False)
        self.on_all(f"tc qdisc replace dev eth1 {TBF.format(megabits=self.megabits)}")
        stack.callback(self.on_all, "tc qdisc del dev eth1 root")

    def measure(self, count: int, program: str, registry: CountingRegistry, image: tuple[str, int]) -> None:
        """Bring the image to so many nodes that do not have it."""
        name, size = image
        self.on_all(FORGET)
        before = registry.bytes_sent()
        words = [
            "image",
            "pull",
            name,
            *program.split()[2:],
            "--lab",
            self.lab,
            "--nodes",
            ",".join(self.names[:count]),
        ]
        begun = time.monotonic()
        done = self.provision(*words, "--json")
        seconds = time.monotonic() - begun
        if done.code:
            raise SystemExit(f"{program} failed:\n{done}")
        self.rows.append(Row(count, program, seconds, (registry.bytes_sent() - before) / size))
        sys.stderr.write(f"{program} on {count}: {seconds:.1f} s\n")

    def run(self, folder: Path, counts: Sequence[int], megabytes: int) -> None:
        """Measure both programs in turns."""
        with ExitStack() as stack:
            registry = stack.enter_context(counting_registry(folder, self.services, self.address))
            known = f"/etc/docker/certs.d/{self.address}:{self.port}"
            self.on_all(f"{INSTALL}; cp -rn {known} /etc/docker/certs.d/{registry.server}")
            login = ("secret", "add", "registry", "--server", registry.server, "--username", USER)
            assert self.provision(*login, stdin=f"{registry.password}\n").code == 0
            stack.callback(self.provision.ok, "secret", "rm", "registry", "--server", registry.server)
            made = make(folder / "image", [random_layer(megabytes // LAYERS) for _ in range(LAYERS)])
            upload(made, "team/train", "bench", self.services, self.port)
            self.limit_links(stack)
            for count in counts:
                for program in (PLAIN, PEERS) if count > 1 else (PLAIN,):
                    self.measure(count, program, registry, (f"{registry.server}/team/train:bench", made.size))
            self.on_all(FORGET)


def _index(path: Path) -> str:
    return (path / "ifindex").read_text().strip()


def table(rows: Sequence[Row], title: str) -> str:
    """Return the rows as text; ``x`` is the time in that of one plain pull on one node."""
    one = rows[0].seconds
    lines = [title, f"{'nodes':>5}  {'program':<20}  {'seconds':>7}  {'x':>5}  {'copies from the registry':>24}"]
    lines += [
        f"{row.nodes:>5}  {row.program:<20}  {row.seconds:>7.1f}  {row.seconds / one:>5.2f}  {row.copies:>24.2f}"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Make a lab, or use that of IMAGE_PEERS_LAB, measure, and write the table."""
    words = argparse.ArgumentParser()
    words.add_argument("--nodes", type=int, default=4)
    words.add_argument("--megabytes", type=int, default=60)
    words.add_argument("--megabits", type=int, default=80)
    given = words.parse_args()
    recorder = Recorder("image_copies", "An image on container nodes", ours=[PEERS])
    counts = [1 << power for power in range(given.nodes.bit_length()) if 1 << power <= given.nodes]
    lab = os.environ.get("IMAGE_PEERS_LAB", "")
    with tempfile.TemporaryDirectory(prefix="copies-") as text:
        folder = Path(text)
        provision = Provision(folder, XDG_STATE_HOME=os.environ.get("IMAGE_PEERS_STATE") or f"{folder}/state")
        try:
            if not lab:
                provision.ok(
                    "lab", "up", LAB, "--driver", "container", "--distro", "debian12", "--nodes", str(given.nodes)
                )
                provision.ok("apply", "--lab", LAB, "--yes", "--only", "docker_engine")
            bench = Bench(provision, lab or LAB, given.megabits)
            bench.run(folder, counts, given.megabytes)
        finally:
            if not lab:
                provision("lab", "down", LAB)
    title = (
        f"image of {given.megabytes} MB; SIMULATED links of {given.megabits} Mbit/s: the registry's, and each node's"
    )
    options = f"--nodes {given.nodes} --megabytes {given.megabytes} --megabits {given.megabits}"
    for row in bench.rows:
        command = f"make bench-images BENCH_IMAGES='{options}'"
        recorder.add(f"{given.megabytes} MB", row.nodes, row.program, [row.seconds], command)
    recorder.save()
    out = ROOT / "build/bench"
    out.mkdir(parents=True, exist_ok=True)
    (out / "image_copies.txt").write_text(table(bench.rows, title))
    (out / "image_copies.json").write_text(json.dumps([asdict(row) for row in bench.rows], indent=2) + "\n")
    sys.stdout.write(table(bench.rows, title))


if __name__ == "__main__":
    main()
