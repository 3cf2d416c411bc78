"""Whether hardware virtualization works here: decided by booting a real kernel with it, once per host boot."""

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

__all__ = ["EMULATION", "HARDWARE", "accelerator", "virtual_cpus"]

# Without five-level page tables and nested virtualization, which an emulated node pays for and never uses; and
# without `rep movsb` as the quick way to copy (erms), since QEMU emulates it byte by byte: pages are cleared and
# copied in a third of the time without it.
EMULATION = ("-accel", "tcg,thread=multi", "-cpu", "max,la57=off,svm=off,erms=off")
HARDWARE = ("-accel", "kvm", "-cpu", "host")

_EMULATED_CPUS = 1
"""With one, atomic instructions need no emulation and Linux trusts the time stamp counter: on a machine whose cores
the nodes fill anyway, importing and compiling Python takes less than half the time that it takes with two."""

_DEVICE = Path("/dev/kvm")
_SECONDS = 20
# The kernel got as far as user space (where it found no program to run): it works.
_REACHED = ("Attempted to kill init", "Unable to mount root fs", "No working init found")


def accelerator(image: Image, cache: Path, progress: Progress) -> tuple[str, ...]:
    """QEMU's ``-accel`` and ``-cpu`` options: hardware where a real boot with it succeeds, emulation else."""
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
    progress.step("hardware virtualization does not work on this machine: nodes are emulated")
    return EMULATION


def virtual_cpus(acceleration: tuple[str, ...], wanted: int) -> int:
    """How many CPUs a node gets: what was `wanted` with hardware virtualization, one under emulation."""
    return wanted if acceleration == HARDWARE else _EMULATED_CPUS


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
    """Names this boot of this host with this kernel, so that no answer outlives what it was true for."""
    parts = [os.uname().release, os.uname().version, str(image.disk)]
    parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
