"""SELinux: its mode, labels of files that containers and roles need, and what it denied to containers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from provision.facts.base import RawOutput, Unknown

DATA_ROOT = "/var/lib/docker"
DATA_ROOT_TYPE = "container_var_lib_t"
"""The type of DATA_ROOT in the policy of container-selinux."""

_MODES = {"1": "enforcing", "0": "permissive", "": "disabled"}
"""By the content of /sys/fs/selinux/enforce, which exists only if SELinux is enabled."""
_CONFIGURED = frozenset({"enforcing", "permissive", "disabled", ""})
_TYPE = re.compile(r"[^:\s]+:[^:\s]+:([a-z0-9_]{1,100})(?::\S*)?")
_RELABEL = re.compile(r"Would relabel (/\S*) from (\S+) to (\S+)")
_DENIAL = re.compile(
    r"type=AVC msg=audit\((?P<seconds>\d{1,12})\.\d{1,6}:\d{1,12}\): +avc: +denied +"
    r"\{ (?P<permissions>[a-z_ ]{1,200}?) \} for "
    r"(?P<details>.{0,1000}?)scontext=[^:\s]+:[^:\s]+:container[a-z_]{0,40}_t(?::\S*)? "
    r"tcontext=[^:\s]+:[^:\s]+:(?P<target>[a-z0-9_]{1,100})(?::\S*)? tclass=(?P<kind>[a-z0-9_]{1,40})(?: .{0,200})?"
)
_DETAIL = re.compile(r'\b(comm|name|path)="([^"]{1,200})"')


@dataclass(frozen=True)
class WrongLabel:
    """A file whose type is not the one that the policy has for its path."""

    path: str
    current: str
    desired: str


@dataclass(frozen=True)
class Selinux:
    """The state of SELinux on a node."""

    mode: str
    """``enforcing``, ``permissive`` or ``disabled``."""
    configured: str = ""
    """The mode of the next boot in /etc/selinux/config; empty without that file."""
    types: Mapping[str, str] = field(default_factory=dict)
    """The type in the label of each path of interest that exists: ``/var/lib/docker`` -> ``container_var_lib_t``."""
    equivalents: Mapping[str, str] = field(default_factory=dict)
    """Path -> the path whose rules it has (``semanage fcontext -a -e``)."""
    wrong: tuple[WrongLabel, ...] = ()
    """Files of the roles with a wrong label."""

    @property
    def enabled(self) -> bool:
        """Whether files have labels."""
        return self.mode != "disabled"

    def has_docker_labels(self, root: str) -> bool:
        """Return whether the policy gives a data root of Docker the labels of DATA_ROOT."""
        return root == DATA_ROOT or any(
            same == DATA_ROOT and (root == path or root.startswith(f"{path}/"))
            for path, same in self.equivalents.items()
        )

    def relabel_commands(self, root: str) -> str:
        """Return the commands that give a data root of Docker the labels of DATA_ROOT."""
        relabel = f"restorecon -RF {root}"
        rule = f"semanage fcontext -a -e {DATA_ROOT} {root} && "
        return relabel if self.has_docker_labels(root) else rule + relabel


class SelinuxFact:
    """Reads files, and the labels of paths; compares the labels of the roles' files only if SELinux is enabled."""

    name: ClassVar[str] = "selinux"
    label: ClassVar[str] = "cat /sys/fs/selinux/enforce"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = r"""
[ ! -r /etc/selinux/config ] || sed -n 's/^SELINUX=/configured=/p' /etc/selinux/config
if [ -r /sys/fs/selinux/enforce ]; then
  read -r mode </sys/fs/selinux/enforce; echo "enforce=$mode"
  stat -c 'label %C %n' $PROBE_PATHS $PROBE_MOUNTS 2>/dev/null
  sed -n 's/^\//same &/p' /etc/selinux/*/contexts/files/file_contexts.subs 2>/dev/null
  restorecon -i -n -v /etc/hosts /etc/docker/daemon.json /etc/*/*provision* /etc/*/*/*provision* \
    /usr/local/lib/provision /usr/local/lib/provision/* 2>/dev/null
fi
exit 0
"""

    def parse(self, raw: RawOutput) -> Selinux | Unknown:
        """Ignore lines of other programs; the mode has to be a known one."""
        pairs = raw.pairs()
        mode, configured = _MODES.get(pairs.get("enforce", "")), pairs.get("configured", "").lower()
        if mode is None or configured not in _CONFIGURED:
            wrong = f"SELINUX={configured} in /etc/selinux/config" if mode else f"enforce is {pairs.get('enforce')}"
            return Unknown(f"the mode of SELinux is unknown ({wrong})")
        words = [line.split() for line in raw.lines()]
        return Selinux(
            mode,
            configured,
            types={row[2]: kind for row in words if row[0] == "label" and len(row) == 3 and (kind := _type(row[1]))},  # noqa: PLR2004
            equivalents={row[1]: row[2] for row in words if row[0] == "same" and len(row) == 3},  # noqa: PLR2004
            wrong=tuple(
                WrongLabel(match[1], _type(match[2]), _type(match[3]))
                for line in raw.lines()
                if (match := _RELABEL.fullmatch(line)) and _type(match[2]) != _type(match[3])
            ),
        )


def _type(label: str) -> str:
    """Return the type of a label, empty if it is not a label."""
    match = _TYPE.fullmatch(label)
    return match[1] if match else ""


@dataclass(frozen=True)
class Denial:
    """An access that SELinux denied to a process of a container."""

    seconds: int
    """Since 1970."""
    command: str
    permissions: str
    """``read``, ``read write``, ..."""
    target: str
    """The type of the object."""
    kind: str
    """``file``, ``dir``, ``chr_file``, ..."""
    name: str
    """Its path, or the last part of it; empty if the record has none."""


class SelinuxDenialsFact:
    """Reads the end of the audit log."""

    name: ClassVar[str] = "selinux_denials"
    label: ClassVar[str] = "tail /var/log/audit/audit.log"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = r"""
log=/var/log/audit/audit.log
if [ -r /sys/fs/selinux/enforce ] && [ -r $log ]; then
  tail -c 1000000 $log | grep -a '^type=AVC .* denied .*scontext=[^ ]*:container[a-z_]*_t' | tail -n 100
fi
exit 0
"""

    def parse(self, raw: RawOutput) -> tuple[Denial, ...]:
        """Ignore records of another form."""
        return tuple(denial for line in raw.lines() if (denial := _denial(line)))


def _denial(line: str) -> Denial | None:
    match = _DENIAL.fullmatch(line.strip())
    if match is None:
        return None
    details = dict(_DETAIL.findall(match["details"]))
    return Denial(
        seconds=int(match["seconds"]),
        command=details.get("comm", "a process"),
        permissions=match["permissions"],
        target=match["target"],
        kind=match["kind"],
        name=details.get("path") or details.get("name", ""),
    )
