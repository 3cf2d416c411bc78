"""Apply before and beside Ansible: who may work on an inventory, on which nodes, and where its logs are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from provision import connectors, engine, workflow
from provision.errors import LockedError, ProvisionError
from provision.model import ApplyReport, Cluster, NodeReport, NodeStatus
from provision.testing import FakeConnector, make_node

DEBIAN = 'ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nprobe_python3=/usr/bin/python3\n'
CENTOS = 'ID="centos"\nVERSION_ID="7"\nPRETTY_NAME="CentOS Linux 7 (Core)"\nprobe_python3=\n'
HOLDER = """
import sys
from provision import connectors, workflow
from provision.model import Cluster
from provision.testing import make_node
from pathlib import Path
def each(*_):
    print("held", flush=True)
    sys.stdin.read()
    return {}
connectors.each = each
workflow.apply(Cluster("c", Path(sys.argv[1]), (make_node("a"),)), [])
"""


@pytest.fixture
def answers(monkeypatch, tmp_path):
    """What each node prints when it is looked at; Ansible itself is not run, and who reached it is returned."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    said: dict[str, str] = {}
    reached: list[str] = []

    def each(nodes, function, **_):
        found = {}
        for node in nodes:
            try:
                found[node.name] = function(FakeConnector({"os-release": said.get(node.name, DEBIAN)}, node.name))
            except ProvisionError as error:
                found[node.name] = error
        return found

    def run_playbook(_inventory, names, *, log, **_):
        reached.extend(names)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"log of {' '.join(names)}\n")
        return ApplyReport(tuple(NodeReport(name, NodeStatus.UNCHANGED, ()) for name in names), 1.0)

    monkeypatch.setattr(connectors, "each", each)
    monkeypatch.setattr(engine, "run_playbook", run_playbook)
    return said, reached


def cluster(path, *nodes):
    """A cluster of an inventory at `path`."""
    return Cluster("c", path, nodes or (make_node("a"), make_node("b")))


def test_an_unsupported_system_is_named_before_ansible_starts(answers, tmp_path):
    """Its Python may be too old for Ansible to say even that; the other node goes on."""
    said, reached = answers
    said["a"] = CENTOS
    full = cluster(tmp_path / "hosts.yml")
    report = workflow.apply(full, full.nodes)

    assert reached == ["b"]
    assert report.nodes[0].status is NodeStatus.FAILED
    assert "CentOS Linux 7 (Core)" in report.nodes[0].error.message
    assert "debian 12, debian 13" in report.nodes[0].error.message


def test_a_node_without_python_is_told_so(answers, tmp_path):
    """Unless the inventory says where its Python is."""
    said, reached = answers
    said["a"] = said["b"] = DEBIAN.replace("/usr/bin/python3", "")
    nodes = (make_node("a"), make_node("b", ansible_python_interpreter="/opt/python"))
    report = workflow.apply(cluster(tmp_path / "hosts.yml", *nodes), nodes)

    assert reached == ["b"]
    assert "no python3" in report.nodes[0].error.message
    assert "apt-get install python3" in report.nodes[0].error.remedy


def test_the_look_works_in_a_real_shell():
    """This machine answers as a node would."""
    from provision.workflow import converge

    done = subprocess.run(["sh", "-c", converge._LOOK], capture_output=True, text=True, check=True)

    assert "ID=" in done.stdout
    assert "probe_python3=/" in done.stdout


def test_a_second_apply_is_told_who_is_at_work(answers, tmp_path):
    """Two applies of one inventory would undo each other's steps; another inventory is free."""
    _, reached = answers
    path = tmp_path / "prod" / "hosts.yml"
    path.parent.mkdir()
    path.write_text("")
    environment = os.environ | {"PYTHONPATH": str(Path(connectors.__file__).parents[2])}
    argv = [sys.executable, "-c", HOLDER, str(path.parent)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(LockedError, match=f"process {other.pid} of ") as refused:
            workflow.apply(cluster(path), cluster(path).nodes)
        workflow.apply(cluster(tmp_path / "test.yml"), [make_node("c")])
        other.communicate(timeout=20)
    workflow.apply(cluster(path), [make_node("d")])

    assert refused.value.exit_code == 4
    assert reached == ["c", "d"]


def test_a_home_that_cannot_be_written_is_a_warning(answers, tmp_path, monkeypatch):
    """The nodes are mended all the same."""
    _, reached = answers
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(engine, "run_playbook", lambda _, names, **__: reached.extend(names) or ApplyReport((), 1.0))
    report = workflow.apply(cluster(tmp_path / "hosts.yml"), [])

    assert "no lock" in report.warnings[0]


def test_a_bundle_tells_of_degraded_nodes_that_were_taken(answers, tmp_path):
    """However many applies came after it."""
    said, _ = answers
    mine = cluster(tmp_path / "hosts.yml")
    assert workflow.note_degraded(mine, "run", [("a", "nv_peer_mem did not come up")]) == ""
    for number in range(6):
        (workflow.log_folder(mine) / f"apply-2026112{number}T100000-1.log").write_text(f"apply {number}\n")
    said |= {"a": "", "b": ""}
    workflow.support_bundle(mine, tmp_path / "b.tar.gz")
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        texts = [tar.extractfile(member).read().decode() for member in tar.getmembers()]

    assert any("nv_peer_mem did not come up" in text for text in texts)
    assert sum(text.startswith("apply ") for text in texts) == 5


@pytest.mark.usefixtures("answers")
def test_what_is_written_down_of_degraded_nodes_has_an_end(tmp_path):
    """A host file made every minute fills no disk; the newest entries are there, each on a line of its own."""
    mine = cluster(tmp_path / "hosts.yml")
    for number in range(600):
        assert workflow.note_degraded(mine, "hostfile", [("a", f"{number} {'x' * 8000}")]) == ""
    folder = workflow.log_folder(mine)
    lines = (folder / "degraded.log").read_text().splitlines()

    assert json.loads(lines[-1])["nodes"]["a"].startswith("599 ")
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2_100_000
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}


def test_a_bundle_holds_only_the_logs_of_its_own_inventory(answers, tmp_path):
    """Another cluster's host names and outputs are nobody else's business."""
    said, _ = answers
    one, other = cluster(tmp_path / "one.yml"), cluster(tmp_path / "other.yml")
    workflow.apply(one, [make_node("of-one")])
    workflow.apply(other, [make_node("of-other")])
    said |= {"a": "", "b": ""}
    workflow.support_bundle(one, tmp_path / "b.tar.gz")
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        texts = [tar.extractfile(member).read().decode() for member in tar.getmembers()]

    assert any("log of of-one" in text for text in texts)
    assert not any("of-other" in text for text in texts)
