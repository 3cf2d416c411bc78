"""Install and use a release in a clean container: ``python -m tools.release_smoke FOLDER``.

The container has Debian's python3, python3-venv and openssh-client, and neither network nor checkout. An unprivileged
user installs the wheel with the locked packages, which pip downloads here. The image is built from the apt sources of
this machine; SMOKE_IMAGE names one that the Docker engine already has, e.g. of another distribution.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provision import __version__
from provision.errors import ProvisionError
from provision.lab.engine_process import release_engine, require_engine
from provision.lab.mirror import mirror_sources
from provision.lab.systems import lab_system

ROOT = Path(__file__).resolve().parent.parent
SYSTEMS = {(3, 11): "debian12", (3, 13): "debian13"}
"""Version of Python -> the system with it: the downloaded packages are those of this interpreter."""
PACKAGES = ("python3", "python3-venv", "openssh-client")
USER = "65534:65534"
HOST_KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"


class Steps:
    """Prints the steps."""

    def step(self, message: str) -> None:
        """Print one."""
        print(message, flush=True)


def main() -> None:
    """Test the release in the folder that is the first argument."""
    try:
        require("docker")
        with tempfile.TemporaryDirectory(prefix="provision-smoke-") as name:
            folder = Path(name)
            download(Path(sys.argv[1]), folder / "release")
            with engine(folder) as docker, image(docker, folder) as tag:
                run(docker, tag, folder / "release")
    except ProvisionError as error:
        sys.exit(f"error: {error.message}" + (f"\nhint: {error.remedy}" if error.remedy else ""))
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: {error.cmd[0]} exited with {error.returncode}")


def require(program: str) -> None:
    """Fail if a program is not installed."""
    if shutil.which(program) is None:
        raise ProvisionError(f"{program} is not installed", remedy="Run: make setup")


def download(dist: Path, release: Path) -> None:
    """Put the files of the release, the locked packages and the script into a folder that every user can read."""
    Steps().step("downloading the locked packages")
    shutil.copytree(dist, release)
    words = ["--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--dest", str(release / "wheels")]
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", *words]
    subprocess.run([*pip, "-r", str(ROOT / "requirements.lock")], check=True)
    shutil.copy(ROOT / "tools/release_smoke.sh", release)
    (release / "keys").write_text("".join(f"192.0.2.{n} ssh-ed25519 {HOST_KEY}\n" for n in (1, 2)))
    for path in (release.parent, release, *release.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


@contextmanager
def engine(folder: Path) -> Iterator[list[str]]:
    """Return the docker command with this machine's engine, or with one that runs until the end."""
    try:
        usable = require_engine(folder, Steps())
        usable.close()
        yield ["docker", "--host", usable.host]
    finally:
        release_engine(folder, Steps())


@contextmanager
def image(docker: list[str], folder: Path) -> Iterator[str]:
    """Return the image of the container."""
    if given := os.environ.get("SMOKE_IMAGE"):
        yield given
        return
    system = SYSTEMS.get(sys.version_info[:2])
    if system is None:
        raise ProvisionError(
            f"no Debian release has Python {sys.version_info[0]}.{sys.version_info[1]}",
            remedy="Set SMOKE_IMAGE to an image of your Docker engine with this version of python3, venv and ssh.",
        )
    require("mmdebstrap")
    Steps().step(f"building an image of {system} with {', '.join(PACKAGES)}")
    sources = mirror_sources(lab_system(system))
    options, mirrors = sources.arguments(folder)
    archive, tag = folder / "image.tar", f"provision-release-smoke:{os.getpid()}"
    words = ["--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}", *options]
    subprocess.run(["mmdebstrap", *words, sources.system.suite, str(archive), *mirrors], check=True)
    subprocess.run([*docker, "import", str(archive), tag], check=True, stdout=subprocess.DEVNULL)
    try:
        yield tag
    finally:
        subprocess.run([*docker, "image", "rm", tag], check=False, stdout=subprocess.DEVNULL)


def run(docker: list[str], tag: str, release: Path) -> None:
    """Run the script in a container; the label keeps an engine of labs running."""
    Steps().step("installing and using the release in a container")
    limits = ["--network", "none", "--user", USER, "--cap-drop", "ALL", "--label", "provision.lab=release-smoke"]
    settings = ["--env", "HOME=/tmp/home", "--env", f"VERSION={__version__}", "--volume", f"{release}:/release:ro"]
    subprocess.run([*docker, "run", "--rm", *limits, *settings, tag, "sh", "/release/release_smoke.sh"], check=True)


if __name__ == "__main__":
    main()
