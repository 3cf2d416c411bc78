"""The files of a support bundle, and their archive; nothing here accesses a disk."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from provision import __version__
from provision.errors import ProvisionError
from provision.facts import NodeFacts, as_data
from provision.model import Verification
from provision.report import layout
from provision.report.redaction import REMOVED, Redactor
from provision.report.verify_report import as_document, as_text

_PACKAGES = (
    "ansible", "ansible-core", "ansible-runner", "fabric", "paramiko", "cryptography", "msgspec", "docker", "typer",
)  # fmt: skip
_FILE_HASH = re.compile(r"(?<![0-9a-zA-Z:])[0-9a-f]{64}(?![0-9a-zA-Z])")
"""Hash of a file's content; that of an image has a ``sha256:`` prefix."""
_SALT = re.compile(r"(\"salt\": *\")[^\"]*")


def bundle_files(
    facts: Mapping[str, NodeFacts | ProvisionError],
    verification: Verification,
    logs: Mapping[str, str],
    redactor: Redactor,
    *,
    simulated: Sequence[tuple[str, Sequence[str]]] = (),
) -> dict[str, str]:
    """Return the files of the bundle by name; all external data has been passed through `redactor`."""
    report = as_text(verification, verbose=True, simulated=simulated)
    files = {
        "README.txt": f"Support bundle of provision, {time.strftime('%Y-%m-%dT%H:%M:%S%z')}. Secrets are removed.\n",
        "versions.json": _json(versions()),
        "verify.json": _json(redactor.data(as_document(verification))),
        "verify.txt": redactor.text(layout.painted(report, colour=False)) + "\n",
    }
    for name, value in facts.items():
        if isinstance(value, ProvisionError):
            files[f"nodes/{name}/error.txt"] = redactor.text(f"{value}\n{value.output}\n")
        else:
            files[f"nodes/{name}/facts.json"] = _without_hashes(_json(redactor.data(as_data(value))))
            files[f"nodes/{name}/probe.txt"] = _without_hashes(redactor.text(value.raw))
    files.update({f"logs/{name}": redactor.text(text) for name, text in logs.items()})
    return files


def _without_hashes(text: str) -> str:
    """Remove data that could confirm guesses: hashes of files, and the salts of hashed inventory variables."""
    return _SALT.sub(rf"\1{REMOVED}", _FILE_HASH.sub(REMOVED, text))


def versions() -> dict[str, str]:
    """Return the versions of this program and its dependencies on the controller."""
    system = os.uname()
    versions_by_name = {
        "provision": __version__,
        "python": sys.version.split()[0],
        "system": f"{system.sysname} {system.release} {system.machine}",
    }
    for name in _PACKAGES:
        try:
            versions_by_name[name] = version(name)
        except PackageNotFoundError:
            versions_by_name[name] = "not installed"
    return versions_by_name


def archive(files: Mapping[str, str], folder: str) -> bytes:
    """Return a gzipped tar of `files` under one folder, readable by their owner only."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, text in files.items():
            data = text.encode()
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
            tar.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def _json(document: object) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
