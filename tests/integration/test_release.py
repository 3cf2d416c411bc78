"""The files of a release."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def releases(tmp_path_factory):
    """Two runs of `make dist`, with a file that git does not know in the working tree."""
    folders = [tmp_path_factory.mktemp("release") / name for name in ("one", "two")]
    stray = ROOT / "roles" / "not-in-git.txt"
    stray.write_text("private")
    try:
        for folder in folders:
            words = ["make", "-o", "setup", "dist", f"VENV={sys.prefix}", f"DIST={folder}"]
            subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    finally:
        stray.unlink()
    return folders


def test_a_release_contains_all_files_and_their_checksums(releases):
    """Wheel, source archive and SBOM are there, and SHA256SUMS has the digest of each."""
    sums = dict(reversed(line.split()) for line in (releases[0] / "SHA256SUMS").read_text().splitlines())
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in releases[0].iterdir()}
    files.pop("SHA256SUMS")

    assert sums == files
    assert sorted(name.rpartition(".")[2] for name in files) == ["gz", "json", "whl"]


def test_builds_of_the_same_commit_are_identical(releases):
    """Anybody can build a release again and compare it."""
    one, two = ((folder / "SHA256SUMS").read_text() for folder in releases)

    assert one == two


def test_the_source_archive_is_complete_and_contains_no_private_files(releases):
    """Roles, playbooks and locks are in it; files of the working tree that are not in git are not."""
    (archive,) = releases[0].glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}

    assert {"requirements.lock", "playbooks/site.yml", "roles/platform/meta/main.yml", "Makefile"} <= names
    assert "roles/not-in-git.txt" not in names
