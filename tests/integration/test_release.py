"""The files of a release."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from provision import __version__

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
    """Wheel, source archive, collection and SBOM are there, and SHA256SUMS has the digest of each."""
    sums = dict(reversed(line.split()) for line in (releases[0] / "SHA256SUMS").read_text().splitlines())
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in releases[0].iterdir()}
    files.pop("SHA256SUMS")

    assert sums == files
    assert sorted(files) == [
        f"gpu_provision-{__version__}-py3-none-any.whl",
        f"gpu_provision-{__version__}.tar.gz",
        f"provision-cluster-{__version__}.tar.gz",
        "provision.cdx.json",
    ]


def test_builds_of_the_same_commit_are_identical(releases):
    """Anybody can build a release again and compare it."""
    one, two = ((folder / "SHA256SUMS").read_text() for folder in releases)

    assert one == two


def test_the_source_archive_is_complete_and_contains_no_private_files(releases):
    """Roles, playbooks and locks are in it; files of the working tree that are not in git are not."""
    (archive,) = releases[0].glob("gpu_provision-*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}

    assert {"requirements.lock", "playbooks/site.yml", "roles/platform/meta/main.yml", "Makefile"} <= names
    assert "roles/not-in-git.txt" not in names


def test_wheel_and_source_archive_know_their_commit(releases):
    """A wheel that is built from the source archive has the same commit."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    (archive,), (wheel,) = releases[0].glob("gpu_provision-*.tar.gz"), releases[0].glob("*.whl")
    with tarfile.open(archive) as tar:
        archived = tar.extractfile(f"{archive.name.removesuffix('.tar.gz')}/commit.txt").read().decode()
    with zipfile.ZipFile(wheel) as files:
        built = files.read("provision/data/commit").decode()

    assert (archived.strip(), built) == (head.strip(), head.strip())


def test_the_collection_installs_without_network_and_has_valid_playbooks(releases, tmp_path):
    """Ansible finds all roles of the playbooks in the collection; of its dependencies the package `ansible` has all."""
    (archive,) = releases[0].glob("provision-cluster-*.tar.gz")
    programs = Path(sys.executable).parent
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(tmp_path), "ANSIBLE_HOME": str(tmp_path / "home")}
    for words in (
        ["ansible-galaxy", "collection", "install", "--offline", str(archive)],
        ["ansible-galaxy", "collection", "verify", "--offline", "provision.cluster"],
        ["ansible-playbook", "-i", "localhost,", "provision.cluster.site", "--list-tasks"],
    ):
        done = subprocess.run(
            [str(programs / words[0]), *words[1:]],
            cwd=tmp_path, env=environment, check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    assert "docker_engine : " in done.stdout


@pytest.mark.slow
def test_an_unprivileged_user_installs_and_uses_the_release_in_a_clean_container(releases):
    """Without network and checkout, as `make release` verifies: from `pip install` to a plan, and the collection.

    The short form is `test_installed.py`: there, the container reaches nodes.
    """
    words = [sys.executable, "-m", "tools.release_smoke", str(releases[0])]
    done = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
