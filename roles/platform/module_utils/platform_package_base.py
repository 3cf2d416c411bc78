"""The interface of package managers, and their common part: commands, locks, failures with a reason code.

`platform_package_manager` returns the manager of a node. All managers have the same methods, so that modules and tasks
do not depend on the operating system. Versions are texts EPOCH:VERSION-RELEASE, without an epoch of 0.
"""

import contextlib
import glob
import os
import re
import time
from urllib.parse import unquote

from ansible.module_utils.platform_busy import PROC, read_proc_file, who
from ansible.module_utils.platform_package_remedies import REMEDIES

LOCK_SECONDS = 600
MOST_PARENTS = 20
SERVICES = {
    "unattended-upgr": "unattended-upgrades",
    "unattended-upgrade": "unattended-upgrades",
    "unattended-upgrades": "unattended-upgrades",
    "apt.systemd.dai": "apt-daily",
    "apt.systemd.daily": "apt-daily",
    "packagekitd": "PackageKit",
    "aptd": "aptdaemon",
    "dnf-automatic": "dnf-automatic",
    "yum-cron": "yum-cron",
    "dnf-automatic-i": "dnf-automatic",
}
"""Program of a process, or its script -> the service by whose name people know it."""
FULL = re.compile(
    r"No space left on device|free space in|needs [0-9]+[KMGT]?i?B (more space )?on the|Disk quota exceeded"
    r"|not enough free space|Disk Requirements|At least [0-9]+[KMGT]?i?B more space needed",
    re.IGNORECASE,
)


COMMON = {"RUN_FW_UPDATER": "no"}
"""Environment of all transactions: the package mlnx-fw-updater does not update the firmware of RDMA cards."""
DKMS_LOG = re.compile(r"/var/lib/dkms/[\w.+-]+/[\w.+-]+/build/make\.log")
"""The complete output of a build by the script of a package."""


class PackageFailure(Exception):
    """A package manager failed, with a reason code.

    Args:
        code: a key of `REMEDIES`.
        problem: OBJECT: problem (cause).
        output: the output of the package manager.
    """

    def __init__(self, code, problem, output=""):
        """Set the attributes."""
        super().__init__(problem)
        self.code, self.problem, self.output = code, problem, output

    def result(self):
        """Return the values with which a module fails."""
        lines = self.output.splitlines()[-30:]
        return {"msg": self.problem, "reason": self.code, "remedy": REMEDIES[self.code], "stdout": "\n".join(lines)}


