"""Build ``docker`` command lines. Nothing is executed here."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence

NO_LOGIN = "no basic auth credentials|[Uu]nauthorized|authentication required|access denied|access forbidden"
"""Messages with which Docker reports that a registry requires credentials, or other ones."""


def exec_argv(
    container: str,
    argv: Sequence[str],
    *,
    stdin: bool = False,
    environment: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the command that runs `argv` in a running container. All users of the node can read `environment`."""
    words = ["docker", "exec"]
    if stdin:
        words.append("-i")
    for name, value in (environment or {}).items():
        words += ["-e", f"{name}={value}"]
    return [*words, container, *argv]


def login_file(server: str, username: str, password: str) -> str:
    """Return a ``config.json`` with the credentials for one registry, as ``docker login`` writes it."""
    place = "https://index.docker.io/v1/" if server == "docker.io" else server
    return json.dumps({"auths": {place: {"auth": base64.b64encode(f"{username}:{password}".encode()).decode()}}})
