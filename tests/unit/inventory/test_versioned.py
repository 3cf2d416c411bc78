"""A user's inventory is versioned in a clone of this repository; secrets and left-overs beside it are not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def ignored(tmp_path):
    """Return whether git ignores a path, by this repository's own file."""
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    shutil.copy(ROOT / ".gitignore", tmp_path / ".gitignore")

    def ask(path: str) -> bool:
        argv = ["git", "-c", "core.excludesFile=/dev/null", "-C", tmp_path, "check-ignore", "-q", path]
        return subprocess.run(argv, check=False).returncode == 0

    return ask


@pytest.mark.parametrize(
    "name",
    [
        "prod/hosts.yml",
        "prod/known_hosts.txt",
        "prod/group_vars/all.yml",
        "prod/group_vars/all/vault.yml",
        "prod/host_vars/gpu1.yml",
        "prod/keys/id_ed25519.pub",
        "single.yml",
        "example/hosts.yml",
    ],
)
def test_git_add_includes_the_files_of_an_inventory(ignored, name):
    """`git add inventories` takes what init wrote: hosts, variables (vaults too) and pinned host keys."""
    assert not ignored(f"inventories/{name}")


@pytest.mark.parametrize(
    "name",
    [
        ".prod.new-x1/hosts.yml",
        "prod/known_hosts.txt.old",
        "prod/hosts.yml~",
        "prod/group_vars/all.yml.bak",
        "prod/.hosts.yml.swp",
        "prod/id_ed25519",
        "prod/keys/node.pem",
        "prod/.vault_pass",
        "prod/vault-password.txt",
    ],
)
def test_git_add_excludes_secrets_and_backup_files(ignored, name):
    """A private key or a vault password that lies in the folder is not published by `git add inventories`."""
    assert ignored(f"inventories/{name}")
