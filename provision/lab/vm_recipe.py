"""The recipe of a bare virtual node: packages, files of its image, and the key of the recipe.

Bare means what an installer leaves on a server with SSH: kernel, systemd, sshd, Python. Headers, compiler, Docker
and rdma-core are installed by the roles. Timers are unchanged; Debian's apt-daily does nothing unless
``APT::Periodic`` is set, and roles have to handle a held apt lock anyway.
"""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.lab.mirror import MirrorSources, mirror_sources, public
from provision.lab.systems import LabSystem

_VERSION = 2
"""Increase it if the build process changes without a change below."""

_PACKAGES = (
    "ca-certificates",
    "dbus",
    "e2fsprogs",
    "iproute2",
    "iputils-ping",
    "kmod",
    "openssh-server",
    "procps",
    "python3",
    "sudo",
    "systemd",
    "systemd-sysv",
    "udev",
    "zstd",
)

_INITRAMFS = {
    # A list keeps the initrd small, works in a chroot, and makes a kernel upgrade on an emulated node quick.
    "etc/initramfs-tools/conf.d/provision-lab": "MODULES=list\n",
    "usr/share/initramfs-tools/modules.d/provision-lab": "virtio_pci\nvirtio_blk\next4\ncrc32c\ncrc32c_generic\n",
    "etc/fstab": "/dev/vda1 / ext4 noatime,errors=remount-ro 0 1\n",
}

_SEED_UNIT = r"""[Unit]
Description=Identity of this lab node, from its seed disk
DefaultDependencies=no
ConditionPathExists=!/var/lib/provision-lab/seeded
Requires=dev-disk-by\x2did-virtio\x2dseed.device
After=dev-disk-by\x2did-virtio\x2dseed.device systemd-remount-fs.service local-fs.target
Before=sysinit.target network-pre.target systemd-networkd.service ssh.service
Conflicts=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/tar --extract --directory=/ --file=/dev/disk/by-id/virtio-seed
ExecStart=/bin/sh -c 'cat /etc/hostname >/proc/sys/kernel/hostname'
ExecStart=/bin/sync
ExecStart=/bin/mkdir -p /var/lib/provision-lab
ExecStart=/bin/touch /var/lib/provision-lab/seeded

[Install]
WantedBy=sysinit.target
"""

# norandmaps: QEMU translates a program's code again at each address; with constant addresses, program starts take a
# fifth less time on an emulated node. highres=off: Go programs wake up every 20 microseconds, which takes a third of an
# emulated CPU; timers with the resolution of the tick avoid that. Neither affects the roles.
_EXTLINUX = """DEFAULT linux
PROMPT 0
TIMEOUT 0
LABEL linux
  KERNEL /vmlinuz
  INITRD /initrd.img
  APPEND root=/dev/vda1 rw console=ttyS0 quiet mitigations=off norandmaps highres=off
"""

_FILES = {
    "etc/systemd/system/provision-lab-seed.service": _SEED_UNIT,
    "etc/hostname": "bare\n",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n",
    "etc/resolv.conf": "nameserver 10.0.2.3\n",
    "etc/machine-id": "",
    "boot/extlinux/extlinux.conf": _EXTLINUX,
}

_APT = ('Acquire::Languages "none"',)
_DPKG = ("path-exclude=/usr/share/man/*", "path-exclude=/usr/share/doc/*", "path-exclude=/usr/share/locale/*")

_FORGET = 'rm -f "$1"/etc/apt/apt.conf.d/99mmdebstrap'
"""Removes the controller's apt settings from the image if they contain credentials."""

_HOOKS = (
    'rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/0000*',
    'chroot "$1" systemctl enable systemd-networkd.service provision-lab-seed.service',
    'chroot "$1" systemctl disable e2scrub_reap.service',  # for LVM, which nodes do not use; slow under emulation
    'test -e "$1"/vmlinuz && test -e "$1"/initrd.img',
)


