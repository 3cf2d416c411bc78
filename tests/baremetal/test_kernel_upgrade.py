"""Kernel upgrades of virtual machines that GRUB boots: the kernels, boots, panics and lost networks are real.

The machines of the lab boot by extlinux. The tests install GRUB in its place, as an installer does.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.support.command import Done, Provision, eventually
from tests.support.grub_machines import GrubMachines, grub_machines

LAB = f"kernel{os.getpid()}"
FIRST, SECOND = f"{LAB}-1", f"{LAB}-2"
LOSES_NETWORK = r"""set -e
cat >/etc/systemd/system/test-lost.service <<'END'
[Unit]
ConditionKernelVersion=@KERNEL@
After=ssh.service systemd-networkd.service
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'for link in /sys/class/net/ens*; do ip link set "$${link##*/}" down; done'
[Install]
WantedBy=multi-user.target
END
systemctl enable test-lost.service
"""
"""Makes a node lose its network whenever it boots the kernel @KERNEL@."""
DKMS_MODULE = r"""set -e
apt-get -qq install -y --no-install-recommends dkms gcc make libc6-dev "linux-headers-$(uname -r)" >/dev/null
mkdir -p /usr/src/picky-1.0
cd /usr/src/picky-1.0
printf 'obj-m := picky.o
ccflags-y := -D%s=$(findstring @KERNEL@,$(KERNELRELEASE))
' REFUSED_ >Makefile
printf '#include <linux/module.h>
#define EMPTY(x) sizeof(#x) == 1
#define IS_EMPTY(x) EMPTY(x)
' >picky.c
printf '_Static_assert(IS_EMPTY(REFUSED_), "not for this kernel");
MODULE_LICENSE("GPL");
' >>picky.c
cat >dkms.conf <<'END'
PACKAGE_NAME=picky
PACKAGE_VERSION=1.0
BUILT_MODULE_NAME[0]=picky
DEST_MODULE_LOCATION[0]=/updates/dkms
AUTOINSTALL=yes
END
dkms install picky/1.0 >/dev/null
"""
"""Adds a module that is built for every kernel but @KERNEL@."""
JOB = r"""set -e
modprobe -a ib_uverbs rdma_rxe
set -- /sys/class/net/ens*
rdma link add rxe0 type rxe netdev "${1##*/}"
udevadm settle
systemd-run --unit test-job sh -c 'exec 3<>/dev/infiniband/uverbs0; exec sleep infinity'
until readlink "/proc/$(systemctl show -P MainPID test-job)/fd/3" | grep uverbs0; do
  systemctl is-active test-job
  sleep 0.1
