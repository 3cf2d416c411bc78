"""Build one SIMULATED package of the lab as a .deb file."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from provision.errors import LabError
from provision.lab.services.stand_in import StandIn

PROGRAM, PACKAGE = "dpkg-deb", "dpkg"


def build(package: StandIn, tree: Path, target: Path, epoch: int) -> None:
    """Build `package` of the files in `tree` in the folder `target`; `epoch` is the newest time of files."""
    control = tree / "DEBIAN"
    control.mkdir()
    for name, text in {"control": _control(package), **package.scripts}.items():
        (control / name).write_text(text, encoding="utf-8")
        (control / name).chmod(0o644 if name == "control" else 0o755)
    control.chmod(0o755)
    done = subprocess.run(
        [PROGRAM, "--root-owner-group", "-Zgzip", "--build", str(tree), str(target / package.file_name)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
    )
    if done.returncode:
        raise LabError(f"{PROGRAM} failed for the SIMULATED package {package.name}", output=done.stderr)


def _control(package: StandIn) -> str:
    values = {
        "Package": package.name,
        "Version": package.version,
        "Architecture": "all",
        "Maintainer": "provision lab <root@localhost>",
        "Section": "misc",
        "Priority": "optional",
        **package.fields,
        "Description": f"SIMULATED: {package.summary}\n A stand-in of a provision lab; nothing of NVIDIA's is in it.",
    }
    return "".join(f"{name}: {value}\n" for name, value in values.items())
