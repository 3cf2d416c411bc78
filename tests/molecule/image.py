"""Build an image for the roles' scenarios, unless it is there: a bare node of a system, or a small training image.

Usage: ``image.py node REPOSITORY:SYSTEM.VERSION`` builds the docker image of a node of a system such as ``debian_12``.
``image.py training FILE`` builds OpenSSH and little else, as ``docker save`` writes it.

Packages come from the controller's mirror of the system's archive, as for nodes of the lab.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from provision.inventory.role_files import systems
from provision.lab.access import file_lock
from provision.lab.container_image import file_hooks
from provision.lab.mirror import mirror_sources
from provision.lab.systems import DEFAULT_SYSTEM, SYSTEMS, lab_system
from provision.resources import roles_folder

BARE = ("systemd", "systemd-sysv", "openssh-server", "python3", "iproute2", "sudo", "ca-certificates", "dbus")
TRAINING = ("openssh-server", "openssh-client", "procps")
TRAINING_NAME = "provision-molecule-training:1"
NO_HOST_KEYS = 'rm -f "$1"/etc/ssh/ssh_host_*'
LOCKED_ROOT = 'chroot "$1" usermod -p "!" root'
"""As in many images: sshd without PAM refuses such an account."""


def role_packages(variables: dict[str, Any]) -> list[str]:
    """Return what the roles install from a system's archive, by the variables of the system's file."""
    sets = variables["__platform_package_sets"].values()
    lists = [one if isinstance(one, list) else one.get("distribution", []) for one in sets]
    return sorted({package for packages in lists for package in packages})


def node_options(variables: dict[str, Any]) -> Iterator[str]:
    """Yield mmdebstrap's options for a bare node whose apt cache contains the roles' packages, which saves time."""
    apt = "APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get -q -y --no-install-recommends --download-only install"
    yield "--skip=cleanup/apt"
    yield f"--include={','.join(BARE)}"
    yield f"--customize-hook={apt} {' '.join(role_packages(variables))}"
    yield f"--customize-hook={NO_HOST_KEYS}"


def training_options() -> Iterator[str]:
    """Yield mmdebstrap's options for a training image."""
    yield f"--include={','.join(TRAINING)}"
    yield f"--customize-hook={LOCKED_ROOT}"


def mmdebstrap(system: str, options: Iterator[str], folder: Path) -> list[str]:
    """Return the command that builds the root file system of a system as ``root.tar`` in a folder."""
    made = lab_system(system)
    if made.rpm:
        raise SystemExit(f"{system}: the lab serves its packages; test roles there (tests/integration/test_systems.py)")
    sources = mirror_sources(made)
    settings, mirrors = sources.arguments(folder)
    archive = str(folder / "root.tar")
    own = [f"--include={','.join(made.packages)}"] if made.packages else []
    own += [*(f"--customize-hook={hook}" for hook in made.hooks), *file_hooks(made.files, folder)]
    return ["mmdebstrap", "--quiet", "--variant=minbase", *settings, *options, *own, made.suite, archive, *mirrors]


def import_image(name: str, system: str, options: Iterator[str]) -> None:
    """Build a root file system and import it into docker."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(mmdebstrap(system, options, Path(folder)), check=True, stdout=sys.stderr)
        subprocess.run(["docker", "import", f"{folder}/root.tar", name], check=True, stdout=sys.stderr)


def system_of_file(file: str) -> str:
    """Return the lab's name of the system with a file of variables."""
    return next(name for name, row in SYSTEMS.items() if row.variables == file)


def node(name: str) -> bool:
    """Build the image of a node; return whether it was missing."""
    system = name.rpartition(":")[2].rpartition(".")[0]
    with file_lock(Path(tempfile.gettempdir()) / "provision-molecule-node-image.lock"):
        if subprocess.run(["docker", "image", "inspect", name], check=False, capture_output=True).returncode == 0:
            return False
        import_image(name, system_of_file(system), node_options(systems(roles_folder())[system]))
        return True


def training(name: str) -> bool:
    """Write the training image, which has the same system on all nodes; return whether it was missing."""
    file = Path(name)
    new = file.with_name(f"{file.name}.new")
    file.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(file.with_name(f"{file.name}.lock")):
        if file.exists():
            return False
        import_image(TRAINING_NAME, DEFAULT_SYSTEM, training_options())
        try:
            subprocess.run(["docker", "save", "--output", str(new), TRAINING_NAME], check=True)
            new.rename(file)
        finally:
            new.unlink(missing_ok=True)
            subprocess.run(["docker", "image", "rm", TRAINING_NAME], check=False, capture_output=True)
        return True


if __name__ == "__main__":
    build = {"node": node, "training": training}[sys.argv[1]]
    sys.stdout.write("built\n" if build(sys.argv[2]) else "present\n")
