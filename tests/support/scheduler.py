"""Nodes, a scheduler's programs that keep their state in files, and an apply between the two."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

from provision import connectors, engine, workflow
from provision.model import ApplyReport, Cluster, Failure, NodePlan, NodeReport, NodeStatus, Plan, Step, StepClass
from provision.testing import FakeConnector, make_node
from provision.workflow import converge, draining, node_locks
from tests.support.probe import DEBIAN, answer
from tests.support.reasons import plain

__all__ = ["JOB", "World", "make_world"]

SCONTROL = """#!/bin/sh
cd "$(dirname "$0")"
echo "scontrol $*" >> calls
[ ! -e broken ] || { echo "slurm_update error: Unable to contact slurm controller" >&2; exit 1; }
case $1 in
show)
  state=$(cat "$3.state" 2>/dev/null || echo IDLE)
  echo "NodeName=$3 Arch=x86_64 State=$state Owner=N/A Reason=$(cat "$3.reason" 2>/dev/null)" ;;
update)
  name=${2#NodeName=}
  if [ "$3" = State=DRAIN ]; then
    cat "$XDG_STATE_HOME"/provision/drained/*.json > recorded
    echo IDLE+DRAIN > "$name.state"; echo "${4#Reason=}" > "$name.reason"
  else echo IDLE > "$name.state"; fi ;;
esac
"""
KUBECTL = """#!/bin/sh
cd "$(dirname "$0")"
echo "kubectl $*" >> calls
case $1 in
get) cat "$3.unschedulable" 2>/dev/null || true ;;
cordon) echo true > "$2.unschedulable" ;;
uncordon) rm -f "$2.unschedulable" ;;
drain) [ ! -e "$2.pods" ] || { echo "error when evicting pods: global timeout reached" >&2; exit 1; } ;;
esac
"""
OWN = """#!/bin/sh
cd "$(dirname "$0")"
echo "own $*" >> calls
[ "$1" = off ] && [ -e "$2.out" ] && exit 100
exit 0
"""
JOB = "process 4711 (python3 of alice) holds /dev/nvidia0"


class World:
    """Nodes with what is left to do on them, jobs on them, and a scheduler beside them."""

    def __init__(self, folder, path):
        self.folder, self.path = folder, path
        self.steps: dict[str, tuple[Step, ...]] = {}
        self.jobs: dict[str, str] = {}
        self.failing: set[str] = set()
        self.ran: list[list[str]] = []
        self.slept: list[float] = []
        self.on_sleep = lambda: None
        for name, text in (("scontrol", SCONTROL), ("kubectl", KUBECTL), ("own", OWN)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def need(self, *names, step_class=StepClass.NEEDS_IDLE, role="docker_engine"):
        """Let there be something to do."""
        self.steps |= {name: (Step(role, step_class, (plain("docker.service is stopped"),)),) for name in names}

    def calls(self, word=""):
        """What was called, without the questions."""
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if word in line and " show " not in line and " get " not in line]

    def file(self, name, text=None):
        """Write, or read, a file of the scheduler's."""
        if text is not None:
            (self.folder / name).write_text(text + "\n")
        return (self.folder / name).read_text().strip() if (self.folder / name).exists() else ""

    def record(self):
        """The nodes that are written down as drained by us."""
        files = list((self.path / "state/provision/drained").glob("*.json"))
        assert [file.stat().st_mode & 0o777 for file in files] == [0o600] * len(files)
        return sorted(json.loads(files[0].read_text())["nodes"]) if files else []

    def apply(self, *names, waves=None, request=None, **variables):
        """Apply to nodes of these variables."""
        nodes = tuple(make_node(name, **variables) for name in names or ("a",))
        cluster = Cluster("c", self.path / "hosts.yml", nodes)
        return workflow.apply(cluster, nodes, waves=workflow.WaveOptions(waves), request=request)


def make_world(monkeypatch, tmp_path):
    """A world in which nothing has happened yet; Ansible and the clock are played."""
    (tmp_path / "bin").mkdir()
    made = World(tmp_path / "bin", tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    real, clock = converge.probe_and_plan, [0.0]

    def each(nodes, function, **_):
        return {node.name: function(FakeConnector({".pyz probe": seen(node.name)}, node.name)) for node in nodes}

    def seen(name):
        jobs = [made.jobs[name]] if name in made.jobs else []
        managed = {"sealed": {}, "observed": {}, "jobs": jobs, "hung": []}
        return answer({"system": DEBIAN, "managed": json.dumps(managed)})

    def look(cluster, nodes, request=None):
        result = real(cluster, nodes, request)
        disruptive = request.disruptive if request else frozenset()

        def waiting(name, step):
            jobs = (made.jobs[name],) if name in made.jobs and name not in disruptive else ()
            return replace(step, waits_for=step.waits_for + (jobs if step.step_class is not StepClass.SAFE else ()))

        plans = (NodePlan(n.name, tuple(waiting(n.name, s) for s in made.steps.get(n.name, ()))) for n in nodes)
        return replace(result, plan=Plan(tuple(plans)))

    def run_playbook(_inventory, names, **_):
        made.ran.append(list(names))
        bad = [name for name in names if name in made.failing]
        made.steps |= dict.fromkeys(set(names) - set(bad), ())
        failure = Failure("docker_engine", "Run docker", "docker does not start", "", None)
        reports = (
            NodeReport(n, NodeStatus.FAILED, (), failure) if n in bad else NodeReport(n, NodeStatus.CHANGED, ())
            for n in names
        )
        return ApplyReport(tuple(reports), 1.0)

    @contextmanager
    def acquire(_nodes, **_):
        nothing = SimpleNamespace(refused={}, failed={}, warnings={})
        yield SimpleNamespace(**vars(nothing), lost=dict, note=lambda *_: None, finish=lambda *_: None)

    def sleep(seconds):
        made.slept.append(seconds)
        clock[0] += seconds
        made.on_sleep()

    monkeypatch.setattr(connectors, "each", each)
    monkeypatch.setattr(converge, "probe_and_plan", look)
    monkeypatch.setattr(engine, "run_playbook", run_playbook)
    monkeypatch.setattr(node_locks, "acquire", acquire)
    monkeypatch.setattr(draining, "time", SimpleNamespace(
        sleep=sleep, monotonic=lambda: clock[0], strftime=lambda *_: "2026", gmtime=lambda: None
    ))  # fmt: skip
    return made
