"""Nodes that are neither well nor gone: each is named within a minute, and holds up no other."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.conftest import LAB
from tests.support.engine import engine_host, held
from tests.support.reasons import shown_document

pytestmark = pytest.mark.long

MOST_SECONDS = 60
ALONE_SECONDS = 2
"""As much longer than alone may a healthy node take beside a sick one."""
STOPPED = "#!/bin/sh\nkill -STOP $$\nsleep 1000\n"
"""A program that hangs; a process that no signal can end is not to be had in a container."""
LATER = '#!/bin/sh\nexec /usr/bin/date.whole -d "2 hours 3 minutes" "$@"\n'
"""A clock that is wrong; that of a container is the machine's own, and stays as it is."""
OTHER_KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIJ5w1cCm4Wb0ThT5YlWn0YmPdR2m5z8m1yU0c3Q0S8hX"


@pytest.fixture
def names(cluster) -> tuple[str, str]:
    """The sick node, and the healthy one."""
    first, second = (node["name"] for node in cluster["nodes"])
    return first, second


@pytest.fixture
def planned(provision, names):
    """Plan both nodes; return the sick node's plan after checking that the other is planned as when alone.

    Alone it is planned before and after: the machine may be busy with other things, and counts by its worse moment.
    """
    sick, healthy = names

    def alone() -> float:
        return provision("plan", "--lab", LAB, "--json", "--limit", healthy).document["nodes"][0]["seconds"]

    def plan(*words: str) -> dict:
        before = alone()
        began = time.monotonic()
        done = provision("plan", *(words or ("--lab", LAB)), "--json")
        seconds = time.monotonic() - began
        nodes = {node["name"]: node for node in done.document["nodes"]}
        assert seconds < MOST_SECONDS, str(done)
        if not words:
            assert nodes[healthy]["error"] is None, nodes[healthy]
            assert nodes[healthy]["seconds"] < max(before, alone()) + ALONE_SECONDS, (nodes[healthy], before)
        return nodes[sick]

    return plan


@contextmanager
def program(on_node, node: str, path: str, text: str = STOPPED) -> Iterator[None]:
    """Put another program in one's place, one that hangs unless another is given."""
    on_node(node, f"mv {path} {path}.whole && printf '%s' '{text}' >{path} && chmod 755 {path}")
    try:
        yield
    finally:
        on_node(node, f"mv {path}.whole {path}; rm -f /run/provision-probe.stuck")


@pytest.mark.parametrize(("path", "command"), [("/usr/bin/nvidia-smi", "nvidia-smi"), ("/usr/bin/stat", "stat -f")])
def test_a_hanging_program_is_reported(planned, on_node, names, path, command) -> None:
    """A driver that does not answer; a dead mount."""
    with program(on_node, names[0], path):
        node_plan = planned()

    assert any(f"hung: {command}" in shown_document(finding) for finding in node_plan["finding_codes"]), node_plan


@pytest.mark.parametrize(
    ("fault", "repair", "finding"),
    [
        # Other programs write to /, so it cannot be made read-only, as the kernel does after an error: /etc is.
        (
            "mount --rbind /etc /etc && mount -o remount,bind,ro /etc",
            "umount -l /etc",
            "node.disks.read_only /etc",
        ),
        # Its free space alone would show much.
        ("mount -t tmpfs -o nr_inodes=2 none /tmp && touch /tmp/last", "umount /tmp", "node.disks.inodes /tmp 0"),
    ],
    ids=["read-only", "no inode"],
)
def test_an_unusable_file_system_is_reported(planned, on_node, names, fault, repair, finding) -> None:
    on_node(names[0], fault)
    try:
        node_plan = planned()
    finally:
        on_node(names[0], repair)

    findings = list(map(shown_document, node_plan["finding_codes"]))
    assert any(finding in text for text in findings), node_plan


def test_a_wrong_clock_is_reported_and_does_not_change_the_plan(provision, names, on_node) -> None:
    """Ahead by some hours; what the roles left is of the past then, and still counts."""
    sick, healthy = names
    with program(on_node, sick, "/usr/bin/date", LATER):
        began = time.monotonic()
        verified = provision("verify", "--lab", LAB, "--json").document
        seconds = time.monotonic() - began
        planned = provision("plan", "--lab", LAB, "--exit-code")
    nodes = {node["name"]: {check["id"]: check for check in node["checks"]} for node in verified["nodes"]}

    assert seconds < MOST_SECONDS
    assert nodes[sick]["node.clock"]["status"] == "warn"
    assert nodes[sick]["node.clock"]["code"] == "node.clock.ahead"
    assert "restart it" in nodes[sick]["node.clock"]["remedy"]
    assert nodes[healthy]["node.clock"]["status"] == "pass"
    assert planned.code == 0, str(planned)


