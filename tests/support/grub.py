"""GRUB as the boot loader of virtual machines: those of the lab boot by extlinux."""

from __future__ import annotations

from tests.support.command import Provision

PACKAGES = ("grub-pc-bin", "grub2-common")
"""Packages that the image of a machine needs for it."""
_INSTALL = r"""set -e
cp /usr/share/grub/default/grub /etc/default/grub
cat >>/etc/default/grub <<'END'
GRUB_TIMEOUT=0
GRUB_TERMINAL=serial
GRUB_SERIAL_COMMAND="serial --unit=0 --speed=115200"
GRUB_GFXPAYLOAD_LINUX=text
GRUB_CMDLINE_LINUX_DEFAULT="quiet"
GRUB_CMDLINE_LINUX="console=ttyS0 mitigations=off norandmaps highres=off"
GRUB_DISABLE_LINUX_UUID=true
GRUB_DEVICE=/dev/vda1
END
mkdir -p /etc/systemd/system.conf.d
printf '[Manager]\nDefaultTimeoutStartSec=900\n' >/etc/systemd/system.conf.d/test.conf
grub-install /dev/vda
update-grub
sync
"""
"""The machines have no display; an emulated one needs longer than systemd waits."""


def up_with_grub(provision: Provision, lab: str, *, nodes: int = 1) -> None:
    """Create machines whose image has GRUB's programs; extlinux still boots them."""
    packages = [word for name in PACKAGES for word in ("--with", name)]
    provision.ok("lab", "up", lab, "--driver", "vm", "--nodes", str(nodes), "--machine", "pair", *packages)


def boot_by_grub(provision: Provision, lab: str, node: str) -> None:
    """Make GRUB the boot loader of a machine, as an installer does, and reboot it."""
    provision.ok("lab", "ssh", lab, node, "--", _INSTALL)
    provision.ok("lab", "reboot", lab, node)
    assert "BOOT_IMAGE=/boot/vmlinuz-" in provision.ok("lab", "ssh", lab, node, "--", "cat /proc/cmdline").out
