"""yum 3.4 and rpm behind the interface of package managers, for Enterprise Linux 7. No node with it was ever tried.

Everything about rpm, and the record of transactions, is that of `Dnf`. This module has the commands, files and messages
that differ. yum succeeds even if a requested package does not exist, and needs yum-utils to complete a transaction.
"""

import glob
import os
import re

from ansible.module_utils.platform_package_base import title_of
from ansible.module_utils.platform_package_dnf import (
    DATABASES,
    ERROR,
    REASONS,
    STALE,
    Dnf,
    excluded_patterns,
    locked_patterns,
    matches,
)

VERSIONLOCK = ("/etc/yum/pluginconf.d/versionlock.conf", "/etc/yum/pluginconf.d/versionlock.list")
CONFIGURATION = "/etc/yum.conf"
JOURNALS = "/var/lib/yum/transaction-all*"
"""Files of transactions that did not end."""
REQUESTED = "/var/lib/yum/yumdb/*/*/reason"
"""Files `ID-NAME-VERSION-RELEASE-ARCHITECTURE/reason` with `user`, or `dep` for a dependency."""
LOCKED = re.compile(r"holding the yum lock|Existing lock|can't create transaction lock")
MISSING = r"No package .{1,200} available"
FAILED = re.compile(MISSING + r"|scriptlet failed|was supposed to be installed but is not")
"""Failures after which yum may exit with 0."""
YUM_STALE = re.compile(STALE.pattern + "|" + MISSING + r"|HTTP Error 404|No more mirrors to try|\[Errno -?\d+\]")
YUM_ERROR = re.compile(
    ERROR.pattern + r"|^(No package|Cannot|failure:|warning: %|Non-fatal|Protected multilib)|Requires:|\[Errno -?\d+\]"
)
YUM_REASONS = (
    ("packages.missing", MISSING),
    ("packages.signature", r"GPG key retrieval failed|signature could not be verified|GPG keys listed for .{1,300} not correct"),
    ("packages.unreachable", r"No more mirrors to try|Cannot find a valid baseurl|Cannot retrieve|HTTP Error|\[Errno 14\]"),
    ("packages.conflict", r"^Error: Package: |Requires: |Protected multilib|Transaction check error|Multilib version problems"),
    ("packages.scriptlet", r"scriptlet failure"),
    *REASONS,
)  # fmt: skip


class Yum(Dnf):
    """The package manager of Enterprise Linux 7."""

    name = "yum"
    environment = {"LC_ALL": "C", "LANG": "C", "LANGUAGE": "C"}
    folders = ("/var/cache/yum", *DATABASES)
    reasons = YUM_REASONS
    pid_files = ("/var/run/yum.pid",)
    locked, stale, error = LOCKED, YUM_STALE, YUM_ERROR

    def protected(self):
        """Return the patterns of the packages that a versionlock or an exclusion protects."""
        return [*locked_patterns(*VERSIONLOCK), *excluded_patterns(CONFIGURATION)]

    def manual(self):
        """Return the packages that are not recorded as dependencies."""
        folders = (os.path.dirname(path) for path in glob.glob(REQUESTED) if _content(path) == "dep")
        names = (re.match(r"[0-9a-f]+-(.+)-[^-]+-[^-]+-[^-]+\Z", os.path.basename(folder)) for folder in folders)
        return set(self.partly_installed()) - {match.group(1) for match in names if match}

    def holder_in(self, output):
        """Return the lock holder that yum reports."""
        match = re.search(r"running as pid (\d+)", output)
        return title_of(match.group(1)) if match else ""

    def refresh(self):
        """Fetch the package lists, unless they are recent enough."""
        code, output = self._program("makecache", "fast")
        if code != 0:
            self._fail("package lists: cannot fetch them", output)

    def _needed_by(self, names):  # noqa: ARG002 - repoquery is a program of yum-utils, which the node may lack
        return set()

    def offered(self, names):
        """Return those packages that the repositories have."""
        out = self._program("-q", "list", "available", *names)[1] if names else ""
        listed = [line.split() for line in out.splitlines() if len(line.split()) == 3]
        rows = [(name, "", version, architecture) for name, architecture, version in map(_name_and_version, listed)]
        return [name for name in names if any(matches(name, row) for row in rows)]

    def repair(self):
        """Remove the journals of interrupted transactions, and the older versions that they left."""
        if glob.glob(JOURNALS):
            self._complete("yum-complete-transaction", "--cleanup-only")
        if self.duplicates():
            self._complete("package-cleanup", "--cleandupes")

    def _complete(self, program, *words):
        """Run a program of yum-utils."""
        problem = "packages {}: an interrupted transaction left them incomplete".format(", ".join(self.duplicates()))
        if not self.module.get_bin_path(program):
            if self.duplicates():
                self.fail("packages.interrupted", problem + "; {} of yum-utils is missing".format(program))
            return
        code, output = self.run([program, "-y", *words])
        if code != 0:
            self._fail(problem, output)

    def _transaction(self, names, again):
        """Install the packages; return an error if yum reports one and succeeds nevertheless."""
        code, output = super()._transaction(names, again)
        installed = self.partly_installed()
        has_failed = FAILED.search(output) and any(name not in installed for name in names)
        return (1 if has_failed else code), output

    def _install_again(self, names):
        """Install packages with new package lists."""
        self._program("clean", "expire-cache")
        return self._program("install", *names)

    def _enable(self, streams):
        """Refuse module streams: yum has none."""
        if streams:
            self.fail("packages.stream", "module streams {}: yum does not have any".format(", ".join(streams)))

    def _program(self, *words):
        """Run yum, which does not wait for a lock: `run` does, and reports the lock holder."""
        options = ["--setopt=exit_on_lock=1", "--setopt=retries=3", "--setopt=skip_missing_names_on_install=False"]
        return self.run(["yum", "-y", *options, "--setopt=metadata_expire={}".format(self.valid_seconds), *words])


def _name_and_version(words):
    """Return name, architecture and version of a line of `yum list`: NAME.ARCHITECTURE, version and repository."""
    name, _, architecture = words[0].rpartition(".")
    return name, architecture, words[1]


def _content(path):
    """Return a small file's text without spaces at its ends, empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return ""
