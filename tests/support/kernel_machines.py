"""Nodes that boot the kernels that GRUB's environment selects, and a cluster of such nodes.

The program of the role kernel runs as on a node. The programs of the boot loader are stand-ins.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

from provision import connectors, engine, workflow
from provision.checks import judge
from provision.components.kernel import COMPONENT, ROLE
from provision.errors import ConnectionFailed
from provision.facts.kernel_upgrade import PROGRAM
from provision.model import (
    ApplyReport,
    CheckStatus,
    Cluster,
    CommandResult,
    Failure,
    NodePlan,
    NodeReport,
    NodeStatus,
    Plan,
    Step,
    StepClass,
)
from provision.model.cause import Cause, CauseKind
from provision.model.reason import reason
from provision.planning.scene import PlanScene
from provision.planning.steps import is_fixable, schedule_of, step_class
from provision.testing import make_node
from provision.workflow import converge, kernel_upgrades, node_locks
from tests.support.modules import load
from tests.support.probe import DEBIAN, answer

kernel_node = load("kernel", "kernel_node", part="module_utils")
OLD, NEW = "6.1.0-49-amd64", "6.1.0-50-amd64"
GRUB_CFG = """
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
fi
function gfxmode {
	set gfxpayload="${1}"
}
menuentry 'Debian GNU/Linux' --class debian $menuentry_id_option 'gnulinux-simple-ROOT' {
	linux	/boot/vmlinuz-6.1.0-50-amd64 root=/dev/vda1 ro quiet
	initrd	/boot/initrd.img-6.1.0-50-amd64
}
submenu 'Advanced options for Debian GNU/Linux' $menuentry_id_option 'gnulinux-advanced-ROOT' {
	menuentry 'Debian GNU/Linux, with Linux 6.1.0-50-amd64' --class os $menuentry_id_option 'gnulinux-6.1.0-50-amd64-advanced-ROOT' {
		linux	/boot/vmlinuz-6.1.0-50-amd64 root=/dev/vda1 ro quiet
	}
	menuentry 'Debian GNU/Linux, with Linux 6.1.0-50-amd64 (recovery mode)' $menuentry_id_option 'gnulinux-6.1.0-50-amd64-recovery-ROOT' {
		linux	/boot/vmlinuz-6.1.0-50-amd64 root=/dev/vda1 ro single
	}
	menuentry 'Debian GNU/Linux, with Linux 6.1.0-49-amd64' --class os $menuentry_id_option 'gnulinux-6.1.0-49-amd64-advanced-ROOT' {
		linux	/boot/vmlinuz-6.1.0-49-amd64 root=/dev/vda1 ro quiet
	}
}
"""  # noqa: E501
ENTRIES = {release: f"gnulinux-advanced-ROOT>gnulinux-{release}-advanced-ROOT" for release in (OLD, NEW)}
REQUEST = {"to": NEW, "seconds": 300, "checks": ["base_system.kernel"]}


_WATCHING = threading.RLock()
"""Held while a watchdog has the clock."""


class Machine:
    """A node whose boots are chosen by the test; GRUB's environment is kept as GRUB keeps it."""

    def __init__(self, root):
        self.root, self.environment, self.ran, self.boots, self.up = root, {}, [], 0, 0.0
        self.abstraction, self.system = "", "ext2"
        (root / "boot/grub").mkdir(parents=True)
        (root / "boot/grub/grub.cfg").write_text(GRUB_CFG)
        (root / "proc/sys/kernel/random").mkdir(parents=True)
        self.release = OLD
        self.boot(OLD)

    def boot(self, release=None):
        """Boot a kernel, by default the one that GRUB selects, as grub.cfg does."""
        selected = self.environment.pop("next_entry", None) or self.environment.get("saved_entry", ENTRIES[OLD])
        self.release = release or next(name for name, entry in ENTRIES.items() if entry == selected)
        self.boots += 1
        (self.root / "proc/sys/kernel/random/boot_id").write_text(f"boot-{self.boots}\n")
        self.uptime(5)

    def uptime(self, seconds):
        """Set the time since the boot."""
        self.up = seconds
        (self.root / "proc/uptime").write_text(f"{seconds:.2f} 9.00\n")

    def run(self, argv, _seconds=0):
        """Answer as a program."""
        self.ran.append(argv)
        if argv[0] == "grub-probe":
            return 0, (self.abstraction if "--target=abstraction" in argv else self.system) + "\n"
        if argv[0] == "grub-editenv":
            action, values = argv[2], argv[3:]
            if action == "set":
                self.environment |= dict(value.split("=", 1) for value in values)
            elif action == "unset":
                self.environment.pop(values[0], None)
            return 0, "".join(f"{name}={value}\n" for name, value in self.environment.items())
        return 0, ""

    @property
    def upgrade(self):
        return kernel_node.Upgrade(str(self.root), self.run, self.release)

    @property
    def phase(self):
        return self.upgrade.read().get("phase")

    @property
    def reboots(self):
        return sum(argv[:1] == ["systemctl"] for argv in self.ran)


