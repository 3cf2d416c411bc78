#!/usr/bin/python
"""Ansible module: one apt transaction that waits for locks, repairs interrupted transactions and reports causes."""

DOCUMENTATION = r"""
module: platform_apt
short_description: Install the packages of all roles of a play in one transaction
description:
  - Requires no Python bindings of apt, so that it works (also in check mode) on a bare node.
  - Waits for other package programs, and names the lock holder after a timeout.
  - Completes an earlier, interrupted transaction.
options:
  packages: {description: Packages that must be installed., type: list, elements: str, required: true}
  optional:
    description: Packages that are installed in the same transaction if the repositories have them.
    type: list
    elements: str
    default: []
  outdated: {description: 'Packages of the list whose installed version is too old, and which are upgraded to the newest.', type: list, elements: str, default: []}
  lock_timeout: {description: Seconds to wait for another package program., type: int, default: 600}
  cache_valid_time: {description: Age in seconds up to which package lists are not fetched again., type: int, default: 3600}
  held_services: {description: Services that the packages must not start., type: list, elements: str, default: []}
  data_folders:
    description: Folders that programs of the packages fill. The module records whether they existed before, for a reset.
    type: list
    elements: path
    default: []
  http_proxy: {description: 'Proxy for http://. It may contain a password, so it is never on a command line.', type: str, default: ""}
  https_proxy: {description: 'Proxy for https://.', type: str, default: ""}
  no_proxy: {description: Hosts that are reached without proxy., type: str, default: ""}
author: [provision]
"""

import glob
import os
import re
import time
from urllib.parse import unquote

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_busy import who
from ansible.module_utils.platform_origin_packages import begin_packages, end_packages
from ansible.module_utils.platform_replace import replace

POLICY = "/usr/sbin/policy-rc.d"
POLICY_MARK = "# provision: for the length of one package transaction"
HOLDER = "/run/provision/package-transaction"
LISTS = "/var/lib/apt/lists"
SOURCES = (
    "/etc/apt/sources.list",
    "/etc/apt/sources.list.d/*",
    "/etc/apt/keyrings/*",
    "/etc/apt/auth.conf.d/*",
)
LOCKS = ("/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock", LISTS + "/lock", "/var/cache/apt/archives/lock")
LOCKED = re.compile(
    r"(Could not get lock|Unable to (acquire|lock)|is another process using it|frontend lock was locked)"
)
AGAIN = ("-o", "Acquire::Retries=3")
"""Number of retries for each file: the default of Debian, but not of every distribution."""
KEEP_FILES = ("-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold")
STALE = re.compile(
    r"(Unable to locate package|has no installation candidate|404 +Not Found|Failed to fetch|Hash Sum mismatch)"
)
UNKNOWN = re.compile(r"(Unable to locate package|has no installation candidate)")
BROKEN = re.compile(
    r"(dpkg was interrupted|--fix-broken install|Unmet dependencies|not configured yet|reinstall it before)"
)
FULL = re.compile(r"(No space left on device|don't have enough free space|not enough free space|Disk quota exceeded)")


def missing_packages(module, names):
    """Return the packages that are not completely installed."""
    _, out, _ = module.run_command(["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\\n", *names])
    installed = {line.split()[0] for line in out.splitlines() if line.endswith(" installed")}
    return [name for name in names if name not in installed]


def available_packages(module, names):
    """Return the packages that the package lists contain."""
    available = []
    for name in names:
        code, out, _ = module.run_command(["apt-cache", "show", "--no-all-versions", name])
        if code == 0 and out.strip():
            available.append(name)
    return available


def lock_holder():
    """Return the process that holds one of the package locks, empty if none is known."""
    inodes = {str(os.stat(path).st_ino) for path in LOCKS if os.path.exists(path)}
    try:
        with open("/proc/locks", encoding="ascii") as stream:
            lines = [line.split() for line in stream]
    except OSError:
        return ""
    for words in lines:
        place = next((word for word in words if word.count(":") == 2), "")
        if "->" not in words and place.split(":")[-1] in inodes:
            pid = words[words.index(place) - 1]
            return who(pid)
    return ""


