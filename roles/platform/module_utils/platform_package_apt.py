"""apt and dpkg behind the interface of package managers."""

import glob
import os
import re
import time

from ansible.module_utils.platform_package_base import PackageManager, read_lines
from ansible.module_utils.platform_replace import replace

POLICY = "/usr/sbin/policy-rc.d"
POLICY_MARK = "# provision: for the length of one package transaction"
HOLDER = "/run/provision/package-transaction"
LISTS = "/var/lib/apt/lists"
ARCHIVES = "/var/cache/apt/archives"
SOURCE_FILES = ("/etc/apt/sources.list", "/etc/apt/sources.list.d/*")
KEY_FILES = ("/etc/apt/keyrings/*", "/etc/apt/auth.conf.d/*")
NUKE = "/var/lib/docker/nuke-graph-directory.sh"
"""A script of Debian's docker.io, with which a purge removes all data of docker."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LOCKED = re.compile(
    r"(Could not get lock|Unable to (acquire|lock)|is another process using it|frontend lock was locked)"
)
AGAIN = ("-o", "Acquire::Retries=3")
"""Number of retries for each file: the default of Debian, but not of every distribution."""
KEEP_FILES = ("-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold")
STALE = re.compile(
    r"(Unable to locate package|has no installation candidate|Version '.{1,200}' was not found|404 +Not Found|Failed to fetch|Hash Sum mismatch)"
)
BROKEN = re.compile(
    r"(dpkg was interrupted|--fix-broken install|Unmet dependencies|not configured yet|reinstall it before"
    r"|needs to be reinstalled)"
)
REASONS = (
    ("packages.held", r"Held packages were changed"),
    ("packages.missing", r"Unable to locate package", r"has no installation candidate", r"Version '.{1,200}' was not found"),
    ("packages.clock", r"Release file .{1,300} is (not valid yet|expired)", r"certificate has expired"),
    ("packages.signature", r"NO_PUBKEY|BADSIG|EXPKEYSIG|is not signed|unauthenticated packages|Hash Sum mismatch",
     r"signatures? (couldn't be verified|were invalid)", r"Sub-process \S*(gpgv|sqv) returned an error"),
    ("packages.scriptlet", r"(pre|post)-?(installation|removal|inst|rm) (package )?script subprocess"),
    ("packages.interrupted", r"dpkg was interrupted|reinstall it before|needs to be reinstalled"),
    ("packages.unreachable", r"Failed to fetch|Could not (resolve|connect)|Temporary failure|Proxy Authentication"),
    ("packages.conflict", r"Unmet dependencies|Conflicts|held broken packages|Unable to correct problems"),
)  # fmt: skip
"""Reason codes, each with patterns of its messages; the first one that matches decides."""
COMPLETE = ("installed", "config-files", "not-installed")
"""The states of dpkg that no interrupted transaction leaves."""
FORM = "${Package}\\t${db:Status-Status}\\t${Version}\\t${Provides}\\t${Pre-Depends}, ${Depends}\\n"
"""dpkg-query's form of `Apt.table`."""


