"""Kernel modules as files, made by the assembler, and a node's root folder around them."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

KERNEL = "6.1.0-9-amd64"
REGISTER = "ib_register_peer_memory_client"
GET_PAGES = "nvidia_p2p_get_pages"
LOAD = 'mkdir -p "$ROOT/sys/module/$1"; echo live >"$ROOT/sys/module/$1/initstate"'
"""What a modprobe that works does to a node's folder."""

needs_assembler = pytest.mark.skipif(shutil.which("as") is None, reason="binutils is not installed")


def assemble(
    path: Path,
    info: Mapping[str, str],
    *,
    gives: Mapping[str, int] | None = None,
    needs: Mapping[str, int] | None = None,
    absolute: bool = False,
) -> Path:
    """Write a module's object file: what modinfo says, the checksums it gives, and those it was built against."""
    lines = ['.section .modinfo,"a"', *(f'.asciz "{key}={value}"' for key, value in info.items())]
    lines.append('.section __kcrctab,"a"')
    lines.append(".long 0xdeadbeef")  # so that no checksum stands at offset 0 by chance
    for name, checksum in (gives or {}).items():
        lines.append(f".globl __crc_{name}")
        lines += [f".set __crc_{name}, {checksum:#x}"] if absolute else [f"__crc_{name}: .long {checksum:#x}"]
    lines.append('.section __versions,"a"')
    for name, checksum in (needs or {}).items():
        lines += [f".quad {checksum:#x}", f'.ascii "{name}"', f".zero {56 - len(name)}"]
    lines += [".data", *(f".quad {name}" for name in needs or {})]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_object("\n".join([*lines, ""])))
    return path


@functools.cache
def _object(source: str) -> bytes:
    """Return what the assembler makes of a source: most tests need the same few."""
    with tempfile.NamedTemporaryFile(suffix=".o") as file:
        subprocess.run(["as", "--64", "-o", file.name, "-"], input=source, text=True, check=True)
        return Path(file.name).read_bytes()


class Machine:
    """A node's root folder; programs that would change a real node are scripts that change this one."""

    def __init__(self, root: Path) -> None:
        """Make a running kernel without modules and headers."""
        self.root, self.calls = root, root / "calls"
        self.write("/proc/sys/kernel/osrelease", KERNEL)
        self.write("/proc/sys/kernel/random/boot_id", "5f0c6e7a-boot")
        self.write("/proc/kallsyms", "")
        self.kernel(KERNEL)
        self.program("modprobe", LOAD)
        self.program("dmesg", 'cat "$ROOT/dmesg" 2>/dev/null || true')
        self.program("dkms", "exit 1")

    def write(self, path: str, text: str) -> Path:
        """Write a file of the node."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def kernel(self, release: str, *, headers: bool = False) -> None:
        """Install a kernel."""
        self.write(f"/boot/vmlinuz-{release}", "")
        self.write(f"/lib/modules/{release}/modules.dep", "")
        if headers:
            self.write(f"/lib/modules/{release}/build/Makefile", "")

    def modules(self, release: str, **files: Path) -> None:
        """Install modules: nv_peer_mem and nvidia_peermem (by whatever name of its file) depend on all others."""
        folder = self.root / "lib/modules" / release / "updates"
        folder.mkdir(parents=True, exist_ok=True)
        clients = {name for name in files if name == "nv_peer_mem" or name.endswith("peermem")}
        for name, file in files.items():
            shutil.copyfile(file, folder / f"{name}.ko")
        others = " ".join(f"updates/{name}.ko" for name in files if name not in clients)
        lines = [f"updates/{name}.ko: {others if name in clients else ''}" for name in files]
        self.write(f"/lib/modules/{release}/modules.dep", "\n".join(lines) + "\n")

    def loaded(self, name: str, *, users: int = 0) -> None:
        """Say in /sys that a module is loaded."""
        self.write(f"/sys/module/{name}/initstate", "live\n")
        self.write(f"/sys/module/{name}/refcnt", f"{users}\n")

    def program(self, name: str, script: str) -> None:
        """Put a program on the path; each call is noted."""
        file = self.write(f"/bin/{name}", f'#!/bin/sh\nROOT={self.root}\necho "{name} $*" >>{self.calls}\n{script}\n')
        file.chmod(0o755)

    @property
    def called(self) -> list[str]:
        """The programs that were called to change something, with their arguments."""
        calls = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [call for call in calls if not call.startswith("dmesg")]

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which these programs are found first."""
        return {**os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}