def least_free_space():
    """Return a sentence with the folder for packages that has the least free space."""
    free = {
        path: os.statvfs(path)
        for path in ("/", "/usr", "/var", "/boot", "/var/cache/apt/archives")
        if os.path.isdir(path)
    }
    path = min(free, key=lambda name: free[name].f_bavail * free[name].f_frsize)
    return "{} has {} MiB free".format(path, free[path].f_bavail * free[path].f_frsize // 2**20)


class Apt:
    """Runs apt-get until it succeeds, or fails with the cause."""

    def __init__(self, module):
        """Start the clock of the lock timeout."""
        self.module = module
        self.deadline = time.monotonic() + module.params["lock_timeout"]
        module.run_command_environ_update = {
            "DEBIAN_FRONTEND": "noninteractive",
            "DEBIAN_PRIORITY": "critical",
            "LC_ALL": "C",
            "NEEDRESTART_SUSPEND": "1",
            "APT_LISTCHANGES_FRONTEND": "none",
            "UCF_FORCE_CONFFOLD": "1",
            **self._proxies(),
        }

    def _proxies(self):
        """Return the proxies for the environment, and hide their passwords in all messages."""
        proxies = {name: self.module.params[name] for name in ("http_proxy", "https_proxy", "no_proxy")}
        for url in (proxies["http_proxy"], proxies["https_proxy"]):
            password = url.rpartition("@")[0].rpartition("//")[2].partition(":")[2]
            self.module.no_log_values.update({password, unquote(password)} - {""})
        return {name: value for name, value in proxies.items() if value}

    def update(self):
        """Fetch the package lists."""
        code, output = self._run(["apt-get", "-q", *AGAIN, "-o", "APT::Update::Error-Mode=any", "update"])
        if code != 0:
            self._fail("cannot fetch the package lists", output)

    def install(self, names):
        """Install packages. If an earlier transaction was interrupted, repair it first."""
        code, output = self._install(names)
        if code != 0 and BROKEN.search(output):
            self._run(["dpkg", "--configure", "-a", "--force-confdef", "--force-confold"])
            self._run(["apt-get", "-y", "-q", *KEEP_FILES, "--no-install-recommends", "--fix-broken", "install"])
            code, output = self._install(names)
        if code != 0 and STALE.search(output):
            self.update()
            code, output = self._install(names)
        if code != 0:
            self._fail("cannot install the packages {}".format(", ".join(names)), output)

    def _install(self, names):
        return self._run(["apt-get", "-y", "-q", *AGAIN, *KEEP_FILES, "--no-install-recommends", "install", *names])

    def _run(self, command):
        """Run a package command, and retry it while another process holds a lock. Return its exit code and output."""
        holder = ""
        while True:
            code, out, err = self.module.run_command(command)
            if code == 0 or not LOCKED.search(out + err):
                return code, out + err
            holder = lock_holder() or self._holder_in(err) or holder
            if time.monotonic() >= self.deadline:
                self.module.fail_json(
                    msg="the package database is locked by {} (waited {} seconds). Wait until it has finished, or stop "
                    "it, and apply again. Never delete the lock files. Set platform_lock_timeout_seconds to wait longer.".format(
                        holder or "another process", self.module.params["lock_timeout"]
                    ),
                    stderr=err[-2000:],
                )
            time.sleep(min(3, max(0.1, self.deadline - time.monotonic())))

    @staticmethod
    def _holder_in(err):
        match = re.search(r"held by process (\d+) \((.*?)\)", err)
        return f"process {match.group(1)} ({match.group(2)})" if match else ""

    def _fail(self, problem, output):
        lines = [line for line in output.splitlines() if line.startswith(("E:", "dpkg: error", "Err:"))]
        reason = "; ".join(lines[-4:]) or output.strip()[-500:]
        if FULL.search(output):
            reason = f"the disk is full ({least_free_space()}). Free some space and apply again. {reason}"
        elif UNKNOWN.search(output):
            reason += (
                ". The package sources of the node do not contain it. Correct platform_extra_repositories, or the repository "
                "variables of the role that requires it (docker_engine_repository_uri, nvidia_container_repository_uri)"
            )
        self.module.fail_json(msg=f"{problem}: {reason}", stdout="\n".join(output.splitlines()[-30:]))


class HeldServices:
    """Context in which the installation of a package does not start these services (policy-rc.d)."""

    def __init__(self, names):
        """Set the names of the services."""
        self.names = names

    def __enter__(self):
        """Write the policy, unless the site has its own."""
        if self.names and (not os.path.exists(POLICY) or self._is_written_by_module()):
            patterns = "|".join(f"{name}|{name}.*" for name in self.names)
            # The policy has an effect only while this process exists, so that one left by an interrupted run has none.
            replace(HOLDER, f"{os.getpid()}\n")
            alive = f"read -r pid 2>/dev/null <{HOLDER} && [ -d /proc/$pid ] || exit 0"
            replace(
                POLICY, f'#!/bin/sh\n{POLICY_MARK}\n{alive}\ncase "$1" in {patterns}) exit 101 ;; esac\nexit 0\n', 0o755
            )

    def __exit__(self, *_):
        """Remove the policy."""
        if self._is_written_by_module():
            os.unlink(POLICY)
        if os.path.exists(HOLDER):
            os.unlink(HOLDER)

    @staticmethod
    def _is_written_by_module():
        try:
            with open(POLICY, encoding="utf-8", errors="replace") as stream:
                return POLICY_MARK in stream.read()
        except OSError:
            return False


def lists_are_fresh(valid_seconds):
    """Return whether the package lists are recent enough and newer than every source.

    Lists with a time in the future were fetched while the clock was wrong, so their age is unknown.
    """
    newest_list = max((os.stat(path).st_mtime for path in glob.glob(LISTS + "/partial")), default=0)
    if not glob.glob(LISTS + "/*Release"):
        return False
    sources = [path for pattern in SOURCES for path in glob.glob(pattern)]
    newest_source = max((os.stat(path).st_ctime for path in sources if os.path.exists(path)), default=0)
    return newest_list > newest_source and 0 <= time.time() - newest_list < valid_seconds


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "list", "elements": "str", "required": True},
            "optional": {"type": "list", "elements": "str", "default": []},
            "outdated": {"type": "list", "elements": "str", "default": []},
            "lock_timeout": {"type": "int", "default": 600},
            "cache_valid_time": {"type": "int", "default": 3600},
            "held_services": {"type": "list", "elements": "str", "default": []},
            "data_folders": {"type": "list", "elements": "path", "default": []},
            "http_proxy": {"type": "str", "default": "", "no_log": True},
            "https_proxy": {"type": "str", "default": "", "no_log": True},
            "no_proxy": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    apt = Apt(module)
    names = missing_packages(module, module.params["packages"])
    names += [name for name in module.params["packages"] if name in module.params["outdated"] and name not in names]
    optional = missing_packages(module, module.params["optional"]) if module.params["optional"] else []
    if optional and not module.check_mode and not lists_are_fresh(module.params["cache_valid_time"]):
        apt.update()
    names += available_packages(module, optional)
    diff = {"before": "", "after": "".join(f"{name}\n" for name in names)}
    if names and not module.check_mode:
        with HeldServices(module.params["held_services"]):
            if not lists_are_fresh(module.params["cache_valid_time"]):
                apt.update()
            transaction = begin_packages(module, names, module.params["data_folders"])
            try:
                apt.install(names)
            finally:
                end_packages(module, transaction)
    module.exit_json(changed=bool(names), installed=names, diff=diff)


if __name__ == "__main__":
    main()