@contextmanager
def room_for(provision, node: str, processes: int) -> Iterator[None]:
    """Let a node start so many processes more; further ones fail as where all numbers are used up."""
    folder = provision.folder / "state/provision/labs" / LAB
    (pid,) = held(engine_host(folder), "inspect", "-f", "{{.State.Pid}}", f"provision-{LAB}-{node}")
    groups = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    kind, group = next((kind, path) for _, kind, path in groups if kind in {"pids", ""})
    limit = Path(f"/sys/fs/cgroup/{kind}", group.partition("/init.scope")[0].strip("/"), "pids.max")
    limit.write_text(str(int(limit.with_name("pids.current").read_text()) + processes))
    try:
        yield
    finally:
        limit.write_text("max")


@pytest.mark.parametrize("processes", [0, 2, 4, 8])
def test_a_node_that_cannot_start_processes_is_reported(provision, planned, names, processes) -> None:
    """Not for the login, not after it, or not all processes of the probe."""
    with room_for(provision, names[0], processes):
        node_plan = planned()

    assert node_plan["error"], node_plan
    assert "process" in node_plan["remedy"], node_plan


def test_a_node_that_stops_answering_during_a_probe_is_reported(provision, names, on_node) -> None:
    """A half-open connection: no data arrives, and no end."""
    sick, healthy = names
    with program(on_node, sick, "/usr/bin/nvidia-smi"):
        began = time.monotonic()
        with provision.start("plan", "--lab", LAB, "--json") as plan:
            time.sleep(4)  # it is logged in by then, and waits for the program that hangs
            provision.ok("lab", "link", LAB, sick, "off")
            try:
                out, _ = plan.communicate(timeout=120)
                seconds = time.monotonic() - began
            finally:
                provision.ok("lab", "link", LAB, sick, "on")

    assert seconds < MOST_SECONDS, out
    assert plan.returncode == 1
    assert f'"name": "{healthy}",\n      "reachable": true' in out
    assert f'"name": "{sick}",\n      "reachable": false' in out


@pytest.fixture
def trusting(ssh_files: Path, tmp_path):
    """Make an inventory of the lab with other known_hosts: what the operator knows is not what the nodes show."""

    def make(lines: list[list[str]]) -> str:
        shutil.copytree(ssh_files / "inventory", tmp_path / "inventory")
        (tmp_path / "known_hosts").write_text("".join(" ".join(words) + "\n" for words in lines))
        file = tmp_path / "inventory/hosts.yml"
        file.write_text(file.read_text().replace(str(ssh_files / "known_hosts"), str(tmp_path / "known_hosts")))
        return str(tmp_path / "inventory")

    known = [line.split() for line in (ssh_files / "known_hosts").read_text().splitlines() if line.strip()]
    return make, known


def test_a_reinstalled_node_is_reported(provision, cluster, trusting, names) -> None:
    """It has the old address and another host key; nothing is sent to it, and the other node is planned."""
    make, known = trusting
    address = next(node["address"] for node in cluster["nodes"] if node["name"] == names[0])
    new = [[host, kind, OTHER_KEY if address in host else key] for host, kind, key in known]
    done = provision("plan", "-i", make(new), "--json")
    sick, healthy = done.document["nodes"]

    assert done.code == 1
    assert (sick["reachable"], healthy["error"]) == (False, None)
    assert "CHANGED" in sick["error"]
    assert "ssh-keygen -R" in sick["remedy"]


def test_nodes_with_swapped_addresses_are_reported(provision, trusting) -> None:
    """Each answers at the other's address; nothing is sent to either."""
    make, known = trusting
    (first, kind, key), (second, other_kind, other_key) = known
    done = provision("plan", "-i", make([[first, other_kind, other_key], [second, kind, key]]), "--json")

    assert done.code == 1
    for node, other in zip(done.document["nodes"], (second, first), strict=True):
        assert node["reachable"] is False
        assert f"sends the host key of {other}" in node["error"]
        assert "swapped" in node["remedy"]
