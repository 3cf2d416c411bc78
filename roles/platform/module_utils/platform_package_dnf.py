"""dnf and rpm behind the interface of package managers.

dnf differs from apt in three ways that this module makes up for. It succeeds although a script of a package failed. It
does not notice an interrupted transaction. And rpm records neither: the transaction in progress is in `PENDING`, and
its packages count as not installed until it ended well.
"""

import base64
import binascii
import fnmatch
import glob
import json
import os
import re

from ansible.module_utils.platform_managed import (
    PENDING,
    RPM_FORM,
    SEVERAL,
    pending_packages,
    rpm_order,
    rpm_versions,
    without_epoch_zero,
)
from ansible.module_utils.platform_package_base import (
    PackageFailure,
    PackageManager,
    holder_of,
    read_lines,
    title_of,
)
from ansible.module_utils.platform_replace import replace
from ansible.module_utils.platform_rpm_sources import configuration, enabled_addresses
from ansible.module_utils.platform_undo_packages import closure

DATABASES = ("/usr/lib/sysimage/rpm", "/var/lib/rpm")
LOCK_FILES = tuple(folder + "/.rpm.lock" for folder in DATABASES)
PID_FILES = ("/var/lib/dnf/rpmdb_lock.pid", "/var/cache/dnf/metadata_lock.pid", "/var/cache/dnf/download_lock.pid")
REPOSITORIES = "/etc/yum.repos.d/*.repo"
KEY_FILES = "/etc/pki/rpm-gpg/*"
OWN_KEY_FILES = "/etc/pki/rpm-gpg/RPM-GPG-KEY-provision-*"
MODULES = "/etc/dnf/modules.d/*.module"
VERSIONLOCK = ("/etc/dnf/plugins/versionlock.conf", "/etc/dnf/plugins/versionlock.list")
CONFIGURATION = "/etc/dnf/dnf.conf"
LOCKED_EXIT = 200
LOCKED = re.compile(r"can't create transaction lock")
STALE = re.compile(
    r"Unable to find a match|No match for argument|Status code: 404|Cannot download|Failed to download|"
    r"Curl error|All mirrors were tried|checksum doesn't match|Error downloading packages"
)
GONE = re.compile(r"not available|No packages marked for reinstall")
"""No repository has the installed version of a package any more, so that it cannot be reinstalled."""
NO_DUPLICATES = "No duplicated packages found"
"""All packages with several versions may have them, for example those that installonlypkgs of dnf.conf names."""
RECOVER = re.compile(r"DB_RUNRECOVERY|Thread died in Berkeley DB")
SCRIPTLET = re.compile(
    r"^(?:Error in \w+ scriptlet in(?: rpm package)?|Non-fatal \S+ scriptlet failure in rpm package) (?:\d+:)?(\S+)",
    re.MULTILINE,
)
SCRIPTLET_OF_RPM = re.compile(r"%\w+\((\S+?)\) scriptlet failed, (?:exit status|signal) \d+")
REASONS = (
    ("packages.stream", r"modular filtering for argument", r"stream .{1,200} is enabled|multiple streams"),
    ("packages.held", r"exclude filtering for argument|filtered out by exclude"),
    ("packages.missing", r"Unable to find a match|No match for argument"),
    ("packages.clock", r"certificate (is not yet valid|has expired)"),
    ("packages.signature", r"GPG check FAILED|is not signed|Public key for .{1,300} is not installed|GPG signature",
     r"Bad (GPG|signature)|[Ss]ignature verification|key retrieval failed|checksum doesn't match|incorrect checksum"),
    ("packages.scriptlet", r"scriptlet failed|Error in \w+ scriptlet"),
    ("packages.unreachable", r"Curl error|Cannot download|Failed to download|Status code: [0-9]+|mirrors were tried"),
    ("packages.interrupted", r"duplicate with|DB_RUNRECOVERY|Thread died in Berkeley DB|disk image is malformed"),
    ("packages.conflict", r"nothing provides|conflicting requests|conflicts with|obsoletes|cannot install both",
     r"is needed by|file conflicts|protected packages"),
)  # fmt: skip
"""Reason codes, each with patterns of its messages; the first one that matches decides."""
FULL_NAME = re.compile(r"^(.+)-[0-9][^-]*-[0-9][^-]*\.(?:x86_64|aarch64|noarch)$")
ERROR = re.compile(
    r"^(Error|error:|Problem|  - |Package .{1,200} is not signed|Public key|GPG|Failing package|Failed|Unable|All matches)"
    r"|No match for argument|Curl error|scriptlet|is needed by|more space"
)


