"""The SIMULATED hardware of a lab node: packages that represent the hardware of a machine with GPUs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from provision.errors import NodeError
from provision.lab.access import copy, run_script
from provision.lab.base import LabNode, Progress
from provision.threads import outcomes

_SECONDS = 300


def install_hardware(folder: Path, nodes: Sequence[LabNode], packages: Sequence[Path], progress: Progress) -> None:
    """Install the package files on every node that does not have these versions yet."""
    if not packages:
        return
    progress.step(f"installing SIMULATED hardware on {', '.join(node.name for node in nodes)}")

    def install(node: LabNode) -> None:
        _install(folder, node, packages)

    for outcome in outcomes(install, nodes, limit=8):
        if isinstance(outcome, Exception):
            raise outcome


def _install(folder: Path, node: LabNode, packages: Sequence[Path]) -> None:
    installed = run_script(
        folder, node, "dpkg-query -W -f '${Package}_${Version}_${Architecture}.deb\\n'"
    ).stdout.splitlines()
    missing = [path for path in packages if path.name not in installed]
    remote = [f"/root/{path.name}" for path in missing]
    for local, path in zip(missing, remote, strict=True):
        copy(folder, node, local, path)
    if missing:
        files = shlex.join(remote)
        done = run_script(folder, node, f"dpkg -i {files}; code=$?; rm -f {files}; exit $code", timeout=_SECONDS)
        if done.returncode:
            raise NodeError(
                "installing the SIMULATED hardware's packages failed",
                node=node.name,
                remedy="Run `provision lab up` again; if that fails, take the lab down and up.",
                output=done.stderr or done.stdout,
            )