class Apt(PackageManager):
    """The package manager of Debian and Ubuntu. It requires no Python bindings of apt, so it works on a bare node."""

    name = "apt"
    environment = {
        "DEBIAN_FRONTEND": "noninteractive",
        "DEBIAN_PRIORITY": "critical",
        "LC_ALL": "C",
        "NEEDRESTART_SUSPEND": "1",
        "APT_LISTCHANGES_FRONTEND": "none",
        "UCF_FORCE_CONFFOLD": "1",
    }
    lock_files = ("/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock", LISTS + "/lock", ARCHIVES + "/lock")
    written_files = (
        "/etc/apt/sources.list.d/provision-*.sources",
        "/etc/apt/auth.conf.d/provision-*.conf",
        "/etc/apt/preferences.d/provision-stack-lock.pref",
    )
    proxy_files = ("/etc/apt/apt.conf.d/90-provision-package-cache",)
    folders = (ARCHIVES,)
    reasons = REASONS

    # State

    def _query(self, form, names=()):
        """Return the words of each line of dpkg-query."""
        separator = ["--", *names] if names else []
        return [
            line.split() for line in self.read(["dpkg-query", "-W", "-f", form + "\\n", *separator])[1].splitlines()
        ]

    def versions(self, names=()):
        """Return name -> version of the completely installed packages, or of those in `names`."""
        rows = self._query("${Package} ${db:Status-Status} ${Version}", names)
        return {words[0]: words[2] for words in rows if len(words) == 3 and words[1] == "installed"}

    def partly_installed(self):
        """Return name -> version of all packages that are at least partly installed."""
        rows = self._query("${Package} ${db:Status-Status} ${Version}")
        return {words[0]: words[2] for words in rows if len(words) == 3 and words[1] != "config-files"}

    def table(self):
        """Return name -> status, version, names (with provided ones) and requirements of all packages."""
        packages = {}
        for line in self.read(["dpkg-query", "-W", "-f", FORM])[1].splitlines():
            name, status, version, provides, needs = [*line.split("\t"), "", "", "", ""][:5]
            groups = [[_plain(item) for item in group.split("|")] for group in needs.split(",") if group.strip()]
            known_as = {name, *(_plain(item) for item in provides.split(",") if item.strip())}
            packages[name] = {"status": status, "version": version, "names": known_as, "needs": groups}
        return packages

    def holds(self):
        """Return the packages on hold."""
        return {words[0] for words in self._query("${Package} ${db:Status-Want}") if words[1:] == ["hold"]}

    def is_older(self, version, other):
        """Return whether a version is older than another."""
        return self.read(["dpkg", "--compare-versions", version, "lt", other])[0] == 0

    def manual(self):
        """Return the packages that a person requested."""
        return set(self.read(["apt-mark", "showmanual"])[1].split())

    def owns(self, path):
        """Return whether an installed package owns a file."""
        return self.read(["dpkg-query", "-S", path])[0] == 0

    def sources(self):
        """Return the addresses of repositories that the roles did not write."""
        paths = [path for pattern in SOURCE_FILES for path in sorted(glob.glob(pattern))]
        lines = [line for path in paths if "/provision-" not in path for line in read_lines(path)]
        active = [line for line in lines if not line.lstrip().startswith("#")]
        machine = os.uname().machine
        urls = [word for line in active for word in re.findall(r"(?:https?|file)://?\S+", line)]
        return sorted({url.replace("$(ARCH)", ARCHITECTURES.get(machine, machine)).rstrip("/") for url in urls})

    # Transactions

    def hold_services(self, names):
        """Return a context in which a transaction does not start these services."""
        return HeldServices(names)

    def leftovers(self):
        """Return the policy that held services back, if its transaction was interrupted."""
        holder = "".join(read_lines(HOLDER)).strip()
        is_running = holder.isdigit() and os.path.isdir("/proc/" + holder)
        return [POLICY] if HeldServices.is_written() and not is_running else []

    def is_locked(self, _code, output):
        """Return whether a command failed because another process holds a lock."""
        return LOCKED.search(output) is not None

    def holder_in(self, output):
        """Return the lock holder that apt reports."""
        match = re.search(r"held by process (\d+) \((.*?)\)", output)
        return "process {} ({})".format(*match.groups()) if match else ""

    def is_fresh(self):
        """Return whether the package lists are recent enough and newer than every source.

        Lists with a time in the future were fetched while the clock was wrong, so their age is unknown.
        """
        newest_list = max((os.stat(path).st_mtime for path in glob.glob(LISTS + "/partial")), default=0)
        if not glob.glob(LISTS + "/*Release"):
            return False
        sources = [path for pattern in SOURCE_FILES + KEY_FILES for path in glob.glob(pattern)]
        newest_source = max((os.stat(path).st_ctime for path in sources if os.path.exists(path)), default=0)
        return newest_list > newest_source and 0 <= time.time() - newest_list < self.valid_seconds

    def refresh(self):
        """Fetch the package lists, unless they are recent enough."""
        if not self.is_fresh():
            self._update()

    def _update(self):
        code, output = self.run(["apt-get", "-q", *AGAIN, "-o", "APT::Update::Error-Mode=any", "update"])
        if code != 0:
            self._fail("package lists: cannot fetch them", output)

    def offered(self, names):
        """Return those packages that the package lists contain."""
        answers = {name: self.read(["apt-cache", "show", "--no-all-versions", name]) for name in names}
        return [name for name, (code, out) in answers.items() if code == 0 and out.strip()]

    def repair(self):
        """Complete an interrupted transaction, and reinstall packages that were interrupted before their files came."""
        self.run(["dpkg", "--configure", "-a", "--force-confdef", "--force-confold"])
        self.run(["apt-get", "-y", "-q", *KEEP_FILES, "--no-install-recommends", "--fix-broken", "install"])
        rows = self._query("${Package} ${db:Status-Eflag}")
        broken = [words[0] for words in rows if words[1:] == ["reinstreq"]]
        if broken:
            self._install(["--reinstall", *broken])

    def is_interrupted(self):
        """Return whether the database has packages of an interrupted transaction.

        `dpkg --audit` also lists complete packages, for example those without checksums.
        """
        rows = self._query("${Package} ${db:Status-Status} ${db:Status-Eflag}")
        return any(words[1] not in COMPLETE or words[2] == "reinstreq" for words in rows if len(words) == 3)

    def install(self, names, streams=(), versions=None):  # noqa: ARG002 - apt has no module streams
        """Install or upgrade packages. If an earlier transaction was interrupted, repair it first."""
        exact = {name: version for name, version in (versions or {}).items() if name in names}
        words = [*(["--allow-downgrades"] if exact else []), *(_with_version(name, exact) for name in names)]
        if self.is_interrupted():
            self.repair()
        code, output = self._install(words)
        if code != 0 and BROKEN.search(output):
            self.repair()
            code, output = self._install(words)
        if code != 0 and STALE.search(output):
            self._update()
            code, output = self._install(words)
        if code != 0:
            self._fail("packages {}: cannot install them".format(", ".join(names)), output)

    def _install(self, names):
        return self.run(["apt-get", "-y", "-q", *AGAIN, *KEEP_FILES, "--no-install-recommends", "install", *names])

    def remove(self, names, *, data):
        """Remove exactly these packages with their configuration files, or fail without a change."""
        if not data:
            self._remove("remove", names)
            if os.path.exists(NUKE):
                os.unlink(NUKE)
            # A removed package without configuration files is unknown to apt if no source has it any more.
            known = self.table()
            names = [name for name in names if name in known]
        if names:
            self._remove("purge", names)

    def _remove(self, verb, names):
        command = ["apt-get", "-y", "-q", "-o", "APT::Get::AutomaticRemove=false"]
        code, output = self.run([*command, "-s", verb, *names])
        if code != 0 and "dpkg --configure -a" in output:
            self.run(["dpkg", "--configure", "-a", "--force-confdef", "--force-confold"])
            code, output = self.run([*command, "-s", verb, *names])
        changes = re.findall(r"^(?:Purg|Remv|Inst) (\S+)", output, re.MULTILINE)
        others = {_plain(name) for name in changes} - set(names)
        if code == 0 and others:
            problem = "packages: apt would also change others ({}), so none was removed"
            self.fail("packages.conflict", problem.format(", ".join(sorted(others))), output)
        if code == 0:
            code, output = self.run([*command, verb, *names])
        if code != 0:
            self._fail("packages {}: cannot remove them".format(", ".join(names)), output)

    def _fail(self, problem, output):
        lines = [line for line in output.splitlines() if line.startswith(("E:", "dpkg: error", "Err:"))]
        self.fail_with(problem, output, lines)