class StoppedError(Exception):
    """The test ends the watchdog's wait: the node goes on while the controller works."""


class CrashError(Exception):
    """The controller is killed."""


class ClusterNode(Machine):
    """A node with a fault in its new kernel.

    ``panic``, ``reset`` (after the watchdog has started), ``lost`` (no network) or ``worse`` (a check fails).
    """

    def __init__(self, root, name):
        super().__init__(root)
        self.name, self.fault, self.jobs, self.drain, self.installed = name, "", [], "", False
        self.orders = []
        """Kernels that ran, in order."""

    def run(self, argv, seconds=0):
        """Refuse an entry that is not installed."""
        self.asked_to_reboot = getattr(self, "asked_to_reboot", False) or argv[0] == "systemctl"
        return super().run(argv, seconds)

    def settle(self):
        """Reboot if that was requested, and start the watchdog."""
        while getattr(self, "asked_to_reboot", False):
            self.asked_to_reboot = False
            self.boot()
            self.orders.append(self.release)
            if self.release == NEW and self.fault == "panic":
                self.boot()
                self.orders.append(self.release)
            self.watch(at_once=True)

    def watch(self, *, at_once):
        """Run the watchdog until its first pause, or to its end."""

        def sleep(_seconds):
            if at_once:
                raise StoppedError
            self.uptime(self.up + 1)

        with _WATCHING:
            real = kernel_node.time
            kernel_node.time = SimpleNamespace(sleep=sleep, time=real.time, monotonic=real.monotonic)
            try:
                self.upgrade.watch({})
            except StoppedError:
                pass
            finally:
                kernel_node.time = real

    def pass_time(self, seconds):
        """Let time pass: an unconfirmed kernel is left."""
        self.uptime(self.up + seconds)
        record = self.upgrade.read()
        if record.get("phase") == "trial" and self.up >= record["seconds"]:
            self.watch(at_once=False)
            self.settle()

    @property
    def reachable(self):
        return not (self.fault == "lost" and self.release == NEW)

    def facts(self):
        """Return the outputs of a probe."""
        if self.release == NEW and self.fault == "reset":
            self.boot()
            self.watch(at_once=True)
        record = self.root / kernel_node.STATE.lstrip("/")
        lines = ["drained"] if "owner: kernel" in self.drain.splitlines() else []
        lines += ["record", record.read_text()] if record.exists() else []
        memory = "65536" if self.fault == "worse" and self.release == NEW else "unlimited"
        limits = "".join(
            f"{name}  {value}  {value}  units\n"
            for name, value in (
                ("Max locked memory", memory),
                ("Max open files", "9999999"),
                ("Max processes", "unlimited"),
            )
        )
        return {
            "system": DEBIAN.replace("6.1.0-40-amd64", self.release),
            "boot": f"uptime={self.up:.1f}\nboot_id=boot-{self.boots}\n",
            "managed": json.dumps({"sealed": {}, "observed": {}, "jobs": self.jobs, "hung": []}),
            "kernel_upgrade": "\n".join(lines),
            "kind": "container=none\nvm=kvm\n",
            "limits": f"{limits}== init\n{limits}",
        }

    def ask_jobs(self, request):
        """Drain and resume as the program for jobs."""
        mine = f"owner: {request['owner']}" in self.drain.splitlines()
        if request["do"] == "drain" and (mine or not self.drain):
            self.drain = f"{request['reason']}\nowner: {request['owner']}\n"
        if request["do"] == "resume" and mine:
            self.drain = ""