class PackageManager:
    """A node's package manager; `Apt`, `Dnf` and `Yum` implement the methods that this class only declares.

    Methods that change something raise `PackageFailure`.

    Args:
        module: runs programs.
        lock_seconds: how long to wait for another package program.
        valid_seconds: age up to which package lists are not fetched again.
        proxies: proxy variables of the environment. Passwords in them are on no command line and in no message.
    """

    name = ""
    environment = {}  # type: dict
    lock_files = ()
    written_files = ()
    """Patterns of the files of repositories that the roles write."""
    proxy_files = ()
    """Files with which the package manager uses a package cache."""
    folders = ()
    """Folders, besides the usual ones, whose free space a transaction requires."""
    reasons = ()
    """Reason codes, each with patterns of its messages; the first one that matches decides."""

    def __init__(self, module, *, lock_seconds=LOCK_SECONDS, valid_seconds=3600, proxies=None):
        """Start the clock of the lock timeout."""
        self.module, self.lock_seconds, self.valid_seconds = module, lock_seconds, valid_seconds
        self.deadline = time.monotonic() + lock_seconds
        self.waited_for = ""
        proxies = proxies or {}
        for url in proxies.values():
            password = url.rpartition("@")[0].rpartition("//")[2].partition(":")[2]
            module.no_log_values.update({password, unquote(password)} - {""})
        self.variables = {**COMMON, **self.environment, **{name: value for name, value in proxies.items() if value}}

    # What each package manager implements

    def versions(self, names=()):
        """Return name -> version of the completely installed packages, or of those in `names`."""
        raise NotImplementedError

    def partly_installed(self):
        """Return name -> version of all packages that are at least partly installed."""
        raise NotImplementedError

    def table(self):
        """Return name -> status, version, names (with provided ones) and requirements of all packages."""
        raise NotImplementedError

    def add_files(self, table, names):
        """Add the files of these packages to their names in a table, if other packages can require files."""

    def holds(self):
        """Return the installed packages that a hold or lock protects from changes. Nothing here releases one."""
        raise NotImplementedError

    def is_older(self, version, other):
        """Return whether a version is older than another."""
        raise NotImplementedError

    def offered(self, names):
        """Return those packages that the repositories have."""
        raise NotImplementedError

    def refresh(self):
        """Fetch the package lists, unless they are recent enough."""
        raise NotImplementedError

    def repair(self):
        """Complete an interrupted transaction."""
        raise NotImplementedError

    def install(self, names, streams=(), versions=None):
        """Install or upgrade packages in one transaction, from module streams NAME:STREAM if there are any.

        `versions` is package -> the exact version that replaces an older or newer one; only apt supports it.
        """
        raise NotImplementedError

    def plain_name(self, name):
        """Return the name of a package without the version that an installation selects by it."""
        return name

    def manual(self):
        """Return the packages that a person requested, rather than another package."""
        raise NotImplementedError

    def remove(self, names, *, data):
        """Remove exactly these packages, or fail without a change. `data` is whether their scripts may remove data."""
        raise NotImplementedError

    def owns(self, path):
        """Return whether an installed package owns a file."""
        raise NotImplementedError

    def keys(self):
        """Return the signing keys that the package manager itself trusts, besides those of the repositories' files."""
        return []

    def remove_stale_keys(self, names):
        """Remove those of these trusted keys that no file of a key has any more."""

    def saved_configuration(self, _path):
        """Return the path where a removal saves a changed configuration file; empty if it saves none."""
        return ""

    def sources(self):
        """Return the normalized addresses of the node's enabled repositories that the roles did not write."""
        raise NotImplementedError

    def is_locked(self, code, output):
        """Return whether a command failed because another process holds a lock."""
        raise NotImplementedError

    def hold_services(self, _names):
        """Return a context in which a transaction does not start these services. Not every system would start them."""
        return contextlib.ExitStack()

    def leftovers(self):
        """Return the files that an interrupted transaction of the roles left, and that have an effect."""
        return []

    # Common

    def repository_files(self):
        """Return the existing files of repositories that the roles wrote."""
        return sorted(path for pattern in self.written_files for path in glob.glob(pattern))

    def missing(self, names):
        """Return the packages that are not completely installed."""
        installed = self.versions(names) if names else {}
        return [name for name in names if name not in installed]

    def downgraded(self, recorded, installed):
        """Return the packages that are older than recorded, except those on hold."""
        changed = [name for name, version in recorded.items() if installed.get(name, version) != version]
        older = [name for name in changed if self.is_older(installed[name], recorded[name])]
        holds = self.holds() if older else set()
        return [name for name in older if name not in holds]

    def run(self, command):
        """Run a command, and repeat it while another process holds a lock. Return its exit code and output."""
        self.module.run_command_environ_update = self.variables
        while True:
            code, out, err = self.module.run_command(command)
            output = "\n".join(text for text in (out, err) if text)
            if code == 0 or not self.is_locked(code, output):
                return code, output
            self.waited_for = self.lock_holder() or self.holder_in(output) or self.waited_for
            remaining = self.deadline - time.monotonic()
            if remaining <= 0:
                problem = "the package database is locked by {} (waited {} seconds)"
                holder = self.waited_for or "another process"
                self.fail("packages.locked", problem.format(holder, self.lock_seconds), output)
            time.sleep(min(3, max(0.1, remaining)))

    def read(self, command):
        """Run a command that only reads; return its exit code and standard output."""
        self.module.run_command_environ_update = self.variables
        code, out, _ = self.module.run_command(command)
        return code, out

    def fail(self, code, problem, output=""):
        """Raise a `PackageFailure`."""
        raise PackageFailure(code, problem, output)

    def fail_with(self, problem, output, lines):
        """Raise a failure with the reason code of the output. `lines` are its messages, which are the cause."""
        code = self.reason_of(output)
        held = sorted(
            name for name in self.holds() if re.search(rf"(?<![\w.+-]){re.escape(name)}(?![\w+]|-[A-Za-z])", output)
        )
        code = "packages.held" if code == "packages.conflict" and held else code
        cause = "; ".join(dict.fromkeys(line.strip() for line in lines[-4:])) or output.strip()[-500:]
        if code == "packages.held":
            cause = "held: {}; {}".format(", ".join(held), cause)
        if code == "packages.disk_full":
            cause = "the disk is full: {}; {}".format(least_free_space(self.folders), cause)
        log = DKMS_LOG.search(output)
        errors = [line.strip() for line in read_lines(log.group()) if "error: " in line] if log else []
        if errors:
            cause = "{}; {}".format(errors[0][:300], cause)
        self.fail(code, "{} ({})".format(problem, cause), output)

    def reason_of(self, output):
        """Return the reason code of a failed command."""
        if FULL.search(output):
            return "packages.disk_full"
        matching = (code for code, *patterns in self.reasons if re.search("|".join(patterns), output, re.DOTALL))
        return next(matching, "packages.failed")

    def lock_holder(self):
        """Return the process that holds one of the locks, by its service if it has one; empty if none is known."""
        pid = holder_of(self.lock_files)
        return title_of(pid) if pid else ""

    def holder_in(self, _output):
        """Return the lock holder that the package manager itself reports."""
        return ""


def holder_of(paths):
    """Return the number of the process that holds a lock on one of the files, empty if none does."""
    inodes = {str(os.stat(path).st_ino) for path in paths if os.path.exists(path)}
    for line in read_lines(PROC + "/locks"):
        words = line.split()
        place = next((word for word in words if word.count(":") == 2), "")
        if "->" not in words and place.split(":")[-1] in inodes:
            return words[words.index(place) - 1]
    return ""


def title_of(pid):
    """Return a process by number, program and account, after the name of the service that started it."""
    ancestor = pid
    for _ in range(MOST_PARENTS):
        words = read_proc_file("{}/{}/cmdline".format(PROC, ancestor)).split()[:3]
        programs = [os.path.basename(word) for word in [read_proc_file("{}/{}/comm".format(PROC, ancestor)), *words]]
        service = next((SERVICES[program] for program in programs if program in SERVICES), None)
        if service:
            return "{} ({})".format(service, who(pid))
        rest = read_proc_file("{}/{}/stat".format(PROC, ancestor)).rpartition(")")[2].split()
        ancestor = rest[1] if len(rest) > 1 else "0"
        if ancestor in ("0", "1"):
            break
    return who(pid)


def read_lines(path):
    """Return the lines of a text file, none if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read().splitlines()
    except OSError:
        return []


def least_free_space(folders):
    """Return a phrase with the folder for packages that has the least free space."""
    paths = [path for path in ("/", "/usr", "/var", "/boot", *folders) if os.path.isdir(path)]
    free = {path: os.statvfs(path) for path in paths}
    path = min(paths, key=lambda name: free[name].f_bavail * free[name].f_frsize)
    return "{} has {} MiB free".format(path, free[path].f_bavail * free[path].f_frsize // 2**20)
