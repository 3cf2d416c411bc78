"""The SIMULATED hardware of a lab node: packages that represent the hardware of a machine with GPUs."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from provision.errors import NodeError
from provision.lab.access import copy, run_script
from provision.lab.base import LabNode, Progress
from provision.lab.package_managers import PackageManager
from provision.threads import outcomes

_SECONDS = 300


def install_hardware(
    folder: Path,
    nodes: Sequence[tuple[LabNode, PackageManager]],
    packages_of: Callable[[PackageManager], Sequence[Path]],
    progress: Progress,
) -> None:
    """Install the package files for a node's package manager on every node that does not have these versions yet."""
    packages = {manager: packages_of(manager) for _, manager in nodes}
    if not any(packages.values()):
        return
    progress.step(f"installing SIMULATED hardware on {', '.join(node.name for node, _ in nodes)}")

    def install(entry: tuple[LabNode, PackageManager]) -> None:
        _install(folder, *entry, packages[entry[1]])

    for outcome in outcomes(install, nodes, limit=8):
        if isinstance(outcome, Exception):
            raise outcome


def _install(folder: Path, node: LabNode, manager: PackageManager, packages: Sequence[Path]) -> None:
    installed = run_script(folder, node, manager.list_command).stdout.splitlines()
    missing = [path for path in packages if path.name not in installed]
    remote = [f"/root/{path.name}" for path in missing]
    for local, path in zip(missing, remote, strict=True):
        copy(folder, node, local, path)
    if missing:
        files = shlex.join(remote)
        command = f"{manager.install_command} {files}; code=$?; rm -f {files}; exit $code"
        done = run_script(folder, node, command, timeout=_SECONDS)
        if done.returncode:
            raise NodeError(
                "installing the SIMULATED hardware's packages failed",
                node=node.name,
                remedy="Run `provision lab up` again; if that fails, take the lab down and up.",
                output=done.stderr or done.stdout,
            )
