"""Root file systems of container nodes: a bare system with systemd, sshd and Python, built by mmdebstrap.

An image is identified by the hash of its recipe. The tar file remains in the cache, so that another Docker engine can
import it without the mirror; older recipes of the same distribution are removed when a new one is built. The packages
of a SIMULATED system with rpm are built with its image, into a folder beside the tar file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from provision.connectors.container import Engine
from provision.errors import LabError
from provision.lab import el_image
from provision.lab.access import file_lock
from provision.lab.base import Progress
from provision.lab.mirror import MirrorSources, mirror_sources, require_keyring
from provision.lab.systems import LabSystem

REPOSITORY = "provision-node"

PACKAGES = (
    "ca-certificates",
    "dbus",
    "iproute2",
    "kmod",
    "netbase",
    "openssh-server",
    "procps",
    "python3",
    "sudo",
    "systemd",
    "systemd-sysv",
    "udev",  # every machine has it; its unit finds /sys read-only here and does not start
)

_INIT_PATH = "/usr/local/sbin/lab-node-init"
_INIT = """\
#!/bin/sh
# First program of a lab node: makes the container look like a machine, then becomes systemd.
# Its own cgroups are writable, so that systemd and the node's own docker engine can use them.
for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*; do
    if [ ! -L "$hierarchy" ] && mountpoint -q "$hierarchy"; then
        mount -o remount,bind,rw "$hierarchy"
    fi
done
# Settings of its own network can be written (docker 26 insists); those of the whole machine's kernel cannot.
mount --bind /proc/sys/net /proc/sys/net && mount -o remount,bind,rw /proc/sys/net
# These become ordinary files of the node: docker mounts its own over them, which could not be replaced by rename.
for name in hosts hostname resolv.conf; do
    cp "/etc/$name" "/run/lab-$name"
    umount "/etc/$name"
    [ -s "/etc/$name" ] || cat "/run/lab-$name" > "/etc/$name"
    chmod 0644 "/etc/$name"
    rm -f "/run/lab-$name"
done
exec /lib/systemd/systemd
"""
_PREPARE = """\
rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/0000* "$1"/etc/resolv.conf
rm -f "$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/etc/hostname
: > "$1/etc/machine-id"
chmod 0755 "$1/usr/local/sbin/lab-node-init"
for unit in systemd-modules-load systemd-firstboot console-getty; do
    ln -sf /dev/null "$1/etc/systemd/system/$unit.service"
done
"""


def image_tag(sources: MirrorSources) -> str:
    """Return the image's tag, which depends on everything in the image."""
    system = sources.system
    parts: list[object] = [PACKAGES, _INIT, _PREPARE, system.suite, sources.deb822, sources.apt_conf]
    parts += [system.packages, system.files, system.hooks] if system.packages or system.files else []
    parts += [el_image.files(system), el_image.recipe(system), system.setup] if system.rpm else []
    recipe = json.dumps(parts)
    return f"{REPOSITORY}:{system.name}-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"


def ensure_image(engine: Engine, system: LabSystem, cache: Path, progress: Progress) -> str:
    """Import the node image of a system into `engine`, building it unless it is cached; return its tag."""
    tag = image_tag(mirror_sources(system))
    if engine.has_image(tag):
        return tag
    with _cached_archive(system, cache, progress) as archive:
        progress.step(f"importing the {system.label} node image into docker")
        engine.import_image(archive, tag, command=[_INIT_PATH])
        for old_tag in engine.images(REPOSITORY):
            if old_tag.startswith(f"{REPOSITORY}:{system.name}-") and old_tag != tag:
                engine.remove_image(old_tag)
    return tag


def ensure_packages(system: LabSystem, cache: Path, progress: Progress) -> Path:
    """Return the folder with the packages of a SIMULATED system with rpm, built with its image unless cached."""
    with _cached_archive(system, cache, progress) as archive:
        return _packages_beside(archive)


