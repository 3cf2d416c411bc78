"""Boot a node into another kernel once, and return to the previous one unless the controller confirms the new one.

The record of an upgrade, /var/lib/provision/kernel/upgrade.json, has a phase:

| phase | meaning | next |
| --- | --- | --- |
| rebooting | the boot loader starts the new kernel once | trial, or fell_back if the node boots the previous kernel |
| trial | the new kernel runs, and the boot loader's default is the previous one | confirmed, rejected or expired |
| expired | the new kernel was not confirmed in time; the node reboots into the previous one | |
| fell_back | the node runs the previous kernel, because the new one did not boot, panicked or was reset | |
| rejected | the controller rejected the new kernel, with a cause; the release is not tried again | |
| confirmed | the new kernel is the boot loader's default | |

Run at boot by provision-kernel.service (`watch`), and by the controller. Requires only the standard library.
"""

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

STATE = "/var/lib/provision/kernel/upgrade.json"
LOCK = "/var/lib/provision/kernel/lock"
RELEASE = re.compile(r"[0-9][A-Za-z0-9._+~-]{0,99}\Z")
CODE = re.compile(r"[a-z][a-z0-9_.]{0,60}\Z")
CHECK = re.compile(r"[a-z0-9_.]{1,80}\Z")
MOST_CHECKS = 200
PANIC_SECONDS = 30
PROGRAM_SECONDS = 120
POLL_SECONDS = 1.0
ORDERLY_SECONDS = 120.0
"""How long an orderly reboot may take before the kernel reboots at once."""
LEAST_SECONDS, MOST_SECONDS = 60, 86400
PLAIN_STORAGE = frozenset({"", "partition"})
UNFINISHED = frozenset({"rebooting", "trial"})
ON_TRIAL = frozenset({"trial", "expired", "confirmed"})
"""The phases in which the running kernel can be confirmed. `expired`: an earlier confirmation was cut short."""


class Refused(Exception):
    """A request cannot be fulfilled; nothing was changed.

    Args:
        code: a stable code.
        problem: the problem, in one sentence.
    """

    def __init__(self, code, problem):
        """Set the parts."""
        super().__init__(problem)
        self.code, self.problem = code, problem


def run(argv, seconds=PROGRAM_SECONDS):
    """Return the exit code (None after a timeout, 127 if it cannot be started) and the output of a program."""
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=dict(os.environ, LC_ALL="C"),
            )
        except OSError as error:
            return 127, "{}: {}".format(argv[0], error.strerror)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        output.seek(0)
        return code, output.read().decode(errors="replace")


