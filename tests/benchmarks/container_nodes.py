"""``make bench-nodes``: apply on real container nodes beside Ansible, pyinfra and the bare fan-out, all in one run.

``python -m tests.benchmarks.container_nodes --nodes 8 --repeat 3 --pyinfra build/bench/venv/bin/pyinfra``
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.benchmarks import plot
from tests.benchmarks.measure import Cost, measure
from tests.support.command import Provision

ROOT = Path(__file__).resolve().parents[2]
LAB = f"bench{os.getpid()}"
EDITED = "/etc/security/limits.d/90-provision.conf"
FAN_OUT, APPLY, ANSIBLE, PYINFRA = "fan-out (fabric)", "provision apply", "ansible-playbook", "pyinfra"
SLOW = r"""
echo 'session optional pam_exec.so quiet /bin/sleep 0.5' >>/etc/pam.d/sshd
printf '#!/bin/sh\nsleep 3\nexec /usr/bin/nvidia-smi "$@"\n' >/usr/local/bin/nvidia-smi
chmod 755 /usr/local/bin/nvidia-smi
"""
SOON = "sed -i '/pam_exec.so quiet .bin.sleep/d' /etc/pam.d/sshd; rm /usr/local/bin/nvidia-smi"
"""How a node's login comes to take half a second and its nvidia-smi three, and how that ends."""
_CGROUPS = ("cpuacct/provision-lab", "provision-lab", "unified/provision-lab")
_WANTED = r"""
import base64, glob, json
wanted = {"packages": [], "units": [], "images": [], "files": {}}
for path in glob.glob("/var/lib/provision/receipts/*.json"):
    receipt = json.load(open(path))
    for section in ("packages", "units", "images"):
        wanted[section] += receipt[section]
    for name, item in receipt["files"].items():
        if item["type"] == "file" and not item.get("block") and "/keys/" not in name:
            content = base64.b64encode(open(name, "rb").read()).decode()
            wanted["files"][name] = [item["mode"], content]
print(json.dumps(wanted))
"""


@dataclass
class Row:
    """One program at one task, run several times."""

    task: str
    program: str
    costs: list[Cost] = field(default_factory=list)
    node_cpu: list[float] = field(default_factory=list)
    """Processor seconds that one node spent on it, the mean of all."""

    @property
    def seconds(self) -> float:
        """The median time of the whole process."""
        return statistics.median(cost.seconds for cost in self.costs)


class Bench:
    """A lab of container nodes, and what is run on it."""

    def __init__(self, folder: Path, count: int, repeat: int, pyinfra: Path | None) -> None:
        self.folder, self.count, self.repeat, self.pyinfra = folder, count, repeat, pyinfra
        self.provision = Provision(folder, XDG_STATE_HOME=f"{folder}/state")
        self.rows: list[Row] = []

    def run(self) -> None:
        """Make the lab, measure, and take it down."""
        try:
            self.provision.ok("lab", "up", LAB, "--driver", "container", "--nodes", str(self.count))
            status = self.provision.ok("lab", "status", LAB, "--json").document
            names = [node["name"] for node in status["nodes"]]
            inventory = Path(self.provision.ok("lab", "inventory", LAB).out.strip())
            programs = {APPLY: self.provision.argv("apply", "--lab", LAB, "--yes")}
            self.one("first", APPLY, programs[APPLY], times=1)
            bare = self.bare_inventory(inventory)
            fan_out = [sys.executable, "-m", "tests.benchmarks.fan_out", "fabric", str(bare)]
            programs[ANSIBLE] = [
                sys.executable,
                "-m",
                "ansible",
                "playbook",
                "-i",
                str(inventory),
                "playbooks/site.yml",
            ]
            if self.pyinfra:
                programs[PYINFRA] = self.pyinfra_argv(names[0], bare)
            self.one("converged", FAN_OUT, fan_out)
            for program, argv in programs.items():
                self.one("converged", program, argv, times=1 if program == ANSIBLE else self.repeat)
            for name in names:
                self.shell(name, SLOW)
            self.one("converged, slow", FAN_OUT, fan_out)
            self.one("converged, slow", APPLY, programs[APPLY])
            for name in names:
                self.shell(name, SOON)
            for program, argv in programs.items():
                self.one(
                    "one file edited", program, argv,
                    times=1 if program == ANSIBLE else self.repeat,
                    before=lambda: self.shell(names[0], f"echo '# by hand' >>{EDITED}"),
                    after=lambda: self.shell(names[0], f"! grep 'by hand' {EDITED}"),
                )  # fmt: skip
        finally:
            self.provision("lab", "down", LAB)

    def one(
        self, task: str, program: str, argv: Sequence[str], *, times: int | None = None,
        before: Callable[[], object] | None = None, after: Callable[[], object] | None = None,
    ) -> None:  # fmt: skip
        """Run a program so many times, `before` each and checked by `after`."""
        row = Row(task, program)
        environment = {
            **self.provision.environment, "ANSIBLE_PIPELINING": "1", "ANSIBLE_FORKS": str(self.count),
            "ANSIBLE_ROLES_PATH": str(ROOT / "roles"), "BENCH_WANTED": str(self.folder / "wanted.json"),
        }  # fmt: skip
        for _ in range(times or self.repeat):
            if before:
                before()
            used = _nodes_cpu()
            cost = measure(argv, environment=environment, cwd=ROOT)
            row.costs.append(cost)
            row.node_cpu.append((_nodes_cpu() - used) / self.count)
            sys.stderr.write(f"{task}, {program}: {cost.seconds:.2f} s, status {cost.code}\n")
            if cost.code:
                raise SystemExit(f"{program} failed:\n{cost.out[-2000:]}\n{cost.err[-2000:]}")
            if after:
                after()
        self.rows.append(row)

    def shell(self, node: str, command: str) -> str:
        """Run a command on a node; it must succeed."""
        return self.provision.ok("lab", "ssh", LAB, node, "--", command).out

    def bare_inventory(self, inventory: Path) -> Path:
        """Write addresses, key and host keys as `fan_out` reads them."""
        lab = inventory.parent.parent
        (group,) = yaml.safe_load(inventory.read_text())["all"]["children"].values()
        hosts = [(name, variables["ansible_host"]) for name, variables in group["hosts"].items()]
        folder = self.folder / "bare"
        (folder / "group_vars").mkdir(parents=True)
        (folder / "group_vars/all.yml").write_text(
            f"ansible_port: 22\nansible_ssh_private_key_file: {lab / 'id_ed25519'}\n"
        )
        (folder / "hosts.yml").write_text("".join(f"    {name}:\n      ansible_host: {at}\n" for name, at in hosts))
        (folder / "known_hosts.txt").write_text((lab / "known_hosts").read_text())
        if len(hosts) != self.count:
            raise SystemExit(f"{len(hosts)} nodes of {self.count} found in {inventory}")
        return folder

    def pyinfra_argv(self, node: str, bare: Path) -> list[str]:
        """Describe to pyinfra what is on the nodes, as far as it is the same on all."""
        wanted: dict[str, Any] = json.loads(self.shell(node, f"python3 -c '{_WANTED}'"))
        others = [json.loads(self.shell(name, f"python3 -c '{_WANTED}'")) for name, _ in _hosts(bare)]
        wanted["files"] = {
            path: item for path, item in wanted["files"].items() if all(o["files"].get(path) == item for o in others)
        }
        (self.folder / "wanted.json").write_text(json.dumps(wanted))
        key = re.findall(r"file: (\S+)", (bare / "group_vars/all.yml").read_text())[0]
        data = {
            "ssh_user": "root", "ssh_key": key, "ssh_known_hosts_file": str(bare / "known_hosts.txt"),
            "ssh_strict_host_key_checking": "yes",
        }  # fmt: skip
        hosts = [(address, data) for _, address in _hosts(bare)]
        (self.folder / "nodes.py").write_text(f"nodes = {hosts!r}\n")
        deploy = Path(__file__).with_name("pyinfra_deploy.py")
        return [str(self.pyinfra), "--yes", str(self.folder / "nodes.py"), str(deploy)]