@contextmanager
def _cached_archive(system: LabSystem, cache: Path, progress: Progress) -> Iterator[Path]:
    """Yield the tar file of an image, built unless cached; a second caller waits for the first."""
    sources, folder = mirror_sources(system), cache / "images"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    archive = folder / f"{image_tag(sources).replace(':', '-')}.tar"
    outputs = {archive, _packages_beside(archive)} if system.rpm else {archive}
    with file_lock(folder / f".{system.name}.lock"):
        if not all(path.exists() for path in outputs):
            minutes = "two minutes" if system.rpm else "a minute"
            progress.step(f"building the {system.label} node image (about {minutes})")
            _build(sources, archive)
            for old in set(folder.glob(f"{REPOSITORY}-{system.name}-*")) - outputs:
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        yield archive


def _packages_beside(archive: Path) -> Path:
    return archive.with_suffix(".packages")


def _build(sources: MirrorSources, archive: Path) -> None:
    """Build in a scratch directory next to `archive`, then move the finished file into place."""
    require_keyring(sources.system)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=archive.parent) as name:
        scratch = Path(name)
        log = archive.parent / f"{archive.stem}.log"
        with log.open("w") as output:
            code = _mmdebstrap(arguments(sources, scratch), output.fileno())
        if code:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise LabError(
                f"building the {sources.system.suite} node image failed (mmdebstrap exit {code}; log: {log})",
                remedy="Check that apt-get update works on the controller; the image uses the same mirror.",
                output=tail,
            )
        if sources.system.rpm:
            shutil.rmtree(_packages_beside(archive), ignore_errors=True)
            (scratch / "packages").replace(_packages_beside(archive))
        (scratch / "root.tar").replace(archive)
        log.unlink()


def arguments(sources: MirrorSources, scratch: Path) -> list[str]:
    """Write the files of the image and return mmdebstrap's arguments; packages are built into ``scratch/packages``."""
    system = sources.system
    files = {_INIT_PATH: _INIT, **system.files}
    if system.rpm:
        files |= el_image.files(system)
        last = list(el_image.hooks(system, scratch, scratch / "packages"))
    else:
        files |= {system.sources_file: sources.deb822, "/etc/apt/apt.conf.d/90lab-mirror": sources.apt_conf}
        last = []
    hooks = [f"--customize-hook={hook}" for hook in system.hooks] + file_hooks(files, scratch) + last
    prepare = scratch / "prepare"
    prepare.write_text("#!/bin/sh\nset -eu\n" + _PREPARE, encoding="utf-8")
    prepare.chmod(0o700)
    options, mirrors = sources.arguments(scratch)
    return [
        "--variant=minbase",
        f"--include={','.join((*PACKAGES, *system.packages))}",
        *(el_image.OPTIONS if system.rpm else ()),
        *([f"--setup-hook={system.setup}"] if system.setup else []),
        *options,
        *hooks,
        f"--customize-hook={prepare}",
        system.suite,
        str(scratch / "root.tar"),
        *mirrors,
    ]


def file_hooks(files: Mapping[str, str], scratch: Path) -> list[str]:
    """Return mmdebstrap's hooks that write files into the new system: path -> content; empty ones are left out."""
    hooks = []
    for number, (path, text) in enumerate(files.items()):
        if text:
            local = scratch / f"file{number}"
            local.write_text(text, encoding="utf-8")
            hooks.append(f'--customize-hook=mkdir -p "$1"{shlex.quote(str(Path(path).parent))}')
            hooks.append(f"--customize-hook=upload {local} {path}")
    return hooks


def _mmdebstrap(arguments: Sequence[str], output: int) -> int:
    program = shutil.which("mmdebstrap")
    if program is None:
        raise LabError(
            "mmdebstrap is not installed; it is required to build node images", remedy="Run: apt-get install mmdebstrap"
        )
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    return subprocess.run([program, *arguments], stdout=output, stderr=output, env=environment, check=False).returncode