class Loader:
    """GRUB 2, whose environment selects the default entry and an entry for the next boot only.

    Args:
        root: prefix of every path; other than "/" in tests.
        run: runs a program.
    """

    def __init__(self, root="/", run=run):
        """Find GRUB's folder: /boot/grub (Debian, Ubuntu) or /boot/grub2 (Enterprise Linux)."""
        self.root, self.run = root.rstrip("/"), run
        folders = [name for name in ("grub", "grub2") if os.path.isfile(self.path("/boot/{}/grub.cfg".format(name)))]
        self.name = folders[0] if folders else ""

    def path(self, path):
        """Return a path below the root."""
        return self.root + path

    def config(self):
        """Return the text of grub.cfg."""
        with open(self.path("/boot/{}/grub.cfg".format(self.name)), errors="replace") as stream:
            return stream.read()

    def check(self):
        """Check that GRUB can start a kernel once.

        GRUB itself removes the entry for the next boot. It cannot write to LVM, RAID and some file systems: then it would
        start the new kernel again and again.
        """
        if not self.name:
            raise Refused("kernel.loader.unknown", "the boot loader is not GRUB 2: there is no /boot/grub*/grub.cfg")
        if "next_entry" not in self.config():
            raise Refused("kernel.loader.unknown", "grub.cfg does not support an entry for the next boot only")
        folder = "/boot/" + self.name
        code, storage = self.run([self.name + "-probe", "--target=abstraction", folder])
        if code != 0 or not set(storage.split()) <= PLAIN_STORAGE:
            why = "GRUB cannot write to {} ({})".format(folder, storage.strip() or "unknown storage")
            raise Refused("kernel.loader.read_only", why)
        code, system = self.run([self.name + "-probe", "--target=fs", folder])
        if code != 0 or system.strip() in ("btrfs", "zfs", ""):
            why = "GRUB cannot write to {} ({})".format(folder, system.strip() or "unknown file system")
            raise Refused("kernel.loader.read_only", why)

    def is_configured(self):
        """Return whether grub.cfg starts the chosen default, and reboots after a panic."""
        config = self.config()
        return '"${saved_entry}"' in config and (self.uses_bls() or " panic={}".format(PANIC_SECONDS) in config)

    def uses_bls(self):
        """Return whether the entries are files in /boot/loader/entries."""
        return "blscfg" in self.config() and os.path.isdir(self.path("/boot/loader/entries"))

    def entry(self, release):
        """Return GRUB's name of the entry of a kernel, empty if there is none."""
        return self._bls_entry(release) if self.uses_bls() else menu_entry(self.config(), release)

    def _bls_entry(self, release):
        folder = self.path("/boot/loader/entries")
        for name in sorted(os.listdir(folder)):
            if not name.endswith(".conf") or "rescue" in name:
                continue
            with open(os.path.join(folder, name), errors="replace") as stream:
                lines = [line.split() for line in stream.read().splitlines()]
            if any(words[:1] == ["version"] and words[1:] == [release] for words in lines):
                return name[: -len(".conf")]
        return ""

    def environment(self):
        """Return the variables of GRUB's environment."""
        code, text = self.run([self.name + "-editenv", "-", "list"])
        if code != 0:
            raise Refused("kernel.loader.failed", "GRUB's environment cannot be read: {}".format(last_line(text)))
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def set_default(self, release):
        """Start a kernel at every boot."""
        self._edit("set", "saved_entry={}".format(self._known(release)))

    def set_once(self, release):
        """Start a kernel at the next boot only."""
        self._edit("set", "next_entry={}".format(self._known(release)))

    def clear_once(self):
        """Start the default at the next boot."""
        self._edit("unset", "next_entry")

    def default(self):
        """Return the name of the default entry."""
        return self.environment().get("saved_entry", "")

    def _known(self, release):
        entry = self.entry(release)
        if not entry:
            raise Refused("kernel.loader.no_entry", "GRUB has no entry for the kernel {}".format(release))
        return entry

    def _edit(self, *words):
        code, text = self.run([self.name + "-editenv", "-"] + list(words))
        if code != 0:
            raise Refused("kernel.loader.failed", "GRUB's environment cannot be written: {}".format(last_line(text)))

    def update(self):
        """Write grub.cfg anew, from the settings in /etc/default."""
        target = "/boot/{}/grub.cfg".format(self.name)
        code, text = self.run([self.name + "-mkconfig", "-o", target], 600)
        if code != 0:
            raise Refused("kernel.loader.failed", "grub.cfg cannot be written: {}".format(last_line(text)))

    def add_arguments(self, release, arguments):
        """Add arguments to the command line of one kernel. Without entry files, the settings have them for all kernels."""
        if self.uses_bls():
            image = "--update-kernel=/boot/vmlinuz-{}".format(release)
            code, text = self.run(["grubby", image, "--args={}".format(arguments)])
            if code != 0:
                raise Refused("kernel.loader.failed", "grubby failed: {}".format(last_line(text)))


_ENTRY = re.compile(r"""^\s*(menuentry|submenu)\s.*?(?:\$menuentry_id_option|--id)\s+(['"]?)([^'"\s]+)\2.*\{\s*$""")
_IMAGE = re.compile(r"^\s*linux(?:16|efi)?\s+\S*/?vmlinu[xz]-(\S+)")


