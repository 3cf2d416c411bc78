"""One unit of a job: an instance that is a process of this node, made, started, watched and ended.

The unit's first program is unit_shim.py, which starts the instance, keeps its output and writes down how it ended.
"""

import fcntl
import os
import pwd
import sys
import threading
import time

from provision.node import files as node_files
from provision.node.jobs import leases as node_leases
from provision.node.jobs import mountpoints as node_mountpoints
from provision.node.jobs import records as node_records
from provision.node.jobs import units as node_units
from provision.node.jobs.paths import is_within
from provision.node.supervisor.runtime import Runtime, Trouble
from provision.node.unit.command_line import HOME, unit_words

START_SECONDS = 60
STATE_SECONDS = 0.5
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NEWER = "--property=OOMPolicy="  # of systemd 243
LOST = {"code": 137, "signal": 9, "reason": "its unit was killed on the node"}


class Unit(Runtime):
    """One unit, and what is known of it."""

    def __init__(self, config, told, folder, post):
        super().__init__(config, told, folder, post)
        self.unit = node_units.unit_of(self.name, told["attempt"])
        self.place = node_units.unit_folder(self.unit)

    def is_ours(self):
        """Return whether the unit that is known here is of our attempt."""
        told = self.told
        return node_leases.belongs_to(node_units.unit_record(self.unit), told["name"], told["id"], told["attempt"])

    # Making

    def make(self, known_id, _abandoned):
        """Make what it mounts upon and write down whose it is, unless that was done before we were started anew."""
        if not (known_id and self.is_ours()):
            if not self.is_ours() and node_units.is_running(self.unit):
                raise Trouble("there is another unit {} on the node".format(self.unit))
            try:
                node_mountpoints.forget(self.unit)
                self._register(self.at_home())
            except (OSError, node_files.Refused) as problem:
                node_mountpoints.forget(self.unit)
                raise Trouble(str(problem)) from None
        self.id = self.unit

    def _register(self, told):
        targets = [target for _, target, _ in told["binds"]] + told["private"]
        os.makedirs(self.place, mode=0o700, exist_ok=True)
        known = {"job": self.told["name"], "id": self.told["id"], "attempt": self.told["attempt"]}
        whole = dict(known, instance=self.instance(), targets=targets)
        node_files.write_json(os.path.join(self.place, "about"), whole)
        sources = [source for source, _, _ in told["binds"]] + [""] * len(told["private"])
        uid, _, groups = numbers_of(told["user"], account_of(told["user"]))
        node_mountpoints.make(list(zip(sources, targets)), (uid, groups))

    def at_home(self):
        """Return what we are told of the unit, with the home of its account in its paths."""
        told = self.config["unit"]
        home = account_of(told["user"]).pw_dir
        binds = [[source, in_home(target, home), mode] for source, target, mode in told["binds"]]
        return dict(told, binds=binds, folder=in_home(told["folder"], home))

    # Starting

    def start(self):
        """Start it, unless it was started before."""
        if not self.was_begun():
            try:
                told = self.at_home()
                node_files.write_json(os.path.join(self.place, "told"), self.for_shim(told))
                self._run(told)
            except OSError as problem:
                raise Trouble(str(problem)) from None
            finally:
                node_files.remove(os.path.join(self.place, "told"))
        trouble = self._item("end").get("trouble")
        if trouble:
            raise Trouble(trouble)
        self.watch()

    def for_shim(self, told):
        """Return what the shim is told: the program, who it is, and its variables; those of the job count."""
        account, job = account_of(told["user"]), node_records.job_folder(self.told["name"])
        uid, gid, groups = numbers_of(told["user"], account)
        own = {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name, "PATH": PATH}
        own["SHELL"] = account.pw_shell or "/bin/sh"
        return {
            "command": told["command"],
            "env": dict(own, **self.config.get("env") or {}),
            "folder": told["folder"],
            "binds": [[source, target, mode, is_within(source, job)] for source, target, mode in told["binds"]],
            "private": told["private"],
            "log": self.log,
            "uid": uid,
            "gid": gid,
            "groups": groups,
        }

    def _run(self, told):
        """Have systemd start the shim, and wait until that has started the program, or could not."""
        shim = [sys.executable or "/usr/bin/python3", "-I", "-S"]
        shim += [os.path.join(self.folder, "programs", "node.pyz"), "unit", self.place]
        words = self.words(told)
        code, out, err = node_files.program([*words, "--", *shim], START_SECONDS)
        if code and "Unknown assignment" in err:
            words = [word for word in words if not word.startswith(NEWER)]
            code, out, err = node_files.program([*words, "--", *shim], START_SECONDS)
        if code and "already" not in err:
            raise Trouble("systemd-run: {}".format((err or out).strip()[-600:] or "exit code {}".format(code)))
        self._await_shim()

    def words(self, told):
        """Return the words of systemd-run with those that this node alone knows."""
        words = unit_words(self.unit, told)
        words += ["--description", "provision job {}: {}".format(self.told["name"], self.instance())]
        keeper = node_records.unit_name(self.told["name"], self.told["attempt"])
        words += ["--property=Before=" + keeper]  # so that a shutdown lets the keeper end it
        words += ["--setenv={}={}".format(key, os.environ[key]) for key in node_records.FOR_TESTS if key in os.environ]
        leases = self.told.get("leases") or ()
        return words + node_units.device_words([name for name in leases if not name.startswith(node_leases.PORT)])

    def _await_shim(self):
        deadline = time.monotonic() + START_SECONDS
        look_at = time.monotonic() + STATE_SECONDS
        while not self._item("run") and not self._item("end"):
            if time.monotonic() > look_at:
                if not self._is_active() and not self._item("end"):
                    raise Trouble("systemd could not start its unit: {}".format(self._journal()))
                look_at = time.monotonic() + STATE_SECONDS
            if time.monotonic() > deadline:
                raise Trouble("its unit did not begin in time: {}".format(self._journal()))
            time.sleep(0.02)

    def _item(self, name):
        return node_files.read_json(os.path.join(self.place, name))

    def _is_active(self):
        code, out, _ = node_files.program(["systemctl", "show", "--property=ActiveState", "--", self.unit], 10)
        return code != 0 or out.strip() not in ("ActiveState=inactive", "ActiveState=failed")

    def _journal(self):
        words = ["journalctl", "--no-pager", "--output=cat", "-n", "4", "-u", self.unit]
        return "; ".join(node_files.program(words, 10)[1].split("\n")).strip("; ")[-400:]

    def was_begun(self):
        """Return whether its shim has begun; if not it never will, unless we start it."""
        node_files.remove(os.path.join(self.place, "told"))
        return node_units.has_shim(self.unit) or bool(self._item("run") or self._item("end"))

    def find(self, known_id):
        """Find what the keeper before us has started."""
        self.id = known_id
        if self.is_ours():
            self.id = self.unit
            self.was_started()

    def was_started(self):
        """Return whether it was started by the keeper that was here before; it is watched from now on, if so."""
        if not self.was_begun():
            return False
        self.watch()
        return True

    # Watching

    def watch(self):
        """Wait for its end in a thread of its own; the shim keeps its output."""
        if self.watched:
            return
        self.watched, self.drained = True, False
        self.started = float(self._item("run").get("started") or 0)
        self.post("started", self, None)
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self):
        try:
            handle = os.open(os.path.join(self.place, "lock"), os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(handle, fcntl.LOCK_SH)  # the shim has it for as long as it lives
            os.close(handle)
        except OSError:
            pass  # somebody took it away: what runs is ended
        node_units.kill(self.unit)
        self.has_drained()
        end = self._item("end") or dict(LOST, time=time.time())
        self.end({name: end.get(name) for name in ("code", "signal", "reason")}, end["time"])

    # Ending

    def terminate(self):
        """Ask what it was started for to end."""
        self.asked_at = time.monotonic()
        self.asked = node_units.terminate(self.unit)

    def terminate_all(self):
        """Ask its first process to end."""
        node_units.terminate_all(self.unit)

    def kill(self):
        """End it."""
        threading.Thread(target=node_units.kill, args=(self.unit,), daemon=True).start()

    def is_gone(self):
        """Return whether nothing of it runs."""
        return not node_units.is_running(self.unit)

    def give_up(self):
        """Take it for ended though nobody told how."""
        if self.ended is None:
            self.end(dict(LOST), time.time())

    def may_run(self):
        """Return whether it runs."""
        return bool(self.id) and node_units.is_running(self.unit)

    def take_away(self):
        """Forget it, and remove what was made to be mounted upon."""
        node_mountpoints.forget(self.unit)


# Accounts


def account_of(user):
    """Return the account of ``UID:GID[,GID...]``, root's for none."""
    uid = int(user.partition(":")[0]) if user else 0
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        raise Trouble("the node has no account with the number {}".format(uid)) from None


def numbers_of(user, account):
    """Return uid, gid and all groups: those that are named, and those that the account has on this node."""
    if not user:
        return 0, 0, os.getgrouplist(account.pw_name, 0)
    _, _, rest = user.partition(":")
    first, *others = [int(number) for number in rest.split(",")]
    return account.pw_uid, first, sorted({*os.getgrouplist(account.pw_name, first), *others})


def in_home(path, home):
    """Return a path, with the home in the place of what begins it."""
    return home.rstrip("/") + path[len(HOME) :] if path == HOME or path.startswith(HOME + "/") else path
