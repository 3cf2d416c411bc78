"""Record which roles were tested on which systems: `pytest --record-systems`, or `make systems RECORD=1`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

from provision.lab.systems import SYSTEMS, lab_system
from tools import system_results, systems_page
from tools.system_results import ROOT, Result

__all__ = ["PAGE", "SystemRecorder", "commit_under_test", "converged_roles"]

PAGE = ROOT / "docs/reference/systems.md"
_RECORDED = (system_results.FILE.relative_to(ROOT).as_posix(), PAGE.relative_to(ROOT).as_posix())
"""The files that a run writes, so that the next run may find them modified."""
_KERNEL_ROLES = frozenset({"nvidia_driver", "peer_memory"})
"""Roles that manage kernel modules alone, which containers cannot load: nothing of them is tested there."""


def converged_roles(shell: Callable[[str], str]) -> list[str]:
    """Return the roles with a receipt on a node.

    Args:
        shell: returns the output of a shell command on the node.
    """
    names = shell("ls /var/lib/provision/receipts").split()
    return [name.removesuffix(".json") for name in names if name.endswith(".json")]


def commit_under_test(root: Path = ROOT) -> str:
    """Return the commit that a run tests.

    Raises:
        ValueError: files differ from it, so that a result could not name what was tested.
    """
    modified = _git(root, "status", "--porcelain", "--", ".", *(f":(exclude){path}" for path in _RECORDED))
    if modified:
        raise ValueError(f"results name a commit, but files are not committed:\n{modified}")
    return _git(root, "rev-parse", "HEAD").strip()


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True, text=True).stdout


class SystemRecorder:
    """Collects the results of a run.

    Args:
        commit: the tested commit; empty: nothing is written.
    """

    def __init__(self, commit: str) -> None:
        self._commit = commit
        self._results: list[Result] = []

    def __call__(self, system: str, roles: Iterable[str], *, machine: bool = False) -> None:
        """Record roles as tested.

        Args:
            system: the name of the system in the lab, such as ``debian12``.
            roles: the roles whose tests succeeded.
            machine: whether the node is a virtual machine.
        """
        made, today = lab_system(system), datetime.now(UTC).date().isoformat()
        nodes = "SIMULATED" if made.simulated else "virtual machine" if machine else "container"
        chosen = set(roles) if machine else set(roles) - _KERNEL_ROLES
        name = SYSTEMS[system].variables
        self._results += [Result(name, nodes, role, self._commit, today) for role in sorted(chosen)]

    def write(self) -> None:
        """Write the results and the page with their table, if the checkout is still the tested commit.

        Raises:
            ValueError: it is not.
        """
        if not self._commit or not self._results:
            return
        if commit_under_test() != self._commit:
            raise ValueError("another commit was checked out during the run: no results were recorded")
        system_results.write(self._results)
        PAGE.write_text(systems_page.page(), encoding="utf-8")
