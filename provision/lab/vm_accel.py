"""Detection of hardware virtualization, by booting a real kernel with it once per boot of the controller."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from pathlib import Path

from provision.documents import decode
from provision.documents.lab import AcceleratorTest
from provision.lab.access import file_lock
from provision.lab.base import Progress
from provision.lab.vm_image import Image
from provision.local_files import write_private

# Without five-level page tables and nested virtualization, which cost emulated nodes time and are unused, and without
# fast `rep movsb` (erms), which QEMU emulates byte by byte: pages are cleared and copied in a third of the time.
EMULATION = ("-accel", "tcg,thread=multi", "-cpu", "max,la57=off,svm=off,erms=off")
HARDWARE = ("-accel", "kvm", "-cpu", "host")

_EMULATED_CPUS = 1
"""With one CPU, atomic instructions need no emulation and Linux trusts the time stamp counter: if the nodes use all
cores of the controller, importing and compiling Python takes less than half the time that it takes with two CPUs."""

_DEVICE = Path("/dev/kvm")
_SECONDS = 20
# The kernel reached user space, where it found no program to run: virtualization works.
_REACHED = ("Attempted to kill init", "Unable to mount root fs", "No working init found")


def accelerator(image: Image, cache: Path, progress: Progress) -> tuple[str, ...]:
    """Return QEMU's ``-accel`` and ``-cpu`` options: hardware if a test boot with it succeeds, else emulation."""
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        return EMULATION
    cache.mkdir(parents=True, exist_ok=True)
    result = cache / f"kvm-{_host_key(image)}.json"
    with file_lock(cache / ".kvm.lock"):
        if not result.exists():
            progress.step(f"trying hardware virtualization (at most {_SECONDS} s)")
            write_private(result, json.dumps({"works": _boots(image)}) + "\n")
    if decode(result.read_bytes(), AcceleratorTest, node="", what=str(result)).works:
        return HARDWARE
    progress.step("hardware virtualization does not work on the controller; nodes are emulated")
    return EMULATION


def virtual_cpus(acceleration: tuple[str, ...], cpus: int) -> int:
    """Return the number of CPUs of a node: `wanted` with hardware virtualization, one under emulation."""
    return cpus if acceleration == HARDWARE else _EMULATED_CPUS


def _boots(image: Image) -> bool:
    with tempfile.TemporaryDirectory() as scratch:
        serial = Path(scratch) / "serial"
        argv = ["qemu-system-x86_64", "-machine", "pc", *HARDWARE, "-smp", "2", "-m", "512", "-display", "none"]
        argv += ["-no-user-config", "-no-reboot", "-nic", "none", "-monitor", "none", "-serial", f"file:{serial}"]
        argv += ["-kernel", str(image.kernel), "-initrd", str(image.initrd)]
        argv += ["-append", "console=ttyS0 panic=-1 rdinit=/nothing"]
        try:
            subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            return False
        text = serial.read_text(errors="replace") if serial.exists() else ""
    return any(sign in text for sign in _REACHED)


def _host_key(image: Image) -> str:
    """Return a key for this kernel on this boot of the controller, so that results are not used longer than valid."""
    parts = [os.uname().release, os.uname().version, str(image.disk)]
    parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
