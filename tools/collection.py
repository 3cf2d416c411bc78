"""Build the roles and playbooks as the Ansible collection `provision.cluster`: ``python tools/collection.py FOLDER``.

A collection has its plugins in one folder, and uses filters and modules by their full names. This program copies the
roles and rewrites these names. The same sources give the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
NAMESPACE, NAME = "provision", "cluster"
FULL = f"{NAMESPACE}.{NAME}"
PLUGINS = {"library": "modules", "filter_plugins": "filter", "module_utils": "module_utils", "action_plugins": "action"}
"""Folder of a role -> folder of the collection's plugins."""
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "molecule", "library", "filter_plugins", "action_plugins")
_FILTER = re.compile(r"^ +(?:return \{)?\"(\w+)\": ", re.MULTILINE)
_DESCRIPTION = "Roles that prepare GPU servers with RDMA cards for multi-node training."
_TAGS = ("gpu", "rdma", "nvidia", "slurm", "linux")
_GALAXY = {
    "namespace": NAMESPACE,
    "name": NAME,
    "readme": "README.md",
    "authors": ["provision"],
    "license": ["Apache-2.0"],
    "dependencies": {},
    "repository": "",
    "build_ignore": [],
}
_README = f"""# {FULL}

The roles and playbooks of `provision`, for use without its command:

    ansible-galaxy collection install {NAMESPACE}-{NAME}-VERSION.tar.gz
    ansible-playbook -i INVENTORY {FULL}.site

Each role has a README; `{FULL}.platform` runs first, as a dependency of every other role.
"""


def build(target: Path) -> Path:
    """Build the collection of this checkout in the folder `target`, and return its archive."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        write_tree(tree, project["version"])
        built = Path(folder, "built")
        galaxy = Path(sys.executable).with_name("ansible-galaxy")
        words = [str(galaxy), "collection", "build", str(tree), "--output-path", str(built)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        [archive] = built.glob("*.tar.gz")
        return repack(archive, target / archive.name)


def write_tree(tree: Path, version: str) -> None:
    """Write the files of the collection."""
    shutil.copytree(ROOT / "roles", tree / "roles", ignore=LEFT_OUT)
    (tree / "roles/README.md").unlink()
    shutil.copytree(ROOT / "playbooks", tree / "playbooks", ignore=shutil.ignore_patterns("ansible.cfg"))
    shutil.copyfile(ROOT / "LICENSE", tree / "LICENSE")
    (tree / "README.md").write_text(_README, encoding="utf-8")
    systems = _systems(tree / "roles/platform/vars")
    (tree / "galaxy.yml").write_text(json.dumps(_galaxy(version, systems)), encoding="utf-8")
    for path in sorted(tree.glob("roles/*/meta/main.yml")):
        meta = yaml.safe_load(path.read_text(encoding="utf-8"))
        meta["galaxy_info"]["platforms"] = platforms(systems)
        path.write_text("---\n" + yaml.safe_dump(meta, sort_keys=False), encoding="utf-8")
    (tree / "meta").mkdir()
    (tree / "meta/runtime.yml").write_text('---\nrequires_ansible: ">=2.16.0"\n', encoding="utf-8")
    filters = _write_plugins(tree / "plugins")
    full = re.compile(rf"(\|\s*|\b(?:map|select|reject)\(')({'|'.join(sorted(filters, key=len, reverse=True))})\b")
    for path in _files(tree / "roles", {".yml", ".j2"}):
        _rewrite(path, full, rf"\1{FULL}.\2")
    for path in _files(tree / "plugins/action", {".py"}):
        _rewrite(path, re.compile(r'"(platform_light)"'), rf'"{FULL}.\1"')
    for path in _files(tree / "playbooks", {".yml"}):
        _rewrite(path, re.compile(r"(role: |import_role: \{name: )(?=\w+[,}])"), rf"\1{FULL}.")


def _systems(folder: Path) -> dict[str, dict[str, str]]:
    """Return the name of the file of variables of each tested system -> its content."""
    files = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*_*.yml"))}
    return {name: variables for name, variables in files.items() if variables["__platform_support"] == "tested"}


def _galaxy(version: str, systems: Mapping[str, Mapping[str, str]]) -> dict[str, object]:
    """Return the metadata of the collection: its tags and its description name the tested systems."""
    titles = ", ".join(variables["__platform_title"] for variables in systems.values())
    tags = [*_TAGS, *dict.fromkeys(file.partition("_")[0] for file in systems)]
    return {**_GALAXY, "version": version, "tags": tags, "description": f"{_DESCRIPTION} Systems: {titles}."}


def platforms(systems: Mapping[str, Mapping[str, str]]) -> list[dict[str, object]]:
    """Return the platforms of a role in the form of Ansible Galaxy: names, and the releases' code names."""
    releases: dict[str, list[str]] = {}
    for variables in systems.values():
        name = variables["__platform_title"].partition(" ")[0]
        releases.setdefault({"Enterprise": "EL"}.get(name, name), []).append(variables["__platform_repository_suite"])
    return [{"name": name, "versions": versions} for name, versions in releases.items()]


def _write_plugins(target: Path) -> set[str]:
    """Copy the plugins of all roles; return the names of the filters."""
    filters: set[str] = set()
    for kind, plugins in PLUGINS.items():
        (target / plugins).mkdir(parents=True)
        for source in sorted(ROOT.glob(f"roles/*/{kind}/*.py")):
            shutil.copyfile(source, target / plugins / source.name)
            if kind == "filter_plugins":
                text = source.read_text(encoding="utf-8")
                filters.update(_FILTER.findall(text[text.index("def filters(self)") :]))
    return filters


def _files(folder: Path, suffixes: Iterable[str]) -> list[Path]:
    return [path for path in folder.rglob("*") if path.suffix in suffixes and "files" not in path.parts]


def _rewrite(path: Path, pattern: re.Pattern[str], replacement: str) -> None:
    path.write_text(pattern.sub(replacement, path.read_text(encoding="utf-8")), encoding="utf-8")


def repack(archive: Path, target: Path) -> Path:
    """Write the archive again with sorted names, without the time and the user of the build."""
    with tarfile.open(archive) as tar:
        files = {entry.name: (tar.extractfile(entry) or io.BytesIO()).read() for entry in tar if entry.isfile()}
        folders = [entry.name for entry in tar if entry.isdir()]
    listing = json.loads(files["FILES.json"])
    listing["files"].sort(key=lambda entry: str(entry["name"]))
    files["FILES.json"] = json.dumps(listing, indent=1).encode()
    manifest = json.loads(files["MANIFEST.json"])
    manifest["file_manifest_file"]["chksum_sha256"] = hashlib.sha256(files["FILES.json"]).hexdigest()
    files["MANIFEST.json"] = json.dumps(manifest, indent=1).encode()
    time = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted([*folders, *files]):
            entry = tarfile.TarInfo(name)
            content = files.get(name, b"")
            entry.type = tarfile.REGTYPE if name in files else tarfile.DIRTYPE
            entry.size, entry.mode, entry.mtime = len(content), 0o644 if name in files else 0o755, time
            tar.addfile(entry, io.BytesIO(content))
    target.write_bytes(gzip.compress(packed.getvalue(), compresslevel=9, mtime=0))
    return target


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
