"""``docker`` command lines; nothing is executed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["exec_argv"]


def exec_argv(
    container: str,
    argv: Sequence[str],
    *,
    stdin: bool = False,
    environment: Mapping[str, str] | None = None,
) -> list[str]:
    """Run `argv` in a running container; `environment` is visible to everybody on the node."""
    words = ["docker", "exec"]
    if stdin:
        words.append("-i")
    for name, value in (environment or {}).items():
        words += ["-e", f"{name}={value}"]
    return [*words, container, *argv]