class KernelWorld:
    """A cluster whose nodes get the kernel `NEW`; Ansible, the probe's transport and the clock are played."""

    def __init__(self, path, monkeypatch):
        self.path, self.nodes, self.calls, self.crash_at = path, {}, 0, 0
        self.ran, self.log, self.failing, self._lock = [], [], set(), threading.Lock()
        self.clock, self.crash_on, self.during_play = 0.0, "", lambda: None
        self.stack_lock = None
        self.lose = ""
        """An action on a node whose connection is lost before it."""
        self.cut_off = ""
        """An action on a node whose answer is lost."""
        self.before_sleep = lambda: None
        """Called before time passes."""
        monkeypatch.setenv("XDG_STATE_HOME", str(path / "state"))
        monkeypatch.setattr(kernel_node, "ORDERLY_SECONDS", 0.0)
        real = converge.probe_and_plan
        monkeypatch.setattr(connectors, "each", self._each)
        monkeypatch.setattr(connectors, "connect", lambda node: _Connector(self, node.name))
        monkeypatch.setattr(converge, "probe_and_plan", lambda *words: self._plan(real(*words), words[2]))
        monkeypatch.setattr(engine, "run_playbook", self._play)
        monkeypatch.setattr(node_locks, "acquire", self._acquire)
        clock = SimpleNamespace(sleep=self._sleep, monotonic=lambda: self.clock)
        monkeypatch.setattr(kernel_upgrades, "time", clock)

    def add(self, *names):
        """Add nodes."""
        for name in names:
            (self.path / name).mkdir()
            self.nodes[name] = ClusterNode(self.path / name, name)

    def apply(self, *, reboot=True, forced=(), waves=None, **variables):
        """Apply to all nodes."""
        cluster = self.cluster(**variables)
        request = workflow.Request((), forced, frozenset(), reboot)
        return workflow.apply(cluster, cluster.nodes, waves=workflow.WaveOptions(waves), request=request)

    def cluster(self, **variables):
        """Return the inventory."""
        wanted = {"kernel_release": NEW, "kernel_confirm_seconds": 300, **variables}
        nodes = tuple(make_node(name, **wanted) for name in self.nodes)
        return Cluster("c", self.path / "hosts.yml", nodes, stack_lock=self.stack_lock)

    def count(self, what):
        """Count an action on a node; the controller is killed at the chosen one."""
        with self._lock:
            self.calls += 1
            self.log.append(what)
            if self.calls == self.crash_at or what == self.crash_on:
                self.crash_on = ""
                raise CrashError(what)

    def _sleep(self, seconds):
        self.before_sleep()
        self.clock += seconds
        for node in self.nodes.values():
            node.pass_time(seconds)

    def _each(self, nodes, function, **_):
        answers = {}
        for node in nodes:
            try:
                answers[node.name] = function(_Connector(self, node.name))
            except ConnectionFailed as error:
                answers[node.name] = error
        return answers

    def _plan(self, result, request):
        plans = []
        for plan in result.plan.nodes:
            facts = result.facts.get(plan.name)
            if facts is None:
                plans.append(plan)
                continue
            node = result.cluster.node(plan.name)
            forced = frozenset(request.forced)
            scene = PlanScene(node, facts, result.cluster, result.facts, reboot=request.reboot, forced=forced)
            own = [one for one in judge(node, facts, result.cluster) if one.id == "kernel.release"]
            causes = [
                Cause(CauseKind.CHECK, one.id, one.reason)
                for one in own
                if one.status is CheckStatus.FAIL and is_fixable(scene, one)
            ]
            if ROLE in forced:
                causes.append(Cause(CauseKind.FORCED, "", reason("plan.forced")))
            steps = ()
            if causes:
                what = step_class(ROLE, causes, scene)
                reboots = what is StepClass.NEEDS_REBOOT
                schedule = schedule_of(scene) if reboots else ()
                waits = (*schedule, *(facts.managed.jobs if reboots else ()))
                steps = (Step(ROLE, what, tuple(cause.reason for cause in causes), waits, schedule=schedule),)
            plans.append(NodePlan(plan.name, steps))
        return replace(result, plan=Plan(tuple(plans)))

    def _play(self, _inventory, names, **_):
        self.count("play")
        self.ran.append(list(names))
        self.during_play()
        reports = []
        for name in names:
            if name in self.failing:
                failure = Failure(ROLE, "Install", "nvidia/550: cannot be built", "", None, "kernel.module.not_built")
                reports.append(NodeReport(name, NodeStatus.FAILED, (), failure))
                continue
            status = NodeStatus.UNCHANGED if self.nodes[name].installed else NodeStatus.CHANGED
            self.nodes[name].installed = True
            reports.append(NodeReport(name, status, ()))
        self.count("played")
        return ApplyReport(tuple(reports), 1.0)

    @contextmanager
    def _acquire(self, _nodes, **_):
        yield SimpleNamespace(
            refused={},
            failed={},
            warnings={},
            lost=dict,
            note=lambda *_: None,
            finish=lambda *_: None,
            renew=lambda _nodes: {},
        )


class _Connector:
    """A connection to a node."""

    agent, python, reason = False, "python3", "a test double"

    def __init__(self, world, name):
        self.world, self.name, self.node = world, name, world.nodes[name]
        if not self.node.reachable:
            raise ConnectionFailed("no route to host", node=name)

    def run(self, script, *, stdin=b"", timeout=None, become=True, limit=0):
        """Run a program of ours on the node; the controller may be killed before or after it."""
        del timeout, become, limit
        if ".pyz probe" in script:
            return answer(self.node.facts())(script, stdin)
        words = script.split()
        action = words[-1] if words[0] == PROGRAM else json.loads(stdin)["do"]
        self.world.count(f"{self.name} before {action}")
        if self.world.lose == f"{self.name} {action}":
            raise ConnectionFailed("connection reset", node=self.name)
        result = self._answer(words, action, stdin)
        self.world.count(f"{self.name} after {action}")
        return result if self.world.cut_off != f"{self.name} {action}" else CommandResult("", "", -1)

    def _answer(self, words, action, stdin):
        if words[0] != PROGRAM:
            self.node.ask_jobs(json.loads(stdin))
            return CommandResult("{}", "", 0)
        try:
            reply = getattr(self.node.upgrade, action)(json.loads(stdin))
        except kernel_node.Refused as refused:
            reply = {"code": refused.code, "problem": refused.problem}
        self.node.settle()
        return CommandResult(json.dumps(reply), "", 0)

    def close(self):
        """Close nothing."""


assert COMPONENT.role == ROLE