class Dnf(PackageManager):
    """The package manager of Enterprise Linux 8 and newer, by its command line; its Python bindings are not used."""

    name = "dnf"
    environment = {"LC_ALL": "C.UTF-8", "LANG": "C.UTF-8", "LANGUAGE": "C"}  # Python reads LANGUAGE first
    lock_files = LOCK_FILES
    written_files = ("/etc/yum.repos.d/provision-*.repo", OWN_KEY_FILES)
    folders = ("/var/cache/dnf", *DATABASES)
    reasons = REASONS
    pid_files = PID_FILES
    locked, stale, error = LOCKED, STALE, ERROR

    # State

    def versions(self, names=()):
        """Return name -> version of the completely installed packages, or of those in `names`."""
        return rpm_versions(self.read(["rpm", *(["-q"] if names else ["-qa"]), "--qf", RPM_FORM, *names])[1])

    def partly_installed(self):
        """Return name -> versions of all packages; of several the last one, after the others."""
        versions = {}
        for words in self._rows():
            versions.setdefault(words[0], set()).add(words[2])
        versions.pop("gpg-pubkey", None)
        return {name: " ".join(sorted(every, key=rpm_order)) for name, every in versions.items()}

    def _rows(self, names=()):
        """Return name, the word installed, version and architecture of all packages, or of those in `names`."""
        command = ["rpm", *(["-q"] if names else ["-qa"]), "--qf", RPM_FORM, *names]
        lines = [line.split() for line in self.read(command)[1].splitlines()]
        return [
            (words[0], words[1], without_epoch_zero(words[2]), words[3])
            for words in lines
            if len(words) == 4 and words[1] == "installed"
        ]

    def duplicates(self):
        """Return the packages of which two versions are installed, but should not be."""
        versions = {}
        for name, _, version, architecture in self._rows():
            versions.setdefault((name, architecture), set()).add(version)
        names = {name for (name, _), every in versions.items() if len(every) > 1}
        return sorted(name for name in names if not name.startswith(SEVERAL))

    def table(self):
        """Return name -> status, version, names (with provided ones) and requirements of all packages."""
        form = "%{NAME}\\t%{EVR}\\t[%{PROVIDES} ]\\t[%{REQUIRES}\\f]\\n"
        packages = {}
        for line in self.read(["rpm", "-qa", "--qf", form])[1].split("\n"):
            name, version, provides, needs = [*line.split("\t"), "", "", ""][:4]
            if name and name != "gpg-pubkey":
                groups = [_alternatives(item) for item in needs.split("\f") if item and not item.startswith("rpmlib(")]
                packages[name] = {
                    "status": "installed",
                    "version": without_epoch_zero(version),
                    "names": {name, *provides.split()},
                    "needs": groups,
                }
        return packages

    def add_files(self, table, names):
        """Add the files of these packages to their names in a table."""
        for name in names:
            if name in table:
                table[name]["names"].update(self.read(["rpm", "-ql", name])[1].splitlines())

    def holds(self):
        """Return the installed packages that a versionlock or an exclusion protects from changes."""
        patterns = self.protected()
        return {words[0] for words in self._rows() for pattern in patterns if matches(pattern, words)}

    def protected(self):
        """Return the patterns of the packages that a versionlock or an exclusion protects."""
        return [*locked_patterns(*VERSIONLOCK), *excluded_patterns(CONFIGURATION)]

    def is_older(self, version, other):
        """Return whether a version is older than another."""
        return rpm_order(version) < rpm_order(other)

    def plain_name(self, name):
        """Return NAME of NAME-VERSION-RELEASE.ARCHITECTURE."""
        return FULL_NAME.sub(r"\1", name)

    def manual(self):
        """Return the packages that a person requested."""
        code, output = self._program("-q", "--disablerepo=*", "repoquery", "--userinstalled", "--qf", "%{name}")
        if code != 0:
            self._fail("packages: cannot list those that a person requested", output)
        return set(output.split())

    def owns(self, path):
        """Return whether an installed package owns a file."""
        return self.read(["rpm", "-qf", path])[0] == 0

    def keys(self):
        """Return the signing keys of the roles' repositories that rpm trusts, by their packages.

        dnf trusts keys of all repositories in a transaction; those of others are not the roles' to remove.
        """
        files = [material("\n".join(read_lines(path))) for path in glob.glob(OWN_KEY_FILES)]
        trusted = {name: self._key(name) for name in self._trusted_keys()} if files else {}
        return [name for name, key in trusted.items() if key and any(key in content for content in files)]

    def _key(self, name):
        """Return a trusted key."""
        return material(self.read(["rpm", "-q", "--qf", "%{DESCRIPTION}", name])[1])

    def _trusted_keys(self):
        """Return all signing keys that rpm trusts, by their packages."""
        out = self.read(["rpm", "-q", "--qf", "%{NAME}-%{VERSION}-%{RELEASE}\\n", "gpg-pubkey"])[1]
        return sorted(line for line in out.split() if re.match(r"gpg-pubkey-[0-9a-f]+-[0-9a-f]+\Z", line))

    def remove_stale_keys(self, names):
        """Remove those of these trusted keys that no file of a key has any more: a replaced key is not trusted."""
        present = [name for name in self._trusted_keys() if name in names]
        files = [material("\n".join(read_lines(path))) for path in glob.glob(KEY_FILES)] if present else []
        for name in present:
            key = self._key(name)
            if key and not any(key in content for content in files):
                self.run(["rpm", "-e", "--allmatches", name])

    def saved_configuration(self, path):
        """Return the path where rpm saves a changed configuration file of a removed package."""
        return path + ".rpmsave"

    def sources(self):
        """Return the addresses of enabled repositories that the roles did not write."""
        return enabled_addresses(REPOSITORIES, self._release)

    def _release(self):
        """Return the release of the system, which is dnf's variable of the same name."""
        return self.read(["rpm", "--eval", "%{?rhel}"])[1].strip()

    # Transactions

    def is_locked(self, code, output):
        """Return whether a command failed because another process holds a lock."""
        is_of_rpm = "scriptlet" not in output  # a script may call rpm, which is locked by the transaction itself
        return code == LOCKED_EXIT or (is_of_rpm and self.locked.search(output) is not None)

    def lock_holder(self):
        """Return the process that holds one of the locks of rpm or dnf."""
        pid = holder_of(self.lock_files) or next(filter(None, map(_running, self.pid_files)), "")
        return title_of(pid) if pid else ""

    def holder_in(self, output):
        """Return the lock holder that dnf reports."""
        match = re.search(r"already locked by (\d+)", output)
        return title_of(match.group(1)) if match else ""

    def refresh(self):
        """Fetch the package lists, unless they are recent enough."""
        code, output = self._program("makecache")
        if code != 0:
            self._fail("package lists: cannot fetch them", output)

    def offered(self, names):
        """Return those packages that the repositories have."""
        form = "%{name} offered %{evr} %{arch}"
        out = self._program("-q", "repoquery", "--available", "--qf", form, *names)[1] if names else ""
        rows = [line.split() for line in out.splitlines() if len(line.split()) == 4]
        return [name for name in names if any(matches(name, words) for words in rows)]

    def missing(self, names):
        """Return the packages that are not completely installed. A name may have a version: NAME-VERSION-RELEASE.ARCH."""
        missing, pending = super().missing(names), pending_packages()
        rows = [words for words in self._rows(missing) if words[0] not in pending] if missing else []
        present = {name for name in missing for words in rows if words[0] != name and matches(name, words)}
        return [name for name in missing if name in pending or name not in present]

    def repair(self):
        """Remove the older versions of packages whose upgrade was interrupted."""
        if self.duplicates():
            code, output = self._program("remove", "--duplicates")
            if code != 0 and NO_DUPLICATES not in output:
                names = ", ".join(self.duplicates())
                self._fail("packages {}: cannot remove their older versions".format(names), output)

    def install(self, names, streams=(), versions=None):
        """Install or upgrade packages, and again those of an earlier transaction that did not end well."""
        if versions:
            self.fail(
                "packages.failed", "packages {}: exact versions are supported with apt only".format(", ".join(names))
            )
        self.repair()
        self._enable(streams)
        pending, before = _pending(), self.partly_installed()
        earlier, again = pending.get("packages", ()), self._incomplete(pending, before)
        _write_pending({*names, *earlier}, again, before)
        try:
            code, output = self._transaction(names, again)
        except PackageFailure:  # no transaction began, so what others changed since is complete
            _end_pending(earlier, again)
            raise
        failed = failed_scripts(output, self.partly_installed())
        if code >= 0:  # a signal may have ended dnf in the middle of its transaction
            _end_pending({*names, *failed, *(earlier if code else ())}, {*failed, *(again if code else ())})
        if code != 0 or failed:
            problem = "packages {}: {}".format(", ".join(names), "scripts failed" if failed else "cannot install them")
            self._fail(problem, output)
        self._check_names(names)

    def _incomplete(self, pending, now):
        """Return the packages to reinstall: of an interrupted transaction those that it may have changed."""
        again, before = set(pending.get("again", ())), pending.get("before")
        changed = {name for name, version in now.items() if before.get(name) != version} if before else set()
        if changed:
            table = self.table()
            self.add_files(table, changed)
            names = pending.get("packages", ())
            absent = [name for name in sorted(names) if name not in now]
            again |= changed & (closure(names, table) | self._needed_by(absent))
        return again

    def _needed_by(self, names):
        """Return what packages that are not installed need, directly or not, as far as the repositories have it."""
        form = ("--requires", "--resolve", "--recursive", "--qf", "%{name}\\n")
        return set(self._program("-q", "repoquery", "--available", *form, *names)[1].split()) if names else set()

    def _transaction(self, names, again):
        """Install the packages, and reinstall those that an earlier transaction left incomplete."""
        present = [name for name in sorted(again) if name in self.partly_installed()]
        code, output = self._program("reinstall", *present) if present else (0, "")
        if (code != 0 and not GONE.search(output)) or failed_scripts(output, present):
            return code, output
        code, output = self._program("install", *names)
        if code != 0 and RECOVER.search(output):
            self.run(["rpm", "--rebuilddb"])
            code, output = self._program("install", *names)
        if code != 0 and self.stale.search(output):
            code, output = self._install_again(names)
        return code, output

    def _install_again(self, names):
        """Install packages with new package lists."""
        return self._program("--refresh", "install", *names)

    def _check_names(self, names):
        """Fail if the manager installed a package that only provides one of the names: the next run would install it again."""
        missing = self.missing(names)
        if missing:
            problem = "packages {}: no repository has packages of these names; {} installed others that provide them"
            self.fail("packages.missing", problem.format(", ".join(missing), self.name))

    def _enable(self, streams):
        """Enable module streams. Another enabled stream of a module is never replaced."""
        enabled = enabled_streams()
        for stream in streams:
            module, _, name = stream.partition(":")
            if enabled.get(module, name) != name:
                problem = "module {}: the stream {} is enabled, not {}" if enabled[module] else "module {} is disabled"
                self.fail("packages.stream", problem.format(module, enabled[module], name))
        missing = [stream for stream in streams if stream.partition(":")[0] not in enabled]
        if missing:
            code, output = self._program("module", "enable", *missing)
            if code != 0:
                self._fail("module streams {}: cannot enable them".format(", ".join(missing)), output)

    def remove(self, names, *, data):  # noqa: ARG002 - no script of rpm packages removes data
        """Remove exactly these packages, or fail without a change."""
        code, output = self.run(["rpm", "-e", "--test", "--allmatches", *names])
        if code == 0:
            code, output = self._program("--setopt=clean_requirements_on_remove=0", "remove", *names)
        if code != 0:
            self._fail("packages {}: cannot remove them".format(", ".join(names)), output)

    def _program(self, *words):
        """Run dnf, which does not wait for a lock: `run` does, and reports the lock holder."""
        options = ["--setopt=install_weak_deps=0", "--setopt=best=1", "--setopt=retries=3"]
        expire = "--setopt=*.metadata_expire={}".format(self.valid_seconds)
        return self.run(["dnf", "-y", *_QUIET_LOCK, *options, expire, *words])

    def _fail(self, problem, output):
        lines = [line for line in output.splitlines() if self.error.search(line)]
        self.fail_with(problem, output, lines)


