"""The wheel contains everything that the command needs outside a checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from provision import __version__
from provision.inventory.role_files import code_of_roles
from provision.resources import roles_folder
from tests.support.command import ROOT
from tests.support.wheel import build_wheel, tracked

DATA = f"gpu_provision-{__version__}.data"
"""The files that pip installs below the prefix."""
_IN_THE_WHEEL = """
import json, sys
sys.path.insert(0, sys.argv[1])
import provision
assert provision.__file__.startswith(sys.argv[1]), provision.__file__
{body}
"""
_HELP = """
import contextlib, io
from provision.cli.main import GROUPS, VERBS, main
failed = {}
for verb in [*VERBS, *GROUPS]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main([verb, "--help"])
        except SystemExit as end:
            code = end.code
    if code or "Usage: provision " + verb not in out.getvalue():
        failed[verb] = out.getvalue()[-500:]
print(json.dumps(failed))
"""
_FILES = """
from provision.inventory.role_files import code_of_roles
from provision.resources import example_inventory, playbooks_folder, roles_folder
from provision.workflow.installation import commit
print(json.dumps({
    "code": {role: digest for role, (digest, _) in code_of_roles(roles_folder()).items()},
    "folders": [str(folder) for folder in (roles_folder(), playbooks_folder(), example_inventory())],
    "commit": commit(),
}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory):
    """The files of the wheel as pip installs them."""
    folder = tmp_path_factory.mktemp("site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def in_the_wheel(unpacked, tmp_path, body):
    """Run code with the modules of the wheel, outside the checkout; return the document that it prints."""
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("PYTHONPATH", None)
    words = [sys.executable, "-P", "-c", _IN_THE_WHEEL.format(body=body), str(unpacked)]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_the_wheel_contains_every_file_of_roles_playbooks_and_package(unpacked):
    """Each file that git tracks is in it with the same content, links as the files that they lead to."""
    for name in tracked("roles", "playbooks", "inventories/example", "requirements.lock", "provision"):
        source = ROOT / name
        copy = unpacked / (name if name.startswith("provision/") else f"provision/data/{name}")
        if name.startswith("provision/") and name.endswith(".md"):
            continue
        files = source.rglob("*.py") if source.is_dir() else [source]
        for file in files:
            assert (copy / file.relative_to(source)).read_bytes() == file.read_bytes(), name


def test_the_wheel_contains_nothing_else(unpacked):
    """No bytecode, no tests, and one package and the manual pages at the top level."""
    names = {path.name for path in unpacked.iterdir() if not path.name.endswith(".dist-info")}

    assert names == {"provision", DATA}
    assert list(unpacked.rglob("*.pyc")) == []


def test_pip_installs_the_manual_pages_below_the_prefix(unpacked):
    """There, `man` looks for the pages of a program on the PATH."""
    files = {path.relative_to(unpacked / DATA): path.read_bytes() for path in (unpacked / DATA).rglob("*.*")}

    assert files == {Path("data/share/man/man1", page.name): page.read_bytes() for page in (ROOT / "man").iterdir()}


def test_the_metadata_have_name_version_and_extras(unpacked):
    """The name is not that of another project, and the version is the one that the command prints."""
    [folder] = unpacked.glob("*.dist-info")
    metadata = message_from_string((folder / "METADATA").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert (metadata["Name"], metadata["Version"]) == ("gpu-provision", __version__)
    assert metadata.get_all("Provides-Extra") == sorted(project["optional-dependencies"])


def test_every_verb_has_help_in_the_wheel(unpacked, tmp_path):
    """No verb needs a file of the checkout."""
    assert in_the_wheel(unpacked, tmp_path, _HELP) == {}


def test_the_wheel_uses_its_own_roles_with_the_same_fingerprints(unpacked, tmp_path):
    """A plan by an installed command reports no difference from the apply of a checkout."""
    document = in_the_wheel(unpacked, tmp_path, _FILES)

    assert document["code"] == {role: digest for role, (digest, _) in code_of_roles(roles_folder()).items()}
    assert all(Path(folder).is_relative_to(unpacked / "provision/data") for folder in document["folders"])
