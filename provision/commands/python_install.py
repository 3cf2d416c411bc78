"""The shell script that installs python3 on a node without it, which Ansible and our programs need."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from provision.commands.package_repositories import KEYS, repo_text

_APT = """again dpkg --configure -a --force-confdef --force-confold
again apt-get -q -o Acquire::Retries=3 update ||
    echo 'the package lists could not be updated: using the existing ones'
apt_install() {
    again apt-get -q -y -o Acquire::Retries=3 -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold \\
        --no-install-recommends "$@"
}
apt_install install python3 || { apt_install --fix-broken install && apt_install install python3; }
"""

INSTALLERS = {
    "apt-get": _APT,
    "dnf": "again dnf -q -y install python3\n",
    "yum": "{repositories}yum -q -y $options install python3\n",
    "zypper": "zypper --quiet --non-interactive install python3\n",
}
"""Package manager -> its script. Repositories are those of the node, as nothing else is configured yet.

The repositories of CentOS 7.6 have no python3, and do not answer any more: yum uses only those of the site, if any.
"""

INSTALL_SECONDS = 900
"""Time limit of the script."""

_AGAIN = """again() {
    while :; do
        "$@" >step 2>&1
        code=$?
        cat step
        [ $code != 0 ] && grep -E -q "$LOCKED" step && [ "$waited" -lt 300 ] || return $code
        waited=$((waited + 3))
        sleep 3
    done
}
LOCKED='Could not get lock|Unable to (acquire|lock)|is another process using it|(frontend|transaction) lock (was|on)'
waited=0
"""
"""A shell function that repeats a command while another program, for example apt-daily, has a lock of apt or rpm.

``DPkg::Lock::Timeout`` does not apply to ``apt-get update`` and ``dpkg``.
"""

_DETACHED = """umask 077
folder=$(mktemp -d) && cd "$folder" || exit 1
cat >install <<'END'
{installer}END
setsid -w sh ./install </dev/null >output 2>&1
code=$?
output=$(tail -n 30 output)
rm -rf "$folder"
printf '%s\\n' "$output" >&2
exit $code
"""
"""Runs the installer in a session of its own, with its output in a file that only root can read.

So the installer continues if the connection is lost. A pipe would then end dpkg in the middle of its work.
"""


def install_script(proxies: Mapping[str, str], repositories: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the script for the first package manager that the node has.

    Args:
        proxies: Environment variables with the proxies, such as ``http_proxy``. They appear on no command line.
        repositories: Package repositories of the site, for yum. Their files are removed with the script.

    Raises:
        ValueError: yum does not support a repository.
    """
    variables = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1", "LC_ALL": "C", **proxies}
    exports = "".join(f"{name}={shlex.quote(value)}; export {name}\n" for name, value in variables.items())
    scripts = {**INSTALLERS, "yum": INSTALLERS["yum"].format(repositories=_files(repositories))}
    cases = [f"if {_usable(manager)}; then\n{script}" for manager, script in scripts.items()]
    choice = "el".join(cases) + "else\necho 'no package manager is supported'\nexit 1\nfi\ncommand -v python3\n"
    return exports + _DETACHED.format(installer=_AGAIN + choice)


def _usable(manager: str) -> str:
    """Return the condition of the shell that a node uses a package manager; EPEL has apt-get and dpkg, too."""
    installed = f"command -v {manager} >/dev/null"
    return f"{installed} && [ -s /var/lib/dpkg/status ]" if manager == "apt-get" else installed


def _files(repositories: Sequence[Mapping[str, Any]]) -> str:
    """Return the commands that write repositories into the script's folder, and yum's options to use only these."""
    lines = ["options="]
    for number, item in enumerate(repositories):
        text = repo_text(item).replace(f"file://{KEYS.format(item['name'])}", f"file://KEYS/{number}.key")
        lines += [f"cat >{number}.key <<'END_FILE'", item["key"].strip(), "END_FILE"]
        lines += [f"sed \"s|file://KEYS|file://$PWD|\" >{number}.repo <<'END_FILE'", text + "END_FILE"]
    return "\n".join([*lines, *(["options=--setopt=reposdir=$PWD"] if repositories else [])]) + "\n"