_QUIET_LOCK = ("--setopt=exit_on_lock=1",)


def failed_scripts(output, installed):
    """Return the packages whose scripts failed although the transaction may have succeeded."""
    words = set(SCRIPTLET.findall(output)) | set(SCRIPTLET_OF_RPM.findall(output))
    return sorted(name for name in installed if any(word == name or _is_release_of(word, name) for word in words))


def _is_release_of(word, name):
    """Return whether a word is NAME-VERSION-RELEASE[.ARCH] of a package."""
    return word.startswith(name + "-") and word[len(name) + 1 :].count("-") == 1


def material(armored):
    """Return the bytes of all OpenPGP blocks in a text, without their checksums."""
    blocks = re.findall(r"-----BEGIN PGP PUBLIC KEY BLOCK-----(.*?)-----END", armored, re.DOTALL)
    return b"".join(map(_decoded, blocks))


def _decoded(block):
    """Return the bytes of one OpenPGP block, none if it is invalid."""
    lines = [line.strip() for line in block.splitlines()]
    try:
        return base64.b64decode("".join(line for line in lines if ":" not in line and not line.startswith("=")))
    except (binascii.Error, ValueError):
        return b""


def enabled_streams():
    """Return module -> its enabled stream, empty for a module that is disabled."""
    streams = {}
    for path in sorted(glob.glob(MODULES)):
        parser = configuration(path)
        for section in parser.sections():
            state = parser.get(section, "state", fallback="")
            if state in ("enabled", "disabled"):
                streams[section] = parser.get(section, "stream", fallback="") if state == "enabled" else ""
    return streams


