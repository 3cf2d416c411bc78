"""The Secrets of an exported job; their values are empty unless the export contains them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

from provision.batch.export.workload import ExportOptions, fetches_code
from provision.model.job import JobSpec
from provision.model.reason import Reason, reason

ENV, FILES, SYNC, REGISTRY = "env", "files", "code", "registry"
_REGISTRY_KEY = ".dockerconfigjson"


def secret_name(spec: JobSpec, part: str) -> str:
    """Return the name of one of a job's Secrets."""
    return f"{spec.name}-{part}"


def secret_objects(spec: JobSpec, options: ExportOptions) -> tuple[list[dict[str, Any]], list[Reason]]:
    """Return the Secrets of a job, and notes about their values."""
    objects = list(_objects(spec, options))
    names = [one["metadata"]["name"] for one in objects]
    if not names:
        return [], []
    if options.secrets is None:
        return objects, [reason("export.secret_empty", names=names)]
    return objects, [reason("export.secret_values", names=names)]


def _objects(spec: JobSpec, options: ExportOptions) -> Iterator[dict[str, Any]]:
    values = options.secrets
    if spec.secret_env:
        given: Mapping[str, str] = values.env if values else {}
        yield _secret(spec, ENV, {name: given.get(name, "") for name in spec.secret_env})
    if spec.config_files:
        contents: Mapping[str, str] = values.files if values else {}
        first = len(spec.data) + len(spec.mounts)
        targets = [text.partition(":")[2] for text in spec.config_files]
        yield _secret(spec, FILES, {f"file-{first + at}": contents.get(path, "") for at, path in enumerate(targets)})
    if options.sync_secrets and fetches_code(spec):
        given = values.sync if values else {}
        yield _secret(spec, SYNC, {name: given.get(name, "") for name in options.sync_secrets})
    if options.logs_in:
        yield _registry(spec, values.registry if values else {})


def _secret(spec: JobSpec, part: str, values: Mapping[str, str]) -> dict[str, Any]:
    """Return a Secret; bytes that are not text are encoded."""
    texts = {name: value for name, value in values.items() if _is_text(value)}
    data = {name: _encoded(value) for name, value in values.items() if name not in texts}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret_name(spec, part)}, "type": "Opaque"}
    return {**secret, **({"data": data} if data else {}), **({"stringData": texts} if texts else {})}


def _registry(spec: JobSpec, credential: Mapping[str, str]) -> dict[str, Any]:
    auths = {}
    if credential:
        login = {name: credential.get(name, "") for name in ("username", "password")}
        auths[credential.get("server", "")] = {**login, "auth": _encoded(f"{login['username']}:{login['password']}")}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name(spec, REGISTRY)},
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": {_REGISTRY_KEY: json.dumps({"auths": auths})},
    }


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def _encoded(value: str) -> str:
    return base64.b64encode(value.encode("utf-8", "surrogateescape")).decode()