done
"""
"""Starts a process that holds an RDMA device, as a job does."""


@pytest.fixture(scope="module")
def machines(request: pytest.FixtureRequest, provision: Provision) -> Iterator[GrubMachines]:
    """Machines that GRUB boots; two only for the test of waves, because an emulated machine occupies a core."""
    items = (item for item in request.session.items if item.path == request.path)
    nodes = 2 if any("of_two" in item.name for item in items) else 1
    with grub_machines(provision, LAB, "kernel", nodes=nodes) as made:
        yield made


@pytest.fixture(scope="module")
def releases(machines: GrubMachines) -> tuple[str, str]:
    """The kernel of the image, and another one of the repository."""
    first = machines.running(FIRST)
    return first, machines.offered(FIRST, besides=(first,))[-1]


def other_kernel(machines: GrubMachines, releases: tuple[str, str]) -> str:
    """The one of two kernels that the first machine does not run, as if it had never run it."""
    running = machines.running(FIRST)
    machines.shell(FIRST, "rm -f /var/lib/provision/kernel/upgrade.json")
    return next(release for release in releases if release != running)


@pytest.mark.long
def test_a_machine_is_upgraded_and_its_previous_kernel_stays(machines: GrubMachines, releases: tuple[str, str]) -> None:
    """Without --reboot the step waits; with it the node boots the kernel, which becomes the default."""
    before, after = machines.running(FIRST), other_kernel(machines, releases)
    machines.settings(kernel_release=after)
    waits = machines.apply(limit=FIRST)
    assert waits.code == 6, str(waits)
    assert machines.running(FIRST) == before

    done = machines.apply("--reboot", limit=FIRST)

    assert done.code == 0, str(done)
    machines.require_upgraded(FIRST, after)
    assert machines.shell(FIRST, f"ls /boot/vmlinuz-{before}")
    again = machines.apply("--reboot", limit=FIRST)
    assert [node["status"] for node in again.document["nodes"]] == ["unchanged"], str(again)


@pytest.mark.long
def test_a_machine_without_network_returns_by_itself(machines: GrubMachines, releases: tuple[str, str]) -> None:
    """Its watchdog reboots it; the apply reports the reason, and the kernel is not tried again without --force."""
    before, after = machines.running(FIRST), other_kernel(machines, releases)
    machines.shell(FIRST, LOSES_NETWORK.replace("@KERNEL@", after))
    machines.settings(kernel_release=after)

    done = machines.apply("--reboot", limit=FIRST)

    assert done.code == 1, str(done)
    error = done.document["nodes"][0]["error"]
    assert error["code"] == "kernel.upgrade.fell_back", error
    assert machines.running(FIRST) == before
    machines.require_in_service(FIRST)
    boot = machines.boot_id(FIRST)
    assert machines.apply("--reboot", limit=FIRST).document["nodes"][0]["status"] == "unchanged"
    assert machines.boot_id(FIRST) == boot
    machines.shell(FIRST, "systemctl disable test-lost.service")


@pytest.mark.long
def test_the_next_apply_finishes_an_upgrade_whose_controller_was_killed(
    machines: GrubMachines, releases: tuple[str, str]
) -> None:
    """Killed at ten random moments, with a new apply after each."""
    after = other_kernel(machines, releases)
    machines.settings(kernel_release=after)
    moments = random.Random(7)  # noqa: S311
    for _ in range(10):
        running = machines.provision.start(*machines.words("--reboot", limit=FIRST))
        with suppress(subprocess.TimeoutExpired):
            running.wait(timeout=moments.uniform(5, 120))
        running.kill()
        running.wait()

    def finished() -> Done | None:
        done = machines.apply("--reboot", limit=FIRST)
        return done if done.code == 0 else None

    eventually(finished, seconds=3600, what="an apply finishes the upgrade")
    machines.require_upgraded(FIRST, after)


@pytest.mark.long
def test_a_machine_whose_new_kernel_panics_returns_by_itself(machines: GrubMachines, releases: tuple[str, str]) -> None:
    """Its initial RAM file system is damaged, so that the kernel finds no root file system."""
    before, other = machines.running(FIRST), other_kernel(machines, releases)
    image = f"/boot/initrd.img-{other}"
    machines.shell(FIRST, f"apt-get -qq install -y linux-image-{other} >/dev/null")
    machines.shell(FIRST, f"cp {image} /root/initrd && head -c 4096 /dev/urandom >{image}")
    machines.settings(kernel_release=other)

    done = machines.apply("--reboot", limit=FIRST)

    assert done.document["nodes"][0]["error"]["code"] == "kernel.upgrade.fell_back", str(done)
    assert machines.running(FIRST) == before
    machines.shell(FIRST, f"cp /root/initrd {image}")


@pytest.mark.long
def test_a_kernel_for_which_a_module_cannot_be_built_is_refused(
    machines: GrubMachines, releases: tuple[str, str]
) -> None:
    """Before anything is installed; the node stays in service."""
    target = machines.offered(FIRST, besides=releases)[-1]
    machines.shell(FIRST, DKMS_MODULE.replace("@KERNEL@", target))
    boot, packages = machines.boot_id(FIRST), machines.shell(FIRST, "dpkg -l")
    machines.settings(kernel_release=target)

    done = machines.apply("--reboot", limit=FIRST)

    error = done.document["nodes"][0]["error"]
    assert error["code"] == "kernel.module.not_built", str(done)
    assert "picky/1.0" in error["message"]
    assert machines.shell(FIRST, "dpkg -l") == packages
    assert machines.shell(FIRST, f"test -e /lib/modules/{target} || echo absent") == "absent"
    assert machines.boot_id(FIRST) == boot
    machines.require_in_service(FIRST)
    machines.shell(FIRST, "dkms remove picky/1.0 --all")


@pytest.mark.long
def test_of_two_machines_the_one_without_a_job_is_upgraded_first(machines: GrubMachines) -> None:
    """The job is untouched, and its machine is upgraded when it has ended."""
    machines.shell(FIRST, JOB)
    job, boot = machines.shell(FIRST, "systemctl show -P MainPID test-job"), machines.boot_id(FIRST)
    other = machines.offered(FIRST, besides=(machines.running(FIRST), machines.running(SECOND)))[-1]
    machines.settings(kernel_release=other)

    done = machines.apply("--reboot")

    assert done.code == 6, str(done)
    machines.require_upgraded(SECOND, other)
    assert machines.boot_id(FIRST) == boot
    assert machines.shell(FIRST, "systemctl show -P MainPID test-job") == job
    machines.shell(FIRST, "systemctl stop test-job")
    assert machines.apply("--reboot").code == 0
    machines.require_upgraded(FIRST, other)