def _with_version(name, versions):
    return "{}={}".format(name, versions[name]) if name in versions else name


def _plain(item):
    """Return a package's name without version and architecture."""
    return re.split(r"[\s(:\[]", item.strip())[0]


class HeldServices:
    """Context in which the installation of a package does not start these services (policy-rc.d)."""

    def __init__(self, names):
        """Set the names of the services."""
        self.names = names

    def __enter__(self):
        """Write the policy, unless the site has its own."""
        if self.names and (not os.path.exists(POLICY) or self.is_written()):
            patterns = "|".join("{0}|{0}.*".format(name) for name in self.names)
            # The policy has an effect only while this process exists, so that one left by an interrupted run has none.
            replace(HOLDER, "{}\n".format(os.getpid()))
            alive = "read -r pid 2>/dev/null <{} && [ -d /proc/$pid ] || exit 0".format(HOLDER)
            case = 'case "$1" in {}) exit 101 ;; esac'.format(patterns)
            replace(POLICY, "#!/bin/sh\n{}\n{}\n{}\nexit 0\n".format(POLICY_MARK, alive, case), 0o755)

    def __exit__(self, *_):
        """Remove the policy."""
        if self.is_written():
            os.unlink(POLICY)
        if os.path.exists(HOLDER):
            os.unlink(HOLDER)

    @staticmethod
    def is_written():
        """Return whether the policy is that of this class."""
        return any(POLICY_MARK in line for line in read_lines(POLICY))