def _hosts(bare: Path) -> list[tuple[str, str]]:
    return re.findall(r"^    (\S+):\n      ansible_host: (\S+)", (bare / "hosts.yml").read_text(), re.MULTILINE)


def _nodes_cpu() -> float:
    """Processor seconds that all container nodes of labs have used so far; 0 where the kernel does not say."""
    for folder in _CGROUPS:
        files = list(Path("/sys/fs/cgroup", folder).glob("*/cpuacct.usage"))
        if files:
            return sum(int(file.read_text()) for file in files) / 1e9
        files = list(Path("/sys/fs/cgroup", folder).glob("*/cpu.stat"))
        if files:
            return sum(int(file.read_text().split()[1]) for file in files) / 1e6
    return 0.0


def table(rows: Sequence[Row]) -> str:
    """Lay the rows out; ``x`` is the time against the converged fan-out's."""
    base = next((row.seconds for row in rows if row.program == FAN_OUT), None)
    lines = [("task", "program", "median s", "from", "to", "x", "cpu s", "cpu s/node")]
    for row in rows:
        each = sorted(cost.seconds for cost in row.costs)
        cpu = statistics.median(cost.cpu_seconds for cost in row.costs)
        lines.append(
            (
                row.task, row.program, f"{row.seconds:.2f}", f"{each[0]:.2f}", f"{each[-1]:.2f}",
                f"{row.seconds / base:.1f}" if base else "-", f"{cpu:.2f}", f"{statistics.median(row.node_cpu):.2f}",
            )
        )  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = []
    for line in lines:
        cells = [
            cell.ljust(width) if number < 2 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text.append("  ".join(cells))
    return "\n".join(text) + "\n"


def main() -> None:
    """Measure, and write the table, the numbers and a plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--pyinfra", type=Path, help="the program; without it that row is left out")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        bench = Bench(Path(folder), given.nodes, given.repeat, given.pyinfra and given.pyinfra.absolute())
        bench.run()
    given.out.mkdir(parents=True, exist_ok=True)
    head = (
        f"{given.nodes} container nodes on this machine ({os.cpu_count()} processors for them and for the programs, "
        f"load {load:.1f} before), {time.strftime('%Y-%m-%d %H:%M')}.\nHow to read it: tests/benchmarks/README.md\n\n"
    )
    (given.out / "container_nodes.txt").write_text(head + table(bench.rows))
    numbers = [
        {
            "task": row.task, "program": row.program, "seconds": [cost.seconds for cost in row.costs],
            "cpu_seconds": [cost.cpu_seconds for cost in row.costs], "node_cpu_seconds": row.node_cpu,
        }
        for row in bench.rows
    ]  # fmt: skip
    (given.out / "container_nodes.json").write_text(json.dumps({"load": load, "rows": numbers}, indent=1) + "\n")
    bars = {f"{row.task}: {row.program}": row.seconds for row in bench.rows}
    (given.out / "container_nodes.svg").write_text(
        plot.bars(f"{given.nodes} container nodes: whole process", "s", bars)
    )
    sys.stdout.write(head + table(bench.rows))


if __name__ == "__main__":
    main()
