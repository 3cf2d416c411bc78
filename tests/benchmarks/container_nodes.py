"""``make bench-nodes``: apply on container nodes beside Ansible, Mitogen, pyinfra and the bare fan-out, all in one run.

``python -m tests.benchmarks.container_nodes --nodes 4 --tasks first,converged --programs apply,pyinfra``
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.benchmarks import plot
from tests.benchmarks.measure import Cost, measure
from tests.support.command import Provision
from tests.support.engine import engine_host
from tools.performance import Recorder

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
LAB = f"bench{os.getpid()}"
LIMITS = "/etc/security/limits.d/90-provision.conf"
VARIABLE = "base_system_nofile_limit"
NOFILE = re.compile(r"(?<=nofile )\d+|(?<=DefaultLimitNOFILE=)\d+")
"""The values in the two files that the variable changes."""
KEYS = re.compile("/var/lib/provision/container_ssh/(keys/|authorized_keys|known_hosts|sshd_config)")
"""Files with keys of the nodes, or a hash of one."""
FAN_OUT, APPLY, ANSIBLE, PYINFRA = "fan-out (fabric)", "provision apply", "ansible-playbook", "pyinfra"
MITOGEN = "Ansible with Mitogen"
PROGRAMS = {"apply": APPLY, "ansible": ANSIBLE, "mitogen": MITOGEN, "pyinfra": PYINFRA}
TASKS = {
    "first": "first",
    "converged": "converged",
    "slow": "converged, slow",
    "file": "one file edited",
    "variable": "one variable",
}
"""Word of ``--tasks`` -> name of the task."""
ONCE = {ANSIBLE, MITOGEN}
"""Programs that are measured once: they take minutes."""
NOTES = """
The nodes are containers on the machine that runs the programs: they share its processors.
GPUs and the NVIDIA Container Toolkit are SIMULATED. No program loads kernel modules in containers.
After `first`, each node has the packages, units, files, image and container of `apply`: verified for each program.
pyinfra gets all contents ready-made: it makes and exchanges no keys, and does not probe, verify or write receipts.
Ansible with Mitogen: ansible-core 2.19.14, Mitogen 0.3.54, and a repair for the roles (tests/benchmarks/strategy).
""".strip().splitlines()
SLOW = r"""
echo 'session optional pam_exec.so quiet /bin/sleep 0.5' >>/etc/pam.d/sshd
printf '#!/bin/sh\nsleep 3\nexec /usr/bin/nvidia-smi "$@"\n' >/usr/local/bin/nvidia-smi
chmod 755 /usr/local/bin/nvidia-smi
"""
SOON = "sed -i '/pam_exec.so quiet .bin.sleep/d' /etc/pam.d/sshd; rm /usr/local/bin/nvidia-smi"
"""How a node's login comes to take half a second and its nvidia-smi three, and how that ends."""
_CGROUPS = ("cpuacct/provision-lab", "provision-lab", "unified/provision-lab")


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

    def __init__(self, folder: Path, count: int, repeat: int, venv: Path, programs: Iterable[str]) -> None:
        self.folder, self.count, self.repeat, self.venv = folder, count, repeat, venv
        self.programs = [name for name in PROGRAMS.values() if name == APPLY or name in programs]
        self.provision = Provision(folder, XDG_STATE_HOME=f"{folder}/state")
        self.lab = folder / "state/provision/labs" / LAB
        self.names: list[str] = []
        self.argv: dict[str, list[str]] = {}
        self.rows: list[Row] = []
        self.numbers = itertools.count(10_001)

    def run(self, tasks: Iterable[str]) -> None:
        """Make the lab, measure, and take it down."""
        steps: dict[str, Callable[[], None]] = {
            "converged": self.converged, "slow": self.slow, "file": self.file, "variable": self.variable,
        }  # fmt: skip
        try:
            self.up()
            self.first(measured="first" in tasks)
            for task in tasks:
                if task in steps:
                    steps[task]()
        finally:
            self.provision("lab", "down", LAB)

    def up(self) -> None:
        """Make the nodes, and the command line of each program."""
        self.provision.ok("lab", "up", LAB, "--driver", "container", "--nodes", str(self.count))
        self.names = [node["name"] for node in self.provision.ok("lab", "status", LAB, "--json").document["nodes"]]
        inventory = self.lab / "inventory/hosts.yml"
        playbook = ["-m", "ansible", "playbook", "-i", str(inventory), "playbooks/site.yml"]
        bare = self.bare_inventory(inventory)
        self.argv = {
            FAN_OUT: [sys.executable, "-m", "tests.benchmarks.fan_out", "fabric", str(bare)],
            APPLY: self.provision.argv("apply", "--lab", LAB, "--yes"),
            ANSIBLE: [sys.executable, *playbook],
            MITOGEN: [str(self.venv / "bin/python"), *playbook],
            PYINFRA: self.pyinfra_argv(bare),
        }

    def first(self, *, measured: bool) -> None:
        """Set up bare nodes by each program; the nodes are converged afterwards."""
        self.one("first", APPLY, times=1)
        wanted = self.want_state()
        others = self.programs[:0:-1] if measured else []
        for program in others:
            self.remake()
            self.one("first", program, times=1, after=lambda program=program: self.same_as(wanted, program))
        if others[-1:] == [PYINFRA]:  # what it made is configuration of another hand
            self.remake()
        if others:
            self.provision.ok("apply", "--lab", LAB, "--yes")
            self.want_state()

    def want_state(self) -> dict[str, dict[str, Any]]:
        """Return the state of each node, which pyinfra gets by address."""
        wanted = {name: self.state(name) for name in self.names}
        (self.folder / "wanted.json").write_text(json.dumps({self.address(name): wanted[name] for name in wanted}))
        return wanted

    def converged(self) -> None:
        """Run each program with nothing to do."""
        self.one("converged", FAN_OUT)
        for program in self.programs:
            self.one("converged", program)

    def slow(self) -> None:
        """Run `apply` with nothing to do on nodes that answer late."""
        for name in self.names:
            self.shell(name, SLOW)
        self.one("slow", FAN_OUT)
        self.one("slow", APPLY)
        for name in self.names:
            self.shell(name, SOON)

    def file(self) -> None:
        """Have each program restore a file of one node."""
        node = self.names[0]
        for program in self.programs:
            self.one(
                "file", program,
                before=lambda: self.shell(node, f"echo '# by hand' >>{LIMITS}"),
                after=lambda: self.shell(node, f"! grep 'by hand' {LIMITS}"),
            )  # fmt: skip

    def variable(self) -> None:
        """Have each program change one setting on all nodes."""
        variables = self.lab / "inventory/group_vars/all.yml"
        variables.parent.mkdir()
        wanted = self.folder / "wanted.json"

        def change() -> None:
            number = next(self.numbers)
            variables.write_text(f"{VARIABLE}: {number}\n")
            states = json.loads(wanted.read_text())
            for state in states.values():
                for path, (mode, content) in state["files"].items():
                    if path == LIMITS or path.startswith("/etc/systemd/system.conf.d/"):
                        text = NOFILE.sub(str(number), base64.b64decode(content).decode())
                        state["files"][path] = [mode, base64.b64encode(text.encode()).decode()]
            wanted.write_text(json.dumps(states))

        def check() -> None:
            for name in self.names:
                self.shell(name, f"grep '{variables.read_text().split()[1]}$' {LIMITS}")

        for program in self.programs:
            self.one("variable", program, before=change, after=check)

    def one(
        self, task: str, program: str, *, times: int = 0,
        before: Callable[[], object] | None = None, after: Callable[[], object] | None = None,
    ) -> None:  # fmt: skip
        """Run a program so many times, `before` each and checked by `after`."""
        row = Row(TASKS[task], program)
        for number in range(times or (1 if program in ONCE else self.repeat)):
            if before:
                before()
            used = self.nodes_cpu()
            environment = self.environment(program, f"{len(self.rows)}.{number}")
            cost = measure(self.argv[program], environment=environment, cwd=ROOT)
            row.costs.append(cost)
            row.node_cpu.append((self.nodes_cpu() - used) / self.count)
            sys.stderr.write(f"{row.task}, {program}: {cost.seconds:.2f} s, status {cost.code}\n")
            if cost.code:
                raise SystemExit(f"{program} failed:\n{cost.out[-4000:]}\n{cost.err[-4000:]}")
            if after:
                after()
        self.rows.append(row)

    def environment(self, program: str, run: str) -> dict[str, str]:
        """Return the variables of a program. Each run of Ansible makes its own connections, as after an idle time."""
        # A folder of its own for the sockets of ssh: connections of an earlier run would be used again.
        own = {**self.provision.environment, "ANSIBLE_SSH_CONTROL_PATH_DIR": f"{self.folder}/{run}"}
        if program in (ANSIBLE, MITOGEN):
            own |= {"ANSIBLE_CONFIG": str(ROOT / "playbooks/ansible.cfg"), "ANSIBLE_FORKS": str(max(self.count, 5))}
        if program == MITOGEN:
            import ansible

            own["ANSIBLE_COLLECTIONS_PATH"] = str(Path(ansible.__file__).parents[1])
            own |= {"ANSIBLE_STRATEGY": "mitogen_roles", "ANSIBLE_STRATEGY_PLUGINS": str(HERE / "strategy")}
        if program == PYINFRA:
            own["BENCH_WANTED"] = str(self.folder / "wanted.json")
        return own

    def remake(self) -> None:
        """Replace all nodes by bare ones; the lab, its registry and its packages stay."""
        for name in self.names:
            container = f"provision-{LAB}-{name}"
            for words in (["rm", "-f", "-v", container], ["volume", "rm", f"{container}-docker"]):
                self.docker(*words)
        self.provision.ok("lab", "up", LAB)

    def docker(self, *words: str) -> str:
        """Return what a command of the lab's engine prints."""
        argv = ["docker", "-H", engine_host(self.lab), *words]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    def nodes_cpu(self) -> float:
        """Return the processor seconds that the nodes have used; 0 where the kernel does not report them."""
        used = 0.0
        for container in self.docker("ps", "-q", "--no-trunc", "--filter", f"name=provision-{LAB}-").split():
            for folder in _CGROUPS:
                for file in Path("/sys/fs/cgroup", folder).glob(f"*{container}*/cpuacct.usage"):
                    used += int(file.read_text()) / 1e9
                for file in Path("/sys/fs/cgroup", folder).glob(f"*{container}*/cpu.stat"):
                    used += int(file.read_text().split()[1]) / 1e6
        return used

    def state(self, node: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what the roles manage on a node, or the state of what has these names."""
        program = base64.b64encode((HERE / "node_state.py").read_bytes()).decode()
        words = ["python3", "-c", f"import base64; exec(base64.b64decode('{program}'))"]
        if names:
            words.append(
                base64.b64encode(json.dumps({key: list(value) for key, value in names.items()}).encode()).decode()
            )
        document: dict[str, Any] = json.loads(self.shell(node, shlex.join(words)))
        return document

    def same_as(self, wanted: dict[str, dict[str, Any]], program: str) -> None:
        """Require the state of the nodes that they had after `apply`. The roles make keys anew."""
        for name, before in wanted.items():
            now = self.state(name, before)
            for path in before["files"] if program != PYINFRA else ():
                if KEYS.match(path) and path in now["files"]:
                    now["files"][path] = [now["files"][path][0], before["files"][path][1]]
            other = sorted(
                str(one)
                for section, items in before.items()
                for one in (items if items != now[section] else ())
                if isinstance(items, list) or items[one] != now[section].get(one)
            )
            if other:
                raise SystemExit(f"{program}: {name} differs from what `apply` made: {', '.join(other)}")

    def shell(self, node: str, command: str) -> str:
        """Run a command on a node; it must succeed."""
        return self.provision.ok("lab", "ssh", LAB, node, "--", command).out

    def bare_inventory(self, inventory: Path) -> Path:
        """Write addresses, key and host keys as `fan_out` reads them."""
        (group,) = yaml.safe_load(inventory.read_text())["all"]["children"].values()
        hosts = [(name, variables["ansible_host"]) for name, variables in group["hosts"].items()]
        folder = self.folder / "bare"
        (folder / "group_vars").mkdir(parents=True)
        key = self.lab / "id_ed25519"
        (folder / "group_vars/all.yml").write_text(f"ansible_port: 22\nansible_ssh_private_key_file: {key}\n")
        (folder / "hosts.yml").write_text("".join(f"    {name}:\n      ansible_host: {at}\n" for name, at in hosts))
        (folder / "known_hosts.txt").write_text((self.lab / "known_hosts").read_text())
        if len(hosts) != self.count:
            raise SystemExit(f"{len(hosts)} nodes of {self.count} in {inventory}")
        return folder

    def address(self, node: str) -> str:
        """Return the address of a node."""
        hosts = (self.folder / "bare/hosts.yml").read_text()
        return re.findall(rf"^    {re.escape(node)}:\n      ansible_host: (\S+)", hosts, re.MULTILINE)[0]

    def pyinfra_argv(self, bare: Path) -> list[str]:
        """Write the nodes for pyinfra, and return its command line."""
        data = {
            "ssh_user": "root", "ssh_key": str(self.lab / "id_ed25519"),
            "ssh_known_hosts_file": str(bare / "known_hosts.txt"), "ssh_strict_host_key_checking": "yes",
        }  # fmt: skip
        hosts = [(self.address(name), data) for name in self.names]
        (self.folder / "nodes.py").write_text(f"nodes = {hosts!r}\n")
        return [str(self.venv / "bin/pyinfra"), "--yes", str(self.folder / "nodes.py"), str(HERE / "pyinfra_deploy.py")]


def table(rows: Sequence[Row], count: int) -> str:
    """Lay the rows out; ``x`` is the time against the converged fan-out's."""
    base = next((row.seconds for row in rows if row.program == FAN_OUT), None)
    lines = [("task", "program", "median s", "from", "to", "x", "cpu s", "cpu s/node", "node's cpu s")]
    for row in rows:
        each = sorted(cost.seconds for cost in row.costs)
        cpu = statistics.median(cost.cpu_seconds for cost in row.costs)
        lines.append(
            (
                row.task, row.program, f"{row.seconds:.2f}", f"{each[0]:.2f}", f"{each[-1]:.2f}",
                f"{row.seconds / base:.1f}" if base else "-", f"{cpu:.2f}", f"{cpu / count:.2f}",
                f"{statistics.median(row.node_cpu):.2f}",
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
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--tasks", default=",".join(TASKS), help="with commas between")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="with commas between; apply is one in any case")
    parser.add_argument("--venv", type=Path, default=ROOT / "build/bench/venv", help="with Mitogen and pyinfra")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench")
    given = parser.parse_args()
    tasks, programs = given.tasks.split(","), given.programs.split(",")
    if unknown := set(tasks) - set(TASKS) | set(programs) - set(PROGRAMS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    recorder = Recorder("container_nodes", f"Apply on {given.nodes} container nodes", ours=[APPLY], notes=NOTES)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        chosen = [PROGRAMS[word] for word in programs]
        bench = Bench(Path(folder), given.nodes, given.repeat, given.venv.absolute(), chosen)
        try:
            bench.run(tasks)
        finally:  # also after a failure or Ctrl-C: what is complete
            report(bench, recorder, given.out)


def report(bench: Bench, recorder: Recorder, out: Path) -> None:
    """Record what was measured, and write the table and a plot."""
    words = {name: word for word, name in TASKS.items()}
    for row in bench.rows:
        recorder.add(
            row.task, bench.count, row.program, [cost.seconds for cost in row.costs],
            f"make bench-nodes BENCH_NODES='--nodes {bench.count} --tasks {words[row.task]}'",
            [cost.cpu_seconds for cost in row.costs],
        )  # fmt: skip
    run = recorder.save(out)
    text = f"{run.circumstances}\nHow to read it: tests/benchmarks/README.md\n\n{table(bench.rows, bench.count)}"
    (out / "container_nodes.txt").write_text(text)
    bars = {f"{row.task}: {row.program}": row.seconds for row in bench.rows} or {"nothing was measured": 1}
    (out / "container_nodes.svg").write_text(plot.bars(f"{run.title}: whole process", "s", bars))
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