def matches(pattern, words):
    """Return whether a pattern of dnf matches an installed package: name, word, version and architecture."""
    name, _, version, architecture = words
    epoch, mark, rest = version.rpartition(":")
    epoch, full = (epoch if mark else "0"), "{}-{}".format(name, rest)
    upstream = "{}-{}".format(name, rest.partition("-")[0])
    forms = [name, upstream, full, "{}-{}:{}".format(name, epoch, rest), "{}:{}".format(epoch, full)]
    return any(fnmatch.fnmatchcase(form, pattern) for form in [*forms, *(f"{form}.{architecture}" for form in forms)])


def locked_patterns(path, default_list):
    """Return the patterns of the plugin versionlock; exclusions (``!``) are no locks of installed packages."""
    parser = configuration(path)
    if parser.get("main", "enabled", fallback="1").strip().lower() in ("0", "false", "no"):
        return []
    patterns = [line.strip() for line in read_lines(parser.get("main", "locklist", fallback=default_list))]
    return [pattern for pattern in patterns if pattern and pattern[0] not in "#!"]


def excluded_patterns(path):
    """Return the patterns that dnf.conf or yum.conf excludes from transactions."""
    parser = configuration(path)
    keys = ("exclude", "excludepkgs") if parser.has_section("main") else ()
    return [word for key in keys for word in re.split(r"[\s,]+", parser.get("main", key, fallback="")) if word]


def _alternatives(requirement):
    """Return the names of which a requirement needs one; of a rich dependency, all names in it."""
    words = re.split(r"[\s()]+(?:or|and|if|else|unless|with|without)?[\s()]*", requirement[1:-1])
    return [word for word in words if word] if requirement.startswith("(") else [requirement]


def _running(path):
    """Return the number in a pid file if that process exists."""
    pid = "".join(read_lines(path)).strip()
    return pid if pid.isdigit() and os.path.isdir("/proc/" + pid) else ""


def _pending():
    """Return the record of the transaction that did not end well, empty without one."""
    try:
        record = json.loads("\n".join(read_lines(PENDING)))
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _write_pending(packages, again, before=None):
    """Record a transaction: its packages, the packages to reinstall, and while it is in progress the versions before it."""
    record = {"packages": sorted(packages), "again": sorted(again), **({"before": before} if before else {})}
    replace(PENDING, json.dumps(record, sort_keys=True) + "\n", 0o600)


def _end_pending(packages, again):
    """Record the end of a transaction: which packages have to be reinstalled."""
    if again:
        _write_pending(packages, again)
    else:
        os.unlink(PENDING)
