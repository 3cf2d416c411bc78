"""SIMULATED kernel modules: their names, their marks, and their real sources."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from provision.lab.services import processes, repository
from provision.lab.services.kernel import (
    GIT_FOLDER,
    PEER_MEMORY_TAGS,
    build_git,
    kernel_stand_ins,
    peer_memory_tree,
)

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
HEADERS = sorted(Path("/lib/modules").glob("*/build/Makefile"))
LOOPBACK = "127.0.0.1"


def stacks() -> list:
    """The packages of the RDMA stack, the old one first."""
    return sorted((p for p in kernel_stand_ins() if p.name == "mlnx-ofed-kernel-dkms"), key=lambda p: p.version)


def sources() -> dict[str, str]:
    """Return all C files of all simulated modules."""
    symbols = {path: text for package in kernel_stand_ins() for path, text in package.files.items()}
    symbols |= {f"{tag}/{path}": text for tag in PEER_MEMORY_TAGS for path, text in peer_memory_tree(tag).items()}
    return {path: text for path, text in symbols.items() if path.endswith(".c")}


@pytest.mark.parametrize("path", sources())
def test_every_module_is_marked_in_modinfo_and_dmesg(path):
    """Descriptions and kernel messages are marked, so that no module is mistaken for a real one."""
    text = sources()[path]

    assert re.findall(r'MODULE_DESCRIPTION\("(\w+)', text) == ["SIMULATED"]
    assert set(re.findall(r'pr_\w+\("(\w+)', text)) <= {"SIMULATED"}
    assert "SPDX-License-Identifier: GPL-2.0" in text
    assert "@" not in re.sub(r"<\S+@\S+>", "", text)


@pytest.mark.parametrize("package", kernel_stand_ins(), ids=lambda package: package.file_name)
def test_a_package_is_built_by_dkms_like_the_real_one(package):
    """The sources are below /usr/src, and the package's scripts register them with DKMS for new kernels too."""
    configuration = next(text for path, text in package.files.items() if path.endswith("/dkms.conf"))
    folder = next(path for path in package.files if path.endswith("/dkms.conf")).rpartition("/")[0]
    settings = dict(re.findall(r'^(\w+)="(.*)"$', configuration, re.MULTILINE))

    assert folder == f"/usr/src/{settings['PACKAGE_NAME']}-{settings['PACKAGE_VERSION']}"
    assert settings["AUTOINSTALL"] == "yes"
    assert package.fields["Depends"] == "dkms"
    assert f"common.postinst {settings['PACKAGE_NAME']} {settings['PACKAGE_VERSION']} " in package.scripts["postinst"]
    assert f"dkms remove -m {settings['PACKAGE_NAME']}" in package.scripts["prerm"]


def test_two_rdma_stacks_differ_in_the_client_structure():
    """An upgrade changes the checksum of the function; only the newer one has peer_memory_client_ex."""
    header = "/usr/src/mlnx-ofed-kernel-{}/include/rdma/peer_mem.h"
    old, new = (p.files[header.format(p.version.partition("~")[0])] for p in stacks())
    client = re.compile(r"struct peer_memory_client \{.*?\n\};", re.DOTALL)

    assert client.findall(old) != client.findall(new)
    assert "peer_memory_client_ex" not in old
    assert "struct peer_memory_client_ex {" in new


def test_the_flavours_of_the_gpu_driver_conflict():
    """As with the real ones, the open and the proprietary modules exclude each other and say which they are."""
    drivers = [package for package in kernel_stand_ins() if package.name.startswith("nvidia-")]
    licences = [
        re.findall(r'MODULE_LICENSE\("(.*)"\)', text)
        for package in drivers
        for path, text in package.files.items()
        if path.endswith("/nvidia.c")
    ]

    assert all("/usr/share/provision/simulated/nvidia-driver" in package.files for package in drivers)
    assert [package.fields["Conflicts"] for package in drivers] == ["nvidia-kernel-simulated"] * 2
    assert licences == [["NVIDIA"], ["Dual MIT/GPL"]]


@needs_git
def test_nodes_can_clone_every_version(tmp_path):
    """The lab's repository serves the history as plain files, which git reads over HTTP."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port = probe.getsockname()[1]
    build_git(tmp_path / "repository" / GIT_FOLDER)
    repository.ensure_running(tmp_path, [LOOPBACK], port)
    url = f"http://{LOOPBACK}:{port}/{GIT_FOLDER}"
    try:
        for tag in PEER_MEMORY_TAGS:
            clone = ["git", "-c", "http.proxy=", "clone", "--quiet", "--branch", tag, url, str(tmp_path / tag)]
            subprocess.run(clone, check=True, capture_output=True)
    finally:
        processes.stop(repository.record_of(tmp_path))

    for tag in PEER_MEMORY_TAGS:
        assert {p.name: p.read_text() for p in (tmp_path / tag).iterdir() if p.is_file()} == peer_memory_tree(tag)
        assert os.access(tmp_path / tag / "create_nv.symvers.sh", os.X_OK)


@needs_git
def test_the_git_history_is_reproducible(tmp_path):
    """A commit in an inventory exists in every lab."""
    for name in ("a", "b"):
        build_git(tmp_path / name)
    heads = [
        subprocess.run(["git", "-C", tmp_path / n, "rev-parse", "master"], capture_output=True, check=True).stdout
        for n in ("a", "b")
    ]

    assert heads[0] == heads[1]


@pytest.mark.skipif(not HEADERS or shutil.which("make") is None, reason="no kernel headers on this machine")
@pytest.mark.parametrize("package", kernel_stand_ins(), ids=lambda package: package.file_name)
def test_the_sources_can_be_built(package, tmp_path):
    """The kernel's own build takes them, without a warning that is an error."""
    folder = next(path for path in package.files if path.endswith("/dkms.conf")).rpartition("/")[0]
    for path, text in package.files.items():
        if path.startswith(folder):
            file = tmp_path / path.removeprefix(folder + "/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    done = subprocess.run(
        ["make", "-C", tmp_path, f"KVER={HEADERS[0].parts[3]}"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("*.ko"))
