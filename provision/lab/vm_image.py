"""Disk images of bare nodes, built once from the controller's package mirror and cached by the key of their recipe.

A disk has one partition with an ext4 root and extlinux, which boots ``/vmlinuz``: the link to the newest kernel that
Debian's kernel packages maintain. A node therefore boots an upgraded kernel after a reboot.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from provision.documents import decode
from provision.documents.lab import NodeImage
from provision.errors import InvalidDocument, LabError
from provision.lab.access import file_lock
from provision.lab.base import Progress
from provision.lab.vm_recipe import Recipe, pack
from provision.local_files import cache_folder

PROGRAMS = {
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "sfdisk": "fdisk",
    "extlinux": "extlinux",
    "unshare": "util-linux",
}
_BOOT_RECORD = "/usr/lib/EXTLINUX/mbr.bin"
_BOOT_CODE_BYTES = 440
_OFFSET = 1 << 20
_DISK_BYTES = 16 << 30
# The boot loader can only read ext4 without these newer features.
_EXT4 = "^64bit,^metadata_csum,^metadata_csum_seed,^orphan_file"
_MMDEBSTRAP_SECONDS = 1800


@dataclass(frozen=True)
class Image:
    """A finished, immutable image; disks of nodes store only the differences."""

    disk: Path
    kernel: Path
    initrd: Path

    @classmethod
    def beside(cls, disk: Path) -> Self:
        """Return the image to which `disk` belongs; its files are in one folder."""
        return cls(disk, disk.with_name("vmlinuz"), disk.with_name("initrd.img"))


def ensure_image(recipe: Recipe, progress: Progress, *, cache: Path | None = None) -> Image:
    """Return the image of `recipe`, built unless cached; a second caller waits for the first.

    Raises:
        LabError: a program is missing, the user is not root, or a step failed (its last lines are in the output).
    """
    images = (cache or cache_folder()) / "images"
    images.mkdir(parents=True, exist_ok=True, mode=0o700)
    images.chmod(0o700)
    folder = images / f"vm-{recipe.distro}-{recipe.key}"
    image = _load(folder)
    if image is not None:
        return image
    with file_lock(images / f".{folder.name}.lock"):
        image = _load(folder)  # another `lab up` may have built it in the meantime
        if image is None:
            progress.step(f"building the {recipe.sources.system.label} node image (once; about 2 minutes)")
            image = _build(recipe, folder, progress)
    return image


def need_programs(programs: dict[str, str]) -> None:
    """Check that `programs` (program -> its Debian package) are installed.

    Raises:
        LabError: lists all missing programs and their packages.
    """
    missing = missing_programs(programs)
    if missing:
        raise LabError(
            f"missing programs for lab nodes of kind vm: {', '.join(missing)}",
            remedy=f"Run: apt-get install --no-install-recommends {' '.join(sorted(set(missing.values())))}",
        )


def missing_programs(programs: dict[str, str]) -> dict[str, str]:
    """Return those of `programs` (program -> its Debian package) that are not installed."""
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    return {program: package for program, package in programs.items() if not shutil.which(program, path=search)}


def _load(folder: Path) -> Image | None:
    try:
        disk = decode((folder / "image.json").read_bytes(), NodeImage, node="", what="image.json").disk
    except (OSError, InvalidDocument):
        return None
    return Image.beside(folder / disk)


def _build(recipe: Recipe, folder: Path, progress: Progress) -> Image:
    need_programs(PROGRAMS)
    if not Path(_BOOT_RECORD).exists():
        raise LabError(f"{_BOOT_RECORD} is missing", remedy="Run: apt-get install --no-install-recommends extlinux")
    if os.geteuid() != 0:
        raise LabError(
            "building a node image requires root (it mounts the new disk)",
            remedy="Run this command as root.",
        )
    begin = time.monotonic()
    for leftover in folder.parent.glob(f".{folder.name}.build-*"):  # of a killed build; this process holds the lock
        _unmount_below(leftover)
        shutil.rmtree(leftover)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.build-"))
    try:
        root = _root_tree(recipe, scratch)
        made = scratch / "image"
        made.mkdir()
        for name in ("vmlinuz", "initrd.img"):
            shutil.copyfile(root / name, made / name)
        disk = f"{uuid.uuid4().hex}.raw"  # a rebuilt image must not be mistaken for the base of older disks
        progress.step(f"writing the {recipe.sources.system.label} disk")
        _write_disk(root, made / disk)
        (made / "image.json").write_text(json.dumps({"disk": disk, "distro": recipe.distro}) + "\n")
        made.replace(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    progress.step(f"the {recipe.sources.system.label} node image is ready ({time.monotonic() - begin:.0f} s)")
    return Image.beside(folder / disk)


def _unmount_below(folder: Path) -> None:
    """Unmount what an earlier version left mounted below a folder that is about to be removed."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    for mount in reversed(mounts):
        if mount.startswith(f"{folder}/"):
            _run(["umount", mount], f"unmounting {mount}")


def _root_tree(recipe: Recipe, scratch: Path) -> Path:
    root, early, late = scratch / "root", scratch / "early.tar", scratch / "late.tar"
    early.write_bytes(pack(recipe.early))
    late.write_bytes(pack(recipe.late))
    # In a separate mount namespace, so that /proc, /sys and /dev do not stay mounted in the tree of a killed build.
    command = ["unshare", "--mount", *recipe.mmdebstrap(str(root), str(early), str(late))]
    _run(command, "installing the node's packages", cwd=scratch)
    return root


def _write_disk(root: Path, disk: Path) -> None:
    with disk.open("wb") as file:
        file.write(Path(_BOOT_RECORD).read_bytes()[:_BOOT_CODE_BYTES])
        file.truncate(_DISK_BYTES)
    _run(["sfdisk", "--quiet", str(disk)], "partitioning the disk", text="label: dos\nstart=2048, type=83, bootable\n")
    blocks = (_DISK_BYTES - _OFFSET) // 4096
    options = f"offset={_OFFSET},lazy_itable_init=0,lazy_journal_init=0"
    mke2fs = ["mke2fs", "-q", "-t", "ext4", "-b", "4096", "-O", _EXT4, "-E", options, "-d", str(root)]
    _run([*mke2fs, str(disk), str(blocks)], "making the root file system")
    # In a separate mount namespace, so that mount and loop device end with the shell.
    script = 'mount -o "loop,offset=$3" "$1" "$2" && extlinux --install "$2/boot/extlinux" && umount "$2"'
    mountpoint = disk.parent.parent / "mnt"
    mountpoint.mkdir()
    shell = ["sh", "-c", script, "sh", str(disk), str(mountpoint), str(_OFFSET)]
    _run(["unshare", "--mount", *shell], "installing the boot loader")


def _run(argv: list[str], what: str, *, text: str = "", cwd: Path | None = None) -> None:
    environment = {**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"}
    environment.pop("TMPDIR", None)  # a private folder of the caller would not be readable for apt's user
    try:
        done = subprocess.run(
            argv,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            cwd=cwd,
            env=environment,
            timeout=_MMDEBSTRAP_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{what} did not end within {_MMDEBSTRAP_SECONDS} s") from error
    if done.returncode:
        output = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-15:])
        raise LabError(f"{what} failed: {argv[0]} ended with status {done.returncode}", output=output)
