"""The shell script that installs python3 on a node without it, which Ansible and our programs need."""

from __future__ import annotations

INSTALLERS = {
    "apt-get": "DEBIAN_FRONTEND=noninteractive; export DEBIAN_FRONTEND\n"
    "apt-get -q -o DPkg::Lock::Timeout=300 update >&2 && "
    "apt-get -q -y -o DPkg::Lock::Timeout=300 --no-install-recommends install python3 >&2",
    "dnf": "dnf -q -y install python3 >&2",
    "yum": "yum -q -y install python3 >&2",
    "zypper": "zypper --quiet --non-interactive install python3 >&2",
}
"""Package manager -> its script. Repositories and proxies are those of the node, as nothing else is configured yet."""

INSTALL_SECONDS = 900
"""Time limit of the script."""


def install_script() -> str:
    """Return the script for the first package manager that the node has."""
    cases = [f"if command -v {manager} >/dev/null; then\n{script}" for manager, script in INSTALLERS.items()]
    return (
        "\nel".join(cases) + "\nelse\necho 'no package manager is supported' >&2; exit 1\nfi\ncommand -v python3 >&2\n"
    )
