"""The units of a job: instances that are processes of this node; creation, start and end.

The unit's first program is the shim, `provision.node.unit.shim`: it starts the instance and records its output and end.
"""

import fcntl
import os
import pwd
import sys
import threading
import time
from typing import List, NamedTuple

from provision.node import files as node_files
from provision.node.jobs import leases as node_leases
from provision.node.jobs import mountpoints as node_mountpoints
from provision.node.jobs import records as node_records
from provision.node.jobs import units as node_units
from provision.node.jobs.paths import is_within
from provision.node.supervisor.runtime import Document, Post, Runtime, Trouble
from provision.node.unit import launch as unit_launch
from provision.node.unit.command_line import HOME, unit_words
from provision.node.unit.launch import Bind, Launch

START_SECONDS = 60
STATE_SECONDS = 0.5
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NEWER = "--property=OOMPolicy="  # of systemd 243
LOST = {"code": 137, "signal": 9, "reason": "its unit was killed on the node"}


class Unit(Runtime):
    """A unit of a job."""

    def __init__(self, config: Document, request: Document, folder: str, post: Post) -> None:
        super().__init__(config, request, folder, post)
        self.unit = node_units.unit_of(self.name, request["attempt"])
        self.unit_folder = node_units.unit_folder(self.unit)

    def is_own(self) -> bool:
        """Return whether the recorded unit belongs to this attempt."""
        owner = node_units.unit_record(self.unit)
        return node_leases.belongs_to(owner, self.request["name"], self.request["id"], self.request["attempt"])

    # Creation

    def create(self, known_id: str, _abandoned: threading.Event) -> None:
        """Create its mount points and its record, unless a previous supervisor has created them."""
        if not (known_id and self.is_own()):
            if not self.is_own() and node_units.is_running(self.unit):
                raise Trouble("another job on the node runs the unit {}".format(self.unit))
            try:
                node_mountpoints.forget(self.unit)
                self._register(self.config_in_home())
            except (OSError, node_files.Refused) as problem:
                node_mountpoints.forget(self.unit)
                raise Trouble(str(problem)) from None
        self.id = self.unit

    def _register(self, config: Document) -> None:
        targets = [target for _, target, _ in config["binds"]] + config["private"]
        os.makedirs(self.unit_folder, mode=0o700, exist_ok=True)
        owner = {"job": self.request["name"], "id": self.request["id"], "attempt": self.request["attempt"]}
        record = dict(owner, instance=self.instance, targets=targets)
        node_files.write_json(os.path.join(self.unit_folder, "about"), record)
        sources = [source for source, _, _ in config["binds"]] + [""] * len(config["private"])
        account = account_of(config["user"])
        node_mountpoints.make(list(zip(sources, targets)), (account.uid, account.groups))

    def config_in_home(self) -> Document:
        """Return the unit's entry of the request with absolute paths in place of those in the account's home."""
        config: Document = self.config["unit"]
        home = account_of(config["user"]).home
        binds = [[source, in_home(target, home), mode] for source, target, mode in config["binds"]]
        return dict(config, binds=binds, folder=in_home(config["folder"], home))

    # Start

    def start(self) -> None:
        """Start it, unless it was started before, and watch it."""
        if not self.has_begun():
            launch_file = os.path.join(self.unit_folder, unit_launch.FILE)
            try:
                config = self.config_in_home()
                node_files.write_json(launch_file, unit_launch.document_of(self.launch(config)))
                self._run(config)
            except OSError as problem:
                raise Trouble(str(problem)) from None
            finally:
                node_files.remove(launch_file)
        trouble = self.record("end").get("trouble")
        if trouble:
            raise Trouble(str(trouble))
        self.watch()

    def launch(self, config: Document) -> Launch:
        """Return what the shim has to start; the job's variables override the account's."""
        account, job = account_of(config["user"]), node_records.job_folder(self.request["name"])
        own = {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "PATH": PATH}
        own["SHELL"] = account.shell
        return Launch(
            command=config["command"],
            env=dict(own, **self.config.get("env") or {}),
            folder=config["folder"],
            binds=[Bind(source, target, mode, is_within(source, job)) for source, target, mode in config["binds"]],
            private=config["private"],
            log=self.log,
            uid=account.uid,
            gid=account.gid,
            groups=account.groups,
        )

    def _run(self, config: Document) -> None:
        """Start the shim with systemd, and wait until it has started the program or failed."""
        shim = [sys.executable or "/usr/bin/python3", "-I", "-S"]
        shim += [os.path.join(self.folder, "programs", "node.pyz"), "unit", self.unit_folder]
        words = self.words(config)
        code, out, err = node_files.program([*words, "--", *shim], START_SECONDS)
        if code and "Unknown assignment" in err:
            words = [word for word in words if not word.startswith(NEWER)]
            code, out, err = node_files.program([*words, "--", *shim], START_SECONDS)
        if code and "already" not in err:
            raise Trouble("systemd-run: {}".format((err or out).strip()[-600:] or "exit code {}".format(code)))
        self._await_shim()

    def words(self, config: Document) -> List[str]:
        """Return the words of systemd-run with those that depend on this node."""
        words = unit_words(self.unit, config)
        words += ["--description", "provision job {}: {}".format(self.request["name"], self.instance)]
        supervisor = node_records.unit_name(self.request["name"], self.request["attempt"])
        words += ["--property=Before=" + supervisor]  # so that the supervisor ends it at shutdown
        words += ["--setenv={}={}".format(key, os.environ[key]) for key in node_records.FOR_TESTS if key in os.environ]
        leases = self.request.get("leases") or ()
        return words + node_units.device_words([name for name in leases if not name.startswith(node_leases.PORT)])

    def _await_shim(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        next_check = time.monotonic() + STATE_SECONDS
        while not self.has_record():
            if time.monotonic() > next_check:
                if not self._is_active() and not self.record("end"):
                    raise Trouble("systemd could not start its unit: {}".format(self._journal()))
                next_check = time.monotonic() + STATE_SECONDS
            if time.monotonic() > deadline:
                raise Trouble("its unit did not start in time: {}".format(self._journal()))
            time.sleep(0.02)

    def record(self, name: str) -> Document:
        """Return a record that the shim writes: ``run`` or ``end``."""
        return node_files.read_json(os.path.join(self.unit_folder, name))

    def has_record(self) -> bool:
        """Return whether the shim has started the program or failed."""
        return bool(self.record("run") or self.record("end"))

    def _is_active(self) -> bool:
        code, out, _ = node_files.program(["systemctl", "show", "--property=ActiveState", "--", self.unit], 10)
        return code != 0 or out.strip() not in ("ActiveState=inactive", "ActiveState=failed")

    def _journal(self) -> str:
        words = ["journalctl", "--no-pager", "--output=cat", "-n", "4", "-u", self.unit]
        return "; ".join(node_files.program(words, 10)[1].split("\n")).strip("; ")[-400:]

    def has_begun(self) -> bool:
        """Return whether its shim has begun; otherwise this supervisor has to start it."""
        node_files.remove(os.path.join(self.unit_folder, unit_launch.FILE))
        return node_units.has_shim(self.unit) or self.has_record()

    def recover(self, known_id: str) -> None:
        """Watch it if a previous supervisor has started it."""
        self.id = known_id
        if self.is_own():
            self.id = self.unit
            self.watch_if_started()

    def watch_if_started(self) -> None:
        """Watch it if it was started."""
        if self.has_begun():
            self.watch()

    def watch(self) -> None:
        """Wait for its end in a thread; the shim logs its output."""
        if self.is_watched:
            return
        self.is_watched, self.is_output_complete = True, False
        self.started = float(self.record("run").get("started") or 0)
        self.post("started", self, None)
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        try:
            handle = os.open(os.path.join(self.unit_folder, "lock"), os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(handle, fcntl.LOCK_SH)  # the shim holds it while it lives
            os.close(handle)
        except OSError:
            pass  # the file was removed: the remaining processes are killed
        node_units.kill(self.unit)
        self.end_output()
        end = self.record("end") or dict(LOST, time=time.time())
        self.end({name: end.get(name) for name in ("code", "signal", "reason")}, end["time"])

    # End

    def terminate(self) -> None:
        """Send SIGTERM to the programs that it was started for."""
        self.terminated_at = time.monotonic()
        self.terminated_pids = node_units.terminate(self.unit)

    def terminate_first(self) -> None:
        """Send SIGTERM to its first process."""
        node_units.terminate_all(self.unit)

    def kill(self) -> None:
        """Kill all its processes."""
        threading.Thread(target=node_units.kill, args=(self.unit,), daemon=True).start()

    def is_gone(self) -> bool:
        """Return whether its processes have ended."""
        return not node_units.is_running(self.unit)

    def give_up(self) -> None:
        """Report its end although the cause is unknown."""
        if self.ended is None:
            self.end(dict(LOST), time.time())

    def may_run(self) -> bool:
        """Return whether it is running."""
        return bool(self.id) and node_units.is_running(self.unit)

    def remove(self) -> None:
        """Remove its records and its mount points."""
        node_mountpoints.forget(self.unit)


# Accounts


class Account(NamedTuple):
    """An account of the node with the groups of an instance."""

    name: str
    uid: int
    gid: int
    groups: List[int]
    home: str
    shell: str


def account_of(user: str) -> Account:
    """Return the account of ``UID:GID[,GID...]``, root's for none, with the groups that it has on this node."""
    uid = int(user.partition(":")[0]) if user else 0
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise Trouble("the node has no account with the number {}".format(uid)) from None
    gids = [int(number) for number in user.partition(":")[2].split(",")] if user else []
    gid = gids[0] if gids else 0
    groups = sorted({*os.getgrouplist(entry.pw_name, gid), *gids})
    return Account(entry.pw_name, uid, gid, groups, entry.pw_dir, entry.pw_shell or "/bin/sh")


def in_home(path: str, home: str) -> str:
    """Return a path with the home in place of its prefix ``~``."""
    return home.rstrip("/") + path[len(HOME) :] if path == HOME or path.startswith(HOME + "/") else path