def menu_entry(config, release):
    """Return the name of the entry that starts a kernel, as SUBMENU>ENTRY; empty if there is none.

    Only an entry whose own name has the release counts: the first one (gnulinux-simple) always starts the newest kernel.
    """
    submenu, current, depth = "", "", 0
    for line in config.splitlines():
        match = _ENTRY.match(line)
        if match and match.group(1) == "submenu":
            submenu, depth = match.group(3), 0
            continue
        if match:
            current, depth = match.group(3), depth + 1
            continue
        if line.strip() == "}":
            if depth:
                depth, current = depth - 1, ""
            else:
                submenu = ""
        image = _IMAGE.match(line)
        if image and image.group(1) == release and "-{}-".format(release) in current and "recovery" not in current:
            return "{}>{}".format(submenu, current) if submenu else current
    return ""


def last_line(text):
    """Return the last line of an output."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else "no output"


class Upgrade:
    """The upgrade of a node: its record, and what the node does in each phase.

    Args:
        root: prefix of every path; other than "/" in tests.
        run: runs a program.
        release: the running kernel; None: that of this node.
    """

    def __init__(self, root="/", run=run, release=None):
        """Remember the node."""
        self.root, self.run = root.rstrip("/"), run
        self.loader = Loader(root, run)
        self.release = release or os.uname().release

    def read(self):
        """Return the record, {} without a valid one."""
        try:
            with open(self.root + STATE) as stream:
                record = json.load(stream)
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}

    def write(self, record):
        """Replace the record; it survives a power cut."""
        path = self.root + STATE
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        temporary = path + ".new"
        with open(temporary, "w") as stream:
            json.dump(dict(record, format=1, at=int(time.time())), stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(temporary, path)
        folder = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def locked(self):
        """Exclude other programs from the record; also on a read-only file system, if the lock file exists."""
        os.makedirs(os.path.dirname(self.root + LOCK), mode=0o755, exist_ok=True)
        handle = os.open(self.root + LOCK, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def boot_id(self):
        """Return the id of this boot."""
        with open(self.root + "/proc/sys/kernel/random/boot_id") as stream:
            return stream.read().strip()

    def uptime(self):
        """Return the seconds since the boot."""
        with open(self.root + "/proc/uptime") as stream:
            return float(stream.read().split()[0])

    # What the controller requests

    def status(self, _request):
        """Return the running kernel and the record."""
        record = self.read()
        return {
            "release": self.release,
            "boot_id": self.boot_id(),
            "uptime": int(self.uptime()),
            "phase": str(record.get("phase") or ""),
            "cause": str(record.get("cause") or ""),
        }

    def reboot(self, request):
        """Reboot into another kernel once."""
        release, seconds = request.get("to"), request.get("seconds")
        checks = request.get("checks")
        if not isinstance(release, str) or not RELEASE.match(release) or release == self.release:
            raise Refused("kernel.request.invalid", "invalid kernel release: {!r}".format(release))
        if type(seconds) is not int or not LEAST_SECONDS <= seconds <= MOST_SECONDS:
            raise Refused("kernel.request.invalid", "invalid time limit: {!r}".format(seconds))
        if not isinstance(checks, list) or len(checks) > MOST_CHECKS or not all(map(_is_check, checks)):
            raise Refused("kernel.request.invalid", "invalid list of checks")
        self.loader.check()
        with self.locked():
            for name in (release, self.release):
                if not self.loader.entry(name):
                    raise Refused("kernel.loader.no_entry", "GRUB has no entry for the kernel {}".format(name))
            self.write(
                {
                    "phase": "rebooting",
                    "from": self.release,
                    "to": release,
                    "boot_id": self.boot_id(),
                    "seconds": seconds,
                    "checks": checks,
                    "cause": "",
                }
            )
            # The record comes first: without it, the new kernel would run without a watchdog.
            try:
                self.loader.set_default(self.release)
                self.loader.set_once(release)
                self._restart()
            except Refused as refused:  # a later boot must not be a trial
                self.write(dict(self.read(), phase="fell_back", cause=refused.code))
                with contextlib.suppress(Refused):
                    self.loader.clear_once()
                raise
        return {"boot_id": self.boot_id()}

    def confirm(self, _request):
        """Make the new kernel the default, if it runs on trial."""
        with self.locked():
            record = self.read()
            early = (
                record.get("phase") == "rebooting" and record.get("boot_id") != self.boot_id()
            )  # before the watchdog
            if record.get("to") != self.release or not (early or record.get("phase") in ON_TRIAL):
                why = "the kernel {} is not on trial (phase {})".format(self.release, record.get("phase"))
                raise Refused("kernel.not_on_trial", why)
            self.loader.set_default(self.release)
            self.write(dict(record, phase="confirmed", cause=""))
        return {"boot_id": self.boot_id()}

    def reject(self, request):
        """Record that a kernel is not used, and leave it if it runs."""
        cause = request.get("cause")
        if not isinstance(cause, str) or not CODE.match(cause):
            raise Refused("kernel.request.invalid", "invalid cause: {!r}".format(cause))
        with self.locked():
            record = self.read()
            if record.get("phase") == "confirmed" or not record:
                raise Refused("kernel.not_on_trial", "no kernel is on trial")
            self.write(dict(record, phase="rejected", cause=cause))
            runs = record.get("to") == self.release
            with contextlib.suppress(Refused):
                self.loader.clear_once()
        if runs:
            self._restart()
        return {"boot_id": self.boot_id()}

    def _restart(self):
        """Request an orderly reboot."""
        code, text = self.run(["systemctl", "--no-block", "reboot"])
        if code != 0:
            raise Refused("kernel.reboot.failed", "systemctl reboot: {}".format(last_line(text)))

    # What the node does at boot

    def watch(self, _request):
        """Begin the trial at the first boot of the new kernel, and end it at its time limit unless it was confirmed."""
        with self.locked():
            record = self.read()
            phase, boot = record.get("phase"), self.boot_id()
            if phase not in UNFINISHED:
                return {}
            if phase == "rebooting" and record.get("boot_id") == boot:
                return {}  # the unit was started before the reboot
            with contextlib.suppress(Refused):
                self.loader.clear_once()
            if record.get("to") != self.release:
                cause = "kernel.fallback.not_booted" if phase == "rebooting" else "kernel.fallback.lost"
                self.write(dict(record, phase="fell_back", cause=cause))
                return {}
            with contextlib.suppress(OSError):  # a kernel that cannot write its file system has to be left too
                self.write(dict(record, phase="trial", boot_id=boot))
        seconds = record.get("seconds")
        limit = seconds if type(seconds) is int and LEAST_SECONDS <= seconds <= MOST_SECONDS else LEAST_SECONDS
        while self.uptime() < limit:
            if self.read().get("phase") not in UNFINISHED:
                return {}
            time.sleep(POLL_SECONDS)
        with self.locked():
            record = self.read()
            if record.get("phase") not in UNFINISHED:
                return {}
            with contextlib.suppress(OSError):
                self.write(dict(record, phase="expired", cause="kernel.fallback.not_confirmed"))
        print("kernel {} was not confirmed within {} s: reboot".format(self.release, limit), flush=True)
        with contextlib.suppress(Refused):
            self._restart()
        end = time.monotonic() + ORDERLY_SECONDS
        while time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        self.run(["systemctl", "--force", "--force", "reboot"])
        return {}


def _is_check(value):
    return isinstance(value, str) and bool(CHECK.match(value))


ACTIONS = ("status", "reboot", "confirm", "reject", "watch")


def main():
    """Run one action; its request is a JSON object on the standard input, its answer one on the standard output."""
    if len(sys.argv) != 2 or sys.argv[1] not in ACTIONS:
        print("usage: kernel-upgrade {}".format("|".join(ACTIONS)), file=sys.stderr)
        return 2
    action = sys.argv[1]
    try:
        text = "" if action in ("watch", "status") else sys.stdin.read(65536)
        request = json.loads(text or "{}")
        if not isinstance(request, dict):
            raise ValueError("not an object")
        answer = getattr(Upgrade(), action)(request)
    except ValueError as error:
        answer = {"code": "kernel.request.invalid", "problem": str(error)}
    except Refused as refused:
        answer = {"code": refused.code, "problem": refused.problem}
    except OSError as error:
        answer = {"code": "kernel.node.failed", "problem": str(error)}
    print(json.dumps(answer), flush=True)
    return 1 if "code" in answer else 0