@dataclass(frozen=True)
class Recipe:
    """Everything that determines an image; images of equal recipes are interchangeable."""

    sources: MirrorSources
    more_packages: tuple[str, ...] = ()
    """Packages of the archive that a bare node does not have."""
    stand_ins: tuple[Path, ...] = ()
    """The lab's own packages (.deb files), installed last, in this order."""
    early_files: Mapping[str, str] | None = None
    files: Mapping[str, str] | None = None

    @property
    def distro(self) -> str:
        """The name of the system."""
        return self.sources.system.name

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages of the archive."""
        system = self.sources.system
        return (*sorted((*_PACKAGES, system.kernel)), *system.packages, *self.more_packages)

    @property
    def key(self) -> str:
        """The key of the recipe; it depends on packages, files, mirror and version."""
        parts = [_VERSION, self.distro, self.packages, self.early, self.late, _HOOKS, _APT, _DPKG, self.sources.lines]
        parts += ["without credentials"] if self.sources.private else []
        parts += [f"{file.parent.name}/{file.name}" for file in self.stand_ins]  # the folder's name is a content hash
        text = json.dumps([*parts, self.sources.settings], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def early(self) -> dict[str, str]:
        """Files written before the kernel is installed."""
        return dict(self.early_files if self.early_files is not None else _INITRAMFS)

    @property
    def late(self) -> dict[str, str]:
        """Files written when all packages are installed."""
        files = dict(self.files if self.files is not None else _FILES)
        files[self.sources.system.sources_file.lstrip("/")] = self.sources.deb822
        files["etc/apt/sources.list.d/backports.sources"] = _backports(self.sources)
        files["etc/apt/apt.conf.d/90provision-lab"] = self.sources.apt_conf
        files.update({path.lstrip("/"): text for path, text in self.sources.system.files.items()})
        return files

    def mmdebstrap(self, root: str, early: str, late: str) -> list[str]:
        """Return the command that creates the root file system in `root` from the tar files `early` and `late`."""
        options, mirrors = self.sources.arguments(Path(early).parent)
        hooks = (*_HOOKS, _FORGET) if self.sources.private else _HOOKS
        return [
            "mmdebstrap",
            "--variant=minbase",
            "--format=directory",
            "--skip=cleanup/apt/lists",  # as an installer leaves them, so that a node's own update fetches little
            f"--include={','.join(self.packages)}",
            *(f"--aptopt={option}" for option in _APT),
            *options,
            *(f"--dpkgopt={option}" for option in _DPKG),
            f"--essential-hook=tar-in {early} /",
            *(f"--customize-hook={hook}" for file in self.stand_ins for hook in _installing(file)),
            *(f"--customize-hook={hook}" for hook in self.sources.system.hooks),
            f"--customize-hook=tar-in {late} /",
            *(f"--customize-hook={hook}" for hook in hooks),
            self.sources.system.suite,
            root,
            *mirrors,
        ]


def recipe_for(system: LabSystem, packages: Sequence[str] = (), stand_ins: Sequence[Path] = ()) -> Recipe:
    """Return the recipe of a node of a system with the controller's mirror, and additional packages.

    Raises:
        LabError: the controller has no source of the system's packages.
    """
    return Recipe(mirror_sources(system), tuple(packages), tuple(stand_ins))


def pack(files: Mapping[str, str | bytes], *, private: frozenset[str] = frozenset()) -> bytes:
    """Return a tar file of `files` (path without leading slash -> content), owned by root; `private` ones are 0600."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, content in sorted(files.items()):
            data = content.encode() if isinstance(content, str) else content
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o600 if path in private else 0o644
            entry.uname = entry.gname = "root"
            tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def _installing(package: Path) -> tuple[str, str, str]:
    """Return the hooks that install a package of the lab while the chroot can still use apt and name resolution."""
    file = f"/{package.name}"
    return (
        f"upload {shlex.quote(str(package))} {file}",
        f'chroot "$1" apt-get --quiet --yes --no-install-recommends install {file}',
        f'rm "$1"{file}',
    )


def _backports(sources: MirrorSources) -> str:
    """Return a disabled source of newer kernels; ``Enabled: yes`` makes ``apt-get install -t SUITE-backports`` work."""
    suite, keyring = sources.system.suite, sources.system.keyring
    for stanza in sources.stanzas:
        if suite in stanza.suites:
            return (
                f"Types: deb\nURIs: {public(' '.join(stanza.uris))}\nSuites: {suite}-backports\n"
                f"Components: {' '.join(stanza.components)}\nSigned-By: {keyring}\nEnabled: no\n"
            )
    return ""
